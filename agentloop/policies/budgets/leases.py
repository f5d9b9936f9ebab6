"""Leases: parts of a running budget that are lent to the executions a tool starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from attrs import asdict, frozen

from agentloop.interception.lending import CanLend, Lease, current_lenders
from agentloop.policies.budgets.account import AccountEntry, TreeAccount
from agentloop.policies.budgets.amounts import NO_AMOUNTS, Amounts, Limits, cost_units
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.state import AgentState


def _no_usage(_: AgentState) -> Amounts:
    return NO_AMOUNTS


def _discard(_: Amounts) -> None:
    """Record nothing."""


@frozen
class RunningBudget(CanLend):
    """The budget of a running execution. A tool gets it from `current_budget()`.

    Attributes:
        account: what was used and what is reserved.
        entry: the execution's entry in the account.
        remaining: returns what may still be lent: what is not used yet, without what is kept.
        remaining_seconds: returns the time that is left for tools; None for no limit.
        create_lease: creates the interceptor for an execution that uses an account, for so many seconds.
        usage_of: returns what an execution has used so far, according to its state.
        call_key: the key of the running call.
        record_usage: records what was used under the leases of the call, in all.
        kept: what is kept for the last answer of the execution.
    """

    account: TreeAccount
    entry: AccountEntry
    remaining: Callable[[], Limits]
    remaining_seconds: Callable[[], float | None]
    create_lease: Callable[[TreeAccount, float | None], Lease]
    usage_of: Callable[[AgentState], Amounts] = _no_usage
    call_key: str = ""
    record_usage: Callable[[Amounts], None] = _discard
    kept: Amounts = NO_AMOUNTS

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
    ) -> Iterator[Lease]:
        """Lend a part of what is not used yet, until the block ends.

            with budget.lease(0.5) as lease:
                state = await child.with_interceptors(lease).execute("…")

        A lease is a limit, and sets nothing aside: each inference under it reserves in this budget what it may use, and
        returns the rest when it ends. An inference that only does not fit because of what others have reserved waits for
        them. So concurrent leases may add up to more than the budget, and never use more than it. If less is left than is
        requested, the lease is that much smaller.

        Args:
            share: the maximum share of what is not used yet, of every kind.
            steps: the maximum number of steps.
            tool_calls: the maximum number of tool calls.
            tokens: the maximum number of tokens.
            cost: the maximum cost in dollars.
            seconds: the maximum duration in seconds.
            resuming: the state of a suspended execution that continues under this lease. Its usage so far was recorded at
                the end of its previous lease and is not counted again.

        Returns:
            A context manager that yields an interceptor for the loop that uses the lease.
        """
        requested = Limits(steps, tool_calls, tokens, None if cost is None else cost_units(cost))
        seconds_before = 0.0 if resuming is None else _seconds_run(resuming)
        deadlines = [
            max(limit, 0.0) + seconds_before for limit in (self.remaining_seconds(), seconds) if limit is not None
        ]
        lending = self.account.lend(
            self.entry,
            self.remaining().share(share).tightened(requested),
            kept=self.kept,
            used_before=NO_AMOUNTS if resuming is None else self.usage_of(resuming),
            call_key=self.call_key,
        )
        try:
            with lending as lent:
                yield self.create_lease(lent, min(deadlines, default=None))
        finally:
            self.record_usage(self.entry.delegated_by_call.get(self.call_key, NO_AMOUNTS))


def _seconds_run(state: AgentState) -> float:
    """Return how long the execution ran until its state last changed, without the time it was suspended."""
    execution = state.execution
    if execution is None:
        return 0.0
    return (state.updated_at - execution.started_at).total_seconds() - execution.waited_seconds


BUDGET: Final = "budget"
"""The kind of a running budget among the limits that lend."""

# --- the current budget -----------------------------------------------------------------------------------------


def current_budget() -> RunningBudget | None:
    """Return the budget of the execution whose tool is running; None outside of tools and without a `Budget`."""
    lender = current_lenders().get(BUDGET)
    return lender if isinstance(lender, RunningBudget) else None


# --- the usage of ended leases, in the state --------------------------------------------------------------------

DELEGATED: Final = "agentloop.budget"
"""The owner of the usage of ended leases among the extensions of a state."""


def delegated_usage(state: AgentState, budget: str) -> Amounts:
    """Return what was used under ended leases of the state's execution.

    Args:
        state: the state.
        budget: the name of the budget that gave the leases.
    """
    return Amounts(**_stored_usage(state).get(budget, {}))


def with_delegated_usage(state: AgentState, budget: str, amounts: Amounts) -> AgentState:
    """Return the state with what was used under ended leases of its execution."""
    if amounts == delegated_usage(state, budget):
        return state
    entry = {**_stored_usage(state), "execution": state.execution_id, budget: asdict(amounts)}
    return state.with_extension(DELEGATED, entry)


def _stored_usage(state: AgentState) -> Mapping[str, Any]:
    stored: Any = state.extension(DELEGATED)
    return stored if stored is not None and stored["execution"] == state.execution_id else EMPTY_OBJECT
