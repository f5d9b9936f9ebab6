"""What has changed in a state, as plain JSON data whose size does not grow with the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from agentloop.journal.kept import remade, told
from agentloop.journal.sameness import same
from agentloop.values.agent_context import AgentContext
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import AgentStep
from agentloop.values.execution_state import ExecutionState
from agentloop.values.message import Message
from agentloop.values.serialisation import from_plain, to_plain

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
    if not same(light, known, ordered=True):
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
    if before is None or not same(light, evolve(before, messages=()), ordered=True):
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
    if before is None or not same(light, evolve(before, steps=()), ordered=True):
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
