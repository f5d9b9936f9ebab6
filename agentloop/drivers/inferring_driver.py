"""What drivers that ask a model have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from attrs import define, evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptOutputCheck, OutputCheck
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer, CanReportRetries, FailedAttempt
from agentloop.contracts.can_use_mode import CanRenderRequest
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import CallLog
from agentloop.drivers.driver import Driver, StepDraft
from agentloop.errors import ContractViolation, InvalidResponse
from agentloop.events.inference import (
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    TokenUsageReported,
)
from agentloop.events.tool_calls import InferenceReused
from agentloop.interception.stack import InterceptorStack
from agentloop.values.inference import (
    DEFAULT_OPTIONS,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    ToolChoice,
    Usage,
)
from agentloop.values.messages import Message
from agentloop.values.points import AfterInference, AroundInference, BeforeInference
from agentloop.values.records import RecordedInference, recorded_error
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.tool_calls import ErrorInfo


@frozen(kw_only=True)
class InferringDriver(Driver, CanAcceptOutputCheck):
    """A driver that asks a model: every inference passes the interceptor points and emits the events.

    Attributes:
        inference: the model.
        streaming: whether answers are taken while they are written, so that `InferenceDeltaReceived` tells their pieces; what
            comes of a run is the same.
        final_inference: the model that gives the final answer, after the other has decided that nothing is left to be called;
            None for the same one.
        output_check: reads final answers, when they have a form; a loop with an `output_type` binds it.
        tool_choice: whether and which tool the model has to call.
        parallel_tool_calls: whether several calls may come in one answer; None leaves it to the provider.
        options: model, sampling and limits of every inference.
        max_retries: how often the model is asked again in one step when its answer cannot be used, by a driver that does so.
    """

    inference: CanInfer = field(kw_only=False)
    streaming: bool = False
    final_inference: CanInfer | None = None
    output_check: OutputCheck | None = field(default=None, repr=False)
    tool_choice: ToolChoice = field(factory=ToolChoice.auto)
    parallel_tool_calls: bool | None = None
    options: InferenceOptions = DEFAULT_OPTIONS
    max_retries: int = field(default=2, validator=ge(0))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses this clock, these ids and these resources, and whose model does too."""
        bound = super().with_execution_scope(scope)
        final = self.final_inference
        return evolve(
            bound,
            inference=_bound(self.inference, scope),
            final_inference=None if final is None else _bound(final, scope),
        )

    def with_output_check(self, check: OutputCheck) -> Self:
        """Return a copy that asks again for a final answer which the check refuses."""
        return evolve(self, output_check=check)

    def asked_as(self, inference: CanInfer) -> CanInfer:
        """Return a model as it is asked; a driver that speaks to it in its own way wraps it here."""
        return inference

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        """Return what the model is asked."""
        context = draft.state.context
        return InferenceRequest(
            tuple(messages),
            context.system_prompt,
            self.tools.specs,
            self.tool_choice,
            self.parallel_tool_calls,
            context.response_format,
            self.options,
        )

    async def infer(
        self, draft: StepDraft, request: InferenceRequest, *, inference: CanInfer | None = None
    ) -> InferenceResponse:
        """Ask the model through the points `before_inference`, `around_inference` and `after_inference`.

        Args:
            draft: the step; its state becomes what the interceptors made of it, and the tokens are counted in it: those of
                every time the model was asked, and what an interceptor's own answer says it used.
            request: what to ask.
            inference: another model to ask.

        Returns:
            The response, final.

        Raises:
            Exception: whatever the inference or an interceptor raises.
        """
        asked = self.asked_as(inference or self.inference)
        asking = InferenceCall(draft, asked, self.interceptor, self.events, self.streaming, self.scope.log)
        return await asking.ask(request)


def _bound(inference: CanInfer, scope: ExecutionScope) -> CanInfer:
    return inference.with_execution_scope(scope) if isinstance(inference, CanAcceptExecutionScope) else inference


@define(eq=False)
class Counter:
    """The number of the attempt that is being made, from 1."""

    number: int = 1


@frozen(eq=False)
class InferenceCall:
    """One inference of a step on its way.

    Attributes:
        draft: the step; its state becomes what the interceptors make of it, and tokens are counted in it.
        inference: the model.
        interceptor: the points.
        events: the bus.
        streaming: whether the answer is taken in pieces.
        log: where it is written down what came of it; None for nowhere.
    """

    draft: StepDraft
    inference: CanInfer
    interceptor: InterceptorStack
    events: CanHandleEvents
    streaming: bool = False
    log: CallLog | None = None
    _attempt: Counter = field(factory=Counter, init=False)

    async def ask(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model inside of the points, and return its answer, final.

        Raises:
            Exception: whatever the inference or an interceptor raises.
        """
        draft, response = self.draft, None
        if self.interceptor.handles(BeforeInference):
            before = await self.interceptor.handle(BeforeInference(draft.state, request))
            draft.state, request, response = before.state, before.request, before.response
        try:
            if response is None:
                response = await self._asked_once(request)
            else:
                draft.count(response)
            if self.interceptor.handles(AfterInference):
                after = await self.interceptor.handle(AfterInference(draft.state, request, response))
                draft.state, response = after.state, after.response
            draft.response = response
        except BaseException as error:
            if self.events.due(InferenceFailed):
                await self.events.emit(InferenceFailed(self.events.head(draft.state), ErrorInfo.of(error)))
            raise
        await self._tell_response(response)
        return response

    async def _asked_once(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model, unless it was asked before the execution was interrupted; what comes of it is written down."""
        if self.log is None:
            return await self._asked(request)
        offer = self.inference.offered if isinstance(self.inference, CanRenderRequest) else None
        recorded = self.log.next_inference(request, offer)
        if recorded is not None:
            return await self._reused(recorded)
        draft = self.draft
        before, draft.usage = draft.usage, NO_USAGE
        try:
            response = await self._asked(request)
        except Exception as error:
            self.log.record_inference(request, RecordedInference(error=ErrorInfo.of(error), usage=draft.usage), offer)
            raise
        else:
            self.log.record_inference(request, RecordedInference(response=response, usage=draft.usage), offer)
        finally:
            draft.usage = _sum(before, draft.usage)
        return response

    async def _reused(self, recorded: RecordedInference) -> InferenceResponse:
        draft, response = self.draft, recorded.response
        draft.usage = _sum(draft.usage, recorded.usage)
        if response is None:
            raise recorded_error(recorded.error)
        draft.response = response
        if self.events.due(InferenceReused):
            await self.events.emit(InferenceReused(self.events.head(draft.state), response))
        return response

    async def _asked(self, request: InferenceRequest) -> InferenceResponse:
        draft = self.draft
        if self.events.due(InferenceRequestStarted):
            await self.events.emit(InferenceRequestStarted(self.events.head(draft.state), request))
        inference = self.inference
        if isinstance(inference, CanReportRetries):
            inference = inference.with_retry_report(lambda failed: self._tell_retry(draft.state, failed))
        if self.interceptor.handles(AroundInference):
            return await self._asked_inside(request, inference)
        response = await self._answered(request, inference)
        draft.count(response)
        return response

    async def _asked_inside(self, request: InferenceRequest, inference: CanInfer) -> InferenceResponse:
        """Ask inside of the layers; each time that one of them proceeds is an inference and counts."""
        draft = self.draft
        counted = draft.usage
        failed: list[Exception] = []

        async def proceed() -> InferenceResponse:
            if failed:
                self._tell_retry(draft.state, FailedAttempt(self._attempt.number, failed.pop(), 0.0))
            try:
                response = await self._answered(request, inference)
            except Exception as error:
                failed[:] = [error]
                raise
            draft.count(response)
            return response

        response = await self.interceptor.around(AroundInference(draft.state, request), proceed)
        if draft.usage is counted:
            draft.count(response)
        return response

    async def _answered(self, request: InferenceRequest, inference: CanInfer) -> InferenceResponse:
        if not self.streaming:
            return _answer(await inference.infer(request), inference)
        stream = inference.stream(request)
        try:
            async for piece in stream:
                if isinstance(piece, InferenceResponse):
                    return piece
                if not isinstance(piece, InferenceDelta):
                    raise ContractViolation(f"{_what(inference)} streamed {_what(piece)}; stream gives InferenceDelta")
                if self.events.due(InferenceDeltaReceived):
                    head = self.events.head(self.draft.state)
                    await self.events.emit(InferenceDeltaReceived(head, piece.with_attempt(self._attempt.number)))
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        raise InvalidResponse(f"the stream of {type(inference).__name__} ended without a response")

    async def _tell_response(self, response: InferenceResponse) -> None:
        draft, events = self.draft, self.events
        if events.due(InferenceResponseReceived):
            await events.emit(InferenceResponseReceived(events.head(draft.state), response))
        if events.due(TokenUsageReported):
            total = draft.state.usage + draft.usage
            await events.emit(TokenUsageReported(events.head(draft.state), response.usage, total))

    def _tell_retry(self, state: AgentState, failed: FailedAttempt) -> None:
        self._attempt.number += 1
        if self.events.due(InferenceRetried):
            head = self.events.head(state)
            told = ErrorInfo.of(failed.error)
            self.events.emit_soon(InferenceRetried(head, self._attempt.number - 1, told, failed.delay, failed.instead))


def _answer(response: object, inference: CanInfer) -> InferenceResponse:
    if not isinstance(response, InferenceResponse):
        raise ContractViolation(f"{_what(inference)} returned {_what(response)}; infer returns an InferenceResponse")
    return response


def _sum(one: Usage, other: Usage) -> Usage:
    if one is NO_USAGE:
        return other
    return one if other is NO_USAGE else one + other


def _what(value: object) -> str:
    return "None" if value is None else type(value).__name__
