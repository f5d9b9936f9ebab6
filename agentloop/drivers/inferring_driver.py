"""The base of drivers that call a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Self, TypeVar

from attrs import define, evolve, field, frozen
from attrs.validators import optional

from agentloop import events as event_classes
from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptOutputCheck, OutputCheck
from agentloop.contracts.can_execute_tool_calls import CanStartCallsEagerly
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import (
    CanCombineModels,
    CanInfer,
    CanNameModel,
    CanReportDelays,
    CanReportOmissions,
    CanReportRetries,
    CanReportRoutes,
    ChosenModel,
    DelayedRequest,
    FailedAttempt,
    LeftOutTool,
)
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import CallLog
from agentloop.drivers.driver import Driver, InferenceExchange, StepDraft
from agentloop.drivers.eager_start import EagerStart
from agentloop.drivers.mode_choices import with_mode_choice
from agentloop.drivers.recorded_inference import CanRecordInference, InferenceRecording
from agentloop.drivers.rejections import (
    Rejection,
    ResponseCheck,
    check_end,
    emit_rejection,
    missing_call,
    reject_calls,
    reject_repeated_effects,
    retry_request,
)
from agentloop.errors import ContractViolation, ForeignCancellation, IncompleteAnswer, InvalidOutput, InvalidResponse
from agentloop.events.bus import emit, emit_soon
from agentloop.events.operations import enter_operation
from agentloop.interception.stack import InterceptorStack
from agentloop.tools.fitting import fit_ahead
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.event import OperationKind
from agentloop.values.inference import (
    DEFAULT_OPTIONS,
    FinishReason,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    ModeChoice,
    ToolChoice,
    Usage,
    options_of,
    tool_choice_of,
    within_bounds,
)
from agentloop.values.json import JsonObject
from agentloop.values.messages import Message
from agentloop.values.points import AfterInference, AroundInference, BeforeInference, StatePoint
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolStatus
from agentloop.values.value import at_least, instance_of

S = TypeVar("S", bound=StatePoint)


@frozen(eq=False, repr=False, kw_only=True)
class InferringDriver(Driver, CanAcceptOutputCheck, CanNameTools):
    """A driver that calls a model. Every inference passes the interceptor points and emits events.

    Attributes:
        inference: the model.
        streaming: whether responses are streamed. With True, the driver emits one `InferenceDeltaReceived` per chunk; the result
            of the execution is the same. An execution whose answers are read while they are written streams in any case.
        final_inference: the model that gives the final answer, after `inference` has decided to call no more tools; None for
            the same model.
        output_check: validates final answers, if they have a type; a loop with an `output_type` binds it.
        tool_choice: whether, and which, tool the model must call: `auto`, `required`, `none` or a `ToolChoice`. A call that it
            does not allow is rejected. An answer in place of a required call is rejected, and after the last retry the execution
            fails.
        reset_tool_choice: whether a required call is required only until it was made in the execution, so that the model can
            answer afterwards; with False it is required in every step.
        parallel_tool_calls: whether a response may contain several calls; None for the provider's default. With False, all
            calls of a response but the first are rejected.
        options: model, sampling and limits of every inference: an `InferenceOptions`, or its attributes as a mapping.
        max_retries: how often the model may be called again in one step because its response cannot be used.
    """

    inference: CanInfer = field(validator=instance_of(CanInfer), kw_only=False)
    streaming: bool = field(default=False, validator=instance_of(bool))
    final_inference: CanInfer | None = field(default=None, validator=optional(instance_of(CanInfer)))
    output_check: OutputCheck | None = field(default=None, repr=False)
    tool_choice: ToolChoice = field(factory=ToolChoice.auto, converter=tool_choice_of)
    reset_tool_choice: bool = field(default=True, validator=instance_of(bool))
    parallel_tool_calls: bool | None = field(default=None, validator=optional(instance_of(bool)))
    options: InferenceOptions = field(default=DEFAULT_OPTIONS, converter=options_of)
    max_retries: int = field(default=2, validator=at_least(0))
    # Created anew for each copy, so that executions do not share what was announced.
    _announced_models: set[str] = field(factory=set, repr=False, init=False, eq=False)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy with this clock, these ids and these resources, also for its models."""
        bound = super().with_execution_scope(scope.without_inferences())
        final = self.final_inference
        return evolve(
            bound,
            inference=_bind(self.inference, scope),
            streaming=self.streaming or scope.is_read,
            final_inference=None if final is None else _bind(final, scope.for_another_model()),
        )

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tool that the model must call."""
        choice = self.tool_choice
        if choice.kind != "specific":
            return []
        return [ToolReference(f"{type(self).__name__}(tool_choice=…)", choice.name, remedy="")]

    def with_output_check(self, check: OutputCheck) -> Self:
        """Return a copy that retries final answers which the check rejects."""
        return evolve(self, output_check=check)

    def wrap_inference(self, inference: CanInfer, state: AgentState) -> CanInfer:  # noqa: ARG002  # for drivers with modes
        """Return the model as it is called; override it to translate requests and responses."""
        return inference

    def wrap_models(self, inference: CanInfer, state: AgentState) -> CanInfer:
        """Return the model as it is called; in a combination of models, each of them is wrapped."""
        if not isinstance(inference, CanCombineModels):
            return self.wrap_inference(inference, state)
        models = [self.wrap_models(model, state) for model in inference.models]
        is_changed = any(model is not bare for model, bare in zip(models, inference.models, strict=True))
        return inference.with_models(models) if is_changed else inference

    @property
    def chooses_modes(self) -> bool:
        """Whether the driver chooses the modes in which it calls models with a name."""
        return False

    def explain_mode(self, inference: CanInfer, state: AgentState) -> ModeChoice:  # noqa: ARG002  # for drivers that choose
        """Return the mode in which a model is called, and why."""
        return ModeChoice(name_of(inference), "native", "the driver calls its models directly")

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        """Return the request of a step."""
        context = draft.state.context
        return InferenceRequest(
            tuple(messages),
            context.system_prompt,
            self.tools.specs,
            self._choice(draft.state),
            self.parallel_tool_calls,
            context.response_format,
            self.options,
        )

    def _choice(self, state: AgentState) -> ToolChoice:
        """Return the tool choice of the next request."""
        choice = self.tool_choice
        if not self.reset_tool_choice or not choice.is_forced:
            return choice
        # A rejected call was not made, so the model has to make it again.
        executions = (execution for step in state.steps for execution in step.executions)
        is_made = any(choice.allows(e.name) and e.status is not ToolStatus.REJECTED for e in executions)
        return ToolChoice.auto() if is_made else choice

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        """Execute the calls of a step; those that their request does not allow, or that were cut off, are rejected."""
        if draft.exchanges:
            calls = reject_calls(calls, draft.exchanges, self.tools.specs)
            calls = reject_repeated_effects(calls, draft.state.context.messages, self.tools, self.scope.bounds)
        return await super().execute(calls, draft)

    def conclude(self, draft: StepDraft, response: InferenceResponse) -> None:
        """Make sure that an answer which did not end normally does not complete the execution.

        An answer that was cut off by the limit of its tokens stops the execution with the reason `finish_reason`. The text
        stays in the step.

        Raises:
            IncompleteAnswer: the answer was filtered, ended in an error, or ended for a reason that is not known.
            InvalidOutput: it is an answer, and its request required a call.
        """
        missing = missing_call(draft.exchanges, response)
        if missing:
            draft.parts = response.parts
            raise InvalidOutput(f"the answer of the model cannot be used: {missing}")
        reason = response.finish_reason
        if not reason.is_incomplete or response.tool_calls or response.wants_to_continue:
            return
        error = IncompleteAnswer(reason.value, response.provider_finish_reason)
        if reason is not FinishReason.LENGTH:
            draft.parts = response.parts
            raise error
        context = JsonObject(finish_reason=reason.value)
        signal = StopSignal(StopReason.FINISH_REASON, str(error), type(self).__name__, context)
        draft.state = draft.state.with_stop_signal(signal)

    async def infer(
        self, draft: StepDraft, request: InferenceRequest, *, inference: CanInfer | None = None
    ) -> InferenceResponse:
        """Call the model through the points `before_inference`, `around_inference` and `after_inference`.

        Args:
            draft: the step. Its state becomes what the interceptors make of it, and its tokens grow by those of every attempt
                and of responses that interceptors give.
            request: the request.
            inference: the model to call; None for the driver's own.

        Returns:
            The response after the interceptors.

        Raises:
            Exception: whatever the inference or an interceptor raises.
        """
        bare = inference or self.inference
        for watcher in self.interceptor.watchers:
            watcher.begin_request(bare, request, draft.state)
        await self._announce_modes(bare, draft.state)
        name, model, starter = name_of(bare), self.wrap_models(bare, draft.state), None
        if self.streaming and self._starts_calls(bare, draft.state) and isinstance(self.executor, CanStartCallsEagerly):
            starter = self.executor
        call = InferenceCall(
            draft,
            model,
            self.interceptor,
            self.events,
            self.streaming,
            starter,
            name,
            is_other=bare is not self.inference,
            bounds=self.scope.bounds,
        )
        if self.scope.log is not None:
            call.recording = self._record(call, self.scope.log)
        if self.scope.labels:
            from agentloop.drivers.labeled_inference import LabeledInference  # noqa: PLC0415  # where labels are used

            call.recording = LabeledInference.of(draft, call.recording, self.scope)
        response = await call.run(request)
        await fit_ahead(response.tool_calls, self.tools, self.scope.bounds)
        if response.quoted_calls or response.quoted_texts:
            await self.emit_quotations(draft, response)
        return response

    def _record(self, call: InferenceCall, log: CallLog) -> InferenceRecording:
        """Return what records an inference, or answers it from what is recorded."""
        return InferenceRecording(
            log=log,
            draft=call.draft,
            inference=call.inference,
            events=self.events,
            clock=self.scope.clock,
            is_other=call.is_other,
            is_provisional=AfterInference.point_name in self.interceptor.points,
        )

    async def emit_quotations(self, draft: StepDraft, response: InferenceResponse) -> None:
        """Emit what the text of a response quotes of calls.

        Args:
            draft: the step.
            response: the response, which quotes some.
        """
        quoted = response.quoted_calls, response.quoted_texts
        await emit(self.events, event_classes.QuotedCallsIgnored, draft.state, *quoted)

    async def _announce_modes(self, inference: CanInfer, state: AgentState) -> None:
        """Emit the modes of models that are called for the first time."""
        if isinstance(inference, CanCombineModels):
            for model in inference.models:
                await self._announce_modes(model, state)
            return
        name = name_of(inference)
        if name and name not in self._announced_models and self.chooses_modes:
            self._announced_models.add(name)
            # The reason is looked up only if it is observed.
            if self.events.due(event_classes.ModeChosen):
                choice = self.explain_mode(inference, state)
                await self.events.emit(event_classes.ModeChosen(self.events.head(state), choice))

    def _starts_calls(self, inference: CanInfer, state: AgentState) -> bool:  # noqa: ARG002  # for drivers with modes
        """Return whether calls start while a model streams its answer."""
        return False

    async def infer_until_valid(
        self,
        draft: StepDraft,
        request: InferenceRequest,
        inference: CanInfer,
        check: ResponseCheck,
        *,
        retry: Callable[[InferenceRequest, InferenceResponse, Rejection], InferenceRequest] = retry_request,
        check_last: bool = False,
    ) -> InferenceResponse:
        """Call a model until its response is valid, at most `max_retries` times again, and return the last response.

        A response that holds nothing but an error, such as a malformed call, is requested once more.

        Args:
            draft: the step.
            request: the first request.
            inference: the model.
            check: returns why a response cannot be used.
            retry: returns the request that follows a rejected response.
            check_last: whether the response that is not followed by a retry is checked, and its rejection emitted, too.
        """
        response = await self.infer(draft, request, inference=inference)
        for attempt in range(1, self.max_retries + 1 + check_last):
            checked = check(response)
            rejection = await checked if isinstance(checked, Awaitable) else checked
            rejection = rejection or (check_end(response) if attempt == 1 else None)
            if rejection is None:
                break
            await emit_rejection(self.events, draft.state, response, rejection, attempt=attempt)
            if attempt <= self.max_retries:
                request = retry(request, response, rejection)
                response = await self.infer(draft, request, inference=inference)
        return response


def name_of(inference: CanInfer) -> str:
    """Return the name of a model; empty if it has none."""
    return inference.model_name if isinstance(inference, CanNameModel) else ""


def _bind(inference: CanInfer, scope: ExecutionScope) -> CanInfer:
    return inference.with_execution_scope(scope) if isinstance(inference, CanAcceptExecutionScope) else inference


@define(eq=False, repr=False)
class InferenceCall(ShownByField):
    """One inference of a step.

    Attributes:
        draft: the step; its state and its tokens change with the inference.
        inference: the model, as it is called.
        interceptor: the interceptors of the execution.
        events: the bus of the execution.
        streaming: whether the response is streamed.
        starter: starts calls while the response is streamed; None to start none.
        name: the name of the model, for events; empty if it has none.
        is_other: whether the model is another one than the driver's own.
        bounds: the bounds of the execution.
        recording: records the inference, or answers it from what is recorded; None without a journal.
        usage: the tokens of the responses so far.
    """

    draft: StepDraft
    inference: CanInfer
    interceptor: InterceptorStack
    events: CanHandleEvents
    streaming: bool = False
    starter: CanStartCallsEagerly | None = None
    name: str = ""
    is_other: bool = False
    bounds: Bounds = DEFAULT_BOUNDS
    recording: CanRecordInference | None = None
    usage: Usage = field(default=NO_USAGE, init=False)
    _attempt: int = field(default=1, init=False)
    # The streamed responses with their deltas, where an interceptor wants these to be held.
    _held: list[tuple[InferenceResponse, list[InferenceDelta]]] = field(factory=list, init=False)

    async def run(self, request: InferenceRequest) -> InferenceResponse:
        """Call the model inside the interceptors, and return the response after them.

        Raises:
            Exception: whatever the inference or an interceptor raises.
        """
        draft, response = self.draft, None
        if BeforeInference.point_name in self.interceptor.points:
            before = await self._pass(BeforeInference(draft.state, request))
            request, response = before.request, before.response
        try:
            if response is None:
                for watcher in self.interceptor.watchers:
                    watcher.end_request(request)
                recording = self.recording
                response = await (self.send(request) if recording is None else recording.run(request, self))
                await self._apply_mode_choice(response)
            else:
                # An interceptor answered without a request; the tokens that its response reports count, too.
                draft.add_response(response)
            if AfterInference.point_name in self.interceptor.points:
                after = await self._pass(AfterInference(draft.state, request, response))
                response = after.response
            for delta in self._held_deltas_of(response) if self._held else ():
                await emit(self.events, event_classes.InferenceDeltaReceived, draft.state, delta)
            draft.ledger.response = response
            draft.exchanges.append(InferenceExchange(request, response, self.is_other))
        except BaseException as error:
            # Also for a cancellation: each inference that was started has one event that ends it.
            await emit(self.events, event_classes.InferenceFailed, draft.state, ErrorInfo.of(error))
            raise
        try:
            await emit(self.events, event_classes.InferenceResponseReceived, draft.state, response)
        finally:  # the usage is reported after every response, also if a listener was cancelled
            # The total is computed only if it is observed.
            if self.events.due(event_classes.TokenUsageReported):
                total = draft.state.usage + draft.usage
                if draft.ledger.extra_usage is not NO_USAGE:  # of inferences that interceptors made
                    total += draft.ledger.extra_usage
                await self.events.emit(
                    event_classes.TokenUsageReported(self.events.head(draft.state), response.usage, total)
                )
        return response

    async def _pass(self, point: S) -> S:
        """Pass a point through the interceptors, and keep the state as they left it, also if one of them raises."""
        passage = await self.interceptor.pass_layers(point)
        self.draft.state = passage.point.state
        return passage.take()

    def _held_deltas_of(self, response: InferenceResponse) -> Sequence[InferenceDelta]:
        """Return the held deltas of the response that has passed all interceptors; the deltas of other responses are dropped.

        A response whose text an interceptor replaced has none: the new text was not streamed, and the old one must not be shown.
        """
        held = [(streamed, deltas) for streamed, deltas in self._held if streamed.text == response.text]
        # A layer that has proceeded more than once may return any of the responses. Their texts may be the same, or empty.
        same = [(streamed, deltas) for streamed, deltas in held if streamed.parts == response.parts]
        return (same or held)[-1][1] if held else ()

    async def _apply_mode_choice(self, response: InferenceResponse) -> None:
        """Keep, in the state, the mode that a response has shown to suit the model; a recorded response shows it as well."""
        choice = response.mode_choice
        if choice is not None:
            self.draft.state = with_mode_choice(self.draft.state, choice)
            await emit(self.events, event_classes.ModeChosen, self.draft.state, choice)

    async def send(self, request: InferenceRequest) -> InferenceResponse:
        """Send the request through `around_inference`, and add the tokens of the response to the step.

        Raises:
            Exception: whatever the model or an interceptor raises.
        """
        state = self.draft.state
        await emit(self.events, event_classes.InferenceRequestStarted, state, request, self.name, self.streaming)
        with enter_operation(self.events, OperationKind.INFERENCE, state, self.draft.number):
            return await self._send_started(request)

    async def _send_started(self, request: InferenceRequest) -> InferenceResponse:
        inference = self.inference
        if isinstance(inference, CanReportRetries):
            inference = inference.with_retry_report(self._report_retry)
        if isinstance(inference, CanReportDelays):
            inference = inference.with_delay_report(self._report_delay)
        if request.tools and isinstance(inference, CanReportOmissions):
            inference = inference.with_omission_report(self._report_omission)
        if isinstance(inference, CanReportRoutes):
            inference = inference.with_route_report(self._report_route)
        if AroundInference.point_name in self.interceptor.points:
            return await self._send_through_layers(request, inference)
        response = await self._receive(request, inference)
        self._add_response(response)
        return response

    def _add_response(self, response: InferenceResponse) -> None:
        self.draft.add_response(response)
        self.usage = response.usage if self.usage is NO_USAGE else self.usage + response.usage

    async def _send_through_layers(self, request: InferenceRequest, inference: CanInfer) -> InferenceResponse:
        """Send the request inside the interceptors. Whenever an interceptor proceeds, a new attempt begins."""
        draft, usage_before, recording = self.draft, self.usage, self.recording
        failure: list[Exception] = []

        async def proceed() -> InferenceResponse:
            # A layer that proceeds again after an error retries the inference.
            if failure:
                self._emit_retry(FailedAttempt(self._attempt, failure.pop(), 0.0))
            try:
                response = await self._receive(request, inference)
            except Exception as error:
                failure[:] = [error]
                if recording is not None:
                    recording.note_failure()
                raise
            self._add_response(response)
            return response

        response = await self.interceptor.around(AroundInference(draft.state, request), proceed)
        # A layer that gave a response of its own has not proceeded: the tokens of that response count.
        if self.usage is usage_before:
            self._add_response(response)
        return response

    async def _receive(self, request: InferenceRequest, inference: CanInfer) -> InferenceResponse:
        self.draft.add_requests(1, is_other=self.is_other)
        try:
            return await self._infer(request, inference)
        except asyncio.CancelledError as cancelled:
            if is_task_cancelled():
                raise
            raise ForeignCancellation(f"the model {_type_name(inference)}", cancelled) from cancelled

    async def _infer(self, request: InferenceRequest, inference: CanInfer) -> InferenceResponse:
        if not self.streaming:
            return within_bounds(_require_response(await inference.infer(request), inference), self.bounds)
        stream, holds_deltas = inference.stream(request), self.interceptor.holds_deltas
        eager_start = None if self.starter is None else self._start_eagerly(request, self.starter)
        events, received = self.events, event_classes.InferenceDeltaReceived
        held: list[InferenceDelta] = []
        try:
            async for item in stream:
                if not isinstance(item, InferenceDelta):
                    if isinstance(item, InferenceResponse):
                        if holds_deltas:  # the deltas of failed attempts belong to no response
                            self._held.append((item, [delta for delta in held if delta.attempt == self._attempt]))
                        return within_bounds(item, self.bounds)
                    raise ContractViolation(
                        f"{_type_name(inference)} streamed {_type_name(item)}; stream gives InferenceDelta"
                    )
                delta = item if item.attempt == self._attempt else item.with_attempt(self._attempt)
                if eager_start is not None:
                    eager_start.feed(delta)
                if holds_deltas:
                    held.append(delta)
                else:
                    await emit(events, received, self.draft.state, delta)
        finally:
            # A stream that is not read to its end holds its connection until it is closed.
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        raise InvalidResponse(f"the stream of {_type_name(inference)} ended without a response")

    def _start_eagerly(self, request: InferenceRequest, starter: CanStartCallsEagerly) -> EagerStart | None:
        draft = self.draft
        calls = starter.eager_calls(request, draft.state)
        draft.replace_eager_calls(calls, self.events)
        return None if calls is None else EagerStart(calls)

    def _report_delay(self, request: DelayedRequest) -> None:
        delayed = (request.reason, request.ahead, request.delay)
        emit_soon(self.events, event_classes.InferenceDelayed, self.draft.state, None, *delayed)

    def _report_omission(self, tool: LeftOutTool) -> None:
        emit_soon(self.events, event_classes.ToolLeftOut, self.draft.state, None, tool.name, tool.reason)

    def _report_route(self, chosen: ChosenModel) -> None:
        self.draft.add_requests(chosen.requests, is_other=True)
        emit_soon(self.events, event_classes.ModelRouted, self.draft.state, None, chosen.name, chosen.reason)

    def _report_retry(self, failed: FailedAttempt) -> None:
        # After a fallback, the request that follows is the first one to that model.
        self.draft.add_requests(not failed.instead, is_other=self.is_other)
        self._emit_retry(failed)

    def _emit_retry(self, failed: FailedAttempt) -> None:
        if self.recording is not None:
            self.recording.add_failed_attempt(failed)
        error, instead = ErrorInfo.of(failed.error), failed.instead
        retried = (self._attempt, error, failed.delay, instead)
        emit_soon(self.events, event_classes.InferenceRetried, self.draft.state, None, *retried)
        self._attempt += 1


def _require_response(response: object, inference: CanInfer) -> InferenceResponse:
    if not isinstance(response, InferenceResponse):
        raise ContractViolation(
            f"{_type_name(inference)} returned {_type_name(response)}; infer returns an InferenceResponse"
        )
    return response


def _type_name(value: object) -> str:
    return "None" if value is None else type(value).__name__
