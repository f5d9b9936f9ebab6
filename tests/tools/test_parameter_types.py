"""The supported types of parameters and results: the schema, the argument, and the JSON of the result."""

from __future__ import annotations

import enum
import json
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypedDict, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest
from pydantic import AnyUrl, AwareDatetime, BaseModel, ByteSize, Field, HttpUrl, JsonValue, SecretStr
from typing_extensions import ReadOnly, TypeAliasType

from agentloop import ToolCall, tool
from agentloop.errors import ToolDefinitionError
from agentloop.testing import ExecutorBench
from agentloop.tools import FunctionTool
from agentloop.tools.conversion import structure
from agentloop.values.json import freeze, thaw


class Color(enum.Enum):
    """By name."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """By number."""

    LOW = 1
    HIGH = 2


class Person(TypedDict):
    """A person."""

    name: str
    age: NotRequired[int]


@dataclass
class Place:
    """A place.

    Attributes:
        x: how far to the east.
    """

    x: int
    tags: list[str] = field(default_factory=list)


@attrs.frozen
class Trip:
    """A trip."""

    start: Place
    day: date
    kind: Literal["train", "car"] = "train"


@dataclass
class Branch:
    """Contains itself."""

    name: str
    branches: list[Branch] = field(default_factory=list)


Item = TypeVar("Item")


@dataclass
class Box(Generic[Item]):
    """A generic class."""

    item: Item
    more: list[Item] = field(default_factory=list)


@dataclass
class Scaled:
    """A class with a value for its constructor alone."""

    size: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.size *= factor


@dataclass
class Needy:
    """A class with such a value and no default."""

    size: int
    factor: InitVar[int]


class Order(BaseModel):
    """A pydantic model."""

    number: int = Field(ge=1)
    placed: datetime
    lines: list[str] = []


class Permission(enum.Flag):
    """By any sum of numbers."""

    READ = 1
    WRITE = 2
    RUN = 4


class Point(NamedTuple):
    """A named tuple.

    Attributes:
        x: how far to the east.
    """

    x: float
    y: float = 0.0


class Stop(NamedTuple):
    """A named tuple with another one."""

    place: Point
    day: date


class Pair(NamedTuple, Generic[Item]):
    """A generic named tuple."""

    first: Item
    second: Item


class Frozen(TypedDict):
    """A dict with an entry that may be missing and is not changed."""

    name: str
    born: NotRequired[ReadOnly[date]]


Nested = TypeAliasType("Nested", "int | list[Nested]")
Several = TypeAliasType("Several", list[Item], type_params=(Item,))

TEXT, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
UUID_TEXT = "12345678-1234-5678-1234-567812345678"
MOMENT = "2026-05-04T10:20:30+00:00"
PLACE = {
    "type": "object",
    "properties": {
        "x": {**INTEGER, "description": "how far to the east."},
        "tags": {"type": "array", "items": TEXT},
    },
    "additionalProperties": False,
    "required": ["x"],
}

POINT = {
    "type": "array",
    "prefixItems": [
        {"title": "x", **NUMBER, "description": "how far to the east."},
        {"title": "y", **NUMBER, "default": 0.0},
    ],
    "minItems": 1,
    "maxItems": 2,
}

# hint, its schema (None: tested elsewhere), valid JSON, the Python value, invalid JSON (...: there is none)
ROWS: list[tuple[Any, Any, Any, Any, Any]] = [
    (str, TEXT, "ä", "ä", 1),
    (int, INTEGER, 3, 3, 3.5),
    (float, NUMBER, 3, 3.0, "3"),
    (bool, {"type": "boolean"}, True, True, 1),
    (None, {"type": "null"}, None, None, 0),
    (Any, {}, {"a": [1]}, {"a": [1]}, ...),
    (bytes, {"type": "string", "contentEncoding": "base64"}, "aGk=", b"hi", "no base64!"),
    (list[int], {"type": "array", "items": INTEGER}, [1, 2], [1, 2], [1, "2"]),
    (list, {"type": "array"}, [1, "2"], [1, "2"], {}),
    (tuple[int, ...], {"type": "array", "items": INTEGER}, [1, 2], (1, 2), ["a"]),
    (
        tuple[int, str],
        {"type": "array", "prefixItems": [INTEGER, TEXT], "minItems": 2, "maxItems": 2},
        [1, "a"],
        (1, "a"),
        [1],
    ),
    (set[str], {"type": "array", "items": TEXT, "uniqueItems": True}, ["a", "b"], {"a", "b"}, ["a", "a"]),
    (frozenset[int], {"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 2], frozenset({1, 2}), [1, 1]),
    (dict[str, float], {"type": "object", "additionalProperties": NUMBER}, {"a": 1}, {"a": 1.0}, {"a": "1"}),
    (Literal["a", 1], {"enum": ["a", 1]}, 1, 1, "b"),
    (Color, {"type": "string", "enum": ["red", "blue"]}, "red", Color.RED, "RED"),
    (Level, {"type": "integer", "enum": [1, 2]}, 2, Level.HIGH, 3),
    (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}, None, None, "a"),  # noqa: UP045  # the older spelling
    (int | None, {"anyOf": [INTEGER, {"type": "null"}]}, 4, 4, "a"),
    (Union[int, str], {"anyOf": [INTEGER, TEXT]}, "4", "4", 4.5),  # noqa: UP007  # the older spelling
    (int | list[date], None, ["2026-05-04"], [date(2026, 5, 4)], ["never"]),
    (Annotated[int, "how many"], {**INTEGER, "description": "how many"}, 1, 1, "1"),
    (Annotated[int, Field(ge=1, lt=5)], {**INTEGER, "minimum": 1, "exclusiveMaximum": 5}, 1, 1, 5),
    (Annotated[str, Field(max_length=2)], {**TEXT, "maxLength": 2}, "ab", "ab", "abc"),
    (Person, None, {"name": "Ada"}, {"name": "Ada"}, {"age": 3}),
    (Place, PLACE, {"x": 1, "tags": ["a"]}, Place(1, ["a"]), {"x": 1, "y": 2}),
    (
        Trip,
        None,
        {"start": {"x": 1, "tags": []}, "day": "2026-05-04", "kind": "car"},
        Trip(Place(1), date(2026, 5, 4), "car"),
        {"start": {}, "day": "2026-05-04"},
    ),
    (
        Branch,
        None,
        {"name": "a", "branches": [{"name": "b", "branches": []}]},
        Branch("a", [Branch("b")]),
        {"name": "a", "branches": [{"name": 1}]},
    ),
    (Box, None, {"item": {"a": 1}, "more": [1]}, Box({"a": 1}, [1]), {"item": 1, "more": 2}),
    (
        Order,
        None,
        {"number": 1, "placed": "2026-05-04T10:20:30Z", "lines": []},
        Order(number=1, placed=datetime(2026, 5, 4, 10, 20, 30, tzinfo=UTC)),
        {"number": 0, "placed": MOMENT},
    ),
    (datetime, {**TEXT, "format": "date-time"}, MOMENT, datetime(2026, 5, 4, 10, 20, 30, tzinfo=UTC), "soon"),
    (date, {**TEXT, "format": "date"}, "2026-05-04", date(2026, 5, 4), "2026-13-04"),
    (time, {**TEXT, "format": "time"}, "10:20:30", time(10, 20, 30), "25:00"),
    (timedelta, None, 1.5, timedelta(seconds=1.5), "1 s"),
    (timedelta, None, "PT5M", timedelta(minutes=5), "P1Y"),
    (timedelta, None, "-P1DT2H0.5S", -timedelta(days=1, hours=2, seconds=0.5), "PT"),
    (list[timedelta | None], None, ["P2W", 3, None], [timedelta(weeks=2), timedelta(seconds=3), None], ["P"]),
    (UUID, {**TEXT, "format": "uuid"}, UUID_TEXT, UUID(UUID_TEXT), "1234"),
    (Decimal, None, "1.10", Decimal("1.10"), "one"),
    (Path, {**TEXT, "format": "path"}, "a/b.txt", Path("a/b.txt"), 1),
    (PureWindowsPath, {**TEXT, "format": "path"}, "a/b.txt", PureWindowsPath("a/b.txt"), 1),
    (Point, POINT, [1, 2], Point(1, 2), {"x": 1, "y": 2}),
    (Point, POINT, [1], Point(1), [1, 2, 3]),
    (list[Point | None], None, [[1, 2], None], [Point(1, 2), None], [["a", 2]]),
    (Stop, None, [[1, 2], "2026-05-04"], Stop(Point(1, 2), date(2026, 5, 4)), [[1, 2], "never"]),
    (Pair, None, [1, "a"], Pair(1, "a"), [1]),
    (Pair[date], None, ["2026-05-04", "2026-05-05"], Pair(date(2026, 5, 4), date(2026, 5, 5)), ["2026-05-04", "no"]),
    (Box[date], None, {"item": "2026-05-04", "more": []}, Box(date(2026, 5, 4)), {"item": "never"}),
    (dict[Color, int], None, {"red": 1}, {Color.RED: 1}, {"green": 1}),
    (dict[Level, Point], None, {"2": [1, 2]}, {Level.HIGH: Point(1, 2)}, {"3": [1, 2]}),
    (dict[Literal["a", "b"], int], None, {"a": 1}, {"a": 1}, {"c": 1}),
    (dict[int, str], None, {"-7": "a"}, {-7: "a"}, {"seven": "a"}),
    (dict[date, int], None, {"2026-05-04": 1}, {date(2026, 5, 4): 1}, {"never": 1}),
    (dict[Color | int, bool], None, {"red": True, "4": False}, {Color.RED: True, 4: False}, {"green": True}),
    (Counter[str], {"type": "object", "additionalProperties": INTEGER}, {"a": 2}, Counter(a=2), {"a": "many"}),
    (OrderedDict[str, int], None, {"b": 1, "a": 2}, OrderedDict(b=1, a=2), {"a": "b"}),
    (defaultdict[str, list[int]], None, {"a": [1]}, defaultdict(list, {"a": [1]}), {"a": 1}),
    (deque[int], {"type": "array", "items": INTEGER}, [1, 2], deque([1, 2]), ["a"]),
    (Permission, None, 3, Permission.READ | Permission.WRITE, 8),
    (Frozen, None, {"name": "Ada", "born": "2026-05-04"}, {"name": "Ada", "born": date(2026, 5, 4)}, {"name": 3}),
    (IPv4Address, {**TEXT, "format": "ipv4"}, "1.2.3.4", IPv4Address("1.2.3.4"), "1.2.3"),
    (IPv4Address | IPv6Address, None, "::1", IPv6Address("::1"), "here"),
    (IPv6Network, {**TEXT, "format": "ipv6network"}, "fe80::/10", IPv6Network("fe80::/10"), "fe80::1/10"),
    (ZoneInfo, None, "Europe/Berlin", ZoneInfo("Europe/Berlin"), "Mars/Olympus"),
    (JsonValue, {}, {"a": [1, None]}, {"a": [1, None]}, ...),
    (dict[str, JsonValue], None, {"a": {"b": 1}}, {"a": {"b": 1}}, []),
    (HttpUrl, None, "https://example.com/", HttpUrl("https://example.com/"), "here"),
    (HttpUrl | None, None, "https://example.com/", HttpUrl("https://example.com/"), "ftp://example.com"),
    (dict[str, AnyUrl], None, {"a": "x://b/"}, {"a": AnyUrl("x://b/")}, {"a": "b"}),
    (AwareDatetime, None, MOMENT, datetime(2026, 5, 4, 10, 20, 30, tzinfo=UTC), "2026-05-04T10:20:30"),
    (ByteSize, None, "3KB", ByteSize(3000), "much"),
    (Nested, None, [1, [2, []]], [1, [2, []]], ["a"]),
    (Several[date], None, ["2026-05-04"], [date(2026, 5, 4)], ["never"]),
]
NAMES = [str(row[0]) for row in ROWS]


def identity_tool(hint: Any) -> tuple[FunctionTool[..., Any], list[Any]]:
    """Return a strict tool that returns its argument, and the list of its arguments."""
    seen: list[Any] = []

    async def same(value: Any) -> Any:
        """Return the value."""
        seen.append(value)
        return value

    same.__annotations__.update({"value": hint, "return": hint})
    return tool(effect="pure", strict=True)(same), seen


def calls(value: Any) -> ToolCall:
    return ToolCall("", "same", json.dumps({"value": value}))


@pytest.mark.parametrize(("hint", "schema", "valid", "value", "invalid"), ROWS, ids=NAMES)
async def test_a_parameter_of_the_type(hint: Any, schema: Any, valid: Any, value: Any, invalid: Any) -> None:
    """Valid JSON is converted to the type and back to valid JSON; invalid JSON never reaches the tool."""
    same, seen = identity_tool(hint)
    if schema is not None:
        assert thaw(same.parameters)["properties"]["value"] == schema
    done = await ExecutorBench([same]).run(calls(valid))
    assert done.executions[0].error_message == ""
    assert seen == [value]
    assert type(seen[0]) is type(value)
    again = await ExecutorBench([same]).run(calls(thaw(done.executions[0].value)))
    assert again.executions[0].value == done.executions[0].value
    assert seen == [value, value]
    if invalid is not ...:
        (rejected,) = (await ExecutorBench([same]).run(calls(invalid))).executions
        assert (rejected.status.value, len(seen)) == ("rejected", 2)
        assert rejected.error is not None
        assert rejected.error.type == "InvalidArguments"
        assert rejected.error.path.startswith("$.value")


@dataclass
class DateFirst:
    """A class with a union."""

    value: list[date | str]


@dataclass
class TextFirst:
    """The same with the union in another order."""

    value: list[str | date]


@pytest.mark.parametrize(
    ("first", "second", "wrap"),
    [
        (date | str, str | date, lambda value: value),
        (list[date | str], list[str | date], lambda value: [value]),
        (dict[str, date | str], dict[str, str | date], lambda value: {"a": value}),
        (dict[str, date | str] | None, dict[str, str | date] | None, lambda value: {"a": value}),
        (tuple[date | str, ...], tuple[str | date, ...], lambda value: (value,)),
    ],
)
def test_the_first_member_of_a_union_that_fits_is_used(first: Any, second: Any, wrap: Any) -> None:
    """Python takes two unions of the same members for equal; each has its own order, whichever was used before."""
    text, day = "2026-05-04", date(2026, 5, 4)
    data = thaw(freeze(wrap(text)))
    for _ in range(2):
        assert structure(data, first) == wrap(day)
        assert structure(data, second) == wrap(text)
    assert structure({"value": [text]}, DateFirst) == DateFirst([day])
    assert structure({"value": [text]}, TextFirst) == TextFirst([text])


def test_a_value_for_a_constructor_needs_a_default() -> None:
    """A class that cannot be made from its fields is refused as a parameter, but may be a result."""

    def measure(scaled: Scaled) -> Needy:
        """Measure."""
        return Needy(scaled.size, 1)

    tool_of = tool(measure)
    (scaled,) = tool_of.prepare({"scaled": {"size": 3}}).values()
    assert scaled.size == 6
    assert tool_of.present(Needy(6, 1)).value == {"size": 6}
    with pytest.raises(ToolDefinitionError, match="'factor' is an InitVar"):
        identity_tool(list[Needy | None])


def test_only_recursive_types_become_definitions() -> None:
    """A recursive type becomes a definition; other types are inlined, which models read best."""
    schema = thaw(identity_tool(Branch)[0].parameters)
    assert schema["properties"]["value"] == {"$ref": "#/$defs/Branch"}
    assert schema["$defs"]["Branch"]["properties"]["branches"]["items"] == {"$ref": "#/$defs/Branch"}
    assert "$defs" not in identity_tool(Trip)[0].parameters


def test_not_required_entries_are_optional() -> None:
    """`NotRequired` is read even where hints are text."""
    schema = thaw(identity_tool(Person)[0].parameters)["properties"]["value"]
    assert schema == {
        "type": "object",
        "properties": {"name": TEXT, "age": INTEGER},
        "additionalProperties": False,
        "required": ["name"],
    }


@pytest.mark.parametrize(
    "default",
    [
        Path("a/b.txt"),
        UUID(UUID_TEXT),
        Decimal("0.5"),
        IPv4Address("1.2.3.4"),
        ZoneInfo("UTC"),
        HttpUrl("https://a.example/"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_default_that_is_text_in_json_is_shown(default: Any) -> None:
    """The default of a path, a UUID or a decimal number stands in the schema as its text."""

    @tool(effect="pure")
    def same(value: Any = default) -> str:
        """Return the value."""
        return str(value)

    assert thaw(same.parameters)["properties"]["value"]["default"] == str(default)


def test_the_default_of_a_named_tuple_is_shown() -> None:
    """A person who decides about a call sees the values that the end of a named tuple gets because it is left out."""

    @tool
    def move(to: Point) -> str:
        """Move."""
        return str(to)

    assert thaw(move.describe_defaults({"to": [1]})) == {"to/y": 0.0}
    assert thaw(move.describe_defaults({"to": [1, 2]})) == {}


def test_a_secret_of_pydantic_is_never_shown() -> None:
    """A function gets the secret that a model writes, and a result that is one is masked."""

    @tool(effect="pure")
    def same(value: SecretStr) -> SecretStr:
        """Return the value."""
        assert value.get_secret_value() == "abc"
        return value

    assert same.present(same(**same.prepare({"value": "abc"}))).value == "**********"
