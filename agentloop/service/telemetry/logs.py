"""Logs whose records name the execution, the step, the call and the trace that they belong to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from agentloop.contracts.can_journal import CanRedactRecords
from agentloop.events.operations import current_operation
from agentloop.events.trace_context import current_trace
from agentloop.values.event import Operation
from agentloop.values.json import format_json, parse_json
from agentloop.values.secrets import MASK

_STANDARD = frozenset(
    [*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName", "stack_info"]
)
"""The attributes that every record has; all others are additions."""


_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Characters that JSON need not escape and that some readers take for the end of a line."""


class LogContext(logging.Filter):
    """Adds to each record what it belongs to; lets every record pass.

    Add it to a handler. Records that are written by code of an execution, such as a tool in its thread, get these attributes, and
    all others get None for each, so that a format can name them: `execution_id`, `agent_id`, `agent_name`, `step`, `call_key`, `call_id`,
    `tool`, `trace_id` and `span_id`. What the record was given as `extra` stays.
    """

    def __init__(self) -> None:
        super().__init__()

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes."""
        for name, value in correlation().items():
            if getattr(record, name, None) is None:
                setattr(record, name, value)
        return True


class LogRedaction(logging.Filter):
    """Masks secrets in records: in messages, tracebacks and additions; lets every record pass.

    Add it to a handler, such as `handler.addFilter(LogRedaction(loop.redaction))`. The traceback of a tool that failed is in a record, and what
    the tool was given can be in it. The records of other handlers, which come later, are masked, too.

    Args:
        redaction: what is masked, such as `AgentLoop.redaction` or a `Redaction`.
    """

    def __init__(self, redaction: CanRedactRecords) -> None:
        super().__init__()
        self._redaction = redaction

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask secrets."""
        message = record.getMessage()
        masked = self._mask(message)
        if masked != message:
            record.msg, record.args = masked, ()
        if record.exc_info:
            self._mask_exception(record, record.exc_text or _FORMATTER.formatException(record.exc_info))
        if record.stack_info:
            record.stack_info = self._mask(record.stack_info)
        for name, value in [pair for pair in vars(record).items() if pair[0] not in _STANDARD]:
            text = format_json(_as_json(value)).decode()
            if self._mask(text) != text:
                setattr(record, name, self._mask(value if isinstance(value, str) else text))
        return True

    def _mask_exception(self, record: logging.LogRecord, text: str) -> None:
        masked = self._mask(text)
        if masked != text:
            # Without the error itself, which a formatter may format anew.
            record.exc_text, record.exc_info = masked, None

    def _mask(self, text: str) -> str:
        return str(self._redaction.redact({"text": text}).get("text", MASK))


_FORMATTER = logging.Formatter()


class JsonFormatter(logging.Formatter):
    """Writes each record as one line of JSON, with what it belongs to.

    The members are `time` in ISO 8601 in UTC, `level`, `logger`, `message`, the attributes of `LogContext` that are known, what was
    given as `extra`, and `exception` with a traceback. It finds them by itself where it formats records in the task or thread that
    wrote them; for a `QueueHandler`, add a `LogContext` to that handler. Text of others cannot forge a line or a member.
    """

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        found = {name: value for name, value in correlation().items() if extra.get(name) is None}
        line |= {
            name: _as_json(value) for name, value in (extra | found).items() if value is not None and name not in line
        }
        if record.exc_text or record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]  # one of both
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return format_json(line).decode().translate(_LINE_ENDS)


def correlation() -> Mapping[str, str | int | None]:
    """Return what the current code belongs to, by the names of log records; None for what does not apply."""
    operation, trace = current_operation(), current_trace()
    trace_id, span_id = (None, None) if trace is None else trace
    return {**_operation_fields(operation), "trace_id": trace_id, "span_id": span_id}


def _operation_fields(operation: Operation | None) -> dict[str, str | int | None]:
    if operation is None:
        return dict.fromkeys(("execution_id", "agent_id", "agent_name", "step", "call_key", "call_id", "tool"))
    call = operation.call
    return {
        "execution_id": operation.execution_id,
        "agent_id": operation.agent_id,
        "agent_name": operation.agent_name or None,
        "step": operation.step_number or None,
        "call_key": operation.key or None,
        "call_id": None if call is None else call.id or None,
        "tool": None if call is None else call.name,
    }


def _as_json(value: object) -> object:
    """Return an addition as it is if it has a JSON form, else as its repr, or as its class if that fails."""
    with suppress(TypeError, ValueError, RecursionError):
        return parse_json(format_json(value))
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # of any class; the record must not be lost
        return f"<{type(value).__name__}>"
