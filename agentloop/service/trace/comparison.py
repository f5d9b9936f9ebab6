"""Compares two traces, and finds the first place where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from agentloop.durable.replaying.comparison import differences
from agentloop.durable.replaying.divergence import NOTHING, render_side
from agentloop.service.trace.document import (
    Trace,
    TraceCall,
    TraceComparison,
    TraceDivergence,
    TraceExecution,
    TraceInference,
)
from agentloop.service.trace.entries import range_indexes
from agentloop.values.batches import parse_key

_SETTINGS = ("system_prompt", "tools", "tool_choice", "parallel_tool_calls", "response_format", "options")


def compare_traces(left: Trace, right: Trace) -> TraceComparison:
    """Return a second trace with the first place where its execution differs from that of the first one.

    Compared are the input, then step by step the requests, the responses, the calls and their outcomes, and at last the end. Times,
    ids and tokens do not count, nor do the executions of sub-agents, whose results are the outcomes of calls. Of the steps that a
    fork has from its original, no requests are recorded with it: their messages are compared in place of the responses.

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
        fork = execution["forked_from"]
        self.taken_steps = 0 if fork is None else fork["step"]  # whose inferences are recorded with the original
        self._messages = {each["number"]: each["message"] for each in execution["steps"]}
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
        return max([0, self.taken_steps, *self.inferences, *self.calls])

    def parts_of(self, step: int, *, is_taken: bool) -> Iterator[tuple[str, int, Any]]:
        """Yield what is compared of a step, in order: its kind, its index, and the content.

        Args:
            step: its number.
            is_taken: whether the inferences of the step are recorded elsewhere, on this side or on the other one.
        """
        if is_taken:
            yield "response", 0, self._message_of(step)
        for index, inference in enumerate(() if is_taken else self.inferences.get(step, ())):
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
        added = {f"messages[{place}]": self._message(index) for place, index in enumerate(every) if index > self._seen}
        self._seen = max([self._seen, *every])
        return {**{name: settings[name] for name in _SETTINGS}, "message_count": len(every), **added}  # type: ignore[literal-required]  # of the list

    def _message(self, index: int) -> Mapping[str, Any]:
        message = self.execution["messages"][index]
        # A key begins with the id of its execution, which is not compared; of a fork, it may be that of the original.
        parts = [
            {**part, "key": list(parse_key(part["key"]) or ())} if part["type"] == "call" else part
            for part in message["parts"]
        ]
        return {"role": message["role"], "parts": parts}

    def _message_of(self, step: int) -> Mapping[str, Any] | None:
        """Return the message of a step; None without one."""
        index = self._messages.get(step)
        return None if index is None else self._message(index)


def _first_divergence(left: _Side, right: _Side) -> TraceDivergence | None:
    started = _difference(0, "input", None, left.execution["input"], right.execution["input"])
    if started is not None:
        return started
    taken = max(left.taken_steps, right.taken_steps)
    for step in range(1, max(left.step_count, right.step_count) + 1):
        sides = [side.parts_of(step, is_taken=step <= taken) for side in (left, right)]
        for one, two in zip_longest(*sides):
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
