"""A recorded execution as a test file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agentloop.journal.exporting_outcomes import is_decision
from agentloop.journal.exporting_reading import recording_of
from agentloop.journal.exporting_recording import Recording
from agentloop.journal.exporting_source import SourceWriter
from agentloop.journal.fold import folded
from agentloop.values.agent_state import AgentState
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import JournalRecord

_OF_JOURNAL = frozenset({"Outcome", "Recording"})


def pytest_source(records: Iterable[JournalRecord], execution_id: str, *, loop: str = "") -> str:
    """Return the source of a test that plays an execution again and expects what came of it.

    What is recorded stands in it as literals; nothing of it is code. The file needs agentloop, and nothing else.

    Args:
        records: all records of the execution.
        execution_id: the execution.
        loop: `module:name` of a loop, or of a function that makes one, whose tools and interceptors the test uses; empty for a test
            of its own.

    Raises:
        UnknownExecution: when there are no records.
        JournalCorrupt: when one cannot be read.
    """
    known = list(records)
    recording, state = recording_of(known, execution_id), folded(known, execution_id).state
    assert state is not None  # noqa: S101  # there are records
    writer = SourceWriter()
    data = _data(recording, writer)
    test = _test(state, writer, loop=bool(loop), name=_name(execution_id))
    return "\n".join([_head(writer, loop), data, "\n", test, ""])


def _data(recording: Recording, writer: SourceWriter) -> str:
    tables = [("SCRIPT", recording.script), ("TOOLS", recording.tools), ("OUTCOMES", recording.outcomes)]
    lines = [f"{name} = {writer.source(value)}" for name, value in tables]
    writer.names.add("Recording")
    given = [
        f"execution_id={writer.source(recording.execution_id)}",
        f"state={writer.source(recording.state, '    ')}",
        "script=SCRIPT",
        "tools=TOOLS",
        "outcomes=OUTCOMES",
    ]
    for name in ("decisions", "messages", "failed", "recovered", "continued", "stops"):
        value = getattr(recording, name)
        if value:
            given.append(f"{name}={writer.source(value, '    ')}")
    return "\n".join([*lines, "RECORDING = Recording(", *[f"    {one}," for one in given], ")"])


def _test(state: AgentState, writer: SourceWriter, *, loop: bool, name: str) -> str:
    calls = [
        (execution.name, execution.call.arguments_json, execution.status.value, execution.text)
        for step in state.steps
        for execution in step.executions
        if not is_decision(execution.call, step)
    ]
    lines = [
        f"def {name}() -> None:",
        '    """The execution comes to what it came to when it was recorded."""',
        f"    state = play(RECORDING{', loop' if loop else ''})",
        "    calls = [(one.name, one.call.arguments_json, one.status, one.text) for step in state.steps for one in step.executions]",
        f"    assert calls == {_calls(calls, writer)}",
        *_ending(state),
        f"    assert state.final_text == {writer.source(state.final_text, '    ')}",
    ]
    if state.errors:
        errors = [(error.type, error.message) for error in state.errors]
        lines.append("    errors = [(error.type, error.message) for error in state.errors]")
        lines.append(f"    assert errors == {_calls(errors, writer)}")
    if state.pending:
        lines.append(f"    assert [call.key for call in state.pending] == {[call.key for call in state.pending]!r}")
    return "\n".join(lines)


def _ending(state: AgentState) -> Sequence[str]:
    """Expect the status and why it stopped; one that had not ended is stopped where the record ends."""
    if state.status is ExecutionStatus.IN_PROGRESS:
        return ["    assert state.status == 'stopped'  # where the record ends"]
    signal = state.stop_signal
    lines = [f"    assert state.status == {state.status.value!r}"]
    if signal is not None:
        lines += [
            "    assert state.stop_signal is not None",
            f"    assert state.stop_signal.reason == {signal.reason.value!r}",
        ]
    return lines


def _calls(calls: Sequence[Sequence[str]], writer: SourceWriter) -> str:
    if not calls:
        return "[]"
    rows = []
    for call in calls:
        parts = [writer.source(part, " " * 12) for part in call]
        row = f"        ({', '.join(parts)}),"
        if "\n" in row or len(row) > 120:  # noqa: PLR2004  # the width of a line
            row = "\n".join(["        (", *[f"            {part}," for part in parts], "        ),"])
        rows.append(row)
    return "\n".join(["[", *rows, "    ]"])


def _head(writer: SourceWriter, loop: str) -> str:
    values = sorted(writer.names - _OF_JOURNAL)
    lines = [
        '"""A recorded execution, played again. Written by `agentloop runs export --pytest`."""',
        "",
        "from __future__ import annotations",
        "",
        f"from agentloop.journal import {', '.join(sorted(writer.names & _OF_JOURNAL))}",
        "from agentloop.testing import play",
        *([f"from agentloop.values import {', '.join(values)}"] if values else []),
        *(["from agentloop.values.json_text import parse_json"] if writer.uses_json else []),
    ]
    if loop:
        module, _, name = loop.partition(":")
        lines += ["", f"from {module} import {name} as made", "", "loop = made() if callable(made) else made"]
    return "\n".join([*lines, ""])


def _name(execution_id: str) -> str:
    words = re.sub(r"[^0-9A-Za-z]+", "_", execution_id).strip("_")[:80]
    return f"test_{words or 'execution'}".lower()
