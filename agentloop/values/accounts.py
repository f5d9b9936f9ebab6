"""Accounts of money and tokens that live longer than an execution: how each request changes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import evolve, field, frozen

from agentloop.values.time_and_ids import to_microseconds
from agentloop.values.value import Value

COST_UNITS_PER_DOLLAR = 10**12
"""Money is counted in units so small that the price of every token is a whole number of them."""
WARNING_PERCENTS = (50, 80, 100)
"""The parts of a limit, in percent, at which an account is announced."""
_MAX_LAPSED = 32
"""How many reservations without an answer are remembered one by one, so that a late answer can still replace its own."""


@frozen(eq=False, repr=False)
class AccountKey(Value):
    """Identifies an account in a store.

    Attributes:
        name: the name of the budget.
        owner: for whom it is kept, such as a tenant; empty for everybody.
        period: the day or month, such as `2026-11-29` or `2026-11`; empty for all time.
    """

    name: str
    owner: str = ""
    period: str = ""

    @property
    def text(self) -> str:
        """The key in ASCII, for stores."""
        return json.dumps([self.name, self.owner, self.period])

    @classmethod
    def parse(cls, text: str) -> AccountKey:
        """Return the key of a `text`."""
        return cls(*json.loads(text))


@frozen(eq=False, repr=False)
class Spending(Value):
    """Tokens and money.

    Attributes:
        tokens: input and output together.
        cost: money in units of 10^-12 dollars.
    """

    tokens: int = 0
    cost: int = 0

    @property
    def dollars(self) -> float:
        """The money in dollars."""
        return self.cost / COST_UNITS_PER_DOLLAR

    def __add__(self, other: Spending) -> Spending:
        return Spending(self.tokens + other.tokens, self.cost + other.cost)


NO_SPENDING = Spending()


@frozen(eq=False, repr=False)
class SpendingLimit(Value):
    """How much an account allows; None is no limit.

    Attributes:
        tokens: input and output together.
        cost: money in units of 10^-12 dollars.
    """

    tokens: int | None = None
    cost: int | None = None

    @property
    def dollars(self) -> float | None:
        """The money in dollars; None is no limit."""
        return None if self.cost is None else self.cost / COST_UNITS_PER_DOLLAR

    def allows(self, spending: Spending) -> bool:
        """Return whether an account may have spent so much."""
        within_tokens = self.tokens is None or spending.tokens <= self.tokens
        return within_tokens and (self.cost is None or spending.cost <= self.cost)

    def minus(self, spending: Spending) -> SpendingLimit:
        """Return what is left, at least zero."""
        return SpendingLimit(
            None if self.tokens is None else max(self.tokens - spending.tokens, 0),
            None if self.cost is None else max(self.cost - spending.cost, 0),
        )

    def percent(self, spending: Spending) -> int:
        """Return the highest of `WARNING_PERCENTS` that is reached; 0 below the first."""
        pairs = [(spending.tokens, self.tokens), (spending.cost, self.cost)]
        reached = [
            percent
            for percent in WARNING_PERCENTS
            for used, limit in pairs
            if limit is not None and used * 100 >= limit * percent
        ]
        return max(reached, default=0)


@frozen(eq=False, repr=False)
class AccountHold(Value):
    """A reservation for one request.

    Attributes:
        id: identifies it among those of the account.
        spending: how much is reserved.
        until: when its answer is no longer expected, in microseconds since 1970.
        execution_id: the execution that makes the request.
        token: the token of the claim on the execution; 0 without a journal.
    """

    id: str
    spending: Spending
    until: int
    execution_id: str = ""
    token: int = 0


@frozen(eq=False, repr=False)
class AccountState(Value):
    """What an account has spent and reserved. A change is a new state; each change can be repeated without effect.

    A reservation ends with its answer. When its answer is no longer expected, because its time is over or because another
    process drives its execution, nobody waits for it any more. Its amount still counts: the provider may have charged it.

    Attributes:
        limit: how much the account allowed when it was last used.
        spent: what answers have cost.
        holds: the reservations whose answers have not come.
        requests: the number of answers.
        announced: the highest of `WARNING_PERCENTS` that was announced.
    """

    limit: SpendingLimit = SpendingLimit()
    spent: Spending = NO_SPENDING
    holds: tuple[AccountHold, ...] = field(default=(), converter=tuple[AccountHold, ...])
    requests: int = 0
    announced: int = 0

    def reserved(self, now: int) -> Spending:
        """Return what is reserved for requests that are answered soon.

        Args:
            now: the time, in microseconds since 1970.
        """
        return sum([hold.spending for hold in self.holds if hold.until > now], NO_SPENDING)

    def unsettled(self, now: int) -> Spending:
        """Return what was reserved for requests whose answers are no longer expected; it counts as spent.

        Args:
            now: the time, in microseconds since 1970.
        """
        return sum([hold.spending for hold in self.holds if hold.until <= now], NO_SPENDING)

    @property
    def remaining(self) -> SpendingLimit:
        """What is neither spent nor reserved; None is no limit."""
        return self.limit.minus(self.total)

    def holds_for(self, hold_id: str) -> bool:
        """Return whether a reservation is there."""
        return any(hold.id == hold_id for hold in self.holds)

    def can_wait_for(self, spending: Spending, now: int) -> bool:
        """Return whether so much fits as soon as the answers that are expected cost nothing.

        Args:
            spending: how much.
            now: the time, in microseconds since 1970.
        """
        return self.limit.allows(self.spent + self.unsettled(now) + spending)

    def reserve(self, hold: AccountHold, limit: SpendingLimit, now: int) -> AccountState:
        """Return the state with a reservation if it fits, else without it.

        Args:
            hold: the reservation.
            limit: how much the account allows from now on.
            now: the time, in microseconds since 1970.
        """
        state = _fold(evolve(self, limit=limit, holds=[_lapsed(each, hold, now) for each in self.holds]), now)
        if state.holds_for(hold.id):
            return state
        if limit.allows(state.total + hold.spending):
            return evolve(state, holds=[*state.holds, hold])
        return state if state.can_wait_for(hold.spending, now) else evolve(state, announced=100)

    def note(self, hold: AccountHold) -> AccountState:
        """Return the state with a reservation for a request that was already answered, whether it fits or not."""
        return self if self.holds_for(hold.id) else evolve(self, holds=[*self.holds, hold])

    def settle(self, hold_id: str, spending: Spending, *, announces: bool = True) -> AccountState:
        """Return the state with what a request has cost in place of its reservation.

        Args:
            hold_id: the id of the reservation; one that is not there changes nothing.
            spending: the cost.
            announces: whether a part of the limit that is reached is announced now.
        """
        if not self.holds_for(hold_id):
            return self
        spent, holds = self.spent + spending, [hold for hold in self.holds if hold.id != hold_id]
        announced = max(self.announced, self.limit.percent(spent)) if announces else self.announced
        return evolve(self, spent=spent, holds=holds, requests=self.requests + 1, announced=announced)

    def release(self, hold_id: str) -> AccountState:
        """Return the state without a reservation whose request was not answered and cost nothing."""
        return evolve(self, holds=[hold for hold in self.holds if hold.id != hold_id])

    def lapse(self, hold_id: str, now: int) -> AccountState:
        """Return the state with a reservation whose answer is no longer expected.

        Args:
            hold_id: the id of the reservation.
            now: the time, in microseconds since 1970.
        """
        ended = [evolve(hold, until=min(hold.until, now)) if hold.id == hold_id else hold for hold in self.holds]
        return evolve(self, holds=ended)

    @property
    def total(self) -> Spending:
        """What is spent and reserved."""
        return sum([hold.spending for hold in self.holds], self.spent)

    # --- stored form ----------------------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the state as JSON in ASCII, for stores."""
        holds = [
            [hold.id, hold.spending.tokens, hold.spending.cost, hold.until, hold.execution_id, hold.token]
            for hold in self.holds
        ]
        stored = {
            "limit": [self.limit.tokens, self.limit.cost],
            "spent": [self.spent.tokens, self.spent.cost],
            "holds": holds,
            "requests": self.requests,
            "announced": self.announced,
        }
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> AccountState:
        """Return the state of a `to_text`; a new one for an empty text."""
        stored: Mapping[str, Any] = json.loads(text) if text else {}
        return cls(
            SpendingLimit(*stored.get("limit", ())),
            Spending(*stored.get("spent", ())),
            [
                AccountHold(hold_id, Spending(tokens, cost), until, execution_id, token)
                for hold_id, tokens, cost, until, execution_id, token in stored.get("holds", ())
            ],
            stored.get("requests", 0),
            stored.get("announced", 0),
        )


@frozen(eq=False, repr=False, kw_only=True)
class AccountBalance(Value):
    """What an account has spent, and what is left of it.

    Attributes:
        key: the account: its name, its owner and its period.
        limit: how much it allows; None is no limit.
        spent: what answers have cost.
        reserved: what is reserved for requests that are answered soon.
        unsettled: what was reserved for requests whose answers never came, such as those of a process that died. It counts as
            spent, because the provider may have charged it.
        remaining: what is neither spent, reserved nor unsettled; None is no limit.
        requests: the number of answers.
    """

    key: AccountKey
    limit: SpendingLimit
    spent: Spending
    reserved: Spending
    unsettled: Spending
    remaining: SpendingLimit
    requests: int

    @classmethod
    def of(cls, key: AccountKey, state: AccountState, at: datetime) -> AccountBalance:
        """Return the balance of the state of an account at a time."""
        now = to_microseconds(at)
        return cls(
            key=key,
            limit=state.limit,
            spent=state.spent,
            reserved=state.reserved(now),
            unsettled=state.unsettled(now),
            remaining=state.remaining,
            requests=state.requests,
        )


def _lapsed(hold: AccountHold, new: AccountHold, now: int) -> AccountHold:
    """Return a reservation as it is after another one is made: without an expected answer if its process was replaced."""
    was_replaced = hold.execution_id == new.execution_id and hold.token < new.token
    return evolve(hold, until=min(hold.until, now)) if was_replaced else hold


def _fold(state: AccountState, now: int) -> AccountState:
    """Return a state with the oldest of many reservations without an answer among what is spent."""
    lapsed = sorted([hold for hold in state.holds if hold.until <= now], key=lambda hold: hold.until)
    oldest = {hold.id for hold in lapsed[:-_MAX_LAPSED]}
    spent = sum([hold.spending for hold in state.holds if hold.id in oldest], state.spent)
    return evolve(state, spent=spent, holds=[hold for hold in state.holds if hold.id not in oldest])
