"""Who wrote what: what each interceptor made of each point of a turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from agentloop.journal.sameness import same
from agentloop.replay.comparing import Forms, differences, timeless
from agentloop.replay.divergence import NOTHING, Difference
from agentloop.values.json_text import format_json
from agentloop.values.points import AfterInference, AfterToolUse, BeforeInference, BeforeToolUse, Point
from agentloop.values.serialisation import to_plain
from agentloop.values.tool_executions import key_place


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
        if not same(after, before):
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
    place = key_place(key)
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
    return not same(before.verdict, after.verdict) or before.call != after.call
