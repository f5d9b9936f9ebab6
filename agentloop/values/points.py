"""The contexts of the interceptor points: each offers exactly the changes that are allowed there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Self, TypeAlias

from attrs import evolve, frozen

from agentloop.values.decisions import Answer, Block, Decision, Suspend, Verdict
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, JsonObject
from agentloop.values.policies import DEFAULT_CALL_POLICY, CallPolicy
from agentloop.values.state import AgentState
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import ContentPart, ErrorInfo, ToolCall, ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import Value

ProceedInference: TypeAlias = Callable[[], Awaitable[InferenceResponse]]
"""Goes on to the inner layers and asks the model; may be awaited more than once."""
ProceedToolUse: TypeAlias = Callable[[], Awaitable[ToolExecution]]
"""Goes on to the inner layers and runs the tool; failures of the tool come as its execution, not as exceptions."""


@frozen(eq=False, repr=False)
class Point(Value):
    """A place in the loop where interceptors stand.

    Attributes:
        state: the agent's state at this point.
    """

    state: AgentState


@frozen(eq=False, repr=False)
class StatePoint(Point):
    """A point at which the state may change."""

    def with_state(self, state: AgentState) -> Self:
        """Go on with this state."""
        return evolve(self, state=state)

    def stop(
        self,
        message: str = "",
        *,
        reason: StopReason = StopReason.STOP_REQUESTED,
        source: str = "",
        context: JsonObject = EMPTY_OBJECT,
    ) -> Self:
        """Give a reason to stop the execution; it stops after the points that have begun.

        Args:
            message: the reason in words.
            reason: what kind of reason it is; soft ones give way to a requested continuation.
            source: who says so; the interceptor's name when left out.
            context: details as JSON.
        """
        return self.with_state(self.state.with_stop_signal(StopSignal(reason, message, source, context)))


class BeforeExecution(StatePoint):
    """An execution has begun."""

    __slots__ = ()


class BeforeStep(StatePoint):
    """A step is about to begin."""

    __slots__ = ()


class AfterStep(StatePoint):
    """A step has been taken; whether another follows is decided next."""

    __slots__ = ()

    def request_continuation(self) -> Self:
        """Ask for another step even though the model has answered; limits cannot be overridden."""
        return self.with_state(self.state.with_continuation_requested())


class OnStop(StatePoint):
    """The execution is going to stop."""

    __slots__ = ()


class AfterExecution(StatePoint):
    """The execution has stopped; its status is still to be set."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class BeforeInference(StatePoint):
    """A model is about to be asked.

    Attributes:
        request: what it will be asked.
        response: an answer that makes asking needless; set by `answer`.
    """

    request: InferenceRequest
    response: InferenceResponse | None = None

    def with_request(self, request: InferenceRequest) -> Self:
        """Ask this instead."""
        return evolve(self, request=request)

    def answer(self, response: InferenceResponse) -> Self:
        """Do not ask the model: take this as its answer."""
        return evolve(self, response=response)


@frozen(eq=False, repr=False)
class AroundInference(Point):
    """A model is being asked; the layer may time, repeat or replace the inference.

    Attributes:
        request: what is asked.
    """

    request: InferenceRequest


@frozen(eq=False, repr=False)
class AfterInference(StatePoint):
    """A model has answered.

    Attributes:
        request: what was asked.
        response: the answer.
    """

    request: InferenceRequest
    response: InferenceResponse

    def with_response(self, response: InferenceResponse) -> Self:
        """Go on with this answer instead."""
        return evolve(self, response=response)


@frozen(eq=False, repr=False)
class BeforeToolUse(StatePoint):
    """A valid call is about to run.

    Attributes:
        call: the call; its arguments satisfy the tool's schema.
        tool: the tool.
        key: the idempotency key of the call.
        index: the place of the call among the calls of its step, from 0.
        verdict: what has been said about the call; None lets it run.
        decision: what was decided about the call, when it waited; it does not wait again.
        decided: the call that the decision was made about, as it shall run; None without a decision.
        ensemble: the name of the group that the tool came in; empty for a tool of its own.
    """

    call: ToolCall
    tool: ToolSpec
    key: str
    index: int = 0
    verdict: Verdict | None = None
    decision: Decision | None = None
    decided: ToolCall | None = None
    ensemble: str = ""

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the call."""
        return self.call.arguments

    def with_call(self, call: ToolCall) -> Self:
        """Run this call instead; it is validated again."""
        return evolve(self, call=call)

    def with_arguments(self, arguments: Mapping[str, object]) -> Self:
        """Run the call with these arguments instead; they are validated again."""
        return evolve(self, call=self.call.with_arguments(arguments))

    def block(self, reason: str) -> Self:
        """Keep the call from running and tell the model why."""
        return evolve(self, verdict=Block(reason))

    def answer(self, value: object) -> Self:
        """Settle the call with this value, without running the tool."""
        return evolve(self, verdict=Answer(value))

    def suspend(self, reason: str = "") -> Self:
        """Let the call wait for a decision. One that is decided goes on, as it was when it was decided about."""
        if self.decision is None:
            return evolve(self, verdict=Suspend(reason))
        return self if self.decided is None or self.call == self.decided else evolve(self, call=self.decided)


@frozen(eq=False, repr=False)
class AroundToolUse(Point):
    """A tool is running; calls of one batch stand here at the same time.

    Attributes:
        call: the call.
        tool: the tool.
        key: the idempotency key of the call.
        id: the id of the execution that comes of it.
        started_at: when the call reached the outermost layer.
        policy: what the tool asks for.
    """

    call: ToolCall
    tool: ToolSpec
    key: str
    id: str
    started_at: datetime
    policy: CallPolicy = DEFAULT_CALL_POLICY

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the call."""
        return self.call.arguments

    def succeed(self, value: object, content: Sequence[ContentPart] | None = None) -> ToolExecution:
        """Make an execution that succeeded with this value, to return without proceeding."""
        return self.fail("", status=ToolStatus.CANCELLED).with_value(value, content)

    def fail(self, message: str, *, type: str = "ToolFailed", status: ToolStatus = ToolStatus.FAILED) -> ToolExecution:  # noqa: A002  # names the ErrorInfo field
        """Make an execution that did not succeed, to return without proceeding or in place of what proceeding gave."""
        return ToolExecution(
            id=self.id,
            key=self.key,
            call=self.call,
            status=status,
            error=ErrorInfo(type, message),
            started_at=self.started_at,
            ended_at=self.started_at,
        )


@frozen(eq=False, repr=False)
class AfterToolUse(StatePoint):
    """A call has been settled: it ran, or was rejected, blocked, answered or cancelled.

    Attributes:
        execution: the outcome.
        tool: the tool; None when the model called one that is not offered.
    """

    execution: ToolExecution
    tool: ToolSpec | None = None

    @property
    def call(self) -> ToolCall:
        """The call as it ran."""
        return self.execution.call

    def with_execution(self, execution: ToolExecution) -> Self:
        """Go on with this outcome instead."""
        return evolve(self, execution=execution)

    def with_value(self, value: object, content: Sequence[ContentPart] | None = None) -> Self:
        """Let the call succeed with this value; with `content`, the model is shown that instead of the value."""
        return evolve(self, execution=self.execution.with_value(value, content))

    def with_error(self, message: str, *, type: str = "ToolFailed") -> Self:  # noqa: A002  # names the ErrorInfo field
        """Let the call fail with this error."""
        return evolve(self, execution=self.execution.with_error(ErrorInfo(type, message), ToolStatus.FAILED))


@frozen(eq=False, repr=False)
class OnError(StatePoint):
    """Something other than a tool went wrong in a step.

    Attributes:
        error: what was raised.
        recovered: whether the execution goes on; the step stays recorded as failed either way.
    """

    error: Exception
    recovered: bool = False

    def with_error(self, error: Exception) -> Self:
        """Record this error instead."""
        return evolve(self, error=error)

    def recover(self) -> Self:
        """Let the execution go on with the next step."""
        return evolve(self, recovered=True)
