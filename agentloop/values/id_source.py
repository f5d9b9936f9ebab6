"""Where ids come from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod


class IdSource(ABC):
    """Draws ids. Ids are drawn in the order in which calls are admitted, so the same source gives the same run the same ids."""

    @abstractmethod
    def new_id(self, kind: str) -> str:
        """Return an id that was not returned before.

        Args:
            kind: what the id is for: `agent`, `execution`, `step` or `tool_execution`.
        """


class RandomIds(IdSource):
    """Ids of 128 random bits from the operating system, after the kind: `step_6f1d…`."""

    __slots__ = ()

    def new_id(self, kind: str) -> str:
        """Return `kind`, an underscore and 32 hexadecimal digits."""
        return f"{kind}_{os.urandom(16).hex()}"
