"""Containers that know where in the text they stood."""

from __future__ import annotations


class ReadObject(dict[str, object]):
    """An object read from text.

    Attributes:
        start: where it begins.
        end: where it ends.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start: int = start
        self.end: int = start


class ReadArguments(ReadObject):
    """The arguments of a call in Python's notation: those by name as a dict, and those by position.

    Attributes:
        positional: the arguments without a name, in order.
    """

    __slots__ = ("positional",)

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.positional: list[object] = []


class ReadList(list[object]):
    """An array read from text.

    Attributes:
        start: where it begins.
        end: where it ends.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start: int = start
        self.end: int = start


ReadContainer = ReadObject | ReadList
