"""The interceptor points: what an interceptor sees at each, and exactly the changes that are allowed there.

Each point is a frozen context. A change is a method that returns a changed copy; what must not change has no method.
`POINTS` is the table of all points; `docs/interceptors.md` says what else a new point needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

from attrs import evolve, field, frozen

from agentloop.errors.kinds import ContractViolation
from agentloop.values.decisions import Answer, Block, Decision, Suspend, Verdict
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, JsonObject
from agentloop.values.labels import CLEAN, ArgumentOrigin, Label
from agentloop.values.origins import origins_of
from agentloop.values.policies import DEFAULT_CALL_POLICY, CallPolicy
from agentloop.values.run_requests import Identity, principal_of
from agentloop.values.state import AgentState
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import ContentPart, ErrorInfo, ToolCall, ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import Value

T = TypeVar("T")
Proceed: TypeAlias = Callable[[], Awaitable[T]]
"""Runs the inner layers and what they wrap; may be awaited more than once."""
ProceedInference: TypeAlias = Proceed[InferenceResponse]
"""Runs the inner layers and sends the request to the model."""
ProceedToolUse: TypeAlias = Proceed[ToolExecution]
"""Runs the inner layers and the tool; a failure of the tool is returned as an execution, not raised."""

# --- the kinds of points ----------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class Point(Value):
    """A place in the loop at which interceptors run.

    Attributes:
        state: the agent's state at this point.
        dependencies: the argument of `AgentLoop.execute(…, dependencies=…)`; it is neither compared nor stored.
        point_name: the name of the point, which is also the name of its method in `Interceptor`.
        writable: the names of the fields that may change; around an operation, `outcome`.
    """

    state: AgentState
    dependencies: Any = field(default=None, kw_only=True, eq=False, repr=False)
    point_name: ClassVar[str]
    writable: ClassVar[tuple[str, ...]] = ()

    @property
    def principal(self) -> Identity | None:
        """Who asks for the execution; None where nobody is known."""
        return principal_of(self.state)


@frozen(eq=False, repr=False)
class StatePoint(Point):
    """A point that each layer handles in turn, and at which the state may change.

    Attributes:
        innermost_first: whether layers of low priority come first.
    """

    innermost_first: ClassVar[bool] = False
    writable: ClassVar[tuple[str, ...]] = ("state",)

    @property
    def is_short_circuited(self) -> bool:
        """Whether the remaining layers are skipped."""
        return False

    def with_state(self, state: AgentState) -> Self:
        """Continue with this state; stop signals and a continuation request that the point has stay."""
        return evolve(self, state=state.with_continuation_of(self.state))

    def stop(
        self,
        message: str = "",
        *,
        reason: StopReason = StopReason.STOP_REQUESTED,
        source: str = "",
        context: JsonObject = EMPTY_OBJECT,
    ) -> Self:
        """Request that the execution stops: a step that has started is completed, and no other starts.

        To stop at once, without the operation that the point guards, raise `AgentStop` instead.

        Args:
            message: the reason in words.
            reason: the kind of reason; a requested continuation overrides a soft one.
            source: who requests it; defaults to the interceptor's name.
            context: details as JSON.
        """
        return self.with_state(self.state.with_stop_signal(StopSignal(reason, message, source, context)))


@frozen(eq=False, repr=False)
class AroundPoint(Point, Generic[T]):
    """A point whose layers wrap an operation: each awaits `proceed()`, any number of times, or returns without it.

    Attributes:
        outcome_type: the class of what the operation returns.
    """

    outcome_type: ClassVar[type]
    writable: ClassVar[tuple[str, ...]] = ("outcome",)

    def find_violation(self, outcome: T) -> str:  # noqa: ARG002  # most points accept any outcome
        """Return in which way a layer may not replace the outcome by this one; empty if it may."""
        return ""


# --- executions and steps ---------------------------------------------------------------------------------------


class BeforeExecution(StatePoint):
    """An execution has started; or it was handed over, for the interceptors that have joined with the other loop."""

    __slots__ = ()
    point_name = "before_execution"


class BeforeStep(StatePoint):
    """A step is about to begin."""

    __slots__ = ()
    point_name = "before_step"

    @property
    def is_short_circuited(self) -> bool:
        """Whether a layer has stopped the execution for a reason that a continuation cannot override."""
        # A soft signal does not skip the others: one of them may request a continuation.
        execution = self.state.execution
        return execution is not None and execution.continuation.hard_signal is not None


class AfterStep(StatePoint):
    """A step is complete; the loop decides next whether another follows."""

    __slots__ = ()
    point_name = "after_step"
    innermost_first = True

    def request_continuation(self) -> Self:
        """Request another step even though the model has answered; limits cannot be overridden."""
        return self.with_state(self.state.with_continuation_requested())


class OnStop(StatePoint):
    """The execution is about to stop."""

    __slots__ = ()
    point_name = "on_stop"


class AfterExecution(StatePoint):
    """The execution has stopped; its status is not set yet."""

    __slots__ = ()
    point_name = "after_execution"
    innermost_first = True


@frozen(eq=False, repr=False)
class OnError(StatePoint):
    """Something other than a tool has failed in a step.

    Attributes:
        error: the exception that was raised.
        recovered: whether the execution continues; the step is recorded as failed either way. After a failure at `on_stop` or
            `after_execution`, no step follows, and the execution ends as without it.
    """

    point_name = "on_error"
    writable: ClassVar[tuple[str, ...]] = ("state", "error", "recovered")
    error: Exception
    recovered: bool = False

    def with_error(self, error: Exception) -> Self:
        """Record this error instead."""
        return evolve(self, error=error)

    def recover(self) -> Self:
        """Continue the execution with the next step."""
        return evolve(self, recovered=True)


# --- inferences -------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class BeforeInference(StatePoint):
    """A request is about to be sent to the model.

    Attributes:
        request: the request.
        response: a response that replaces the inference; set by `answer`.
    """

    point_name = "before_inference"
    writable: ClassVar[tuple[str, ...]] = ("state", "request", "response")
    request: InferenceRequest
    response: InferenceResponse | None = None

    @property
    def is_short_circuited(self) -> bool:
        """Whether a layer has answered in place of the model."""
        return self.response is not None

    def with_request(self, request: InferenceRequest) -> Self:
        """Send this request instead."""
        return evolve(self, request=request)

    def answer(self, response: InferenceResponse) -> Self:
        """Use this response and send no request."""
        return evolve(self, response=response)


@frozen(eq=False, repr=False)
class AroundInference(AroundPoint[InferenceResponse]):
    """A request is being sent; the layer may time, repeat or replace the inference.

    Attributes:
        request: the request.
    """

    point_name = "around_inference"
    outcome_type = InferenceResponse
    request: InferenceRequest


@frozen(eq=False, repr=False)
class AfterInference(StatePoint):
    """The model has answered.

    Attributes:
        request: the request that was sent.
        response: the model's response.
    """

    point_name = "after_inference"
    writable: ClassVar[tuple[str, ...]] = ("state", "response")
    innermost_first = True
    request: InferenceRequest
    response: InferenceResponse

    def with_response(self, response: InferenceResponse) -> Self:
        """Continue with this response instead."""
        return evolve(self, response=response)


# --- tool calls -------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class BeforeToolUse(StatePoint):
    """A valid call is about to run.

    Attributes:
        call: the call; its arguments satisfy the tool's schema.
        tool: the tool.
        key: the idempotency key of the call.
        index: 0-based index of the call among the calls of its step.
        verdict: an interceptor's ruling on the call; None lets it run.
        decision: the decision on the call if it was suspended; it is not suspended again.
        decided_call: the call as the decision allows it to run; None without a decision.
        ensemble: the name of the group that the tool belongs to; empty for a tool without a group.
        is_changed: whether an interceptor has replaced the call, also if it is the original one again.
        preceding: the number of calls of the step before this one, with those of programs; None if it is `index`.
        runs_code: whether an argument is code or a command, so that the approval of one call says nothing about another; true
            where that is not known.
        label: who had a part in the decision to make the call; None where nothing is labeled.
        origins: who had a part in each argument, if the program that makes the call has said so; `origin_of` also tells of other calls.
        is_agent: whether the tool is an agent whose own calls pass the interceptors that use labels.
    """

    point_name = "before_tool_use"
    writable: ClassVar[tuple[str, ...]] = ("state", "call", "verdict")
    call: ToolCall
    tool: ToolSpec
    key: str
    index: int = 0
    verdict: Verdict | None = None
    decision: Decision | None = None
    decided_call: ToolCall | None = None
    ensemble: str = ""
    is_changed: bool = field(default=False, eq=False, repr=False)
    preceding: int | None = None
    runs_code: bool = True
    label: Label | None = None
    origins: tuple[ArgumentOrigin, ...] = ()
    is_agent: bool = False

    @property
    def is_short_circuited(self) -> bool:
        """Whether a layer has blocked, answered or suspended the call."""
        return self.verdict is not None

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the call."""
        return self.call.arguments

    def origin_of(self, argument: str) -> Label:
        """Return who had a part in an argument, as far as that is known, and else in the whole call.

        What the user has written is his, also where others have written it, too. True, false, null and empty values are nobody's.

        Args:
            argument: the name of an argument.
        """
        arguments = self.arguments
        is_clean = not self.origins and self.label is not None and not self.label.is_foreign
        if is_clean or argument not in arguments:
            return CLEAN
        given = {argument: arguments[argument]}
        (origin,) = origins_of(self.state, self.label, self.origins, given, key=self.key)
        return origin.label

    def with_call(self, call: ToolCall) -> Self:
        """Run this call instead; it is validated again."""
        return evolve(self, call=call, is_changed=True)

    def with_arguments(self, arguments: Mapping[str, object]) -> Self:
        """Run the call with these arguments instead; they are validated again."""
        return self.with_call(self.call.with_arguments(arguments))

    def block(self, reason: str) -> Self:
        """Keep the call from running; the model gets the reason."""
        return evolve(self, verdict=Block(reason))

    def answer(self, value: object) -> Self:
        """Settle the call with this value without running the tool."""
        return evolve(self, verdict=Answer(value))

    def suspend(self, reason: str = "", *, grantable: bool = False) -> Self:
        """Suspend the call until a decision is made; a call with a decision runs as it was decided.

        Args:
            reason: the reason, for the reviewer.
            grantable: whether the approval may come with a `Grant`.
        """
        if self.decision is None:
            return evolve(self, verdict=Suspend(reason, grantable))
        # A decision holds for the arguments that were shown: later changes by interceptors are taken back.
        if self.decided_call is None or self.call == self.decided_call:
            return self
        return self.with_call(self.decided_call)


class _HeldReports(Protocol):
    def hold(self, key: str, report: Callable[[], object]) -> None:
        """Call this when the call of this key is settled."""

    def release(self, key: str) -> None:
        """Call now what is held for the call of this key."""


@frozen(eq=False, repr=False)
class AroundToolUse(AroundPoint[ToolExecution]):
    """A tool is running; calls of one batch reach this point concurrently.

    Attributes:
        call: the call.
        tool: the tool.
        key: the idempotency key of the call.
        id: the id of the resulting execution.
        started_at: when the call reached the outermost layer.
        policy: the policy that the tool declares.
    """

    point_name = "around_tool_use"
    outcome_type = ToolExecution
    call: ToolCall
    tool: ToolSpec
    key: str
    id: str
    started_at: datetime
    policy: CallPolicy = DEFAULT_CALL_POLICY
    _has_begun: Callable[[], bool] | None = field(default=None, eq=False, repr=False)
    _reports: _HeldReports | None = field(default=None, eq=False, repr=False)

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the call."""
        return self.call.arguments

    def report_at_end(self, report: Callable[[], object]) -> None:
        """Call a function that reports how the call ends when the call is settled, right before its event.

        Calls are settled in call order, whichever ends first. Outside of a batch, the function is called at once.
        """
        if self._reports is None:
            report()
        else:
            self._reports.hold(self.key, report)

    def release_reports(self) -> None:
        """Call now what would be called when the call is settled: the call goes on, and something else is reported."""
        if self._reports is not None:
            self._reports.release(self.key)

    @property
    def may_have_run(self) -> bool:
        """Whether an effect of the tool cannot be excluded at this moment: the tool has begun, in any attempt so far."""
        return self._has_begun is not None and self._has_begun()

    def find_violation(self, outcome: ToolExecution) -> str:
        """Return in which way a layer may not replace the outcome by this one; empty if it may."""
        # The id of a call is that of the provider; an outcome from a cache was of a call with another one.
        return "" if outcome.call.matches(self.call) else "returned the outcome of another call"

    def succeed(
        self, value: object, content: Sequence[ContentPart] | None = None, *, label: Label | None = None
    ) -> ToolExecution:
        """Create a successful execution with this value, to return without proceeding.

        Args:
            value: the value.
            content: the content for the model; None for the value.
            label: who had a part in the value, such as `ToolExecution.label` of the outcome that it is from; None where that is not known,
                so that it counts as foreign.
        """
        # `with_value` replaces status and error.
        return evolve(self.fail("", status=ToolStatus.CANCELLED).with_value(value, content), label=label)

    def fail(self, message: str, *, type: str = "ToolFailed", status: ToolStatus = ToolStatus.FAILED) -> ToolExecution:  # noqa: A002  # names the ErrorInfo field
        """Create an unsuccessful execution, to return without proceeding or in place of what `proceed()` returned."""
        return ToolExecution.of(
            self.call,
            status,
            key=self.key,
            id=self.id,
            at=self.started_at,
            error=ErrorInfo(type, message),
            may_have_run=self.may_have_run,
        )


@frozen(eq=False, repr=False)
class AfterToolUse(StatePoint):
    """A call is settled: it ran, or was rejected, blocked, answered or cancelled.

    Layers may change how the call ended, but not the facts: its ids, the call itself, its times, and whether it may have run.

    Attributes:
        execution: the outcome.
        tool: the tool; None when the model called one that is not offered.
        exception: what the tool raised; None if it did not raise, or not in this process. It is neither compared nor stored.
        is_restored: whether the outcome was restored, with other facts.
    """

    point_name = "after_tool_use"
    writable: ClassVar[tuple[str, ...]] = ("state", "execution")
    innermost_first = True
    execution: ToolExecution
    tool: ToolSpec | None = None
    exception: BaseException | None = field(default=None, eq=False, repr=False)
    is_restored: bool = field(default=False, kw_only=True)

    @property
    def call(self) -> ToolCall:
        """The call as it ran."""
        return self.execution.call

    def with_execution(self, execution: ToolExecution) -> Self:
        """Continue with this outcome instead.

        Raises:
            ContractViolation: if it differs in a fact: an id, the call, a time, or whether the call may have run.
        """
        if violation := self.find_violation(execution):
            raise ContractViolation(violation)
        return evolve(self, execution=execution)

    def restore(self, execution: ToolExecution) -> Self:
        """Continue with a recorded outcome and its facts; only for interceptors that play a recorded execution again."""
        return evolve(self, execution=execution, is_restored=True)

    def find_violation(self, execution: ToolExecution) -> str:
        """Return which facts an outcome changes; empty if it changes none."""
        before = self.execution
        if execution is before:
            return ""
        changed = [name for name in _FACTS if getattr(execution, name) != getattr(before, name)]
        # A success did not fail, so the fact does not show in it.
        if execution.has_error and before.has_error and execution.may_have_run != before.may_have_run:
            changed.append("may_have_run")
        return f"the outcome of a call keeps its facts; changed were: {', '.join(changed)}" if changed else ""

    def with_value(self, value: object, content: Sequence[ContentPart] | None = None) -> Self:
        """Make the call succeed with this value; with `content`, the model gets that instead of the value."""
        return evolve(self, execution=self.execution.with_value(value, content))

    def with_error(self, message: str, *, type: str = "ToolFailed") -> Self:  # noqa: A002  # names the ErrorInfo field
        """Make the call fail with this error."""
        return evolve(self, execution=self.execution.with_error(ErrorInfo(type, message), ToolStatus.FAILED))


_FACTS = ("id", "key", "call", "started_at", "ended_at", "inner", "label", "endorsed")


# --- the table --------------------------------------------------------------------------------------------------

POINTS: Mapping[str, type[Point]] = MappingProxyType(
    {
        point.point_name: point
        for point in (
            BeforeExecution,
            BeforeStep,
            BeforeInference,
            AroundInference,
            AfterInference,
            BeforeToolUse,
            AroundToolUse,
            AfterToolUse,
            AfterStep,
            OnStop,
            AfterExecution,
            OnError,
        )
    }
)
"""All points by name, in the order in which an execution passes them."""
