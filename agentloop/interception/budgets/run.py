"""A budget at work in one execution."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import TypeVar

from attrs import asdict, frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.run_log import CallLog
from agentloop.interception.budgets.account import BudgetAccount, Entry, Spending, Unknown, set_aside
from agentloop.interception.budgets.amounts import (
    DOLLAR,
    Amounts,
    Limits,
    TimeIsUp,
    TimeSpan,
    reached,
    refused,
    stop_by,
    within,
)
from agentloop.interception.budgets.leases import RunningBudget, delegated, lending, with_delegated
from agentloop.interception.budgets.prices import Prices
from agentloop.values.decisions import PendingCall
from agentloop.values.estimates import BYTES_PER_TOKEN, parts_length
from agentloop.values.inference import InferenceRequest, InferenceResponse, ToolChoice
from agentloop.values.messages import Message
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
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus


def is_settling(state: AgentState) -> bool:
    """Say whether the next step only settles calls that waited for a decision: no new step, and no inference."""
    last = state.last_step
    return last is not None and last.open_turn is not None


def calls_before(state: AgentState) -> int:
    """Return how many calls the steps before the current one made."""
    last = state.last_step
    open_calls = len(last.open_turn.slots) if last is not None and last.open_turn is not None else 0
    return state.tool_call_count - open_calls


def calls_admitted(state: AgentState) -> int:
    """Return how many calls were made, without those at the end of an open turn that only wait for their turn."""
    last = state.last_step
    slots = last.open_turn.slots if last is not None and last.open_turn is not None else ()
    admitted = [
        place
        for place, slot in enumerate(slots, start=1)
        if not (isinstance(slot, PendingCall) and slot.waits_for and not slot.begun)
    ]
    return calls_before(state) + max(admitted, default=0)


NOTICE = (
    "This is your last answer: the budget of this task is nearly used up, and no more tools can be called. Answer now with "
    "what you have found so far, and say what is left undone."
)
"""What a model is told with the last request; it is not part of the conversation."""


def last_request(request: InferenceRequest) -> InferenceRequest:
    """Return the request without tools, with the notice at its end."""
    told = request.with_messages(*request.messages, Message.user(NOTICE))
    return told.with_tools().with_tool_choice(ToolChoice.none())


def last_response(response: InferenceResponse) -> InferenceResponse:
    """Return the answer without calls that it makes all the same, if there is anything else in it."""
    if not response.text or not response.tool_calls:
        return response
    return response.with_parts(*[part for part in response.parts if not isinstance(part, ToolCall)])


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


S = TypeVar("S", bound=StatePoint)


@frozen(kw_only=True)
class BudgetTerms:
    """How a budget is kept.

    Attributes:
        wrap_up: the share that is kept back for the last answer.
        reserves: whether tokens and money are set aside before an inference.
        unknown: what to do about what is not known.
        prices: what models cost; None when money is of no interest.
        model: the model that is asked where the request does not name one.
        max_output_tokens: the most that a model is taken to write where the request does not say.
    """

    wrap_up: float
    reserves: bool
    unknown: Unknown
    prices: Prices | None
    model: str
    max_output_tokens: int


@frozen(kw_only=True, eq=False)
class BudgetRun:
    """A budget at work in one execution: what it does at each point.

    Attributes:
        name: the name of the budget.
        terms: how it is kept.
        account: what was spent and what is set aside.
        time: how long the execution may take.
        lends: whether what the execution starts can draw on it.
        make: makes the interceptor for an execution that draws on an account that was lent, with so many seconds.
        log: what the execution writes down; None for nothing.
    """

    name: str
    terms: BudgetTerms
    account: BudgetAccount
    time: TimeSpan
    lends: bool
    make: Callable[[BudgetAccount, float | None], CanIntercept]
    log: CallLog | None = None

    # --- steps ----------------------------------------------------------------------------------------------------

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop instead of taking one step too many, or find that the last answer is due."""
        state = point.state
        if self.time.is_over(state):
            return _stopped(point, self.time.signal)
        if is_settling(state):
            return point
        entry = self._opened(state)
        self._book(entry, state)
        signal = self._reserve.reached(self.account, entry)
        if signal is None and not self.account.take(entry, Amounts(steps=1)):
            signal = self._reserve.signal(StopReason.STEP_LIMIT, self.account, entry)
        if signal is not None:
            return _stopped(point, signal)
        entry.closing = self._closing(entry, state)
        return point

    def after_step(self, point: AfterStep) -> AfterStep:
        """Stop after the last answer; keep in the state what leases have used."""
        entry = self._opened(point.state)
        self._count_recorded(entry, point.state)
        made = point.with_state(with_delegated(point.state, self.name, entry.delegated)) if self.lends else point
        return made if entry.closing is None else _stopped(made, entry.closing)

    def _count_recorded(self, entry: Entry, state: AgentState) -> None:
        """Count what calls of the step have lent whose recorded end was used again, and which have lent nothing now."""
        ran, entry.lent = entry.lent, {}
        step = state.last_step
        if self.log is None or not self.lends or step is None:
            return
        for key in [one.key for one in step.executions] + [one.key for one in step.pending]:
            known = None if key in ran else self.log.attachment(key, self.name)
            if known is not None:
                entry.delegated += Amounts(**known)

    def count_ended(self, state: AgentState) -> None:
        """Count what an execution has used, unless it drew on the account."""
        if self.account.knows(state.execution_id):
            return
        entry = self._opened(state)
        self.account.book(entry, self._own(entry.spending, state))

    def _note(self, key: str, used: Amounts) -> None:
        """Let what a call has lent be kept with its end."""
        if self.log is not None:
            self.log.attach(key, self.name, asdict(used))

    def _book(self, entry: Entry, state: AgentState) -> None:
        """Write down what the state says was used; nothing of an inference is under way."""
        self.account.release(entry)
        spending = entry.spending
        if self.account.limits.tokens is not None or self.account.limits.cost is not None:
            spending.count(state)
        calls = state.tool_call_count
        free = self.account.left.tool_calls
        allowed = calls if free is None else min(calls, max(free, 0) + entry.own.tool_calls)
        self.account.book(entry, Amounts(state.step_count, allowed, spending.tokens, spending.cost))

    def _closing(self, entry: Entry, state: AgentState) -> StopSignal | None:
        signal = self._reserve.nearly_reached(self.account, entry, state)
        if not self.terms.wrap_up or not self.time.is_over_for_tools(state):
            return signal
        late = self.time.signal
        return late if signal is None or signal.reason.weight < late.reason.weight else signal

    # --- inferences -----------------------------------------------------------------------------------------------

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Set aside what the inference may use, and ask for the last answer when that is due.

        Raises:
            AgentStop: when too little is left.
        """
        entry = self._opened(point.state)
        if not self.terms.reserves:
            return point if entry.closing is None else point.with_request(last_request(point.request))
        self.account.release(entry)
        if entry.closing is None:
            kept = self.account.left.minus(self._reserve.amounts)
            found = set_aside(self.account, entry, point, kept, most=self.terms.max_output_tokens)
            if isinstance(found, InferenceRequest):
                return point.with_request(found)
            entry.closing = self._reserve.signal(found, self.account, entry, last=True)
            if not self.terms.wrap_up:
                raise stop_by(entry.closing)
        point = point.with_request(last_request(point.request))
        found = set_aside(self.account, entry, point, self.account.left, most=self.terms.max_output_tokens)
        if isinstance(found, InferenceRequest):
            return point.with_request(found)
        raise stop_by(self._reserve.signal(found, self.account, entry, last=True))

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Cut the inference off when its time is up, and give back what was set aside when it fails.

        Raises:
            AgentStop: when it was cut off.
        """
        try:
            return await within(self.time.left(point.state), proceed)
        except BaseException as error:
            entry = self._opened(point.state)
            self.account.release(entry)
            if isinstance(error, TimeIsUp):
                raise stop_by(self.time.signal) from None
            raise

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Write down what the inference used, and keep the last answer free of calls."""
        entry = self._opened(point.state)
        response = point.response
        if self.terms.reserves:
            wrote = parts_length(response.parts) // BYTES_PER_TOKEN
            tokens, cost = entry.spending.of(response.usage, response.model, entry.asked, wrote)
            self.account.settle(entry, Amounts(tokens=tokens, cost=cost))
        return point if entry.closing is None else point.with_response(last_response(response))

    # --- tool calls -----------------------------------------------------------------------------------------------

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block a call too many, and one for which no time is left."""
        entry = self._opened(point.state)
        if entry.closing is not None:
            return point.block(entry.closing.message)
        if self.time.is_over_for_tools(point.state):
            return point.block(self.time.signal.message)
        number = calls_before(point.state) + point.index + 1
        more = number - entry.own.tool_calls
        if self.account.limits.tool_calls is None or more <= 0 or self.account.take(entry, Amounts(tool_calls=more)):
            return point
        signal = reached(StopReason.TOOL_CALL_LIMIT, self.account.limits.tool_calls, call=number)
        return (point if self.terms.wrap_up else _stopped(point, signal)).block(signal.message)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cut the call off when the time for tools is up; lend to what it starts."""
        if not self.lends:
            return await self._in_time(point, proceed)
        with lending(self._running(point.state, point.key)):
            return await self._in_time(point, proceed)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Stop when a call was cut off at the end, or the end has come meanwhile."""
        return _stopped(point, self.time.signal) if self.time.is_over(point.state) else point

    async def _in_time(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        try:
            return await within(self.time.left_for_tools(point.state), proceed)
        except TimeIsUp:
            return point.fail(self.time.signal.message, type="ToolTimedOut", status=ToolStatus.TIMED_OUT)

    def _running(self, state: AgentState, key: str) -> RunningBudget:
        entry = self._opened(state)
        kept = self._reserve.amounts
        return RunningBudget(
            self.account,
            entry,
            left=lambda: self.account.left.minus(kept),
            seconds=lambda: self.time.left_for_tools(state),
            make=self.make,
            used=self._used,
            key=key,
            note=partial(self._note, key),
        )

    def _used(self, state: AgentState) -> Amounts:
        spending = Spending(self.terms.unknown, self.terms.prices, self.terms.model)
        return self._own(spending, state) + delegated(state, self.name)

    def _own(self, spending: Spending, state: AgentState) -> Amounts:
        """Count what an execution that settles calls has used itself."""
        if self.account.limits.tokens is not None or self.account.limits.cost is not None:
            spending.count(state)
        return Amounts(state.step_count, calls_admitted(state), spending.tokens, spending.cost)

    # --- what they have in common ---------------------------------------------------------------------------------

    @property
    def _reserve(self) -> Reserve:
        return Reserve(self.account.limits, self.terms.wrap_up)

    def _opened(self, state: AgentState) -> Entry:
        """Return the execution's part of the account; what its state remembers of leases is written down."""
        terms = self.terms
        entry = self.account.entry(state, lambda: Spending(terms.unknown, terms.prices, terms.model))
        if not entry.restored:
            entry.restored, entry.delegated = True, delegated(state, self.name)
            if is_settling(state):
                self.account.book(entry, self._own(entry.spending, state))
        return entry


def _stopped(point: S, signal: StopSignal) -> S:
    return point.stop(signal.message, reason=signal.reason, context=signal.context)
