"""Differences between states, and between requests, as plain JSON data whose size does not grow with the conversation.

A delta names what the later value shares with the earlier one by position, and holds the rest. Sequences that only grow, such
as messages and steps, are stored as the length of the common beginning and the items after it. A message refers to the records
of its step that hold its response and its outcomes, where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from operator import attrgetter, is_
from typing import Any, TypeVar

from attrs import define, evolve, field

from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze_object, thaw
from agentloop.values.messages import Message
from agentloop.values.serialization import from_plain, to_plain, to_plain_without
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionState
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution
from agentloop.values.value import copier

T = TypeVar("T")
V = TypeVar("V", AgentState, AgentContext, ExecutionState, InferenceRequest)

_NO_CONTEXT = AgentContext()
_copy_advanced = copier(AgentState, "execution", "updated_at")
_BLANKS: Mapping[str, Mapping[str, Any]] = {
    "state": {"context": _NO_CONTEXT, "extensions": EMPTY_OBJECT, "execution": None},
    "execution": {"steps": ()},
    "context": {"messages": ()},
    "request": {"messages": ()},
}
"""The fields that have deltas of their own, each with the value that replaces it among the scalars; by key of the delta."""


# --- what other records of a step hold -----------------------------------------------------------------------------------


@define(eq=False)
class StepParts:
    """The responses and outcomes that are recorded of the incomplete step, to which the record of the step refers.

    Masked responses and outcomes are left out: their records cannot be read back, so a step that holds one is stored in full.

    Attributes:
        responses: the response of each inference of the step; None for one that failed or was masked.
        executions: the recorded outcomes of calls, by key.
    """

    responses: list[InferenceResponse | None] = field(factory=list)
    executions: dict[str, ToolExecution] = field(factory=dict)

    def add_response(self, index: int, response: InferenceResponse | None) -> None:
        """Add the response of an inference. It replaces the responses from this index on, since a repeated inference voids them."""
        del self.responses[index:]
        self.responses.append(response)

    def clear(self) -> None:
        """Forget a step that is complete."""
        self.responses.clear()
        self.executions.clear()

    def write_message(self, message: Message) -> dict[str, Any]:
        """Return a message as plain JSON data: as the index of its response, with the keys of its calls, if these are recorded."""
        if message.role == "assistant" and not message.metadata:
            for index, response in reversed(tuple(enumerate(self.responses))):
                if response is not None and _consists_of(message, response):
                    executions = [self._write_execution(exchange.execution) for exchange in message.exchanges]
                    return {"response": index} | ({"executions": executions} if executions else {})
        plain: dict[str, Any] = to_plain(message)
        return plain

    def read_message(self, data: Any) -> Message:
        """Return the message that `write_message` wrote."""
        if "response" not in data:
            return from_plain(data, Message)
        response = self.responses[data["response"]]
        assert response is not None  # noqa: S101  # a masked response is never referred to
        executions = [self._read_execution(execution) for execution in data.get("executions", ())]
        return Message.of_response(response.parts, executions, response.label)

    def _write_execution(self, execution: ToolExecution) -> Any:
        recorded = self.executions.get(execution.key)
        is_recorded = recorded is not None and is_same_json(execution, recorded, ordered=True)
        return execution.key if is_recorded else to_plain(execution)

    def _read_execution(self, data: Any) -> ToolExecution:
        return self.executions[data] if isinstance(data, str) else from_plain(data, ToolExecution)


def _consists_of(message: Message, response: InferenceResponse) -> bool:
    """Return whether a message has exactly the parts of a response, with its calls in exchanges."""
    if len(message.parts) != len(response.parts) or message.label != response.label:
        return False
    for part, said in zip(message.parts, response.parts, strict=True):
        item = part.call if isinstance(part, ToolExchange) else part
        if isinstance(said, ToolCall) != isinstance(part, ToolExchange) or not is_same_json(item, said, ordered=True):
            return False
    return True


# --- states -----------------------------------------------------------------------------------------------------------


def state_delta(
    before: AgentState | None, after: AgentState, parts: StepParts | None = None, *, skip: int = 0
) -> dict[str, Any]:
    """Return the delta between two states.

    A message that a step and the conversation share is stored once. If the later state has one step more, the totals with that
    step are not stored: the delta is relative to the earlier state with the step. The conversation comes first, so that the texts
    of two states of one agent begin alike.

    Args:
        before: the earlier state; None to store the later one in full.
        after: the later state.
        parts: the responses and outcomes that other records of the step hold; None to store all of them here.
        skip: how many messages are left out at the beginning, because the caller has their text.
    """
    delta = _messages_delta(() if before is None else before.messages, after.messages, parts or StepParts(), skip)
    if before is not None and (step := _next_step(before, after)) is not None:
        delta["next_step"] = _write_step(step, after.messages)
        before = _advance(before, step)
    changed: dict[str, Any] = {}
    _add_scalars(delta, changed, "state", before, after)
    delta |= _extensions_delta(EMPTY_OBJECT if before is None else before.extensions, after.extensions)
    delta |= _context_delta(None if before is None else before.context, after.context)
    if after.execution is not None:
        earlier = None if before is None else before.execution
        _add_scalars(delta, changed, "execution", earlier, after.execution)
        delta |= _steps_delta(() if earlier is None else earlier.steps, after.execution.steps, after.messages)
    elif before is not None and before.execution is not None:
        # None is a removed execution; a missing key is an unchanged one.
        delta["execution"] = None
    return delta | ({"changed": changed} if changed else {})


def apply_state_delta(
    before: AgentState | None,
    delta: dict[str, Any],
    parts: StepParts | None = None,
    *,
    beginning: tuple[Message, ...] = (),
) -> AgentState:
    """Return the later state, from the earlier one and the delta between them.

    Args:
        before: the earlier state.
        delta: the delta.
        parts: the responses and outcomes that other records of the step hold.
        beginning: the messages that `skip` has left out of a state that is stored in full.

    Raises:
        InvalidDocument: the data are not a delta.
    """
    earlier = _NO_CONTEXT if before is None else before.context
    context = _apply_context_delta(earlier, delta, parts or StepParts(), beginning)
    if before is not None and "next_step" in delta:
        before = _advance(before, _read_step(delta["next_step"], context.messages))
    scalars = _apply_scalars(delta, "state", before and _scalars("state", before), AgentState)
    assert scalars is not None  # noqa: S101  # without an earlier state, the later one is stored in full
    extensions = _apply_extensions_delta(EMPTY_OBJECT if before is None else before.extensions, delta)
    execution = _apply_execution_delta(None if before is None else before.execution, delta, context.messages)
    return evolve(scalars, context=context, extensions=extensions, execution=execution)


def _next_step(before: AgentState, after: AgentState) -> AgentStep | None:
    """Return the step that a state has more than an earlier one; None when it has not exactly one."""
    earlier, later = before.execution, after.execution
    if earlier is None or later is None or len(later.steps) != len(earlier.steps) + 1:
        return None
    return later.steps[-1]


def _advance(state: AgentState, step: AgentStep) -> AgentState:
    """Return a state with a further step, counted in the totals, without its message."""
    execution = state.execution
    assert execution is not None  # noqa: S101  # only an execution has a next step
    return _copy_advanced(state, execution.with_step(step), step.ended_at)


def _add_scalars(delta: dict[str, Any], changed: dict[str, Any], name: str, before: V | None, after: V) -> None:
    """Add the fields of a value that changed.

    All of them are added if there is no earlier value, or if a field has its default again: plain data leave out defaults.
    """
    if before is not None and _has_same_scalars(name, before, after):
        return
    plain: dict[str, Any] = to_plain(_scalars(name, after))
    former: dict[str, Any] = {} if before is None else to_plain(_scalars(name, before))
    if before is None or not former.keys() <= plain.keys():
        delta[name] = plain
        return
    changed[name] = {
        key: value
        for key, value in plain.items()
        if key not in former or not is_same_json(value, former[key], ordered=True)
    }


def _apply_scalars(delta: dict[str, Any], name: str, before: T | None, kind: type[T]) -> T | None:
    if delta.get(name) is not None:
        return from_plain(delta[name], kind)
    changed = delta.get("changed", {}).get(name)
    if changed is None:
        return before
    plain: dict[str, Any] = to_plain(before)
    return from_plain(plain | changed, kind)


def _scalars(name: str, value: V) -> V:
    """Return a value without the fields that have deltas of their own."""
    return evolve(value, **_BLANKS[name])


def _has_same_scalars(name: str, before: V, after: V) -> bool:
    """Return whether the scalars of two values are the same, without copying the values as `_scalars` does."""
    kind: Any = type(after)
    get = _scalar_getter(name, kind)
    later, former = get(after), get(before)
    # Most of them are the same objects.
    return all(map(is_, later, former)) or all(
        is_same_json(item, other, ordered=True) for item, other in zip(later, former, strict=True)
    )


@cache
def _scalar_getter(name: str, kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    return _getter_of([attribute for attribute in _compared_names(kind) if attribute not in _BLANKS[name]])


def _extensions_delta(before: JsonObject, after: JsonObject) -> dict[str, Any]:
    if after is before:
        return {}
    removed = [owner for owner in before if owner not in after]
    stored = {owner: value for owner, value in after.items() if _is_changed(owner, value, before)}
    # The order of the owners is part of the JSON form: if it changed, all of them are stored again.
    if [owner for owner in {**before, **stored} if owner not in removed] != list(after):
        removed, stored = list(before), dict(after)
    delta: dict[str, Any] = {}
    if removed:
        delta["removed_extensions"] = removed
    if stored:
        delta["extensions"] = thaw(freeze_object(stored))
    return delta


def _is_changed(owner: str, value: JsonValue, before: JsonObject) -> bool:
    return owner not in before or not is_same_json(value, before[owner], ordered=True)


def _apply_extensions_delta(before: JsonObject, delta: dict[str, Any]) -> JsonObject:
    removed, stored = delta.get("removed_extensions", ()), delta.get("extensions", {})
    if not removed and not stored:
        return before
    return freeze_object({**{owner: before[owner] for owner in before if owner not in removed}, **stored})


def _messages_delta(
    before: Sequence[Message], after: Sequence[Message], parts: StepParts, skip: int = 0
) -> dict[str, Any]:
    if skip:
        return {"messages": {"keep": 0, "add": [parts.write_message(message) for message in islice(after, skip, None)]}}
    messages = sequence_delta(before, after, parts.write_message)
    return {} if messages is None else {"messages": messages}


def _context_delta(before: AgentContext | None, after: AgentContext) -> dict[str, Any]:
    """Return the delta between two contexts without their messages."""
    if after is before or (before is not None and _has_same_scalars("context", before, after)):
        return {}
    return {"context": to_plain(_scalars("context", after))}


def _apply_context_delta(
    before: AgentContext, delta: dict[str, Any], parts: StepParts, beginning: tuple[Message, ...]
) -> AgentContext:
    changed = delta.get("messages")
    if "context" not in delta and not beginning and (changed is None or changed["keep"] == len(before.messages)):
        # A conversation that only grows: the types of what is there were checked.
        for item in () if changed is None else changed["add"]:
            before = before.with_message(parts.read_message(item))
        return before
    scalars = from_plain(delta["context"], AgentContext) if "context" in delta else before
    messages = apply_sequence_delta(before.messages, changed, parts.read_message)
    return evolve(scalars, messages=beginning + messages)


def _steps_delta(
    before: Sequence[AgentStep], after: Sequence[AgentStep], messages: Sequence[Message]
) -> dict[str, Any]:
    steps = sequence_delta(before, after, lambda step: _write_step(step, messages))
    return {} if steps is None else {"steps": steps}


def _apply_execution_delta(
    before: ExecutionState | None, delta: dict[str, Any], messages: Sequence[Message]
) -> ExecutionState | None:
    if "execution" in delta and delta["execution"] is None:
        return None
    scalars = _apply_scalars(delta, "execution", before and _scalars("execution", before), ExecutionState)
    if scalars is None:
        return None
    previous = () if before is None else before.steps
    steps = apply_sequence_delta(previous, delta.get("steps"), lambda step: _read_step(step, messages))
    return evolve(scalars, steps=steps)


def _write_step(step: AgentStep, messages: Sequence[Message]) -> dict[str, Any]:
    """Return a step as plain data, with its message as a position in the conversation if it is there."""
    position = _position_of(step.message, messages)
    if position is None:
        return {"step": to_plain(step)}
    return {"step": to_plain_without(step, "message"), "message": position}


def _read_step(data: Any, messages: Sequence[Message]) -> AgentStep:
    step = from_plain(data["step"], AgentStep)
    return evolve(step, message=messages[data["message"]]) if "message" in data else step


def _position_of(message: Message | None, messages: Sequence[Message]) -> int | None:
    """Return the position of this object in a conversation, searched from the end; None when it is not there."""
    if message is None:
        return None
    # The message of a step is nearly always one of the last.
    return next((position for position in range(len(messages) - 1, -1, -1) if messages[position] is message), None)


# --- requests ---------------------------------------------------------------------------------------------------------


def request_delta(
    before: InferenceRequest | None, after: InferenceRequest, conversation: MessageIndex
) -> dict[str, Any]:
    """Return the delta between two requests.

    Args:
        before: the previous request of the execution; None to store the later one in full.
        after: the later request.
        conversation: the recorded conversation; the position of a message in it is stored in place of the message.
    """
    delta: dict[str, Any] = {}
    if before is None or not _has_same_scalars("request", before, after):
        delta["request"] = to_plain(_scalars("request", after))

    def write(message: Message) -> Any:
        position = conversation.position_of(message)
        return to_plain(message) if position is None else position

    previous = () if before is None else before.messages
    # Most first requests are the conversation, and need no look at each message.
    run = 0 if previous else conversation.common_length(after.messages)
    if run:
        added = [write(message) for message in islice(after.messages, run, None)]
        delta["messages"] = {"keep": 0, "add": _join_positions(added, run)}
    elif (messages := sequence_delta(previous, after.messages, write)) is not None:
        delta["messages"] = messages | {"add": _join_positions(messages["add"])}
    return delta


def _join_positions(items: Sequence[Any], run: int = 0) -> list[Any]:
    """Return messages and positions with each run of positions as one range: a list of the first and the last.

    Args:
        items: messages and positions.
        run: the number of positions from 0 on that stand before them.
    """
    joined: list[Any] = [[0, run - 1]] if run else []
    for item in items:
        if not isinstance(item, int):
            joined.append(item)
        elif joined and isinstance(joined[-1], list) and joined[-1][1] == item - 1:
            joined[-1][1] = item
        else:
            joined.append([item, item])
    return [item[0] if isinstance(item, list) and item[0] == item[1] else item for item in joined]


def _read_messages(items: Sequence[Any], conversation: Sequence[Message]) -> list[Message]:
    """Return the messages of which `_join_positions` joined the positions."""
    messages: list[Message] = []
    for item in items:
        if isinstance(item, list):
            messages += conversation[item[0] : item[1] + 1]
        else:
            messages.append(conversation[item] if isinstance(item, int) else from_plain(item, Message))
    return messages


def apply_request_delta(
    before: InferenceRequest | None, delta: dict[str, Any], conversation: Sequence[Message]
) -> InferenceRequest:
    """Return the later request, from the earlier one and the delta between them.

    Args:
        before: the previous request.
        delta: the delta.
        conversation: the recorded conversation, which positions refer to.

    Raises:
        InvalidDocument: the data are not a delta.
    """
    scalars = from_plain(delta["request"], InferenceRequest) if "request" in delta else before
    assert scalars is not None  # noqa: S101  # without an earlier request, the later one is stored in full
    changed, messages = delta.get("messages"), () if before is None else before.messages
    if changed is not None:
        messages = messages[: changed["keep"]] + tuple(_read_messages(changed["add"], conversation))
    return evolve(scalars, messages=messages)


def kept_messages(delta: Mapping[str, Any]) -> int | None:
    """Return how many of the earlier messages the later ones begin with; None when a delta, of states or requests, changes none."""
    messages = delta.get("messages")
    return None if messages is None else int(messages["keep"])


class MessageIndex:
    """Finds messages of the recorded conversation by identity, so that a request refers to them by position."""

    __slots__ = ("_count", "_messages", "_positions")

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._positions: dict[int, int] = {}
        self._count = 0  # how many messages have been indexed

    def update(self, messages: Sequence[Message]) -> None:
        """Take a new version of the conversation. Where it only adds messages to the last version, only these are indexed."""
        former = self._messages
        if former is messages:
            return
        if len(messages) < len(former) or not all(map(is_, former, messages)):
            self._positions, self._count = {}, 0
        # The reference keeps the messages alive, and with them their ids.
        self._messages = messages

    def position_of(self, message: Message) -> int | None:
        """Return the position of a message; None when it is not in the conversation."""
        # Indexed when it is asked for the first time: most requests of a long conversation do not ask.
        if self._count < len(self._messages):
            added = enumerate(islice(self._messages, self._count, None), self._count)
            self._positions.update({id(each): position for position, each in added})
            self._count = len(self._messages)
        return self._positions.get(id(message))

    def common_length(self, messages: Sequence[Message]) -> int:
        """Return the number of messages with which the whole conversation, or the others, begin; 0 if they differ earlier."""
        is_start = self._messages is messages or all(map(is_, self._messages, messages))
        return min(len(self._messages), len(messages)) if is_start else 0


# --- sequences --------------------------------------------------------------------------------------------------------


def sequence_delta(before: Sequence[T], after: Sequence[T], write: Callable[[T], Any]) -> dict[str, Any] | None:
    """Return the delta between two sequences, as plain JSON data; None when they are the same.

    Args:
        before: the earlier sequence.
        after: the later sequence.
        write: converts an item to plain JSON data.
    """
    length = common_prefix_length(before, after)
    if length == len(before) == len(after):
        return None
    return {"keep": length, "add": [write(item) for item in islice(after, length, None)]}


def apply_sequence_delta(before: Sequence[T], delta: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the later sequence, from the earlier one and the delta between them."""
    if delta is None:
        return tuple(before)
    # Not `(*kept, *added)`, which copies a long beginning twice.
    return tuple(before)[: delta["keep"]] + tuple([read(item) for item in delta["add"]])


def common_prefix_length(before: Sequence[T], after: Sequence[T]) -> int:
    """Return the number of items at the beginning of two sequences that are the same."""
    if before is after:
        return len(before)
    # The usual case is a sequence that has only grown: comparing identities is much faster than comparing values.
    if len(after) >= len(before) and all(map(is_, before, after)):
        return len(before)
    length = 0
    for item, other in zip(before, after, strict=False):
        if not is_same_json(item, other, ordered=True):
            break
        length += 1
    return length


# --- equality ---------------------------------------------------------------------------------------------------------


def is_same_json(left: object, right: object, *, ordered: bool = False) -> bool:
    """Return whether two values, or two plain JSON data, are equal and have the same JSON form.

    In Python `1`, `True` and `1.0` are equal, and so are `0.0` and `-0.0`; in JSON they differ. Identical objects are not
    searched.

    Args:
        left: a value.
        right: another value.
        ordered: whether the keys of objects must have the same order, too.
    """
    if left is right:
        return True
    if left != right:
        return False
    # The values are equal, so they have the same shape: what remains are numbers and times that are equal but not the same.
    pairs: list[tuple[Any, Any]] = [(left, right)]
    while pairs:
        item, other = pairs.pop()
        kind = type(item)
        if item is other or (kind in _SAME_IF_EQUAL and type(other) is kind):
            continue
        if _json_kind(item) != _json_kind(other):
            return False
        if ordered and isinstance(item, Mapping) and tuple(item) != tuple(other):
            return False
        pairs.extend(_children(item, other))
    return True


_SAME_IF_EQUAL = frozenset({str, int, bool})
"""Classes whose equal values have the same JSON form. Equal floats may differ in the sign of a zero, equal times in the time zone."""


def _json_kind(value: object) -> tuple[type, str] | None:
    """Return what can differ between equal values; None for values that cannot differ."""
    if isinstance(value, bool | int | float):
        # In this order, because bool is a subclass of int.
        kind = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        return kind, repr(value) if kind is float else ""
    return (datetime, value.isoformat()) if isinstance(value, datetime) else None


def _children(left: Any, right: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of two equal values in pairs."""
    if isinstance(left, Mapping):
        return [(value, right[key]) for key, value in left.items()]
    if isinstance(left, Sequence) and not isinstance(left, str | bytes):
        return zip(left, right, strict=True)
    kind: Any = type(left)
    get = _field_getter(kind)
    return zip(get(left), get(right), strict=True)


@cache
def _field_getter(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the compared fields of an instance of an attrs class, and nothing of any other object."""
    return _getter_of(_compared_names(kind))


def _compared_names(kind: Any) -> list[str]:
    return [field.name for field in getattr(kind, "__attrs_attrs__", ()) if field.eq]


def _getter_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the attributes with these names; with two or more of them, it runs in C."""
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple([getattr(value, name) for name in names])
