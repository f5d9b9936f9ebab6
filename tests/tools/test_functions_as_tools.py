"""A function in a list of tools becomes a tool as by `@tool`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedDriver, ScriptedInference, Tool, ToolCall, ToolContext, tool
from agentloop.errors import ToolDefinitionError
from agentloop.policies.tool_search import ToolSearch
from agentloop.testing import ExecutorBench
from agentloop.toolkits import Ensemble
from agentloop.tools import FunctionTool, collect_tools
from agentloop.values import Effect, Reconciliation, happened


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first one.
        b: the second one.
    """
    return a + b


async def look(word: str, context: ToolContext) -> str:
    """Look a word up."""
    return f"{word} {context.idempotency_key}"


class Counter:
    """An object with methods that are no tools."""

    def __init__(self, start: int) -> None:
        self.start = start

    def count(self, steps: int) -> int:
        """Count from the start."""
        return self.start + steps


class Multiply:
    """Multiply a number."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return self.factor * number


class Divide:
    """Divide a number."""

    async def __call__(self, number: int, by: int = 2) -> float:
        return number / by


class Steps:
    """Take steps."""

    async def __call__(self, number: int, first: int = 0) -> AsyncIterator[int]:
        for step in range(number):
            yield first + step


@pytest.mark.parametrize(
    ("function", "name", "arguments", "value"),
    [
        (add, "add", '{"a": 1}', 3),
        (look, "look", '{"word": "lamp"}', "lamp run/1/0"),
        (Counter(5).count, "count", '{"steps": 2}', 7),
        (partial(add, b=40), "add", '{"a": 2}', 42),
        (Multiply(3), "Multiply", '{"number": 2}', 6),
        (Divide(), "Divide", '{"number": 2}', 1),
        (partial(Divide(), by=4), "Divide", '{"number": 2}', 0.5),
        (partial(Steps(), first=4), "Steps", '{"number": 2}', 5),
    ],
    ids=[
        "function",
        "coroutine function",
        "method",
        "partial",
        "object",
        "async object",
        "partial of an async object",
        "partial of an async generator",
    ],
)
async def test_each_kind_of_function_is_a_tool(
    function: Callable[..., Any], name: str, arguments: str, value: object
) -> None:
    """Functions, methods, partials and objects with `__call__`, plain and async, are called with checked arguments."""
    outcome = await ExecutorBench([function]).run(ToolCall("1", name, arguments))
    assert outcome.executions[0].value == value


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function, as decorators do that know nothing of async functions."""

    @wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


@pytest.mark.parametrize(
    "made",
    [logged(look), tool(timeout=60)(logged(look))],
    ids=["without a timeout", "with a timeout"],
)
async def test_the_coroutine_of_a_plain_function_is_awaited(made: Any) -> None:
    """A plain function around an async one is called in a thread, and what it returns is awaited in the event loop."""
    outcome = await ExecutorBench([made]).run(ToolCall("1", "look", '{"word": "lamp"}'))
    assert outcome.executions[0].value == "lamp run/1/0"


async def test_a_coroutine_is_awaited_without_an_executor() -> None:
    """A program that uses the tool itself gets the result, too, and so does a reconciler of the same kind."""

    async def find(a: int) -> Reconciliation:
        return happened(a)

    async def double(a: int) -> int:
        """Double a number."""
        return 2 * a

    made = tool(reconcile=logged(find))(logged(double))
    assert await made.use(a=4) == 8
    assert await made.reconcile(a=4) == happened(4)


class Double(Multiply):
    def __call__(self, number: int) -> int:
        """Double a number."""
        return 2 * number


class Quadruple(Double):
    """Quadruple a number."""

    def __call__(self, number: int) -> int:
        return 4 * number


@dataclass
class Undocumented:
    factor: int

    def __call__(self, number: int) -> int:
        return self.factor * number


@pytest.mark.parametrize(
    ("function", "description"),
    [
        (Multiply(3), "Multiply a number."),
        (partial(Divide(), by=4), "Divide a number."),
        (Double(2), "Double a number."),
        (Quadruple(4), "Double a number."),
        (Undocumented(3), None),
        (partial(Undocumented(3)), None),
    ],
)
def test_an_object_is_described_by_its_call_or_its_class(function: Callable[..., Any], description: str | None) -> None:
    """What Python itself writes for a `__call__` or a dataclass without a docstring describes no tool."""
    if description is None:
        with pytest.raises(ToolDefinitionError, match="it has no docstring"):
            tool(function)
    else:
        assert tool(function).description == description


async def test_the_tool_is_the_one_of_the_decorator() -> None:
    """Name, description, parameters and effect are those that `@tool` reads."""
    (made,) = collect_tools([add])
    assert isinstance(made, FunctionTool)
    assert made.spec == tool(add).spec
    assert made.effect is Effect.EFFECT
    rejected = await ExecutorBench([add]).run(ToolCall("1", "add", '{"a": "x"}'))
    assert rejected.executions[0].status.value == "rejected"


@pytest.mark.parametrize(
    "make",
    [
        lambda tools: AgentLoop(ScriptedDriver(), tools).tools,
        lambda tools: AgentLoop(ScriptedDriver()).replace(tools=tools).tools,
        lambda tools: AgentLoop.for_model(ScriptedInference("Hello."), tools=tools).tools,
        lambda tools: Ensemble("sums", tools).tools,
        lambda tools: ToolSearch(tools).tools,
        collect_tools,
    ],
    ids=["AgentLoop", "with_tools", "for_model", "Ensemble", "ToolSearch", "collect_tools"],
)
def test_functions_are_taken_wherever_there_is_a_list_of_tools(make: Callable[[list[Any]], Any]) -> None:
    """Functions stand beside tools and groups, in any order."""
    multiply = tool(name="multiply", description="Multiply.")(Multiply(2))
    assert [made.name for made in make([add, multiply, Counter(1).count])] == ["add", "multiply", "count"]
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        make([add, tool(add)])


class Shouting(Tool):
    """A tool that is a class."""

    name = "shout"
    description = "Shout."
    parameters: Any = None

    async def use(self, *_: Any, **arguments: Any) -> str:
        return ""


@pytest.mark.parametrize(
    ("tools", "error", "sentence"),
    [
        (add, TypeError, "tools are passed as a list, and this is of type function: put it in brackets, as in tools=[…]"),
        (tool(add), TypeError, "tools are passed as a list, and this is of type PlainFunctionTool: put it in brackets, as in tools=[…]"),
        (Ensemble("e", [add]), TypeError, "tools are passed as a list, and this is of type Ensemble: put it in brackets, as in tools=[…]"),
        ("add", TypeError, "tools are passed as a list, and this is of type str"),
        (None, TypeError, "tools are passed as a list, and this is of type NoneType"),
        (["add"], TypeError, "'add' of type str is not a Tool; a tool is made by @tool or subclasses Tool"),
        ([Shouting], TypeError, "is not a Tool; create an object of it: Shouting(…)"),
        ([Counter], TypeError, "is not a Tool; a class of tools subclasses Tool"),
        ([[add]], TypeError, "of type list is not a Tool; write * before a list inside a list"),
        ([AgentLoop(ScriptedDriver())], TypeError, "of type AgentLoop is not a Tool; its method as_tool(…) returns one"),
        ([partial(tool(add), b=1)], ToolDefinitionError, "make it of the function, as in partial(add.function, …)"),
        ([lambda n: n], ToolDefinitionError, "a lambda has no docstring and no type hints: write a function with both"),
        ([len], ToolDefinitionError, "len() cannot be a tool: "),
        ([Counter.count], ToolDefinitionError, "Counter.count is a method: pass tools_of(object), or the method of an object"),
    ],
)  # fmt: skip  # one row, one mistake
def test_what_cannot_be_a_tool_is_named(tools: Any, error: type[Exception], sentence: str) -> None:
    """One sentence says what is wrong and what to write."""
    with pytest.raises(error, match=re.escape(sentence)):
        AgentLoop.for_model(ScriptedInference("Hello."), tools=tools)
