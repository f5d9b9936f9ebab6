"""Traces that continue in other processes, in programs that use OpenTelemetry and in those that do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast


def trace_headers() -> dict[str, str]:
    """Return what another process needs to continue the current trace, such as `traceparent`, as texts by name.

    It is what the propagators of the program write, and empty if the program has no current span.
    """
    # A program that has not loaded OpenTelemetry has no span, and does not have to load it to know that.
    if "opentelemetry" not in sys.modules:
        return {}
    return _telemetry().current_carrier()


@contextmanager
def continue_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Let the code inside run in the trace of another process, for its spans and those of instrumentation.

    Args:
        headers: what `trace_headers` returned there. What cannot be read changes nothing, nor does anything in a program that has
            not loaded OpenTelemetry.
    """
    if not headers or "opentelemetry" not in sys.modules:
        yield
        return
    token = _telemetry().attach(_telemetry().remote_context(headers))
    try:
        yield
    finally:
        _telemetry().detach(token)


def current_trace() -> tuple[str, str] | None:
    """Return the ids of the current trace and span in hexadecimal; None without a span."""
    if "opentelemetry" not in sys.modules:
        return None
    return _telemetry().current_ids()


class _Telemetry(Protocol):
    """Reads and sets the current span; `agentloop.service.telemetry.recording` does."""

    def current_carrier(self) -> dict[str, str]: ...
    def remote_context(self, headers: Mapping[str, str]) -> Any: ...
    def current_ids(self) -> tuple[str, str] | None: ...
    def attach(self, context: Any) -> Any: ...
    def detach(self, token: Any) -> None: ...


@cache
def _telemetry() -> _Telemetry:
    return cast("_Telemetry", import_module("agentloop.service.telemetry.recording"))
