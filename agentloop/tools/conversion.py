"""JSON data to Python types and back, by cattrs, which is imported with the first value that needs it."""

from __future__ import annotations

import base64
import collections
import collections.abc
import enum
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.tools import pydantic_models
from agentloop.tools.constraints import constraints_of
from agentloop.tools.fields import fields_of, is_named_tuple, is_text_class, is_typed_dict, key_text, sort_items
from agentloop.tools.hints import alias_value, is_type_alias
from agentloop.tools.object_keys import key_values
from agentloop.tools.schema import DURATION, MAPPINGS, json_schema, mapping_types
from agentloop.tools.validation import SchemaValidator
from agentloop.values.forms import Form
from agentloop.values.json import JsonObject, JsonValue, freeze, freeze_object, thaw

if TYPE_CHECKING:
    from cattrs import Converter


T = TypeVar("T")

SCALARS: Mapping[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int, float), float: (float, int)}
"""The scalar types of JSON, each with the Python types that its values are parsed to."""

_ISO_CLASSES: tuple[Any, ...] = (datetime, date, time)
_ITERABLES = (collections.abc.Iterable, collections.abc.Collection)
# cattrs structures a bare `list` or `dict`, but not these abstract classes without their arguments.
_BARE = (*_ITERABLES, collections.abc.Sequence, collections.abc.MutableSet, collections.deque)


def structure(data: Any, hint: Any) -> Any:
    """Convert JSON data that satisfies the type's schema to the type.

    Raises:
        Exception: any error of the type's constructor or of cattrs; `problems` describes it.
    """
    if isinstance(hint, type):
        return convert_scalar(data, hint) if hint in SCALARS else _converter().structure(data, hint)
    return _structure_hook(hint)(data, hint)


def convert_scalar(data: Any, kind: Any) -> Any:
    """Convert a JSON scalar to this type: 3.0 is an integer in JSON, and 3 a number.

    Raises:
        ValueError: when it is of another type, or the conversion would change its value.
        OverflowError: when it is too large for a float.
    """
    # Types are compared exactly: bool is a subclass of int, but true is no number in JSON.
    if type(data) is kind:
        return data
    if type(data) not in SCALARS[kind] or (kind is int and not data.is_integer()):
        raise ValueError(f"{data!r} is not of type {kind.__name__}")
    return kind(data)


def to_json_data(value: Any, hint: Any = None) -> JsonValue:
    """Convert a Python value to immutable JSON data.

    Args:
        value: the value.
        hint: its declared type; its class when left out.

    Raises:
        NotJson: when the value has no JSON form.
    """
    try:
        return freeze(value)
    except NotJson as error:
        try:
            if hint is not None and hint is not Any and hint is not object:
                return freeze(_converter().unstructure(value, hint))
            return freeze(_converter().unstructure(value))
        except RecursionError:
            # The value contains itself; the error of `freeze` names the place.
            raise error from None


def json_of(value: Any, hint: Any = None) -> JsonValue:
    """Convert any Python value to immutable JSON: as `to_json_data` where that can, else to its form."""
    try:
        return to_json_data(value, hint)
    except Exception:  # noqa: BLE001  # whatever the value does while it is read
        return to_form(value, hint).value


def to_form(value: Any, hint: Any = None) -> Form:
    """Return the form of a Python value: that of its declared type where the value is one, and else that of any value.

    Args:
        value: the value.
        hint: its declared type; its class when left out.
    """
    with suppress(Exception):  # whatever the converter makes of a value of another type
        if hint is not None and hint is not Any and hint is not object:
            return Form.of(_converter().unstructure(value, hint))
    return Form.of(value)


def problems(error: BaseException, path: str = "$") -> list[tuple[str, str]]:
    """Describe an error of `structure`, as pairs of a JSON path and a message.

    Args:
        error: the error.
        path: the JSON path of the data.
    """
    return list(_problems(error, path, None))


def _problems(error: BaseException, path: str, kind: Any) -> Iterator[tuple[str, str]]:
    from cattrs.errors import ClassValidationError, IterableValidationError

    if isinstance(error, ClassValidationError):
        field_errors, other_errors = error.group_exceptions()
        for field_error, field in field_errors:
            yield from _problems(field_error, f"{path}.{field.name}", field.type)
        for other_error in other_errors:
            yield from _problems(other_error, path, None)
    elif isinstance(error, IterableValidationError):
        item_errors, other_errors = error.group_exceptions()
        for item_error, item in item_errors:
            step = f"[{item.index}]" if isinstance(item.index, int) else f".{item.index}"
            yield from _problems(item_error, path + step, item.type)
        for other_error in other_errors:
            yield from _problems(other_error, path, None)
    elif model_problems := pydantic_models.problems(error):
        yield from ((path + inner, message) for inner, message in model_problems)
    else:
        yield path, _message(error, kind)


def _message(error: BaseException, kind: Any) -> str:
    if isinstance(error, KeyError):
        return "this required field is missing"
    kind = typing.get_args(kind)[0] if _is_annotated(kind) else kind
    expected = f" (expected {getattr(kind, '__name__', kind)})" if kind is not None else ""
    return f"{str(error) or type(error).__name__}{expected}"


# --- the converter ----------------------------------------------------------------------------------------------


class _ByType(Generic[T]):
    """Computes a value once for each type.

    Two unions of the same members are equal in Python, also if their order is another one, which decides here. So types are looked
    up by their identity, and those that are written alike have one value.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = lru_cache(maxsize=_MAX_TYPES)(lambda hint, _: make(hint))
        self._known: dict[int, tuple[Any, T]] = {}

    def __call__(self, hint: Any) -> T:
        known = self._known.get(id(hint))
        if known is None:
            if len(self._known) >= _MAX_TYPES:
                self._known.clear()
            # The type is kept, so that no other one gets its identity.
            known = self._known[id(hint)] = hint, self._make(hint, repr(hint))
        return known[1]


_MAX_TYPES = 1024


@_ByType
def _structure_hook(hint: Any) -> Callable[[Any, Any], Any]:
    return _converter().get_structure_hook(hint, cache_result=False)


@cache
def _converter() -> Converter:
    """Create the converter; cattrs and the modules that only its hooks need are imported here."""
    from cattrs import Converter

    # A field that a class does not have is an error, as in the schema: nothing that a model sends is dropped silently.
    converter = Converter(use_alias=True, forbid_extra_keys=True)
    for kind in SCALARS:
        converter.register_structure_hook(kind, _structure_scalar)
    _register_text_classes(converter)
    _register_times(converter)
    converter.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    for kind, freeze_data in ((JsonValue, freeze), (JsonObject, freeze_object)):
        converter.register_structure_hook(kind, partial(_structure_json, freeze_data))
        converter.register_unstructure_hook(kind, thaw)
    converter.register_unstructure_hook_factory(_has_fields, partial(_fields_unstructure_hook, converter))
    converter.register_structure_hook_func(_is_validated_class, pydantic_models.structure_validated)
    converter.register_unstructure_hook_factory(_is_validated_class, pydantic_models.unstructure_validated)
    converter.register_structure_hook_func(pydantic_models.is_model, pydantic_models.structure)
    converter.register_unstructure_hook_func(pydantic_models.is_model, pydantic_models.unstructure)
    # cattrs takes the hook that was registered last and matches: the more specific predicates come later.
    # Data of an unknown type stays as it is; cattrs does so for Any alone.
    converter.register_structure_hook_func(lambda hint: hint is object, lambda data, _: data)
    converter.register_structure_hook_func(_is_literal, _structure_literal)
    converter.register_structure_hook_func(_is_union, _structure_union)
    converter.register_structure_hook_func(_is_iterable, _structure_iterable)
    # cattrs keeps its hooks for mappings by their types, of which some are equal that are not the same here.
    converter.register_structure_hook_factory(_is_mapping, _mapping_hook)
    converter.register_unstructure_hook_factory(_is_mapping, partial(_mapping_unstructure_hook, converter))
    converter.register_structure_hook_func(_is_bare, lambda data, hint: structure(data, hint[Any]))
    converter.register_structure_hook_func(_is_open_class, _structure_open_class)
    converter.register_structure_hook_func(_is_indirect, _structure_indirect)
    converter.register_structure_hook_factory(_is_annotated, _annotated_hook)
    converter.register_structure_hook_factory(is_named_tuple, _named_tuple_hook)
    converter.register_unstructure_hook_factory(is_named_tuple, partial(_named_tuple_unstructure_hook, converter))
    converter.register_structure_hook_factory(is_typed_dict, _typed_dict_hook)
    converter.register_unstructure_hook_factory(is_typed_dict, partial(_typed_dict_unstructure_hook, converter))
    converter.register_unstructure_hook_factory(_is_iterable, partial(_iterable_unstructure_hook, converter))
    converter.register_unstructure_hook_factory(_is_set, partial(_set_hook, converter))
    return converter


def _register_text_classes(converter: Converter) -> None:
    from decimal import Decimal

    converter.register_unstructure_hook_func(_is_text_class, str)
    converter.register_structure_hook_func(_is_text_class, _structure_text)
    converter.register_structure_hook(Decimal, lambda number, _: Decimal(str(number)))


def _is_text_class(hint: Any) -> bool:
    return isinstance(hint, type) and is_text_class(hint)


def _structure_text(text: str, cls: Any) -> Any:
    try:
        return cls(text)
    except (LookupError, OSError) as error:  # of a time zone that does not exist
        raise ValueError(f"{text!r:.60} is not a {cls.__name__}") from error


def _is_validated_class(hint: Any) -> bool:
    return pydantic_models.is_validated_class(hint) and fields_of(hint) is None


def _register_times(converter: Converter) -> None:
    for kind in _ISO_CLASSES:
        converter.register_unstructure_hook(kind, kind.isoformat)
        converter.register_structure_hook(kind, lambda text, cls: cls.fromisoformat(text))
    converter.register_unstructure_hook(timedelta, timedelta.total_seconds)
    converter.register_structure_hook(timedelta, lambda data, _: _duration(data))


_PART = re.compile("([0-9]+(?:[.,][0-9]+)?)([WDHMS])")
_UNITS = {"W": "weeks", "D": "days", "H": "hours", "M": "minutes", "S": "seconds"}


def _duration(data: float | str) -> timedelta:
    """Return the duration of a number of seconds, or of a text in ISO 8601."""
    if not isinstance(data, str):
        return timedelta(seconds=data)
    if re.fullmatch(DURATION, data) is None:
        raise ValueError(
            f"{data!r:.60} is not a duration in ISO 8601, such as PT5M or P1DT12H; years and months have no fixed length"
        )
    parts = {_UNITS[unit]: float(number.replace(",", ".")) for number, unit in _PART.findall(data)}
    return -timedelta(**parts) if data.startswith("-") else timedelta(**parts)


def _structure_scalar(data: Any, kind: Any) -> Any:
    """Structure into a scalar type, or into an enumeration or another subclass of one."""
    if kind in SCALARS:
        return convert_scalar(data, kind)
    return pydantic_models.structure_validated(data, kind) if _is_validated_class(kind) else kind(data)


def _has_fields(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or attrs.has(hint))


def _fields_unstructure_hook(converter: Converter, cls: Any) -> Callable[[Any], Any]:
    # A class with a hint that cannot be resolved has no schema, but its objects have a JSON form.
    with suppress(ToolDefinitionError):
        fields_of(cls)
    return converter.gen_unstructure_attrs_fromdict(cls)


def _structure_json(freeze_data: Callable[[Any], Any], data: Any, _: Any) -> Any:
    return freeze_data(data)


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _structure_literal(data: Any, hint: Any) -> Any:
    for member in typing.get_args(hint):
        plain = member.value if isinstance(member, enum.Enum) else member
        if plain == data and isinstance(plain, bool) is isinstance(data, bool):  # True == 1 in Python, not in JSON
            return member
    raise ValueError(f"{data!r} is none of {typing.get_args(hint)}")


def _is_iterable(hint: Any) -> bool:
    return typing.get_origin(hint) in _ITERABLES


def _structure_iterable(data: Any, hint: Any) -> Any:
    arguments = typing.get_args(hint)
    return [structure(item, arguments[0]) for item in data] if arguments else list(data)


def _iterable_unstructure_hook(converter: Converter, hint: Any) -> Callable[[Any], Any]:
    arguments = typing.get_args(hint)
    inner = arguments[0] if arguments else None
    return lambda items: [converter.unstructure(item, inner) for item in items]


def _is_mapping(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) in _TYPED_MAPPINGS or typing.get_origin(hint) in MAPPINGS


# Also without arguments, they are no plain dicts.
_TYPED_MAPPINGS = (collections.Counter, collections.OrderedDict, collections.defaultdict)


def _mapping_hook(hint: Any) -> Callable[[Any, Any], Any]:
    from cattrs.errors import IterableValidationError, IterableValidationNote

    kind, keys, values = mapping_types(hint)
    make_key = _key_hook(keys)

    def structure_entries(data: Any, _: Any) -> Any:
        entries, errors = {}, []
        for text, value in data.items():
            expected = keys
            try:
                key = make_key(text)
                expected = values
                entries[key] = structure(value, values)
            except Exception as error:  # noqa: BLE001  # collected, with its place
                error.add_note(IterableValidationNote(f"at the key {text!r}", text, expected))
                errors.append(error)
        if errors:
            raise IterableValidationError(f"while structuring {hint}", errors, hint)
        if kind is collections.defaultdict:
            return kind(_FACTORIES.get(typing.get_origin(values) or values), entries)
        return kind(entries) if kind in _TYPED_MAPPINGS else entries

    return structure_entries


_FACTORIES: Mapping[Any, Callable[[], Any]] = {kind: kind for kind in (list, dict, set, int, float, str, bool)}


def _key_hook(keys: Any) -> Callable[[str], Any]:
    """Return the conversion of the text of a key to its type."""
    if keys in {str, Any}:
        return lambda text: text
    validator = SchemaValidator(json_schema(keys))

    def make_key(text: str) -> Any:
        known = [value for value in key_values(text) if validator.accepts(value)]
        return structure(known[0] if known else text, keys)

    return make_key


def _mapping_unstructure_hook(converter: Converter, hint: Any) -> Callable[[Any], Any]:
    _, keys, values = mapping_types(hint)

    def unstructure_entries(entries: Any) -> Any:
        texts = {
            key_text(freeze(converter.unstructure(key, keys))): converter.unstructure(value, values)
            for key, value in entries.items()
        }
        if len(texts) < len(entries):
            raise NotJson("two keys of a dict have the same text in JSON")
        return texts

    return unstructure_entries


def _is_bare(hint: Any) -> bool:
    return hint in _BARE


def _is_open_class(hint: Any) -> bool:
    """Return whether a hint is a generic class with fields, without the types of its parameters."""
    return _has_fields(hint) and bool(getattr(hint, "__parameters__", ()))


def _structure_open_class(data: Any, cls: Any) -> Any:
    return structure(data, cls[tuple([parameter.__bound__ or Any for parameter in cls.__parameters__])])


def _is_indirect(hint: Any) -> bool:
    """Return whether a hint is another name for a type: a type variable or a type alias."""
    return isinstance(hint, typing.TypeVar) or is_type_alias(hint)


def _structure_indirect(data: Any, hint: Any) -> Any:
    return structure(data, _meaning(hint))


@_ByType
def _meaning(hint: Any) -> Any:
    """Return the type that a type variable or an alias stands for."""
    return alias_value(hint) if is_type_alias(hint) else hint.__bound__ or Any


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def _annotated_hook(hint: Any) -> Callable[[Any, Any], Any]:
    """Convert to the type, and check what its annotations demand: a schema may not express it, or be another one."""
    constraints = constraints_of(hint)
    inner = typing.get_args(hint)[0]
    if constraints.adapted is None:
        convert: Callable[[Any], Any] = lambda data: structure(data, inner)  # noqa: E731  # of two forms
    else:
        convert = partial(pydantic_models.structure_adapted, pydantic_models.adapter_of(hint, "the type"))
    return lambda data, _: constraints.check(convert(data))


def _named_tuple_hook(hint: Any) -> Callable[[Any, Any], Any]:
    """Structure a named tuple by its resolved hints, from an array in which values with defaults may be missing."""
    from cattrs.errors import IterableValidationError, IterableValidationNote

    fields = fields_of(hint) or ()
    cls = typing.get_origin(hint) or hint

    def structure_items(data: Any, _: Any) -> Any:
        values, errors = [], []
        for index, (item, field) in enumerate(zip(data, fields, strict=False)):
            try:
                values.append(structure(item, field.hint))
            except Exception as error:  # noqa: BLE001  # collected, with its place
                error.add_note(IterableValidationNote(f"at the field {field.name!r}", index, field.hint))
                errors.append(error)
        if errors:
            raise IterableValidationError(f"while structuring {cls.__qualname__}", errors, cls)
        return cls(*values)

    return structure_items


def _named_tuple_unstructure_hook(converter: Converter, hint: Any) -> Callable[[Any], Any]:
    hints = [field.hint for field in fields_of(hint) or ()]
    return lambda items: [converter.unstructure(item, kind) for item, kind in zip(items, hints, strict=True)]


def _typed_dict_hook(cls: Any) -> Callable[[Any, Any], Any]:
    """Structure a TypedDict by its resolved hints; cattrs would use the unresolved ones of the class."""
    from cattrs.errors import AttributeValidationNote, ClassValidationError

    fields = {field.name: field for field in fields_of(cls) or ()}

    def structure_entry(name: str, data: Any) -> Any:
        if name not in fields:
            raise ValueError("there is no such entry")
        return structure(data[name], fields[name].hint)

    def structure_entries(data: Any, _: Any) -> Any:
        entries, errors = {}, []
        # Unknown entries and missing required ones are errors too, so both are visited.
        for name in {**data, **{name: None for name, field in fields.items() if field.required}}:
            try:
                entries[name] = structure_entry(name, data)
            except Exception as error:  # noqa: BLE001  # collected, with its place
                error.add_note(AttributeValidationNote(f"in the entry {name!r}", name, None))
                errors.append(error)
        if errors:
            raise ClassValidationError(f"while structuring {cls.__qualname__}", errors, cls)
        return entries

    return structure_entries


def _typed_dict_unstructure_hook(converter: Converter, cls: Any) -> Callable[[Any], Any]:
    hints = {field.name: field.hint for field in fields_of(cls) or ()}
    return lambda entries: {name: converter.unstructure(value, hints.get(name)) for name, value in entries.items()}


def _is_set(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, collections.abc.Set)


def _set_hook(converter: Converter, hint: Any) -> Callable[[Any], Any]:
    """Unstructure a set in an order that is the same in every process."""
    arguments = typing.get_args(hint)

    def unstructure(items: Any) -> Any:
        return sort_items([converter.unstructure(item, arguments[0] if arguments else None) for item in items])

    return unstructure


def member_of(data: Any, hint: Any) -> Any:
    """Return the first member of a union whose schema data satisfies; None if there is none."""
    return next((member for member, validator in _members(hint) if validator.accepts(data)), None)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in {typing.Union, types.UnionType}


def _structure_union(data: Any, hint: Any) -> Any:
    """Structure data into the first member of a union whose schema it satisfies, like `anyOf`."""
    last_error: Exception | None = None
    for member, validator in _members(hint):
        if validator.accepts(data):
            try:
                return None if member is type(None) else structure(data, member)
            except Exception as error:  # noqa: BLE001  # another member may fit; the last error is raised below
                last_error = error
    raise last_error or ValueError(f"the value fits none of {hint}")


@_ByType
def _members(hint: Any) -> Sequence[tuple[Any, SchemaValidator]]:
    # In their order; cattrs distinguishes only classes with different fields.
    return [(member, SchemaValidator(json_schema(member))) for member in typing.get_args(hint)]
