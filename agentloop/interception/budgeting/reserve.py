"""What is kept back for a last answer, and when that answer is due."""

from __future__ import annotations

from math import ceil

from attrs import frozen

from agentloop.interception.budgeting.account import BudgetAccount, Entry
from agentloop.interception.budgeting.amounts import DOLLAR, Amounts, Limits
from agentloop.interception.budgeting.signals import reached, refused
from agentloop.values.agent_state import AgentState
from agentloop.values.stop import StopReason, StopSignal


@frozen
class Reserve:
    """What is kept back, of limits.

    Attributes:
        limits: the limits.
        share: the share of tokens, money and time that is kept back; zero for nothing, and no last answer.
    """

    limits: Limits
    share: float

    @property
    def amounts(self) -> Amounts:
        """The tokens and the money that are kept back."""
        return Amounts(tokens=self._part(self.limits.tokens), cost=self._part(self.limits.cost))

    def reached(self, account: BudgetAccount, entry: Entry) -> StopSignal | None:
        """Return the signal for tokens or money that are used up, or cannot be counted and may not be estimated."""
        spending, left = entry.spending, account.left
        for reason, amount in ((StopReason.COST_LIMIT, left.cost), (StopReason.TOKEN_LIMIT, left.tokens)):
            if amount is None:
                continue
            if spending.unknown == "refuse" and spending.missing:
                return refused(reason, spending.missing)
            if amount <= 0:
                return self.signal(reason, account, entry)
        return None

    def nearly_reached(self, account: BudgetAccount, entry: Entry, state: AgentState) -> StopSignal | None:
        """Return the signal for the limit so near that the next answer has to be the last; time is not looked at."""
        if not self.share:
            return None
        left, kept = account.left, self.amounts
        if left.cost is not None and left.cost <= kept.cost:
            return self.signal(StopReason.COST_LIMIT, account, entry, last=True)
        if left.tokens is not None and left.tokens <= kept.tokens:
            return self.signal(StopReason.TOKEN_LIMIT, account, entry, last=True)
        if left.steps is not None and left.steps <= 0:
            return self.signal(StopReason.STEP_LIMIT, account, entry, last=True)
        if left.tool_calls is not None and state.tool_call_count > entry.own.tool_calls:
            return self.signal(StopReason.TOOL_CALL_LIMIT, account, entry)
        return None

    def signal(self, reason: StopReason, account: BudgetAccount, entry: Entry, *, last: bool = False) -> StopSignal:
        """Return the signal for one of the limits that are counted."""
        limits, spent, estimated = self.limits, account.spent, entry.spending.estimated
        if reason is StopReason.COST_LIMIT:
            return reached(reason, (limits.cost or 0) / DOLLAR, last=last, estimated=estimated, cost=spent.cost)
        if reason is StopReason.TOKEN_LIMIT:
            return reached(reason, limits.tokens or 0, last=last, estimated=estimated, tokens=spent.tokens)
        if reason is StopReason.STEP_LIMIT:
            return reached(reason, limits.steps or 0, last=last, steps=spent.steps)
        return reached(reason, limits.tool_calls or 0, last=last, calls=spent.tool_calls)

    def _part(self, limit: int | None) -> int:
        return 0 if limit is None else ceil(round(limit * self.share, 6))
