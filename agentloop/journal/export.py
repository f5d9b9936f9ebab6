"""A recorded execution as a test file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs
from attrs import define, evolve, field

from agentloop.journal.fixture import Fixture, build_fixture, is_decision
from agentloop.journal.fold import fold_records
from agentloop.values.json import JsonArray, JsonObject, format_json, thaw
from agentloop.values.records import JournalRecord
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value

_WIDTH = 100
_LONGEST = 60
"""A text of more lines stands on one, however long."""
_DEEPEST = 30
"""What is nested more deeply is written as JSON text; Python's parser would refuse it at some depth."""
_INDENT = "    "


@define(eq=False)
class SourceWriter:
    """Writes values as the calls that make them, broken into lines where they are long.

    Attributes:
        names: the names of the classes that were used, for the imports.
        uses_json: whether `parse_json` was used.
    """

    names: set[str] = field(factory=set)
    uses_json: bool = False

    def source(self, value: object, indent: str = "") -> str:
        """Return the source of a value.

        Args:
            value: a value of agentloop, JSON, or a sequence or mapping of these.
            indent: what stands before the line that it begins in.

        Raises:
            TypeError: for anything else.
        """
        if isinstance(value, Value):
            return self._state(value, indent) if isinstance(value, AgentState) else self._call(value, indent)
        if isinstance(value, Mapping | list | tuple):
            return self._collection(value, indent)
        if isinstance(value, str):
            return self._member(value) if isinstance(value, StrEnum) else _text(value, indent)
        if value is None or isinstance(value, bool | int | float | bytes):
            return repr(value)
        raise TypeError(f"a {type(value).__name__} has no source")

    def _collection(self, value: Mapping[Any, object] | Sequence[object], indent: str) -> str:
        if isinstance(value, JsonObject | JsonArray) and _depth(value) > _DEEPEST:
            self.uses_json = True
            return f"parse_json({_text(format_json(thaw(value)).decode(), indent)})"
        if isinstance(value, Mapping):
            return self._bracketed("{", [(f"{name!r}: ", one) for name, one in value.items()], "}", indent)
        return self._bracketed("[", [("", one) for one in value], "]", indent)

    def _member(self, value: StrEnum) -> str:
        self.names.add(type(value).__name__)
        return f"{type(value).__name__}.{value.name}"

    def _call(self, value: Value, indent: str) -> str:
        kind: Any = type(value)
        self.names.add(kind.__name__)
        given: list[tuple[str, object]] = []
        named = False
        for one in attrs.fields(kind):
            told = getattr(value, one.name)
            if not one.init or (one.default is not attrs.NOTHING and told == _default(one)):
                named = True
                continue
            named = named or one.kw_only
            given.append((f"{one.alias}=" if named else "", told))
        return self._bracketed(f"{kind.__name__}(", given, ")", indent)

    def _state(self, state: AgentState, indent: str) -> str:
        """Write how a state began, where it has not gone further, else its JSON."""
        self.names.add("AgentState")
        asked = state.messages[0].text if state.messages else ""
        fresh = AgentState.start(asked, system_prompt=state.context.system_prompt, agent_id=state.agent_id)
        if evolve(fresh, created_at=state.created_at, updated_at=state.updated_at) != state:
            self.names.add("from_json")
            return f"from_json({_text(to_json(state).decode(), indent)}, AgentState)"
        given = [("", asked), ("system_prompt=", state.context.system_prompt), ("agent_id=", state.agent_id)]
        return self._bracketed("AgentState.start(", [one for one in given if one[1] or not one[0]], ")", indent)

    def _bracketed(self, begin: str, items: Iterable[tuple[str, object]], end: str, indent: str) -> str:
        inner = indent + _INDENT
        parts = [f"{name}{self.source(one, inner)}" for name, one in items]
        line = f"{begin}{', '.join(parts)}{end}"
        if not parts or (len(indent) + len(line) <= _WIDTH and "\n" not in line):
            return line
        return "\n".join([begin, *[f"{inner}{part}," for part in parts], f"{indent}{end}"])


def _default(one: attrs.Attribute[Any]) -> object:
    """Return the default of a field, as an instance would hold it."""
    factory: Any = getattr(one.default, "factory", None)
    default = one.default if factory is None else factory()
    converter: Any = one.converter
    return default if converter is None else converter(default)


def _text(text: str, indent: str = "") -> str:
    """Return a text as one literal, or as several that Python joins."""
    if len(text) <= _WIDTH:
        return repr(text)
    pieces = _pieces(text)
    if len(pieces) > _LONGEST or len(pieces) == 1:
        return repr(text)
    inner = indent + _INDENT
    return "\n".join(["(", *[f"{inner}{piece!r}" for piece in pieces], f"{indent})"])


def _pieces(text: str) -> Sequence[str]:
    if len(text) > _WIDTH * _LONGEST:
        return [text]
    lines = text.splitlines(keepends=True)
    return [line[at : at + _WIDTH] for line in lines for at in range(0, len(line), _WIDTH)]


def _depth(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list | tuple):
        return 1 + max(map(_depth, value), default=0)
    return 0


_OF_JOURNAL = frozenset({"FixtureOutcome", "Fixture"})


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
    recording, state = build_fixture(known, execution_id), fold_records(known, execution_id).state
    assert state is not None  # noqa: S101  # there are records
    writer = SourceWriter()
    data = _data(recording, writer)
    test = _test(state, writer, loop=bool(loop), name=_name(execution_id))
    return "\n".join([_head(writer, loop), data, "\n", test, ""])


def _data(recording: Fixture, writer: SourceWriter) -> str:
    tables = [("SCRIPT", recording.script), ("TOOLS", recording.tools), ("OUTCOMES", recording.outcomes)]
    lines = [f"{name} = {writer.source(value)}" for name, value in tables]
    writer.names.add("Fixture")
    given = [
        f"execution_id={writer.source(recording.execution_id)}",
        f"state={writer.source(recording.state, '    ')}",
        "script=SCRIPT",
        "tools=TOOLS",
        "outcomes=OUTCOMES",
    ]
    for name in ("decisions", "messages", "step_errors", "recovered_steps", "continued_steps", "stop_signals"):
        value = getattr(recording, name)
        if value:
            given.append(f"{name}={writer.source(value, '    ')}")
    return "\n".join([*lines, "FIXTURE = Fixture(", *[f"    {one}," for one in given], ")"])


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
        f"    state = play(FIXTURE{', loop' if loop else ''})",
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
        *(["from agentloop.values.json import parse_json"] if writer.uses_json else []),
    ]
    if loop:
        module, _, name = loop.partition(":")
        lines += ["", f"from {module} import {name} as made", "", "loop = made() if callable(made) else made"]
    return "\n".join([*lines, ""])


def _name(execution_id: str) -> str:
    words = re.sub(r"[^0-9A-Za-z]+", "_", execution_id).strip("_")[:80]
    return f"test_{words or 'execution'}".lower()
