"""The contract of journals that keep secrets out of what they hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class CanRedactRecords(ABC):
    """A journal that secrets are declared to; what they stand in is masked before it is hashed and kept."""

    @abstractmethod
    def redacted(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record, plain JSON data, with what is secret masked; the same object when nothing is."""
