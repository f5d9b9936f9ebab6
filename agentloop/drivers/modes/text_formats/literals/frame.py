"""A container that is being read."""

from __future__ import annotations

from typing import Literal

from agentloop.drivers.modes.text_formats.literals.nodes import ReadContainer

Expected = Literal["first", "next", "colon", "value", "separator"]


class Frame:
    """A container, and what may come next in it."""

    __slots__ = ("commas", "expected", "joined", "key", "node", "opener")

    def __init__(self, opener: str, node: ReadContainer) -> None:
        self.opener: str = opener
        self.node: ReadContainer = node
        self.expected: Expected = "first"
        self.key: str = ""
        self.commas: int = 0
        self.joined: int = -1  # how many texts were joined to the last value; -1 when that is no text
