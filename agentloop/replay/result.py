"""What a replay comes to."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from agentloop.replay.divergence import Divergence
from agentloop.replay.guard import Touch
from agentloop.values.value import Value


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


def _as_touches(touches: Iterable[Touch]) -> tuple[Touch, ...]:
    return tuple(touches)


@frozen(eq=False, repr=False, kw_only=True)
class Replay(Value):
    """What a replay comes to.

    Attributes:
        execution_id: the execution.
        divergence: the first place where today's code does something else; None when there is none.
        complete: whether the replay came to the end of an execution that has ended, or to where it is suspended.
        ended: why nothing more could be compared, although nothing differs: the record ends, or the execution was stopped from
            outside; empty when all was compared.
        steps: how many steps were compared and are equal.
        inferences: how many inferences were compared.
        calls: how many tool calls were.
        left_out: interceptors that were left out, because they say that they touch the world.
        touches: what was about to touch the world, and was kept from it.
        changes: how the loop is composed otherwise than it was, whether anything differs by it or not.
    """

    execution_id: str
    divergence: Divergence | None = None
    complete: bool = False
    ended: str = ""
    steps: int = 0
    inferences: int = 0
    calls: int = 0
    left_out: tuple[str, ...] = field(default=(), converter=_as_texts)
    touches: tuple[Touch, ...] = field(default=(), converter=_as_touches)
    changes: tuple[str, ...] = field(default=(), converter=_as_texts)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as could be compared."""
        return self.divergence is None

    def __str__(self) -> str:
        compared = f"{self.steps} steps, {self.inferences} inferences, {self.calls} calls"
        if self.divergence is not None:
            return f"{self.execution_id}: diverges after {compared}: {self.divergence}"
        return f"{self.execution_id}: equal over {compared}{f'; {self.ended}' if self.ended else ''}"

    def explain(self) -> str:
        """Return an account of several lines, for a person to read."""
        lines = [str(self)] if self.divergence is None else [self.execution_id, self.divergence.explain()]
        lines += [f"  left out, since it touches the world: {name}" for name in self.left_out]
        if self.divergence is None:
            lines += [f"  the loop has changed: {change}" for change in self.changes]
        return "\n".join(lines)
