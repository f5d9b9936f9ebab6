"""Errors of tool definitions: raised at the definition, with the fix for each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentloop import tool
from agentloop.errors import ToolDefinitionError


def undocumented(a: int) -> int:
    return a


def only_sections(a: int) -> int:
    """Args:
    a: a number.
    """
    return a


def unhinted(a) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001  # what the test is about
    """Do."""
    return int(a)


def unreturned(a: int):  # type: ignore[no-untyped-def]  # noqa: ANN201  # what the test is about
    """Do."""
    return a


def starred(*numbers: int) -> int:
    """Do."""
    return sum(numbers)


def double_starred(**numbers: int) -> int:
    """Do."""
    return sum(numbers.values())


def positional(a: int, /) -> int:
    """Do."""
    return a


def odd_default(a: Any = len) -> int:
    """Do."""
    return int(a)


def not_a_number(a: float = float("nan")) -> float:
    """Do."""
    return a


def unresolved(a: Missing) -> int:  # type: ignore[name-defined]  # noqa: F821  # what the test is about
    """Do."""
    return int(a)


def unsupported(a: Callable[[], int]) -> int:
    """Do."""
    return a()


def list_keys(a: dict[tuple[int, int], str]) -> int:
    """Do."""
    return len(a)


def generator(a: int) -> Iterator:  # type: ignore[type-arg]  # what the test is about
    """Do."""
    yield a


async def async_generator(a: int) -> int:  # type: ignore[misc]  # what the test is about
    """Do."""
    yield a


def outside(self, item: str) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001  # what the test is about
    """Sell."""
    return item


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (undocumented, "it has no docstring: say in one what the tool does, or pass description="),
        (only_sections, "it has no docstring"),
        (unhinted, "the parameter 'a' has no type hint"),
        (unreturned, "it has no return annotation: add one, such as -> str"),
        (starred, r"a model cannot fill \*numbers: name each parameter"),
        (double_starred, r"a model cannot fill \*\*numbers: name each parameter, or pass schema="),
        (positional, "arguments are passed by name: remove the / after 'a'"),
        (odd_default, "the default of 'a' has no JSON form"),
        (not_a_number, "the default of 'a' has no JSON form"),
        (
            unresolved,
            "a type hint cannot be resolved: name 'Missing' is not defined; import it, or define it at the top level",
        ),
        (unsupported, "the parameter 'a' is .*Callable.*, which has no JSON Schema here; use one of: str, int"),
        (list_keys, r"the keys of a JSON object are text: use dict\[str, …\], or keys that are written as text"),
        (generator, r"it yields: annotate what, such as -> Iterator\[str\]; the last value is the result"),
        (async_generator, r"it yields: annotate what, such as -> AsyncIterator\[str\]"),
        (outside, r"the parameter 'self' has no type hint \(a method is decorated in its class"),
        (print, "the parameter"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_the_error_names_the_function_and_says_what_to_add(function: Any, message: str) -> None:
    """The error names the function and says for each problem how to fix it."""
    with pytest.raises(ToolDefinitionError, match=message) as caught:
        tool(function)
    assert str(caught.value).startswith(f"{function.__qualname__}() cannot be a tool: ")


def test_one_error_lists_all_problems() -> None:
    """A definition with several problems raises one error that lists all of them."""

    def everything(a, *rest: int, b: Any = object()):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, B008
        return a

    with pytest.raises(ToolDefinitionError) as caught:
        tool(everything)
    for part in ("no docstring", "'a' has no type hint", "*rest", "default of 'b'", "no return annotation"):
        assert part in str(caught.value)


def test_a_description_replaces_a_docstring() -> None:
    """A function with the option `description` needs no docstring."""
    assert tool(description="Give it back.")(undocumented).description == "Give it back."


async def unawaited(*_: Any) -> str:
    return "never"


@pytest.mark.parametrize("option", ["key", "supersedes", "resource", "show"])
@pytest.mark.parametrize("value", [3, unawaited], ids=["a number", "an async function"])
def test_an_option_that_cannot_be_called_is_an_error_of_the_definition(option: str, value: Any) -> None:
    """Not of each call, whose outcome it would cost."""
    with pytest.raises(ToolDefinitionError, match=f"^{option} .* plain function, not "):
        tool(description="Give it back.", **{option: value})(undocumented)
