"""The ledger of a chaos run: one file that all processes append to, on the disk before and after each effect.

Every line has the same length, so that the position after a write says which line of the file it was. A process that has written a
line of the plan sends itself the signal of the plan at once: faults happen at lines, not at times, and a run can be repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from attrs import asdict, define, field, frozen

WIDTH = 320
"""Bytes of a line, with its end."""

BEFORE, EFFECT, AFTER = "before", "effect", "after"
"""The phases of a call: its tool has begun, its effect has happened, its tool is about to return."""
INFERENCE, OUTCOME, STEP, ENDED = "inference", "outcome", "step", "ended"
"""What a worker reports of an execution: a request, the outcome of a call, the end of a step, the end of the execution."""

_DURABLE = frozenset({BEFORE, EFFECT, AFTER})
Plan: TypeAlias = Mapping[str, str]
"""The signals that processes send themselves, by the number of the ledger's line, as in `137`, or by an execution and the number of
the line among its own, as in `run-04:7`."""


def at_lines(numbers: Iterable[int], signal_name: str) -> Plan:
    """Return a plan by which the processes that write these lines send themselves a signal."""
    return dict.fromkeys(map(str, numbers), signal_name)


@frozen(kw_only=True)
class Line:
    """A line of the ledger.

    Attributes:
        phase: what happened.
        key: the idempotency key of the call; for lines of an execution, its id.
        tool: the name of the tool.
        effect: the effect that the tool declares.
        token: the token of the claim under which the call runs; None if it is unknown.
        worker: the name of the worker.
        pid: the id of the process.
    """

    phase: str
    key: str
    tool: str = ""
    effect: str = ""
    token: int | None = None
    worker: str = ""
    pid: int = field(factory=os.getpid)


class Refused(Exception):
    """A service refuses an effect of an earlier claim than the one that has asked about it."""


@define
class Ledger:
    """The files that the processes of a chaos run share.

    Attributes:
        folder: where they are.
        worker: the name of the worker that writes.
    """

    folder: Path
    worker: str = ""
    _plan: dict[str, str] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Read the plan."""
        path = self.folder / "plan.json"
        if path.exists():
            self._plan = json.loads(path.read_text())

    def plan(self, plan: Plan) -> None:
        """Write the plan for the processes that start later."""
        (self.folder / "plan.json").write_text(json.dumps(dict(plan)))

    def write(self, phase: str, key: str, *, tool: str = "", effect: str = "", token: int | None = None) -> None:
        """Append a line, and send this process a signal if the plan says so."""
        line = Line(phase=phase, key=key, tool=tool, effect=effect, token=token, worker=self.worker)
        text, execution_id = json.dumps(asdict(line)), key.split("/", maxsplit=1)[0]
        numbers = [str(self._append("ledger", text, is_durable=phase in _DURABLE))]
        if self._counts_executions:
            numbers.append(f"{execution_id}:{self._append(f'of {execution_id}', text, is_durable=False)}")
        for number in self._plan.keys() & set(numbers):
            name = self._plan[number]
            self._append("signals", json.dumps({"number": number, "signal": name, **asdict(line)}), is_durable=True)
            os.kill(os.getpid(), signal.Signals[name])

    @property
    def _counts_executions(self) -> bool:
        return any(":" in number for number in self._plan)

    def write_fenced(self, key: str, token: int, *, tool: str, effect: str) -> None:
        """Have an effect as a service does that checks tokens.

        Raises:
            Refused: a later claim has asked about the call, and was told that it had not happened.
        """
        with self._one_at_a_time():
            if any(fence > token for fence in self._fences(key)):
                raise Refused(f"a later claim than {token} has asked about {key}")
            self.write(EFFECT, key, tool=tool, effect=effect, token=token)

    def ask(self, key: str, token: int) -> bool:
        """Return whether a call has had its effect; if not, it cannot have it any more under an earlier claim than this one."""
        with self._one_at_a_time():
            if self.effects()[key]:
                return True
            self.note("fences", f"{token} {key}")
            return False

    def _fences(self, key: str) -> Sequence[int]:
        entries = [text.split(" ", 1) for text in self.notes("fences")]
        return [int(token) for token, fenced in entries if fenced == key]

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with (self.folder / "service.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # ends with the process, too
            yield

    def note(self, name: str, text: str) -> None:
        """Append a text, which has no line breaks, to another file."""
        with (self.folder / name).open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode())

    def notes(self, name: str) -> Sequence[str]:
        """Return the texts of such a file; empty if there is none."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else ()

    @property
    def count(self) -> int:
        """The number of lines."""
        path = self.folder / "ledger"
        return path.stat().st_size // WIDTH if path.exists() else 0

    def lines(self) -> Sequence[Line]:
        """Return all lines."""
        return [Line(**json.loads(text)) for text in self.notes("ledger")]

    def signals(self) -> Sequence[Mapping[str, object]]:
        """Return the signals that processes have sent themselves, each with the number and the content of its line."""
        return [json.loads(text) for text in self.notes("signals")]

    def effects(self) -> Counter[str]:
        """Return how often each call has had its effect, by key."""
        return Counter(line.key for line in self.lines() if line.phase == EFFECT)

    def _append(self, name: str, text: str, *, is_durable: bool) -> int:
        """Append a line in a single write, and return its 1-based number."""
        data = text.encode().ljust(WIDTH - 1) + b"\n"
        assert len(data) == WIDTH, f"the line is too long: {text}"
        file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, data)
            # With O_APPEND the position after the write is that of the end of this line, whoever else writes.
            position = os.lseek(file, 0, os.SEEK_CUR)
            if is_durable:
                os.fsync(file)
        finally:
            os.close(file)
        return position // WIDTH
