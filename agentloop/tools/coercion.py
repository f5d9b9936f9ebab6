"""Coercion: values of another type than a schema requires, read in the one way that satisfies it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, Final, TypeAlias

from attrs import define, field

from agentloop.errors import NotJson
from agentloop.tools.validation import Misfit, Misfits, SchemaValidator, value_at
from agentloop.values.bounds import Bounds
from agentloop.values.json import MAX_DEPTH, duplicate_key, format_json, freeze, parse_json
from agentloop.values.tool_calls import JSON_FROM_TEXT

NUMBER_FROM_TEXT: Final = "text read as number"
BOOLEAN_FROM_TEXT: Final = "text read as boolean"
NULL_FROM_TEXT: Final = "text read as null"
LIST_FROM_VALUE: Final = "value put into a list"

Arguments: TypeAlias = dict[str, Any]
_Path: TypeAlias = tuple[str | int, ...]
_Reading: TypeAlias = tuple[Any, str]
"""A value, and the repair that it takes."""
_Places: TypeAlias = dict[_Path, frozenset[str]]
"""Places whose values have a reading, with the types that the schema takes there."""

_MAX_ROUNDS: Final = 8
"""Each round reads one level of JSON in texts, or one value of a new list."""
_MAX_WAYS: Final = 16


def coerce_arguments(
    validator: SchemaValidator, arguments: Arguments, bounds: Bounds
) -> tuple[Arguments, list[str]] | None:
    """Return arguments that satisfy the schema, and the repairs that it took; None if there is not exactly one way.

    Args:
        validator: the schema.
        arguments: arguments that do not satisfy it; they are changed.
        bounds: the bounds on all checks together.
    """
    return _Search(validator, bounds).coerce(arguments, _MAX_ROUNDS)


@define(eq=False)
class _Search:
    """The search for the one way to read arguments.

    Attributes:
        validator: the schema.
        bounds: the bounds on all checks together.
    """

    validator: SchemaValidator
    bounds: Bounds
    _steps: float = field(default=0.0, init=False)
    _is_over: bool = field(default=False, init=False)

    def coerce(self, arguments: Arguments, rounds: int) -> tuple[Arguments, list[str]] | None:
        """Return the arguments in the one way that satisfies the schema, with the repairs; None if there is none, or several."""
        repairs: list[str] = []
        while rounds > 0:
            misfits = self.validator.misfits(arguments, self.bounds, self._steps)
            if misfits is None:
                self._is_over = True
                return None
            self._steps = misfits.steps
            if not misfits.places:
                return arguments, repairs
            places, choices = _find_places(misfits, arguments)
            known = len(repairs)
            repairs += _coerce_places(arguments, places)
            rounds -= 1
            # Problems of other kinds may follow from the types, so only the lack of progress ends the search.
            if len(repairs) == known:
                return self._try_each(arguments, _ways(arguments, places, choices), repairs, rounds)
        return None

    def _try_each(
        self,
        arguments: Arguments,
        ways: Sequence[Sequence[tuple[_Path, _Reading]]],
        repairs: Sequence[str],
        rounds: int,
    ) -> tuple[Arguments, list[str]] | None:
        """Return what the only way leads to that satisfies the schema; None if none does, or several do."""
        found: dict[bytes, tuple[Arguments, list[str]]] = {}
        for way in ways:
            candidate = copy.deepcopy(arguments)
            for path, (value, _) in way:
                value_at(candidate, path[:-1])[path[-1]] = value
            result = self.coerce(candidate, rounds)
            if self._is_over:
                return None
            if result is not None:
                found[format_json(result[0])] = (
                    result[0],
                    [*repairs, *[repair for _, (_, repair) in way], *result[1]],
                )
        return next(iter(found.values())) if len(found) == 1 else None


# --- places -----------------------------------------------------------------------------------------------------------

# What these keywords require does not depend on the types of the values inside.
_NEVER_READ: Final = frozenset(
    [
        "required",
        "additionalProperties",
        "minProperties",
        "maxProperties",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "propertyNames",
    ]
)


def _find_places(misfits: Misfits, arguments: Arguments) -> tuple[_Places, list[list[_Places]]]:
    """Return the places to read, and for each `anyOf` or `oneOf` that leaves a choice, the places of each branch.

    Places below `then` and `else` are left out while there are others, on whose types the condition may depend.
    """
    certain: _Places = {}
    conditional: _Places = {}
    choices: list[list[_Places]] = []
    for misfit in misfits.places:
        places = conditional if misfit.is_conditional else certain
        if misfit.types is not None and misfit.path:
            _require(places, misfit.path, misfit.types)
        elif misfit.branches:
            options = _options_of_branches(misfit, arguments)
            if len(options) == 1:
                for path, types in options[0].items():
                    _require(places, path, types)
            elif options:
                choices.append(options)
    both = {path: types & conditional.get(path, types) for path, types in certain.items()}
    return both or conditional, choices


def _require(places: _Places, path: _Path, types: frozenset[str]) -> None:
    places[path] = places.get(path, types) & types


def _options(misfits: Sequence[Misfit], arguments: Arguments) -> list[_Places]:
    """Return the ways to satisfy one branch, as the places that each of them reads; empty if reading cannot satisfy it."""
    options: list[_Places] = [{}]
    for misfit in misfits:
        if misfit.keyword in _NEVER_READ:
            return []
        if misfit.types is not None and misfit.path:
            value = value_at(arguments, misfit.path)
            if not any(_readings(value, misfit.types, is_item=isinstance(misfit.path[-1], int))):
                return []
            for places in options:
                _require(places, misfit.path, misfit.types)
        elif misfit.branches:
            inner = _options_of_branches(misfit, arguments)
            options = [_both(places, more) for places in options for more in inner][:_MAX_WAYS]
    return options


def _both(places: _Places, more: _Places) -> _Places:
    merged = dict(places)
    for path, types in more.items():
        _require(merged, path, types)
    return merged


def _options_of_branches(misfit: Misfit, arguments: Arguments) -> list[_Places]:
    """Return the ways to satisfy any branch. Branches that read the same places are one way, with the types of all of them."""
    merged: dict[frozenset[_Path], _Places] = {}
    for branch in misfit.branches:
        for places in _options(branch, arguments):
            known = merged.setdefault(frozenset(places), {})
            for path, types in places.items():
                known[path] = known.get(path, frozenset()) | types
    return [places for places in merged.values() if places]


def _coerce_places(arguments: Arguments, places: Mapping[_Path, frozenset[str]]) -> Iterator[str]:
    """Coerce the values of wrong types that have one reading, and yield the repairs."""
    changed: set[_Path] = set()
    for path in sorted(places, key=len):
        if any(path[:length] in changed for length in range(len(path))):
            continue  # the value around it has changed
        parent: Any = value_at(arguments, path[:-1])
        readings = list(_readings(parent[path[-1]], places[path], is_item=isinstance(path[-1], int)))
        if len(readings) == 1:
            parent[path[-1]], repair = readings[0]
            changed.add(path)
            yield repair


def _ways(
    arguments: Arguments, places: _Places, choices: Sequence[Sequence[_Places]]
) -> Sequence[Sequence[tuple[_Path, _Reading]]]:
    """Return the ways on from the first place with several readings, or from the first choice between branches."""
    for path, types in places.items():
        readings = list(_readings(value_at(arguments, path), types, is_item=isinstance(path[-1], int)))
        if len(readings) > 1:
            return [[(path, reading)] for reading in readings]
    for options in choices:
        ways = [_only_readings(arguments, option) for option in options]
        return [way for way in ways if way]
    return ()


def _only_readings(arguments: Arguments, places: _Places) -> list[tuple[_Path, _Reading]]:
    """Return the readings of the outermost places that have one; the places inside of others are read in the next round."""
    found: list[tuple[_Path, _Reading]] = []
    for path in sorted(places, key=len):
        if any(path[: len(outer)] == outer for outer, _ in found):
            continue
        readings = list(_readings(value_at(arguments, path), places[path], is_item=isinstance(path[-1], int)))
        if len(readings) == 1:
            found.append((path, readings[0]))
    return found


# --- readings ---------------------------------------------------------------------------------------------------------


def _readings(value: Any, types: frozenset[str], *, is_item: bool) -> Iterator[_Reading]:
    """Yield what a value may mean where these types are required.

    Args:
        value: a value of another type.
        types: the JSON types; `number` comes with `integer`.
        is_item: whether the value is an item of an array.
    """
    container = _read_container(value) if isinstance(value, str) else None
    if isinstance(value, str):
        yield from _literals(value, types)
        if isinstance(container, dict) and "object" in types:
            yield container, JSON_FROM_TEXT
        if isinstance(container, list) and "array" in types:
            yield container, JSON_FROM_TEXT
    # A list of values in a list of lists may be one item or many.
    if "array" in types and not is_item:
        if isinstance(container, dict):
            yield [container], LIST_FROM_VALUE
        elif _is_single(value):
            yield [value], LIST_FROM_VALUE


def _literals(text: str, types: frozenset[str]) -> Iterator[_Reading]:
    bare = text.strip(_JSON_SPACE)
    if "integer" in types:
        number = read_number(bare, is_integer="number" not in types)
        if number is not None:
            yield number, NUMBER_FROM_TEXT
    if "boolean" in types and bare.lower() in {"true", "false"}:
        yield bare.lower() == "true", BOOLEAN_FROM_TEXT
    if "null" in types and bare in {"null", "None"}:
        yield None, NULL_FROM_TEXT


_JSON_SPACE: Final = " \t\r\n"
# Decimal raises for exponents of about 19 digits.
NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,9})?")
_MAX_NUMBER_LENGTH: Final = 1_000  # a number is read in time quadratic in its length


def read_number(text: str, *, is_integer: bool) -> int | float | None:
    """Return the number that a text is in JSON; None if it is none, or if the number is not exactly that.

    Args:
        text: the text.
        is_integer: whether an integer is required, in whichever notation: `3`, `3.0` or `3e0`.
    """
    if len(text) > _MAX_NUMBER_LENGTH or not NUMBER.fullmatch(text):
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    number = float(text)
    # The exact value of infinity or of a tiny number would have as many digits as its exponent says.
    if not isfinite(number):
        return None
    exact = Decimal(text)
    if is_integer:
        return int(number) if number.is_integer() and exact == int(number) else None
    return number if exact == Decimal(repr(number)) else None


_BRACKETS: Final = ("{", "[")


def _read_container(text: str) -> Any:
    """Return the object or array that a text is in JSON; None for another text, or if a key occurs twice."""
    if not text.lstrip(_JSON_SPACE).startswith(_BRACKETS):
        return None
    try:
        container = parse_json(text)
        if duplicate_key(text) is not None:
            return None
        if text.count("{") + text.count("[") > MAX_DEPTH:
            freeze(container)
    except (ValueError, RecursionError, NotJson):
        return None
    return container


_SEPARATORS: Final = re.compile(r"[,;|\t\n\v\f\r\x85\u2028\u2029،؛、，；｜]")  # noqa: RUF001  # those of other scripts, too


def _is_single(value: Any) -> bool:
    """Whether a value is one item for certain: null may stand for no list, and a text may enumerate several items."""
    if not isinstance(value, str):
        return value is not None and not isinstance(value, list)
    text = value.strip()
    return bool(text) and not text.startswith(_BRACKETS) and not _SEPARATORS.search(text)
