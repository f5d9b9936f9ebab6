"""`@tool`: the tool that a function becomes, and the options that replace parts of it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterator
from typing import Annotated, Any, Literal, assert_type

import pytest

from agentloop import Tool, ToolCall, tool
from agentloop.contracts.tool import CanUseThread
from agentloop.errors import ToolDefinitionError
from agentloop.testing import ExecutorBench
from agentloop.tools import FunctionTool
from agentloop.tools.function_tool import PlainFunctionTool
from agentloop.values import Effect

RATES = {"EUR": 1.5, "USD": 2.0}


@tool
def convert(amount: Annotated[float, "pounds"], currency: Literal["EUR", "USD"] = "EUR", digits: int = 2) -> float:
    """Convert an amount to another currency.

    Uses the rates of the day.

    Args:
        amount: not used, since the annotation describes it.
        currency: the currency to convert to,
            as its three letters.
        digits: how many digits to keep.

    Returns:
        The amount in that currency.
    """
    return round(amount * RATES[currency], digits)


@tool(effect="pure")
async def fetch(word: str) -> str:
    """Fetch a word."""
    await asyncio.sleep(0)
    return word.upper()


def test_a_plain_function_is_described_by_its_docstring_and_its_hints() -> None:
    """Name, description and schema come from the function; sections of the docstring are not part of the description."""
    assert isinstance(convert, Tool)
    assert convert.name == "convert"
    assert convert.description == "Convert an amount to another currency.\n\nUses the rates of the day."
    assert convert.parameters == {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "description": "pounds"},
            "currency": {
                "type": "string",
                "enum": ("EUR", "USD"),
                "default": "EUR",
                "description": "the currency to convert to,\nas its three letters.",
            },
            "digits": {"type": "integer", "default": 2, "description": "how many digits to keep."},
        },
        "additionalProperties": False,
        "required": ("amount",),
    }


def test_a_default_is_in_the_schema_and_a_parameter_without_one_is_required() -> None:
    """Only what the docstring says is in the descriptions; there are no other properties."""

    @tool
    def web_search(query: str, max_results: int = 5) -> list[str]:
        """Search the web.

        Args:
            query: Search query string.
            max_results: Maximum number of results (default: 5).
        """
        return [query] * max_results

    assert (web_search.name, web_search.description) == ("web_search", "Search the web.")
    assert web_search.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Search query string."},
            "max_results": {
                "type": "integer",
                "description": "Maximum number of results (default: 5).",
                "default": 5,
            },
        },
        "required": ("query",),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "documentation",
    [
        "Look.\n\nArgs:\n    word: what to look up.",
        "Look.\n\nParameters\n----------\nword : str\n    what to look up.",
        "Look.\n\n:param word: what to look up.",
        "Look.\n\n@param word: what to look up.",
    ],
    ids=["google", "numpy", "sphinx", "epydoc"],
)
def test_docstrings_of_all_usual_styles_are_read(documentation: str) -> None:
    """The parameter section is read in each style, and is not part of the description."""

    def look(word: str) -> str:
        return word

    look.__doc__ = documentation
    looking = tool(look)
    assert looking.description == "Look."
    assert looking.parameters["properties"]["word"]["description"] == "what to look up."


def test_a_decorated_function_stays_callable() -> None:
    """A direct call is a call of the function: positional arguments, defaults, no validation, the plain value."""
    assert convert(10, "USD") == 20.0
    assert convert(amount=10) == 15.0
    assert asyncio.run(fetch("a")) == "A"
    assert inspect.isfunction(convert.function)


async def test_tools_can_call_tools() -> None:
    """A tool that calls another one receives its plain value."""

    @tool
    async def twice(word: str) -> list[str]:
        """Fetch and convert."""
        return [await fetch(word), str(convert(1))]

    (outcome,) = (await ExecutorBench([twice]).run(ToolCall("", "twice", '{"word": "a"}'))).executions
    assert outcome.value == ("A", "1.5")


def test_a_plain_function_runs_in_a_thread_and_an_async_one_does_not() -> None:
    """Only the tool of a plain function can be used in a thread."""
    assert isinstance(convert, PlainFunctionTool)
    assert isinstance(convert, CanUseThread)
    assert isinstance(fetch, FunctionTool)
    assert not isinstance(fetch, CanUseThread)


async def test_a_tool_can_be_used_by_itself() -> None:
    """Outside of an executor, `use` returns the value of the function, for plain and async functions alike."""
    assert await fetch.use(word="b") == "B"
    assert await convert.use(amount=2.0, currency="USD") == 4.0


async def test_a_lambda_with_a_schema_is_a_function() -> None:
    """A lambda has no hints, so the schema says what its arguments are, and it needs a name and a description."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "by": {"type": "integer"}}, "required": ["n"]}
    multiply = tool(name="multiply", description="Multiply a number.", schema=schema)(lambda n, by=2: n * by)
    done = await ExecutorBench([multiply]).run(
        *[ToolCall("", "multiply", text) for text in ('{"n": "4"}', '{"by": 3}')]
    )
    assert [execution.value for execution in done.executions] == [8, None]
    assert "'n' is a required property" in done.executions[1].error_message
    with pytest.raises(ToolDefinitionError, match="no docstring"):
        tool(name="multiply", schema=schema)(lambda n: n)
    with pytest.raises(ToolDefinitionError, match="a lambda has no docstring and no type hints"):
        tool(name="multiply", description="Multiply a number.")(lambda n: n)
    with pytest.raises(ToolDefinitionError, match="<lambda>"):
        tool(description="Multiply a number.", schema=schema)(lambda n: n)


def test_options_replace_what_is_read_from_the_function() -> None:
    """Name, description, schema, effect and policy are those of the options."""
    schema = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 3}}, "required": ["word"]}

    @tool(
        name="short",
        description="A short word.",
        schema=schema,
        effect="idempotent",
        timeout=2.5,
        sequential=True,
        key="words",
        max_result_bytes=100,
    )
    def shorten(word: str) -> str:
        return word

    assert (shorten.name, shorten.description, shorten.effect) == ("short", "A short word.", Effect.IDEMPOTENT)
    assert shorten.parameters == {**schema, "required": ("word",)}
    policy = shorten.policy
    assert (policy.timeout, policy.sequential, policy.key, policy.max_result_bytes) == (2.5, True, "words", 100)


async def test_arguments_are_validated_against_a_supplied_schema() -> None:
    """The schema of the options decides; accepted arguments are still converted to the annotated types."""

    @tool(schema={"type": "object", "properties": {"size": {"type": "integer", "maximum": 5}}})
    async def kind(size: float = 0.5) -> str:
        """Name the type."""
        return f"{type(size).__name__} {size}"

    bench = ExecutorBench([kind])
    done = await bench.run(*[ToolCall("", "kind", text) for text in ('{"size": 4}', '{"size": 6}', "{}")])
    assert [execution.text for execution in done.executions if execution.succeeded] == ["float 4.0", "float 0.5"]
    assert "6 is greater than the maximum of 5" in done.executions[1].error_message


def test_the_default_effect_is_effect() -> None:
    """A tool without a declared effect is assumed to change the world."""
    assert convert.effect is Effect.EFFECT
    assert fetch.effect is Effect.PURE
    assert tool(effect=Effect.IDEMPOTENT)(convert.function).effect is Effect.IDEMPOTENT


def test_partials_methods_and_callable_objects_are_functions() -> None:
    """The keywords of a partial and the `self` of a method are not parameters."""

    class Shop:
        """Sells."""

        def price(self, item: str) -> float:
            """Return the price of an item."""
            return len(item) * 1.0

        async def __call__(self, item: str) -> str:
            """Sell an item."""
            return item

    def power(base: int, exponent: int) -> int:
        """Raise to a power."""
        return int(base**exponent)

    price, sell, square = tool(Shop().price), tool(name="sell")(Shop()), tool(functools.partial(power, exponent=2))
    assert (price.name, list(price.parameters["properties"])) == ("price", ["item"])
    assert (sell.name, sell.description, isinstance(sell, CanUseThread)) == ("sell", "Sell an item.", False)
    assert (square.name, list(square.parameters["properties"])) == ("power", ["base"])
    assert square(base=3) == 9


async def test_defaults_replace_missing_arguments() -> None:
    """A default with a JSON form is JSON in the schema and itself in the function."""

    @tool
    async def sizes(of: frozenset[str] = frozenset({"b", "a"}), where: tuple[int, int] = (1, 2)) -> str:
        """Format the defaults."""
        return f"{sorted(of)} {where}"

    properties = sizes.parameters["properties"]
    assert (properties["of"]["default"], properties["where"]["default"]) == (("a", "b"), (1, 2))
    (outcome,) = (await ExecutorBench([sizes]).run(ToolCall("", "sizes", "{}"))).executions
    assert outcome.value == "['a', 'b'] (1, 2)"


def test_the_spec_is_one_value() -> None:
    """The spec is built once, so that its encoded forms are cached."""
    assert convert.spec is convert.spec
    assert (convert.spec.name, convert.spec.description) == (convert.name, convert.description)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effect": "harmless"}, "'harmless' is not an effect; use one of 'pure', 'idempotent', 'effect'"),
        ({"schema": {"type": "array"}}, "has to be of type object"),
        ({"schema": {}}, "has to be of type object"),
        ({"schema": 7}, "is not JSON"),
        ({"schema": {"type": "object", "default": object()}}, "is not JSON"),
        ({"schema": {"type": "object", "properties": 7}}, "the properties in the schema of 'f' have to be an object"),
        ({"schema": {"type": "object", "properties": {"b": {}}}}, r"has \['b'\], which the function has no parameters"),
    ],
)
def test_invalid_options_are_definition_errors(options: dict[str, Any], message: str) -> None:
    """A mistake in the options is raised where the tool is defined."""

    def f(a: int) -> int:
        """Do."""
        return a

    with pytest.raises(ToolDefinitionError, match=message):
        tool(**options)(f)


@pytest.mark.parametrize(
    ("subject", "message"),
    [(convert, "is a tool already"), (7, "takes a function, not 7"), (dict, "becomes a tool by subclassing TypedTool")],
)
def test_an_object_that_is_not_a_function_is_rejected(subject: Any, message: str) -> None:
    """The error says how to define a tool instead."""
    with pytest.raises(ToolDefinitionError, match=message):
        tool(subject)


async def test_a_call_has_the_types_of_the_function() -> None:
    """The decorated function is called as it was written, and type checkers see its parameters and its result."""

    @tool
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    @tool(effect="pure")
    async def look(word: str) -> list[str]:
        """Look."""
        return [word]

    assert assert_type(add(1, b=3), int) == 4
    assert assert_type(await look("lamp"), list[str]) == ["lamp"]
    assert add("1", "2") == "12"  # type: ignore[arg-type, comparison-overlap]  # nothing is validated, and mypy sees it
    with pytest.raises(TypeError):
        add(1, c=2)  # type: ignore[call-arg]  # as of the function
    with pytest.raises(TypeError):
        await look()  # type: ignore[call-arg]  # as of the function


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"effect": "effect"}, "effect='pure'"),
        ({"effect": "idempotent"}, "effect='pure'"),
        ({"effect": "pure", "timeout": 1}, "neither a timeout"),
        ({"effect": "pure", "deadline": 1}, "nor a deadline"),
    ],
)
def test_only_a_pure_function_without_limits_of_time_is_inline(options: dict[str, Any], problem: str) -> None:
    """The error says what stands against it."""
    with pytest.raises(ToolDefinitionError, match=problem):
        tool(inline=True, **options)(functools.partial(convert.function))


def test_async_functions_and_generators_are_not_inline() -> None:
    """They may wait."""

    def count(to: int) -> Iterator[int]:
        """Count."""
        yield from range(to)

    with pytest.raises(ToolDefinitionError, match="event loop anyway"):
        tool(effect="pure", inline=True)(fetch.function)
    with pytest.raises(ToolDefinitionError, match="may wait between"):
        tool(effect="pure", inline=True)(count)
