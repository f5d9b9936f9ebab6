"""Receivers of OTLP over gRPC and HTTP, built on the published messages of the protocol."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

_METHODS: dict[str, tuple[Any, Any]] = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": (
        traces.ExportTraceServiceRequest,
        traces.ExportTraceServiceResponse,
    ),
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": (
        metrics.ExportMetricsServiceRequest,
        metrics.ExportMetricsServiceResponse,
    ),
}
_PATHS = dict(zip(("/v1/traces", "/v1/metrics"), _METHODS.values(), strict=True))


class Received:
    """What a receiver has got.

    Attributes:
        address: the address of the receiver.
        requests: the requests, in order.
    """

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Any] = []

    @property
    def spans(self) -> dict[str, Any]:
        """The spans by name."""
        found = [request for request in self.requests if isinstance(request, traces.ExportTraceServiceRequest)]
        scopes = [scope for request in found for resource in request.resource_spans for scope in resource.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics by name."""
        found = [request for request in self.requests if isinstance(request, metrics.ExportMetricsServiceRequest)]
        scopes = [
            scope for request in found for resource in request.resource_metrics for scope in resource.scope_metrics
        ]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


def attributes(entries: list[KeyValue]) -> dict[str, Any]:
    """Return attributes as Python data."""
    return {entry.key: _value(entry.value) for entry in entries}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, received: Received) -> None:
        self.received = received

    def service(self, details: Any) -> Any:
        if details.method not in _METHODS:
            return None
        request, response = _METHODS[details.method]

        def export(message: Any, _: Any) -> Any:
            self.received.requests.append(message)
            return response()

        return grpc.unary_unary_rpc_method_handler(
            export, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )


@contextmanager
def grpc_receiver() -> Iterator[Received]:
    """Run a collector that speaks OTLP over gRPC."""
    received = Received()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[_Handler(received)])
    received.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(None).wait()


@contextmanager
def http_receiver() -> Iterator[Received]:
    """Run a collector that speaks OTLP over HTTP."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request, response = _PATHS[self.path]
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            received.requests.append(request.FromString(body))
            answer = response().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
