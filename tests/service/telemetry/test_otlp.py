"""Spans and metrics as a collector gets them, over both transports of OTLP."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.service.telemetry import OpenTelemetry
from tests.service.telemetry.receivers import attributes, grpc_receiver, http_receiver


@tool(effect="pure")
def stock(item: str) -> int:
    """Return the number of items in stock."""
    if item == "desk":
        raise ValueError("no desks")
    return 3


def exporters(transport: str, address: str) -> tuple[Any, Any]:
    """Return the exporters of spans and of metrics."""
    if transport == "grpc":
        return GrpcSpans(endpoint=address, insecure=True), GrpcMetrics(endpoint=address, insecure=True)
    return HttpSpans(endpoint=f"{address}/v1/traces"), HttpMetrics(endpoint=f"{address}/v1/metrics")


@pytest.mark.parametrize("transport", ["grpc", "http"])
async def test_a_collector_gets_the_spans_and_the_metrics_of_an_execution(transport: str) -> None:
    """The tree, the kinds, the errors, the attributes and the buckets arrive as the protocol has them."""
    with grpc_receiver() if transport == "grpc" else http_receiver() as received:
        spans, metrics = exporters(transport, received.address)
        resource = Resource.create({"service.name": "shop"})
        tracers, meters = (
            TracerProvider(resource=resource, shutdown_on_exit=False),
            MeterProvider([PeriodicExportingMetricReader(metrics)], resource=resource, shutdown_on_exit=False),
        )
        tracers.add_span_processor(BatchSpanProcessor(spans))
        calls = [ToolCall("1", "stock", '{"item": "lamp"}'), ToolCall("2", "stock", '{"item": "desk"}')]
        loop = AgentLoop.for_model(ScriptedInference(calls[0], calls[1], "Three."), tools=[stock])
        telemetry = OpenTelemetry(tracers, meters, agent_name="shop", content=True)
        telemetry.observe(loop)
        await loop.execute("How many lamps are left?")
        tracers.shutdown()
        meters.shutdown()
    found = received.spans
    root, step, chat = found["invoke_agent shop"], found["step 1"], found["chat"]
    assert set(found) == {"invoke_agent shop", "step 1", "step 2", "step 3", "chat", "execute_tool stock"}
    assert (root.parent_span_id, step.parent_span_id) == (b"", root.span_id)
    assert chat.kind == Span.SPAN_KIND_CLIENT
    assert attributes(chat.attributes)["gen_ai.response.finish_reasons"] == ["stop"]
    failed = found["execute_tool stock"]  # the last of its name
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert failed.status.message == "no desks"
    assert attributes(failed.attributes)["gen_ai.tool.call.arguments"] == '{"item": "desk"}'
    assert {span.trace_id for span in found.values()} == {root.trace_id}
    (point, *_) = received.metrics["gen_ai.client.operation.duration"].histogram.data_points
    assert (point.count, list(point.explicit_bounds)[:3]) == (3, [0.01, 0.02, 0.04])
    tokens = {
        attributes(point.attributes)["gen_ai.token.type"]: point.sum
        for point in received.metrics["gen_ai.client.token.usage"].histogram.data_points
    }
    assert tokens == {"input": 30, "output": 15}


@pytest.mark.parametrize("transport", ["grpc", "http"])
@pytest.mark.parametrize("content", [False, True])
async def test_half_characters_of_a_model_cost_no_span(transport: str, *, content: bool) -> None:
    """Spans whose names, ids, arguments, results and errors have lone surrogates arrive with the others, with U+FFFD."""
    with grpc_receiver() if transport == "grpc" else http_receiver() as received:
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(exporters(transport, received.address)[0]))
        calls = [ToolCall("\ud83d", "none \ud83d", "{}"), ToolCall("2", "cut", '{"item": "\ud83d"}')]
        loop = AgentLoop.for_model(ScriptedInference(*calls, calls[1], "Three \ud83d."), tools=[cut])
        OpenTelemetry(tracers, content=content).observe(loop)
        await loop.execute("How many \ud83d?")
        tracers.shutdown()
    found = received.spans
    steps = {f"step {number}" for number in range(1, 5)}
    assert set(found) == {"invoke_agent", "chat", "execute_tool none \ufffd", "execute_tool cut", *steps}
    assert attributes(found["execute_tool none \ufffd"].attributes)["gen_ai.tool.call.id"] == "\ufffd"
    if content:
        assert attributes(found["execute_tool cut"].attributes)["gen_ai.tool.call.result"] == "cut \ufffd"


@tool(effect="pure")
def cut(item: str) -> str:
    """Return half of a character."""
    return f"cut {item}"
