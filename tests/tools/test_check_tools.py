"""`check_tools` lists what is wrong with definitions and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from agentloop import Tool, tool
from agentloop.tools import TypedTool, check_tools


def undone(a: int) -> int:
    return a


def ready(a: int) -> int:
    """Do."""
    raise AssertionError("nothing is run")


class Half(Tool):
    """Lacks what the contract asks for."""

    name = "half"


class Odd(Tool):
    """Has a schema that is none, and says nothing."""

    name = "odd"
    description = " "
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"a": {"type": 7}}}

    async def use(self, *_: Any, **__: Any) -> str:
        return ""


class Silent(TypedTool):
    async def use(self, a: int) -> int:
        return a


class Fine(TypedTool):
    """A tool."""

    async def use(self, a: int) -> int:
        """Do."""
        return a


class Methods:
    """Would-be tools."""

    limit = 3

    def good(self, a: int) -> int:
        """Do."""
        raise AssertionError("nothing is run")

    def bad(self, a) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """Do."""
        return int(a)

    @staticmethod
    def static(*a: int) -> int:
        """Do."""
        return len(a)

    @classmethod
    def of_class(cls, a: int) -> int:
        """Do."""
        return a

    def _private(self, a):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return a


BAD_SCHEMA = {"type": "object", "required": "a"}


def module_of(**members: Any) -> ModuleType:
    """Make a module in which these were defined."""
    made = ModuleType("my_tools")
    for name, member in members.items():
        if isinstance(member, type):
            member.__module__ = made.__name__
        setattr(made, name, member)
    return made


def test_a_function_is_checked_as_a_would_be_tool() -> None:
    """What `@tool` would say is said without raising."""
    assert check_tools(ready) == []
    (problem,) = check_tools(undone)
    assert problem.startswith("undone() cannot be a tool: it has no docstring")


def test_each_problem_is_a_line() -> None:
    """A function with three problems has three lines."""

    def everything(a, *b: int):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Do."""

    assert len(check_tools(everything)) == 3


def test_tools_are_checked_for_their_schema_and_description() -> None:
    """What is only known of a finished tool is found as well."""
    assert check_tools(tool(ready)) == []
    (problem,) = check_tools(tool(schema=BAD_SCHEMA)(ready))
    assert problem.startswith("the parameter schema of the tool 'ready' is not a valid JSON Schema: at $.required")
    nameless, invalid = check_tools(Odd())
    assert nameless == "the tool 'odd' has no description: say what it does and when to use it"
    assert "at $.properties.a.type: 7" in invalid


def test_tool_classes_are_checked_without_being_made() -> None:
    """Missing parts of the contract, and what keeps `use` from being read, are told of the class."""
    assert check_tools(Fine) == []
    assert check_tools(Half) == ["the tool class Half does not define description, parameters, use"]
    (problem,) = check_tools(Silent)
    assert "Silent" in problem
    assert "no docstring" in problem


def test_what_a_tool_class_says_in_attributes_is_checked_too() -> None:
    """A class that needs arguments to be made is still checked for what stands in the class."""
    assert check_tools(Odd) == check_tools(Odd())


def test_a_class_is_checked_method_by_method() -> None:
    """Public methods are would-be tools, without their `self`; private ones and data are none."""
    bad, static = sorted(check_tools(Methods))
    assert bad == "Methods.bad() cannot be a tool: the parameter 'a' has no type hint"
    assert "Methods.static()" in static


def test_a_module_is_checked_for_the_tools_in_it() -> None:
    """Functions that are tools and tool classes defined there are checked; plain functions and imports are left alone."""
    module = module_of(
        wrong=tool(schema=BAD_SCHEMA)(ready), right=tool(ready), helper=undone, Tool=None, Half=Half, Methods=Methods
    )
    module.TypedTool = TypedTool  # type: ignore[attr-defined]  # as after an import
    schema, half = check_tools(module)
    assert "the parameter schema of the tool 'ready'" in schema
    assert half.startswith("the tool class Half")


def test_a_list_is_checked_one_by_one() -> None:
    """Any iterable of the above will do."""
    assert check_tools([]) == []
    assert len(check_tools((undone, tool(ready), Half, [Silent]))) == 3


@pytest.mark.parametrize("subject", [7, "a name", None])
def test_what_is_no_tool_is_a_problem_too(subject: Any) -> None:
    """It is told, not raised."""
    assert check_tools(subject) == [f"{subject!r} is neither a tool nor a function"]
