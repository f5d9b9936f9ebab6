"""The account of a budget: what was spent, and what is set aside for what is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.interception.budgets.amounts import NOTHING, Amounts, Limits, refused, stop_by
from agentloop.interception.budgets.prices import Price, Prices
from agentloop.values.estimates import BYTES_PER_TOKEN, RequestSize, length, message_length
from agentloop.values.inference import InferenceRequest, Usage
from agentloop.values.points import BeforeInference
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.stop import StopReason, StopSignal

Unknown: TypeAlias = Literal["refuse", "estimate", "allow"]
"""What to do about tokens that a provider does not report, and about models without a price: stop the execution; count an
estimate; count nothing."""


@define(eq=False)
class Spending:
    """Counts the tokens and the money of one execution; steps that were counted are not looked at again.

    Attributes:
        unknown: what to do about what is not known.
        prices: what models cost; None when money is of no interest.
        model: the model whose price is taken where neither a request nor an answer names one that has a price.
        tokens: the tokens so far.
        cost: the money so far, in parts of a dollar.
        estimated: whether anything was unknown.
        missing: what was not known first, in words; empty when all was.
    """

    unknown: Unknown = "estimate"
    prices: Prices | None = None
    model: str = ""
    tokens: int = 0
    cost: int = 0
    estimated: bool = False
    missing: str = ""
    _steps: int = 0
    _history: int = 0
    _beside: tuple[int, int, int] = (0, 0, 0)

    def count(self, state: AgentState) -> None:
        """Count what is new in a state of the execution."""
        execution = state.execution
        if execution is None:
            return
        if not self._steps and execution.steps:
            before = state.messages[: execution.history_length]
            self._history = length(state.context.system_prompt) + sum(map(message_length, before))
        for step in execution.steps[self._steps :]:
            self._count(step)
        self._steps = len(execution.steps)
        self._count_beside(execution.totals.beside)

    def _count(self, step: AgentStep) -> None:
        if not step.usage.requests:
            return
        written = message_length(step.message) if step.message is not None else 0
        tokens, cost = self.of(step.usage, step.model, self._history // BYTES_PER_TOKEN, written // BYTES_PER_TOKEN)
        self.tokens += tokens
        self.cost += cost
        self._history += written

    def _count_beside(self, beside: Usage) -> None:
        """Count the inferences between the steps, such as those for summaries: all of them anew when there are more."""
        requests, tokens, cost = self._beside
        if beside.requests == requests:
            return
        self._beside = (beside.requests, *self.of(beside, "", self._history // BYTES_PER_TOKEN, 0))
        self.tokens += self._beside[1] - tokens
        self.cost += self._beside[2] - cost

    def of(self, usage: Usage, model: str, read: int, wrote: int) -> tuple[int, int]:
        """Return the tokens and the money that an inference used.

        Args:
            usage: what the provider reports.
            model: the model that answered.
            read: about how many tokens it read, for when the provider does not say.
            wrote: about how many tokens it wrote.
        """
        if usage.total_tokens is None:
            self._miss("the provider does not report its tokens")
            if self.unknown == "allow":
                usage = evolve(usage, input_tokens=usage.input_tokens or 0, output_tokens=usage.output_tokens or 0)
            else:
                usage = evolve(
                    usage,
                    input_tokens=read if usage.input_tokens is None else usage.input_tokens,
                    output_tokens=wrote if usage.output_tokens is None else usage.output_tokens,
                )
        price = self.price(model, usage.input_tokens or 0)
        return usage.total_tokens or 0, (price.cost(usage) or 0) if price is not None else 0

    def price(self, model: str, input_tokens: int) -> Price | None:
        """Return the price of a model, or what is taken for it; None when it costs nothing that counts."""
        if self.prices is None:
            return None
        known = (self.prices.price(name, input_tokens) for name in (model, self.model) if name)
        price = next((price for price in known if price is not None), None)
        if price is not None:
            return price
        if model or self.model:
            self._miss(f"the price of the model {model or self.model!r} is not known")
        return None if self.unknown == "allow" else self.prices.assumed

    def _miss(self, what: str) -> None:
        self.estimated = True
        self.missing = self.missing or what


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


FEWEST_OUTPUT_TOKENS = 256
"""With less, a step is not worth taking: a call or an answer would be cut."""


@frozen
class Quote:
    """The most that an inference may use.

    Attributes:
        input_tokens: about how many tokens it reads, rather too many than too few.
        output_tokens: the most that it may write.
        price: what they cost; None for nothing.
    """

    input_tokens: int
    output_tokens: int
    price: Price | None = None

    @property
    def amounts(self) -> Amounts:
        """Tokens and money, to be set aside."""
        cost = 0
        if self.price is not None:
            cost = self.input_tokens * self.price.dearest_input_token + self.output_tokens * self.price.output_token
        return Amounts(tokens=self.input_tokens + self.output_tokens, cost=cost)

    def within(self, left: Limits) -> Quote:
        """Return the quote with its output cut to what is left; it may become too little, or less than nothing."""
        return evolve(self, output_tokens=min(self.output_tokens, *self._room(left).values()))

    def is_enough(self, wanted: int) -> bool:
        """Say whether there is output left to be worth the asking, or all that was wanted."""
        return self.output_tokens >= min(wanted, FEWEST_OUTPUT_TOKENS)

    def short_of(self, left: Limits) -> StopReason:
        """Say which limit leaves the least."""
        room = self._room(left)
        return min(room, key=lambda reason: room[reason])

    def _room(self, left: Limits) -> dict[StopReason, int]:
        """Return how many tokens may be written, by limit; the wish itself where there is none."""
        room = {StopReason.TOKEN_LIMIT: self.output_tokens}
        if left.tokens is not None:
            room[StopReason.TOKEN_LIMIT] = left.tokens - self.input_tokens
        if left.cost is not None and self.price is not None and self.price.output_token:
            money = left.cost - self.input_tokens * self.price.dearest_input_token
            room[StopReason.COST_LIMIT] = money // self.price.output_token
        return room


def set_aside(
    account: BudgetAccount, entry: Entry, point: BeforeInference, left: Limits, *, most: int
) -> InferenceRequest | StopReason:
    """Set aside what a request may use, and return it as it may be made, or the limit that leaves too little for it.

    Args:
        account: where it is set aside.
        entry: the execution's part of the account.
        point: the request, and the state, which knows the model that answered before.
        left: how much it may use.
        most: the most that it may write where it says nothing about that itself.

    Raises:
        AgentStop: when its price is not known and may not be estimated.
    """
    request, spending = point.request, entry.spending
    entry.asked = _input_tokens(entry, request, point.state)
    price = spending.price(request.options.model or _last_model(point.state), entry.asked)
    if spending.unknown == "refuse" and spending.missing:
        reason = StopReason.TOKEN_LIMIT if account.limits.cost is None else StopReason.COST_LIMIT
        raise stop_by(refused(reason, spending.missing))
    wanted = request.options.max_tokens or most
    quote = Quote(entry.asked, wanted, price)
    cut = quote.within(left)
    entry.hold = account.hold(cut.amounts) if cut.is_enough(wanted) else None
    if entry.hold is None:
        return quote.short_of(left)
    if cut.output_tokens >= wanted:
        return request
    return request.with_options(evolve(request.options, max_tokens=cut.output_tokens))


def _input_tokens(entry: Entry, request: InferenceRequest, state: AgentState) -> int:
    """Return about how many tokens a request has, with what the last one with tools had beyond its own estimate.

    A driver or mode may describe the tools in words of its own, and a provider may count more than its length tells.
    """
    last = state.last_step
    if last is not None and last.number == entry.asked_in and last.usage.requests == 1 and last.usage.input_tokens:
        entry.beyond = max(0, last.usage.input_tokens - entry.measured)
    entry.measured = entry.size.tokens(request)
    entry.asked_in = state.step_count + 1 if request.tools else 0
    return entry.measured + (entry.beyond if request.tools else 0)


def _last_model(state: AgentState) -> str:
    last = state.last_step
    return last.model if last is not None else ""
