"""The office of the durable demo: what was done there stands in a ledger that no journal knows of."""

from __future__ import annotations

import json
import os
from pathlib import Path

from attrs import frozen


@frozen
class Done:
    """Something that was done in the world.

    Attributes:
        tool: the tool that did it.
        key: the idempotency key of the call that it was done for.
        about: what it was about.
        process: the id of the process that did it.
    """

    tool: str
    key: str
    about: str
    process: int


@frozen
class Office:
    """An office.

    Attributes:
        ledger: the file of what was done: one line each, which outlasts every process.
        holds: whether tools stop in the middle, after their effect and before they tell of it, so that somebody can kill them.
    """

    ledger: Path
    holds: bool = False

    def do(self, tool: str, key: str, about: str) -> None:
        """Have an effect: from now on it stands in the ledger."""
        line = json.dumps({"tool": tool, "key": key, "about": about, "process": os.getpid()})
        with self.ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(f"{line}\n")
            ledger.flush()
            os.fsync(ledger.fileno())

    def done(self, tool: str, key: str = "") -> list[Done]:
        """Return what a tool has done, for a call, or for any."""
        if not self.ledger.exists():
            return []
        lines = [Done(**json.loads(line)) for line in self.ledger.read_text(encoding="utf-8").splitlines()]
        return [one for one in lines if one.tool == tool and key in {"", one.key}]
