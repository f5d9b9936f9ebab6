"""Records of inferences: a response that an interrupted execution received is used again, and a new response is recorded."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from attrs import define, field

from agentloop import events as event_classes
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer, FailedAttempt
from agentloop.contracts.can_use_mode import CanRenderRequest
from agentloop.contracts.run_log import CallLog
from agentloop.drivers.driver import StepDraft
from agentloop.events.bus import emit
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.records import RecordedAttempt, RecordedInference, rebuild_error
from agentloop.values.reprs import ShownByField
from agentloop.values.stop import AgentStop, StopSignal
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ErrorInfo


class CanSendRequest(Protocol):
    """An inference that is recorded."""

    @property
    def usage(self) -> Usage:
        """The tokens of its responses so far."""

    async def send(self, request: InferenceRequest) -> InferenceResponse:
        """Send the request, and add the tokens of the response to the step.

        Raises:
            Exception: whatever the model or an interceptor raises.
        """


class CanRecordInference(Protocol):
    """Records one inference of a step, or answers it; `InferenceRecording`, or what is laid around it."""

    async def run(self, request: InferenceRequest, call: CanSendRequest) -> InferenceResponse:
        """Return the recorded response, or send the request and record the result."""

    def note_failure(self) -> None:
        """Note that an attempt has failed now."""

    def add_failed_attempt(self, failed: FailedAttempt) -> None:
        """Keep an attempt that is repeated, for the record."""


@define(eq=False, repr=False, kw_only=True)
class InferenceRecording(ShownByField):
    """Records one inference of a step, or answers it from what is recorded.

    Attributes:
        log: records the result.
        draft: the step.
        inference: the model, as it is called.
        events: the bus of the execution.
        clock: the source of the times that are recorded.
        is_other: whether the model is another one than the driver's own.
        is_provisional: whether interceptors may still replace the response.
    """

    log: CallLog
    draft: StepDraft
    inference: CanInfer
    events: CanHandleEvents
    clock: Clock
    is_other: bool
    is_provisional: bool
    _failed_at: datetime | None = field(default=None, init=False)  # None once the failed attempt is repeated
    _failed_attempts: list[RecordedAttempt] = field(factory=list, init=False)

    async def run(self, request: InferenceRequest, call: CanSendRequest) -> InferenceResponse:
        """Return the recorded response of an interrupted execution, or send the request and record the result.

        Raises:
            Exception: the recorded error, or whatever the request raises.
            InferenceNotRecorded: as for `CallLog.next_inference`.
            ClaimLost: as for `CallLog.next_inference`.
        """
        inference = self.inference
        render = inference.render_request if isinstance(inference, CanRenderRequest) else None
        reused = self.log.next_inference(request, render)
        if reused is not None:
            return await self._reuse(reused)
        sent_before, started_at = self.draft.inferences, self.clock.now()

        def record(response: InferenceResponse | None, error: ErrorInfo | None, stop: StopSignal | None) -> None:
            recorded = RecordedInference(
                response=response,
                error=error,
                usage=call.usage,
                requests=self.draft.inferences - sent_before,
                is_other=self.is_other,
                stop=stop,
                started_at=started_at,
                failed_attempts=self._failed_attempts,
                is_provisional=response is not None and self.is_provisional,
            )
            self.log.record_inference(request, recorded, render)

        try:
            response = await call.send(request)
        except Exception as error:
            record(None, ErrorInfo.of(error), error.signal if isinstance(error, AgentStop) else None)
            raise
        record(response, None, None)
        return response

    def note_failure(self) -> None:
        """Note that an attempt has failed now. The time until it is repeated counts as its delay."""
        self._failed_at = self.clock.now()

    def add_failed_attempt(self, failed: FailedAttempt) -> None:
        """Keep an attempt that is repeated, for the record."""
        failed_at, self._failed_at, now = self._failed_at, None, self.clock.now()
        # An attempt whose failure was not noted has failed just now, and its delay is still to come.
        delay = failed.delay if failed_at is None else (now - failed_at).total_seconds()
        error = ErrorInfo.of(failed.error)
        self._failed_attempts.append(
            RecordedAttempt(error=error, failed_at=failed_at or now, delay=delay, instead=failed.instead)
        )

    async def _reuse(self, recorded: RecordedInference) -> InferenceResponse:
        draft, response = self.draft, recorded.response
        draft.add_requests(recorded.requests, is_other=self.is_other)
        if response is None:
            draft.ledger.add_usage(recorded.usage)
            raise rebuild_error(recorded.error)
        draft.add_response(response, recorded.usage)
        await emit(self.events, event_classes.InferenceReused, draft.state, response)
        return response
