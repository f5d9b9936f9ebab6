"""What a log does that writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.contracts.can_answer_calls import CanAnswerCalls
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.execution_log import Offer, RunLog
from agentloop.values.in_doubt import InDoubt
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.message import Message
from agentloop.values.pending_call import PendingCall
from agentloop.values.recorded import RecordedCall, RecordedInference
from agentloop.values.stop import StopSignal
from agentloop.values.tool_execution import ToolExecution


class QuietLog(RunLog):
    """A log in which nothing is written down; what it gives is up to a subclass."""

    @property
    def journal(self) -> CanJournal | None:
        """None: nothing is written."""
        return None

    @property
    def in_doubt(self) -> InDoubt:
        """What becomes of calls in doubt; none is, since none runs."""
        return InDoubt.TELL

    @property
    def answers(self) -> CanAnswerCalls | None:
        """None: all calls are answered by what is recorded."""
        return None

    async def flush(self) -> None:
        """Do nothing: nothing is written."""

    async def aclose(self) -> None:
        """Do nothing: nothing is held."""

    # --- messages -----------------------------------------------------------------------------------------------

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return none: nothing was interrupted."""
        return ()

    def taken_messages(self) -> Sequence[Message]:
        """Return nothing: messages come by the inbox."""
        return ()

    @property
    def has_begun(self) -> bool:
        """Say so."""
        return True

    @property
    def is_in_step(self) -> bool:
        """Say no: messages come when they came."""
        return False

    def waiting_messages(self) -> Sequence[Message]:
        """Return nothing: messages come by the inbox."""
        return ()

    def note_sent(self, message: Message) -> None:
        """Do nothing."""

    def note_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Do nothing: what they make of the state is compared."""

    def note_inference(
        self, request: InferenceRequest, recorded: RecordedInference, offer: Offer | None = None
    ) -> None:
        """Do nothing: no inference is made."""

    def recorded_call(self, key: str) -> RecordedCall | None:  # noqa: ARG002  # of the contract
        """Return None, so that a call passes the points before it as it did."""
        return None

    def note_beside(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Do nothing: no tool has run."""

    async def note_outcome(self, execution: ToolExecution, stop: StopSignal | None = None) -> None:
        """Do nothing: no tool has run."""

    async def note_suspended(self, pending: PendingCall) -> None:
        """Do nothing: no tool has run."""
