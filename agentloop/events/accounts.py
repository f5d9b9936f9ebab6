"""Events of accounts of money, which only loops with a `BudgetAccount` emit."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.accounts import AccountKey, SpendingLimit
from agentloop.values.event import Event


@frozen(eq=False, repr=False)
class BudgetShareUsed(Event):
    """A `BudgetAccount` has reached 50, 80 or 100 % of its limit. Reported once per account and part, in the execution that reaches it.

    Attributes:
        key: the account: its name, its owner and its period.
        percent: the part; 100 when a request did not fit any more, and was not sent.
        remaining: what is left.
    """

    key: AccountKey
    percent: int
    remaining: SpendingLimit
