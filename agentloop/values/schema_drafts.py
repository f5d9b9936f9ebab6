"""JSON Schemas of any draft, written in draft 2020-12, and the places of schemas in each other.

Schemas of tools come from people and from servers, which write drafts 4 to 2020-12, sometimes mixed. Everything behind the border
at which they are read knows draft 2020-12 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from attrs import field, frozen

from agentloop.values.json import JsonObject, freeze_object, read_pointer

Schema: TypeAlias = Mapping[str, Any]

SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are objects of schemas, by arbitrary names."""
_NAMED: Final = SCHEMA_MAPS | {"dependencies"}
"""Keywords below which a place has an arbitrary name, in any draft."""
SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose values are lists of schemas."""
SUBSCHEMAS: Final = frozenset(
    {
        *(
            "additionalProperties",
            "unevaluatedProperties",
            "propertyNames",
            "items",
            "additionalItems",
            "unevaluatedItems",
        ),
        *("contains", "contentSchema", "not", "if", "then", "else"),
    }
)
"""Keywords whose values are schemas; that of `items` is a list of schemas in older drafts."""
_DATA: Final = frozenset({"const", "default", "examples", "example", "enum"})
"""Keywords whose values are data."""
_NULLABLE: Final = _DATA - {"enum"}
"""Keywords of which null is a value; elsewhere, null stands for a keyword that is absent."""
_TEXTS: Final = frozenset({"title", "description", "format", "$comment", "contentMediaType", "contentEncoding"})
_FLAGS: Final = frozenset({"deprecated", "readOnly", "writeOnly"})
_BESIDE_REFERENCES: Final = frozenset({"$ref", "$defs", "definitions", *_TEXTS, *_FLAGS, "default", "examples"})
"""What has a meaning beside a reference up to draft 7: annotations, and what references lead to."""
_LAST_EXCLUSIVE_REFERENCES: Final = 7
_DRAFTS: Final = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "2019-09": 2019,
    "2020-12": 2020,
}
_BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


@frozen(eq=False, repr=False)
class ModernSchema:
    """A schema in draft 2020-12.

    Attributes:
        schema: the schema; the same object if nothing had to be changed.
        repairs: what was no schema of any draft, and how it was read, as parts of a sentence.
    """

    schema: JsonObject
    repairs: tuple[str, ...] = ()


def modern_schema(schema: Schema) -> ModernSchema:
    """Return a schema in draft 2020-12 that accepts the same data.

    The draft is that of `$schema`; forms of older drafts are read in schemas that name none or a newer one, too. A schema of draft
    3 is returned unchanged. References may follow each other only inside of the schema.

    Null in place of a keyword counts as an absent keyword, an empty list in place of an object of schemas as an empty object,
    `required: true` of a property as that of draft 3, and an annotation of the wrong type as an absent one.
    """
    draft = _draft_of(schema)
    if draft == _DRAFTS["draft-03"]:
        return ModernSchema(freeze_object(schema))
    writer = _Modernizer(schema, draft)
    written = writer.schema(schema)
    return ModernSchema(freeze_object(written), tuple(dict.fromkeys(writer.repairs)))


def _draft_of(schema: Schema) -> int:
    """Return the number or the year of the draft that a schema names; 0 for none that is known."""
    named = schema.get("$schema")
    if not isinstance(named, str):
        return 0
    return next((draft for part, draft in _DRAFTS.items() if f"/{part}/" in named), 0)


class _Modernizer:
    """Writes a schema in draft 2020-12.

    Args:
        root: the schema.
        draft: its draft; 0 if it names none.
    """

    def __init__(self, root: Schema, draft: int) -> None:
        self.repairs: list[str] = []
        self._root = root
        self._draft = draft

    def schema(self, node: Any) -> Any:
        """Return a schema inside of the root; the same object if nothing has to be changed."""
        if not isinstance(node, Mapping):
            return {} if node is None else node
        written: dict[str, Any] = {}
        for name, value in self._present(node):
            for key, entry in self._keyword(node, name, value):
                both = key in written and isinstance(entry, Mapping) and isinstance(written[key], Mapping)
                written[key] = {**written[key], **entry} if both else entry
        self._require(node, written)
        return node if _is_same(node, written) else written

    def _present(self, node: Schema) -> Iterator[tuple[str, Any]]:
        """Yield the keywords that count."""
        is_reference = 0 < self._draft <= _LAST_EXCLUSIVE_REFERENCES and isinstance(node.get("$ref"), str)
        for name, value in node.items():
            if value is None and name not in _NULLABLE:
                self.repairs.append(f"{name} is null, which counts as absent")
            elif not is_reference or name in _BESIDE_REFERENCES:
                yield name, value

    def _keyword(self, node: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the keywords of draft 2020-12 for a keyword."""
        write = _WRITERS.get(name)
        if write is not None:
            yield from write(self, node, name, value)
        elif name in SCHEMA_MAPS:
            yield name, self._map(name, value)
        elif name in SCHEMA_LISTS and isinstance(value, tuple | list):
            yield name, self._list(value)
        elif name in SUBSCHEMAS:
            yield name, self.schema(value)
        elif (name in _TEXTS and not isinstance(value, str)) or (name in _FLAGS and not isinstance(value, bool)):
            self.repairs.append(f"{name} has the wrong type and is left out")
        else:
            yield name, value

    def _map(self, name: str, value: Any) -> Any:
        if isinstance(value, tuple | list) and not value:
            self.repairs.append(f"{name} is an empty list, which is read as an empty object")
            return {}
        if not isinstance(value, Mapping):
            return value
        written = {key: self.schema(item) for key, item in value.items()}
        return value if _is_same(value, written) else written

    def _list(self, value: Any) -> Any:
        written = [self.schema(item) for item in value]
        return value if all(map(is_, written, value)) else written

    def _require(self, node: Schema, written: dict[str, Any]) -> None:
        """Require the properties of which draft 3 says so in themselves."""
        properties = node.get("properties")
        if not isinstance(properties, Mapping):
            return
        named = [
            name for name, item in properties.items() if isinstance(item, Mapping) and item.get("required") is True
        ]
        if named:
            required = written.get("required", ())
            known = list(required) if isinstance(required, tuple | list) else []
            written["required"] = [*known, *[name for name in named if name not in known]]

    # --- the keywords that differ -----------------------------------------------------------------------------------

    def _write_draft(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if not self._draft or self._draft == _DRAFTS["2020-12"]:
            yield name, value

    def _write_id(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        is_keyword = name == "$id" or self._draft == _DRAFTS["draft-04"]
        if not is_keyword or not isinstance(value, str):
            yield name, value
            return
        address, _hash, fragment = value.partition("#")
        if address or not fragment:
            yield "$id", address or value
        if fragment:
            yield "$anchor", fragment

    def _write_definitions(self, node: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        written = self._map(name, value)
        if isinstance(written, Mapping):
            written = {_definition(node, key): item for key, item in written.items()}
        yield "$defs", written

    def _write_items(self, node: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, tuple | list):
            yield name, self.schema(value)
            return
        if value and "prefixItems" not in node:
            yield "prefixItems", self._list(value)
        if node.get("additionalItems") is not None:
            yield "items", self.schema(node["additionalItems"])

    def _write_dependencies(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, Mapping):
            yield name, value
            return
        lists = {key: list(item) for key, item in value.items() if isinstance(item, tuple | list)}
        lists |= {key: [item] for key, item in value.items() if isinstance(item, str)}
        schemas = {key: self.schema(item) for key, item in value.items() if key not in lists and item is not None}
        if lists:
            yield "dependentRequired", lists
        if schemas:
            yield "dependentSchemas", schemas

    def _write_exclusive_bound(self, node: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, bool):
            yield name, value
            return
        if self._draft != _DRAFTS["draft-04"]:
            self.repairs.append(f"{name} is {str(value).lower()}, which is read as in draft 4")
        bound = node.get(_BOUNDS[name])
        if value and bound is not None:
            yield name, bound

    def _write_bound(self, node: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        exclusive = next(key for key, bound in _BOUNDS.items() if bound == name)
        if node.get(exclusive) is not True:
            yield name, value

    def _write_required(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, bool):
            self.repairs.append("required is true or false, which is read as in draft 3")
            return
        is_repeated = isinstance(value, tuple | list) and all(isinstance(item, str) for item in value)
        once = list(dict.fromkeys(value)) if is_repeated else value
        if is_repeated and len(once) < len(value):
            self.repairs.append("required names a property twice")
            yield name, once
        else:
            yield name, value

    def _write_reference(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        yield name, moved_reference(self._root, value, _moved_keyword, _moved_name)

    def _write_recursion(self, node: Schema, _: str, value: Any) -> Iterator[tuple[str, Any]]:
        # Inside of one schema, the outermost place that allows the recursion is its root.
        if "$ref" not in node:
            yield "$ref", value
        else:
            yield "allOf", [*self._list(node.get("allOf") or ()), {"$ref": value}]

    def _write_type(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if value != "any":
            yield name, value
        else:
            self.repairs.append("the type any is read as in draft 3")

    def _write_examples(self, _: Schema, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, tuple | list):
            yield name, value
        else:
            self.repairs.append("examples is one example, not a list")
            yield name, [value]

    def _leave_out(self, _: Schema, __: str, ___: Any) -> Iterator[tuple[str, Any]]:
        yield from ()


_Writer: TypeAlias = Callable[[_Modernizer, Schema, str, Any], Iterator[tuple[str, Any]]]
_WRITERS: Final[Mapping[str, _Writer]] = {
    "$schema": _Modernizer._write_draft,  # noqa: SLF001  # a table of the class above
    "id": _Modernizer._write_id,  # noqa: SLF001
    "$id": _Modernizer._write_id,  # noqa: SLF001
    "definitions": _Modernizer._write_definitions,  # noqa: SLF001
    "items": _Modernizer._write_items,  # noqa: SLF001
    "additionalItems": _Modernizer._leave_out,  # noqa: SLF001
    "dependencies": _Modernizer._write_dependencies,  # noqa: SLF001
    "exclusiveMinimum": _Modernizer._write_exclusive_bound,  # noqa: SLF001
    "exclusiveMaximum": _Modernizer._write_exclusive_bound,  # noqa: SLF001
    "minimum": _Modernizer._write_bound,  # noqa: SLF001
    "maximum": _Modernizer._write_bound,  # noqa: SLF001
    "required": _Modernizer._write_required,  # noqa: SLF001
    "$ref": _Modernizer._write_reference,  # noqa: SLF001
    "$dynamicRef": _Modernizer._write_reference,  # noqa: SLF001
    "$recursiveRef": _Modernizer._write_recursion,  # noqa: SLF001
    "$recursiveAnchor": _Modernizer._leave_out,  # noqa: SLF001
    "type": _Modernizer._write_type,  # noqa: SLF001
    "examples": _Modernizer._write_examples,  # noqa: SLF001
}


def _is_same(old: Schema, new: Schema) -> bool:
    return old.keys() == new.keys() and all(new[key] is value for key, value in old.items())


def _definition(node: Schema, name: str) -> str:
    """Return the name in `$defs` for a name in `definitions`, which may both be there."""
    own, older = node.get("$defs"), node.get("definitions")
    if not isinstance(own, Mapping) or not isinstance(older, Mapping):
        return name
    while name in own:
        name += "_"
    return name


def _moved_keyword(node: Schema, name: str) -> str:
    """Return where the schemas of a keyword stand in draft 2020-12."""
    is_tuple = isinstance(node.get("items"), tuple | list)
    moved = {"definitions": "$defs", "dependencies": "dependentSchemas"}
    if is_tuple:
        moved |= {"items": "prefixItems", "additionalItems": "items"}
    return moved.get(name, name)


def _moved_name(node: Schema, keyword: str, name: str) -> str:
    return _definition(node, name) if keyword == "definitions" else name


# --- places -------------------------------------------------------------------------------------------------------------


def moved_reference(
    root: Schema,
    reference: Any,
    keyword_of: Callable[[Schema, str], str],
    name_of: Callable[[Schema, str, str], str],
) -> Any:
    """Return a reference to a place of a schema after the places have moved; others are returned as they are.

    Args:
        root: the schema before.
        reference: the reference, such as `#/definitions/a`.
        keyword_of: returns the new keyword for one of a schema.
        name_of: returns the new name for one in the object of schemas of a keyword.
    """
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return reference
    tokens = read_pointer(unquote(reference[1:]))
    moved: list[str] = []
    node: Any = root
    owner, keyword = (
        root,
        "",
    )  # the schema and the keyword whose object of schemas or list the next token is a name or index in
    for token in tokens:
        if keyword:
            moved.append(name_of(owner, keyword, token))
            keyword = ""
        elif isinstance(node, Mapping):
            owner = node
            moved.append(keyword_of(node, token))
            if token in _NAMED or isinstance(node.get(token), tuple | list):
                keyword = token
        else:
            return reference
        node = _entry(node, token)
    if moved == tokens:
        return reference
    return "#" + "".join(
        ["/" + quote(token.replace("~", "~0").replace("/", "~1"), safe="~$@!*+(),;=:") for token in moved]
    )


def find_schema(root: Schema, reference: str) -> Any:
    """Return what a reference leads to by its place, such as `#/$defs/a` or `#`; None if it does not."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for token in read_pointer(unquote(reference[1:])):
        found = _entry(found, token)
    return found


def _entry(node: Any, token: str) -> Any:
    if isinstance(node, Mapping):
        return node.get(token)
    if isinstance(node, tuple | list) and token.isdecimal() and int(token) < len(node):
        return node[int(token)]
    return None


def subschemas(node: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly in a schema, each with its place, such as `properties.a` or `anyOf[0]`."""
    for name, value in node.items():
        if name in SCHEMA_MAPS and isinstance(value, Mapping):
            for key, item in value.items():
                yield f"{name}.{key}", item
        elif name in SCHEMA_LISTS and isinstance(value, tuple | list):
            for index, item in enumerate(value):
                yield f"{name}[{index}]", item
        elif name in SUBSCHEMAS:
            yield name, value


def all_schemas(node: Any) -> Iterator[Schema]:
    """Yield a schema and the schemas in it, at every depth; true and false are left out."""
    if isinstance(node, Mapping):
        yield node
        for _, item in subschemas(node):
            yield from all_schemas(item)


def each_schema(node: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a schema of draft 2020-12 with a change to each schema in it and then to itself; the same object if nothing is changed."""
    return change(with_subschemas(node, lambda item: each_schema(item, change))) if isinstance(node, Mapping) else node


def with_subschemas(node: Schema, change: Callable[[Any], Any]) -> Schema:
    """Return a schema of draft 2020-12 with a change to each schema directly in it; the same object if nothing is changed."""
    written: dict[str, Any] = {}
    for name, value in node.items():
        if name in SCHEMA_MAPS and isinstance(value, Mapping):
            items = {key: change(item) for key, item in value.items()}
            written[name] = value if _is_same(value, items) else items
        elif name in SCHEMA_LISTS and isinstance(value, tuple | list):
            listed = [change(item) for item in value]
            written[name] = value if all(map(is_, listed, value)) else listed
        else:
            written[name] = change(value) if name in SUBSCHEMAS else value
    return node if _is_same(node, written) else written


# --- validity -----------------------------------------------------------------------------------------------------------

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


@frozen
class _Form:
    """What the value of a keyword has to be.

    Attributes:
        name: the form, for messages.
        accepts: whether a value has it.
    """

    name: str
    accepts: Callable[[Any], bool] = field(repr=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_texts(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and all(isinstance(item, str) for item in value)
        and len(set(value)) == len(value)
    )


def _is_type(value: Any) -> bool:
    return (isinstance(value, str) and value in _TYPES) or (
        _are_texts(value) and len(value) > 0 and all(item in _TYPES for item in value)
    )


_TEXT = _Form("a string", lambda value: isinstance(value, str))
_FLAG = _Form("true or false", lambda value: isinstance(value, bool))
_NUMBER = _Form("a number", _is_number)
_COUNT = _Form("a whole number from 0 on", _is_count)
_LIST = _Form("a list", lambda value: isinstance(value, tuple | list))
_SCHEMA = _Form("a schema", lambda value: isinstance(value, Mapping | bool))
_FORMS: Final[Mapping[str, _Form]] = {
    **dict.fromkeys(_TEXTS, _TEXT),
    **dict.fromkeys(("pattern", "$ref", "$dynamicRef", "$schema", "$anchor", "$dynamicAnchor"), _TEXT),
    "$id": _Form("an address without a fragment", lambda value: isinstance(value, str) and "#" not in value[:-1]),
    **dict.fromkeys((*_FLAGS, "uniqueItems"), _FLAG),
    **dict.fromkeys(("minimum", "maximum", *_BOUNDS), _NUMBER),
    "multipleOf": _Form("a number above 0", lambda value: _is_number(value) and value > 0),
    **dict.fromkeys(
        (
            *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
            *("minContains", "maxContains"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(("enum", "examples"), _LIST),
    "required": _Form("a list of different strings", _are_texts),
    "type": _Form("a type, or a list of different types", _is_type),
    "dependentRequired": _Form(
        "an object of lists of different strings",
        lambda value: isinstance(value, Mapping) and all(map(_are_texts, value.values())),
    ),
    **dict.fromkeys(SCHEMA_MAPS, _Form("an object of schemas", lambda value: isinstance(value, Mapping))),
    **dict.fromkeys(
        SCHEMA_LISTS, _Form("a list of schemas", lambda value: isinstance(value, tuple | list) and len(value) > 0)
    ),
    **dict.fromkeys(SUBSCHEMAS - {"additionalItems"}, _SCHEMA),
}


def schema_problem(schema: Any, path: str = "$") -> str:
    """Return why something is not a schema of draft 2020-12, with the place; empty for a schema."""
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, Mapping):
        return f"{path} is not a schema"
    for name, value in schema.items():
        form = _FORMS.get(name)
        if form is not None and not form.accepts(value):
            return f"{path}.{name} has to be {form.name}"
    return next(filter(None, (schema_problem(item, f"{path}.{place}") for place, item in subschemas(schema))), "")
