"""Sequences told by what they keep of an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import is_
from typing import Any, TypeVar

from agentloop.journal.sameness import same

T = TypeVar("T")


def kept(before: Sequence[T], after: Sequence[T]) -> int:
    """Return how many items at the beginning of `after` are those of `before`."""
    if len(after) >= len(before) and all(map(is_, before, after)):
        return len(before)
    count = 0
    for one, other in zip(before, after, strict=False):
        if not same(one, other, ordered=True):
            break
        count += 1
    return count


def told(before: Sequence[T], after: Sequence[T], tell: Callable[[T], Any]) -> dict[str, Any] | None:
    """Return, as plain JSON data, how to make `after` of `before`; None when they are the same.

    Args:
        before: the earlier sequence.
        after: the later one.
        tell: turns an item into plain JSON data.
    """
    keep = kept(before, after)
    if keep == len(before) == len(after):
        return None
    return {"keep": keep, "add": [tell(item) for item in islice(after, keep, None)]}


def remade(before: Sequence[T], change: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the later sequence of an earlier one and what `told` made of the two."""
    if change is None:
        return tuple(before)
    return (*before[: change["keep"]], *[read(item) for item in change["add"]])
