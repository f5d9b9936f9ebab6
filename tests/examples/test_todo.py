"""The to-do toolkit: a list in the metadata of the agent's state."""

from __future__ import annotations

import pytest
from toolkits.todo import METADATA_KEY, todo, todo_items

from agentloop import AgentState, from_json, to_json
from agentloop.interception import at
from agentloop.values import ToolStatus
from tests.toolkits.running import executions, run_calls, scripted_loop


def tasks(state: AgentState) -> list[tuple[int, str, str]]:
    return [(item["id"], item["task"], item["status"]) for item in todo_items(state)]


async def test_the_list_is_saved_in_the_state() -> None:
    """Items are added, changed and removed; the list survives serialization and the next execution."""
    loop = scripted_loop(
        [todo()],
        ("add_todos", {"tasks": ["plan", "build", "test"]}),
        ("update_todo", {"id": 1, "status": "done"}),
        ("update_todo", {"id": 2, "status": "in_progress", "task": "build it"}),
        ("remove_todo", {"id": 3}),
        ("list_todos", {}),
    )
    state = await loop.execute("go")
    expected = [(1, "plan", "done"), (2, "build it", "in_progress")]
    assert tasks(state) == expected
    assert [dict(item) for item in executions(state)[-1].value] == [dict(item) for item in todo_items(state)]  # type: ignore[union-attr,arg-type]  # a list of objects
    restored = from_json(to_json(state), AgentState)
    assert tasks(restored) == expected
    assert tasks(
        await scripted_loop([todo()], ("add_todos", {"tasks": ["ship"]})).execute(restored.with_message("on"))
    ) == [
        *expected,
        (3, "ship", "open"),
    ]


async def test_calls_of_one_step_run_in_order() -> None:
    """Each call works on the list that the one before it left, although the model made them together."""
    state = await run_calls(
        [todo()],
        [
            ("add_todos", {"tasks": ["a"]}),
            ("add_todos", {"tasks": ["b", "c"]}),
            ("update_todo", {"id": 3, "status": "done"}),
            ("remove_todo", {"id": 1}),
        ],
    )
    assert tasks(state) == [(2, "b", "open"), (3, "c", "done")]


async def test_agents_do_not_share_a_list() -> None:
    """The list lives in the state alone: two agents with the same ensemble have two lists."""
    group = todo()
    first = await run_calls([group], ("add_todos", {"tasks": ["mine"]}))
    second = await run_calls([group], ("list_todos", {}))
    assert (tasks(first), tasks(second)) == ([(1, "mine", "open")], [])


async def test_a_call_that_did_not_succeed_changes_nothing() -> None:
    """An unknown item, a blocked call and a replaced result leave the list as it is."""
    first = await run_calls(
        [todo()], ("add_todos", {"tasks": ["a"]}), ("update_todo", {"id": 7}), ("remove_todo", {"id": 2})
    )
    assert [execution.error_message for execution in executions(first)[1:]] == [
        "there is no item 7; there is 1",
        "there is no item 2; there is 1",
    ]
    assert tasks(first) == [(1, "a", "open")]
    blocking = at("before_tool_use", lambda point: point.block("no"))
    replacing = at("after_tool_use", lambda point: point.with_value("done"))
    for interceptor in (blocking, replacing):
        state = await run_calls([todo()], ("add_todos", {"tasks": ["a"]}), interceptors=[interceptor])
        assert tasks(state) == []


@pytest.mark.parametrize(
    "metadata", ["text", 3, [{"id": 1}], [{"id": True, "task": "a", "status": "open"}], [None], {}]
)
async def test_metadata_that_is_not_a_list_of_items_counts_as_empty(metadata: object) -> None:
    """Other code may write the metadata: a value that is not a list of items is read as an empty list."""
    state = AgentState.start("go").with_metadata(**{METADATA_KEY: metadata})
    assert todo_items(state) == []
    assert tasks(await scripted_loop([todo()], ("add_todos", {"tasks": ["a"]})).execute(state)) == [(1, "a", "open")]


async def test_the_list_is_bounded() -> None:
    """Adding more items than the list may hold fails or is rejected by the schema."""
    many = {"tasks": ["x"] * 150}
    state = await run_calls([todo()], ("add_todos", many), ("add_todos", many), ("add_todos", {"tasks": ["x"] * 201}))
    assert [execution.status for execution in executions(state)] == [
        ToolStatus.SUCCEEDED,
        ToolStatus.FAILED,
        ToolStatus.REJECTED,
    ]
    assert len(todo_items(state)) == 150
