"""Compilers: from a state to what a model sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.compilers.conversation import (
        ConversationWithCurrentToolTrace as ConversationWithCurrentToolTrace,
    )
    from agentloop.compilers.sliding_window import SlidingWindow as SlidingWindow
    from agentloop.compilers.token_budget import TokenBudget as TokenBudget
    from agentloop.compilers.whole_conversation import WholeConversation as WholeConversation
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.compilers.conversation": "ConversationWithCurrentToolTrace",
            "agentloop.compilers.sliding_window": "SlidingWindow",
            "agentloop.compilers.token_budget": "TokenBudget",
            "agentloop.compilers.whole_conversation": "WholeConversation",
        },
    )
