"""What has changed in a state, as plain JSON data whose size does not grow with the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from operator import attrgetter, is_
from typing import Any, TypeVar

from attrs import evolve

from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionState


def is_same_json(one: object, other: object, *, ordered: bool = False) -> bool:
    """Say whether two values, or two plain JSON data, are equal and have one JSON form.

    To Python, `1`, `True` and `1.0` are equal, and so are `0.0` and `-0.0`; in JSON they are not. What is one object is not looked at.

    Args:
        one: a value.
        other: the value beside it.
        ordered: whether the keys of objects have to stand in the same order, too.
    """
    if one is other:
        return True
    if one != other:
        return False
    pairs: list[tuple[Any, Any]] = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if left is right:
            continue
        if _form(left) != _form(right):
            return False
        if ordered and isinstance(left, Mapping) and tuple(left) != tuple(right):
            return False
        pairs.extend(_inner(left, right))
    return True


def _inner(one: Any, other: Any) -> Iterable[tuple[Any, Any]]:
    """Return what stands in two equal things, in pairs."""
    if isinstance(one, Mapping):
        return [(value, other[key]) for key, value in one.items()]
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return zip(one, other, strict=True)
    kind: Any = type(one)
    return [(take(one), take(other)) for take in _compared(kind)]


@cache
def _compared(kind: Any) -> tuple[attrgetter[Any], ...]:
    """Return what takes each compared field out of an instance of this class; nothing for one without fields."""
    return tuple([attrgetter(field.name) for field in getattr(kind, "__attrs_attrs__", ()) if field.eq])


def _form(value: object) -> tuple[type, str] | None:
    """Return what equal things can differ in; None for those that cannot."""
    if isinstance(value, bool | int | float):
        kind = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        return kind, repr(value) if kind is float else ""
    return (datetime, value.isoformat()) if isinstance(value, datetime) else None


T = TypeVar("T")


def kept(before: Sequence[T], after: Sequence[T]) -> int:
    """Return how many items at the beginning of `after` are those of `before`."""
    if len(after) >= len(before) and all(map(is_, before, after)):
        return len(before)
    count = 0
    for one, other in zip(before, after, strict=False):
        if not is_same_json(one, other, ordered=True):
            break
        count += 1
    return count


def told(before: Sequence[T], after: Sequence[T], tell: Callable[[T], Any]) -> dict[str, Any] | None:
    """Return, as plain JSON data, how to make `after` of `before`; None when they are the same.

    Args:
        before: the earlier sequence.
        after: the later one.
        tell: turns an item into plain JSON data.
    """
    keep = kept(before, after)
    if keep == len(before) == len(after):
        return None
    return {"keep": keep, "add": [tell(item) for item in islice(after, keep, None)]}


def remade(before: Sequence[T], change: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the later sequence of an earlier one and what `told` made of the two."""
    if change is None:
        return tuple(before)
    return (*before[: change["keep"]], *[read(item) for item in change["add"]])


_NO_CONTEXT = AgentContext()


def state_delta(before: AgentState | None, after: AgentState) -> dict[str, Any]:
    """Return what has to be done to `before` to make `after` of it.

    A message that a step and the conversation share is told once.

    Args:
        before: the earlier state; None to tell the whole of the later one.
        after: the later state.
    """
    delta: dict[str, Any] = {}
    known = _light(before) if before is not None else None
    light = _light(after)
    if not is_same_json(light, known, ordered=True):
        delta["state"] = to_plain(light)
    delta |= _context_delta(None if before is None else before.context, after.context)
    if after.execution is not None:
        delta |= _execution_delta(None if before is None else before.execution, after.execution, after.messages)
    elif before is not None and before.execution is not None:
        delta["execution"] = None
    return delta


def with_delta(before: AgentState | None, delta: dict[str, Any]) -> AgentState:
    """Return the later state, of the earlier one and what `state_delta` made of the two.

    Raises:
        InvalidDocument: when the data are not the form of a change.
    """
    light = from_plain(delta["state"], AgentState) if "state" in delta else None
    base = light if light is not None else before
    assert base is not None  # noqa: S101  # what is told of nothing before is told whole
    context = _context_with(_NO_CONTEXT if before is None else before.context, delta)
    execution = _execution_with(None if before is None else before.execution, delta, context.messages)
    return evolve(base, context=context, execution=execution)


def _light(state: AgentState) -> AgentState:
    return evolve(state, context=_NO_CONTEXT, execution=None)


def _context_delta(before: AgentContext | None, after: AgentContext) -> dict[str, Any]:
    if after is before:
        return {}
    delta: dict[str, Any] = {}
    light = evolve(after, messages=())
    if before is None or not is_same_json(light, evolve(before, messages=()), ordered=True):
        delta["context"] = to_plain(light)
    messages = told(() if before is None else before.messages, after.messages, to_plain)
    if messages is not None:
        delta["messages"] = messages
    return delta


def _context_with(before: AgentContext, delta: dict[str, Any]) -> AgentContext:
    light = from_plain(delta["context"], AgentContext) if "context" in delta else before
    return evolve(light, messages=remade(before.messages, delta.get("messages"), _message))


def _execution_delta(
    before: ExecutionState | None, after: ExecutionState, messages: Sequence[Message]
) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    light = evolve(after, steps=())
    if before is None or not is_same_json(light, evolve(before, steps=()), ordered=True):
        delta["execution"] = to_plain(light)
    steps = told(() if before is None else before.steps, after.steps, lambda step: _step_told(step, messages))
    if steps is not None:
        delta["steps"] = steps
    return delta


def _execution_with(
    before: ExecutionState | None, delta: dict[str, Any], messages: Sequence[Message]
) -> ExecutionState | None:
    if "execution" in delta and delta["execution"] is None:
        return None
    light = from_plain(delta["execution"], ExecutionState) if "execution" in delta else before
    if light is None:
        return None
    steps = () if before is None else before.steps
    return evolve(light, steps=remade(steps, delta.get("steps"), lambda step: _step_read(step, messages)))


def _step_told(step: AgentStep, messages: Sequence[Message]) -> dict[str, Any]:
    place = place_of(step.message, messages)
    if place is None:
        return {"step": to_plain(step)}
    return {"step": to_plain(evolve(step, message=None)), "message": place}


def _step_read(data: Any, messages: Sequence[Message]) -> AgentStep:
    step = from_plain(data["step"], AgentStep)
    return evolve(step, message=messages[data["message"]]) if "message" in data else step


def place_of(message: Message | None, messages: Sequence[Message]) -> int | None:
    """Return where in a conversation this very message stands, looking from the end; None when it does not."""
    if message is None:
        return None
    return next((place for place in range(len(messages) - 1, -1, -1) if messages[place] is message), None)


def _message(data: Any) -> Message:
    return from_plain(data, Message)


def request_delta(
    before: InferenceRequest | None, after: InferenceRequest, place_of: Callable[[Message], int | None]
) -> dict[str, Any]:
    """Return what has to be done to `before` to make `after` of it.

    Args:
        before: the request of the inference before it in the execution; None to tell the whole of the later one.
        after: the request.
        place_of: tells where in the recorded conversation a message stands; None when it does not. It is not told again.
    """
    delta: dict[str, Any] = {}
    light = evolve(after, messages=())
    if before is None or not is_same_json(light, evolve(before, messages=()), ordered=True):
        delta["request"] = to_plain(light)

    def tell(message: Message) -> Any:
        place = place_of(message)
        return to_plain(message) if place is None else place

    messages = told(() if before is None else before.messages, after.messages, tell)
    if messages is not None:
        delta["messages"] = messages
    return delta


def request_with(
    before: InferenceRequest | None, delta: dict[str, Any], conversation: Sequence[Message]
) -> InferenceRequest:
    """Return the later request, of the earlier one and what `request_delta` made of the two.

    Args:
        before: the request before it.
        delta: what is new.
        conversation: the recorded conversation.

    Raises:
        InvalidDocument: when the data are not the form of a request.
    """
    light = from_plain(delta["request"], InferenceRequest) if "request" in delta else before
    assert light is not None  # noqa: S101  # what is told of nothing before is told whole

    def read(data: Any) -> Message:
        return conversation[data] if isinstance(data, int) else from_plain(data, Message)

    return evolve(light, messages=remade(() if before is None else before.messages, delta.get("messages"), read))


class ConversationPlaces:
    """Finds a message of the recorded conversation by its identity, so that it is not written down again."""

    __slots__ = ("_messages", "_places")

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._places: dict[int, int] = {}

    def move(self, messages: Sequence[Message]) -> None:
        """Take a conversation as the recorded one; what it has in common with the one before it is known already."""
        known = self._messages
        same = len(known) if len(messages) >= len(known) and all(map(is_, known, messages)) else 0
        if not same:
            self._places = {}
        self._places.update({id(message): place for place, message in enumerate(messages[same:], same)})
        self._messages = messages

    def of(self, message: Message) -> int | None:
        """Return where a message stands; None when it does not."""
        return self._places.get(id(message))
