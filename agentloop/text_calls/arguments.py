"""From what a notation says to a call of an offered tool: names for positions, types for text, and the coercion."""

from __future__ import annotations

from math import isfinite
from typing import Final

from attrs import field, frozen

from agentloop.text_calls.literal_reader import LiteralReader
from agentloop.text_calls.literals import LONGEST_WORD, PYTHON, NotAValue, read_word
from agentloop.text_calls.offered_tools import OfferedTools, fits, items_of, properties_of, types_of
from agentloop.text_calls.reading import Draft, FoundCall, Refusal
from agentloop.values.json import format_json, freeze_object, parse_json

_BEGINNINGS: Final = frozenset('{["-0123456789tfn')


@frozen
class Tree:
    """Text in nested tags.

    Attributes:
        text: the text of a tag that holds no others.
        children: the tags in it, by name, in order.
    """

    text: str = ""
    children: list[tuple[str, Tree]] = field(factory=list)


def typed(untyped: object, schema: object) -> object:
    """Return the value that a text or a tree stands for: text where the schema takes text, else what it reads as, if that fits."""
    if isinstance(untyped, Tree):
        return _typed_tree(untyped, schema)
    text = str(untyped)
    types = types_of(schema)
    if "string" in types:
        return text
    if not types or "any" in types:
        return _json(text)
    value = _literal(text.strip())
    return value if value is not None and fits(value, schema) else _null_or(text, schema)


def _typed_tree(tree: Tree, schema: object) -> object:
    types = types_of(schema)
    if not tree.children:
        if tree.text.strip() or not types & {"array", "object"}:
            return typed(tree.text, schema)
        return [] if "array" in types else {}
    names = [name for name, _ in tree.children]
    if "array" in types or (not types and len(names) > 1 and len(set(names)) == 1):
        return [typed(child, items_of(schema)) for _, child in tree.children]
    properties = properties_of(schema)
    return {name: typed(child, properties.get(name)) for name, child in tree.children}


def _null_or(text: str, schema: object) -> object:
    return None if text.strip() in {"null", "None"} and fits(None, schema) else text


def _json(text: str) -> object:
    """Return what a text is as JSON, or the text; a lone JSON string keeps its quotation marks."""
    if text.strip()[:1] not in _BEGINNINGS or text.strip()[:1] == '"':
        return text
    try:
        value: object = parse_json(text)
    except ValueError:
        return text
    return value


def _literal(text: str) -> object:
    if text[:1] in {"{", "["}:
        reader = LiteralReader(0, PYTHON)
        reader.advance(text, ended=True)
        return reader.value if reader.value is not None and reader.at == len(text) else None
    if len(text) > LONGEST_WORD:
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return read_word(text)[0]
    except NotAValue:
        return None


POSITIONS: Final = "positions given names"
NUMBER_FROM_TEXT: Final = "text read as number"
BOOLEAN_FROM_TEXT: Final = "text read as boolean"

_LONGEST_NUMBER: Final = 40


class NotACall(Exception):
    """A draft cannot be a call; the message says why."""


@frozen
class Rules:
    """What is done with calls that do not fit the offered tools as they are.

    Attributes:
        coerce: whether text becomes a number or a boolean where a tool's schema takes no text.
        only_offered: whether calls of tools that were not offered are refused in every notation.
    """

    coerce: bool = True
    only_offered: bool = False


def completed(draft: Draft, tools: OfferedTools, format_name: str, rules: Rules) -> FoundCall | Refusal:
    """Return the call that a draft stands for, or why it is none.

    Args:
        draft: what the notation says.
        tools: the tools that the model was offered.
        format_name: the name of the notation.
        rules: what is done with calls that do not fit the offered tools.
    """
    name = tools.plain_name(draft.name)
    if rules.only_offered and not tools.knows(name):
        return Refusal(f"{name[:80]} is not offered", draft.start, draft.end, format_name)
    repairs = list(draft.repairs)
    try:
        arguments = _by_name(draft, name, tools, repairs)
        properties = tools.properties(name)
        arguments.update({key: typed(arguments[key], properties.get(key)) for key in draft.untyped})
        if rules.coerce:
            arguments = {key: _coerced(value, properties.get(key), repairs) for key, value in arguments.items()}
        if draft.raw and not repairs:
            written = draft.raw
        else:
            written = format_json(freeze_object(arguments)).decode("utf-8", "surrogatepass")
    except (NotACall, ValueError, TypeError) as refusal:
        return Refusal(str(refusal), draft.start, draft.end, format_name)
    return FoundCall(name, written, draft.start, draft.end, format_name, tuple(dict.fromkeys(repairs)))


def _by_name(draft: Draft, name: str, tools: OfferedTools, repairs: list[str]) -> dict[str, object]:
    if not draft.positional:
        return dict(draft.arguments)
    properties = tools.properties(name)
    if len(draft.positional) > len(properties):
        raise NotACall(f"{name} takes {len(properties)} arguments, {len(draft.positional)} were given by position")
    arguments: dict[str, object] = {}
    for key, value in zip(properties, draft.positional, strict=False):
        if key in draft.arguments:
            raise NotACall(f"the argument {key} of {name} is given twice")
        if not fits(value, properties[key]):
            raise NotACall(f"the argument {key} of {name} is given by position with a value of another type")
        arguments[key] = value
    repairs.append(POSITIONS)
    return arguments | dict(draft.arguments)


def _coerced(value: object, schema: object, repairs: list[str]) -> object:
    """Return a value in which text is a number or a boolean where the schema takes that and no text."""
    if isinstance(value, str):
        return _coerced_text(value, types_of(schema), repairs)
    if isinstance(value, list):
        items = items_of(schema)
        return [_coerced(item, items, repairs) for item in value] if items else value
    if isinstance(value, dict):
        properties = properties_of(schema)
        return (
            {key: _coerced(item, properties.get(key), repairs) for key, item in value.items()} if properties else value
        )
    return value


def _coerced_text(text: str, types: frozenset[str], repairs: list[str]) -> object:
    if not types or types & {"string", "any"}:
        return text
    truth = _boolean(text) if "boolean" in types else None
    if truth is not None:
        repairs.append(BOOLEAN_FROM_TEXT)
        return truth
    number = _number(text, integer="number" not in types) if types & {"number", "integer"} else None
    if number is not None:
        repairs.append(NUMBER_FROM_TEXT)
        return number
    return text


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.strip().lower())


def _number(text: str, *, integer: bool) -> int | float | None:
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass  # not a whole number
    try:
        number = float(text)
    except ValueError:
        return None
    return None if integer or not isfinite(number) else number
