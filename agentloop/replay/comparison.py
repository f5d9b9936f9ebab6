"""Comparing what today's code does with what is recorded, and naming the first place where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from agentloop.journal.fork_effects import equal_calls
from agentloop.journal.sameness import same
from agentloop.replay.comparing import Forms, first_differences
from agentloop.replay.divergence import NOTHING, Difference, Divergence
from agentloop.replay.guard import Touch
from agentloop.replay.timeline import Asked, Turn
from agentloop.replay.tracing import Traces
from agentloop.values.agent_state import AgentState
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.recorded import CallIntent, RecordedCall
from agentloop.values.serialisation import to_plain
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_executions import key_place

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
        if equal_calls(one, other):
            return None
        step, index = key_place(intent.key) or (0, 0)
        at = f"calls[{index}]"
        found = self._differences(_call(one), _call(other), at)
        trace = self.traces.decider_of(intent.key)
        named = self._named(found, step, index)
        return evolve(named, interceptor=trace.interceptor, point=trace.point) if trace is not None else named

    def not_run(self, recorded: RecordedCall, state: AgentState, step: int) -> Divergence:
        """Name a call that ran and does not run now."""
        key = recorded.intent.key
        index = (key_place(key) or (0, 0))[1]
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
        if same(recorded, replayed):
            return ()
        if self._mask is not None:
            replayed = self._mask({"value": replayed})["value"]
        return first_differences(recorded, replayed, path)


def touched(touch: Touch, turn: Turn) -> Divergence:
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
