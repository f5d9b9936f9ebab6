"""Compilers: from a state to what a model sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.compilers.conversation import (
        ConversationWithCurrentToolTrace as ConversationWithCurrentToolTrace,
    )
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.compilers.conversation": "ConversationWithCurrentToolTrace",
        },
    )
