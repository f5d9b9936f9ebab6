"""A log with one line per tool call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from agentloop.contracts.can_intercept import MaybeAwaitable
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.errors import InvalidParameter, MalformedArguments
from agentloop.interception.interceptor import Interceptor
from agentloop.values.json import format_json, thaw
from agentloop.values.points import AfterToolUse
from agentloop.values.policies import CallPolicy
from agentloop.values.secrets import MASK, SecretFields, mask_texts, open_private
from agentloop.values.tool_calls import ToolExecution, ToolSpec

logger: logging.Logger = logging.getLogger("agentloop.audit")

Sink: TypeAlias = Callable[[Mapping[str, Any]], object] | str | Path | TextIO


class AuditLog(Interceptor, CanTellControls):
    """Writes a line per settled call: time, name and id of the calling agent, tool, arguments, outcome, duration_ms, success.

    By default it is outside of other interceptors, so a line has what the model and the state get. A line that cannot be
    written fails the execution: no call goes unaudited.

    Args:
        to: the destination: a path to which JSON lines are appended, an open text file, or a plain or async function of
            the entry. By default, the logger `agentloop.audit` at level INFO.
        secrets: fields to mask in arguments, results and errors: by name at any depth, such as `password`, or by path from the
            top, such as `card.number`. Their values are also masked in the other texts of the line. Arguments that cannot be
            parsed are masked completely.
        results: whether to write the results of the calls as well.
        priority: the position among other interceptors.
    """

    has_side_effects: bool = True
    writes: Collection[str] | None = ()

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
        if not isinstance(results, bool):
            raise InvalidParameter(f"the results of AuditLog has to be a bool, not {type(results).__name__}")
        self.results = results
        self._write = _create_writer(to)

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # it is for every tool
        """Return that it records the outcomes."""
        return [Control("records", "outcomes", of="outcomes")]

    def after_tool_use(self, point: AfterToolUse) -> MaybeAwaitable[AfterToolUse]:
        """Write the line."""
        execution = point.execution
        content = self._masked_content(execution) if self.secrets.paths else self._content(execution)
        written = self._write(
            {
                "time": execution.ended_at.isoformat(),
                **({"agent": point.state.agent_name} if point.state.agent_name else {}),
                "caller": point.state.agent_id,
                "execution": point.state.execution_id,
                "key": execution.key,
                "tool": execution.name,
                "outcome": execution.status.value,
                "duration_ms": round(execution.duration_ms, 3),
                "success": execution.succeeded,
                **content,
            }
        )
        return _await_written(written, point) if isawaitable(written) else point

    def _content(self, execution: ToolExecution) -> dict[str, Any]:
        content = {"arguments": execution.call.arguments_json, "error": execution.error_message}
        return {**content, "result": thaw(execution.value)} if self.results else content

    def _masked_content(self, execution: ToolExecution) -> dict[str, Any]:
        content, secret_texts = self._content(execution), set[str]()
        try:
            execution.call.arguments  # noqa: B018  # parses them
        except MalformedArguments as error:
            # Nothing tells where the secrets are in text that cannot be parsed, and its error message quotes it.
            content["arguments"] = MASK
            content["error"] = type(error).__name__ if execution.has_error else ""
        else:
            content["arguments"] = self.secrets.mask_text(content["arguments"], secret_texts)
        if isinstance(content.get("result"), str):
            content["result"] = self.secrets.mask_text(content["result"], secret_texts)
        elif "result" in content:
            content["result"] = self.secrets.mask(content["result"], secret_texts)
        # An error message may repeat an argument: what was masked in one text is masked in all of them.
        return {name: mask_texts(value, secret_texts) for name, value in content.items()}


async def _await_written(written: Awaitable[object], point: AfterToolUse) -> AfterToolUse:
    await written
    return point


def _create_writer(to: Sink | None) -> Callable[[Mapping[str, Any]], object]:
    if to is None:
        return lambda entry: logger.info("%s", format_json(entry).decode())
    if isinstance(to, str | Path):
        # Opened for each line: an interceptor has no end of life at which it could close the file.
        path = Path(to)

        def append(entry: Mapping[str, Any]) -> None:
            with open(path, "ab", opener=open_private) as file:
                file.write(format_json(entry) + b"\n")

        return append
    if callable(to):
        return to
    return lambda entry: to.write(format_json(entry).decode() + "\n")
