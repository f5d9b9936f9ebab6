"""`@tool(show=…)`: tools that choose the content of a result for the model."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.errors import ToolFailed
from agentloop.values import Image, JsonObject, Text, ToolResult
from agentloop.values.json import freeze

ROWS = [{"id": number, "name": f"row {number}"} for number in range(100)]
PICTURE = Image(media_type="image/png", data=b"x")


@tool(effect="pure", show=lambda rows: f"{len(rows)} rows, the first is {rows[0]['name']}")
async def query(table: str) -> list[dict[str, Any]]:
    """Query a table."""
    return ROWS


def run(call: ToolCall, *tools: Any) -> tuple[AgentState, ScriptedInference]:
    """Run one call in a loop."""
    inference = ScriptedInference(call, "done")
    return AgentLoop(ToolCallingDriver(inference), tools).execute_sync("go"), inference


def test_the_model_sees_less_than_the_state_has() -> None:
    """The state has the whole result; the model is sent the value of the function."""
    state, inference = run(ToolCall("1", "query", '{"table": "t"}'), query)
    (execution,) = state.steps[0].executions
    assert execution.value == freeze(ROWS)
    assert execution.text == "100 rows, the first is row 0"
    assert inference.requests[1].messages[-1].exchanges[0].execution.text == "100 rows, the first is row 0"


def test_parts_can_be_shown() -> None:
    """The function may return text and media; they replace the parts of the result."""

    @tool(show=lambda _: ["seen:", PICTURE])
    async def look() -> ToolResult:
        """Look."""
        return ToolResult({"seen": 1}, (Text("all of it"),))

    result = look.present(ToolResult({"seen": 1}, (Text("all of it"),)))
    assert result == ToolResult(JsonObject(seen=1), (Text("seen:"), PICTURE))


@pytest.mark.parametrize("show", [lambda rows: rows[3], lambda rows: None])
def test_an_error_of_the_function_does_not_fail_the_call(show: Any) -> None:
    """The tool ran: the state has the result, and the model reads why it does not see it, and not what it was to be spared."""

    @tool(show=show)
    async def find() -> list[str]:
        """Find."""
        return ["private"]

    result = find.present(["private"])
    assert result.value == ("private",)
    assert result.content is not None
    (part,) = result.content
    assert isinstance(part, Text)
    assert part.text.startswith("[The tool ran and succeeded. Its result cannot be shown")
    assert "private" not in part.text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (7, "7"),
        ([7], "[7]"),
        ([], "[]"),
        ({"a": None}, '{"a":null}'),
        (iter([{1}]), "[[1]]"),
        (["seen", {2: 3}], 'seen{"2":3}'),
    ],
)
def test_other_values_are_shown_as_json(shown: Any, text: str) -> None:
    """A function that returns no content, but a value, has shown that value."""

    @tool(show=lambda _: shown)
    async def find() -> int:
        """Find."""
        return 1

    result = find.present(1)
    assert "".join(part.text for part in result.content or () if isinstance(part, Text)) == text


def test_a_mismatched_result_is_not_shown() -> None:
    """The declared type is checked before the function is called."""
    with pytest.raises(ToolFailed, match=r"declares to return .* The tool ran$"):
        query.present("none")
