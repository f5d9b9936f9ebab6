"""The keys of arguments under names that a provider accepts, and back: in schemas, in the JSON text of calls, and in streams of it.

A key has one name at the provider wherever the tool declares it. Text is translated as it comes, so that numbers, spaces and the
order of entries stay as the model wrote them. Keys of objects that the tool does not declare are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from attrs import define, field, frozen

from agentloop.values.json import format_json, parse_json
from agentloop.values.schema_drafts import Schema, all_schemas, find_schema, moved_reference, with_subschemas

_Nodes: TypeAlias = tuple[Schema, ...]
"""The schemas that may all apply to one value."""

_APPLIED = ("not", "if", "then", "else")
_MAX_PLACES = 1_024


@frozen(eq=False)
class _Place:
    """What the schemas of a value declare.

    Attributes:
        properties: the schemas of each declared property.
        others: the schemas of the other properties.
        first: the schemas of the first elements of a list, by index.
        elements: the schemas of its further elements.
    """

    properties: Mapping[str, _Nodes]
    others: _Nodes
    first: tuple[_Nodes, ...]
    elements: _Nodes


class KeyTranslation:
    """The keys of the arguments of one tool, and their names at a provider.

    Args:
        schema: the schema of the arguments, in draft 2020-12.
        names: the name at the provider of each key that has another one there; no two are the same, and none is a key of the tool.

    Attributes:
        sent_names: these names.
        own_names: the keys, by their names at the provider.
    """

    __slots__ = ("_places", "_root", "_targets", "own_names", "sent_names")

    def __init__(self, schema: Schema, names: Mapping[str, str]) -> None:
        self._root = schema
        self.sent_names: Mapping[str, str] = names
        self.own_names: dict[str, str] = {name: key for key, name in names.items()}
        # By the identities of the schemas, which the values keep alive.
        self._places: dict[tuple[int, ...], tuple[_Nodes, _Place]] = {}
        self._targets = dict(_targets(schema))

    @classmethod
    def of(cls, schema: Schema, accepted: re.Pattern[str], max_length: int) -> KeyTranslation | None:
        """Return the translation of a tool; None if all of its keys are accepted.

        Args:
            schema: the schema of the arguments, in draft 2020-12.
            accepted: matches keys that the provider accepts; also single characters, which names consist of.
            max_length: the maximum length of names.
        """
        keys = list(dict.fromkeys(_keys(schema)))
        refused = [key for key in keys if not accepted.fullmatch(key)]
        if not refused:
            return None
        taken = set(keys)
        names: dict[str, str] = {}
        for key in refused:
            names[key] = _name(key, accepted, max_length, taken)
            taken.add(names[key])
        return cls(schema, names)

    def unknown_references(self) -> list[str]:
        """Return the references of the schema that lead to no place in it, behind which keys would not be found."""
        return [reference for reference in _references(self._root) if self._find(reference) is None]

    def sent_schema(self) -> Schema:
        """Return the schema as it is sent, in which a key that has another name has its own as the title."""
        sent: Schema = self._sent(self._root)
        return sent

    def to_provider(self, arguments_json: str) -> str:
        """Return the arguments of a call with the names of the provider."""
        return self._translated(arguments_json, _KeyText(self, (self._root,), is_to_provider=True))

    def from_provider(self, arguments_json: str) -> str:
        """Return the arguments of a call of the model with the keys of the tool."""
        return self._translated(arguments_json, self.reader())

    def reader(self) -> _KeyText:
        """Return a translator of one call of the model, for text that comes in pieces."""
        return _KeyText(self, (self._root,), is_to_provider=False)

    @staticmethod
    def _translated(text: str, translator: _KeyText) -> str:
        return translator.feed(text) + translator.close()

    # --- schemas ----------------------------------------------------------------------------------------------------

    def _sent(self, node: Any) -> Any:
        # From the outside in: data in a schema is translated by the schemas below it, which still have the keys of the tool.
        return with_subschemas(self._renamed(node), self._sent) if isinstance(node, Mapping) else node

    def _renamed(self, node: Schema) -> Schema:
        changed: dict[str, Any] = {}
        for name, value in node.items():
            rename = _RENAMED.get(name)
            new = value if rename is None else rename(self, node, value)
            if new is not value:
                changed[name] = new
        if not changed:
            return node
        # What a schema says of names is about the keys of the tool.
        dropped = {"propertyNames"} if "properties" in changed else frozenset[str]()
        return {name: value for name, value in {**node, **changed}.items() if name not in dropped}

    def _rename_properties(self, _: Schema, value: Any) -> Any:
        if not isinstance(value, Mapping) or self.sent_names.keys().isdisjoint(value):
            return value
        return {self.sent_names.get(key, key): self._titled(key, item) for key, item in value.items()}

    def _titled(self, key: str, item: Any) -> Any:
        if key not in self.sent_names or item is False:
            return item
        return {"title": key, **({} if item is True else item)}

    def _rename_keys(self, _: Schema, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        renamed = {self.sent_names.get(key, key): self._rename_list(_, item) for key, item in value.items()}
        is_same = renamed.keys() == value.keys() and all(renamed[key] is value[key] for key in renamed)
        return value if is_same else renamed

    def _rename_list(self, _: Schema, value: Any) -> Any:
        if not isinstance(value, tuple | list) or self.sent_names.keys().isdisjoint(filter(_is_text, value)):
            return value
        return [self.sent_names.get(item, item) if isinstance(item, str) else item for item in value]

    def _rename_discriminator(self, _: Schema, value: Any) -> Any:
        name = value.get("propertyName") if isinstance(value, Mapping) else None
        return (
            {**value, "propertyName": self.sent_names[name]}
            if isinstance(name, str) and name in self.sent_names
            else value
        )

    def _rename_reference(self, _: Schema, value: Any) -> Any:
        return moved_reference(
            self._root,
            value,
            lambda _, keyword: keyword,
            lambda _, keyword, name: (
                self.sent_names.get(name, name) if keyword in {"properties", "dependentSchemas"} else name
            ),
        )

    def _rename_data(self, node: Schema, value: Any) -> Any:
        if not isinstance(value, Mapping | tuple | list):
            return value
        text = format_json(value).decode()
        # Enumerations and examples are lists of values of the schema.
        writer = _KeyText(self, (node,), is_to_provider=True)
        renamed = self._translated(text, writer)
        return value if renamed == text else parse_json(renamed)

    def _rename_values(self, node: Schema, value: Any) -> Any:
        if not isinstance(value, tuple | list):
            return value
        renamed = [self._rename_data(node, item) for item in value]
        return value if all(new is old for new, old in zip(renamed, value, strict=True)) else renamed

    # --- places -----------------------------------------------------------------------------------------------------

    def place(self, nodes: _Nodes) -> _Place:
        """Return what schemas declare, with all schemas that they apply to the same value."""
        identity = tuple(map(id, nodes))
        known = self._places.get(identity)
        if known is None:
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            known = self._places[identity] = nodes, _place_of(list(self._all_applied(nodes)))
        return known[1]

    def _all_applied(self, nodes: _Nodes) -> Iterator[Schema]:
        seen: set[int] = set()
        pending: list[Any] = [*reversed(nodes)]
        while pending:
            node = pending.pop()
            if not isinstance(node, Mapping) or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            named = [node.get(keyword) for keyword in ("$ref", "$dynamicRef")]
            pending.extend(self._find(reference) for reference in named if isinstance(reference, str))
            for keyword in ("allOf", "anyOf", "oneOf"):
                pending.extend(node.get(keyword) or ())
            pending.extend(node[keyword] for keyword in _APPLIED if keyword in node)
            dependent = node.get("dependentSchemas")
            pending.extend(dependent.values() if isinstance(dependent, Mapping) else ())

    def _find(self, reference: str) -> Any:
        found = find_schema(self._root, reference)
        return self._targets.get(reference) if found is None else found


def _place_of(nodes: list[Schema]) -> _Place:
    properties: dict[str, list[Any]] = {}
    others: list[Any] = []
    first: list[list[Any]] = []
    elements: list[Any] = []
    for node in nodes:
        for key, item in _mapping(node, "properties").items():
            properties.setdefault(key, []).append(item)
        for key in _required_keys(node):
            properties.setdefault(key, [])
        others += [*_mapping(node, "patternProperties").values(), node.get("additionalProperties")]
        others.append(node.get("unevaluatedProperties"))
        for index, item in enumerate(node.get("prefixItems") or ()):
            if index == len(first):
                first.append([])
            first[index].append(item)
        elements += [node.get("items"), node.get("contains"), node.get("unevaluatedItems")]
    return _Place(
        {key: _schemas(items or others) for key, items in properties.items()},
        _schemas(others),
        tuple(map(_schemas, first)),
        _schemas(elements),
    )


def _schemas(items: Iterable[Any]) -> _Nodes:
    return tuple([item for item in items if isinstance(item, Mapping)])


def _mapping(node: Schema, name: str) -> Mapping[str, Any]:
    value = node.get(name)
    return value if isinstance(value, Mapping) else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _keys(schema: Schema) -> Iterator[str]:
    """Yield the keys that a schema names, at every depth."""
    for node in all_schemas(schema):
        yield from _mapping(node, "properties")
        yield from _required_keys(node)


def _required_keys(node: Schema) -> Iterator[str]:
    """Yield the keys that a schema names elsewhere than in its properties."""
    for keyword in ("dependentSchemas", "dependentRequired"):
        yield from _mapping(node, keyword)
    for listed in (node.get("required"), *_mapping(node, "dependentRequired").values()):
        yield from filter(_is_text, listed if isinstance(listed, tuple | list) else ())


def _targets(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the schemas to which references may lead by a name, by the reference."""
    for node in all_schemas(schema):
        for keyword, form in (("$id", "{}"), ("$anchor", "#{}"), ("$dynamicAnchor", "#{}")):
            if isinstance(node.get(keyword), str):
                yield form.format(node[keyword]), node


def _references(schema: Schema) -> Iterator[str]:
    for node in all_schemas(schema):
        yield from (node[keyword] for keyword in ("$ref", "$dynamicRef") if isinstance(node.get(keyword), str))


def _name(key: str, accepted: re.Pattern[str], max_length: int, taken: set[str]) -> str:
    """Return the name of a key at a provider: as much of it as is accepted, and a number if that is taken."""
    readable = "".join([character if accepted.fullmatch(f"a{character}") else "_" for character in key]).strip("_.-")
    if not readable or not accepted.fullmatch(readable[0]):
        readable = f"key_{readable}".rstrip("_")
    name, number = readable[:max_length], 1
    while name in taken:
        number += 1
        suffix = f"_{number}"
        name = readable[: max_length - len(suffix)] + suffix
    return name


_Rename: TypeAlias = Callable[[KeyTranslation, Schema, Any], Any]
_RENAMED: Mapping[str, _Rename] = {
    "properties": KeyTranslation._rename_properties,  # noqa: SLF001  # a table of the class above
    "dependentSchemas": KeyTranslation._rename_keys,  # noqa: SLF001
    "dependentRequired": KeyTranslation._rename_keys,  # noqa: SLF001
    "required": KeyTranslation._rename_list,  # noqa: SLF001
    "discriminator": KeyTranslation._rename_discriminator,  # noqa: SLF001
    "$ref": KeyTranslation._rename_reference,  # noqa: SLF001
    "$dynamicRef": KeyTranslation._rename_reference,  # noqa: SLF001
    "const": KeyTranslation._rename_data,  # noqa: SLF001
    "default": KeyTranslation._rename_data,  # noqa: SLF001
    "enum": KeyTranslation._rename_values,  # noqa: SLF001
    "examples": KeyTranslation._rename_values,  # noqa: SLF001
}


# --- text ---------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Level:
    """An object or a list that is being read.

    Attributes:
        place: what its schemas declare.
        is_object: whether it is an object.
        nodes: the schemas of its current value.
        index: the index of the current element.
        expects_key: whether a text would be a key.
        written: the keys so far, and how they were written.
    """

    place: _Place
    is_object: bool
    nodes: _Nodes = ()
    index: int = 0
    expects_key: bool = True
    written: dict[str, str] = field(factory=dict)


class _KeyText:
    """Translates the keys in JSON text that comes in pieces. Text that is not JSON passes as it is.

    Args:
        translation: the keys of the tool.
        nodes: the schemas of the text.
        is_to_provider: whether the text has the keys of the tool.
    """

    __slots__ = (
        "_in_text",
        "_is_escaped",
        "_key",
        "_levels",
        "_names",
        "_nodes",
        "_reversed",
        "_to_provider",
        "_translation",
    )

    def __init__(self, translation: KeyTranslation, nodes: _Nodes, *, is_to_provider: bool) -> None:
        names, others = translation.sent_names, translation.own_names
        self._translation = translation
        self._names = names if is_to_provider else others
        self._reversed = others if is_to_provider else names
        self._to_provider = is_to_provider
        self._nodes = nodes
        self._levels: list[_Level] = []
        self._in_text = self._is_escaped = False
        self._key: list[str] | None = None

    def feed(self, text: str) -> str:
        """Return what is certain after a piece of text; a key is held back until it is complete."""
        written: list[str] = []
        for character in text:
            if self._in_text:
                self._continue_text(character, written)
            else:
                self._take(character, written)
        return "".join(written)

    def close(self) -> str:
        """Return the part of a key that was held back, as it is."""
        held, self._key = "".join(self._key or ()), None
        return held

    def _continue_text(self, character: str, written: list[str]) -> None:
        (written if self._key is None else self._key).append(character)
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_text = False
            if self._key is not None:
                written.append(self._translate("".join(self._key)))
                self._key = None

    def _take(self, character: str, written: list[str]) -> None:
        level = self._levels[-1] if self._levels else None
        if character == '"':
            self._in_text = True
            if level is not None and level.is_object and level.expects_key:
                self._key = [character]
                return
        elif character in "{[":
            nodes = self._nodes if level is None else level.nodes
            opened = _Level(self._translation.place(nodes), character == "{")
            self._levels.append(opened)
            self._enter_element(opened)
        elif character in "}]" and level is not None:
            self._levels.pop()
        elif level is not None and character == ",":
            level.index, level.expects_key = level.index + 1, True
            self._enter_element(level)
        elif level is not None and character == ":":
            level.expects_key = False
        written.append(character)

    @staticmethod
    def _enter_element(level: _Level) -> None:
        if not level.is_object:
            place = level.place
            level.nodes = place.first[level.index] if level.index < len(place.first) else place.elements

    def _translate(self, text: str) -> str:
        """Return a key as it is written, and go on with the schemas of its value."""
        level = self._levels[-1]
        try:
            key = parse_json(text)
        except ValueError:
            return text
        new = self._new_key(level, key)
        own = key if self._to_provider else new
        level.nodes = level.place.properties.get(own, level.place.others)
        return text if new == key else format_json(new).decode()

    def _new_key(self, level: _Level, key: str) -> str:
        if key in level.written:  # the same key again stays a key that is there twice
            return level.written[key]
        new = self._names.get(key, key)
        own = key if self._to_provider else new
        if new != key and (own not in level.place.properties or new in level.written.values()):
            new = key
        # A model may write the key of the tool besides its name here: both stay, and the check of the arguments decides.
        elif new == key and key in level.written.values():
            new = self._reversed.get(key, key)
        level.written[key] = new
        return new
