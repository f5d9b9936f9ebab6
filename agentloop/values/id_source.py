"""Where ids come from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter


class IdSource(ABC):
    """Draws ids. Ids are drawn in the order in which calls are admitted, so the same source gives the same run the same ids."""

    @abstractmethod
    def new_id(self, kind: str) -> str:
        """Return an id that was not returned before.

        Args:
            kind: what the id is for: `agent`, `execution`, `step` or `tool_execution`.
        """


class DerivedIds(IdSource):
    """Ids that count up after an id that was drawn before, so that what runs side by side draws the same ones in any order.

    Args:
        origin: the id that they are derived from.
    """

    __slots__ = ("_counts", "_origin")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._counts: Counter[str] = Counter()

    def new_id(self, kind: str) -> str:
        """Return the next one: `origin/step_1`, `origin/step_2`."""
        self._counts[kind] += 1
        return f"{self._origin}/{kind}_{self._counts[kind]}"


class RandomIds(IdSource):
    """Ids of 128 random bits from the operating system, after the kind: `step_6f1d…`."""

    __slots__ = ()

    def new_id(self, kind: str) -> str:
        """Return `kind`, an underscore and 32 hexadecimal digits."""
        return f"{kind}_{os.urandom(16).hex()}"
