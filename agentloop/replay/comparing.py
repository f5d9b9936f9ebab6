"""States and requests as plain JSON data that can be compared: without ids and times, which are others in every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import evolve

from agentloop.journal.sameness import same
from agentloop.replay.divergence import NOTHING, Difference
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import AgentStep, OpenTurn
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.json_text import format_json
from agentloop.values.message import Message
from agentloop.values.pending_call import PendingCall
from agentloop.values.serialisation import to_plain
from agentloop.values.tool_execution import ToolExchange, ToolExecution

_THEN = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 12


class Forms:
    """Makes plain data of values, each message once; what is equal is the same object, so that comparing is quick."""

    def __init__(self) -> None:
        self._messages: dict[int, tuple[Message, Any]] = {}
        self._steps: dict[int, tuple[AgentStep, Any]] = {}
        self._known: dict[bytes, Any] = {}

    def state(self, state: AgentState) -> dict[str, Any]:
        """Return a state as plain data."""
        light = evolve(
            state, context=evolve(state.context, messages=()), execution=None, created_at=_THEN, updated_at=_THEN
        )
        plain: dict[str, Any] = to_plain(light)
        plain = {name: one for name, one in plain.items() if name not in {"created_at", "updated_at"}}
        context = {**plain.get("context", {}), "messages": [self.message(one) for one in state.messages]}
        plain["context"] = context
        execution = state.execution
        if execution is not None:
            told: dict[str, Any] = to_plain(
                evolve(execution, steps=(), started_at=_THEN, ended_at=None, waited_seconds=0.0)
            )
            told.pop("started_at", None)
            plain["execution"] = {**told, "steps": [self._step(step) for step in execution.steps]}
        return plain

    def request(self, request: InferenceRequest) -> dict[str, Any]:
        """Return a request as plain data."""
        light: dict[str, Any] = to_plain(evolve(request, messages=()))
        return {**light, "messages": [self.message(one) for one in request.messages]}

    def message(self, message: Message) -> Any:
        """Return a message as plain data."""
        known = self._messages.get(id(message))
        if known is None:
            parts = [
                evolve(part, execution=timeless(part.execution)) if isinstance(part, ToolExchange) else part
                for part in message.parts
            ]
            known = self._messages[id(message)] = (message, self._once(_told(to_plain(evolve(message, parts=parts)))))
        return known[1]

    def _step(self, step: AgentStep) -> Any:
        known = self._steps.get(id(step))
        if known is None:
            turn = step.open_turn
            if turn is not None:
                slots = [slot if isinstance(slot, PendingCall) else timeless(slot) for slot in turn.slots]
                turn = OpenTurn(turn.parts, tuple([_light(slot) for slot in slots]))
            plain: dict[str, Any] = to_plain(
                evolve(step, id="", message=None, open_turn=turn, started_at=_THEN, ended_at=_THEN)
            )
            if step.message is not None:
                plain["message"] = self.message(step.message)
            known = self._steps[id(step)] = (step, self._once(_told(plain)))
        return known[1]

    def _once(self, plain: Any) -> Any:
        return self._known.setdefault(format_json(plain), plain)


def timeless(execution: ToolExecution) -> ToolExecution:
    """Return an outcome without its id and its times."""
    return evolve(execution, id="", started_at=_THEN, ended_at=_THEN)


def _light(slot: ToolExecution | PendingCall) -> ToolExecution | PendingCall:
    """Return a slot without what only its tool can read, in which there are times."""
    return evolve(slot, progress=None) if isinstance(slot, PendingCall) else slot


def _told(plain: Any) -> Any:
    """Leave out the times that are the same everywhere."""
    if isinstance(plain, dict):
        return {name: _told(one) for name, one in plain.items() if not _is_then(name, one)}
    return [_told(one) for one in plain] if isinstance(plain, list) else plain


def _is_then(name: str, value: Any) -> bool:
    return name in {"started_at", "ended_at"} and value == _THEN.isoformat()


def differences(recorded: Any, replayed: Any, path: str = "") -> Iterator[Difference]:
    """Yield where two plain JSON values differ, in their order, each with its path."""
    if same(recorded, replayed):
        return
    if isinstance(recorded, Mapping) and isinstance(replayed, Mapping):
        for name in dict.fromkeys([*recorded, *replayed]):
            below = f"{path}.{name}" if path else str(name)
            yield from differences(recorded.get(name, NOTHING), replayed.get(name, NOTHING), below)
    elif _is_list(recorded) and _is_list(replayed):
        for place in range(max(len(recorded), len(replayed))):
            one = recorded[place] if place < len(recorded) else NOTHING
            other = replayed[place] if place < len(replayed) else NOTHING
            yield from differences(one, other, f"{path}[{place}]")
    else:
        yield Difference(path, recorded, replayed)


def first_differences(recorded: Any, replayed: Any, path: str) -> tuple[Difference, ...]:
    """Return the first dozen places where two values differ."""
    found: list[Difference] = []
    for one in differences(recorded, replayed, path):
        found.append(one)
        if len(found) == _SHOWN:
            break
    return tuple(found)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
