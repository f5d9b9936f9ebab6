"""Tools that say what a model is shown of their results."""

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


def run(script: ToolCall, *tools: Any) -> tuple[AgentState, ScriptedInference]:
    """Have one call made and answered."""
    inference = ScriptedInference(script, "done")
    return AgentLoop(ToolCallingDriver(inference), tools).execute_sync("go"), inference


def test_the_model_is_shown_less_and_the_state_keeps_all() -> None:
    """The whole result is for the program, what the function makes of it for the model."""
    state, inference = run(ToolCall("1", "query", '{"table": "t"}'), query)
    (execution,) = state.steps[0].executions
    assert execution.value == freeze(ROWS)
    assert execution.text == "100 rows, the first is row 0"
    assert inference.requests[1].messages[-1].exchanges[0].execution.text == "100 rows, the first is row 0"


def test_parts_can_be_shown() -> None:
    """Text and pictures, in order; and a result that has parts of its own gives way to what is to be shown."""

    @tool(show=lambda _: ["seen:", PICTURE])
    async def look() -> ToolResult:
        """Look."""
        return ToolResult({"seen": 1}, (Text("all of it"),))

    made = look.present(ToolResult({"seen": 1}, (Text("all of it"),)))
    assert made == ToolResult(JsonObject(seen=1), (Text("seen:"), PICTURE))


@pytest.mark.parametrize("show", [lambda rows: rows[3], lambda rows: 7, lambda rows: [7]])
def test_a_function_that_cannot_tell_makes_the_call_fail(show: Any) -> None:
    """The model is told that the tool ran, so that it does not run it again."""

    @tool(show=show)
    async def find() -> list[int]:
        """Find."""
        return []

    with pytest.raises(ToolFailed, match="the tool ran, but what to show"):
        find.present([])


def test_a_result_that_does_not_fit_its_type_is_not_shown() -> None:
    """The declared type is checked first."""
    with pytest.raises(ToolFailed, match="declares to return"):
        query.present("none")
