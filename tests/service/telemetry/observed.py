"""An observer whose spans and metrics stay in memory, and what tests read of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode

from agentloop import AgentLoop
from agentloop.service.telemetry import OpenTelemetry


class Watch:
    """Observes loops with an exporter and a reader in memory.

    Args:
        **settings: those of `OpenTelemetry`.
    """

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = OpenTelemetry(self.tracers, meters, **settings)

    def observe(self, loop: AgentLoop[Any]) -> AgentLoop[Any]:
        """Observe a loop, and return it."""
        self.telemetry.observe(loop)
        return loop

    @property
    def spans(self) -> list[ReadableSpan]:
        """The ended spans, in the order in which they began."""
        assert self.telemetry.flush()
        ended = enumerate(self.exporter.get_finished_spans())
        return [span for _, span in sorted(ended, key=lambda item: (item[1].start_time, -item[0]))]

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of this name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only ended span of this name."""
        (span,) = self.named(name)
        return span

    def paths(self) -> list[str]:
        """Return the names of the spans, each after those of its parents, sorted."""
        spans = {context_of(span).span_id: span for span in self.spans}

        def path(span: ReadableSpan) -> str:
            parent = None if span.parent is None else spans.get(span.parent.span_id)
            return span.name if parent is None else f"{path(parent)}/{span.name}"

        return sorted(map(path, spans.values()))

    def metric(self, name: str) -> list[tuple[Mapping[str, Any], float, int]]:
        """Return the attributes, the sum and the count of each series of a metric; the count is 0 for counters."""
        data = self.reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        points = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
        return [
            (
                dict(point.attributes or {}),
                getattr(point, "sum", getattr(point, "value", 0)),
                getattr(point, "count", 0),
            )
            for point in points
        ]


def context_of(span: ReadableSpan) -> SpanContext:
    """Return the ids of a span."""
    context = span.get_span_context()
    assert context is not None
    return context


def attribute(span: ReadableSpan, name: str) -> Any:
    """Return an attribute of a span; None if it has none of this name."""
    return (span.attributes or {}).get(name)


def error_of(span: ReadableSpan) -> str | None:
    """Return the type of the error with which a span ended; None if it has none."""
    has_failed = span.status.status_code is StatusCode.ERROR
    error: str | None = attribute(span, "error.type")
    assert has_failed == (error is not None), span.name
    return error
