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


@pytest.mark.parametrize("show", [lambda rows: rows[3], lambda rows: 7, lambda rows: [7]])
def test_an_error_of_the_function_fails_the_call(show: Any) -> None:
    """The error says that the tool ran, so that the model does not repeat the call."""

    @tool(show=show)
    async def find() -> list[int]:
        """Find."""
        return []

    with pytest.raises(ToolFailed, match="the tool ran, but its function `show` failed"):
        find.present([])


def test_a_mismatched_result_is_not_shown() -> None:
    """The declared type is checked before the function is called."""
    with pytest.raises(ToolFailed, match="declares to return"):
        query.present("none")
