"""Where a replayed run differs from the recorded one."""

from __future__ import annotations

from typing import Any, Final

from attrs import field, frozen

from agentloop.values.rendering import render_value
from agentloop.values.value import Value

_MAX_SHOWN = 80


class _Nothing:
    """The type of `NOTHING`."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
"""The value of a place that does not exist on one side of a difference."""


@frozen(eq=False, repr=False)
class Difference(Value):
    """One place where two plain JSON values differ.

    Attributes:
        path: the path of the place, such as `state.context.messages[4].parts[0].text`.
        recorded: the recorded value; `NOTHING` when there is none.
        replayed: the value under today's code; `NOTHING` when there is none.
    """

    path: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"{self.path} differs: {render_side(self.recorded, self.replayed)} → {render_side(self.replayed, self.recorded)}"


@frozen(eq=False, repr=False, kw_only=True)
class Divergence(Value):
    """The first place where today's code behaves differently from the record.

    Attributes:
        step: the 1-based number of the step; 0 before the first step.
        index: the 0-based index of the inference or call within the step; None for anything else.
        place: what differs: `request…`, `rendering…`, `inference`, `calls[…]…`, `state…`, `stop`, `side_effect` or `error`,
            followed by the path within it, such as `request.tools[1].description`.
        recorded: the recorded value.
        replayed: the value under today's code.
        interceptor: the interceptor that wrote the value or had the side effect; empty when it is unknown or there is none.
        point: the point at which it did.
        reason: further explanation: a missing interceptor, why the run stopped, which side effect was blocked.
        differences: the first 12 places that differ.
        changes: how the composition of the loop has changed.
    """

    step: int
    index: int | None = None
    place: str
    recorded: Any = NOTHING
    replayed: Any = NOTHING
    interceptor: str = ""
    point: str = ""
    reason: str = ""
    differences: tuple[Difference, ...] = field(default=(), converter=tuple[Difference, ...])
    changes: tuple[str, ...] = field(default=(), converter=tuple[str, ...])

    @property
    def where(self) -> str:
        """The step and the part of it, in words."""
        if self.place.startswith("state"):
            return f"after step {self.step}" if self.step else "at the beginning"
        if self.index is None or not self.step:
            return f"step {self.step}"
        return f"step {self.step}, {'call' if self.place.startswith('calls') else 'inference'} {self.index}"

    def __str__(self) -> str:
        text = str(Difference(self.place, self.recorded, self.replayed)) if self.differences else self.reason
        wrote = f"; written by {self.interceptor} at {self.point}" if self.interceptor and self.differences else ""
        more = f"; {self.reason}" if self.reason and self.differences else ""
        return f"{self.where}: {text}{wrote}{more}"

    def explain(self) -> str:
        """Return a report of several lines: all differences, and how the loop has changed."""
        others = [f"  {difference}" for difference in self.differences[1:]]
        changed = [f"  the loop has changed: {change}" for change in self.changes]
        return "\n".join([str(self), *others, *changed])


def render_side(value: Any, other: Any) -> str:
    """Return a value as JSON in which everything is visible, shortened around the first character that differs from the other value."""
    if value is NOTHING:
        return "nothing"
    text = render_value(value)
    if len(text) <= _MAX_SHOWN:
        return text
    other_text = render_value(other) if other is not NOTHING else ""
    at = next((i for i, (one, two) in enumerate(zip(text, other_text, strict=False)) if one != two), 0)
    start = max(min(at - _MAX_SHOWN // 2, len(text) - _MAX_SHOWN), 0)
    end = start + _MAX_SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
