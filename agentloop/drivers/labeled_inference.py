"""What a model has read before it answers: the label of each response, and so of each decision to make a call."""

from __future__ import annotations

from attrs import evolve, frozen

from agentloop.contracts.can_infer import FailedAttempt
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import StepDraft
from agentloop.drivers.recorded_inference import CanRecordInference, CanSendRequest
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.labels import CLEAN, UNKNOWN, Label
from agentloop.values.messages import Message, label_of_parts
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState
from agentloop.values.value import starts_with


class ConversationLabel:
    """Joins the labels of what the models of one execution have read, each message once. The label never shrinks.

    Attributes:
        label: who had a part in what was read so far.
    """

    __slots__ = ("_messages", "_requested", "label")

    def __init__(self) -> None:
        self.label: Label = CLEAN
        self._messages: tuple[Message, ...] = ()
        self._requested: tuple[Message, ...] = ()

    def see_state(self, state: AgentState) -> None:
        """Add the conversation of a state, also what a request leaves out: the model may have written after it."""
        messages, known = state.context.messages, self._messages
        first = len(known) if state.context.continues(known) else 0
        for message in messages[first:]:
            self.label |= message.origin
        self._messages = messages

    def see_request(self, request: InferenceRequest, state: AgentState) -> None:
        """Add the messages of a request. One that is not of the conversation, and has no label, is of unknown origin."""
        messages, requested = state.context.messages, request.messages
        if requested is messages or requested == messages:
            return
        first = len(self._requested) if starts_with(requested, self._requested, None) else 0
        of_conversation = set(map(id, messages))
        for message in requested[first:]:
            if id(message) not in of_conversation:
                is_labeled = message.label is not None or message.exchanges
                self.label |= message.origin if is_labeled else UNKNOWN
        self._requested = requested

    def see_response(self, response: InferenceResponse) -> None:
        """Add what the provider of the model has fetched for a response, and what a recorded response was labeled with."""
        self.label |= label_of_parts(response.parts)
        if response.label is not None:
            self.label |= response.label


def _keep(_: ConversationLabel) -> None:
    """Close nothing."""


@frozen(eq=False, repr=False)
class LabeledInference(ShownByField):
    """One inference of a step, whose response has the label of what the model had read, also in its record.

    Attributes:
        draft: the step.
        seen: what the models of the execution have read.
        recording: records the inference, or answers it from what is recorded; None without a journal.
    """

    draft: StepDraft
    seen: ConversationLabel
    recording: CanRecordInference | None

    @classmethod
    def of(cls, draft: StepDraft, recording: CanRecordInference | None, scope: ExecutionScope) -> LabeledInference:
        """Return what labels the response of an inference."""
        return cls(draft, scope.local_resources.open(ConversationLabel, ConversationLabel, _keep), recording)

    async def run(self, request: InferenceRequest, call: CanSendRequest) -> InferenceResponse:
        """Send a request, or answer it from what is recorded, and return the response with its label.

        Raises:
            Exception: as for `InferenceRecording.run`.
        """
        self.seen.see_request(request, self.draft.state)
        if self.recording is None:
            return self.label(await call.send(request))
        return self.label(await self.recording.run(request, _LabelingSender(self, call)))

    def label(self, response: InferenceResponse) -> InferenceResponse:
        """Return a response with the label of what its model has read."""
        seen = self.seen
        seen.see_state(self.draft.state)
        seen.see_response(response)
        self.draft.ledger.label = seen.label
        return response if response.label == seen.label else evolve(response, label=seen.label)

    def note_failure(self) -> None:
        """Note that an attempt has failed now."""
        if self.recording is not None:
            self.recording.note_failure()

    def add_failed_attempt(self, failed: FailedAttempt) -> None:
        """Keep an attempt that is repeated, for the record."""
        if self.recording is not None:
            self.recording.add_failed_attempt(failed)


@frozen(eq=False)
class _LabelingSender:
    """Sends a request; its response has a label before it is recorded."""

    inference: LabeledInference
    call: CanSendRequest

    @property
    def usage(self) -> Usage:
        """The tokens of the responses so far."""
        return self.call.usage

    async def send(self, request: InferenceRequest) -> InferenceResponse:
        """Send the request.

        Raises:
            Exception: whatever the model or an interceptor raises.
        """
        return self.inference.label(await self.call.send(request))
