"""Values as Python source: what was recorded goes in as literals and never as code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs
from attrs import define, evolve, field

from agentloop.values.agent_state import AgentState
from agentloop.values.json_text import format_json
from agentloop.values.json_value import JsonArray, JsonObject, thaw
from agentloop.values.serialisation import to_json
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
