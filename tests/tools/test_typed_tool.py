"""Tools written as classes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from agentloop import Tool, ToolCall
from agentloop.contracts import ToolPolicy
from agentloop.errors import InvalidArguments, ToolDefinitionError, ToolFailed
from agentloop.testing import ExecutorBench
from agentloop.tools import TypedTool
from agentloop.values import Effect


class FindOrder(TypedTool):
    """Not used, since `use` has a docstring."""

    effect = Effect.PURE
    policy = ToolPolicy(timeout=3.0)

    def __init__(self, orders: Mapping[int, date]) -> None:
        self.orders = orders

    async def use(self, number: int, since: date = date(2020, 1, 1)) -> date | None:
        """Find the day of an order.

        Args:
            number: the order's number.
            since: older ones are not found.
        """
        day = self.orders[number]
        return day if day >= since else None


class Described(TypedTool):
    """The docstring of the class."""

    name = "another_name"

    async def use(self) -> str:
        return ""


class Handmade(Tool):
    """A subclass of the contract itself."""

    name = "handmade"
    description = "Takes a word."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"word": {"type": "string"}}}

    async def use(self, *_: Any, word: str = "none") -> dict[str, str]:
        return {"word": word}


ORDERS = FindOrder({1: date(2026, 5, 4), 2: date(2019, 1, 1)})


def test_name_description_and_schema_are_read_from_the_class() -> None:
    """The name is the class name in snake case; description and schema come from `use`."""
    assert (ORDERS.name, ORDERS.description) == ("find_order", "Find the day of an order.")
    assert ORDERS.parameters["properties"] == {
        "number": {"type": "integer", "description": "the order's number."},
        "since": {
            "type": "string",
            "format": "date",
            "default": "2020-01-01",
            "description": "older ones are not found.",
        },
    }
    assert (ORDERS.effect, ORDERS.policy.timeout) == (Effect.PURE, 3.0)
    assert FindOrder({}).spec is ORDERS.spec


def test_class_attributes_replace_what_is_read_from_use() -> None:
    """A class attribute wins; the docstring of the class is used where `use` has none."""
    described = Described()
    assert (described.name, described.description) == ("another_name", "The docstring of the class.")


async def test_arguments_are_structured_and_results_presented() -> None:
    """Arguments and results of a class are converted as those of a function."""
    bench = ExecutorBench([ORDERS])
    texts = ('{"number": 1}', '{"number": 1, "since": "2027-01-01"}', '{"number": 1, "since": "soon"}')
    executions = (await bench.run(*[ToolCall("", "find_order", text) for text in texts])).executions
    assert [execution.value for execution in executions[:2]] == ["2026-05-04", None]
    assert executions[2].error is not None
    assert (executions[2].status.value, executions[2].error.path) == ("rejected", "$.since")


def test_prepare_and_present_work_outside_of_an_executor() -> None:
    """Other runners of tools have the same checks."""
    assert ORDERS.prepare({"number": 1, "since": "2026-01-01"}) == {"number": 1, "since": date(2026, 1, 1)}
    with pytest.raises(InvalidArguments, match=r"\$.since"):
        ORDERS.prepare({"since": "soon"})
    assert ORDERS.present(date(2026, 1, 1)).value == "2026-01-01"
    with pytest.raises(ToolFailed, match="Invalid isoformat"):
        ORDERS.present("soon")


async def test_a_tool_may_be_written_on_the_contract_alone() -> None:
    """A subclass of `Tool` needs name, description, parameters and `use`; its arguments are validated too."""
    bench = ExecutorBench([Handmade()])
    done = await bench.run(*[ToolCall("", "handmade", text) for text in ('{"word": "a"}', "{}", '{"word": 1}')])
    assert [execution.status.value for execution in done.executions] == ["succeeded", "succeeded", "rejected"]
    assert [execution.value for execution in done.executions[:2]] == [{"word": "a"}, {"word": "none"}]


def test_definition_problems_of_a_class_raise() -> None:
    """As with functions, the error says how to fix each problem."""

    class Plain(TypedTool):
        def use(self, a: int) -> int:  # type: ignore[override]
            """Do."""
            return a

    class Silent(TypedTool):
        async def use(self, a: int) -> int:
            return a

    class Unhinted(TypedTool):
        async def use(self, a):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            """Do."""
            return a

    for kind, message in (
        (Plain, "use is not async; write it as async def"),
        (Silent, "it has no docstring"),
        (Unhinted, "the parameter 'a' has no type hint; it has no return annotation"),
    ):
        with pytest.raises(ToolDefinitionError, match=message):
            _ = kind().spec
