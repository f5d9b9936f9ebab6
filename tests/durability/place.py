"""The folder that the processes of one trial share, and the moment at which one of them is to die."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TypedDict

from attrs import define, field


class Effect(TypedDict):
    """A line of the ledger: what a tool has done to the world.

    Attributes:
        key: the idempotency key of the call.
        tool: the tool.
        effect: what kind of effect the tool declares.
        pid: the process that it ran in.
    """

    key: str
    tool: str
    effect: str
    pid: int


@define
class Place:
    """What a process of a trial has of the world outside: files that outlive it.

    Attributes:
        folder: where they are.
        dies_at: the name of the moment at which the process kills itself; empty for never.
        moments: how often each moment was reached in this process.
    """

    folder: Path
    dies_at: str = ""
    moments: Counter[str] = field(factory=Counter)
    _lock: Lock = field(factory=Lock)

    def reach(self, moment: str) -> None:
        """Die if this is the moment; else write down that it was reached."""
        with self._lock:
            self.moments[moment] += 1
            name = moment if self.moments[moment] == 1 else f"{moment} #{self.moments[moment]}"
            if name == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._add("moments", name)

    # --- files --------------------------------------------------------------------------------------------------

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.folder / "journal.db"

    def have_effect(self, key: str, tool: str, effect: str) -> None:
        """Do something to the world: a line in the ledger, that is on disk when this returns."""
        self._add("ledger", json.dumps(Effect(key=key, tool=tool, effect=effect, pid=os.getpid())), lasting=True)

    def effects(self) -> list[Effect]:
        """Return the ledger."""
        return [json.loads(line) for line in self.lines("ledger")]

    def note(self, name: str, text: str) -> None:
        """Add a line to one of the files."""
        self._add(name, text)

    def lines(self, name: str) -> Sequence[str]:
        """Return the lines of one of the files; none when there is no such file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else ()

    def _add(self, name: str, line: str, *, lasting: bool = False) -> None:
        file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{line}\n".encode())  # one write: whole lines, whoever dies
            if lasting:
                os.fsync(file)
        finally:
            os.close(file)
