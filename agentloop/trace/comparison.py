"""Compares two traces, and finds the first place where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from agentloop.replay.comparison import differences
from agentloop.replay.divergence import NOTHING, render_side
from agentloop.trace.document import (
    Trace,
    TraceCall,
    TraceComparison,
    TraceDivergence,
    TraceExecution,
    TraceInference,
)
from agentloop.trace.entries import range_indexes

_SETTINGS = ("system_prompt", "tools", "tool_choice", "parallel_tool_calls", "response_format", "options")


def compare_traces(left: Trace, right: Trace) -> TraceComparison:
    """Return a second trace with the first place where its execution differs from that of the first one.

    Compared are the input, then step by step the requests, the responses, the calls and their outcomes, and at last the end. Times,
    ids and tokens do not count, nor do the executions of sub-agents, whose results are the outcomes of calls.

    Args:
        left: a whole trace.
        right: the second trace, also whole.
    """
    return {
        "trace": right,
        "divergence": _first_divergence(_Side(left["executions"][0]), _Side(right["executions"][0])),
    }


class _Side:
    """What is compared of an execution, by step."""

    def __init__(self, execution: TraceExecution) -> None:
        self.execution = execution
        self._seen = -1
        self.inferences: dict[int, list[TraceInference]] = {}
        for inference in execution["inferences"]:
            if not inference["is_superseded"]:
                self.inferences.setdefault(inference["step"], []).append(inference)
        self.calls: dict[int, list[TraceCall]] = {}
        for call in sorted(execution["calls"], key=lambda each: (each["step"], each["key"].count("/"), each["index"])):
            self.calls.setdefault(call["step"], []).append(call)

    @property
    def step_count(self) -> int:
        """The number of the last step, complete or not."""
        return max([0, *self.inferences, *self.calls])

    def parts_of(self, step: int) -> Iterator[tuple[str, int, Any]]:
        """Yield what is compared of a step, in order: its kind, its index, and the content."""
        for index, inference in enumerate(self.inferences.get(step, ())):
            yield "request", index, self._request(inference)
            yield "response", index, {"parts": inference["response"], "error": inference["error"]}
        for index, call in enumerate(self.calls.get(step, ())):
            yield "call", index, {"name": call["name"], "arguments": call["arguments"]}
            names = ("status", "value", "content", "error")
            yield "outcome", index, {name: call[name] for name in names}  # type: ignore[literal-required]  # of the list

    def _request(self, inference: TraceInference) -> Mapping[str, Any]:
        settings = self.execution["settings"][inference["settings"]]
        every = tuple(range_indexes(inference["messages"]))
        # Messages that an earlier request had were compared with it.
        indexes = [index for index in every if index > self._seen]
        self._seen = max([self._seen, *indexes])
        added = {f"messages[{index}]": self._message(index) for index in indexes}
        return {**{name: settings[name] for name in _SETTINGS}, "message_count": len(every), **added}  # type: ignore[literal-required]  # of the list

    def _message(self, index: int) -> Mapping[str, Any]:
        message = self.execution["messages"][index]
        prefix = len(self.execution["id"])
        # A key begins with the id of its execution, which is not compared.
        parts = [{**part, "key": part["key"][prefix:]} if part["type"] == "call" else part for part in message["parts"]]
        return {"role": message["role"], "parts": parts}


def _first_divergence(left: _Side, right: _Side) -> TraceDivergence | None:
    started = _difference(0, "input", None, left.execution["input"], right.execution["input"])
    if started is not None:
        return started
    for step in range(1, max(left.step_count, right.step_count) + 1):
        for one, two in zip_longest(left.parts_of(step), right.parts_of(step)):
            found = _difference_of_parts(step, one, two)
            if found is not None:
                return found
    ends = [{name: side.execution[name] for name in ("status", "output")} for side in (left, right)]
    return _difference(left.step_count, "end", None, *ends)


def _difference_of_parts(
    step: int, left: tuple[str, int, Any] | None, right: tuple[str, int, Any] | None
) -> TraceDivergence | None:
    what, index, _ = left or right or ("", 0, None)
    if left is not None and right is not None and left[:2] == right[:2]:
        return _difference(step, what, index, left[2], right[2])
    sides = [NOTHING if side is None else {side[0]: side[2]} for side in (left, right)]
    return _difference(step, what, index, *sides)


def _difference(step: int, what: str, index: int | None, left: Any, right: Any) -> TraceDivergence | None:
    first = next(differences(left, right), None)
    if first is None:
        return None
    one, two = first.recorded, first.replayed
    return {
        "step": step,
        "what": what,
        "path": first.path,
        "left": None if one is NOTHING else render_side(one, two),
        "right": None if two is NOTHING else render_side(two, one),
        "index": index,
    }
