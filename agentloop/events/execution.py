"""Events of an execution as a whole."""

from __future__ import annotations

from attrs import field, frozen

from agentloop.values.decisions import PendingCall
from agentloop.values.event import Event
from agentloop.values.inference import Usage
from agentloop.values.messages import Message
from agentloop.values.steps import NO_USAGE, AgentStep
from agentloop.values.stop import NO_SIGNALS, Continuation, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolExecution


@frozen(eq=False, repr=False)
class AgentExecutionStarted(Event):
    """An execution began, or goes on after it was left or suspended.

    Attributes:
        message: the newest message of the conversation: the input.
        resumed: whether the execution had begun before.
    """

    message: Message | None = None
    resumed: bool = False


@frozen(eq=False, repr=False)
class ExecutionEnded(Event):
    """What the events at the end of a run have in common.

    Attributes:
        signal: the weightiest reason to stop.
        step_count: how many steps the execution has taken.
        usage: its tokens so far.
    """

    signal: StopSignal | None = None
    step_count: int = 0
    usage: Usage = NO_USAGE


@frozen(eq=False, repr=False)
class AgentExecutionCompleted(ExecutionEnded):
    """The execution came to its answer.

    Attributes:
        final_text: the text of the answer.
    """

    final_text: str = ""


class AgentExecutionStopped(ExecutionEnded):
    """The execution was stopped before it came to an answer: by a limit, a request or a person."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class AgentExecutionSuspended(ExecutionEnded):
    """The execution waits for decisions.

    Attributes:
        pending: the calls that wait.
    """

    pending: tuple[PendingCall, ...] = ()


@frozen(eq=False, repr=False)
class AgentExecutionFailed(ExecutionEnded):
    """The execution ended by an error.

    Attributes:
        error: the error.
    """

    error: ErrorInfo | None = None


@frozen(eq=False, repr=False)
class StopSignalReceived(Event):
    """Somebody gave a reason to stop.

    Attributes:
        signal: the reason.
    """

    signal: StopSignal


@frozen(eq=False, repr=False)
class ConversationHandedOver(Event):
    """The conversation is now with another loop, which takes the next step.

    Attributes:
        execution: the call that handed it over.
    """

    execution: ToolExecution


@frozen(eq=False, repr=False)
class MessageReceived(Event):
    """A message that was sent to the running execution is now in its conversation.

    It comes between steps, or where an execution is cut off inside of one. One that was sent after it had been decided to
    stop, but before anything was done about it, takes that decision back unless it was a hard one.

    Attributes:
        message: the message.
    """

    message: Message


@frozen(eq=False, repr=False)
class ContinuationEvaluated(Event):
    """It was decided, after a step, whether another follows.

    Attributes:
        continues: the decision.
        continuation: what spoke for stopping and for going on.
    """

    continues: bool
    continuation: Continuation = field(default=NO_SIGNALS)


class AgentStepStarted(Event):
    """A step began."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class AgentStepCompleted(Event):
    """A step was taken; what it says is final.

    Attributes:
        step: the step.
    """

    step: AgentStep


@frozen(eq=False, repr=False)
class ContextEpochBegan(Event):
    """The next request does not extend the one before, so that the provider's cache of it ends there.

    It is also told when an execution begins, or goes on after it was suspended, with something left out.

    Attributes:
        reason: why.
        dropped: how many messages of the conversation are left out.
        kept: how many messages the model is shown.
        superseded: how many of these have results that were replaced by a notice, because later calls made them stale.
    """

    reason: str
    dropped: int
    kept: int
    superseded: int = 0


@frozen(eq=False, repr=False)
class ContextSummarized(Event):
    """The beginning of the conversation was summarized, by an inference between two steps.

    Attributes:
        summary: the text that the model is shown instead.
        covered: how many messages it stands for, from the first.
        usage: the tokens of the inference; they are counted in the execution.
    """

    summary: str
    covered: int
    usage: Usage


@frozen(eq=False, repr=False)
class InterceptorRan(Event):
    """An interceptor did its work at a point.

    Attributes:
        interceptor: its name.
        point: the name of the point, such as `before_step`.
        changed: whether it changed anything; None for the points around a call, which are told before they run.
    """

    interceptor: str
    point: str
    changed: bool | None = None
