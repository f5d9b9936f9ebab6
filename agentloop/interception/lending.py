"""Lending: the limits of an execution lend a part of what is left to the executions that its tools start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.values.state import AgentState


class Lease(CanIntercept):
    """What an execution may use, lent by the execution whose tool started it; an interceptor of its loop."""

    @abstractmethod
    def count_ended(self, state: AgentState) -> None:
        """Count what an ended execution has used on the account of the lease, unless it used the account itself.

        Args:
            state: its final state.
        """


class CanLend(ABC):
    """The limits of a running execution, whose tools may lend a part of what is left."""

    @abstractmethod
    def lease(self, share: float = 1.0, *, resuming: AgentState | None = None) -> AbstractContextManager[Lease]:
        """Lend a part of what is not used yet, until the block ends.

        Args:
            share: the maximum share of what is not used yet, of every kind.
            resuming: the state of a suspended execution that continues under this lease; None for a new one.
        """


# A context variable, because calls of one batch run concurrently, each with its own key; threads of tools get a copy.
_CURRENT: ContextVar[Mapping[str, CanLend]] = ContextVar("agentloop budget", default=MappingProxyType({}))


def current_lenders() -> Mapping[str, CanLend]:
    """Return the limits of the execution whose tool is running, by kind; empty outside of tools, and without limits that lend."""
    return _CURRENT.get()


@contextmanager
def set_current_lender(lender: CanLend, kind: str) -> Iterator[None]:
    """Make these the current limits of the block.

    Args:
        lender: the limits.
        kind: what distinguishes them from other limits of the same execution; those of a sub-agent replace its caller's.
    """
    token = _CURRENT.set({**_CURRENT.get(), kind: lender})
    try:
        yield
    finally:
        _CURRENT.reset(token)
