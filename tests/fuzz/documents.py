"""Hostile shapes of whole documents: each part of a sample that grows, and schemas that grow in each of their keywords."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Document = Callable[[int], Any]
"""Returns a document of about a number of characters."""

_FILLING: Final = ["a", {"a": 1}, ["a"]]
"""What a place of a sample that holds text may be filled with."""


def grown(sample: Any) -> Mapping[str, Document]:
    """Return documents by name, in each of which one part of a JSON sample grows.

    A text becomes long, also with escapes; a list has its last item many times; an object has many more members; and any value
    becomes a long list, or is nested deeply.

    Args:
        sample: JSON data.
    """
    documents: dict[str, Document] = {}
    for path in _paths(sample):
        name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path) or "$"
        for kind, grow in _GROWTHS.items():
            if grow(_at(sample, path), 10) is not None:
                documents[f"{name} {kind}"] = _grower(sample, path, grow)
    return documents


def _grower(sample: Any, path: tuple[Any, ...], grow: Callable[[Any, int], Any]) -> Document:
    return lambda size: json.dumps(_replaced(sample, path, grow(_at(sample, path), size)))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from _paths(member, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = [*value] if isinstance(value, list) else {**value}
    copy[path[0]] = _replaced(copy[path[0]], path[1:], new)
    return copy


def _long_text(value: Any, size: int) -> Any:
    return value + "a" * size if isinstance(value, str) else None


def _escaped_text(value: Any, size: int) -> Any:
    return value + '\\"\ud83d\n' * (size // 12) if isinstance(value, str) else None


def _repeated(value: Any, size: int) -> Any:
    if not isinstance(value, list) or not value:
        return None
    return value + value[-1:] * (size // (len(json.dumps(value[-1])) + 2))


def _different(value: Any, size: int) -> Any:
    """Return a list whose last item is repeated with other texts, as parts with ids are."""
    if not isinstance(value, list) or not value or not isinstance(value[-1], dict):
        return None
    item = value[-1]
    return value + [
        {key: f"{text}{number}" if isinstance(text, str) and key not in _FIXED else text for key, text in item.items()}
        for number in range(size // (len(json.dumps(item)) + 12))
    ]


_FIXED: Final = {"type", "role", "object"}


def _more_members(value: Any, size: int) -> Any:
    return {**value, **{f"k{number}": number for number in range(size // 14)}} if isinstance(value, dict) else None


def _list(_value: Any, size: int) -> Any:
    return [0] * (size // 3)


def _nested(_value: Any, size: int) -> Any:
    value: Any = 1
    for _ in range(min(size // 8, 180)):
        value = {"a": value}
    return [value] * max(1, size // 1_500)


_GROWTHS: Final[Mapping[str, Callable[[Any, int], Any]]] = {
    "as a long text": _long_text,
    "as a text with escapes": _escaped_text,
    "repeated": _repeated,
    "repeated with other texts": _different,
    "with more members": _more_members,
    "as a list of numbers": _list,
    "nested": _nested,
}


def events_of(*events: Any) -> Mapping[str, Document]:
    """Return streams of server-sent events, in which one event comes many times, or one part of an event grows.

    Args:
        events: the JSON data of the events of a short stream.
    """
    documents: dict[str, Document] = {}
    for index, event in enumerate(events):
        documents[f"event {index} repeated"] = _repeated_event(events, index)
        for name, document in grown(event).items():
            documents[f"event {index}: {name}"] = _grown_event(events, index, document)
    return documents


def _repeated_event(events: tuple[Any, ...], index: int) -> Document:
    def stream(size: int) -> str:
        count = size // (len(json.dumps(events[index])) + 8)
        return _stream(
            [json.dumps(event) for event in (*events[:index], *[events[index]] * count, *events[index + 1 :])]
        )

    return stream


def _grown_event(events: tuple[Any, ...], index: int, document: Document) -> Document:
    return lambda size: _stream(
        [document(size) if index == number else json.dumps(event) for number, event in enumerate(events)]
    )


def _stream(data: list[str]) -> str:
    return "".join([f"data: {each}\n\n" for each in data])


# --- schemas --------------------------------------------------------------------------------------------------------


def _schema(keyword: str, value: Callable[[int], Any], bytes_each: int) -> Document:
    """Return a document of a schema of which a keyword has a value for a number of parts."""
    return lambda size: json.dumps({"type": "object", "properties": {"a": {keyword: value(size // bytes_each)}}})


def _chain(count: int) -> dict[str, Any]:
    return {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(count)} | {f"d{count}": {}}


SCHEMAS: Final[Mapping[str, Document]] = {
    "properties": _schema("properties", lambda n: {f"p{i}": {"type": "string"} for i in range(n)}, 30),
    "descriptions": _schema("properties", lambda n: {f"p{i}": {"description": "a" * 60} for i in range(n)}, 90),
    "patternProperties": _schema("patternProperties", lambda n: {f"^a{i}": {} for i in range(n)}, 14),
    "patterns": _schema("properties", lambda n: {f"p{i}": {"pattern": f"^[a-z{i}]{{1,9}}$"} for i in range(n)}, 45),
    "the same pattern": _schema("properties", lambda n: {f"p{i}": {"pattern": "^[a-z]{1,9}$"} for i in range(n)}, 40),
    "enum of numbers": _schema("enum", lambda n: [*range(n)], 7),
    "enum of equal numbers": _schema("enum", lambda n: [1] * n, 3),
    "enum of numbers with one hash": _schema("enum", lambda n: [i * (2**61 - 1) for i in range(n)], 22),
    "enum of texts": _schema("enum", lambda n: [f"x{i}" for i in range(n)], 9),
    "enum of objects": _schema("enum", lambda n: [{"a": i} for i in range(n)], 12),
    "const": _schema("const", lambda n: [*range(n)], 7),
    "default with uniqueItems": _schema("items", lambda n: {"uniqueItems": True, "default": [*range(n)]}, 7),
    "required": _schema("required", lambda n: [f"r{i}" for i in range(n)], 9),
    "required of one name": _schema("required", lambda n: ["r"] * n, 5),
    "anyOf": _schema("anyOf", lambda n: [{"type": "string"}] * n, 20),
    "oneOf": _schema("oneOf", lambda n: [{"const": i} for i in range(n)], 16),
    "allOf": _schema("allOf", lambda n: [{"minLength": i} for i in range(n)], 18),
    "prefixItems": _schema("prefixItems", lambda n: [{"type": "string"}] * n, 20),
    "contains": _schema("allOf", lambda n: [{"contains": {"const": i}, "minContains": 1} for i in range(n)], 45),
    "dependentSchemas": _schema("dependentSchemas", lambda n: {f"p{i}": {"required": ["a"]} for i in range(n)}, 32),
    "dependentRequired": _schema("dependentRequired", lambda n: {f"p{i}": ["a", "b"] for i in range(n)}, 18),
    "one dependentRequired": _schema("dependentRequired", lambda n: {"a": [f"p{i}" for i in range(n)]}, 9),
    "dependencies of draft 7": lambda size: json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "dependencies": {f"p{i}": {"required": ["a"]} for i in range(size // 30)},
        }
    ),
    "if and then": _schema("allOf", lambda n: [{"if": {"const": i}, "then": {"type": "string"}} for i in range(n)], 45),
    "propertyNames": _schema("propertyNames", lambda n: {"enum": [f"p{i}" for i in range(n)]}, 9),
    "unevaluatedProperties": _schema(
        "allOf", lambda n: [{"properties": {f"p{i}": {}}, "unevaluatedProperties": False} for i in range(n)], 60
    ),
    "references": lambda size: json.dumps(
        {
            "$defs": {f"d{i}": {"type": "string"} for i in range(size // 60)},
            "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(size // 60)},
        }
    ),
    "references to one": lambda size: json.dumps(
        {
            "$defs": {"d": {"type": "string"}},
            "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(size // 30)},
        }
    ),
    "chain of references": lambda size: json.dumps({"$defs": _chain(size // 34), "$ref": "#/$defs/d0"}),
    "anchors": lambda size: json.dumps(
        {
            "$defs": {f"d{i}": {"$anchor": f"a{i}"} for i in range(size // 60)},
            "properties": {f"p{i}": {"$ref": f"#a{i}"} for i in range(size // 60)},
        }
    ),
    "ids": lambda size: json.dumps(
        {
            "$defs": {f"d{i}": {"$id": f"http://a/{i}"} for i in range(size // 70)},
            "properties": {f"p{i}": {"$ref": f"http://a/{i}"} for i in range(size // 70)},
        }
    ),
    "dynamic references": lambda size: json.dumps(
        {
            "$dynamicAnchor": "n",
            "properties": {f"p{i}": {"$dynamicRef": "#n"} for i in range(size // 32)},
        }
    ),
    "nested": lambda size: json.dumps(_items(60, [{"minLength": number} for number in range(size // 18)])),
    "unknown keywords": lambda size: json.dumps({f"x{number}": {"type": "none"} for number in range(size // 22)}),
    "errors": _schema("properties", lambda n: {f"p{i}": {"type": "none"} for i in range(n)}, 28),
    "a pattern of classes": _schema("pattern", lambda n: "[a-z]" * n, 5),
    "a pattern of alternatives": _schema("pattern", lambda n: "|".join(f"a{i}" for i in range(n)), 7),
    "a pattern of groups": _schema("pattern", lambda n: "(a|b)" * n, 5),
    "a pattern of repetitions": _schema("pattern", lambda n: "a{1,9}" * n, 6),
    "a pattern of a long class": _schema("pattern", lambda n: "[" + "a-z" * n + "]", 3),
    "a pattern of a text": _schema("pattern", lambda n: "a" * n, 1),
    "a pattern of lookaheads": _schema("pattern", lambda n: "(?=a)" * n, 5),
}


def _items(depth: int, branches: list[Any]) -> Any:
    schema: Any = {"anyOf": branches}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def _check(schema: Any, value: Callable[[int], Any], bytes_each: int) -> Document:
    return lambda size: (json.dumps(schema), value(size // bytes_each))


def _check_grown(document: Document, value: Callable[[int], Any], bytes_each: int) -> Document:
    """Return a document of which half is a schema that grows, and half a value."""
    return lambda size: (document(size // 2), value(size // 2 // bytes_each))


VALUES: Final[Mapping[str, Document]] = {
    "uniqueItems, numbers": _check({"uniqueItems": True}, lambda n: [*range(n)], 7),
    "uniqueItems, numbers with one hash": _check(
        {"uniqueItems": True}, lambda n: [i * (2**61 - 1) for i in range(n)], 22
    ),
    "uniqueItems, floats with one hash": _check(
        {"uniqueItems": True}, lambda n: [float(i) * 2.0**61 for i in range(n)], 24
    ),
    "uniqueItems, lists": _check({"uniqueItems": True}, lambda n: [[i, {"a": i}] for i in range(n)], 22),
    "uniqueItems, objects": _check({"uniqueItems": True}, lambda n: [{f"k{i}": i} for i in range(n)], 18),
    "uniqueItems, nearly equal texts": _check(
        {"uniqueItems": True}, lambda n: ["a" * 300 + str(i) for i in range(n)], 310
    ),
    "uniqueItems, true and 1": _check({"uniqueItems": True}, lambda n: [[True] * n, [1] * n], 8),
    "contains, none": _check({"contains": {"const": "b"}}, lambda n: ["a"] * n, 5),
    "contains, many": _check({"contains": {"type": "object"}, "minContains": 9**9}, lambda n: [{}] * n, 4),
    "contains, unevaluated": _check({"contains": {"type": "integer"}, "unevaluatedItems": False}, lambda n: [1] * n, 3),
    "dependentSchemas": _check(
        {"dependentSchemas": {"k0": {"patternProperties": {"^k": {"type": "string"}}}}},
        lambda n: {f"k{i}": i for i in range(n)},
        14,
    ),
    "dependentSchemas, unevaluated": _check(
        {"dependentSchemas": {"k0": {"properties": {"k0": {}}}}, "unevaluatedProperties": {"type": "string"}},
        lambda n: {f"k{i}": i for i in range(n)},
        14,
    ),
    "additionalProperties": _check({"additionalProperties": False}, lambda n: {f"k{i}": i for i in range(n)}, 14),
    "propertyNames": _check({"propertyNames": {"maxLength": 1}}, lambda n: {f"k{i}": i for i in range(n)}, 14),
    "items that are wrong": _check({"items": {"type": "string"}}, lambda n: [1] * n, 3),
    "rows that are wrong": _check(
        {"items": {"required": ["b"], "properties": {"a": {"type": "string"}}}}, lambda n: [{"a": 1}] * n, 10
    ),
    "anyOf in rows": _check(
        {"items": {"anyOf": [{"required": ["b"]}, {"enum": [1, 2]}, {"type": "string"}]}}, lambda n: [{"a": 1}] * n, 10
    ),
    "a recursive schema": _check(
        {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, lambda n: _deep("a", min(n, 180)), 7
    ),
    "enum": _check({"items": {"enum": [*range(200)]}}, lambda n: [*range(n)], 7),
    "not": _check({"items": {"not": {"type": "integer"}}}, lambda n: [1] * n, 3),
    "pattern": _check({"items": {"pattern": "^(a|b)*$"}}, lambda n: ["ab" * 9 + "c"] * n, 22),
    "multipleOf": _check({"items": {"multipleOf": 0.1}}, lambda n: [10**300 + i for i in range(n)], 303),
}

GROWN_VALUES: Final[Mapping[str, Document]] = {
    "enum and items": _check_grown(lambda size: json.dumps({"items": {"enum": [f"x{i}" for i in range(size // 9)]}}), lambda n: ["x"] * n, 5),
    "anyOf and items": _check_grown(lambda size: json.dumps({"items": {"anyOf": [{"const": i} for i in range(size // 16)]}}), lambda n: ["x"] * n, 5),
    "allOf contains": _check_grown(lambda size: json.dumps({"allOf": [{"contains": {"const": i}} for i in range(size // 30)]}), lambda n: ["x"] * n, 5),
    "patternProperties": _check_grown(lambda size: json.dumps({"patternProperties": {f"^k{i}": {} for i in range(size // 14)}}), lambda n: {f"k{i}": 1 for i in range(n)}, 14),
    "dependentSchemas": _check_grown(lambda size: json.dumps({"dependentSchemas": {f"k{i}": {"required": ["z"]} for i in range(size // 32)}}), lambda n: {f"k{i}": 1 for i in range(n)}, 14),
    "dependentRequired": _check_grown(lambda size: json.dumps({"dependentRequired": {f"k{i}": ["z"] for i in range(size // 16)}}), lambda n: {f"k{i}": 1 for i in range(n)}, 14),
    "allOf uniqueItems": _check_grown(lambda size: json.dumps({"allOf": [{"uniqueItems": True}] * (size // 22)}), lambda n: [*range(n)], 7),
    "required": _check_grown(lambda size: json.dumps({"items": {"required": [f"r{i}" for i in range(size // 9)]}}), lambda n: [{}] * n, 4),
    "unevaluatedProperties": _check_grown(lambda size: json.dumps({"allOf": [{"properties": {f"k{i}": {}}} for i in range(size // 34)], "unevaluatedProperties": False}), lambda n: {f"k{i}": 1 for i in range(n)}, 14),
    "a long pattern": _check_grown(lambda size: json.dumps({"items": {"pattern": "(a|b)?" * min(size // 6, 300)}}), lambda n: ["ab" * 9] * n, 22),
}  # fmt: skip


def _deep(key: str, levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {key: value}
    return value


# --- files and bodies -----------------------------------------------------------------------------------------------

TOML: Final[Mapping[str, Document]] = {
    "keys": lambda size: "".join(f"a{number} = 1\n" for number in range(size // 10)),
    "dotted keys": lambda size: "".join(f"a.b{number}.c = 1\n" for number in range(size // 14)),
    "a dotted key": lambda size: "a." * (size // 2) + "b = 1",
    "tables": lambda size: "".join(f"[a.b{number}]\n" for number in range(size // 11)),
    "arrays of tables": lambda size: "[[a]]\nb=1\n" * (size // 10),
    "nested arrays of tables": lambda size: "".join("[[a]]\n[[a.b]]\n[a.b.c]\n" for _ in range(size // 22)),
    "a list": lambda size: "a = [" + "1," * (size // 2) + "]",
    "a list in lines": lambda size: "a = [\n" + "1, # a\n" * (size // 7) + "]",
    "an inline table": lambda size: "a = {" + ", ".join(f"b{number}=1" for number in range(size // 9)) + "}",
    "a number": lambda size: "a = " + "9" * size,
    "escapes": lambda size: 'a = "' + "\\u0041" * (size // 6) + '"',
    "a long text": lambda size: 'a = """' + "a\n" * (size // 2) + '"""',
    "variables": lambda size: "[variables]\n" + "".join(f'v{number} = "x"\n' for number in range(size // 12)),
    "uses of variables": lambda size: 'system_prompt = "' + "{{a}}" * (size // 5) + '"\n[variables]\na = "b"\n',
    "unknown keys": lambda size: "".join(f"zz{number} = 1\n" for number in range(size // 11)),
    "agents": lambda size: "".join(f'[agents.a{number}]\ndescription = "x"\n' for number in range(size // 32)),
    "permissions": lambda size: 'system_prompt = "x"\n[permissions]\nask = [' + '"a*",' * (size // 5) + "]",
}

YAML: Final[Mapping[str, Document]] = {
    "keys": lambda size: "".join(f"a{number}: b\n" for number in range(size // 9)),
    "a list": lambda size: "a: [" + "1," * (size // 2) + "1]",
    "a list in lines": lambda size: "a:\n" + "- b\n" * (size // 4),
    "a folded text": lambda size: "a: >\n" + " x\n\n" * (size // 4),
    "a quoted text of lines": lambda size: 'a: "' + "x\n\n" * (size // 3) + '"',
    "quotes": lambda size: "a: '" + "''" * (size // 2) + "'",
    "a flow mapping": lambda size: "a: {" + ", ".join(f"b{number}: 1" for number in range(size // 10)) + "}",
    "aliases": lambda size: "a: &a b\nc: [" + "*a, " * (size // 4) + "*a]",
    "aliases of aliases": lambda size: "a0: &a0 [b]\n" + "".join(
        f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n" for number in range(1, max(2, size // 34))
    ),
    "merges": lambda size: "a: &a {b: c}\n" + "".join(f"d{number}: {{<<: *a}}\n" for number in range(size // 15)),
    "one key": lambda size: "a: b\n" * (size // 5),
    "a number": lambda size: "a: " + "9" * size,
    "numbers of base 60": lambda size: "a: " + "1:59" + ":59" * (size // 3),
    "underscores": lambda size: "a: 0x" + "_" * size,
}  # fmt: skip

GZIP: Final[Mapping[str, Document]] = {
    "empty members": lambda size: gzip.compress(b"", mtime=0) * (size // 20),
    "short members": lambda size: gzip.compress(b"x", mtime=0) * (size // 21),
    "one member": lambda size: gzip.compress(b"x" * size * 100, mtime=0),
    "padding": lambda size: gzip.compress(b"x", mtime=0) + b"\0" * size,
}

JSON: Final[Mapping[str, Document]] = {
    "a list": lambda size: "[" + "1," * (size // 2) + "1]",
    "keys": lambda size: "{" + ",".join(f'"a{number}":1' for number in range(size // 10)) + "}",
    "one key": lambda size: "{" + ",".join('"a":1' for _ in range(size // 6)) + "}",
    "an integer": lambda size: "9" * size,
    "long integers": lambda size: "[" + "9" * 4000 + ("," + "9" * 4000) * (size // 4001) + "]",
    "a fraction": lambda size: "1." + "9" * size,
    "an exponent": lambda size: "1e" + "9" * size,
    "large floats": lambda size: "[" + "1.7976931348623157e308," * (size // 23) + "1]",
    "surrogates": lambda size: '"' + "\\ud83d\\ude00" * (size // 12) + '"',
    "lone surrogates": lambda size: '"' + "\\ud800" * (size // 6) + '"',
    "levels": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "keys with one hash": lambda size: (
        "{" + ",".join(f'"{"a" * 9}{number:x}":[]' for number in range(size // 18)) + "}"
    ),
}

IDS: Final[Mapping[str, Document]] = {
    "agents": lambda size: "a" + "/1/0/agent" * (size // 10),
    "agents of programs": lambda size: "a" + "/1/0/program/3/agent-2" * (size // 22),
    "digits": lambda size: "a/1/" + "9" * size + "/agent",
    "attempts": lambda size: "a/1/0/agent-" + "9" * size,
    "places": lambda size: "a" + "/1/0" * (size // 4),
    "programs": lambda size: "a/1/0" + "/program/1" * (size // 10),
    "slashes": lambda size: "/" * size,
    "a text": lambda size: "a" * size,
}
