"""A toolkit for a to-do list that lives in the agent's state, so that it is saved and resumed with it.

Try it from a shell; a scripted model plans, builds and prints its list:

    python examples/toolkits/todo.py

Use it from a TOML file, with `examples` on the import path:

    [ensembles.todo]
    use = "toolkits.todo:todo"

    ensembles = load_ensembles("tools.toml", allow=["toolkits"])
    loop = AgentLoop.for_model("openai:gpt-5", tools=[*ensembles])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from attrs import frozen

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.errors import ToolFailed
from agentloop.interception import Interceptor
from agentloop.toolkits import Ensemble, ensemble_factory
from agentloop.tools import Range
from agentloop.values.points import AfterToolUse

METADATA_KEY = "todo"
"""The key of the list in `state.context.metadata`."""

MAX_ITEMS = 200
_STATUSES = ("open", "in_progress", "done")
_CHANGING_TOOLS = frozenset({"add_todos", "update_todo", "remove_todo"})


class TodoItem(TypedDict):
    """An item of the list."""

    id: int
    task: str
    status: Literal["open", "in_progress", "done"]


def todo_items(state: AgentState) -> list[TodoItem]:
    """Return the to-do list of an agent, in its order; empty when the agent has none."""
    return _parse_items(state.context.metadata.get(METADATA_KEY)) or []


# The tools only compute the list; the interceptor below changes the state. So each of them is pure. They share one ordering
# key: calls of one step run one after the other, each on the list that the last one left.
@tool(effect="pure", key=METADATA_KEY)
def list_todos(state: AgentState) -> list[TodoItem]:
    """Show the list of things to do, with the id and the status of each."""
    return todo_items(state)


@tool(effect="pure", key=METADATA_KEY)
def add_todos(
    tasks: Annotated[
        list[Annotated[str, Range(min_length=1, max_length=1_000)]],
        "what is to be done, one text each, in order",
        Range(min_length=1, max_length=MAX_ITEMS),
    ],
    state: AgentState,
) -> list[TodoItem]:
    """Add things to do at the end of the list; return the whole list."""
    items = todo_items(state)
    if len(items) + len(tasks) > MAX_ITEMS:
        raise ToolFailed(f"the list holds {len(items)} of at most {MAX_ITEMS} items; remove what is done")
    first_id = max((item["id"] for item in items), default=0) + 1
    return [*items, *[_item(item_id, task, "open") for item_id, task in enumerate(tasks, first_id)]]


@tool(effect="pure", key=METADATA_KEY)
def update_todo(
    id: Annotated[int, "of the item"],  # noqa: A002  # the name that the list shows
    state: AgentState,
    status: Literal["open", "in_progress", "done"] | None = None,
    task: Annotated[str | None, "other words for it"] = None,
) -> list[TodoItem]:
    """Change the status or the words of one thing to do; return the whole list."""
    items = todo_items(state)
    _find(items, id)
    return [_item(id, task or item["task"], status or item["status"]) if item["id"] == id else item for item in items]


@tool(effect="pure", key=METADATA_KEY)
def remove_todo(id: Annotated[int, "of the item"], state: AgentState) -> list[TodoItem]:  # noqa: A002  # the name that the list shows
    """Take one thing off the list; return the whole list."""
    items = todo_items(state)
    removed = _find(items, id)
    return [item for item in items if item is not removed]


@frozen
class TodoKeeper(Interceptor):
    """Saves the list that a call returned in the state, after the call has succeeded.

    A call that is blocked, or whose result another interceptor replaces by something else, leaves the list as it is.
    """

    priority: int = 1_000

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Save the list that a changing tool returned."""
        items = _parse_items(point.execution.value) if point.call.name in _CHANGING_TOOLS else None
        return point if items is None else point.with_state(point.state.with_metadata(**{METADATA_KEY: items}))


@ensemble_factory
def todo() -> Ensemble:
    """Create an ensemble with the tools of the list and the interceptor that saves it."""
    return Ensemble(
        "todo",
        [add_todos, update_todo, remove_todo, list_todos],
        description="A list of things to do, saved in the agent's state.",
        interceptors=[TodoKeeper()],
    )


def _item(item_id: int, task: str, status: Any) -> TodoItem:
    return TodoItem(id=item_id, task=task, status=status)


def _parse_items(value: object) -> list[TodoItem] | None:
    """Return the value as a list of items, or None when it is not one: other code may write the metadata and the result."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    items = [_item(item["id"], item["task"], item["status"]) for item in value if _is_item(item)]
    return items if len(items) == len(value) else None


def _is_item(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and type(value.get("id")) is int
        and isinstance(value.get("task"), str)
        and value.get("status") in _STATUSES
    )


def _find(items: Sequence[TodoItem], item_id: int) -> TodoItem:
    match = next((item for item in items if item["id"] == item_id), None)
    if match is None:
        known = ", ".join(str(item["id"]) for item in items) or "none; the list is empty"
        raise ToolFailed(f"there is no item {item_id}; there is {known}")
    return match


def main() -> None:
    """Run an agent with a scripted model and print its list."""
    model = ScriptedInference(
        ToolCall("1", "add_todos", '{"tasks": ["plan", "build", "test"]}'),
        ToolCall("2", "update_todo", '{"id": 1, "status": "done"}'),
        "The plan is done; next, I build.",
    )
    state = AgentLoop.for_model(model, tools=[todo()]).execute_sync("Build a birdhouse.")
    for item in todo_items(state):
        print(f"{item['id']}. [{item['status']}] {item['task']}")


if __name__ == "__main__":
    main()
