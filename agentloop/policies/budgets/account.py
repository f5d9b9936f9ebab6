"""The account of a budget: what was used, and what is reserved for operations that are running."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.policies.budgets.amounts import NO_AMOUNTS, Amounts, Limits, agent_stop, unknown_usage_signal
from agentloop.policies.budgets.prices import Price, Prices
from agentloop.values.estimates import BYTES_PER_TOKEN, RequestSize, length, message_length
from agentloop.values.inference import InferenceRequest, Usage
from agentloop.values.points import AroundInference, BeforeInference
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


@define(eq=False)
class BudgetLease:
    """The right of an execution to use a part of an account; what it uses or reserves is charged to that account.

    Attributes:
        lender: the balance that the lease is charged to.
        entry: the entry, in that account, of the execution that gave the lease.
        kept: what the lender keeps for itself: the lease ends where no more than this remains there.
        used_before: what the execution that uses the lease had used before; it is not charged.
        call_key: the key of the call that gave the lease.
        used: what is charged as used.
        reserved: what is charged as reserved.
        is_open: whether the lease has not been settled yet.
        is_awaited: whether its reservations are expected to return: the call that gave the lease is running.
    """

    lender: _Balance
    entry: AccountEntry
    kept: Amounts = NO_AMOUNTS
    used_before: Amounts = NO_AMOUNTS
    call_key: str = ""
    used: Amounts = NO_AMOUNTS
    reserved: Amounts = NO_AMOUNTS
    is_open: bool = True
    is_awaited: bool = True


@define(eq=False)
class _Balance:
    """What was used and reserved in one account; not thread-safe.

    Attributes:
        limits: how much may be used.
        lease: the lease under which another account is charged; None for an account of its own.
        entries: the entries of the executions that share the account, by their ids.
        reservations: what is set aside for their inferences.
        leases: the open leases that they gave.
    """

    limits: Limits
    lease: BudgetLease | None = None
    entries: dict[str, AccountEntry] = field(factory=dict)
    reservations: set[Reservation] = field(factory=set)
    leases: set[BudgetLease] = field(factory=set)
    # Running totals of the open leases, because there may be very many.
    _lent_used: Amounts = NO_AMOUNTS
    _lent_reserved: Amounts = NO_AMOUNTS

    @property
    def used(self) -> Amounts:
        return sum((entry.used + entry.delegated for entry in self.entries.values()), self._lent_used)

    @property
    def reserved(self) -> Amounts:
        return sum((reservation.amounts for reservation in self.reservations), self._lent_reserved)

    @property
    def unused(self) -> Limits:
        """What is not used, here and in the account that is charged."""
        own, lease = self.limits.minus(self.used), self.lease
        return own if lease is None else own.tightened(lease.lender.unused.minus(lease.kept))

    @property
    def remaining(self) -> Limits:
        """What is neither used nor reserved, here and in the account that is charged."""
        own, lease = self.limits.minus(self.used + self.reserved), self.lease
        return own if lease is None else own.tightened(lease.lender.remaining.minus(lease.kept))

    def reserve(self, amounts: Amounts) -> Reservation:
        reservation = Reservation(amounts)
        self.reservations.add(reservation)
        self.update_lease()
        return reservation

    def release(self, entry: AccountEntry) -> None:
        if entry.reservation is not None:
            self.reservations.discard(entry.reservation)
            entry.reservation = None
            self.update_lease()

    def update_lease(self) -> None:
        """Charge the lease with what is used and reserved now."""
        lease = self.lease
        if lease is None or not lease.is_open:
            return
        if lease.is_awaited:
            lease.lender.charge(lease, self.used.minus(lease.used_before), self.reserved)
        else:
            lease.lender.charge(lease, (self.used + self.reserved).minus(lease.used_before), NO_AMOUNTS)

    def charge(self, lease: BudgetLease, used: Amounts, reserved: Amounts) -> None:
        """Replace what a lease is charged with."""
        self._lent_used = self._lent_used.minus(lease.used) + used
        self._lent_reserved = self._lent_reserved.minus(lease.reserved) + reserved
        lease.used, lease.reserved = used, reserved
        self.update_lease()

    def settle(self, lease: BudgetLease, used: Amounts) -> None:
        """Replace what an open lease is charged with by what was used under it, and end the lease."""
        self.charge(lease, NO_AMOUNTS, NO_AMOUNTS)
        self.leases.discard(lease)
        lease.is_open = False
        by_call, key = lease.entry.delegated_by_call, lease.call_key
        lease.entry.delegated += used
        by_call[key] = by_call.get(key, NO_AMOUNTS) + used
        self.update_lease()

    def tightest(self, reason: StopReason) -> _Balance:
        """Return the balance that leaves the least of what the reason limits: this one, or one that is charged."""
        tightest, least = self, self.limits.minus(self.used).of(reason)
        lease, kept = self.lease, NO_AMOUNTS
        while lease is not None:
            lender, kept = lease.lender, kept + lease.kept
            unused = lender.limits.minus(lender.used + kept).of(reason)
            if unused is not None and (least is None or unused < least):
                tightest, least = lender, unused
            lease = lender.lease
        return tightest


@define(eq=False)
class _Waiter:
    """An execution whose inference waits for reservations of others to return."""

    balance: _Balance
    entry: AccountEntry
    amounts: Amounts
    loop: asyncio.AbstractEventLoop
    woken: asyncio.Future[None]

    def wake(self) -> None:
        """Let it continue; thread-safe, since a tool may run an execution in a thread with a loop of its own."""
        # A loop that was closed meanwhile has no task left to continue.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_complete, self.woken)


def _complete(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


@define(eq=False)
class _Queue:
    """The executions that wait in a tree of accounts, and the lock of the tree."""

    # One lock, because a reservation is made in an account and in all that it is charged to at once.
    lock: threading.Lock = field(factory=threading.Lock)
    waiters: deque[_Waiter] = field(factory=deque)

    def serve(self) -> None:
        """Reserve for those that wait longest, as far as there is room."""
        while self.waiters:
            first = self.waiters[0]
            if first.loop.is_closed():
                self.waiters.popleft()
                continue
            if first.balance.remaining.allows(first.amounts):
                first.entry.reservation = first.balance.reserve(first.amounts)
            elif first.balance.unused.allows(first.amounts):
                return
            self.waiters.popleft().wake()


class TreeAccount:
    """Keeps the sum of used and reserved amounts within limits. Thread-safe.

    Usage that has already happened is recorded even if it exceeds a limit; only reservations can be refused.

    Args:
        limits: how much all executions that share the account may use together.
    """

    def __init__(self, limits: Limits) -> None:
        self._balance = _Balance(limits)
        self._queue = _Queue()

    @property
    def limits(self) -> Limits:
        """How much all executions that share the account may use together; less if a lender's account leaves less."""
        return self._balance.limits

    def entry(self, state: AgentState, create_meter: Callable[[], UsageMeter]) -> AccountEntry:
        """Return the entry of the state's execution; the first call creates it with a new meter."""
        with self._queue.lock:
            entry = self._balance.entries.get(state.execution_id)
            if entry is None:
                entry = self._balance.entries[state.execution_id] = AccountEntry(create_meter())
            return entry

    def has_entry(self, execution_id: str) -> bool:
        """Return whether an execution has used the account."""
        with self._queue.lock:
            return execution_id in self._balance.entries

    @property
    def used(self) -> Amounts:
        """What the executions and those that they started have used."""
        with self._queue.lock:
            return self._balance.used

    @property
    def reserved(self) -> Amounts:
        """What is reserved for running inferences, under leases too."""
        with self._queue.lock:
            return self._balance.reserved

    @property
    def unused(self) -> Limits:
        """What is not used, here and in the account of the lender; a part of it may be reserved, and return."""
        with self._queue.lock:
            return self._balance.unused

    @property
    def remaining(self) -> Limits:
        """What is neither used nor reserved, here and in the account of the lender."""
        with self._queue.lock:
            return self._balance.remaining

    def tightest(self, reason: StopReason) -> tuple[int, Amounts]:
        """Return the limit that the reason names, and what was used, where the least is left: here or in a lender's account."""
        with self._queue.lock:
            balance = self._balance.tightest(reason)
            return balance.limits.of(reason) or 0, balance.used

    # --- inferences -----------------------------------------------------------------------------------------------

    def reserve(self, amounts: Amounts) -> Reservation | None:
        """Reserve these amounts; None when they do not fit into what remains."""
        with self._queue.lock:
            return self._balance.reserve(amounts) if self._balance.remaining.allows(amounts) else None

    def reserve_for(self, entry: AccountEntry, amounts: Amounts) -> bool:
        """Reserve these amounts for the execution's inference, in place of what is reserved for it; False if they do not fit."""
        with self._queue.lock:
            self._balance.release(entry)
            if self._balance.remaining.allows(amounts):
                entry.reservation = self._balance.reserve(amounts)
            self._queue.serve()
            return entry.reservation is not None

    async def wait_for(self, entry: AccountEntry, amounts: Amounts) -> None:
        """Wait until these amounts are reserved for the execution, or would not fit even if all reservations returned.

        Executions that wait hold no reservation, so those that others wait for always end. They are served in the order in
        which they began to wait.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(self._balance, entry, amounts, loop, loop.create_future())
        with self._queue.lock:
            self._queue.waiters.append(waiter)
            self._queue.serve()
        try:
            await waiter.woken
        except BaseException:
            with self._queue.lock:
                if waiter in self._queue.waiters:
                    self._queue.waiters.remove(waiter)
                self._balance.release(entry)
                self._queue.serve()
            raise

    def release(self, entry: AccountEntry) -> None:
        """Release the reservation of the execution's running inference, if there is one."""
        with self._queue.lock:
            self._balance.release(entry)
            self._queue.serve()

    def settle(self, entry: AccountEntry, used: Amounts) -> None:
        """Replace the reservation of the execution's inference by what it has used."""
        with self._queue.lock:
            entry.used += used
            self._balance.release(entry)
            self._balance.update_lease()
            self._queue.serve()

    # --- usage ----------------------------------------------------------------------------------------------------

    def try_use(self, entry: AccountEntry, amounts: Amounts) -> bool:
        """Add these amounts to what the execution has used; return False if they do not fit into what remains."""
        with self._queue.lock:
            if not self._balance.remaining.allows(amounts):
                return False
            entry.used += amounts
            self._balance.update_lease()
            return True

    def set_used(self, entry: AccountEntry, used: Amounts) -> None:
        """Replace the total of what the execution has used itself."""
        with self._queue.lock:
            entry.used = used
            self._balance.update_lease()
            self._queue.serve()

    def add_delegated(self, entry: AccountEntry, used: Amounts) -> None:
        """Add what was used under earlier leases of the execution, according to a record of it."""
        with self._queue.lock:
            entry.delegated += used
            self._balance.update_lease()
            self._queue.serve()

    # --- leases ---------------------------------------------------------------------------------------------------

    @contextmanager
    def lend(
        self,
        entry: AccountEntry,
        limits: Limits,
        *,
        kept: Amounts = NO_AMOUNTS,
        used_before: Amounts = NO_AMOUNTS,
        call_key: str = "",
    ) -> Iterator[TreeAccount]:
        """Lend to another execution until the block ends; what it used then counts for the execution that lent it.

        Nothing is set aside for it: it reserves here what each of its inferences needs, when it needs it.

        Args:
            entry: the entry of the execution that gives the lease.
            limits: how much may be used under the lease.
            kept: what must remain in this account.
            used_before: what the other execution has used before; it is not charged.
            call_key: the key of the call that gives the lease.

        Returns:
            A context manager that yields an account for the other execution.
        """
        lease = BudgetLease(self._balance, entry, kept, used_before, call_key)
        # The other execution counts from its own start, so its earlier usage is added to the limits.
        lent = TreeAccount(limits.plus(used_before))
        lent._balance.lease, lent._queue = lease, self._queue
        with self._queue.lock:
            self._balance.leases.add(lease)
        try:
            yield lent
        finally:
            with self._queue.lock:
                # A reservation that is still open belongs to an inference that was interrupted: it may have been charged.
                used = lent._balance.used + lent._balance.reserved
                self._balance.settle(lease, used.minus(used_before))
                self._queue.serve()

    def stop_awaiting(self, call_key: str) -> None:
        """Count the reservations under a call's open leases as used: the call has ended without waiting for them."""
        with self._queue.lock:
            for lease in [lease for lease in self._balance.leases if lease.call_key == call_key]:
                lease.is_awaited = False
                self._balance.charge(lease, lease.used + lease.reserved, NO_AMOUNTS)
            self._queue.serve()


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

    def apply(self, request: InferenceRequest, requested_tokens: int) -> InferenceRequest:
        """Return the request, with its `max_tokens` lowered if less than requested may be used."""
        if self.output_tokens >= requested_tokens:
            return request
        return request.with_options(evolve(request.options, max_tokens=self.output_tokens))

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


def quote_inference(
    limits: Limits, entry: AccountEntry, point: BeforeInference | AroundInference, *, max_output_tokens: int
) -> Quote:
    """Return the maximum that a request may use.

    Args:
        limits: what is limited.
        entry: the execution's entry in the account.
        point: the request, and the state, which names the model that answered before.
        max_output_tokens: the maximum number of its output tokens if it sets no `max_tokens`.

    Raises:
        AgentStop: when its price is not known and may not be estimated.
    """
    request, meter = point.request, entry.meter
    entry.input_estimate = _estimate_input(entry, request, point.state)
    price = meter.price(request.options.model or _last_model(point.state), entry.input_estimate)
    if meter.unknown == "refuse" and meter.missing:
        reason = StopReason.TOKEN_LIMIT if limits.cost is None else StopReason.COST_LIMIT
        raise agent_stop(unknown_usage_signal(reason, meter.missing))
    # Providers bound the output by `max_tokens` only, so without it the worst case is the maximum of the model.
    return Quote(entry.input_estimate, request.options.max_tokens or max_output_tokens, price)


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
