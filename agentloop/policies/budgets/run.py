"""A budget at work in one execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import ceil
from typing import TypeAlias, TypeVar, cast

from attrs import asdict, evolve, frozen

from agentloop._shielding import CUT_OFF_SECONDS, OwnTime, TimeIsOver, run_in_own_time
from agentloop.contracts.can_intercept import MaybeAwaitable
from agentloop.contracts.can_tell_controls import Control
from agentloop.contracts.run_log import CallLog
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.lending import Lease, set_current_lender
from agentloop.policies.budgets.account import AccountEntry, TreeAccount, UnknownUsage, UsageMeter, quote_inference
from agentloop.policies.budgets.amounts import (
    NO_AMOUNTS,
    Amounts,
    Limits,
    agent_stop,
    cost_units,
    limit_signal,
    unknown_usage_signal,
)
from agentloop.policies.budgets.leases import BUDGET, RunningBudget, delegated_usage, with_delegated_usage
from agentloop.policies.budgets.prices import Prices
from agentloop.values.accounts import COST_UNITS_PER_DOLLAR
from agentloop.values.batches import settled_calls
from agentloop.values.decisions import PendingCall
from agentloop.values.estimates import BYTES_PER_TOKEN, parts_length
from agentloop.values.inference import InferenceRequest, InferenceResponse, ToolChoice
from agentloop.values.labels import CLEAN
from agentloop.values.messages import LAST_ANSWER, Message
from agentloop.values.points import (
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    ProceedInference,
    ProceedToolUse,
    StatePoint,
)
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.stop import AgentStop, StopReason, StopSignal
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)
CreateLease: TypeAlias = Callable[[TreeAccount, float | None], Lease]
"""Creates the interceptor for an execution that uses an account, for so many seconds."""

DEFAULT_MAX_OUTPUT_TOKENS = 16_384


@frozen(kw_only=True)
class BudgetTerms:
    """What a budget limits, and how.

    Attributes:
        steps: the maximum number of steps; None for no limit, as for the other limits.
        tool_calls: the maximum number of tool calls.
        tokens: the maximum number of tokens.
        cost: the maximum cost in dollars.
        seconds: the maximum duration in seconds.
        wrap_up: the share of tokens, money and time that is reserved for a last answer; zero for a stop without one.
        reserves: whether tokens and money are reserved before an inference.
        unknown: what to do about unknown usage and prices.
        prices: the prices of models; None when cost is not limited.
        model: the model to assume where a request does not name one.
        max_output_tokens: the maximum number of output tokens to assume where a request does not set it.
    """

    steps: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    wrap_up: float = 0.0
    reserves: bool = False
    unknown: UnknownUsage = "estimate"
    prices: Prices | None = None
    model: str = ""
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS

    @property
    def limits(self) -> Limits:
        """The limits without that of time."""
        cost = None if self.cost is None else cost_units(self.cost)
        return Limits(self.steps, self.tool_calls, self.tokens, cost)

    def controls(self) -> list[Control]:
        """Return the limits for people."""
        amounts = {
            "steps": (self.steps, "steps in an execution"),
            "calls": (self.tool_calls, "calls of all tools in an execution"),
            "tokens": (self.tokens, "tokens in an execution"),
            "cost": (self.cost, "dollars in an execution"),
            "time": (self.seconds, "seconds for an execution"),
        }
        return [
            Control("limits", f"at most {amount} {unit}", of=of)
            for of, (amount, unit) in amounts.items()
            if amount is not None
        ]

    @property
    def points(self) -> frozenset[str]:
        """The names of the points at which the terms are enforced."""
        has_time, wraps_up = self.seconds is not None, self.wrap_up > 0
        required = {
            "before_step": True,
            "before_inference": self.reserves or wraps_up,
            "around_inference": self.reserves or has_time,
            "after_inference": self.reserves or wraps_up,
            "before_tool_use": self.tool_calls is not None or has_time or wraps_up,
            "around_tool_use": has_time,
            "after_tool_use": has_time,
            "after_step": wraps_up,
        }
        return frozenset(name for name, is_required in required.items() if is_required)

    @property
    def writes(self) -> frozenset[str]:
        """The paths that enforcing the terms may change."""
        has_time, wraps_up = self.seconds is not None, self.wrap_up > 0
        required = {
            "state.execution.continuation": True,
            "request.options.max_tokens": self.reserves,
            "request.messages": wraps_up,
            "request.tools": wraps_up,
            "request.tool_choice": wraps_up,
            "response.parts": wraps_up,
            "verdict": self.tool_calls is not None or has_time or wraps_up,
            "outcome": has_time,
        }
        return frozenset(path for path, is_required in required.items() if is_required)


@frozen(kw_only=True, eq=False)
class BudgetRun(Interceptor):
    """A budget at work in one execution.

    Attributes:
        name: the name of the budget.
        terms: what it limits, and how.
        account: what was used and what is reserved.
        clock: the clock of the loop.
        create_lease: creates the interceptor for an execution that uses a lease; None if the budget gives no leases.
        log: records the usage of leases with the calls that gave them; None without a journal.
    """

    name: str
    terms: BudgetTerms
    account: TreeAccount
    clock: Clock
    create_lease: CreateLease | None = None
    log: CallLog | None = None

    # --- steps ----------------------------------------------------------------------------------------------------

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop in place of a step that exceeds a limit, or find that the next answer is the last."""
        state = point.state
        if self.time.is_over(state):
            return _stop(point, self.time.signal)
        # Suspended calls are settled in the step that made them: no new step, and no inference.
        if _is_settling(state):
            return point
        entry = self._entry(state)
        # The state is the authority: it also has inferences that were made before it was stored, or between steps.
        self._update_used(entry, state)
        signal = self._reserve.exceeded_signal(self.account, entry)
        if signal is None and not self.account.try_use(entry, Amounts(steps=1)):
            signal = self._reserve.signal(StopReason.STEP_LIMIT, self.account, entry)
        if signal is not None:
            return _stop(point, signal)
        entry.final_signal = self._final_signal(entry, state)
        return point

    def after_step(self, point: AfterStep) -> AfterStep:
        """Stop after the last answer; record the usage of leases in the state."""
        entry = self._entry(point.state)
        # An execution under a lease may have no next step that would count this one.
        if self._has_token_or_cost_limit:
            entry.meter.count(point.state)
            self.account.set_used(entry, evolve(entry.used, tokens=entry.meter.tokens, cost=entry.meter.cost))
        self._add_recorded_leases(entry, point.state)
        if self.create_lease is not None:
            point = point.with_state(with_delegated_usage(point.state, self.name, entry.delegated))
        return point if entry.final_signal is None else _stop(point, entry.final_signal)

    def count_ended(self, state: AgentState) -> None:
        """Count what an ended execution has used, unless it used the account itself."""
        if self.account.has_entry(state.execution_id):
            return
        entry = self._entry(state)
        self._count_settling(entry, state)

    def _add_recorded_leases(self, entry: AccountEntry, state: AgentState) -> None:
        """Add the leases of calls whose recorded outcome was reused: those calls did not run, and gave no lease now."""
        # A call with an attachment and without a lease in this process was answered from the journal.
        lending_keys, entry.delegated_by_call = set(entry.delegated_by_call), {}
        step = state.last_step
        if self.log is None or self.create_lease is None or step is None:
            return
        for key in _keys_of(step):
            recorded = None if key in lending_keys else self.log.attachment(key, self.name)
            if recorded is not None:
                self.account.add_delegated(entry, Amounts(**recorded))

    def _update_used(self, entry: AccountEntry, state: AgentState) -> None:
        """Set the account to what the state says was used; no inference is running."""
        self.account.release(entry)
        meter = entry.meter
        if self._has_token_or_cost_limit:
            meter.count(state)
        allowed = self._allowed_calls(entry, state.tool_call_count)
        self.account.set_used(entry, Amounts(state.step_count, allowed, meter.tokens, meter.cost))

    def _allowed_calls(self, entry: AccountEntry, calls: int) -> int:
        """Return how many of so many calls count: those beyond the limit were blocked, so that what is used stays within it."""
        unused = self.account.unused.tool_calls
        return calls if unused is None else min(calls, max(unused, 0) + entry.used.tool_calls)

    def _final_signal(self, entry: AccountEntry, state: AgentState) -> StopSignal | None:
        signal = self._reserve.near_signal(self.account, entry, state)
        if not self.terms.wrap_up or not self.time.is_over_for_tools(state):
            return signal
        # Of two limits that are near, the one with the higher weight is the reason of the stop.
        time_signal = self.time.signal
        return time_signal if signal is None or signal.reason.weight < time_signal.reason.weight else signal

    # --- inferences -----------------------------------------------------------------------------------------------

    def before_inference(self, point: BeforeInference) -> MaybeAwaitable[BeforeInference]:
        """Reserve what the inference may use, and request the last answer if a limit is near.

        An inference that does not fit only because of what other executions have reserved waits until they return it.

        Raises:
            AgentStop: when too little remains.
        """
        entry = self._entry(point.state)
        if not self.terms.reserves:
            return point if entry.final_signal is None else point.with_request(_last_request(point.request))
        self.account.release(entry)
        admitted = self._admit(entry, point)
        return admitted if isinstance(admitted, BeforeInference) else self._wait_to_admit(entry, point, admitted)

    def _admit(self, entry: AccountEntry, point: BeforeInference) -> BeforeInference | Amounts:
        """Reserve what the inference may use; return the point with the request, or the amounts that have to be waited for."""
        # First without the reserve; an inference that needs a part of it is the last one, and is sent without tools.
        if entry.final_signal is None:
            result = self._reserve_inference(entry, point, self._reserve.amounts)
            if not isinstance(result, StopReason):
                return result
            entry.final_signal = self._reserve.signal(result, self.account, entry, is_near=True)
            if not self.terms.wrap_up:
                raise agent_stop(entry.final_signal)
        result = self._reserve_inference(entry, point.with_request(_last_request(point.request)), NO_AMOUNTS)
        if not isinstance(result, StopReason):
            return result
        raise agent_stop(self._reserve.signal(result, self.account, entry, is_near=True))

    async def _wait_to_admit(self, entry: AccountEntry, point: BeforeInference, amounts: Amounts) -> BeforeInference:
        admitted: BeforeInference | Amounts = amounts
        while isinstance(admitted, Amounts):
            await self.account.wait_for(entry, admitted)
            # Again in any case: what others have used meanwhile may leave room for less, or for a last answer only.
            try:
                admitted = self._admit(entry, point)
            except AgentStop:
                self.account.release(entry)
                raise
        return admitted

    def _reserve_inference(
        self, entry: AccountEntry, point: BeforeInference, kept: Amounts
    ) -> BeforeInference | Amounts | StopReason:
        """Reserve what a request may use, but for the amounts that are kept.

        Returns:
            The point with the request, its `max_tokens` lowered if necessary; the amounts to wait for, if they fit as soon as
            other executions return what they have reserved; or the limit that leaves too little.
        """
        quote = quote_inference(self.account.limits, entry, point, max_output_tokens=self.terms.max_output_tokens)
        # Not cut to what others leave at the moment: an answer would be truncated although there is enough for it.
        unused = self.account.unused.minus(kept)
        capped = quote.capped(unused)
        if not capped.is_sufficient(quote.output_tokens):
            return quote.tightest_limit(unused)
        if not self.account.reserve_for(entry, capped.amounts):
            return capped.amounts
        return point.with_request(capped.apply(point.request, quote.output_tokens))

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Cancel the inference when its time is up, and release its reservation when it fails.

        Raises:
            AgentStop: when it was cancelled.
        """
        try:
            return await _run_within(self.time.remaining(point.state), proceed)
        except BaseException as error:
            # Also when the task is cancelled: a reservation that is never released would make the budget smaller for good.
            self.account.release(self._entry(point.state))
            if isinstance(error, _TimeIsUpError):
                raise agent_stop(self.time.signal) from None
            raise

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Replace the reservation by the usage, and remove tool calls from the last answer."""
        entry = self._entry(point.state)
        response = point.response
        # In place of the reservation; the next step replaces this by what the state says, which may know more.
        if self.terms.reserves:
            output_estimate = parts_length(response.parts) // BYTES_PER_TOKEN
            tokens, cost = entry.meter.measure(response.usage, response.model, entry.input_estimate, output_estimate)
            self.account.settle(entry, Amounts(tokens=tokens, cost=cost))
        return point if entry.final_signal is None else point.with_response(_last_response(response))

    # --- tool calls -----------------------------------------------------------------------------------------------

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block a call that exceeds the limit of calls, or for which no time is left."""
        entry = self._entry(point.state)
        if entry.final_signal is not None:
            return point.block(entry.final_signal.message)
        if self.time.is_over_for_tools(point.state):
            return point.block(self.time.signal.message)
        # A resumed call keeps its number, so it is not counted twice.
        preceding = point.index if point.preceding is None else point.preceding
        number = _calls_before_step(point.state) + preceding + 1
        added = number - entry.used.tool_calls
        limit = self.account.limits.tool_calls
        if limit is None or added <= 0 or self.account.try_use(entry, Amounts(tool_calls=added)):
            return point
        # With a last answer, the execution continues until the model has given it.
        limit, _ = self.account.tightest(StopReason.TOOL_CALL_LIMIT)
        signal = limit_signal(StopReason.TOOL_CALL_LIMIT, limit, call=number)
        return (point if self.terms.wrap_up else _stop(point, signal)).block(signal.message)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cancel the call when the time for tools is up; let it lend parts of the budget."""
        if self.create_lease is None:
            return await self._run_in_time(point, proceed)
        try:
            with set_current_lender(self._running_budget(point.state, point.key, self.create_lease), BUDGET):
                return await self._run_in_time(point, proceed)
        finally:
            # A thread that outlives its call may never return what it has reserved; nobody should wait for it.
            self.account.stop_awaiting(point.key)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Stop if the time is up."""
        return _stop(point, self.time.signal) if self.time.is_over(point.state) else point

    async def _run_in_time(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        try:
            return await _run_within(self.time.remaining_for_tools(point.state), proceed, keeps_result=True)
        except _TimeIsUpError:
            return point.fail(self.time.signal.message, type="ToolTimedOut", status=ToolStatus.TIMED_OUT)

    def _running_budget(self, state: AgentState, call_key: str, create_lease: CreateLease) -> RunningBudget:
        kept = self._reserve.amounts_with_step
        return RunningBudget(
            self.account,
            self._entry(state),
            remaining=lambda: self.account.unused.minus(kept),
            remaining_seconds=lambda: self.time.remaining_for_tools(state),
            create_lease=create_lease,
            usage_of=self._usage_of,
            call_key=call_key,
            record_usage=partial(self._record_lease, call_key),
            kept=kept,
        )

    def _record_lease(self, call_key: str, used: Amounts) -> None:
        """Store what the leases of a call have used with its outcome."""
        if self.log is not None:
            self.log.attach(call_key, self.name, asdict(used))

    # --- shared ---------------------------------------------------------------------------------------------------

    @property
    def _reserve(self) -> _Reserve:
        return _Reserve(self.account.limits, self.terms.wrap_up)

    @property
    def time(self) -> _TimeSpan:
        """The time of the execution."""
        return _TimeSpan(self.terms.seconds, self.terms.wrap_up, self.clock)

    @property
    def _has_token_or_cost_limit(self) -> bool:
        limits = self.account.limits
        return limits.tokens is not None or limits.cost is not None

    def _entry(self, state: AgentState) -> AccountEntry:
        """Return the execution's entry; a new one takes over what the state says about ended leases."""
        # Restored once: after that the entry knows more than the state, which is updated only after each step.
        entry = self.account.entry(state, self._create_meter)
        if not entry.is_restored:
            entry.is_restored = True
            self.account.add_delegated(entry, delegated_usage(state, self.name))
            self._restore_leases(entry)
            if _is_settling(state):
                self._count_settling(entry, state)
        return entry

    def _restore_leases(self, entry: AccountEntry) -> None:
        """Add the leases of calls that had ended when the step was interrupted, before others of the step use what is left."""
        if self.log is None or self.create_lease is None:
            return
        for call in self.log.recorded_calls():
            recorded = call.attachments.get(self.name)
            # A call that did not end runs again, and gives its lease anew.
            has_ended = call.execution is not None or call.pending is not None
            if has_ended and isinstance(recorded, Mapping):
                entry.delegated_by_call[call.intent.key] = used = Amounts(**recorded)
                self.account.add_delegated(entry, used)

    def _count_settling(self, entry: AccountEntry, state: AgentState) -> None:
        """Set the account to what an execution has used that settles suspended calls, or has ended."""
        used = self._usage_of_settling(entry.meter, state)
        # One that was blocked must not make room for a call before it, which waited for a decision about another one.
        self.account.set_used(entry, evolve(used, tool_calls=self._allowed_calls(entry, used.tool_calls)))

    def _create_meter(self) -> UsageMeter:
        return UsageMeter(self.terms.unknown, self.terms.prices, self.terms.model)

    def _usage_of(self, state: AgentState) -> Amounts:
        return self._usage_of_settling(self._create_meter(), state) + delegated_usage(state, self.name)

    def _usage_of_settling(self, meter: UsageMeter, state: AgentState) -> Amounts:
        """Return what an execution that settles suspended calls has used itself."""
        if self._has_token_or_cost_limit:
            meter.count(state)
        return Amounts(state.step_count, _admitted_call_count(state), meter.tokens, meter.cost)


def _stop(point: S, signal: StopSignal) -> S:
    return point.stop(signal.message, reason=signal.reason, context=signal.context)


# --- what the state says ----------------------------------------------------------------------------------------


def _is_settling(state: AgentState) -> bool:
    """Return whether the next step only settles suspended calls: it is no new step, and has no inference."""
    last = state.last_step
    return last is not None and last.open_turn is not None


def _calls_before_step(state: AgentState) -> int:
    """Return how many calls the steps before the current one made."""
    last = state.last_step
    open_calls = last.call_count if last is not None and last.open_turn is not None else 0
    return state.tool_call_count - open_calls


def _keys_of(step: AgentStep) -> list[str]:
    """Return the keys of the calls of a step, and of those that their tools have made, such as programs."""
    pending = [inner.key for call in step.pending for inner in call.flat]
    return [*[execution.key for execution in settled_calls(step)], *pending]


def _admitted_call_count(state: AgentState) -> int:
    """Return how many calls were admitted: all but the last ones of an open turn that only wait for the calls before them."""
    last = state.last_step
    slots = last.open_turn.slots if last is not None and last.open_turn is not None else ()
    admitted = [
        number
        for number, slot in enumerate(slots, start=1)
        if not (isinstance(slot, PendingCall) and slot.waits_for and not slot.begun)
    ]
    inner = sum([len(slot.inner) for slot in slots if isinstance(slot, ToolExecution)])
    return _calls_before_step(state) + max(admitted, default=0) + inner


# --- the last answer --------------------------------------------------------------------------------------------

NOTICE = (
    "This is your last answer: the budget of this task is nearly used up, and no more tools can be called. Answer now with "
    "what you have found so far, and say what is left undone."
)
"""The last message of the last request; it is not part of the conversation."""


def _last_request(request: InferenceRequest) -> InferenceRequest:
    """Return the request without tools, and with the notice."""
    request = request.with_messages([*request.messages, Message.user(NOTICE, metadata=LAST_ANSWER, label=CLEAN)])
    return request.with_tools(()).with_tool_choice(ToolChoice.none())


def _last_response(response: InferenceResponse) -> InferenceResponse:
    """Return the response without tool calls, unless it has nothing else."""
    if not response.text or not response.tool_calls:
        return response
    return response.with_parts([part for part in response.parts if not isinstance(part, ToolCall)])


@frozen
class _Reserve:
    """The part of limits that is reserved for the last answer.

    Attributes:
        limits: the limits.
        share: the share of tokens, money and time that is reserved; zero for no last answer.
    """

    limits: Limits
    share: float

    @property
    def amounts(self) -> Amounts:
        """The tokens and the money that are reserved."""
        return Amounts(tokens=self._part(self.limits.tokens), cost=self._part(self.limits.cost))

    @property
    def amounts_with_step(self) -> Amounts:
        """The same and the step of the last answer; executions that are started leave all of it."""
        return evolve(self.amounts, steps=1 if self.share and self.limits.steps else 0)

    def exceeded_signal(self, account: TreeAccount, entry: AccountEntry) -> StopSignal | None:
        """Return the signal when tokens or money are used up, or are unknown and may not be estimated."""
        # Reservations of other executions do not count: what they do not use returns.
        meter, unused = entry.meter, account.unused
        for reason, amount in ((StopReason.COST_LIMIT, unused.cost), (StopReason.TOKEN_LIMIT, unused.tokens)):
            if amount is None:
                continue
            if meter.unknown == "refuse" and meter.missing:
                return unknown_usage_signal(reason, meter.missing)
            if amount <= 0:
                return self.signal(reason, account, entry)
        return None

    def near_signal(self, account: TreeAccount, entry: AccountEntry, state: AgentState) -> StopSignal | None:
        """Return the signal for a limit so near that the next answer has to be the last; time is not considered."""
        # Without a share there is no last answer, and the execution stops when a limit is reached.
        if not self.share:
            return None
        unused, reserved = account.unused, self.amounts
        if unused.cost is not None and unused.cost <= reserved.cost:
            return self.signal(StopReason.COST_LIMIT, account, entry, is_near=True)
        if unused.tokens is not None and unused.tokens <= reserved.tokens:
            return self.signal(StopReason.TOKEN_LIMIT, account, entry, is_near=True)
        if unused.steps is not None and unused.steps <= 0:
            return self.signal(StopReason.STEP_LIMIT, account, entry, is_near=True)
        if unused.tool_calls is not None and state.tool_call_count > entry.used.tool_calls:
            return self.signal(StopReason.TOOL_CALL_LIMIT, account, entry)
        return None

    def signal(
        self, reason: StopReason, account: TreeAccount, entry: AccountEntry, *, is_near: bool = False
    ) -> StopSignal:
        """Return the signal for one of the limits, with what was used."""
        # Of the account that leaves the least: other executions may have used what was lent.
        (limit, used), is_estimated = account.tightest(reason), entry.meter.is_estimated
        if reason is StopReason.COST_LIMIT:
            dollars = limit / COST_UNITS_PER_DOLLAR
            return limit_signal(reason, dollars, is_near=is_near, is_estimated=is_estimated, cost=used.cost)
        if reason is StopReason.TOKEN_LIMIT:
            return limit_signal(reason, limit, is_near=is_near, is_estimated=is_estimated, tokens=used.tokens)
        if reason is StopReason.STEP_LIMIT:
            return limit_signal(reason, limit, is_near=is_near, steps=used.steps)
        return limit_signal(reason, limit, is_near=is_near, calls=used.tool_calls)

    def _part(self, limit: int | None) -> int:
        # Rounded first: 0.07 of 100 is 7.000000000000001 as a float, and its ceiling would be 8.
        return 0 if limit is None else ceil(round(limit * self.share, 6))


# --- time -------------------------------------------------------------------------------------------------------


class _TimeIsUpError(Exception):
    """An operation was cancelled because its time is up."""


@frozen
class _TimeSpan:
    """The time of an execution from its beginning, without the time it was suspended.

    Attributes:
        seconds: the limit; None for no limit.
        share: the share of it that is reserved for the last answer.
        clock: the clock of the loop.
    """

    seconds: float | None
    share: float
    clock: Clock

    def remaining(self, state: AgentState) -> float | None:
        """Return the remaining seconds, negative when the time is up; None for no limit."""
        execution = state.execution
        if self.seconds is None or execution is None:
            return self.seconds
        passed = (self.clock.now() - execution.started_at).total_seconds()
        return self.seconds - (passed - execution.waited_seconds)

    def remaining_for_tools(self, state: AgentState) -> float | None:
        """Return the remaining seconds without those that are reserved."""
        remaining = self.remaining(state)
        return None if remaining is None or self.seconds is None else remaining - self.seconds * self.share

    def is_over(self, state: AgentState) -> bool:
        """Return whether no time remains."""
        remaining = self.remaining(state)
        return remaining is not None and remaining <= 0

    def is_over_for_tools(self, state: AgentState) -> bool:
        """Return whether only the reserved time remains."""
        remaining = self.remaining_for_tools(state)
        return remaining is not None and remaining <= 0

    @property
    def signal(self) -> StopSignal:
        """The signal when the time is up."""
        return limit_signal(StopReason.TIME_LIMIT, self.seconds or 0.0)


async def _run_within(seconds: float | None, operation: Callable[[], Awaitable[T]], *, keeps_result: bool = False) -> T:
    """Await the operation for at most so many seconds; None for no limit.

    Args:
        seconds: the time.
        operation: the operation.
        keeps_result: whether what it returns nevertheless, when the task of the execution is cancelled, is returned.

    Raises:
        _TimeIsUpError: when it was cancelled.
    """
    if seconds is None:
        return await operation()
    try:
        # In a task of its own, so that what ignores its cancellation cannot outlive the limit.
        own_time = OwnTime(max(seconds, 0))
        return await run_in_own_time(operation(), own_time, grace=CUT_OFF_SECONDS, keeps_result=keeps_result)
    except TimeIsOver as over:
        if over.ended is not None:  # its result counts, as that of any call that ends while it is cancelled
            return cast("T", over.ended.take())
        raise _TimeIsUpError from None
