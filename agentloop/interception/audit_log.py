"""A line per tool call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from agentloop.errors import MalformedArguments
from agentloop.interception.interceptor import Interceptor
from agentloop.values.json import format_json, thaw
from agentloop.values.points import AfterToolUse
from agentloop.values.secrets import MASK, SecretFields, mask_texts
from agentloop.values.tool_calls import ToolExecution

logger: logging.Logger = logging.getLogger("agentloop.audit")

Sink: TypeAlias = Callable[[Mapping[str, Any]], object] | str | Path | TextIO


class AuditLog(Interceptor):
    """Writes a line per settled call: time, caller, tool, arguments, outcome, duration_ms, success.

    It stands outside of other interceptors, so a line says what the model and the state get. A line that cannot be
    written is an error of the execution: what must be audited does not go on unaudited.

    Args:
        to: where lines go: a path that JSON lines are appended to, an open text file, or a function of the entry. When
            left out, the logger `agentloop.audit` at level INFO.
        secrets: fields that are masked in arguments, results and errors: by their name wherever they stand, as `password`,
            or by a path from the top, as `card.number`. What they hold is masked in the other texts of the line as well.
            Arguments that cannot be read are masked whole.
        results: write what the calls returned, too.
        priority: where it stands among the interceptors.
    """

    has_side_effects: bool = True

    def __init__(
        self,
        to: Sink | None = None,
        *,
        secrets: Iterable[str] = (),
        results: bool = False,
        priority: int = 2000,
    ) -> None:
        self.priority = priority
        self.secrets: SecretFields = SecretFields(secrets)
        self.results = results
        self._write = _writer(to)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Write the line."""
        execution = point.execution
        told = self._masked(execution) if self.secrets.paths else self._plain(execution)
        self._write(
            {
                "time": execution.ended_at.isoformat(),
                "caller": point.state.agent_id,
                "execution": point.state.execution_id,
                "key": execution.key,
                "tool": execution.name,
                "outcome": execution.status.value,
                "duration_ms": round(execution.duration_ms, 3),
                "success": execution.succeeded,
                **told,
            }
        )
        return point

    def _plain(self, execution: ToolExecution) -> dict[str, Any]:
        told = {"arguments": execution.call.arguments_json, "error": execution.error_message}
        return {**told, "result": thaw(execution.value)} if self.results else told

    def _masked(self, execution: ToolExecution) -> dict[str, Any]:
        told, found = self._plain(execution), set[str]()
        try:
            execution.call.arguments  # noqa: B018  # to know whether they can be read
        except MalformedArguments as error:
            told["arguments"] = MASK
            told["error"] = type(error).__name__ if execution.has_error else ""
        else:
            told["arguments"] = self.secrets.mask_text(told["arguments"], found)
        if isinstance(told.get("result"), str):
            told["result"] = self.secrets.mask_text(told["result"], found)
        elif "result" in told:
            told["result"] = self.secrets.mask(told["result"], found)
        return {name: mask_texts(one, found) for name, one in told.items()}


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
