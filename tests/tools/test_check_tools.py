"""`check_tools` lists the problems of definitions and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from agentloop import Tool, tool
from agentloop.testing import FakeTool
from agentloop.tools import TypedTool, check_tools


def undocumented(a: int) -> int:
    return a


def documented(a: int) -> int:
    """Do."""
    raise AssertionError("nothing is run")


class Half(Tool):
    """Lacks members that the contract requires."""

    name = "half"


class Odd(Tool):
    """Has an invalid schema and an empty description."""

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
    """Future tools."""

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
    """Return a module in which these were defined."""
    module = ModuleType("my_tools")
    for name, member in members.items():
        if isinstance(member, type):
            member.__module__ = module.__name__
        setattr(module, name, member)
    return module


def test_a_function_is_checked_as_a_future_tool() -> None:
    """The problems that `@tool` would raise are returned."""
    assert check_tools(documented) == []
    (problem,) = check_tools(undocumented)
    assert problem.startswith("undocumented() cannot be a tool: it has no docstring")


def test_each_problem_is_a_line() -> None:
    """A function with three problems has three lines."""

    def everything(a, *b: int):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Do."""

    assert len(check_tools(everything)) == 3


def test_tools_are_checked_for_their_schema_and_description() -> None:
    """The schema and the description of a finished tool are checked too."""
    assert check_tools(tool(documented)) == []
    (problem,) = check_tools(tool(schema=BAD_SCHEMA)(documented))
    assert problem.startswith("the parameter schema of the tool 'documented' is not a valid JSON Schema: at $.required")
    undescribed, invalid = check_tools(Odd())
    assert undescribed == "the tool 'odd' has no description: say what it does and when to use it"
    assert "at $.properties.a.type: 7" in invalid


def test_tool_classes_are_checked_without_an_instance() -> None:
    """Missing members of the contract and problems of `use` are reported for the class."""
    assert check_tools(Fine) == []
    assert check_tools(Half) == ["the tool class Half does not define description, parameters, use"]
    (problem,) = check_tools(Silent)
    assert "Silent" in problem
    assert "no docstring" in problem


class Sender(TypedTool):
    """Sends."""

    egress: Any = "uri"

    async def use(self, url: str) -> str:
        """Send."""
        return url


class Wrong(Sender):
    """Sends, somehow."""

    egress = 7


class Right(Sender):
    """Sends rightly."""

    egress = ("url",)


def test_the_arguments_that_carry_an_address_are_checked() -> None:
    """A name that is no parameter would make each call one whose address nobody can read."""
    unknown = "names 'uri', which is none of its parameters"
    for subject in (Sender, Sender()):
        (problem,) = check_tools(subject)
        assert problem.endswith(unknown)
    for wrong in (Wrong, Wrong()):
        (problem,) = check_tools(wrong)
        assert "egress is True, False, or the names" in problem
    for fine in (Right, Right(), FakeTool("any", egress="whatever")):
        assert check_tools(fine) == []


def test_class_attributes_are_checked() -> None:
    """A class is checked like its instances: its constructor may need arguments, so none is created."""
    assert check_tools(Odd) == check_tools(Odd())


def test_a_class_is_checked_method_by_method() -> None:
    """Public methods are future tools, without their `self`; private methods and data are not."""
    bad, static = sorted(check_tools(Methods))
    assert bad == "Methods.bad() cannot be a tool: the parameter 'a' has no type hint"
    assert "Methods.static()" in static


def test_a_module_is_checked_for_the_tools_in_it() -> None:
    """Tools, and tool classes that the module defines, are checked; plain functions and imported classes are not."""
    module = module_of(
        wrong=tool(schema=BAD_SCHEMA)(documented),
        right=tool(documented),
        helper=undocumented,
        Tool=None,
        Half=Half,
        Methods=Methods,
    )
    module.TypedTool = TypedTool  # type: ignore[attr-defined]  # as after an import
    schema, half = check_tools(module)
    assert "the parameter schema of the tool 'documented'" in schema
    assert half.startswith("the tool class Half")


def test_the_items_of_a_list_are_checked() -> None:
    """Any iterable of tools, classes and functions is accepted."""
    assert check_tools([]) == []
    assert len(check_tools((undocumented, tool(documented), Half, [Silent]))) == 3


@pytest.mark.parametrize("subject", [7, "a name", None])
def test_an_object_that_is_no_tool_is_a_problem(subject: Any) -> None:
    """The problem is returned, not raised."""
    assert check_tools(subject) == [f"{subject!r} is neither a tool nor a function"]
