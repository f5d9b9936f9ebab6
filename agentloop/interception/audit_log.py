"""A line per tool call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from agentloop.interception.interceptor import Interceptor
from agentloop.values.json_text import format_json
from agentloop.values.points import AfterToolUse

logger: logging.Logger = logging.getLogger("agentloop.audit")

Sink: TypeAlias = Callable[[Mapping[str, Any]], object] | str | Path | TextIO


class AuditLog(Interceptor):
    """Writes a line per settled call: time, caller, tool, arguments, outcome, duration_ms, success.

    It stands outside of other interceptors, so a line says what the model and the state get. A line that cannot be
    written is an error of the execution: what must be audited does not go on unaudited.

    Args:
        to: where lines go: a path that JSON lines are appended to, an open text file, or a function of the entry. When
            left out, the logger `agentloop.audit` at level INFO.
        priority: where it stands among the interceptors.
    """

    def __init__(self, to: Sink | None = None, *, priority: int = 2000) -> None:
        self.priority = priority
        self._write = _writer(to)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Write the line."""
        execution = point.execution
        self._write(
            {
                "time": execution.ended_at.isoformat(),
                "caller": point.state.agent_id,
                "execution": point.state.execution_id,
                "key": execution.key,
                "tool": execution.name,
                "arguments": execution.call.arguments_json,
                "outcome": execution.status.value,
                "error": execution.error_message,
                "duration_ms": round(execution.duration_ms, 3),
                "success": execution.succeeded,
            }
        )
        return point


def _writer(to: Sink | None) -> Callable[[Mapping[str, Any]], object]:
    if to is None:
        return lambda entry: logger.info("%s", format_json(entry).decode())
    if isinstance(to, str | Path):
        path = Path(to)

        def append(entry: Mapping[str, Any]) -> None:
            with path.open("ab") as file:
                file.write(format_json(entry) + b"\n")

        return append
    if callable(to):
        return to
    return lambda entry: to.write(format_json(entry).decode() + "\n")
