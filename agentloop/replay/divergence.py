"""What differs between a recorded run and the same run under today's code."""

from __future__ import annotations

from typing import Any, Final

from attrs import field, frozen

from agentloop.values.json import format_json
from agentloop.values.value import Value

_SHOWN = 80


class _Nothing:
    """Stands for what is not there."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
"""What stands in a difference for something that is not there."""


@frozen(eq=False, repr=False)
class Difference(Value):
    """One place where plain JSON data differ.

    Attributes:
        path: the place, such as `state.context.messages[4].parts[0].text`.
        recorded: what is recorded there; `NOTHING` when nothing is.
        replayed: what today's code makes there; `NOTHING` when nothing.
    """

    path: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"{self.path} differs: {_shown(self.recorded, self.replayed)} → {_shown(self.replayed, self.recorded)}"


@frozen(eq=False, repr=False, kw_only=True)
class Divergence(Value):
    """The first place where today's code does something else than is recorded.

    Attributes:
        step: the number of the step; 0 for the beginning of the execution.
        index: which inference of the step, or which call, from 0; None where it is neither.
        place: what differs: `request…`, `asked…`, `inference`, `calls[…]…`, `state…`, `stop`, `world` or `error`. What follows
            is the path in it, such as `request.tools[1].description`.
        recorded: what is recorded there.
        replayed: what today's code makes there.
        interceptor: the interceptor that wrote what differs, or that touched the world; empty when none did, or it is not known.
        point: the point at which it did.
        reason: what is to be said besides: that an interceptor is not there any more, why the run stopped, what was touched.
        differences: the first dozen of all places that differ.
        changes: how the loop is composed otherwise than it was.
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
        """The step, and what of it, in words."""
        if self.place.startswith("state"):
            return f"after step {self.step}" if self.step else "at the beginning"
        if self.index is None or not self.step:
            return f"step {self.step}"
        return f"step {self.step}, {'call' if self.place.startswith('calls') else 'inference'} {self.index}"

    def __str__(self) -> str:
        told = str(Difference(self.place, self.recorded, self.replayed)) if self.differences else self.reason
        wrote = f"; written by {self.interceptor} at {self.point}" if self.interceptor and self.differences else ""
        more = f"; {self.reason}" if self.reason and self.differences else ""
        return f"{self.where}: {told}{wrote}{more}"

    def explain(self) -> str:
        """Return an account of several lines, for a person to read: all that differs, and how the loop has changed."""
        others = [f"  {one}" for one in self.differences[1:]]
        changed = [f"  the loop has changed: {one}" for one in self.changes]
        return "\n".join([str(self), *others, *changed])


def _shown(value: Any, other: Any) -> str:
    """Return data as text, shortened around the first place where two texts differ."""
    if value is NOTHING:
        return "nothing"
    text = format_json(value).decode()
    if len(text) <= _SHOWN:
        return text
    beside = format_json(other).decode() if other is not NOTHING else ""
    at = next((i for i, (one, two) in enumerate(zip(text, beside, strict=False)) if one != two), 0)
    start = max(min(at - _SHOWN // 2, len(text) - _SHOWN), 0)
    end = start + _SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
