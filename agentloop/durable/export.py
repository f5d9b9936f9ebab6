"""A recorded execution as a pytest file."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs
from attrs import define, evolve, field

from agentloop.durable.fixture import Fixture, is_decision, read_fixture
from agentloop.values.json import JsonArray, JsonObject, format_json, thaw
from agentloop.values.records import JournalRecord
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value

_INDENT = "    "


def pytest_source(records: Iterable[JournalRecord], execution_id: str, *, loop: str = "") -> str:
    """Return the source of a test that plays an execution again and asserts its outcome.

    Recorded data are literals in the source, never code. The file depends on agentloop only.

    Args:
        records: all records of the execution.
        execution_id: the execution.
        loop: `module:name` of a loop, or of a function that returns one, whose tools and interceptors the test uses; empty for
            a test that does not depend on your code.

    Raises:
        UnknownExecution: there are no records.
        JournalCorrupt: a record cannot be read.
    """
    fixture, state = read_fixture(records, execution_id)
    writer = SourceWriter()
    data = _data_source(fixture, writer)
    test = _test_source(state, writer, has_loop=bool(loop), name=_test_name(execution_id))
    # The head comes last: the writer knows the imports when everything else is written.
    return "\n".join([_head_source(writer, loop), data, "\n", test, ""])


# --- the parts of the file --------------------------------------------------------------------------------------------

_MAX_ROW_LENGTH = 120
_OPTIONAL_FIELDS = ("decisions", "messages", "step_errors", "recovered_steps", "continued_steps", "stop_signals")


def _head_source(writer: SourceWriter, loop: str) -> str:
    modules = defaultdict[str, list[str]](list)
    for name, module in sorted({**writer.names, "play": "agentloop.testing"}.items()):
        modules[module].append(name)
    if writer.uses_json:
        modules["agentloop.values.json"].append("parse_json")
    lines = [
        '"""A recorded execution, played again. Written by `agentloop runs export --pytest`."""',
        "",
        "from __future__ import annotations",
        "",
        *[f"from {module} import {', '.join(names)}" for module, names in sorted(modules.items())],
    ]
    if loop:
        module, _, name = loop.partition(":")
        lines += [
            "",
            f"from {module} import {name} as loop_or_factory",
            "",
            "loop = loop_or_factory() if callable(loop_or_factory) else loop_or_factory",
        ]
    return "\n".join([*lines, ""])


def _data_source(fixture: Fixture, writer: SourceWriter) -> str:
    tables = [("SCRIPT", fixture.script), ("TOOLS", fixture.tools), ("OUTCOMES", fixture.outcomes)]
    lines = [f"{name} = {writer.source(value)}" for name, value in tables]
    writer.use(Fixture)
    arguments = [
        f"execution_id={writer.source(fixture.execution_id)}",
        f"state={writer.source(fixture.state, _INDENT)}",
        "script=SCRIPT",
        "tools=TOOLS",
        "outcomes=OUTCOMES",
    ]
    for name in _OPTIONAL_FIELDS:
        value = getattr(fixture, name)
        if value:
            arguments.append(f"{name}={writer.source(value, _INDENT)}")
    return "\n".join([*lines, "FIXTURE = Fixture(", *[f"{_INDENT}{argument}," for argument in arguments], ")"])


def _test_source(state: AgentState, writer: SourceWriter, *, has_loop: bool, name: str) -> str:
    calls = [
        (execution.name, execution.call.arguments_json, execution.status.value, execution.text)
        for step in state.steps
        for execution in step.executions
        if not is_decision(execution.call, step)
    ]
    answer = state.final_text
    lines = [
        f"def {name}() -> None:",
        '    """The execution has the recorded outcome."""',
        f"    state = play(FIXTURE{', loop' if has_loop else ''})",
        "    calls = [",
        "        (execution.name, execution.call.arguments_json, execution.status, execution.text)",
        "        for step in state.steps",
        "        for execution in step.executions",
        "    ]",
        f"    assert calls == {_rows_source(calls, writer)}",
        *_status_assertions(state),
        f"    assert state.final_text == {'None' if answer is None else writer.source(answer, _INDENT)}",
    ]
    if state.errors:
        errors = [(error.type, error.message) for error in state.errors]
        lines.append("    errors = [(error.type, error.message) for error in state.errors]")
        lines.append(f"    assert errors == {_rows_source(errors, writer)}")
    if state.pending:
        lines.append(f"    assert [call.key for call in state.pending] == {[call.key for call in state.pending]!r}")
    return "\n".join(lines)


def _status_assertions(state: AgentState) -> Sequence[str]:
    """Return assertions about the status and the reason for stopping."""
    if state.status is ExecutionStatus.IN_PROGRESS:  # the player stops the execution where the record ends
        return ["    assert state.status == 'stopped'  # where the record ends"]
    signal = state.stop_signal
    lines = [f"    assert state.status == {state.status.value!r}"]
    if signal is not None:
        lines += [
            "    assert state.stop_signal is not None",
            f"    assert state.stop_signal.reason == {signal.reason.value!r}",
        ]
    return lines


def _rows_source(rows: Sequence[Sequence[str]], writer: SourceWriter) -> str:
    """Return the source of a list of tuples of texts, one tuple per line where it fits."""
    if not rows:
        return "[]"
    lines = []
    for row in rows:
        parts = [writer.source(part, _INDENT * 3) for part in row]
        line = f"        ({', '.join(parts)}),"
        if "\n" in line or len(line) > _MAX_ROW_LENGTH:
            line = "\n".join(["        (", *[f"            {part}," for part in parts], "        ),"])
        lines.append(line)
    return "\n".join(["[", *lines, "    ]"])


def _test_name(execution_id: str) -> str:
    # Any id gives a valid name, and two ids may give the same: a file holds one test.
    words = re.sub(r"[^0-9A-Za-z]+", "_", execution_id).strip("_")[:80]
    return f"test_{words or 'execution'}".lower()


# --- the source of values ---------------------------------------------------------------------------------------------

_WIDTH = 100
_MAX_TEXT_LINES = 60
"""The maximum number of lines of a text; a longer one is a single literal, whatever its length."""
_MAX_DEPTH = 30
"""The maximum depth of nested literals; deeper JSON is written as text, because Python's parser limits nesting."""


@define(eq=False)
class SourceWriter:
    """Writes values as the calls that create them, with line breaks where they are long.

    Attributes:
        names: the names of the classes and functions that were used, with the modules from which they are imported.
        uses_json: whether `parse_json` was used.
    """

    names: dict[str, str] = field(factory=dict)
    uses_json: bool = False

    def source(self, value: object, indent: str = "") -> str:
        """Return the source of a value.

        Args:
            value: a value of agentloop, JSON, or a sequence or mapping of these.
            indent: the indentation of the line in which the source starts.

        Raises:
            TypeError: the value is of another type.
        """
        if isinstance(value, Value):
            return self._state(value, indent) if isinstance(value, AgentState) else self._call(value, indent)
        if isinstance(value, Mapping | list | tuple):
            return self._collection(value, indent)
        if isinstance(value, str):
            return self._member(value) if isinstance(value, StrEnum) else _text_source(value, indent)
        if value is None or isinstance(value, bool | int | float | bytes):
            return repr(value)
        raise TypeError(f"a {type(value).__name__} has no source")

    def _collection(self, value: Mapping[Any, object] | Sequence[object], indent: str) -> str:
        # Only JSON can be nested without limit.
        if isinstance(value, JsonObject | JsonArray) and _depth_of(value) > _MAX_DEPTH:
            self.uses_json = True
            return f"parse_json({_text_source(format_json(thaw(value)).decode(), indent)})"
        if isinstance(value, Mapping):
            return self._bracketed("{", [(f"{name!r}: ", item) for name, item in value.items()], "}", indent)
        return self._bracketed("[", [("", item) for item in value], "]", indent)

    def use(self, used: type) -> str:
        """Return the name of a class, and import it where its room exports it, or else from its module."""
        room = ".".join(used.__module__.split(".")[:2])
        is_exported = used.__name__ in getattr(sys.modules.get(room), "__all__", ())
        self.names[used.__name__] = room if is_exported else used.__module__
        return used.__name__

    def _member(self, value: StrEnum) -> str:
        return f"{self.use(type(value))}.{value.name}"

    def _call(self, value: Value, indent: str) -> str:
        """Return the call of a class with the fields that differ from their defaults."""
        kind: Any = type(value)
        self.use(kind)
        arguments: list[tuple[str, object]] = []
        needs_name = False
        for attribute in attrs.fields(kind):
            item = getattr(value, attribute.name)
            if not attribute.init or (attribute.default is not attrs.NOTHING and item == _default_of(attribute)):
                needs_name = True  # arguments after one that is left out cannot be positional
                continue
            needs_name = needs_name or attribute.kw_only
            arguments.append((f"{attribute.alias}=" if needs_name else "", item))
        return self._bracketed(f"{kind.__name__}(", arguments, ")", indent)

    def _state(self, state: AgentState, indent: str) -> str:
        """Return the call that starts a state if it is new, or else its JSON."""
        self.use(AgentState)
        question = state.messages[0].text if state.messages else ""
        fresh = AgentState.start(question, system_prompt=state.context.system_prompt, agent_id=state.agent_id)
        if evolve(fresh, created_at=state.created_at, updated_at=state.updated_at) != state:
            self.names["from_json"] = "agentloop.values"
            return f"from_json({_text_source(to_json(state).decode(), indent)}, AgentState)"
        arguments = [("", question), ("system_prompt=", state.context.system_prompt), ("agent_id=", state.agent_id)]
        used = [(name, value) for name, value in arguments if value or not name]
        return self._bracketed("AgentState.start(", used, ")", indent)

    def _bracketed(self, start: str, items: Iterable[tuple[str, object]], end: str, indent: str) -> str:
        """Return items between brackets, in one line if they fit.

        Args:
            start: the opening bracket, with what precedes it.
            items: the items, each with a prefix such as the name of an argument.
            end: the closing bracket.
            indent: the indentation of the line in which the source starts.
        """
        inner = indent + _INDENT
        parts = [f"{prefix}{self.source(item, inner)}" for prefix, item in items]
        line = f"{start}{', '.join(parts)}{end}"
        if not parts or (len(indent) + len(line) <= _WIDTH and "\n" not in line):
            return line
        return "\n".join([start, *[f"{inner}{part}," for part in parts], f"{indent}{end}"])


def _default_of(attribute: attrs.Attribute[Any]) -> object:
    """Return the default of a field as an instance holds it, after conversion."""
    factory: Any = getattr(attribute.default, "factory", None)
    default = attribute.default if factory is None else factory()
    converter: Any = attribute.converter
    return default if converter is None else converter(default)


def _text_source(text: str, indent: str = "") -> str:
    """Return a text as one literal, or as several adjacent ones that Python joins."""
    if len(text) <= _WIDTH:
        return repr(text)
    pieces = _split_text(text)
    # One long line is easier to skip than a page of short ones.
    if len(pieces) > _MAX_TEXT_LINES or len(pieces) == 1:
        return repr(text)
    inner = indent + _INDENT
    return "\n".join(["(", *[f"{inner}{piece!r}" for piece in pieces], f"{indent})"])


def _split_text(text: str) -> Sequence[str]:
    if len(text) > _WIDTH * _MAX_TEXT_LINES:
        return [text]
    lines = text.splitlines(keepends=True)
    return [line[start : start + _WIDTH] for line in lines for start in range(0, len(line), _WIDTH)]


def _depth_of(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth_of, value.values()), default=0)
    if isinstance(value, list | tuple):
        return 1 + max(map(_depth_of, value), default=0)
    return 0
