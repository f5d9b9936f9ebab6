"""What text between tags means, where the notation itself knows no types: the schema says."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen

from agentloop.drivers.modes.text_formats.literals.dialect import PYTHON
from agentloop.drivers.modes.text_formats.literals.literal_reader import LiteralReader
from agentloop.drivers.modes.text_formats.literals.words import LONGEST_WORD, NotAValue, read_word
from agentloop.drivers.modes.text_formats.schema_types import fits, items_of, properties_of, types_of
from agentloop.values.json_text import parse_json

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
