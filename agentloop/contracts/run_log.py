"""The contracts of what an execution records while it runs, and reads back when it resumes.

There are three, so that each part of the loop depends on no more than it uses: drivers, executors and interceptors record
inferences and tool calls in a `CallLog`; the loop records messages in a `MessageLog` and states in a `LifecycleLog`. One object
that holds all three is an `ExecutionLog`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.errors import ClaimLost
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.records import CallIntent, InDoubt, RecordedCall, RecordedInference
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolExecution
from agentloop.values.value import Value

RequestRenderer: TypeAlias = Callable[[InferenceRequest], InferenceRequest]
"""Returns a request in the form in which the model receives it; pure."""


class CallLog(ABC):
    """Records inferences and tool calls, and returns the recorded results when the execution resumes.

    It wraps both from the outside, so a recorded result is never computed again, and a call has one intent however often the
    layers inside retry it. Drivers, executors and interceptors get it as `ExecutionScope.log`, which is None when an execution is
    neither recorded nor replayed.
    """

    @property
    def loss(self) -> ClaimLost | None:
        """The loss of the claim on the execution, once it is told; None before, which is the default."""
        return None

    @property
    @abstractmethod
    def settings(self) -> JournalSettings:
        """How this execution is recorded; executions that serve its calls are recorded in the same way."""

    @property
    def claim_token(self) -> int | None:
        """The token of the claim under which the execution runs; None without one, which is the default."""
        return None

    @abstractmethod
    def next_inference(
        self, request: InferenceRequest, render: RequestRenderer | None = None
    ) -> RecordedInference | None:
        """Return the recorded result of the step's next inference; None when the request has to be sent.

        Call it before each inference, and `record_inference` after each request that was sent.

        Args:
            request: the request.
            render: returns the request as the model receives it; None when the model receives it unchanged.

        Raises:
            InferenceNotRecorded: the request has to be sent, but calls of the step started for an earlier response that is not
                recorded.
            ClaimLost: the request has to be sent, but the claim on the execution is lost; nothing is sent.
        """

    @abstractmethod
    def record_inference(
        self, request: InferenceRequest, recorded: RecordedInference, render: RequestRenderer | None = None
    ) -> None:
        """Record the result of an inference. It is durable before the next call runs, or the execution ends.

        Args:
            request: the request that was sent.
            recorded: its result.
            render: as for `next_inference`.
        """

    @abstractmethod
    def recorded_call(self, key: str) -> RecordedCall | None:
        """Return what is recorded of a call of this step that started before an interruption; None for any other call."""

    def recorded_inner_calls(self, key: str) -> Sequence[RecordedCall]:  # noqa: ARG002  # for logs that read records
        """Return what is recorded of the calls that the program of an interrupted call made, in order; by default none.

        Args:
            key: the key of the call that ran the program.
        """
        return ()

    def recorded_calls(self) -> Sequence[RecordedCall]:
        """Return what is recorded of the calls of this step that started before an interruption, with those of programs, in order.

        By default none. `recorded_call` returns each of them by its key.
        """
        return ()

    def masked(self, text: str) -> str:
        """Return a text as it is recorded, with secrets masked; by default the text."""
        return text

    @abstractmethod
    async def start_call(self, intent: CallIntent, *, delegates: bool = False) -> RecordedCall | None:
        """Announce a call that is about to run, unless it is answered without running its tool.

        The call may wait before its tool runs, for a rate limit or for an interceptor; `begin_call` ends that. A call that
        `recorded_call` returned is run again without asking for an answer.

        Args:
            intent: the call.
            delegates: whether its tool is an agent, whose own calls are answered one by one.

        Returns:
            None when the tool has to run, after `begin_call`. Otherwise the result of the call, which must not run.

        Raises:
            JournalError: the answer cannot be written; the call must not run.
        """

    @abstractmethod
    async def begin_call(self, key: str) -> None:
        """Record the intent of an announced call. It is durable when this returns, and the tool may run.

        Call it before each attempt, as late as possible: a call that was interrupted before has not run, and one that was
        interrupted after it may have run. A call has one intent however often it is attempted.

        Args:
            key: the key of the call.

        Raises:
            ClaimLost: the claim on the execution is lost; the tool must not run.
            JournalError: the intent cannot be written; the tool must not run.
        """

    @abstractmethod
    async def record_outcome(self, outcome: ToolExecution | PendingCall, stop: StopSignal | None = None) -> None:
        """Record how a call ended, or that its tool suspended it; it is durable when this returns.

        The intent of a call that ended without having begun is recorded together with its outcome.

        Args:
            outcome: the outcome, or the suspended call.
            stop: the stop that the tool requested with its outcome.

        Raises:
            JournalError: it cannot be written.
        """

    @abstractmethod
    def attach(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Store extra JSON with the outcome of a running call; `attachment` returns it when the outcome is reused.

        Args:
            key: the key of the call.
            name: the name of the attachment; a second one of the same name replaces the first.
            data: plain JSON data.
        """

    @abstractmethod
    async def record_attachment(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Store extra JSON with the attempt of a call that runs; it is durable when this returns.

        When the call is interrupted, `attachment` returns it to the process that recovers the call. The next attempt, and the
        outcome, are stored without it.

        Args:
            key: the key of the call, which has begun.
            name: the name of the attachment; a second one of the same name replaces the first.
            data: plain JSON data.

        Raises:
            JournalError: it cannot be written.
        """

    @abstractmethod
    def attachment(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return an attachment of a reused outcome, or of the attempt that was interrupted or runs; None when there is none."""


class MessageLog(ABC):
    """Records the messages that are sent to a running execution, and which step took each of them."""

    @abstractmethod
    def waiting_messages(self) -> Sequence[Message]:
        """Return the messages that were sent before an interruption and that no step had taken, in order."""

    @abstractmethod
    def taken_messages(self) -> Sequence[Message]:
        """Return the messages that the interrupted step had taken, in order."""

    @abstractmethod
    def record_sent(self, message: Message, command: ExecutionCommand | None = None) -> None:
        """Record a message that was sent to the execution; it becomes durable soon, without further calls.

        Args:
            message: the message.
            command: the command that brought it, whose id is recorded with it; None for a message of this process.
        """

    def delivered_commands(self) -> Collection[str]:
        """Return the ids of the commands whose messages are recorded, so that none is delivered twice."""
        return ()

    @abstractmethod
    def record_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Record the messages that a step takes."""


class LifecycleLog(ABC):
    """Records the states of an execution from its start to its end."""

    @property
    @abstractmethod
    def has_started(self) -> bool:
        """Whether the start of the execution is recorded."""

    @property
    @abstractmethod
    def is_in_step(self) -> bool:
        """Whether inferences or calls of an incomplete step are recorded; what happens now happens after them."""

    @property
    def inference_count(self) -> int | None:
        """The number of requests that were sent before the execution was reopened; None if it was not reopened."""
        return None

    @property
    def other_inference_count(self) -> int:
        """How many of these were sent to models other than the driver's own; by default none."""
        return 0

    @property
    def earlier_context(self) -> Mapping[str, str]:
        """What was current when an earlier run recorded the start of the execution, as texts by name; by default nothing."""
        return {}

    def note_context(self, carrier: Mapping[str, str]) -> None:  # noqa: B027  # a log without a journal drops it
        """Take what is current, such as a trace, to be recorded with the start of the execution; by default dropped.

        Args:
            carrier: texts by name, as a header of HTTP would have them.
        """

    @abstractmethod
    def on_claim_lost(self, listener: Callable[[ClaimLost], None]) -> None:
        """Call a function in the event loop, at most once, when the claim on the execution is lost.

        Args:
            listener: the function; it gets the error with which the run has to end.
        """

    @abstractmethod
    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that started before an interruption and that no step has settled, in order."""

    @abstractmethod
    async def start(self, state: AgentState) -> AgentState:
        """Record the state with which the execution starts or resumes; it is durable when this returns.

        Returns:
            The state with which the execution continues: this one, or, if it contains a step that was interrupted, the
            newest recorded one. What is recorded of the interrupted step is reused.

        Raises:
            JournalConflict: another writer drives the execution, or its id is in use.
            JournalError: the state cannot be written.
        """

    @abstractmethod
    async def record_step(self, state: AgentState) -> None:
        """Record the state after a step. It is durable before the next call runs, or the execution ends."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until all records are durable.

        Raises:
            JournalError: they cannot be written.
        """

    @abstractmethod
    async def end(self, state: AgentState) -> None:
        """Record the state with which the execution ends or is suspended; it is durable when this returns.

        Raises:
            JournalError: the state cannot be written.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Release the execution, so that another writer can drive it. Idempotent."""


class ExecutionLog(CallLog, MessageLog, LifecycleLog):
    """The three logs of one execution in one object, as the loop composes them."""


@frozen(eq=False, repr=False, kw_only=True)
class JournalSettings(Value):
    """How an execution and the executions that serve its calls are recorded.

    Attributes:
        journal: where they are recorded; None when they are not.
        in_doubt: what happens to interrupted calls with an effect whose tool cannot tell whether they ran.
        answers: answers calls in place of their tools; None when every tool runs.
        claims: the claims under which the execution runs: its own, and those of the executions whose calls it serves.
    """

    journal: CanJournal | None
    in_doubt: InDoubt
    answers: CanAnswerCalls | None
    claims: tuple[Claim, ...] = ()


class CanAnswerCalls(ABC):
    """Answers calls in place of their tools, for an execution and the executions that serve its calls."""

    @abstractmethod
    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer | Awaitable[CallAnswer | None] | None:
        """Return the outcome of a call, or an awaitable of it; None when its tool has to run.

        It is called for concurrent calls in the order in which they arrive.

        Args:
            intent: the call.
            delegates: whether its tool is an agent, whose own calls are answered one by one.
        """


@frozen(eq=False, repr=False)
class CallAnswer(Value):
    """The outcome of a call whose tool does not run.

    Attributes:
        execution: the outcome.
        how: `reused`, `simulated` or `forbidden`.
        source: the key of the call that the outcome was taken from; empty when it is of no other call.
        attachments: extra JSON to record with the outcome, by name.
    """

    execution: ToolExecution
    how: str
    source: str = ""
    attachments: Mapping[str, Any] = field(factory=dict)
