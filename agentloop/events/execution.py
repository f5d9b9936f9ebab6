"""Events of executions, their steps, their context and their interceptors."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen

from agentloop.values.decisions import PendingCall
from agentloop.values.event import Event, Operation
from agentloop.values.inference import Usage
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.messages import Message
from agentloop.values.provenance import FieldChange
from agentloop.values.steps import NO_USAGE, AgentStep
from agentloop.values.stop import NO_SIGNALS, Continuation, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolExecution


@frozen(eq=False, repr=False)
class AgentExecutionStarted(Event):
    """An execution started, or resumed after it was left or suspended.

    Attributes:
        message: the last message of the conversation, which is the input.
        resumed: whether the execution had started before.
        model: the model of its driver, as `provider:model` or by its bare name; empty if it has none or no name.
        earlier_context: what was current when the journal recorded the start of the execution, such as `traceparent`; empty
            for a new execution.
        queue_seconds: how long it waited in the queue of a cluster; None if it did not.
    """

    message: Message | None = None
    resumed: bool = False
    model: str = ""
    earlier_context: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    queue_seconds: float | None = None


@frozen(eq=False, repr=False)
class ExecutionEnded(Event):
    """The base of the events at the end of a run.

    Attributes:
        signal: the stop signal of highest weight; None if there is none.
        step_count: the number of steps of the execution.
        usage: the tokens of the execution.
    """

    is_base: ClassVar[bool] = True

    signal: StopSignal | None = None
    step_count: int = 0
    usage: Usage = NO_USAGE


@frozen(eq=False, repr=False)
class AgentExecutionCompleted(ExecutionEnded):
    """The execution ended with a final answer.

    Attributes:
        final_text: the text of the answer.
    """

    final_text: str = ""


class AgentExecutionStopped(ExecutionEnded):
    """The execution was stopped before its final answer, by a limit or a request."""

    __slots__ = ()


class AgentExecutionInterrupted(ExecutionEnded):
    """The run ended, and the execution is still in progress: its task was cancelled, or its journal failed.

    `AgentLoop.execute` continues the execution from its last state, `AgentLoop.recover` from its journal.
    """

    __slots__ = ()


@frozen(eq=False, repr=False)
class ExecutionClaimLost(Event):
    """The run lost its claim on the execution, and ends: nothing more runs, and `AgentExecutionInterrupted` follows.

    The execution stays in progress, and another process may drive it. `execute` raises `ClaimLost`.

    Attributes:
        reason: why the claim was lost.
        token: its fencing token.
    """

    reason: str = ""
    token: int = 0


@frozen(eq=False, repr=False)
class AgentExecutionSuspended(ExecutionEnded):
    """The execution is suspended until there are decisions about its pending calls.

    Attributes:
        pending: the pending calls.
    """

    pending: tuple[PendingCall, ...] = ()


@frozen(eq=False, repr=False)
class AgentExecutionFailed(ExecutionEnded):
    """The execution ended with an error.

    Attributes:
        error: the error.
    """

    error: ErrorInfo | None = None


@frozen(eq=False, repr=False)
class StopSignalReceived(Event):
    """An interceptor, a tool, a driver or the loop requested a stop.

    Attributes:
        signal: the stop signal.
    """

    signal: StopSignal


@frozen(eq=False, repr=False)
class ConversationHandedOver(Event):
    """The conversation was handed over to another loop, which takes the next step.

    Attributes:
        execution: the tool execution that handed it over.
    """

    execution: ToolExecution


@frozen(eq=False, repr=False)
class MessageReceived(Event):
    """A message that was sent to the running execution was added to its conversation.

    The event occurs between steps, or where an execution is cancelled inside a step. A message that arrives after the
    decision to stop, but before the execution ends, revokes that decision unless a hard signal caused it.

    Attributes:
        message: the message.
    """

    message: Message


@frozen(eq=False, repr=False)
class ContinuationEvaluated(Event):
    """The loop decided, after a step, whether another step follows.

    Attributes:
        continues: whether another step follows.
        continuation: the stop signals and the continuation request.
    """

    continues: bool
    continuation: Continuation = field(default=NO_SIGNALS)


class AgentStepStarted(Event):
    """A step started."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class AgentStepCompleted(Event):
    """A step was completed.

    Attributes:
        step: the final step.
    """

    step: AgentStep


@frozen(eq=False, repr=False)
class ContextEpochBegan(Event):
    """The next request does not extend the one before, so it cannot use the provider's cache of that request.

    The event is also emitted when an execution starts or resumes with messages left out.

    Attributes:
        reason: why a new epoch started.
        dropped: the number of messages of the conversation that are left out.
        kept: the number of messages that the model sees.
        superseded: how many of these have results that were replaced by a notice, because later calls made them stale.
        cleared: the number of old results that were replaced by a notice, to make room.
    """

    reason: str
    dropped: int
    kept: int
    superseded: int = 0
    cleared: int = 0


@frozen(eq=False, repr=False)
class ContextSummarized(Event):
    """The first messages of the conversation were summarized, by an inference between two steps.

    Attributes:
        summary: the text that the model sees instead.
        covered: the number of messages that it replaces, from the first.
        usage: the tokens of the inference, which count in the totals of the execution.
    """

    summary: str
    covered: int
    usage: Usage


@frozen(eq=False, repr=False)
class EventLoopBlocked(Event):
    """Some code has kept the event loop from going on for `Bounds.blocked_seconds`, and the execution with it.

    The code may belong to another execution, or to none. The event comes when the event loop goes on; a warning is logged under
    `agentloop.loop` while it is still blocked.

    Attributes:
        seconds: how long, without times in which no processor was free.
        file: the file of the innermost function that blocked and is not one of asyncio.
        line: the 1-based line of this function that ran.
        function: the qualified name of this function, such as `Redact.after_tool_use`.
        stack: the functions from the one that the event loop called to this one, as `file:line in function`; at most 10.
        operation: the operation in which the code ran, such as a tool call; None if it is not known.
    """

    seconds: float
    file: str
    line: int
    function: str
    stack: tuple[str, ...] = ()
    operation: Operation | None = None


@frozen(eq=False, repr=False)
class GuardrailTripped(Event):
    """A guardrail found problems in an input or an output.

    Attributes:
        subject: `input` or `output`.
        problems: what was found, in words that do not repeat it.
        outcome: what follows: `stop`, `ask`, `again` or `replace`.
    """

    subject: str
    problems: tuple[str, ...]
    outcome: str


@frozen(eq=False, repr=False)
class InterceptorRan(Event):
    """An interceptor ran at a point.

    Attributes:
        interceptor: the name of the interceptor.
        point: the name of the point, such as `before_step`.
        changed: whether it changed the context. At a point around a call, the event that comes before the call has None, and another one
            follows the call if the interceptor replaced its outcome.
        changes: the changes, with the values that `AgentLoop.provenance` asks for.
    """

    interceptor: str
    point: str
    changed: bool | None = None
    changes: tuple[FieldChange, ...] = ()


@frozen(eq=False, repr=False)
class InterceptorInterrupted(Event):
    """An interceptor did not end in time, and was cancelled. What it guards does not happen.

    Attributes:
        interceptor: the name of the interceptor.
        point: the name of the point, such as `before_tool_use`.
        limit: the limit: `timeout` for its own, or the reason with which the execution stops, such as `time_limit`.
        seconds: the time that it took, without operations that it waited for.
        is_abandoned: whether it still runs although it was cancelled; nothing waits for it any more.
    """

    interceptor: str
    point: str
    limit: str
    seconds: float
    is_abandoned: bool = False
