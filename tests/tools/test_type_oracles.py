"""Schemas and conversion of types, compared with pydantic and msgspec, and with each other."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, Required, TypedDict, Union

import attrs
import msgspec
import pytest
import typing_extensions
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MaxLen, MinLen, MultipleOf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from agentloop.errors import ToolDefinitionError
from agentloop.tools import SchemaValidator
from agentloop.tools.conversion import problems, structure, to_json_data
from agentloop.tools.schema import json_schema
from agentloop.values.json import JsonObject, JsonValue, freeze, thaw
from tests.generated import examples

UserId = NewType("UserId", int)


class Color(enum.Enum):
    """An enumeration of texts."""

    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    """An enumeration of numbers."""

    SMALL = 1
    LARGE = 2


class Mood(enum.StrEnum):
    """An enumeration whose members are texts."""

    GOOD = "good"
    BAD = "bad"


class Mixed(enum.Enum):
    """An enumeration of several types."""

    TEXT = "a"
    NUMBER = 1
    FLAG = False
    NOTHING = None


@dataclass
class Point:
    """A place.

    Attributes:
        x: to the right.
        y: upwards.
    """

    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Route:
    """A class with fields of other classes."""

    points: list[Point]
    name: str | None = None
    tags: frozenset[str] = frozenset()
    color: Color = Color.RED
    by_name: dict[str, Point] = field(default_factory=dict)


@dataclass
class Tree:
    """A recursive class."""

    value: int
    children: list[Tree] = field(default_factory=list)
    parent: Optional[Tree] = None  # noqa: UP045  # the old spelling has to work


@dataclass
class Owner:
    """A class that refers to another one, which refers back."""

    name: str
    pets: list[Pet]


@dataclass
class Pet:
    """The other class of the pair."""

    owner: Owner | None


@attrs.frozen
class Box:
    """An attrs class with a private field, an alias, and defaults of both kinds."""

    width: int
    _depth: int = 1
    label: str = attrs.field(default="", alias="title")
    items: list[str] = attrs.field(factory=list)
    area: int = attrs.field(init=False, default=0)


@attrs.frozen
class Plain:
    """A plain attrs class."""

    number: int
    names: list[str] = attrs.field(factory=list)


@attrs.define
class Namespace:
    """A recursive attrs class with fields of other classes."""

    boxes: list[Box]
    above: Namespace | None = None


class Movie(TypedDict):
    """A TypedDict with one optional entry."""

    title: str
    year: NotRequired[int]


class Options(TypedDict, total=False):
    """A TypedDict with one required entry."""

    limit: int
    order: Required[Literal["up", "down"]]


class Wide(Movie, total=False):
    """A TypedDict that inherits required entries."""

    width: float


class OldStyle(typing_extensions.TypedDict):
    """A TypedDict of typing_extensions, which pydantic requires on older versions of Python."""

    name: str
    size: NotRequired[int]


class Cat(BaseModel):
    """A pydantic model."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """A pydantic model with a bounded field."""

    kind: Literal["dog"]
    age: Annotated[int, Field(ge=0, le=30)]


class Zoo(BaseModel):
    """A pydantic model with fields of models."""

    animals: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    director: Zoo | None = None


texts = st.text(max_size=4)
small = st.integers(-3, 40)
floats = st.floats(-1e6, 1e6).map(lambda number: number + 0.5 if number.is_integer() else number)
days = st.dates(date(1990, 1, 1), date(2030, 1, 1))
moments = st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1), timezones=st.sampled_from([None, UTC]))  # noqa: DTZ001  # naive ones too
points = st.builds(Point, small, floats)
trees = st.recursive(
    st.builds(Tree, small), lambda inner: st.builds(Tree, small, st.lists(inner, max_size=2), st.none() | inner)
)
pets = st.recursive(
    st.builds(Pet, st.none()),
    lambda inner: st.builds(Pet, st.builds(Owner, texts, st.lists(inner, max_size=2))),
    max_leaves=4,
)
boxes = st.builds(Box, small, small, texts, st.lists(texts, max_size=2))
shelves = st.recursive(
    st.builds(Namespace, st.lists(boxes, max_size=2)),
    lambda inner: st.builds(Namespace, st.lists(boxes, max_size=1), inner),
    max_leaves=3,
)
movies = st.fixed_dictionaries({"title": texts}, optional={"year": small})
cats, dogs = (
    st.builds(Cat, kind=st.just("cat"), lives=small),
    st.builds(Dog, kind=st.just("dog"), age=st.integers(0, 30)),
)
zoos = st.recursive(
    st.builds(Zoo, animals=st.lists(cats | dogs, max_size=2)),
    lambda inner: st.builds(Zoo, animals=st.lists(cats, max_size=1), director=inner),
    max_leaves=3,
)

BOUNDED: dict[str, tuple[Any, SearchStrategy[Any]]] = {
    "at least": (Annotated[int, Ge(2)], st.integers(2, 9)),
    "between": (Annotated[int, Interval(gt=0, lt=9)], st.integers(1, 8)),
    "several bounds": (Annotated[float, Gt(0), Le(9.5)], st.just(2.5)),
    "multiple": (Annotated[int, MultipleOf(3)], st.integers(-3, 3).map(lambda number: number * 3)),
    "text of a length": (Annotated[str, Len(1, 3)], st.text(min_size=1, max_size=3)),
    "list of a length": (Annotated[list[int], MinLen(1), MaxLen(2)], st.lists(small, min_size=1, max_size=2)),
    "dict of a length": (Annotated[dict[str, int], Len(1, 2)], st.dictionaries(texts, small, min_size=1, max_size=2)),
    "items with bounds": (list[Annotated[int, Lt(5)]], st.lists(st.integers(-9, 4), max_size=3)),
}
"""Types with the bounds of annotated-types, which msgspec does not read."""

KNOWN_TO_PYDANTIC: dict[str, tuple[Any, SearchStrategy[Any]]] = {
    "str": (str, texts),
    "int": (int, small),
    "float": (float, floats),
    "bool": (bool, st.booleans()),
    "None": (None, st.none()),
    "list": (list[int], st.lists(small, max_size=3)),
    "Sequence": (Sequence[str], st.lists(texts, max_size=3).map(tuple)),
    "MutableSequence": (MutableSequence[str], st.lists(texts, max_size=3)),
    "tuple of any length": (tuple[int, ...], st.lists(small, max_size=3).map(tuple)),
    "tuple": (tuple[int, str], st.tuples(small, texts)),
    "empty tuple": (tuple[()], st.just(())),
    "tuple of classes": (tuple[Point, bool], st.tuples(points, st.booleans())),
    "set": (set[int], st.sets(small, max_size=3)),
    "frozenset": (frozenset[str], st.frozensets(texts, max_size=3)),
    "dict": (dict[str, int], st.dictionaries(texts, small, max_size=3)),
    "Mapping": (Mapping[str, list[int]], st.dictionaries(texts, st.lists(small, max_size=2), max_size=2)),
    "Literal": (Literal["a", "b"], st.sampled_from(["a", "b"])),
    "Literal of several types": (Literal["a", 2] | None, st.sampled_from(["a", 2, None])),
    "Enum": (Color, st.sampled_from(Color)),
    "StrEnum": (Mood, st.sampled_from(Mood)),
    "Optional": (Optional[int], st.none() | small),  # noqa: UP045  # the old spelling has to work
    "Union": (Union[int, str], small | texts),  # noqa: UP007  # the same
    "union of many": (int | list[str] | None, st.none() | small | st.lists(texts, max_size=2)),
    "union in a list": (list[bool | str], st.lists(st.booleans() | texts, max_size=3)),
    "NewType": (UserId, small),
    **BOUNDED,
    "dataclass": (Point, points),
    "dataclass of classes": (
        Route,
        st.builds(
            Route,
            st.lists(points, max_size=2),
            st.none() | texts,
            st.frozensets(texts, max_size=2),
            st.sampled_from(Color),
            st.dictionaries(texts, points, max_size=2),
        ),
    ),
    "recursive dataclass": (Tree, trees),
    "dataclasses of one another": (Pet, pets),
    "TypedDict of typing_extensions": (
        OldStyle,
        st.fixed_dictionaries({"name": texts}, optional={"size": small}),
    ),
    "UUID": (uuid.UUID, st.uuids()),
    "date": (date, days),
    "datetime": (datetime, moments),
    "time": (time, st.times()),
    "datetimes by name": (dict[str, datetime], st.dictionaries(texts, moments, max_size=2)),
}
"""Types that pydantic and this package read alike, each with a strategy for its values."""

KNOWN_TO_MSGSPEC: dict[str, tuple[Any, SearchStrategy[Any]]] = {
    "Literal of a flag": (Literal[True], st.just(True)),  # noqa: FBT003  # a value, not an option
    "IntEnum": (Size, st.sampled_from(Size)),
    "TypedDict": (Movie, movies),
    "TypedDict of optional keys": (
        Options,
        st.fixed_dictionaries({"order": st.sampled_from(["up", "down"])}, optional={"limit": small}),
    ),
    "TypedDict that inherits": (Wide, st.fixed_dictionaries({"title": texts}, optional={"width": floats})),
    "bytes": (bytes, st.binary(max_size=5)),
    "Collection": (Collection[date], st.lists(days, max_size=3)),
    "abstract set": (AbstractSet[int], st.frozensets(small, max_size=3)),
    "attrs class of lists": (Plain, st.builds(Plain, small, st.lists(texts, max_size=2))),
    "bounds of msgspec": (Annotated[int, msgspec.Meta(ge=0, lt=9)], st.integers(0, 8)),
    "lengths of msgspec": (
        Annotated[list[Annotated[str, msgspec.Meta(max_length=3)]], msgspec.Meta(min_length=1)],
        st.lists(st.text(max_size=3), min_size=1, max_size=2),
    ),
    "pattern of msgspec": (Annotated[str, msgspec.Meta(pattern="^a")], st.text(max_size=2).map("a{}".format)),
}
"""Types that msgspec reads alike; pydantic accepts 1 for True and True for 1, and no TypedDict of typing."""

OURS: dict[str, tuple[Any, SearchStrategy[Any]]] = {
    "Any": (Any, st.none() | small | texts | st.lists(small, max_size=2)),
    "JsonValue": (JsonValue, st.none() | small | texts | st.lists(small, max_size=2).map(freeze)),
    "JsonObject": (JsonObject, st.dictionaries(texts, small, max_size=2).map(JsonObject)),
    "Enum of several types": (Mixed, st.sampled_from(Mixed)),
    "Literal of members": (Literal[Color.RED, "x"], st.sampled_from([Color.RED, "x"])),
    "Iterable": (Iterable[int], st.lists(small, max_size=3)),
    "set of texts with a time": (set[date], st.sets(days, max_size=3)),
    "timedelta": (
        timedelta,
        st.timedeltas(timedelta(0), timedelta(days=9)).map(lambda delta: timedelta(delta.days, 30)),
    ),
    "Decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "bounded Decimal": (
        Annotated[Decimal | None, Ge(0)],
        st.none() | st.integers(0, 99).map(Decimal),
    ),
    "Path": (Path, texts.map(Path)),
    "attrs class": (Box, boxes),
    "recursive attrs class": (Namespace, shelves),
    "model": (Cat, cats),
    "recursive model": (Zoo, zoos),
    "union of classes": (Point | Box | None, st.none() | points | boxes),
    "union of models": (Cat | Dog, cats | dogs),
    "everything at once": (
        dict[str, list[tuple[Point, Zoo] | Box | datetime | None]],
        st.dictionaries(texts, st.lists(st.none() | boxes | moments | st.tuples(points, zoos), max_size=2), max_size=2),
    ),
}
"""Types that neither reads alike, or that belong to one of them."""

ALL = {**KNOWN_TO_PYDANTIC, **KNOWN_TO_MSGSPEC, **OURS}

JUNK = [
    None,
    True,
    False,
    0,
    1,
    2,
    -7,
    41,
    0.5,
    "",
    "a",
    "red",
    "good",
    "1",
    "abcdef",
    [],
    [1],
    ["a"],
    [1, "a"],
    {},
    {"x": 1},
]


@st.composite
def valid_or_nearly(draw: DrawFn, hint: Any, values: SearchStrategy[Any]) -> Any:
    """Draw JSON data of a type, or data that differs from it in one or two places."""
    holder = [thaw(to_json_data(draw(values), hint))]
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(inner_paths(holder)))
        parent: Any = holder
        for step in path:
            parent = parent[step]
        if path and draw(st.booleans()):
            del parent[last]
        else:
            parent[last] = deepcopy(draw(st.sampled_from(JUNK)))
    return holder[0]


def inner_paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values inside of plain data."""
    paths = [path] if path else []
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in inner:
        paths.extend(inner_paths(value, (*path, step)))
    return paths


def has_no_repeated_items(data: Any) -> bool:
    """Return whether no list repeats an item; the oracles accept repeated items for a set."""
    if isinstance(data, list):
        return len({json.dumps(item) for item in data}) == len(data) and all(map(has_no_repeated_items, data))
    return all(map(has_no_repeated_items, data.values())) if isinstance(data, dict) else True


def without_closed_objects(schema: Any) -> Any:
    """Return the schema without `additionalProperties`: the oracles accept and drop unknown entries."""
    if isinstance(schema, dict):
        open_schema = {key: value for key, value in schema.items() if (key, value) != ("additionalProperties", False)}
        return {key: without_closed_objects(value) for key, value in open_schema.items()}
    return [without_closed_objects(item) for item in schema] if isinstance(schema, list) else schema


def check_agreement(
    name: str, ours: Callable[[Any], bool], theirs: Callable[[Any], bool], disputed: Collection[str] = ()
) -> None:
    """Check that this package and an oracle accept the same data, and that some was accepted and some rejected."""
    verdicts = set()

    @settings(max_examples=examples(60))
    @given(valid_or_nearly(*ALL[name]).filter(has_no_repeated_items))
    def compare(data: Any) -> None:
        assume(not any(f'"{text}"' in json.dumps(data) for text in disputed))
        verdict = ours(data)
        verdicts.add(verdict)
        assert verdict is theirs(data)

    compare()
    assert verdicts == {True, False}


@pytest.mark.parametrize("name", KNOWN_TO_PYDANTIC)
def test_the_same_data_is_accepted_as_by_pydantic(name: str) -> None:
    """Schema and conversion together agree with pydantic's strict mode for JSON, except about unknown entries."""
    hint, _ = KNOWN_TO_PYDANTIC[name]
    validator, adapter = SchemaValidator(without_closed_objects(json_schema(hint))), TypeAdapter(hint)

    def ours(data: Any) -> bool:
        if not validator.accepts(data):
            return False
        try:
            structure(data, hint)
        except Exception as error:  # noqa: BLE001  # a constructor may raise any error
            return all("Extra fields" in message for _, message in problems(error))
        return True

    def theirs(data: Any) -> bool:
        try:
            adapter.validate_json(json.dumps(data), strict=True)
        except ValidationError:
            return False
        return True

    check_agreement(name, ours, theirs, disputed=["1"] if "date" in name else [])  # pydantic reads "1" as a time


@pytest.mark.parametrize("name", [name for name in {**KNOWN_TO_PYDANTIC, **KNOWN_TO_MSGSPEC} if name not in BOUNDED])
def test_the_schema_accepts_the_same_data_as_that_of_msgspec(name: str) -> None:
    """The two schemas agree about all data, except about unknown entries."""
    hint, _ = ALL[name]
    try:
        schema = msgspec.json.schema(hint)
    except TypeError:
        assert "models" in name
        return
    check_agreement(
        name,
        SchemaValidator(without_closed_objects(json_schema(hint))).accepts,
        SchemaValidator(without_closed_objects(schema)).accepts,
    )


@pytest.mark.parametrize("name", ALL)
def test_values_round_trip_through_json(name: str) -> None:
    """The JSON of a value satisfies the schema of its type, and is converted to an equal value."""
    hint, values = ALL[name]
    validator = SchemaValidator(json_schema(hint))

    @settings(max_examples=examples(40))
    @given(values)
    def check(value: Any) -> None:
        data = to_json_data(value, hint)
        assert validator.problems(thaw(data)) == []
        copy = structure(thaw(data), hint)
        assert copy == value
        assert type(copy) is type(value)
        assert to_json_data(copy, hint) == data

    check()


@pytest.mark.parametrize("name", ALL)
def test_a_schema_is_a_valid_schema(name: str) -> None:
    """A schema passes the check of its draft, is plain JSON, and is built anew each time."""
    hint, _ = ALL[name]
    schema = json_schema(hint)
    SchemaValidator(schema)
    assert thaw(freeze(schema)) == schema
    schema["changed"] = True
    assert "changed" not in json_schema(hint)


@pytest.mark.parametrize("hint", [Point, Movie, Options, Box, Tree])
def test_unknown_entries_are_rejected(hint: Any) -> None:
    """A field that a model makes up is an error; it is never dropped silently."""
    validator = SchemaValidator(json_schema(hint))
    valid: dict[Any, dict[str, object]] = {
        Point: {"x": 1},
        Movie: {"title": "x"},
        Options: {"order": "up"},
        Box: {"width": 1},
        Tree: {"value": 1},
    }
    assert validator.accepts(valid[hint])
    assert validator.problems({**valid[hint], "made_up": 1}) == [
        ("$", "Additional properties are not allowed ('made_up' was unexpected)")
    ]


@pytest.mark.parametrize(
    "hint", [range, complex, Callable[[int], int], type[int], dict[tuple[int, int], str], Any | range, list[range]]
)
def test_types_without_a_json_form_are_definition_errors(hint: Any) -> None:
    """The error lists the supported types."""
    with pytest.raises(
        ToolDefinitionError, match=r"has no JSON Schema here; use one of: str, int|the keys of a JSON object"
    ):
        json_schema(hint)
