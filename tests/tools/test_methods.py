"""Methods as tools: decorated in their class, bound when they are read from an object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any, assert_type, cast

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolDefinitionError
from agentloop.testing import ExecutorBench
from agentloop.toolkits import Ensemble
from agentloop.tools import FunctionTool, check_tools, tools_of
from agentloop.values.records import Reconciliation, did_not_happen, happened


class Shop:
    """A shop with tools."""

    loads = 0

    def __init__(self, *stock: str) -> None:
        self.stock = list(stock)

    @cached_property
    def index(self) -> dict[str, int]:
        """The places of the items, computed when a tool needs them."""
        type(self).loads += 1
        return {item: place for place, item in enumerate(self.stock)}

    @property
    def broken(self) -> str:
        """A property that must not be read."""
        raise AssertionError("tools_of reads no properties")

    @tool(effect="pure")
    def find(self, item: str, *, missing: int = -1) -> int:
        """Find the place of an item."""
        return self.index.get(item, missing)

    @tool
    async def sell(self, item: str, context: ToolContext) -> str:
        """Sell an item."""
        self.stock.remove(item)
        return f"{item} {context.idempotency_key}"

    @tool(effect="pure")
    async def browse(self) -> AsyncIterator[str]:
        """Show the items one by one."""
        for item in self.stock:
            yield item

    def check(self, item: str) -> Reconciliation:
        """Return whether an item was sold."""
        return did_not_happen() if item in self.stock else happened(f"{item} is sold")

    @tool(reconcile=check)
    def give(self, item: str) -> str:
        """Give an item away."""
        self.stock.remove(item)
        return item

    @staticmethod
    @tool(effect="pure")
    def currency(country: str) -> str:
        """Return the currency of a country."""
        return f"money of {country}"

    @classmethod
    @tool(effect="pure")
    def kind(cls, *, short: bool) -> str:
        """Return the kind of the shop."""
        return cls.__name__[:1] if short else cls.__name__

    def close(self) -> None:
        """Close the shop; no tool."""


class Bookshop(Shop):
    """A shop that replaces some of its tools."""

    @tool(effect="pure")
    def find(self, item: str, *, missing: int = -1) -> int:
        """Find a book."""
        return 100

    def give(self, item: str) -> str:  # type: ignore[override]  # no tool, on purpose
        """Give nothing away."""
        return ""

    @tool(effect="pure")
    def recommend(self, reader: str) -> str:
        """Recommend a book to a reader."""
        return self.stock[0]


def test_the_tools_of_an_object_come_in_the_order_of_its_classes() -> None:
    """Inherited tools come first, replaced ones keep their place, and a method that is not decorated is no tool."""
    names = ["find", "sell", "browse", "give", "currency", "kind"]
    assert [method.name for method in tools_of(Shop())] == names
    assert [method.name for method in tools_of(Bookshop())] == [
        "find",
        "sell",
        "browse",
        "currency",
        "kind",
        "recommend",
    ]


async def test_each_object_has_its_own_tools() -> None:
    """A tool works on the object that it was read from, in any order, with injection and with default values."""
    first, second = Shop("lamp", "oil"), Shop("oil")
    calls = [ToolCall("1", "find", '{"item": "oil"}'), ToolCall("2", "sell", '{"item": "oil"}')]
    for shop, place in ((first, 1), (second, 0)):
        found, sold = (await ExecutorBench(tools_of(shop)).run(*calls)).executions
        assert (found.value, sold.value) == (place, "oil run/1/1")
    assert (first.stock, second.stock) == (["lamp"], [])


async def test_a_single_method_is_a_tool() -> None:
    """The method of an object can be passed where a tool is expected."""
    loop = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "find", '{"item": "b"}'), "Here."), tools=[Shop("b").find]
    )
    state = await loop.execute("Where?")
    assert state.steps[0].executions[0].value == 0


async def test_a_method_stays_callable_as_a_method() -> None:
    """Through the object and through the class, as without the decorator, and other methods can call it."""
    shop, cls = (
        Shop("lamp", "oil"),
        cast("Any", Shop),
    )  # static and class methods that are no functions are unknown to mypy
    assert shop.find("oil") == cls.find(shop, "oil") == 1
    assert [item async for item in shop.browse()] == ["lamp", "oil"]
    assert cast("Any", shop).currency("Chile") == cls.currency("Chile") == "money of Chile"
    assert cls.kind(short=True) == "S"
    assert cast("Any", Bookshop("a")).kind(short=False) == "Bookshop"


async def test_all_kinds_of_methods_run() -> None:
    """Static methods, class methods and generators of an object run as tools."""
    calls = [
        ToolCall("1", "kind", '{"short": false}'),
        ToolCall("2", "currency", '{"country": "Peru"}'),
        ToolCall("3", "browse", "{}"),
    ]
    done = await ExecutorBench(tools_of(Bookshop("a", "b"))).run(*calls)
    assert [execution.value for execution in done.executions] == ["Bookshop", "money of Peru", "b"]


async def test_a_method_reconciles_for_its_object() -> None:
    """`reconcile` may be a method of the class."""
    shop = Shop("lamp")
    assert await shop.give.reconcile(item="lamp") == did_not_happen()
    assert await shop.give.reconcile(item="oil") == happened("oil is sold")


def test_the_definition_is_shared_by_all_objects() -> None:
    """The spec, with its compiled schema, is the same object."""
    assert Shop("a").find.spec is Shop("b").find.spec
    assert "self" not in Shop().find.parameters["properties"]


def test_a_method_of_a_class_is_not_a_tool() -> None:
    """Without its object it is refused where tools are collected, with the way out."""
    with pytest.raises(ToolDefinitionError, match=r"Shop.find is a method: pass tools_of\(object\)"):
        Tools.of([Shop.find])
    with pytest.raises(ToolDefinitionError, match="takes an object, not the class Shop"):
        tools_of(Shop)
    with pytest.raises(ToolDefinitionError, match="object has no methods that are decorated"):
        tools_of(object())


def test_class_method_below_tool_is_explained() -> None:
    """The order of the decorators is named."""
    with pytest.raises(ToolDefinitionError, match="put @classmethod above @tool"):
        tool(classmethod(lambda cls: cls))  # type: ignore[call-overload]  # what the test is about


def test_static_method_below_tool_is_its_function() -> None:
    """`@tool` above `@staticmethod` gives a tool of the function."""

    class Static:
        @tool(effect="pure")
        @staticmethod
        def double(n: int) -> int:
            """Double a number."""
            return 2 * n

    assert [method.name for method in tools_of(Static())] == ["double"]
    assert Static.double(2) == cast("Any", Static()).double(2) == 4


def test_definition_errors_come_with_the_class() -> None:
    """A method that cannot be a tool is reported where the class is written."""
    with pytest.raises(ToolDefinitionError, match=r"Wrong.do\(\) cannot be a tool: .*'n' has no type hint"):

        class Wrong:
            @tool
            def do(self, n) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001  # what the test is about
                """Do."""
                return int(n)


def test_check_tools_reads_decorated_methods() -> None:
    """A class with decorated methods is checked without an object."""
    assert [problem for problem in check_tools(Shop) if "close" not in problem and "check" not in problem] == []


def test_an_ensemble_of_methods() -> None:
    """The tools of an object can be an ensemble."""
    assert [member.name for member in Ensemble("shop", tools_of(Shop())).without("sell").offered][:2] == [
        "find",
        "browse",
    ]


async def test_a_resource_is_loaded_by_the_first_call() -> None:
    """A `cached_property` of the object is loaded when a tool first needs it, and once."""
    shop, before = Shop("lamp"), Shop.loads
    bench = ExecutorBench(tools_of(shop))
    assert Shop.loads == before
    for _ in range(2):
        await bench.run(ToolCall("1", "find", '{"item": "lamp"}'))
    assert Shop.loads == before + 1


def test_the_types_of_methods_are_kept() -> None:
    """Type checkers know a decorated method as a tool with the signature of the method."""
    shop = Shop("lamp")
    assert_type(shop.find("lamp", missing=3), int)
    assert_type(shop.browse(), AsyncIterator[str])
    assert_type(tools_of(shop), list[FunctionTool[..., Any]])
    assert isinstance(shop.find, FunctionTool)
    sold = shop.sell("lamp", context=ToolContext(execution_id="e", agent_id="a", idempotency_key="k"))
    assert asyncio.run(sold) == "lamp k"
