"""A list of things to do, kept in the agent's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from attrs import frozen

from agentloop.errors import ToolFailed
from agentloop.interception.interceptor import Interceptor
from agentloop.tools.decorator import tool
from agentloop.tools.ensembles.ensemble import Ensemble, makes_ensemble
from agentloop.tools.schema import Bounds
from agentloop.values.points import AfterToolUse
from agentloop.values.state import AgentState

METADATA_KEY = "todo"
"""Where the list stands in `state.context.metadata`."""

_MOST_ITEMS = 200
_STATUSES = ("open", "in_progress", "done")
_CHANGING = frozenset({"add_todos", "update_todo", "remove_todo"})


class TodoItem(TypedDict):
    """A thing to do."""

    id: int
    task: str
    status: Literal["open", "in_progress", "done"]


def todo_items(state: AgentState) -> list[TodoItem]:
    """Return the list of an agent, in its order; empty when it has none."""
    return _items(state.context.metadata.get(METADATA_KEY)) or []


# The tools only compute the list; what changes the state is the interceptor below. So each of them is pure.
@tool(effect="pure", key=METADATA_KEY)
def list_todos(state: AgentState) -> list[TodoItem]:
    """Show the list of things to do, with the id and the status of each."""
    return todo_items(state)


@tool(effect="pure", key=METADATA_KEY)
def add_todos(
    tasks: Annotated[
        list[Annotated[str, Bounds(min_length=1, max_length=1_000)]],
        "what is to be done, one text each, in order",
        Bounds(min_length=1, max_length=_MOST_ITEMS),
    ],
    state: AgentState,
) -> list[TodoItem]:
    """Add things to do at the end of the list; return the whole list."""
    items = todo_items(state)
    if len(items) + len(tasks) > _MOST_ITEMS:
        raise ToolFailed(f"the list holds {len(items)} of at most {_MOST_ITEMS} items; remove what is done")
    first = max((item["id"] for item in items), default=0) + 1
    return [*items, *[_item(number, task, "open") for number, task in enumerate(tasks, first)]]


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
    found = _find(items, id)
    return [item for item in items if item is not found]


@frozen
class TodoKeeper(Interceptor):
    """Writes the list that a call returned into the state, once the call is settled.

    A tool only computes what the list will be; so a call that is blocked, or whose outcome another interceptor changes into
    something else, leaves the list alone. The calls of one step run one after the other, each on what the last one left.
    """

    priority: int = 1_000

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Keep the list of a call that changed it."""
        items = _items(point.execution.value) if point.call.name in _CHANGING else None
        return point if items is None else point.with_state(point.state.with_metadata(**{METADATA_KEY: items}))


@makes_ensemble
def todo() -> Ensemble:
    """Make the ensemble of the list of things to do."""
    return Ensemble(
        "todo",
        [add_todos, update_todo, remove_todo, list_todos],
        description="A list of things to do, kept in the agent's state.",
        interceptors=[TodoKeeper()],
    )


def _item(number: int, task: str, status: Any) -> TodoItem:
    return TodoItem(id=number, task=task, status=status)


def _items(value: object) -> list[TodoItem] | None:
    """Return a list of items, or None when it is not one: metadata and outcomes may come from anywhere."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    found = [_item(one["id"], one["task"], one["status"]) for one in value if _is_item(one)]
    return found if len(found) == len(value) else None


def _is_item(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and type(value.get("id")) is int
        and isinstance(value.get("task"), str)
        and value.get("status") in _STATUSES
    )


def _find(items: Sequence[TodoItem], number: int) -> TodoItem:
    found = next((item for item in items if item["id"] == number), None)
    if found is None:
        known = ", ".join(str(item["id"]) for item in items) or "none; the list is empty"
        raise ToolFailed(f"there is no item {number}; there is {known}")
    return found
