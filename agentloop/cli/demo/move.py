"""What the scripted model says next, before it is put into the notation that it is asked for."""

from __future__ import annotations

from typing import Any, TypeAlias

from attrs import frozen

Called: TypeAlias = tuple[str, dict[str, Any]]
"""The name of a tool, and arguments."""


@frozen
class Move:
    """Words and calls; words without calls are the answer.

    Attributes:
        text: the words.
        calls: the calls.
    """

    text: str
    calls: tuple[Called, ...] = ()
