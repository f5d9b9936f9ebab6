"""What is used of the API of OpenTelemetry, which no other module imports: contexts that travel, spans, metrics.

Spans end in a thread of their own. Exporters and processors are the program's.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias
from weakref import ref

from attrs import define, field

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.events.inference import InferenceRetried
from agentloop.events.resilience import ToolCallRetried
from agentloop.service.telemetry import conventions as names
from agentloop.values.inference import Usage
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.time_and_ids import to_microseconds
from agentloop.values.tool_calls import ErrorInfo, ToolCall

try:
    from opentelemetry.context import Context as Context
    from opentelemetry.context import attach as attach
    from opentelemetry.context import detach as detach
    from opentelemetry.context import get_current as get_current
    from opentelemetry.metrics import Meter as Meter
    from opentelemetry.metrics import MeterProvider as MeterProvider
    from opentelemetry.metrics import get_meter as get_meter
    from opentelemetry.propagate import extract as extract
    from opentelemetry.propagate import inject as inject
    from opentelemetry.trace import Span as Span
    from opentelemetry.trace import SpanContext as SpanContext
    from opentelemetry.trace import SpanKind as SpanKind
    from opentelemetry.trace import Status as Status
    from opentelemetry.trace import StatusCode as StatusCode
    from opentelemetry.trace import Tracer as Tracer
    from opentelemetry.trace import TracerProvider as TracerProvider
    from opentelemetry.trace import get_current_span as get_current_span
    from opentelemetry.trace import get_tracer as get_tracer
    from opentelemetry.trace import set_span_in_context as set_span_in_context
except ModuleNotFoundError as _missing:
    if (_missing.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise ConfigurationError(f"spans and metrics need the extra `otel`: {install_hint('otel')}") from None

Labels: TypeAlias = Mapping[str, str]
_LOG = logging.getLogger("agentloop.telemetry")


@define(eq=False)
class OpenSpan:
    """A span that has not ended.

    Attributes:
        span: the span.
        context: the context in which it is the current one.
        began: when it began, in nanoseconds since 1970.
        subject: the name of the tool or of the agent; empty for anything else.
        labels: the attributes of its metrics.
        retry: the span of the attempt that runs, from the second on.
        has_chunk: whether the first chunk of a streamed response has arrived.
        early: the call, while only its tool was started, before the answer of the model was complete; else None.
    """

    span: Span
    context: Context
    began: int
    subject: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    retry: OpenSpan | None = None
    has_chunk: bool = False
    early: ToolCall | None = None


class CurrentSpan(AbstractContextManager[None]):
    """Makes the span of a context the current one."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        detach(self._token)


class Measurements:
    """The instruments of a meter.

    Args:
        meter: makes them.
    """

    def __init__(self, meter: Meter) -> None:
        self._durations = {
            name: meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=names.DURATION_BOUNDARIES)
            for name, text in (
                (names.OPERATION_DURATION, "The duration of a request to a model, with its retries."),
                (names.TIME_TO_FIRST_CHUNK, "The time until the first chunk of a streamed response."),
                (names.EXECUTE_TOOL_DURATION, "The duration of a tool call, with its retries."),
                (names.INVOKE_AGENT_DURATION, "The duration of an execution of an agent."),
                (names.QUEUE_DURATION, "The time that an execution waited in a queue."),
            )
        }
        self._tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "The tokens of a request.",
            explicit_bucket_boundaries_advisory=names.TOKEN_BOUNDARIES,
        )
        self._used = {
            name: meter.create_counter(name, unit="{token}", description=text)
            for name, text in (
                (names.USED_INPUT_TOKENS, "The input tokens that were used."),
                (names.USED_OUTPUT_TOKENS, "The output tokens that were used."),
                (names.USED_CACHE_READ_TOKENS, "The input tokens that were read from a cache of the provider."),
                (names.USED_CACHE_WRITE_TOKENS, "The input tokens that were written to a cache of the provider."),
                (names.USED_REASONING_TOKENS, "The output tokens that were reasoning."),
            )
        }

    def record_duration(self, name: str, nanoseconds: int, labels: Labels) -> None:
        """Record a duration."""
        self._durations[name].record(max(nanoseconds, 0) / 1e9, labels)

    def record_span(self, name: str, span: OpenSpan, at: int, error: ErrorInfo | None = None) -> None:
        """Record the duration of a span that ends at a time, in nanoseconds since 1970."""
        labels = span.labels if error is None else {**span.labels, names.ERROR_TYPE: error.type}
        self.record_duration(name, at - span.began, labels)

    def record_usage(self, usage: Usage, labels: Labels) -> None:
        """Record the tokens of a request, as far as the provider has reported them."""
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count is not None:
                self._tokens.record(count, {**labels, names.TOKEN_TYPE: kind})
        of_modality = {**labels, names.TOKEN_MODALITY: "unknown"}
        for name, count in (
            (names.USED_INPUT_TOKENS, usage.input_tokens),
            (names.USED_OUTPUT_TOKENS, usage.output_tokens),
            (names.USED_CACHE_READ_TOKENS, usage.cached_input_tokens),
            (names.USED_CACHE_WRITE_TOKENS, usage.cache_write_tokens),
            (names.USED_REASONING_TOKENS, usage.reasoning_tokens),
        ):
            if count:
                self._used[name].add(count, of_modality)


class SpanRecorder:
    """Starts spans, and ends them in a thread of its own.

    A processor may export a span where it ends. In this thread, an exporter that hangs delays nothing but other spans, which are
    dropped when too many wait. The thread ends when it is idle.

    Args:
        tracer: makes the spans.
        max_waiting: how many ended spans may wait.
    """

    def __init__(self, tracer: Tracer, max_waiting: int = 10_000) -> None:
        self._tracer = tracer
        self._max_waiting = max_waiting
        self._is_dropping = False
        self._is_slow = False  # the end of an execution has waited in vain
        self.reset()
        # Now and not before: what is registered after the shutdown of the processors runs before it.
        atexit.register(_flush_at_exit, ref(self))
        if hasattr(os, "register_at_fork"):  # where processes can fork
            os.register_at_fork(after_in_child=partial(_reset_after_fork, ref(self)))

    def reset(self) -> None:
        """Forget what waits: a forked process has no threads, and its parent ends the spans that waited."""
        self._waiting: deque[tuple[Span, int] | threading.Event] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Counts of spans: the first is written by the event loop, the second by the thread.
        self._added = self._ended = 0

    def start(
        self,
        name: str,
        context: Context,
        at: int,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        subject: str = "",
    ) -> OpenSpan:
        """Start a span.

        Args:
            name: its name.
            context: the context that has its parent.
            at: when it begins, in nanoseconds since 1970.
            attributes: its attributes.
            kind: its kind.
            subject: as for `OpenSpan`.
        """
        span = self._tracer.start_span(encodable(name), context, kind, encodable_values(attributes), start_time=at)
        return OpenSpan(span, set_span_in_context(span, context), at, subject)

    def retry(
        self, retried: OpenSpan, event: InferenceRetried | ToolCallRetried, attributes: Labels = EMPTY_OBJECT
    ) -> None:
        """Start the span of another attempt, with the wait before it."""
        at = nanoseconds(event.time)
        if retried.retry is not None:
            self.end(retried.retry, at, event.error)
        found = {
            names.RETRY_ATTEMPT: event.attempt,
            names.RETRY_DELAY: event.delay,
            names.ERROR_TYPE: event.error.type,
            **attributes,
        }
        retried.retry = self.start(f"retry {event.attempt}", retried.context, at, found)

    def end(self, open_span: OpenSpan, at: int, error: ErrorInfo | None = None, text: str | None = None) -> None:
        """End a span and that of its last attempt, soon.

        Args:
            open_span: the span.
            at: the time of its end, in nanoseconds since 1970.
            error: why the operation failed; None if it did not.
            text: the text of the error; None to leave it out.
        """
        if open_span.retry is not None:
            self.end(open_span.retry, at, error, text)
            open_span.retry = None
        if error is not None:
            open_span.span.set_attribute(names.ERROR_TYPE, error.type)
            open_span.span.set_status(Status(StatusCode.ERROR, text))
        self._end_soon(open_span.span, max(at, open_span.began))

    def _end_soon(self, span: Span, at: int) -> None:
        if not span.is_recording():  # no sampler has chosen it, and no processor waits for its end
            return
        if len(self._waiting) >= self._max_waiting:
            if not self._is_dropping:
                self._is_dropping = True
                _LOG.warning("spans are dropped: %d wait for a processor or an exporter", self._max_waiting)
            return
        self._is_dropping = False
        self._waiting.append((span, at))
        self._added += 1

    def hand_over(self, *, at_once: bool = False) -> None:
        """Let the thread end the spans that wait: within a moment, or at once."""
        if not self._waiting or (self._thread is not None and not at_once):
            return
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentloop-telemetry", daemon=True)
                self._thread.start()
            if at_once:  # else it looks by itself, since a thread that is woken for each step costs more than its work
                self._changed.notify()

    def settle(self) -> None:
        """Wait for a moment until the spans are with their processors, unless one took longer before."""
        if self._is_slow:
            self.hand_over()
        elif not self.flush(_END_SECONDS):
            self._is_slow = True

    def flush(self, seconds: float) -> bool:
        """Wait until the spans that have ended so far are with their processors; return whether they are.

        Args:
            seconds: how long to wait.
        """
        if self._added == self._ended:
            return True
        reached = threading.Event()
        self._waiting.append(reached)
        self.hand_over(at_once=True)
        return reached.wait(seconds)

    def _run(self) -> None:
        idle = 0
        while True:
            with self._changed:
                if not self._waiting:
                    self._changed.wait(_LOOK_SECONDS)
                idle = 0 if self._waiting else idle + 1
                if idle > _MAX_IDLE_LOOKS:
                    self._thread = None
                    return
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, threading.Event):
                    item.set()
                else:
                    _end(*item)
                    self._ended += 1


def encodable(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate: models write them, and exporters drop a whole batch of spans for one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encodable_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes whose texts exporters can encode."""
    return {name: _encodable_value(value) for name, value in attributes.items()}


def _encodable_value(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    return tuple([_encodable_value(item) for item in value]) if isinstance(value, list | tuple) else value


def nanoseconds(moment: datetime) -> int:
    """Return a time in nanoseconds since 1970, as spans have it."""
    return to_microseconds(moment) * 1000


def _end(span: Span, at: int) -> None:
    try:
        span.end(at)
    except Exception as error:  # noqa: BLE001  # of a processor or an exporter
        _LOG.warning("a span could not be ended", exc_info=error)


def _reset_after_fork(reference: ref[SpanRecorder]) -> None:
    recorder = reference()
    if recorder is not None:
        recorder.reset()


def _flush_at_exit(reference: ref[SpanRecorder]) -> None:
    """Hand over what still waits when the program ends."""
    recorder = reference()
    if recorder is not None:
        recorder.flush(_EXIT_SECONDS)


_END_SECONDS = 0.25
"""How long the end of an execution waits for the processors of its spans."""
_EXIT_SECONDS = 2.0
_LOOK_SECONDS = 0.2
"""How long ended spans may wait for the thread, while their execution goes on."""
_MAX_IDLE_LOOKS = 5


# --- contexts that travel ---------------------------------------------------------------------------------------------


def current_carrier() -> dict[str, str]:
    """Return the current context as the program's propagators write it, such as `traceparent`; empty without a span."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


def remote_context(carrier: Mapping[str, str]) -> Context:
    """Return the current context with what a carrier of another process holds."""
    return extract(dict(carrier), context=get_current())


def remote_span(carrier: Mapping[str, str]) -> SpanContext | None:
    """Return the span that a carrier of another process names; None if it names none."""
    span = get_current_span(extract(dict(carrier), context=Context())).get_span_context()
    return span if span.is_valid else None


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span in hexadecimal, as in headers; None without a span."""
    span = get_current_span().get_span_context()
    return (f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else None
