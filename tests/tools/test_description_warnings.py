"""`check_tools` warns about descriptions that are too vague to choose a tool by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from agentloop import Tool, tool
from agentloop.tools import TypedTool, check_tools


class Described(Tool):
    """A tool with this name, description and parameters."""

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
    ("name", "description", "message"),
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
def test_vague_descriptions_have_warnings(name: str, description: str, message: str | None) -> None:
    """A description that is too short, repeats the name or says nothing has one warning; a useful one has none."""
    result = check_tools(Described(name, description))
    assert result == []
    assert len(result.warnings) == (message is not None)
    assert message is None or (message in result.warnings[0] and repr(description) in result.warnings[0])


def test_equal_descriptions_have_a_warning() -> None:
    """A model cannot choose between tools with the same description, up to case and punctuation."""
    result = check_tools(
        [Described("a1", CLEAR), Described("b1", "Something else entirely here."), Described("c1", CLEAR.lower()[:-1])]
    )
    (warning,) = result.warnings
    assert warning.startswith("the tool 'c1' has the same description as the tool 'a1'")


def test_the_same_tool_twice_has_no_warning() -> None:
    """A module may have one tool under two names."""
    subject = Described("a1", CLEAR)
    assert check_tools([subject, subject]).warnings == ()


def test_several_parameters_need_descriptions() -> None:
    """A single parameter is explained by the tool; several parameters without descriptions have a warning."""
    described = {"type": "string", "description": "A city."}
    assert check_tools(Described("get_weather", CLEAR, city={"type": "string"})).warnings == ()
    assert check_tools(Described("get_weather", CLEAR, city=described, country=described)).warnings == ()
    (warning,) = check_tools(Described("get_weather", CLEAR, city=described, x={}, y={"description": " "})).warnings
    assert warning == "the tool 'get_weather' has 3 parameters, of which 'x', 'y' have no description"


def test_functions_and_classes_have_warnings_too() -> None:
    """A future tool is checked with the text that a model would see."""

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
        """Sets everything in the class."""

        name = "frobnicate"
        description = "Polish."
        parameters: Mapping[str, Any] = {"type": "object"}

        def __init__(self, needed: int) -> None:
            self.needed = needed

        async def use(self, *_: Any, **__: Any) -> None:
            """Do nothing."""

    short, undescribed = check_tools(vague).warnings
    assert "vague()" in short
    assert undescribed.endswith("has 2 parameters, of which 'a' have no description")
    assert check_tools(tool(vague)).warnings[0].startswith("the description of the tool 'vague' says nothing")
    assert "no more than its name" in check_tools(Vague).warnings[0]
    assert check_tools(Named).warnings == ()
    assert check_tools(InClass).warnings[0].startswith("the description of the tool class")


def test_a_definition_with_problems_has_no_warnings() -> None:
    """Only definitions without problems have warnings."""
    result = check_tools([Described("a1", ""), Described("b1", "Do.")])
    assert result == ["the tool 'a1' has no description: say what it does and when to use it"]
    assert len(result.warnings) == 1
    assert check_tools([]) == []
    assert check_tools([]).warnings == ()
