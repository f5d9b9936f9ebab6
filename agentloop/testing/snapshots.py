"""Snapshots: what happened in a run as a text that can be stored beside a test and compared with later runs."""

from __future__ import annotations

import json
from difflib import unified_diff
from pathlib import Path
from typing import Any

from agentloop.values.json import parse_json, thaw
from agentloop.values.secrets import open_private
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolExecution


def snapshot_of(state: AgentState) -> str:
    """Return the current execution of a state as JSON text, without what differs between equal runs.

    It has the question, the texts of the model, the calls with their arguments and outcomes, the errors, the tokens, and how the
    execution ended; no ids and no times.
    """
    asked = [message.text for message in state.messages if message.role == "user"]
    stop = state.stop_signal
    data: dict[str, Any] = {
        "question": asked[-1] if asked else None,
        "steps": [_step(step) for step in state.steps],
        "status": state.status.value,
        "stop": None if stop is None else {"reason": stop.reason.value, "message": stop.message},
        "answer": state.final_text,
        "pending": [{"tool": call.call.name, "reason": call.reason} for call in state.pending],
        "tokens": {"input": state.usage.input_tokens, "output": state.usage.output_tokens},
    }
    text = json.dumps(_without_empty(data), ensure_ascii=False, indent=2)
    # Half of a character, which no file can have, is written as its escape.
    return f"{text.encode('utf-8', 'backslashreplace').decode('utf-8')}\n"


def check_snapshot(state: AgentState, path: Path | str, *, update: bool = False) -> None:
    """Compare a run with the snapshot in a file.

    Args:
        state: the state at the end of the run.
        path: the file.
        update: whether to write the file instead.

    Raises:
        AssertionError: the run differs, with the lines that do; or the file is missing.
    """
    path, text = Path(path), snapshot_of(state)
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", opener=open_private) as file:  # Path.open has no opener
            file.write(text)
        return
    if not path.exists():
        raise AssertionError(f"there is no snapshot {path} yet; run the test with --record to write it")
    known = path.read_text(encoding="utf-8")
    if known != text:
        lines = unified_diff(known.splitlines(), text.splitlines(), "the snapshot", "this run", lineterm="")
        listed = "\n".join(lines)
        raise AssertionError(f"the run differs from {path}; with --record it becomes the snapshot\n{listed}")


def _step(step: AgentStep) -> dict[str, Any]:
    text = "" if step.message is None else step.message.text
    errors = [f"{error.type}: {error.message}" for error in step.errors]
    return _without_empty({"text": text, "calls": [_call(each) for each in step.executions], "errors": errors})


def _call(execution: ToolExecution) -> dict[str, Any]:
    error = None if execution.error is None else f"{execution.error.type}: {execution.error.message}"
    call = execution.call
    outcome = {"value": thaw(execution.value)} if execution.error is None else {"error": error}
    return {
        "tool": call.name,
        "arguments": _arguments(call.arguments_json),
        "status": execution.status.value,
        **outcome,
    }


def _arguments(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value not in (None, "", [])}
