"""Compilers: from a state to what a model sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.compilers.history import ConversationWithCurrentToolTrace as ConversationWithCurrentToolTrace
    from agentloop.compilers.history import WholeConversation as WholeConversation
    from agentloop.compilers.window import SlidingWindow as SlidingWindow
    from agentloop.compilers.window import TokenWindow as TokenWindow
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.compilers.history": "ConversationWithCurrentToolTrace WholeConversation",
            "agentloop.compilers.window": "SlidingWindow TokenWindow",
        },
    )
