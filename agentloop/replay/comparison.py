"""Comparing what today's code does with what is recorded, and naming the first place where they differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import evolve, frozen

from agentloop.journal.deltas import is_same_json
from agentloop.journal.fork_effects import is_same_call
from agentloop.replay.divergence import NOTHING, Difference, Divergence
from agentloop.replay.guard import Touch
from agentloop.replay.timeline import Asked, RecordedStep
from agentloop.values.batches import parse_key
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json
from agentloop.values.messages import Message
from agentloop.values.points import AfterInference, AfterToolUse, BeforeInference, BeforeToolUse, Point
from agentloop.values.records import CallIntent, RecordedCall
from agentloop.values.serialization import to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, SuspendedTurn
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution

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
            known = self._messages[id(message)] = (
                message,
                self._once(_told_form(to_plain(evolve(message, parts=parts)))),
            )
        return known[1]

    def _step(self, step: AgentStep) -> Any:
        known = self._steps.get(id(step))
        if known is None:
            turn = step.open_turn
            if turn is not None:
                slots = [slot if isinstance(slot, PendingCall) else timeless(slot) for slot in turn.slots]
                turn = SuspendedTurn(turn.parts, tuple([_light(slot) for slot in slots]))
            plain: dict[str, Any] = to_plain(
                evolve(step, id="", message=None, open_turn=turn, started_at=_THEN, ended_at=_THEN)
            )
            if step.message is not None:
                plain["message"] = self.message(step.message)
            known = self._steps[id(step)] = (step, self._once(_told_form(plain)))
        return known[1]

    def _once(self, plain: Any) -> Any:
        return self._known.setdefault(format_json(plain), plain)


def timeless(execution: ToolExecution) -> ToolExecution:
    """Return an outcome without its id and its times."""
    return evolve(execution, id="", started_at=_THEN, ended_at=_THEN)


def _light(slot: ToolExecution | PendingCall) -> ToolExecution | PendingCall:
    """Return a slot without what only its tool can read, in which there are times."""
    return evolve(slot, progress=None) if isinstance(slot, PendingCall) else slot


def _told_form(plain: Any) -> Any:
    """Leave out the times that are the same everywhere."""
    if isinstance(plain, dict):
        return {name: _told_form(one) for name, one in plain.items() if not _is_then(name, one)}
    return [_told_form(one) for one in plain] if isinstance(plain, list) else plain


def _is_then(name: str, value: Any) -> bool:
    return name in {"started_at", "ended_at"} and value == _THEN.isoformat()


def differences(recorded: Any, replayed: Any, path: str = "") -> Iterator[Difference]:
    """Yield where two plain JSON values differ, in their order, each with its path."""
    if is_same_json(recorded, replayed):
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


@frozen
class Trace:
    """What an interceptor has changed at a point.

    Attributes:
        interceptor: its name.
        point: the name of the point.
        before: the point as it was given.
        after: what it made of it.
    """

    interceptor: str
    point: str
    before: Point
    after: Point


class Traces:
    """Remembers, for one turn, what interceptors have changed."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._traces: list[Trace] = []

    def clear(self) -> None:
        """Begin the next turn."""
        self._traces = []

    def note(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """Remember what an interceptor made of a point, if it changed anything."""
        if not is_same_json(after, before):
            self._traces.append(Trace(interceptor, point, before, after))

    def writer_of(self, difference: Difference) -> Trace | None:
        """Return who last wrote at a place what is there now; None when no interceptor did."""
        return next((trace for trace in reversed(self._traces) if self._wrote(trace, difference)), None)

    def decider_of(self, key: str) -> Trace | None:
        """Return who last changed a call, or gave a verdict about it, before it ran."""
        of_call = (
            trace
            for trace in reversed(self._traces)
            if isinstance(trace.after, BeforeToolUse) and trace.after.key == key and _decided(trace)
        )
        return next(of_call, None)

    def _wrote(self, trace: Trace, difference: Difference) -> bool:
        return any(_covers(written, difference) for written in self._written(trace))

    def _written(self, trace: Trace) -> Iterator[Difference]:
        """Yield what an interceptor changed, with the paths that it has in the state or the request."""
        before, after, forms = trace.before, trace.after, self._forms
        if before.state is not after.state:
            yield from differences(forms.state(before.state), forms.state(after.state), "state")
        if isinstance(before, BeforeInference) and isinstance(after, BeforeInference):
            yield from differences(forms.request(before.request), forms.request(after.request), "request")
        if isinstance(before, AfterInference) and isinstance(after, AfterInference):
            yield from _anywhere(to_plain(before.response), to_plain(after.response))
        if isinstance(before, AfterToolUse) and isinstance(after, AfterToolUse):
            one, other = to_plain(timeless(before.execution)), to_plain(timeless(after.execution))
            yield from _of_execution(after.execution.key, one, other)


def _of_execution(key: str, before: Any, after: Any) -> Iterator[Difference]:
    place = parse_key(key)
    within = r"state\..*parts\[\d+\]\.execution\." if place is None else r"state\..*\.execution\."
    for one in differences(before, after):
        yield Difference(f"~{within}{re.escape(one.path)}", one.recorded, one.replayed)


def _anywhere(before: Any, after: Any) -> Iterator[Difference]:
    """Yield changes of a response: what is new in it may stand anywhere in the newest message and step."""
    for one in differences(before, after):
        yield Difference(r"~state\..*", one.recorded, one.replayed)


def _covers(written: Difference, difference: Difference) -> bool:
    """Say whether a change explains a difference: it is of this place, or of one that holds it, and left there what is there now."""
    path = difference.path
    if written.path.startswith("~"):
        return re.match(written.path[1:], path) is not None and _holds(written.replayed, difference.replayed)
    return path == written.path or path.startswith((f"{written.path}.", f"{written.path}["))


def _holds(written: Any, value: Any) -> bool:
    if written is NOTHING or value is NOTHING:
        return True
    return format_json(value) in format_json(written) or format_json(written) in format_json(value)


def _decided(trace: Trace) -> bool:
    before, after = trace.before, trace.after
    assert isinstance(before, BeforeToolUse)  # noqa: S101  # the stack returns points of the type that they were given
    assert isinstance(after, BeforeToolUse)  # noqa: S101
    return not is_same_json(before.verdict, after.verdict) or before.call != after.call


Mask = Callable[[dict[str, Any]], dict[str, Any]]
"""Masks in plain data what the journal masks in records."""


class Comparison:
    """Compares; each method returns the divergence that it finds, or None.

    Attributes:
        traces: what interceptors have changed in this turn.
    """

    def __init__(self, mask: Mask | None, left_out: Callable[[], tuple[str, ...]]) -> None:
        self._forms = Forms()
        self._mask = mask
        self._left_out = left_out
        self.traces: Traces = Traces(self._forms)

    def states(self, recorded: AgentState, replayed: AgentState) -> Divergence | None:
        """Compare two states after the same step."""
        forms = self._forms
        found = self._differences(forms.state(recorded), forms.state(replayed), "state")
        return self._named(found, recorded.step_count, None) if found else None

    def requests(self, asked: Asked, request: InferenceRequest, place: tuple[int, int]) -> Divergence | None:
        """Compare what was asked with what is asked now."""
        forms = self._forms
        found = self._differences(forms.request(asked.request), forms.request(request), "request")
        return self._named(found, *place) if found else None

    def offers(
        self, recorded: dict[str, Any] | None, replayed: dict[str, Any] | None, place: tuple[int, int]
    ) -> Divergence | None:
        """Compare the ways in which a driver puts a request."""
        found = self._differences(_told(recorded), _told(replayed), "asked")
        if not found:
            return None
        reason = "the driver asks its model in another way"
        return evolve(self._named(found, *place), reason=reason)

    def calls(self, recorded: RecordedCall, intent: CallIntent) -> Divergence | None:
        """Compare a call that ran with the one that is to run now."""
        one, other = recorded.intent.call, intent.call
        if is_same_call(one, other):
            return None
        step, index = parse_key(intent.key) or (0, 0)
        at = f"calls[{index}]"
        found = self._differences(_call(one), _call(other), at)
        trace = self.traces.decider_of(intent.key)
        named = self._named(found, step, index)
        return evolve(named, interceptor=trace.interceptor, point=trace.point) if trace is not None else named

    def not_run(self, recorded: RecordedCall, state: AgentState, step: int) -> Divergence:
        """Name a call that ran and does not run now."""
        key = recorded.intent.key
        index = (parse_key(key) or (0, 0))[1]
        last = state.last_step
        execution = next((one for one in last.executions if one.key == key), None) if last is not None else None
        waits = any(call.key == key for call in last.pending) if last is not None else False
        now = "waits for a decision" if waits else "is not made"
        if execution is not None:
            now = f"is {execution.status.value}" + (f": {execution.error.message}" if execution.error else "")
        trace = self.traces.decider_of(key)
        one = Difference(f"calls[{index}]", f"{recorded.intent.call.name} ran", now)
        return Divergence(
            step=step,
            index=index,
            place=one.path,
            recorded=one.recorded,
            replayed=one.replayed,
            interceptor=trace.interceptor if trace is not None else "",
            point=trace.point if trace is not None else "",
            differences=(one,),
        )

    def _named(self, found: tuple[Difference, ...], step: int, index: int | None) -> Divergence:
        first = found[0]
        trace = self.traces.writer_of(first)
        reason = ""
        if trace is None and first.path.startswith("state") and (left := self._left_out()):
            reason = f"{' and '.join(left)}, which may have written it, touches the world and was left out"
        return Divergence(
            step=step,
            index=index,
            place=first.path,
            recorded=first.recorded,
            replayed=first.replayed,
            interceptor=trace.interceptor if trace is not None else "",
            point=trace.point if trace is not None else "",
            reason=reason,
            differences=found,
        )

    def _differences(self, recorded: Any, replayed: Any, path: str) -> tuple[Difference, ...]:
        if is_same_json(recorded, replayed):
            return ()
        if self._mask is not None:
            replayed = self._mask({"value": replayed})["value"]
        return first_differences(recorded, replayed, path)


def touched(touch: Touch, turn: RecordedStep) -> Divergence:
    """Name what was about to touch the world."""
    who = f"{touch.interceptor} at {touch.point}" if touch.interceptor else "the driver, its compiler or its tools"
    return Divergence(
        step=turn.step,
        place="world",
        recorded=NOTHING,
        replayed=str(touch),
        interceptor=touch.interceptor,
        point=touch.point,
        reason=f"{who} was about to touch the world: {touch}; declare it with `touches_world = True`, and it is left out",
    )


def _told(offered: Mapping[str, Any] | None) -> Any:
    return NOTHING if offered is None else offered


def _call(call: ToolCall) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(call)
    try:
        plain["arguments"] = to_plain(call.arguments)
    except ValueError:
        return plain
    plain.pop("arguments_json", None)
    return plain
