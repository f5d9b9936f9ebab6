"""The contracts of what an execution writes down while it runs, and reads when it goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.records import CallIntent, InDoubt, RecordedCall, RecordedInference
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolExecution
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class CallAnswer(Value):
    """What comes of a call whose tool is not run.

    Attributes:
        execution: the outcome.
        how: `reused`, `simulated` or `forbidden`.
        source: the key of the call whose outcome it is, when it is that of another one; else empty.
    """

    execution: ToolExecution
    how: str
    source: str = ""


class CanAnswerCalls(ABC):
    """Answers calls in place of their tools.

    It answers for an execution and for the agents that serve its calls, at once.
    """

    @abstractmethod
    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer | None:
        """Return what is to come of a call; None when its tool is to run.

        Calls that come at the same time are answered in the order in which they come.

        Args:
            intent: the call.
            delegates: whether its tool is an agent, whose own calls are answered like this.
        """


Offer: TypeAlias = Callable[[InferenceRequest], InferenceRequest]
"""Returns a request as the model gets it, where a driver puts it in its own way; pure."""


class ExecutionLog(ABC):
    """Where inferences and tool calls are written down, and found again by those who go on with an execution.

    It stands outermost around both: what is recorded is not done again, and however often a call is tried inside, it has one
    intent. Drivers and executors find it as `ExecutionScope.log`; there is none without a journal.
    """

    @property
    @abstractmethod
    def journal(self) -> CanJournal | None:
        """Where it is kept, for agents that serve calls of this execution; None when they are not to keep one."""

    @property
    @abstractmethod
    def in_doubt(self) -> InDoubt:
        """What becomes of interrupted calls with an effect that cannot be asked about."""

    @property
    @abstractmethod
    def answers(self) -> CanAnswerCalls | None:
        """What answers calls in place of their tools, also those of agents that serve calls of this execution."""

    @abstractmethod
    def next_inference(self, request: InferenceRequest, offer: Offer | None = None) -> RecordedInference | None:
        """Return what came of the next inference of the step; None when it has to be made.

        It is called before each inference, and `note_inference` after each that was made.

        Args:
            request: what is to be asked.
            offer: makes of it what the model gets; None when that is the same.

        Raises:
            AskedAnew: when it has to be made, and calls of the step have begun for another answer; the loop settles them.
        """

    @abstractmethod
    def note_inference(
        self, request: InferenceRequest, recorded: RecordedInference, offer: Offer | None = None
    ) -> None:
        """Write down what came of an inference. It lasts before anything is done about it.

        Args:
            request: what was asked.
            recorded: what came of it.
            offer: makes of the request what the model got; None when that was the same.
        """

    @abstractmethod
    def recorded_call(self, key: str) -> RecordedCall | None:
        """Return what is known of a call of the step that has begun before; None when it has not."""

    @abstractmethod
    async def next_call(self, intent: CallIntent, *, delegates: bool = False) -> RecordedCall | None:
        """Return what is to come of a call that is not to run although it has not begun; None when it is to run.

        It is called before each intent.

        Args:
            intent: the call.
            delegates: whether its tool is an agent, whose own calls are asked about like this.
        """

    @abstractmethod
    async def note_intent(self, intent: CallIntent) -> None:
        """Write down that a call is about to run; it lasts when this returns.

        Raises:
            JournalError: when it cannot be written; then the call must not run.
        """

    @abstractmethod
    async def note_outcome(self, execution: ToolExecution, stop: StopSignal | None = None) -> None:
        """Write down what came of a call, and the stop that its tool asked for; it lasts when this returns.

        Raises:
            JournalError: when it cannot be written.
        """

    @abstractmethod
    async def note_suspended(self, pending: PendingCall) -> None:
        """Write down that the tool of a call has suspended it; it lasts when this returns.

        Raises:
            JournalError: when it cannot be written.
        """

    @abstractmethod
    def note_beside(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Keep, with the end of a call, what those around it have to know where that is used again; it is written down with it.

        Args:
            key: the call, which is running.
            name: who keeps it.
            data: plain JSON data.
        """

    @abstractmethod
    def beside(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return what was kept with the end of a call; None when nothing was, or when the call has run now."""


class RunLog(ExecutionLog):
    """The log as the loop uses it."""

    @abstractmethod
    async def begin(self, state: AgentState) -> None:
        """Take the state with which the execution begins or goes on; it lasts when this returns.

        Raises:
            JournalConflict: when somebody else drives the execution, or its id is taken.
            JournalError: when it cannot be written.
        """

    @abstractmethod
    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that had begun when the execution was interrupted and that no step has settled, in order."""

    @abstractmethod
    def taken_messages(self) -> Sequence[Message]:
        """Return the messages that the next step had taken when it was interrupted."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether anything is written down."""

    @property
    @abstractmethod
    def is_in_step(self) -> bool:
        """Whether anything is recorded of a step that is not complete: what comes now comes after it."""

    @abstractmethod
    def waiting_messages(self) -> Sequence[Message]:
        """Return the messages that were sent and that no step had taken when the execution was interrupted."""

    @abstractmethod
    def note_sent(self, message: Message) -> None:
        """Write down a message that was sent to the execution."""

    @abstractmethod
    def note_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Write down the messages that a step takes."""

    @abstractmethod
    async def step_completed(self, state: AgentState) -> None:
        """Write down what a step has made of the state. It lasts before the next call runs, or the execution ends."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything that was written down lasts.

        Raises:
            JournalError: when it cannot be written.
        """

    @abstractmethod
    async def end(self, state: AgentState) -> None:
        """Write down the state with which the execution ends or is suspended; it lasts when this returns.

        Raises:
            JournalError: when it cannot be written.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let others go on with the execution; more than once does nothing."""
