"""The folder that the processes of one trial share, and the point at which one of them kills itself."""

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

from tests.durability.job import Manner


class Effect(TypedDict):
    """A line of the ledger: an effect of a tool.

    Attributes:
        key: the idempotency key of the call.
        tool: the name of the tool.
        effect: the kind of effect that the tool declares.
        pid: the id of the process in which it ran.
    """

    key: str
    tool: str
    effect: str
    pid: int


@define
class TrialFolder:
    """Files that outlive the processes of a trial.

    Attributes:
        folder: the path of the folder.
        kill_point: the point at which the process kills itself; empty for never.
        manner: how it does so.
        recovers: whether the process recovers the execution.
        counts: how often each point was reached in this process.
        is_dying: whether the process has reached its kill point.
    """

    folder: Path
    kill_point: str = ""
    manner: Manner = "kill"
    recovers: bool = False
    counts: Counter[str] = field(factory=Counter)
    is_dying: bool = False
    _lock: Lock = field(factory=Lock)

    @property
    def journal(self) -> Path:
        """The path with which the process opens the journal."""
        file = self.folder / "journal.db"
        if not self.recovers or self.manner != "symlink":
            return file
        link = self.folder / "link.db"
        if not link.is_symlink():
            link.symlink_to(file)
        return link

    def reach(self, point: str) -> None:
        """Kill the process if this is its kill point, and otherwise record that the point was reached."""
        with self._lock:
            self.counts[point] += 1
            name = point if self.counts[point] == 1 else f"{point} #{self.counts[point]}"
            if name == self.kill_point:
                self._append_line("killed", name)
                self.is_dying = True
                os.kill(os.getpid(), signal.SIGTERM if self.manner == "terminate" else signal.SIGKILL)
            self._append_line("points", name)

    def add_effect(self, key: str, tool: str, effect: str) -> None:
        """Have an effect: add a line to the ledger, which is on the disk when this returns."""
        line = json.dumps(Effect(key=key, tool=tool, effect=effect, pid=os.getpid()))
        self._append_line("ledger", line, sync=True)

    def effects(self) -> list[Effect]:
        """Return the ledger."""
        return [json.loads(line) for line in self.lines("ledger")]

    def note(self, name: str, text: str) -> None:
        """Append a line to a file."""
        self._append_line(name, text)

    def lines(self, name: str) -> Sequence[str]:
        """Return the lines of a file; empty when it does not exist."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else ()

    def _append_line(self, name: str, line: str, *, sync: bool = False) -> None:
        file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{line}\n".encode())  # a single write, so that a kill leaves no partial line
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
