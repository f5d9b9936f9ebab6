"""The account of a budget: what was spent, and what is set aside for what is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable

from attrs import define, field

from agentloop.interception.budgeting.amounts import NOTHING, Amounts, Limits
from agentloop.interception.budgeting.request_size import RequestSize
from agentloop.interception.budgeting.spending import Spending
from agentloop.values.agent_state import AgentState
from agentloop.values.stop import StopSignal


@define(eq=False)
class Hold:
    """Amounts that are set aside.

    Attributes:
        amounts: how much.
    """

    amounts: Amounts


@define(eq=False)
class Entry:
    """What one execution spends from an account.

    Attributes:
        spending: counts what its state says was used.
        size: measures its requests.
        own: what it used itself.
        delegated: what was used by what it started, under leases that have ended.
        lent: what was used by what its calls started, by their keys; of calls that have run now.
        hold: what is set aside for its inference under way.
        asked: the input tokens that the inference under way was estimated at.
        measured: the same, by the length of the request alone.
        asked_in: the number of the step of that inference; zero when it had no tools.
        beyond: how many more tokens than by its length a request with tools has.
        closing: the limit for which its next answer is the last.
        restored: whether what a stored state says about ended leases was taken over.
    """

    spending: Spending
    size: RequestSize = field(factory=RequestSize)
    own: Amounts = NOTHING
    delegated: Amounts = NOTHING
    lent: dict[str, Amounts] = field(factory=dict)
    hold: Hold | None = None
    asked: int = 0
    measured: int = 0
    asked_in: int = 0
    beyond: int = 0
    closing: StopSignal | None = None
    restored: bool = False


class BudgetAccount:
    """Keeps spent and set aside together within the limits; used from any thread.

    What an execution is found to have spent is written down as it is: only what is asked for beforehand can be refused.

    Args:
        limits: how much may be used by all executions together that share the account.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._holds: set[Hold] = set()

    def entry(self, state: AgentState, spending: Callable[[], Spending]) -> Entry:
        """Return the entry of the state's execution; opened with this count of its spending when there is none yet."""
        with self._lock:
            entry = self._entries.get(state.execution_id)
            if entry is None:
                entry = self._entries[state.execution_id] = Entry(spending())
            return entry

    def knows(self, execution_id: str) -> bool:
        """Say whether an execution has drawn on the account."""
        with self._lock:
            return execution_id in self._entries

    @property
    def spent(self) -> Amounts:
        """What was used, by the executions and by what they started."""
        with self._lock:
            return self._spent()

    @property
    def reserved(self) -> Amounts:
        """What is set aside: for inferences under way, and for leases."""
        with self._lock:
            return sum((hold.amounts for hold in self._holds), NOTHING)

    @property
    def left(self) -> Limits:
        """What is neither spent nor set aside."""
        with self._lock:
            return self._left()

    def hold(self, amounts: Amounts) -> Hold | None:
        """Set these amounts aside, or return None when the limits do not allow it."""
        with self._lock:
            if not self._left().allow(amounts):
                return None
            hold = Hold(amounts)
            self._holds.add(hold)
            return hold

    def hold_up_to(self, limits: Limits) -> tuple[Hold, Limits]:
        """Set aside as much of these limits as is left, and return it with the limits that it makes."""
        with self._lock:
            tightened = self._left().tightened(limits)
            hold = Hold(tightened.amounts)
            self._holds.add(hold)
            return hold, tightened

    def release(self, entry: Entry) -> None:
        """Give back what is set aside for the inference of the execution under way, if anything is."""
        with self._lock:
            if entry.hold is not None:
                self._holds.discard(entry.hold)
                entry.hold = None

    def take(self, entry: Entry, amounts: Amounts) -> bool:
        """Write down that the execution uses these amounts, or return False when the limits do not allow it."""
        with self._lock:
            if not self._left().allow(amounts):
                return False
            entry.own += amounts
            return True

    def book(self, entry: Entry, own: Amounts) -> None:
        """Write down what the execution has used itself, in all, in place of what was known before."""
        with self._lock:
            entry.own = own

    def settle(self, entry: Entry, used: Amounts) -> None:
        """Write down what an inference of the execution used, in place of what was set aside for it."""
        with self._lock:
            if entry.hold is not None:
                self._holds.discard(entry.hold)
                entry.hold = None
            entry.own += used

    def settle_lease(self, entry: Entry, hold: Hold, used: Amounts, key: str = "") -> None:
        """Write down what was used under a lease of the execution, and of a call, in place of what was set aside for it, once."""
        with self._lock:
            if hold in self._holds:
                self._holds.discard(hold)
                entry.delegated += used
                entry.lent[key] = entry.lent.get(key, NOTHING) + used

    def _spent(self) -> Amounts:
        return sum((entry.own + entry.delegated for entry in self._entries.values()), NOTHING)

    def _left(self) -> Limits:
        return self.limits.minus(sum((hold.amounts for hold in self._holds), self._spent()))
