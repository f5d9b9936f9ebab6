"""`check_tools` warns of descriptions by which a tool cannot be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from agentloop import Tool, tool
from agentloop.tools import TypedTool, check_tools


class Told(Tool):
    """A tool that says this."""

    name = ""
    description = ""
    parameters: Mapping[str, Any] = {"type": "object"}

    def __init__(self, name: str, description: str, **properties: Any) -> None:
        self.name = name
        self.description = description
        self.parameters = {"type": "object", "properties": properties}

    async def use(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


CLEAR = "Look up the weather of a city for the coming days."


@pytest.mark.parametrize(
    ("name", "description", "warned"),
    [
        ("get_weather", CLEAR, None),
        ("get_weather", "Current conditions outdoors", None),
        ("add", "Add two numbers.", None),
        ("übersetzen", "Übersetzt einen Satz.", None),
        ("天気", "指定した都市の天気予報を取得します。", None),
        ("get_weather", "Get weather.", "no more than its name"),
        ("getWeather", "Get the weather", "no more than its name"),
        ("get_weather", "get_weather", "no more than its name"),
        ("HTTPStatus", "HTTP status.", "no more than its name"),
        ("handle", "Does stuff.", "says nothing"),
        ("helper", "A useful helper function that does various things.", "says nothing"),
        ("frobnicate", "TODO: description", "says nothing"),
        ("frobnicate", "This tool is used to perform some task.", "says nothing"),
        ("frobnicate", "Polish.", "is short"),
        ("frobnicate", "Polish metal", "is short"),
    ],
)
def test_a_description_that_does_not_help_is_warned_of(name: str, description: str, warned: str | None) -> None:
    """One warning for what is too short, repeats the name or says nothing; none for what tells something."""
    found = check_tools(Told(name, description))
    assert found == []
    assert len(found.warnings) == (warned is not None)
    assert warned is None or (warned in found.warnings[0] and repr(description) in found.warnings[0])


def test_two_tools_that_say_the_same_are_warned_of() -> None:
    """A model cannot choose between tools with the same description, up to case and punctuation."""
    found = check_tools(
        [Told("a1", CLEAR), Told("b1", "Something else entirely here."), Told("c1", CLEAR.lower()[:-1])]
    )
    (warning,) = found.warnings
    assert warning.startswith("the tool 'c1' has the same description as the tool 'a1'")


def test_the_same_tool_twice_is_no_pair() -> None:
    """A module may hold one tool under two names."""
    one = Told("a1", CLEAR)
    assert check_tools([one, one]).warnings == ()


def test_parameters_without_description_are_warned_of_when_there_are_several() -> None:
    """One parameter explains itself by the tool, several have to be told apart."""
    described = {"type": "string", "description": "A city."}
    assert check_tools(Told("get_weather", CLEAR, city={"type": "string"})).warnings == ()
    assert check_tools(Told("get_weather", CLEAR, city=described, country=described)).warnings == ()
    (warning,) = check_tools(Told("get_weather", CLEAR, city=described, x={}, y={"description": " "})).warnings
    assert warning == "the tool 'get_weather' has 3 parameters, of which 'x', 'y' have no description"


def test_functions_and_classes_are_warned_of_as_well() -> None:
    """What would become a tool is read as it would then be told."""

    def vague(a: int, b: Annotated[int, "The other."]) -> int:
        """Do."""
        return a + b

    class Vague(TypedTool):
        async def use(self, a: int) -> int:
            """Vague."""
            return a

    class Named(TypedTool):
        description = CLEAR

        async def use(self, a: int) -> int:
            return a

    class InClass(Tool):
        """Everything stands in the class."""

        name = "frobnicate"
        description = "Polish."
        parameters: Mapping[str, Any] = {"type": "object"}

        def __init__(self, needed: int) -> None:
            self.needed = needed

        async def use(self, *_: Any, **__: Any) -> None:
            """Do nothing."""

    short, silent = check_tools(vague).warnings
    assert "vague()" in short
    assert silent.endswith("has 2 parameters, of which 'a' have no description")
    assert check_tools(tool(vague)).warnings[0].startswith("the description of the tool 'vague' says nothing")
    assert "no more than its name" in check_tools(Vague).warnings[0]
    assert check_tools(Named).warnings == ()
    assert check_tools(InClass).warnings[0].startswith("the description of the tool class")


def test_what_is_wrong_is_not_warned_of_besides() -> None:
    """Problems stay a plain list of lines, and a definition with problems has no warnings."""
    found = check_tools([Told("a1", ""), Told("b1", "Do.")])
    assert found == ["the tool 'a1' has no description: say what it does and when to use it"]
    assert len(found.warnings) == 1
    assert check_tools([]) == []
    assert check_tools([]).warnings == ()
