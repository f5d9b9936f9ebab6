"""Runs written down: what a journal holds, where it is kept, and how an execution goes on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.journal.chain import chained as chained
    from agentloop.journal.chain import hash_of as hash_of
    from agentloop.journal.chain import verified as verified
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.journal.chain": "chained hash_of verified",
        },
    )
