"""Parts of a running budget, lent to what an execution starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attrs import asdict, frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.interception.budgets.account import BudgetAccount, Entry
from agentloop.interception.budgets.amounts import NOTHING, Amounts, Limits, parts_of_dollar, seconds_run
from agentloop.values.state import AgentState


def _nothing(_: AgentState) -> Amounts:
    return NOTHING


def _unnoted(_: Amounts) -> None:
    """Note nothing."""


@frozen
class RunningBudget:
    """The budget of an execution under way. A tool gets it by `current_budget()`.

    Attributes:
        account: what was spent and what is set aside.
        entry: the execution's own part of it.
        left: what may still be lent: what is left without what is kept for the last answer.
        seconds: the time left for tools; None for no limit.
        make: makes the interceptor for an execution that draws on an account.
        used: tells what an execution has used so far, as its state says.
        key: the call that is running.
        note: is told what leases of the call have used, in all.
    """

    account: BudgetAccount
    entry: Entry
    left: Callable[[], Limits]
    seconds: Callable[[], float | None]
    make: Callable[[BudgetAccount, float | None], CanIntercept]
    used: Callable[[AgentState], Amounts] = _nothing
    key: str = ""
    note: Callable[[Amounts], None] = _unnoted

    @contextmanager
    def lease(
        self,
        share: float = 1.0,
        *,
        steps: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
        resuming: AgentState | None = None,
    ) -> Iterator[CanIntercept]:
        """Lend a part of what is left, until the block ends; what was not used then comes back.

            with budget.lease(0.5) as lease:
                state = await child.with_interceptors(lease).execute("…")

        What is lent is set aside at once, so leases that run side by side never use more than there is. Where less is left
        than is asked for, that is lent.

        Args:
            share: the most of what is left, of every kind.
            steps: the most steps.
            tool_calls: the most tool calls.
            tokens: the most tokens.
            cost: the most dollars.
            seconds: the most seconds.
            resuming: the state of a suspended execution that goes on under this lease: what it has used was written down at
                the end of the lease that it had then, and is not counted again.

        Returns:
            A context manager that gives an interceptor for the loop that draws on the lease.
        """
        asked = Limits(steps, tool_calls, tokens, None if cost is None else parts_of_dollar(cost))
        hold, limits = self.account.hold_up_to(self.left().share(share).tightened(asked))
        before, passed = (NOTHING, 0.0) if resuming is None else (self.used(resuming), seconds_run(resuming))
        lent = BudgetAccount(limits.plus(before))
        left = self.seconds()
        given = [max(one, 0.0) + passed for one in (left, seconds) if one is not None]
        try:
            yield self.make(lent, min(given, default=None))
        finally:
            self.account.settle_lease(self.entry, hold, (lent.spent + lent.reserved).without(before), self.key)
            self.note(self.entry.lent.get(self.key, NOTHING))


_CURRENT: ContextVar[RunningBudget | None] = ContextVar("agentloop budget", default=None)


def current_budget() -> RunningBudget | None:
    """Return the budget of the execution whose tool runs here; None outside of tools and without a `Budget`."""
    return _CURRENT.get()


@contextmanager
def lending(budget: RunningBudget) -> Iterator[None]:
    """Let what runs inside draw on this budget."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)


_KEY = "agentloop.budget"


def delegated(state: AgentState, budget: str) -> Amounts:
    """Return what the state says that leases of its execution have used.

    Args:
        state: the state.
        budget: the name of the budget that gave the leases.
    """
    written = state.context.metadata.get(_KEY, {})
    if written.get("execution") != state.execution_id or budget not in written:
        return NOTHING
    return Amounts(**written[budget])


def with_delegated(state: AgentState, budget: str, amounts: Amounts) -> AgentState:
    """Return the state with what leases of its execution have used."""
    if amounts == delegated(state, budget):
        return state
    written = state.context.metadata.get(_KEY, {})
    others = written if written.get("execution") == state.execution_id else {}
    entry = {**others, "execution": state.execution_id, budget: asdict(amounts)}
    return state.with_metadata(**{_KEY: entry})
