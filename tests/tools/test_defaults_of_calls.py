"""What a tool adds to the arguments of a call, for the person who decides about it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NewType, NotRequired, TypedDict

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Tool, ToolCall, tool
from agentloop.contracts.tool import CanDescribeDefaults, CanPrepareArguments, ToolFromSpec
from agentloop.toolkits.overrides import ToolOverride, apply_override
from agentloop.tools import TypedTool
from agentloop.tools.fitting import defaults_of_call, fit_call, prepare_arguments
from agentloop.values import ToolSpec, thaw


@dataclass
class Line:
    sku: str
    count: int = 1
    tags: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@attrs.frozen
class Payment:
    cents: int
    currency: str = "EUR"
    lines: list[Line] = attrs.field(factory=list)


class Receiver(pydantic.BaseModel):
    name: str
    is_urgent: bool = pydantic.Field(default=True, validation_alias=pydantic.AliasChoices("urgent", "isUrgent"))
    words: list[str] = pydantic.Field(default_factory=list)


class Options(TypedDict):
    retries: NotRequired[int]


@attrs.frozen
class Circle:
    radius: int
    color: str = "red"


@attrs.frozen
class Square:
    side: int
    color: str = "blue"


@attrs.frozen
class Tree:
    name: str
    depth: int = 7
    below: tuple[Tree, ...] = ()


@attrs.frozen
class Many:
    circles: dict[str, Circle]
    trees: dict[str, Tree]
    target: str = "prod"


Amount = NewType("Amount", Payment)


def shown(subject: Tool, arguments: str) -> Mapping[str, Any]:
    """Return what the tool adds to these arguments, which are valid."""
    call, _ = fit_call(ToolCall("1", subject.name, arguments), subject.spec)
    found: Mapping[str, Any] = thaw(defaults_of_call(subject, subject.spec, call))
    return found


@tool
def pay(
    payment: Payment,
    receiver: Receiver | None = None,
    note: Annotated[str, "for the receiver"] = "thanks",
    options: Options | None = None,
) -> str:
    """Pay."""
    return "paid"


LINE_ID = {"made by": "tests.tools.test_defaults_of_calls.Line.<lambda>"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            '{"payment": {"cents": 1}}',
            {
                "receiver": None,
                "note": "thanks",
                "options": None,
                "payment/currency": "EUR",
                "payment/lines": [],
            },
        ),
        (
            (
                '{"payment": {"cents": 1, "currency": "USD", "lines": [{"sku": "a"}, {"sku": "b", "count": 2}]}, '
                '"receiver": {"name": "Ada", "urgent": false}, "note": "", "options": {}}'
            ),
            {
                "receiver/words": [],
                "payment/lines/*/count": 1,
                "payment/lines/*/tags": [],
                "payment/lines/*/id": LINE_ID,
            },
        ),
        (
            (
                '{"payment": {"cents": 1, "currency": "USD", "lines": []}, "receiver": {"name": "Ada"}, "note": "", '
                '"options": {"retries": 1}}'
            ),
            {"receiver/urgent": True, "receiver/words": []},
        ),
    ],
)
def test_a_function_has_its_own_defaults_and_those_of_classes_inside(
    arguments: str, expected: Mapping[str, object]
) -> None:
    """Whatever a call leaves out is shown with the value that the function gets, at its place."""
    assert shown(pay, arguments) == expected


def test_each_kind_of_place_is_looked_into() -> None:
    """Classes are found in dictionaries, tuples, unions, other names of types, and inside of themselves."""

    @tool
    def draw(
        by_name: dict[str, Circle], pair: tuple[Circle, int], shapes: list[Circle | Square], amount: Amount, tree: Tree
    ) -> str:
        """Draw."""
        return ""

    arguments = (
        '{"by_name": {"a": {"radius": 1}}, "pair": [{"radius": 1}, 2], "shapes": [{"radius": 1}, {"side": 1}], '
        '"amount": {"cents": 1}, "tree": {"name": "a", "below": [{"name": "b", "below": [{"name": "c"}]}]}}'
    )
    assert shown(draw, arguments) == {
        "by_name/*/color": "red",
        "pair/*/color": "red",
        "shapes/*/color": "red",
        "shapes/*/Square.color": "blue",
        "amount/currency": "EUR",
        "amount/lines": [],
        "tree/depth": 7,
        "tree/below/*/depth": 7,
        "tree/below/*/below/*/depth": 7,
        "tree/below/*/below/*/below": [],
    }


def test_a_schema_of_its_own_does_not_hide_the_defaults_of_a_function() -> None:
    """A function gets its own defaults whatever its schema says; one that takes any argument gets those of the schema, too."""

    @tool(schema={"type": "object", "properties": {"name": {"type": "string", "default": "of the schema"}}})
    def restart(name: str = "web", force: bool = False) -> str:  # noqa: FBT001, FBT002  # a parameter for a model
        """Restart."""
        return name

    @tool(schema={"type": "object", "properties": {"a": {"default": 1}, "b": {}}})
    def take(**arguments: Any) -> str:
        """Take."""
        return str(arguments)

    assert shown(restart, "{}") == {"name": "web", "force": False}
    assert shown(take, '{"b": 2}') == {"a": 1}


class Restart(TypedTool):
    """Restart."""

    async def use(self, name: str = "web", count: int = 3) -> str:
        """Restart."""
        return name * count


class FromSpec(ToolFromSpec):
    """A tool with a schema that has a default; of another program, if it has a definition."""

    def __init__(self, definition: str = "") -> None:
        parameters = {"type": "object", "properties": {"name": {"default": "web"}, "count": {}}}
        self._spec = ToolSpec("restart", "Restart.", parameters, definition=definition, pinned=definition)

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def use(self, **arguments: Any) -> str:
        return str(arguments)


class Prepares(FromSpec, CanPrepareArguments):
    """A tool that adds arguments of its own."""

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        return {"target": {1, 2}, "handler": self.prepare, "lock": object(), **arguments}


class Fails(FromSpec, CanDescribeDefaults):
    """A tool whose own code fails."""

    def describe_defaults(self, arguments: Mapping[str, Any]) -> Any:
        raise LookupError(f"nothing of {sorted(arguments)}")


def renamed() -> Tool:
    return apply_override(Restart(), ToolOverride(name="again", defaults={"count": 9}))


@pytest.mark.parametrize(
    ("subject", "arguments", "expected"),
    [
        (Restart(), '{"count": 1}', {"name": "web"}),
        (FromSpec(), '{"count": 1}', {"name": "web"}),
        (FromSpec("of a server"), '{"count": 1}', {"name": "web"}),
        (FromSpec("of a server"), '{"name": "db"}', {}),
        (renamed(), "{}", {"count": 9, "name": "web"}),
        (renamed(), '{"name": "db"}', {"count": 9}),
        (Fails(), "{}", {"defaults": {"unknown": "LookupError: nothing of []"}}),
    ],
    ids=["typed", "spec", "server", "nothing left out", "override", "override of one", "fails"],
)
def test_each_kind_of_tool_has_its_defaults(subject: Tool, arguments: str, expected: Mapping[str, object]) -> None:
    """Classes, schemas, servers and overrides of ensembles: what reaches the tool is shown, and an error is shown as such."""
    assert shown(subject, arguments) == expected


def test_what_a_tool_adds_itself_is_shown() -> None:
    """Values without a JSON form are shown by their repr, without the address, which differs between processes."""
    found = shown(Prepares(), '{"name": "db"}')
    assert found["target"] == [1, 2]
    assert found["lock"] == {"repr": "<object object>"}
    assert " at 0x" not in found["handler"]["repr"]
    assert len(found) == 3


def test_many_defaults_are_counted() -> None:
    """A call cannot hide a default among thousands: those of the parameters come first, and a hash stands for the rest."""
    names = {f"k{number}": {"radius": 1} for number in range(3)}
    deep: dict[str, Any] = {"name": "x"}
    for _ in range(30):
        deep = {"name": "x", "below": [deep]}

    wide = attrs.make_class("Wide", {f"extra{n}": attrs.field(type=int, default=n) for n in range(300)})

    def act(many: Many, wide: object, target: str = "prod") -> str:
        """Act."""
        return target

    act.__annotations__["wide"] = wide
    acting = tool(act)
    call = json.dumps({"many": {"circles": names, "trees": {"a": deep}}, "wide": {}})
    found = shown(acting, call)
    assert list(found)[:2] == ["target", "many/target"]
    assert len(found) == 201
    other = shown(acting, call.replace('"wide": {}', '"wide": {"extra299": 299}'))
    assert found["more defaults"]["count"] == other["more defaults"]["count"] + 1
    assert found["more defaults"]["sha256"] != other["more defaults"]["sha256"]


ANY_PAYMENT = st.fixed_dictionaries(
    {"cents": st.integers(0, 9)},
    optional={
        "currency": st.sampled_from(["EUR", "USD"]),
        "lines": st.lists(
            st.fixed_dictionaries(
                {"sku": st.sampled_from("ab"), "id": st.just("x")}, optional={"count": st.integers(1, 3)}
            ),
            max_size=3,
        ),
    },
)


@given(arguments=st.fixed_dictionaries({"payment": ANY_PAYMENT}, optional={"note": st.sampled_from(["", "x"])}))
def test_arguments_and_defaults_are_together_what_the_function_gets(arguments: dict[str, Any]) -> None:
    """Put at its place, each default that is shown makes the arguments those that the function receives."""

    @tool
    def receive(payment: Payment, note: str = "thanks") -> str:
        """Receive."""
        return ""

    call = ToolCall("1", "receive", json.dumps(arguments))
    found = defaults_of_call(receive, receive.spec, call)
    completed: Any = json.loads(call.arguments_json)
    for path, value in found.items():
        *way, name = path.split("/")
        places = [completed]
        for step in way:
            places = [inner for place in places for inner in (place if step == "*" else [place[step]])]
        for place in places:
            place.setdefault(name, thaw(value))
    prepared = prepare_arguments(receive, receive.spec, json.loads(call.arguments_json))
    received = {"payment": attrs.asdict(prepared["payment"]), "note": prepared.get("note", "thanks")}
    lines = [
        {"sku": line.sku, "count": line.count, "tags": line.tags, "id": line.id}
        for line in received["payment"]["lines"]
    ]
    received["payment"]["lines"] = lines
    assert completed == received
