"""A list of things to do in the state's metadata."""

from __future__ import annotations

import pytest

from agentloop import AgentState, from_json, to_json
from agentloop.interception import after_tool_use, before_tool_use
from agentloop.tools.ensembles.todo import METADATA_KEY, todo, todo_items
from agentloop.values import ToolStatus
from tests.tools.ensembles.running import executions, ran, scripted_loop


def tasks(state: AgentState) -> list[tuple[int, str, str]]:
    return [(item["id"], item["task"], item["status"]) for item in todo_items(state)]


async def test_the_list_is_kept_in_the_state() -> None:
    """Added, changed and removed; it travels with the state, also through JSON and into the next execution."""
    loop = scripted_loop(
        [todo()],
        ("add_todos", {"tasks": ["plan", "build", "test"]}),
        ("update_todo", {"id": 1, "status": "done"}),
        ("update_todo", {"id": 2, "status": "in_progress", "task": "build it"}),
        ("remove_todo", {"id": 3}),
        ("list_todos", {}),
    )
    state = await loop.execute("go")
    kept = [(1, "plan", "done"), (2, "build it", "in_progress")]
    assert tasks(state) == kept
    assert [dict(item) for item in executions(state)[-1].value] == [dict(item) for item in todo_items(state)]  # type: ignore[union-attr,arg-type]  # a list of objects
    again = from_json(to_json(state), AgentState)
    assert tasks(again) == kept
    assert tasks(
        await scripted_loop([todo()], ("add_todos", {"tasks": ["ship"]})).execute(again.with_message("on"))
    ) == [
        *kept,
        (3, "ship", "open"),
    ]


async def test_calls_of_one_step_follow_each_other() -> None:
    """Each works on what the one before it left, although the model made them together."""
    state = await ran(
        [todo()],
        [
            ("add_todos", {"tasks": ["a"]}),
            ("add_todos", {"tasks": ["b", "c"]}),
            ("update_todo", {"id": 3, "status": "done"}),
            ("remove_todo", {"id": 1}),
        ],
    )
    assert tasks(state) == [(2, "b", "open"), (3, "c", "done")]


async def test_two_agents_have_two_lists() -> None:
    """Nothing is kept outside of the state."""
    group = todo()
    first = await ran([group], ("add_todos", {"tasks": ["mine"]}))
    second = await ran([group], ("list_todos", {}))
    assert (tasks(first), tasks(second)) == ([(1, "mine", "open")], [])


async def test_a_call_that_did_not_succeed_changes_nothing() -> None:
    """Unknown items are told; a blocked call leaves the list alone, and so does one whose outcome is something else."""
    first = await ran([todo()], ("add_todos", {"tasks": ["a"]}), ("update_todo", {"id": 7}), ("remove_todo", {"id": 2}))
    assert [one.error_message for one in executions(first)[1:]] == [
        "there is no item 7; there is 1",
        "there is no item 2; there is 1",
    ]
    assert tasks(first) == [(1, "a", "open")]
    block = before_tool_use(lambda point: point.block("no"))
    other = after_tool_use(lambda point: point.with_value("done"))
    for interceptor in (block, other):
        state = await ran([todo()], ("add_todos", {"tasks": ["a"]}), interceptors=[interceptor])
        assert tasks(state) == []


@pytest.mark.parametrize("found", ["text", 3, [{"id": 1}], [{"id": True, "task": "a", "status": "open"}], [None], {}])
async def test_what_is_no_list_in_the_metadata_counts_as_none(found: object) -> None:
    """Metadata may come from anywhere."""
    state = AgentState.start("go").with_metadata(**{METADATA_KEY: found})
    assert todo_items(state) == []
    assert tasks(await scripted_loop([todo()], ("add_todos", {"tasks": ["a"]})).execute(state)) == [(1, "a", "open")]


async def test_the_list_is_bounded() -> None:
    """A model that adds without end is told to stop."""
    many = {"tasks": ["x"] * 150}
    state = await ran([todo()], ("add_todos", many), ("add_todos", many), ("add_todos", {"tasks": ["x"] * 201}))
    assert [one.status for one in executions(state)] == [ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.REJECTED]
    assert len(todo_items(state)) == 150
