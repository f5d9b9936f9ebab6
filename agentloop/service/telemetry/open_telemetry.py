"""Spans and metrics of executions, by the API of OpenTelemetry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from weakref import WeakValueDictionary

from attrs import define, field

from agentloop.contracts.can_handle_events import CanCarryContext, CanHandleEvents, CanProvideContext, Subscription
from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.events.bus import EventBus
from agentloop.events.execution import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionInterrupted,
    AgentExecutionStarted,
    AgentExecutionStopped,
    AgentExecutionSuspended,
    AgentStepCompleted,
    AgentStepStarted,
    ContextSummarized,
    ConversationHandedOver,
    ExecutionEnded,
    GuardrailTripped,
)
from agentloop.events.inference import (
    InferenceDelayed,
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
)
from agentloop.events.resilience import ToolCallRetried
from agentloop.events.tool_calls import (
    InferenceReused,
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallRecovered,
    ToolCallRejected,
    ToolCallReviewed,
    ToolCallSettled,
    ToolCallStarted,
    ToolCallSuspended,
)
from agentloop.service.telemetry import conventions as names
from agentloop.service.telemetry.recording import (
    CurrentSpan,
    Measurements,
    MeterProvider,
    OpenSpan,
    Span,
    SpanContext,
    SpanKind,
    SpanRecorder,
    TracerProvider,
    current_carrier,
    encodable,
    encodable_values,
    get_current,
    get_meter,
    get_tracer,
    nanoseconds,
    remote_span,
)
from agentloop.values.decisions import PendingCall
from agentloop.values.event import Event, Operation, OperationKind
from agentloop.values.json import format_json
from agentloop.values.records import caller_of, outer_key
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolSpec

_MAX_SUSPENDED = 10_000
"""How many suspended executions are remembered, to link what resumes them in this process."""


class Observable(Protocol):
    """What has executions to observe; `AgentLoop` is one."""

    @property
    def events(self) -> CanHandleEvents:
        """Its bus."""

    @property
    def journal(self) -> CanJournal | None:
        """Records its executions, and masks their secrets."""


class OpenTelemetry(CanProvideContext):
    """Makes spans and metrics of executions, by the semantic conventions for generative AI.

    A span for an execution, each of its steps, each inference and each tool call, and for retries and approvals; a sub-agent's
    execution is in the span of the call that it serves. The span is the current one in the code inside, also in threads. What is
    asked of models and what they answer, arguments and results are left out unless `content` is set.

    Observing changes nothing of an execution, and waits for no exporter: spans are ended in a thread. At the end of an execution
    they are with their processors, unless one took longer than a quarter of a second before.

    Args:
        tracer_provider: makes the spans; by default that of the program.
        meter_provider: makes the instruments; by default that of the program.
        content: whether spans have messages, arguments, results and the texts of errors.
        agent_name: the name of agents without a name of their own, which `AgentLoop(name=…)` gives them.
        redaction: masks secrets in content, in addition to what the journals of observed loops mask; such as a `Redaction`.

    Raises:
        ConfigurationError: the extra `otel` is not installed.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool = False,
        agent_name: str = "",
        redaction: CanRedactRecords | None = None,
    ) -> None:
        self._spans = SpanRecorder(get_tracer("agentloop", tracer_provider=tracer_provider))
        self._measurements = Measurements(get_meter("agentloop", meter_provider=meter_provider))
        self._has_content = content
        self._agent_name = agent_name
        self._redactors: list[CanRedactRecords] = [] if redaction is None else [redaction]
        self._clock: Clock = SystemClock()
        # By the ids of buses, each of which keeps its observation alive: a loop that is dropped is not kept by its observer.
        self._observed: WeakValueDictionary[int, _Observation] = WeakValueDictionary()
        # By agent and execution: two loops may run executions of the same id in two journals.
        self._runs: dict[tuple[str | None, str], _Run] = {}
        self._suspended: OrderedDict[str, _Suspension] = OrderedDict()
        self._handlers: Mapping[type[Event], Callable[[_Run, Any], None]] = {
            AgentExecutionCompleted: self._execution_ended,
            AgentExecutionFailed: self._execution_ended,
            AgentExecutionInterrupted: self._execution_ended,
            AgentExecutionStarted: self._execution_started,
            AgentExecutionStopped: self._execution_ended,
            AgentExecutionSuspended: self._execution_ended,
            AgentStepStarted: self._step_started,
            AgentStepCompleted: self._step_completed,
            ContextSummarized: self._summarized,
            ConversationHandedOver: self._handed_over,
            GuardrailTripped: self._guardrail_tripped,
            InferenceRequestStarted: self._inference_started,
            InferenceDelayed: self._inference_delayed,
            InferenceDeltaReceived: self._delta_received,
            InferenceRetried: self._inference_retried,
            InferenceResponseReceived: self._inference_ended,
            InferenceFailed: self._inference_failed,
            InferenceReused: self._inference_reused,
            ToolCallStarted: self._call_started,
            ToolCallRecovered: self._call_recovered,
            ToolCallRetried: self._call_retried,
            ToolCallReviewed: self._call_reviewed,
            ToolCallSuspended: self._call_suspended,
            ToolCallCompleted: self._call_settled,
            ToolCallBlocked: self._call_settled,
            ToolCallRejected: self._call_settled,
        }

    def __repr__(self) -> str:
        return f"OpenTelemetry(content={self._has_content}, agent_name={self._agent_name!r})"

    def observe(self, loop: Observable) -> Subscription:
        """Observe the executions of a loop and of its changed copies, and those of sub-agents; once, however often it is called.

        Secrets that its journal masks, and the keys that an `AgentLoop` has, are masked in content. With a bus that carries no contexts,
        there are spans, and none is current in the code inside.

        Returns:
            The subscription, which ends the observation.
        """
        bus, redaction = loop.events, getattr(loop, "redaction", None) or loop.journal
        if self._has_content and isinstance(redaction, CanRedactRecords):
            self._redactors = [*[known for known in self._redactors if known != redaction], redaction]
        if isinstance(bus, EventBus):
            self._clock = bus.clock
        observation = self._observed.get(id(bus))
        if observation is None or not observation.parts:
            observation = self._observed[id(bus)] = _Observation(bus, self._handle, self._end_unobserved)
            observation.parts = [bus.on(kind, observation.handle) for kind in self._handlers]
            observation.parts += [bus.provide(self)] if isinstance(bus, CanCarryContext) else []
        return observation

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until the spans that have ended are with their processors; return whether they are.

        The processors export them when they see fit, such as by `TracerProvider.force_flush`.

        Args:
            timeout: the seconds to wait.
        """
        return self._spans.flush(timeout)

    # --- contexts -------------------------------------------------------------------------------------------------------

    def enter(self, operation: Operation) -> AbstractContextManager[None]:
        """Make the span of an operation the current one."""
        run = self._runs.get((operation.agent_id, operation.execution_id))
        if run is None:
            if operation.kind is not OperationKind.EXECUTION:
                return nullcontext()
            run = self._begin_run(operation, nanoseconds(self._clock.now()))
        match operation.kind:
            case OperationKind.EXECUTION:
                found: OpenSpan | None = run.root
            case OperationKind.STEP:
                found = run.step
            case OperationKind.INFERENCE:
                found = run.inference
            case OperationKind.TOOL_CALL:
                found = self._call_of(run, operation)
        return nullcontext() if found is None else CurrentSpan(found.context)

    def end(self, operation: Operation) -> None:
        """End the spans of an execution that was left between two steps."""
        run = self._runs.pop((operation.agent_id, operation.execution_id), None)
        if run is not None:
            self._end_run(run, "left")

    def _end_unobserved(self, observation: _Observation) -> None:
        """End the spans of executions that run on after their observation has ended."""
        for key, run in list(self._runs.items()):
            if run.observation is observation:
                del self._runs[key]
                self._end_run(run, "unobserved")

    def _end_run(self, run: _Run, status: str) -> None:
        at = nanoseconds(self._clock.now())
        self._end_all_inside(run, at)
        run.root.span.set_attribute(names.EXECUTION_STATUS, status)
        self._end(run.root, at)
        self._spans.hand_over()

    def carrier(self) -> Mapping[str, str]:
        """Return the current span as the propagators of the program write it, without baggage, which a journal must not keep."""
        return {name: text for name, text in current_carrier().items() if name != "baggage"}

    # --- executions -----------------------------------------------------------------------------------------------------

    def _handle(self, event: Event, observation: _Observation) -> None:
        run = self._runs.get((event.agent_id, event.execution_id))
        if run is None:
            if not isinstance(event, AgentExecutionStarted):
                return  # it began before it was observed
            ids = (event.agent_id, event.execution_id, event.parent_agent_id)
            began = Operation(OperationKind.EXECUTION, *ids, 0, agent_name=event.agent_name)
            run = self._begin_run(began, nanoseconds(event.time))
        # A sub-agent may reach this by two buses, which deliver the same event.
        if event.sequence > run.sequence:
            run.sequence, run.observation = event.sequence, observation
            self._handlers[type(event)](run, event)

    def _begin_run(self, operation: Operation, at: int) -> _Run:
        caller = self._runs.get((operation.parent_agent_id, caller_of(operation.execution_id)))
        call = None if caller is None else caller.calls.get(operation.execution_id.rpartition("/")[0])
        default = self._agent_name if operation.parent_agent_id is None else "" if call is None else call.subject
        name = encodable(operation.agent_name) or default
        attributes = {
            names.OPERATION_NAME: "invoke_agent",
            names.AGENT_ID: operation.agent_id,
            names.CONVERSATION_ID: operation.agent_id,
            names.EXECUTION_ID: operation.execution_id,
            **({names.AGENT_NAME: name} if name else {}),
        }
        context = get_current() if call is None else call.context
        root = self._spans.start(f"invoke_agent {name}".rstrip(), context, at, attributes, subject=name)
        run = self._runs[operation.agent_id, operation.execution_id] = _Run(root)
        return run

    def _execution_started(self, run: _Run, event: AgentExecutionStarted) -> None:
        provider, model = names.split_model(event.model)
        run.root.labels = _without_empty({names.AGENT_NAME: run.root.subject, names.REQUEST_MODEL: model})
        attributes = {names.PROVIDER_NAME: provider or _UNKNOWN, names.REQUEST_MODEL: model or None}
        _set(run.root.span, attributes | {names.EXECUTION_RESUMED: event.resumed or None})
        self._link_earlier(run, event)
        if event.queue_seconds is not None:
            waited = int(event.queue_seconds * 1e9)
            self._measurements.record_duration(names.QUEUE_DURATION, waited, run.root.labels)

    def _link_earlier(self, run: _Run, event: AgentExecutionStarted) -> None:
        """Link the span to those of earlier runs of the execution: of this process, and of the one that recorded its start."""
        known = self._suspended.pop(event.execution_id, None)
        run.suspended_at = {} if known is None else known.calls
        earlier = [remote_span({name: str(text) for name, text in event.earlier_context.items()})]
        earlier += [None if known is None else known.span]
        own = run.root.span.get_span_context()
        linked = {span.span_id: span for span in earlier if span is not None and span.span_id != own.span_id}
        for span in linked.values():
            run.root.span.add_link(span)

    def _execution_ended(self, run: _Run, event: ExecutionEnded) -> None:
        at = nanoseconds(event.time)
        self._end_all_inside(run, at)
        status = _STATUSES[type(event)]
        reason = None if event.signal is None else event.signal.reason.value
        attributes = {names.EXECUTION_STATUS: status, names.STEP_COUNT: event.step_count, names.STOP_REASON: reason}
        _set(run.root.span, attributes | names.usage_attributes(event.usage))
        error = None
        if isinstance(event, AgentExecutionFailed):
            error = event.error or ErrorInfo(_UNKNOWN, "")
        elif isinstance(event, AgentExecutionInterrupted):
            error = ErrorInfo("interrupted", "the task of the execution was cancelled, or its journal failed")
        elif isinstance(event, AgentExecutionSuspended):
            self._suspend(run, event, at)
        self._measurements.record_span(names.INVOKE_AGENT_DURATION, run.root, at, error)
        self._end(run.root, at, error)
        self._runs.pop((event.agent_id, event.execution_id), None)
        if event.parent_agent_id is None:
            self._spans.settle()

    def _suspend(self, run: _Run, event: AgentExecutionSuspended, at: int) -> None:
        for pending in event.pending:
            attributes = {names.APPROVAL_STATE: "suspended", **self._approval_attributes(pending)}
            self._end(self._spans.start(f"approval {pending.call.name}", run.root.context, at, attributes), at)
        calls = {pending.key: at for pending in event.pending}
        self._suspended[event.execution_id] = _Suspension(run.root.span.get_span_context(), calls)
        while len(self._suspended) > _MAX_SUSPENDED:
            self._suspended.popitem(last=False)

    def _approval_attributes(self, pending: PendingCall) -> dict[str, str]:
        found = {names.TOOL_NAME: pending.call.name, names.CALL_KEY: pending.key, names.TOOL_CALL_ID: pending.call.id}
        # A reason may repeat arguments.
        return found | ({names.APPROVAL_REASON: self._masked_text(pending.reason)} if self._has_content else {})

    def _handed_over(self, run: _Run, event: ConversationHandedOver) -> None:
        found = {names.TOOL_NAME: encodable(event.execution.name)}
        found |= {names.AGENT_NAME: encodable(event.agent_name)} if event.agent_name else {}
        run.root.span.add_event("agentloop.handoff", found, nanoseconds(event.time))

    def _summarized(self, run: _Run, event: ContextSummarized) -> None:
        counts = {**names.usage_attributes(event.usage), "agentloop.messages.covered": event.covered}
        run.root.span.add_event("agentloop.context.summarized", counts, nanoseconds(event.time))
        self._measurements.record_usage(event.usage, {names.OPERATION_NAME: "chat", names.PROVIDER_NAME: _UNKNOWN})

    def _guardrail_tripped(self, run: _Run, event: GuardrailTripped) -> None:
        found = {"agentloop.guardrail.subject": event.subject, "agentloop.guardrail.outcome": event.outcome}
        run.innermost.span.add_event("agentloop.guardrail.tripped", found, nanoseconds(event.time))

    # --- steps and inferences -------------------------------------------------------------------------------------------

    def _step_started(self, run: _Run, event: AgentStepStarted) -> None:
        attributes = {names.STEP_NUMBER: event.step_number, names.EXECUTION_ID: event.execution_id}
        run.step = self._spans.start(f"step {event.step_number}", run.root.context, nanoseconds(event.time), attributes)

    def _step_completed(self, run: _Run, event: AgentStepCompleted) -> None:
        at = nanoseconds(event.time)
        step, errors = run.step, event.step.errors
        self._end_inside_step(run, at)
        if step is not None:
            self._end(step, at, errors[-1] if errors else None)
        run.step = None
        self._spans.hand_over()

    def _inference_started(self, run: _Run, event: InferenceRequestStarted) -> None:
        request = event.request
        provider, model = names.split_model(event.model)
        model = request.options.model or model
        run.offered = request.tools
        labels = {names.OPERATION_NAME: "chat", names.PROVIDER_NAME: provider or _UNKNOWN, names.REQUEST_MODEL: model}
        labels = _without_empty(labels)
        attributes: dict[str, Any] = {
            **labels,
            names.CONVERSATION_ID: event.agent_id,
            **names.request_attributes(request, is_streamed=event.is_streamed),
        }
        if self._has_content:
            attributes[names.INPUT_MESSAGES] = self._content(names.input_messages(request.messages))
            if request.system_prompt:
                attributes[names.SYSTEM_INSTRUCTIONS] = self._content(names.system_instructions(request.system_prompt))
            if request.tools:
                attributes[names.TOOL_DEFINITIONS] = self._content(names.tool_definitions(request.tools))
        at, kind = nanoseconds(event.time), SpanKind.CLIENT
        run.inference = self._spans.start(f"chat {model}".rstrip(), run.inside.context, at, attributes, kind=kind)
        run.inference.labels = labels

    def _inference_delayed(self, run: _Run, event: InferenceDelayed) -> None:
        found = {names.RATE_LIMIT_DELAY: event.delay}
        run.innermost.span.add_event("agentloop.inference.delayed", found, nanoseconds(event.time))

    def _delta_received(self, run: _Run, event: InferenceDeltaReceived) -> None:
        inference = run.inference
        if inference is None or inference.has_chunk:
            return
        inference.has_chunk = True
        elapsed = nanoseconds(event.time) - inference.began
        inference.span.set_attribute(names.RESPONSE_TIME_TO_FIRST_CHUNK, max(elapsed, 0) / 1e9)
        self._measurements.record_duration(names.TIME_TO_FIRST_CHUNK, elapsed, inference.labels)

    def _inference_retried(self, run: _Run, event: InferenceRetried) -> None:
        if run.inference is not None:
            attributes = {names.RETRY_INSTEAD: event.instead} if event.instead else {}
            self._spans.retry(run.inference, event, attributes)

    def _inference_ended(self, run: _Run, event: InferenceResponseReceived) -> None:
        inference, run.inference, at = run.inference, None, nanoseconds(event.time)
        if inference is None:
            if not run.is_reused:  # an interceptor answered in place of the model
                run.inside.span.add_event("agentloop.inference.replaced", timestamp=at)
            run.is_reused = False
            return
        response = event.response
        _set(inference.span, names.response_attributes(response))
        if self._has_content:
            inference.span.set_attribute(names.OUTPUT_MESSAGES, self._content(names.output_messages(response)))
        if response.model:
            inference.labels = {**inference.labels, names.RESPONSE_MODEL: response.model}
        self._measurements.record_usage(response.usage, inference.labels)
        self._measurements.record_span(names.OPERATION_DURATION, inference, at)
        self._end(inference, at)

    def _inference_failed(self, run: _Run, event: InferenceFailed) -> None:
        inference, run.inference, at = run.inference, None, nanoseconds(event.time)
        if inference is not None:
            self._measurements.record_span(names.OPERATION_DURATION, inference, at, event.error)
            self._end(inference, at, event.error)

    def _inference_reused(self, run: _Run, event: InferenceReused) -> None:
        run.is_reused = True
        run.inside.span.add_event("agentloop.inference.reused", timestamp=nanoseconds(event.time))

    # --- tool calls -----------------------------------------------------------------------------------------------------

    def _call_of(self, run: _Run, operation: Operation) -> OpenSpan | None:
        """Return the span of a call; begin it if its tool starts while the model still writes its answer."""
        begun, at = run.calls.get(operation.key), nanoseconds(self._clock.now())
        if operation.call is None or (begun is not None and begun.early in {None, operation.call}):
            return begun
        self._discard_early_call(run, operation.key, operation.call, at)
        begun = self._begin_call(run, operation.key, operation.call, at)
        begun.span.set_attribute(names.CALL_EAGER, value=True)
        begun.early = operation.call
        return begun

    def _discard_early_call(self, run: _Run, key: str, call: ToolCall | None, at: int) -> None:
        """End the span of a call that was started early, unless it is this call that runs now."""
        begun = run.calls.get(key)
        if begun is not None and begun.early is not None and begun.early != call:
            begun.span.set_attribute(names.CALL_STATUS, "discarded")
            self._end(run.calls.pop(key), at)

    def _call_started(self, run: _Run, event: ToolCallStarted) -> None:
        at = nanoseconds(event.time)
        self._discard_early_call(run, event.key, event.call, at)
        begun = run.calls.get(event.key) or self._begin_call(run, event.key, event.call, at)
        begun.early = None
        if event.key in run.recoveries:
            begun.span.set_attribute(names.CALL_RECOVERY, run.recoveries.pop(event.key))

    def _begin_call(self, run: _Run, key: str, call: ToolCall, at: int) -> OpenSpan:
        labels = {names.OPERATION_NAME: "execute_tool", names.TOOL_NAME: call.name}
        attributes: dict[str, Any] = {
            **labels,
            names.TOOL_TYPE: "function",
            names.CALL_KEY: key,
            **_without_empty({names.TOOL_CALL_ID: call.id, names.TOOL_DESCRIPTION: run.description_of(call.name)}),
        }
        if self._has_content:
            attributes[names.TOOL_CALL_ARGUMENTS] = self._masked_text(call.arguments_json)
        outer = run.calls.get(outer_key(key)) or run.inside
        begun = self._spans.start(f"execute_tool {call.name}", outer.context, at, attributes, subject=call.name)
        begun.labels = _without_empty({**labels, names.AGENT_NAME: run.root.subject})
        run.calls[key] = begun
        return begun

    def _call_recovered(self, run: _Run, event: ToolCallRecovered) -> None:
        run.recoveries[event.key] = event.recovery.value

    def _call_retried(self, run: _Run, event: ToolCallRetried) -> None:
        begun = run.calls.get(event.key)
        if begun is not None:
            self._spans.retry(begun, event)

    def _call_reviewed(self, run: _Run, event: ToolCallReviewed) -> None:
        """Make a span of the time in which the call waited, as far as this process knows when it began."""
        at = nanoseconds(event.time)
        attributes = {
            names.APPROVAL_STATE: "decided",
            names.APPROVAL_DECISION: type(event.decision).__name__.lower(),
            names.TOOL_NAME: event.name,
            names.CALL_KEY: event.key,
        }
        began = run.suspended_at.pop(event.key, at)
        self._end(self._spans.start(f"approval {event.name}", run.inside.context, began, attributes), at)

    def _call_suspended(self, run: _Run, event: ToolCallSuspended) -> None:
        begun, at = run.calls.pop(event.key, None), nanoseconds(event.time)
        if begun is not None:
            begun.span.set_attribute(names.CALL_STATUS, "suspended")
            self._end(begun, at)

    def _call_settled(self, run: _Run, event: ToolCallSettled) -> None:
        execution, at = event.execution, nanoseconds(event.time)
        self._discard_early_call(run, event.key, None, at)
        has_begun = event.key in run.calls
        call = run.calls.get(event.key) or self._begin_call(run, event.key, execution.call, at)
        del run.calls[event.key]
        error = execution.error if execution.has_error else None
        attributes = {
            names.CALL_STATUS: execution.status.value,
            names.CALL_EFFECT_UNCERTAIN: execution.may_have_run or None,
            names.CALL_RECOVERY: run.recoveries.pop(event.key, None),
        }
        _set(call.span, attributes)
        if self._has_content and execution.succeeded:
            call.span.set_attribute(names.TOOL_CALL_RESULT, self._result_text(execution))
        if execution.has_error and error is None:
            error = ErrorInfo(execution.status.value, "")
        if has_begun:
            self._measurements.record_span(names.EXECUTE_TOOL_DURATION, call, at, error)
        self._end(call, at, error)

    def _result_text(self, execution: ToolExecution) -> str:
        return self._masked_text(execution.text)

    # --- spans ----------------------------------------------------------------------------------------------------------

    def _end(self, open_span: OpenSpan, at: int, error: ErrorInfo | None = None) -> None:
        # The text of an error may quote arguments and results.
        text = self._masked_text(error.message) if error is not None and self._has_content else None
        self._spans.end(open_span, at, error, text)

    def _end_inside_step(self, run: _Run, at: int) -> None:
        """End what has no end of its own: calls that were started early for nothing, and what an interruption left."""
        if run.inference is not None:
            self._end(run.inference, at, _INTERRUPTED)
            run.inference = None
        for key in list(run.calls):
            self._discard_early_call(run, key, None, at)
        for call in run.calls.values():
            self._end(call, at, _INTERRUPTED)
        run.calls.clear()

    def _end_all_inside(self, run: _Run, at: int) -> None:
        self._end_inside_step(run, at)
        if run.step is not None:
            self._end(run.step, at, _INTERRUPTED)
            run.step = None

    # --- content --------------------------------------------------------------------------------------------------------

    def _content(self, data: object) -> str:
        body: dict[str, Any] = {"content": data}
        for redactor in self._redactors:
            body = redactor.redact(body)
        return format_json(body.get("content")).decode()

    def _masked_text(self, text: str) -> str:
        body: dict[str, Any] = {"text": text}
        for redactor in self._redactors:
            body = redactor.redact(body)
        return encodable(str(body.get("text")))


@define(eq=False)
class _Run:
    """The open spans of one run of an execution.

    Attributes:
        root: the span of the execution.
        sequence: that of the last event.
        step: the span of its step.
        inference: the span of its inference.
        calls: the spans of its calls, by key.
        offered: the tools of the last request.
        recoveries: what was decided about interrupted calls, by key, until their spans have it.
        suspended_at: when its pending calls were suspended in this process, in nanoseconds since 1970, by key.
        is_reused: whether the response that comes next was recorded.
        observation: the one that its last event came from; None before the first.
    """

    root: OpenSpan
    sequence: int = 0
    step: OpenSpan | None = None
    inference: OpenSpan | None = None
    calls: dict[str, OpenSpan] = field(factory=dict)
    offered: tuple[ToolSpec, ...] = ()
    recoveries: dict[str, str] = field(factory=dict)
    suspended_at: dict[str, int] = field(factory=dict)
    is_reused: bool = False
    observation: _Observation | None = None

    @property
    def inside(self) -> OpenSpan:
        """The span of the step, or else of the execution."""
        return self.step or self.root

    @property
    def innermost(self) -> OpenSpan:
        """The span of the inference, or else of the step or of the execution."""
        return self.inference or self.inside

    def description_of(self, tool: str) -> str:
        """Return the description of an offered tool; empty if it was not offered."""
        return next((spec.description for spec in self.offered if spec.name == tool), "")


@define(eq=False)
class _Suspension:
    """The span of a run that ended suspended, and when each of its calls was suspended, by key."""

    span: SpanContext
    calls: dict[str, int]


@define(eq=False)
class _Observation(Subscription):
    """The observation of one bus.

    Attributes:
        bus: the bus. A program that keeps the subscription keeps it, too, so that no other bus gets its id.
        observer: handles the events.
        closer: handles the end of the observation.
        parts: the subscriptions that it consists of; none after it was cancelled.
    """

    bus: CanHandleEvents
    observer: Callable[[Event, _Observation], None]
    closer: Callable[[_Observation], None]
    parts: list[Subscription] = field(factory=list)

    def handle(self, event: Event) -> None:
        """Handle an event of the bus."""
        self.observer(event, self)

    def cancel(self) -> None:
        """End it, and the spans of executions that run."""
        while self.parts:
            self.parts.pop().cancel()
        self.closer(self)


_UNKNOWN = "unknown"
_INTERRUPTED = ErrorInfo("interrupted", "")
_STATUSES: Mapping[type[Event], str] = {
    AgentExecutionCompleted: "completed",
    AgentExecutionFailed: "failed",
    AgentExecutionInterrupted: "in_progress",
    AgentExecutionStopped: "stopped",
    AgentExecutionSuspended: "suspended",
}


def _set(span: Span, attributes: Mapping[str, Any]) -> None:
    """Set the attributes that have a value."""
    span.set_attributes(encodable_values({name: value for name, value in attributes.items() if value is not None}))


def _without_empty(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}
