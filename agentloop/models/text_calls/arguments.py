"""Resolving a drafted call against the offered tools: argument names, types and coercion."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Final

from attrs import field, frozen

from agentloop.models.text_calls.literal_reader import LiteralReader
from agentloop.models.text_calls.literals import MAX_WORD_LENGTH, PYTHON, REPEATED_KEY, NotALiteral, read_word
from agentloop.models.text_calls.offered_tools import OfferedTools, has_accepted_type, items_of, properties_of, types_of
from agentloop.models.text_calls.results import ParsedCall, RejectedCall
from agentloop.models.text_calls.text_format import CallDraft
from agentloop.values.json import format_json, freeze_object, parse_json

POSITIONAL_ARGUMENTS: Final = "positions given names"
NUMBER_FROM_TEXT: Final = "text read as number"
BOOLEAN_FROM_TEXT: Final = "text read as boolean"


@frozen
class ResolveOptions:
    """How calls that do not match the offered tools exactly are treated.

    Attributes:
        coerce: whether a string becomes a number or a boolean where the tool's schema accepts no string, unless the tool is
            strict.
        only_offered: whether calls of tools that were not offered are rejected in every format.
    """

    coerce: bool = True
    only_offered: bool = False


def resolve_call(
    draft: CallDraft, tools: OfferedTools, format_name: str, options: ResolveOptions
) -> ParsedCall | RejectedCall:
    """Return the call that a draft describes, or why it is rejected.

    Args:
        draft: the call as its notation states it.
        tools: the tools that the model was offered.
        format_name: the name of the text format.
        options: how calls that do not match the offered tools exactly are treated.
    """
    name = tools.normalize_name(draft.name)
    if options.only_offered and not tools.is_offered(name):
        return RejectedCall(f"{name[:80]} is not offered", draft.start, draft.end, format_name)
    if problem := draft.problem or _find_nameless(draft, name, tools):
        return RejectedCall(problem, draft.start, draft.end, format_name)
    repairs = list(draft.repairs)
    if REPEATED_KEY in repairs:
        return RejectedCall(
            f"a key in the call of {name[:80]} occurs twice: pass each argument once",
            draft.start,
            draft.end,
            format_name,
        )
    try:
        arguments = _name_arguments(draft, name, tools, repairs)
        properties = tools.properties(name)
        arguments.update(
            {
                key: convert_untyped(arguments[key], properties.get(key), is_json=key in draft.encoded)
                for key in draft.untyped
            }
        )
        if options.coerce and not tools.is_strict(name):
            arguments = {key: _coerce(value, properties.get(key), repairs) for key, value in arguments.items()}
        # Valid JSON keeps the model's spelling: number formats and the order of keys survive.
        if draft.raw and not repairs:
            written = draft.raw
        else:
            written = format_json(freeze_object(arguments)).decode("utf-8", "surrogatepass")
    except (_NotACall, ValueError, TypeError) as error:
        return RejectedCall(str(error), draft.start, draft.end, format_name)
    return ParsedCall(name, written, draft.start, draft.end, format_name, tuple(dict.fromkeys(repairs)))


def _find_nameless(draft: CallDraft, name: str, tools: OfferedTools) -> str:
    """Return why a call is damaged: the name of its tool or of an argument is missing; empty if it has both."""
    if not name:
        return "the call has no name of a tool"
    properties = tools.properties(name)
    # A tool that describes no arguments may have any.
    if "" in draft.arguments and properties and "" not in properties:
        return f"an argument of {name[:80]} has no name"
    return ""


class _NotACall(Exception):
    """A draft cannot be a call; the message states the reason."""


def _name_arguments(draft: CallDraft, name: str, tools: OfferedTools, repairs: list[str]) -> dict[str, object]:
    """Return all arguments by name; positional ones are named after the schema's properties, in order."""
    if not draft.positional:
        return dict(draft.arguments)
    properties = tools.properties(name)
    if len(draft.positional) > len(properties):
        raise _NotACall(f"{name} takes {len(properties)} arguments, {len(draft.positional)} were passed by position")
    arguments: dict[str, object] = {}
    for key, value in zip(properties, draft.positional, strict=False):
        if key in draft.arguments:
            raise _NotACall(f"the argument {key} of {name} is passed twice")
        if not has_accepted_type(value, properties[key]):
            raise _NotACall(f"the argument {key} of {name} is passed by position with a value of the wrong type")
        arguments[key] = value
    repairs.append(POSITIONAL_ARGUMENTS)
    return arguments | dict(draft.arguments)


@frozen
class TagTree:
    """The content of a tag in a notation of nested tags.

    Attributes:
        text: the text of a tag without children.
        children: the tags inside it with their names, in order.
    """

    text: str = ""
    children: list[tuple[str, TagTree]] = field(factory=list)

    def named_children(self) -> dict[str, TagTree]:
        """Return the children by name; those of the same name are the children of one tree, which makes a list of them."""
        by_name: dict[str, list[TagTree]] = {}
        for name, child in self.children:
            by_name.setdefault(name, []).append(child)
        return {
            name: same[0] if len(same) == 1 else TagTree(children=[(name, child) for child in same])
            for name, same in by_name.items()
        }


def convert_untyped(value: object, schema: object, *, is_json: bool = False) -> object:
    """Return the value that a string or a tag tree represents.

    Args:
        value: what a notation without types contains.
        schema: the JSON Schema of the argument.
        is_json: whether the notation declares that the string is JSON.

    Returns:
        The string itself where the schema accepts strings, unless it is null, or an object or an array, and the schema accepts
        that, too; else the literal in it if that has an accepted type.
    """
    if isinstance(value, TagTree):
        return _convert_tree(value, schema)
    text = str(value)
    types = types_of(schema)
    is_untyped = not types or "any" in types
    if text.strip() in _NULLS and has_accepted_type(None, schema) and not is_untyped:
        return None
    if is_untyped or is_json or ("string" in types and text.strip()[:1] in {"{", "["}):
        decoded = _json_or_text(text, keeps_strings=not is_json)
        if has_accepted_type(decoded, schema):
            return decoded
    if "string" in types:
        return text
    literal = _read_literal(text.strip())
    if isinstance(literal, float) and literal.is_integer() and "number" not in types:
        literal = int(Decimal(text.strip()))  # the float may be another integer than the text
    return literal if literal is not None and has_accepted_type(literal, schema) else text


def _convert_tree(tree: TagTree, schema: object) -> object:
    types = types_of(schema)
    if not tree.children:
        if tree.text.strip() or not types & {"array", "object"}:
            return convert_untyped(tree.text, schema)
        return [] if "array" in types else {}
    names = [name for name, _ in tree.children]
    # Without a schema, several children of the same name are the items of a list.
    if "array" in types or (not types and len(names) > 1 and len(set(names)) == 1):
        return [convert_untyped(child, items_of(schema)) for _, child in tree.children]
    properties = properties_of(schema)
    return {name: convert_untyped(child, properties.get(name)) for name, child in tree.named_children().items()}


_NULLS: Final = frozenset({"null", "None"})
_JSON_STARTS: Final = frozenset("{[-0123456789tfn")


def _json_or_text(text: str, *, keeps_strings: bool = True) -> object:
    """Return the JSON value of a text, or the text; a JSON string may keep its quotation marks, which may be meant."""
    if keeps_strings and text.strip()[:1] not in _JSON_STARTS:
        return text
    try:
        value: object = parse_json(text)
    except ValueError:
        return text
    return value


def _read_literal(text: str) -> object:
    """Return the value of a literal; None if the text is none."""
    if text[:1] in {"{", "["}:
        reader = LiteralReader(0, PYTHON)
        reader.advance(text, is_complete=True)
        return reader.value if reader.value is not None and reader.position == len(text) else None
    if len(text) > MAX_WORD_LENGTH:
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return read_word(text)[0]
    except NotALiteral:
        return None


_MAX_NUMBER_LENGTH: Final = 40


def _coerce(value: object, schema: object, repairs: list[str]) -> object:
    """Convert strings, at any depth, to numbers and booleans where the schema accepts those and no string."""
    if isinstance(value, str):
        return _coerce_string(value, types_of(schema), repairs)
    if isinstance(value, list):
        items = items_of(schema)
        return [_coerce(item, items, repairs) for item in value] if items else value
    if isinstance(value, dict):
        properties = properties_of(schema)
        return (
            {key: _coerce(item, properties.get(key), repairs) for key, item in value.items()} if properties else value
        )
    return value


def _coerce_string(text: str, types: frozenset[str], repairs: list[str]) -> object:
    if not types or types & {"string", "any"}:
        return text
    truth = {"true": True, "false": False}.get(text.strip().lower()) if "boolean" in types else None
    if truth is not None:
        repairs.append(BOOLEAN_FROM_TEXT)
        return truth
    number = _read_number(text, is_integer="number" not in types) if types & {"number", "integer"} else None
    if number is not None:
        repairs.append(NUMBER_FROM_TEXT)
        return number
    return text


def _read_number(text: str, *, is_integer: bool) -> int | float | None:
    text = text.strip()
    # `int` and `float` also accept other scripts' digits and underscores, which are not numbers to a model.
    if len(text) > _MAX_NUMBER_LENGTH or not text.isascii() or "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass  # not a whole number
    try:
        number = float(text)
    except ValueError:
        return None
    if not isfinite(number) or (is_integer and not number.is_integer()):
        return None
    return int(Decimal(text)) if is_integer else number
