"""Compares a replayed run with the record, and finds the first difference and the interceptor that wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from attrs import evolve, frozen

from agentloop.durable.deltas import is_same_json
from agentloop.durable.fork_effects import is_same_call
from agentloop.durable.replaying.divergence import NOTHING, Difference, Divergence
from agentloop.durable.replaying.guard import BlockedOperation
from agentloop.durable.replaying.timeline import RecordedRequest, RecordedStep
from agentloop.values.batches import parse_key
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json
from agentloop.values.messages import Message
from agentloop.values.points import AfterInference, AfterToolUse, BeforeInference, BeforeToolUse, Point
from agentloop.values.provenance import PROVENANCE
from agentloop.values.records import CallIntent, RecordedCall, outer_key
from agentloop.values.serialization import to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Replaces the times, which are not compared."""
_MAX_DIFFERENCES = 12
_LABEL = re.compile(r"\.label(?:\.|$)")


class PlainDataCache:
    """Converts states and requests to plain JSON data.

    Each message is converted once, and equal messages become the same object, so that comparing long conversations is cheap.
    """

    def __init__(self) -> None:
        self._messages: dict[int, tuple[Message, Any]] = {}
        self._steps: dict[int, tuple[AgentStep, Any]] = {}
        self._known: dict[bytes, Any] = {}

    def state(self, state: AgentState) -> dict[str, Any]:
        """Return a state as plain data."""
        light = evolve(
            state, context=evolve(state.context, messages=()), execution=None, created_at=_EPOCH, updated_at=_EPOCH
        )
        plain: dict[str, Any] = to_plain(light)
        plain = {name: value for name, value in plain.items() if name not in {"created_at", "updated_at"}}
        # The account of changes follows from what is compared; layers around an operation that is not repeated are not in it.
        plain.get("extensions", {}).pop(PROVENANCE, None)
        messages = [self.message(message) for message in state.messages]
        plain["context"] = {**plain.get("context", {}), "messages": messages}
        execution = state.execution
        if execution is not None:
            light_execution: dict[str, Any] = to_plain(
                evolve(execution, steps=(), started_at=_EPOCH, ended_at=None, waited_seconds=0.0)
            )
            light_execution.pop("started_at", None)
            plain["execution"] = {**light_execution, "steps": [self._step(step) for step in execution.steps]}
        return plain

    def request(self, request: InferenceRequest) -> dict[str, Any]:
        """Return a request as plain data."""
        light: dict[str, Any] = to_plain(evolve(request, messages=()))
        return {**light, "messages": [self.message(message) for message in request.messages]}

    def message(self, message: Message) -> Any:
        """Return a message as plain data."""
        known = self._messages.get(id(message))
        if known is None:
            parts = [_timeless_exchange(part) if isinstance(part, ToolExchange) else part for part in message.parts]
            known = self._messages[id(message)] = (
                message,
                self._intern(_without_times(to_plain(evolve(message, parts=parts)))),
            )
        return known[1]

    def _step(self, step: AgentStep) -> Any:
        known = self._steps.get(id(step))
        if known is None:
            turn = step.open_turn
            if turn is not None:
                turn = turn.with_slots([_comparable_slot(slot) for slot in turn.slots])
            # Nothing starts early in a replay, so nothing is discarded.
            bare = evolve(step, id="", message=None, open_turn=turn, discarded_calls=())
            plain: dict[str, Any] = to_plain(evolve(bare, started_at=_EPOCH, ended_at=_EPOCH))
            if step.message is not None:
                plain["message"] = self.message(step.message)
            known = self._steps[id(step)] = (step, self._intern(_without_times(plain)))
        return known[1]

    def _intern(self, plain: Any) -> Any:
        return self._known.setdefault(format_json(plain), plain)


def timeless(execution: ToolExecution) -> ToolExecution:
    """Return an outcome, with those of the calls inside it, without ids and times."""
    inner = [timeless(made) for made in execution.inner]
    return evolve(execution, id="", started_at=_EPOCH, ended_at=_EPOCH, inner=inner)


def _timeless_exchange(exchange: ToolExchange) -> ToolExchange:
    return evolve(exchange, execution=timeless(exchange.execution))


def _comparable_slot(slot: ToolExecution | PendingCall) -> ToolExecution | PendingCall:
    """Return a slot without times; the progress of a pending call can hold some, in a form that only its tool knows."""
    if not isinstance(slot, PendingCall):
        return timeless(slot)
    return evolve(slot, progress=None, settled=[_timeless_exchange(exchange) for exchange in slot.settled])


def _without_times(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _without_times(value) for name, value in plain.items() if not _is_placeholder(name, value)}
    return [_without_times(value) for value in plain] if isinstance(plain, list) else plain


def _is_placeholder(name: str, value: Any) -> bool:
    return name in {"started_at", "ended_at"} and value == _EPOCH.isoformat()


def differences(recorded: Any, replayed: Any, path: str = "") -> Iterator[Difference]:
    """Yield the places where two plain JSON values differ, in order."""
    if is_same_json(recorded, replayed):
        return
    if isinstance(recorded, Mapping) and isinstance(replayed, Mapping):
        for name in dict.fromkeys([*recorded, *replayed]):
            below = f"{path}.{name}" if path else str(name)
            yield from differences(recorded.get(name, NOTHING), replayed.get(name, NOTHING), below)
    elif _is_list(recorded) and _is_list(replayed):
        for index in range(max(len(recorded), len(replayed))):
            then = recorded[index] if index < len(recorded) else NOTHING
            now = replayed[index] if index < len(replayed) else NOTHING
            yield from differences(then, now, f"{path}[{index}]")
    else:
        yield Difference(path, recorded, replayed)


def first_differences(recorded: Any, replayed: Any, path: str) -> tuple[Difference, ...]:
    """Return the first 12 places where two plain JSON values differ."""
    return tuple(islice(differences(recorded, replayed, path), _MAX_DIFFERENCES))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@frozen
class InterceptorChange:
    """A point before and after an interceptor changed it.

    Attributes:
        interceptor: the name of the interceptor.
        point: the name of the point.
        before: the point that the interceptor received.
        after: the point that it returned.
    """

    interceptor: str
    point: str
    before: Point
    after: Point


class InterceptorChanges:
    """The changes that interceptors made in the current step."""

    def __init__(self, cache: PlainDataCache) -> None:
        self._cache = cache
        self._changes: list[InterceptorChange] = []

    def clear(self) -> None:
        """Forget the changes of the step."""
        self._changes = []

    def add(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """Add the change of an interceptor, if it changed anything."""
        if not is_same_json(after, before):
            self._changes.append(InterceptorChange(interceptor, point, before, after))

    def writer_of(self, difference: Difference) -> InterceptorChange | None:
        """Return the last change that wrote the replayed value of a difference; None when no interceptor did."""
        return next((change for change in reversed(self._changes) if self._wrote(change, difference)), None)

    def decider_of(self, key: str) -> InterceptorChange | None:
        """Return the last change of a call, or of the verdict about it, before it ran."""
        for change in reversed(self._changes):
            if isinstance(change.after, BeforeToolUse) and change.after.key == key and _changes_call(change):
                return change
        return None

    def _wrote(self, change: InterceptorChange, difference: Difference) -> bool:
        return any(_covers(written, difference) for written in self._written(change))

    def _written(self, change: InterceptorChange) -> Iterator[Difference]:
        """Yield the places that a change wrote, with their paths in the state or the request."""
        before, after, cache = change.before, change.after, self._cache
        if before.state is not after.state:
            yield from differences(cache.state(before.state), cache.state(after.state), "state")
        if isinstance(before, BeforeInference) and isinstance(after, BeforeInference):
            yield from differences(cache.request(before.request), cache.request(after.request), "request")
        if isinstance(before, AfterInference) and isinstance(after, AfterInference):
            yield from _response_changes(to_plain(before.response), to_plain(after.response))
        if isinstance(before, AfterToolUse) and isinstance(after, AfterToolUse):
            then, now = to_plain(timeless(before.execution)), to_plain(timeless(after.execution))
            yield from _outcome_changes(after.execution.key, then, now)


def _outcome_changes(key: str, before: Any, after: Any) -> Iterator[Difference]:
    """Yield the changes of an outcome; their paths are patterns, marked by `~`: an outcome occurs at several places."""
    within = r"state\..*parts\[\d+\]\.execution\." if parse_key(key) is None else r"state\..*\.execution\."
    within += r"inner\[\d+\]\." if outer_key(key) else ""
    for change in differences(before, after):
        yield Difference(f"~{within}{re.escape(change.path)}", change.recorded, change.replayed)


def _response_changes(before: Any, after: Any) -> Iterator[Difference]:
    """Yield the changes of a response, which can occur anywhere in the newest message and step."""
    for change in differences(before, after):
        yield Difference(r"~state\..*", change.recorded, change.replayed)


def _covers(written: Difference, difference: Difference) -> bool:
    """Return whether a change explains a difference: it wrote the place, or one that contains it, with the present value."""
    path = difference.path
    if written.path.startswith("~"):
        return re.match(written.path[1:], path) is not None and _contains(written.replayed, difference.replayed)
    return path == written.path or path.startswith((f"{written.path}.", f"{written.path}["))


def _contains(written: Any, value: Any) -> bool:
    if written is NOTHING or value is NOTHING:
        return True
    return format_json(value) in format_json(written) or format_json(written) in format_json(value)


def _changes_call(change: InterceptorChange) -> bool:
    before, after = change.before, change.after
    assert isinstance(before, BeforeToolUse)  # noqa: S101  # an interceptor returns a point of the type that it receives
    assert isinstance(after, BeforeToolUse)  # noqa: S101
    return not is_same_json(before.verdict, after.verdict) or before.call != after.call


Mask = Callable[[dict[str, Any]], dict[str, Any]]
"""Masks plain JSON data as the journal masks records."""


class Comparison:
    """Compares a run with the record; each method returns the divergence that it finds, or None.

    Args:
        mask: masks replayed data as the record is masked; None without redaction.
        skipped: returns the names of the interceptors that are left out.

    Attributes:
        changes: the changes that interceptors made in the current step.
    """

    def __init__(self, mask: Mask | None, skipped: Callable[[], tuple[str, ...]]) -> None:
        self._cache = PlainDataCache()
        self._mask = mask
        self._skipped = skipped
        self.changes: InterceptorChanges = InterceptorChanges(self._cache)

    def states(self, recorded: AgentState, replayed: AgentState) -> Divergence | None:
        """Compare two states after the same step."""
        cache = self._cache
        found = self._differences(cache.state(recorded), cache.state(replayed), "state")
        return self._divergence(found, recorded.step_count, None) if found else None

    def requests(
        self, recorded: RecordedRequest, request: InferenceRequest, place: tuple[int, int]
    ) -> Divergence | None:
        """Compare a request with the recorded one; `place` is the number of the step and the index of the inference."""
        cache = self._cache
        found = self._differences(cache.request(recorded.request), cache.request(request), "request")
        return self._divergence(found, *place) if found else None

    def renderings(
        self, recorded: dict[str, Any] | None, replayed: dict[str, Any] | None, place: tuple[int, int]
    ) -> Divergence | None:
        """Compare the forms in which a driver sends its requests."""
        then, now = (NOTHING if form is None else form for form in (recorded, replayed))
        found = self._differences(then, now, "rendering")
        if not found:
            return None
        return evolve(self._divergence(found, *place), reason="the driver renders its requests differently")

    def calls(self, recorded: RecordedCall, intent: CallIntent) -> Divergence | None:
        """Compare a call with the recorded one."""
        then, now = recorded.intent.call, intent.call
        if is_same_call(then, now):
            return None
        step, index = parse_key(intent.key) or (0, 0)
        found = self._differences(_plain_call(then), _plain_call(now), f"calls[{index}]")
        divergence = self._divergence(found, step, index)
        change = self.changes.decider_of(intent.key)
        if change is None:
            return divergence
        return evolve(divergence, interceptor=change.interceptor, point=change.point)

    def not_run(self, recorded: RecordedCall, state: AgentState, step: int) -> Divergence:
        """Return the divergence of a recorded call that the run does not make."""
        key = recorded.intent.key
        index = (parse_key(key) or (0, 0))[1]
        last = state.last_step
        executions, pending = (last.executions, last.pending) if last is not None else ((), ())
        execution = next((execution for execution in executions if execution.key == key), None)
        now = "waits for a decision" if any(call.key == key for call in pending) else "is not made"
        if execution is not None:
            now = f"is {execution.status.value}" + (f": {execution.error.message}" if execution.error else "")
        change = self.changes.decider_of(key)
        difference = Difference(f"calls[{index}]", f"{recorded.intent.call.name} ran", now)
        return Divergence(
            step=step,
            index=index,
            place=difference.path,
            recorded=difference.recorded,
            replayed=difference.replayed,
            interceptor=change.interceptor if change is not None else "",
            point=change.point if change is not None else "",
            differences=(difference,),
        )

    def _divergence(self, found: tuple[Difference, ...], step: int, index: int | None) -> Divergence:
        first = found[0]
        change = self.changes.writer_of(first)
        reason = ""
        if change is None and first.path.startswith("state") and (skipped := self._skipped()):
            reason = f"{' and '.join(skipped)}, which may have written it, has side effects and was left out"
        if _LABEL.search(first.path):
            is_lowered = any(each.replayed is NOTHING for each in found if _LABEL.search(each.path))
            reason = "a label is lowered: what was foreign is not now" if is_lowered else "a label is raised"
        return Divergence(
            step=step,
            index=index,
            place=first.path,
            recorded=first.recorded,
            replayed=first.replayed,
            interceptor=change.interceptor if change is not None else "",
            point=change.point if change is not None else "",
            reason=reason,
            differences=found,
        )

    def _differences(self, recorded: Any, replayed: Any, path: str) -> tuple[Difference, ...]:
        if is_same_json(recorded, replayed):
            return ()
        if self._mask is not None:
            replayed = self._mask({"value": replayed})["value"]
        return first_differences(recorded, replayed, path)


def blocked_divergence(operation: BlockedOperation, step: RecordedStep) -> Divergence:
    """Return the divergence of an operation whose side effect was blocked."""
    source = "the driver, its compiler or its tools"
    if operation.interceptor:
        source = f"{operation.interceptor} at {operation.point}"
    hint = "an interceptor that declares `has_side_effects = True` is left out of replays"
    return Divergence(
        step=step.number,
        place="side_effect",
        recorded=NOTHING,
        replayed=str(operation),
        interceptor=operation.interceptor,
        point=operation.point,
        reason=f"{source} was about to have a side effect: {operation}; {hint}",
    )


def _plain_call(call: ToolCall) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(call)
    try:
        plain["arguments"] = to_plain(call.arguments)
    except ValueError:
        return plain
    plain.pop("arguments_json", None)
    return plain
