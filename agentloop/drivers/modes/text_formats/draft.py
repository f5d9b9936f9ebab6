"""A call as its notation has it, before it is held against the offered tools."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeAlias

from attrs import frozen


@frozen
class Draft:
    """What a notation says about a call.

    Attributes:
        name: the tool's name.
        arguments: the arguments by name.
        start: where the call begins.
        end: where it ends.
        raw: the arguments as they stand in the text, when that is JSON without a fault; else empty.
        repairs: what had to be mended.
        positional: arguments without a name, in order.
        is_python: whether it is written as a call in Python's notation.
        untyped: names of arguments that are text only because the notation has nothing else.
    """

    name: str
    arguments: Mapping[str, object]
    start: int
    end: int
    raw: str = ""
    repairs: tuple[str, ...] = ()
    positional: tuple[object, ...] = ()
    is_python: bool = False
    untyped: frozenset[str] = frozenset()


@frozen
class Outcome:
    """How an attempt to read calls ended.

    Attributes:
        end: where to go on: behind the calls, or behind what is certainly none; the place where it began if neither.
        refusal: why something that looked like a call was not read; empty when nothing looked like one.
        reached: how far the text was looked at, when that is further than `end`.
    """

    end: int
    refusal: str = ""
    reached: int = 0


Attempt: TypeAlias = Generator[Draft | None, None, Outcome]
"""Reading that hands over each call when it is complete, and gives None wherever it has to wait for more text."""
