"""The account of a budget: what was used, and what is reserved for operations that are running."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.interception.budgets.amounts import NO_AMOUNTS, Amounts, Limits, agent_stop, unknown_usage_signal
from agentloop.interception.budgets.prices import Price, Prices
from agentloop.values.estimates import BYTES_PER_TOKEN, RequestSize, length, message_length
from agentloop.values.inference import InferenceRequest, Usage
from agentloop.values.points import BeforeInference
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.stop import StopReason, StopSignal

UnknownUsage: TypeAlias = Literal["refuse", "estimate", "allow"]
"""What to do about tokens that a provider does not report, and about models without a price: stop the execution; count an
estimate; count nothing."""

MIN_OUTPUT_TOKENS = 256
"""With less, an inference is not worth its input: a call or an answer would be truncated."""


@define(eq=False)
class UsageMeter:
    """Counts the tokens and the cost of one execution; each step is counted once.

    Attributes:
        unknown: what to do about unknown usage and prices.
        prices: the prices of models; None when cost is not counted.
        model: the model whose price is used where neither a request nor a response names one with a price.
        tokens: the tokens so far.
        cost: the cost so far, in cost units.
        is_estimated: whether anything was unknown.
        missing: the first thing that was unknown, in words; empty when nothing was.
    """

    unknown: UnknownUsage = "estimate"
    prices: Prices | None = None
    model: str = ""
    tokens: int = 0
    cost: int = 0
    is_estimated: bool = False
    missing: str = ""
    _counted_steps: int = 0
    _history_bytes: int = 0
    _outside_steps: tuple[int, int, int] = (0, 0, 0)
    """Requests, tokens and cost of the inferences between steps that were counted."""

    def count(self, state: AgentState) -> None:
        """Count what is new in a state of the execution."""
        execution = state.execution
        if execution is None:
            return
        # The length of the input is only needed where a provider reports no tokens, but by then it is too late to measure.
        if not self._counted_steps and execution.steps:
            before = state.messages[: execution.history_length]
            self._history_bytes = length(state.context.system_prompt) + sum(map(message_length, before))
        for step in execution.steps[self._counted_steps :]:
            self._count_step(step)
        self._counted_steps = len(execution.steps)
        self._count_outside_steps(execution.totals.beside)

    def _count_step(self, step: AgentStep) -> None:
        if not step.usage.requests:
            return
        output_bytes = message_length(step.message) if step.message is not None else 0
        tokens, cost = self.measure(
            step.usage, step.model, self._history_bytes // BYTES_PER_TOKEN, output_bytes // BYTES_PER_TOKEN
        )
        self.tokens += tokens
        self.cost += cost
        self._history_bytes += output_bytes

    def _count_outside_steps(self, usage: Usage) -> None:
        """Count the inferences between steps, such as those for summaries; their usage is a total, so it is replaced."""
        requests, tokens, cost = self._outside_steps
        if usage.requests == requests:
            return
        self._outside_steps = (usage.requests, *self.measure(usage, "", self._history_bytes // BYTES_PER_TOKEN, 0))
        self.tokens += self._outside_steps[1] - tokens
        self.cost += self._outside_steps[2] - cost

    def measure(self, usage: Usage, model: str, input_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Return the tokens and the cost of an inference.

        Args:
            usage: the usage that the provider reports.
            model: the model that answered.
            input_tokens: an estimate for a provider that does not report its input tokens.
            output_tokens: an estimate for a provider that does not report its output tokens.
        """
        if usage.total_tokens is None:
            self._note_missing("the provider does not report its tokens")
            if self.unknown == "allow":
                input_tokens = output_tokens = 0
            usage = evolve(
                usage,
                input_tokens=input_tokens if usage.input_tokens is None else usage.input_tokens,
                output_tokens=output_tokens if usage.output_tokens is None else usage.output_tokens,
            )
        # The size of the input comes first: some prices rise with it.
        price = self.price(model, usage.input_tokens or 0)
        return usage.total_tokens or 0, (price.cost(usage) or 0) if price is not None else 0

    def price(self, model: str, input_tokens: int) -> Price | None:
        """Return the price of a model, or the assumed one; None when nothing is to be counted."""
        if self.prices is None:
            return None
        # A provider may answer with a model name of its own, which no list of prices has.
        candidates = (self.prices.price(name, input_tokens) for name in (model, self.model) if name)
        price = next((price for price in candidates if price is not None), None)
        if price is not None:
            return price
        # Before the first response no model may be known; that is not an unknown price yet.
        if model or self.model:
            self._note_missing(f"the price of the model {model or self.model!r} is not known")
        return None if self.unknown == "allow" else self.prices.assumed

    def _note_missing(self, missing: str) -> None:
        self.is_estimated = True
        self.missing = self.missing or missing


# --- the account ------------------------------------------------------------------------------------------------


@define(eq=False)
class Reservation:
    """Amounts that are set aside; compared by identity, so that each is released once.

    Attributes:
        amounts: how much.
    """

    amounts: Amounts


@define(eq=False)
class AccountEntry:
    """What one execution uses of an account.

    Attributes:
        meter: counts the usage that the execution's state records.
        size: measures its requests.
        used: what the execution has used itself.
        delegated: what executions that it started have used, under leases that have ended.
        delegated_by_call: the same by the key of the call that gave the lease, for calls that ran in this step.
        reservation: what is reserved for its running inference.
        input_estimate: the estimated input tokens of its running inference.
        measured_input: the same by the length of the request alone.
        measured_step: the number of that inference's step; zero when the request had no tools.
        input_excess: how many more tokens than by its length the last request with tools had.
        final_signal: the limit because of which its next answer is the last; None while there is room.
        is_restored: whether the usage of ended leases was read from a stored state.
    """

    meter: UsageMeter
    size: RequestSize = field(factory=RequestSize)
    used: Amounts = NO_AMOUNTS
    delegated: Amounts = NO_AMOUNTS
    delegated_by_call: dict[str, Amounts] = field(factory=dict)
    reservation: Reservation | None = None
    input_estimate: int = 0
    measured_input: int = 0
    measured_step: int = 0
    input_excess: int = 0
    final_signal: StopSignal | None = None
    is_restored: bool = False


class BudgetAccount:
    """Keeps the sum of used and reserved amounts within limits. Thread-safe.

    Usage that has already happened is recorded even if it exceeds a limit; only reservations can be refused.

    Args:
        limits: how much all executions that share the account may use together.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._entries: dict[str, AccountEntry] = {}
        self._reservations: set[Reservation] = set()

    def entry(self, state: AgentState, create_meter: Callable[[], UsageMeter]) -> AccountEntry:
        """Return the entry of the state's execution; the first call creates it with a new meter."""
        with self._lock:
            entry = self._entries.get(state.execution_id)
            if entry is None:
                entry = self._entries[state.execution_id] = AccountEntry(create_meter())
            return entry

    def has_entry(self, execution_id: str) -> bool:
        """Return whether an execution has used the account."""
        with self._lock:
            return execution_id in self._entries

    @property
    def used(self) -> Amounts:
        """What the executions and those that they started have used."""
        with self._lock:
            return self._used()

    @property
    def reserved(self) -> Amounts:
        """What is reserved for running inferences and for leases."""
        with self._lock:
            return self._reserved()

    @property
    def remaining(self) -> Limits:
        """What is neither used nor reserved."""
        with self._lock:
            return self._remaining()

    def reserve(self, amounts: Amounts) -> Reservation | None:
        """Reserve these amounts; None when they do not fit into the limits."""
        with self._lock:
            if not self._remaining().allows(amounts):
                return None
            reservation = Reservation(amounts)
            self._reservations.add(reservation)
            return reservation

    def reserve_up_to(self, limits: Limits) -> tuple[Reservation, Limits]:
        """Reserve as much of these limits as remains; return the reservation and the limits that it covers."""
        with self._lock:
            granted = self._remaining().tightened(limits)
            reservation = Reservation(granted.amounts)
            self._reservations.add(reservation)
            return reservation, granted

    def release(self, entry: AccountEntry) -> None:
        """Release the reservation of the execution's running inference, if there is one."""
        with self._lock:
            self._release(entry)

    def try_use(self, entry: AccountEntry, amounts: Amounts) -> bool:
        """Add these amounts to what the execution has used; return False if they do not fit into the limits."""
        with self._lock:
            if not self._remaining().allows(amounts):
                return False
            entry.used += amounts
            return True

    def set_used(self, entry: AccountEntry, used: Amounts) -> None:
        """Replace the total of what the execution has used itself."""
        with self._lock:
            entry.used = used

    def settle(self, entry: AccountEntry, used: Amounts) -> None:
        """Replace the reservation of the execution's inference by what it has used."""
        with self._lock:
            self._release(entry)
            entry.used += used

    def settle_lease(self, entry: AccountEntry, reservation: Reservation, used: Amounts, call_key: str = "") -> None:
        """Replace the reservation of a lease by what was used under it. Idempotent.

        Args:
            entry: the entry of the execution that gave the lease.
            reservation: the reservation of the lease.
            used: what was used under the lease.
            call_key: the key of the call that gave the lease.
        """
        with self._lock:
            if reservation in self._reservations:
                self._reservations.discard(reservation)
                entry.delegated += used
                entry.delegated_by_call[call_key] = entry.delegated_by_call.get(call_key, NO_AMOUNTS) + used

    def _release(self, entry: AccountEntry) -> None:
        if entry.reservation is not None:
            self._reservations.discard(entry.reservation)
            entry.reservation = None

    def _used(self) -> Amounts:
        return sum((entry.used + entry.delegated for entry in self._entries.values()), NO_AMOUNTS)

    def _reserved(self) -> Amounts:
        return sum((reservation.amounts for reservation in self._reservations), NO_AMOUNTS)

    def _remaining(self) -> Limits:
        return self.limits.minus(self._used() + self._reserved())


# --- the reservation of an inference ----------------------------------------------------------------------------


@frozen
class Quote:
    """The maximum that an inference may use.

    Attributes:
        input_tokens: the estimated input tokens, rather too many than too few.
        output_tokens: the maximum number of its output tokens.
        price: the price of the model; None when cost is not counted.
    """

    input_tokens: int
    output_tokens: int
    price: Price | None = None

    @property
    def amounts(self) -> Amounts:
        """The tokens and the cost to reserve."""
        cost = 0
        if self.price is not None:
            cost = self.input_tokens * self.price.max_input_token + self.output_tokens * self.price.output_token
        return Amounts(tokens=self.input_tokens + self.output_tokens, cost=cost)

    def capped(self, limits: Limits) -> Quote:
        """Return the quote with its output capped to fit into the limits; the output may become negative."""
        return evolve(self, output_tokens=min(self.output_tokens, *self._max_output_tokens(limits).values()))

    def is_sufficient(self, requested_tokens: int) -> bool:
        """Return whether the output is large enough to send the request."""
        return self.output_tokens >= min(requested_tokens, MIN_OUTPUT_TOKENS)

    def tightest_limit(self, limits: Limits) -> StopReason:
        """Return which of the limits leaves the fewest output tokens."""
        room = self._max_output_tokens(limits)
        return min(room, key=lambda reason: room[reason])

    def _max_output_tokens(self, limits: Limits) -> dict[StopReason, int]:
        """Return the maximum number of output tokens by limit; at least one entry."""
        room = {StopReason.TOKEN_LIMIT: self.output_tokens}
        if limits.tokens is not None:
            room[StopReason.TOKEN_LIMIT] = limits.tokens - self.input_tokens
        if limits.cost is not None and self.price is not None and self.price.output_token:
            output_cost = limits.cost - self.input_tokens * self.price.max_input_token
            room[StopReason.COST_LIMIT] = output_cost // self.price.output_token
        return room


def reserve_inference(
    account: BudgetAccount, entry: AccountEntry, point: BeforeInference, limits: Limits, *, max_output_tokens: int
) -> InferenceRequest | StopReason:
    """Reserve what a request may use.

    Args:
        account: the account.
        entry: the execution's entry in the account.
        point: the request, and the state, which names the model that answered before.
        limits: how much the request may use.
        max_output_tokens: the maximum number of its output tokens if it sets no `max_tokens`.

    Returns:
        The request, with `max_tokens` lowered if necessary; or the limit that leaves too little for it.

    Raises:
        AgentStop: when its price is not known and may not be estimated.
    """
    request, meter = point.request, entry.meter
    entry.input_estimate = _estimate_input(entry, request, point.state)
    price = meter.price(request.options.model or _last_model(point.state), entry.input_estimate)
    if meter.unknown == "refuse" and meter.missing:
        reason = StopReason.TOKEN_LIMIT if account.limits.cost is None else StopReason.COST_LIMIT
        raise agent_stop(unknown_usage_signal(reason, meter.missing))
    # Providers bound the output by `max_tokens` only, so without it the worst case is the maximum of the model.
    requested = request.options.max_tokens or max_output_tokens
    quote = Quote(entry.input_estimate, requested, price)
    capped = quote.capped(limits)
    entry.reservation = account.reserve(capped.amounts) if capped.is_sufficient(requested) else None
    # None also when a concurrent lease has taken what remained since it was read.
    if entry.reservation is None:
        return quote.tightest_limit(limits)
    if capped.output_tokens >= requested:
        return request
    return request.with_options(evolve(request.options, max_tokens=capped.output_tokens))


def _estimate_input(entry: AccountEntry, request: InferenceRequest, state: AgentState) -> int:
    """Estimate the input tokens of a request."""
    # A driver or mode may describe the tools in its own words, and a provider may count more tokens than the length
    # suggests: what the last request with tools had beyond its measured length is added to the next one.
    last = state.last_step
    if last is not None and last.number == entry.measured_step and last.usage.requests == 1 and last.usage.input_tokens:
        entry.input_excess = max(0, last.usage.input_tokens - entry.measured_input)
    entry.measured_input = entry.size.tokens(request)
    entry.measured_step = state.step_count + 1 if request.tools else 0
    return entry.measured_input + (entry.input_excess if request.tools else 0)


def _last_model(state: AgentState) -> str:
    last = state.last_step
    return last.model if last is not None else ""
