"""A terminal with a person in front of it, who remembers what was on the screen."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

from agentloop import to_json
from agentloop.values import PendingCall
from tests.limits import LONGEST
from tests.loaded import loaded_python

QUESTION = re.compile(r"\(v\)iew\s+again:\s*$")  # rich breaks it between words
PAGER = re.compile(r"(^|\n)Enter( goes on \([0-9,]+ of [0-9,]+ rows\))?:\s*$")
_HEAD = re.compile(r" waits: (it asks|a call of '.*' needs approval)$")
_PROMPT_ROWS = 5  # of a prompt on a narrow screen
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@define
class Row:
    """A row that was printed.

    Attributes:
        text: its characters.
        is_seen: whether a person has had it in view while the program waited.
    """

    text: str = ""
    is_seen: bool = False


@define
class Screen:
    """What a terminal shows: the last rows of what was printed. It wraps a row that is too long, and interprets colors alone.

    Attributes:
        width: its columns.
        height: its rows.
        wide: whether characters of ambiguous width take two columns.
        rows: all rows.
        printed: the number of characters that were printed.
    """

    width: int
    height: int
    wide: bool = False
    rows: list[Row] = field(factory=lambda: [Row()])
    printed: int = 0
    _column: int = 0

    def print(self, text: str) -> None:
        """Print a text at the cursor."""
        self.printed += len(text)
        for char in _ESCAPE.sub("", text):
            if char == "\n":
                self.rows.append(Row())
                self._column = 0
            elif char == "\r":
                self._column = 0
            else:
                self._put(char)

    def _put(self, char: str) -> None:
        assert char.isprintable(), f"the terminal would interpret {char!r}"
        cells = self._cells(char)
        if self._column + cells > self.width:
            self.rows.append(Row())
            self._column = 0
        self.rows[-1].text += char
        self._column += cells

    def _cells(self, char: str) -> int:
        if unicodedata.combining(char):
            return 0
        return 2 if unicodedata.east_asian_width(char) in ({"W", "F", "A"} if self.wide else {"W", "F"}) else 1

    def look(self) -> str:
        """Remember the rows that are on the screen, and return them."""
        shown = self.rows[-self.height :]
        for row in shown:
            row.is_seen = True
        return "\n".join(row.text for row in shown)


@define
class Person:
    """Somebody at the terminal of a program.

    Attributes:
        screen: what they see.
    """

    screen: Screen
    _outer: int
    _decided: Path
    _answered: int = 0
    _rest: str = ""
    _decoder: codecs.IncrementalDecoder = field(factory=codecs.getincrementaldecoder("utf-8"))

    def wait(self) -> str:
        """Wait until the program asks for something, and return what is on the screen then; nothing when it has ended."""
        while True:
            shown = "\n".join([row.text for row in self.screen.rows[-_PROMPT_ROWS:]])
            # What is typed is printed, too, behind the prompt that it answers.
            if self.screen.printed > self._answered and (QUESTION.search(shown) or PAGER.search(shown)):
                return self.screen.look()
            if not self._print():
                return ""

    def wait_for_decisions(self, count: int) -> None:
        """Wait until so many decisions are taken; the program prints something after each."""
        while len(self.decisions()) < count and self._print():
            pass

    def wait_for(self, text: str) -> None:
        """Wait until a text is printed, or the program has ended."""
        while not any(text in row.text for row in self.screen.rows) and self._print():
            pass

    def _print(self) -> bool:
        """Print what comes next of the program; return False when it has ended."""
        ready, _, _ = select.select([self._outer], [], [], LONGEST)
        assert ready, "the program neither prints nor ends"
        try:
            piece = os.read(self._outer, 1 << 20)
        except OSError:
            return False
        # A piece may end in the middle of a character or of a sequence.
        text = self._rest + self._decoder.decode(piece)
        whole, start, rest = text.rpartition("\x1b")
        self._rest = f"{start}{rest}" if start and not _ESCAPE.match(f"{start}{rest}") else ""
        self.screen.print(whole if self._rest else text)
        return True

    def type(self, text: str) -> None:
        """Type something, as one does without waiting."""
        self._answered = self.screen.printed
        os.write(self._outer, text.encode())

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        self.screen.width, self.screen.height = width, height
        fcntl.ioctl(self._outer, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def decisions(self) -> list[tuple[str, str]]:
        """Return the decisions that were taken so far."""
        if not self._decided.exists():
            return []
        return [tuple(json.loads(line)) for line in self._decided.read_text("utf-8").splitlines()]

    def read(self) -> str:
        """Return the text of the call that was printed last, as far as it was seen while the program waited.

        Rows that begin deeper than an argument continue the one above.
        """
        lines = [""]
        for row in self.screen.rows:
            if row.is_seen and row.text.startswith("    "):
                lines[-1] += row.text[4:]
            elif row.is_seen and not row.text.startswith("Enter"):  # the prompt between two screens
                lines.append(row.text)
        head = max([number for number, line in enumerate(lines) if _HEAD.search(line)], default=0)
        return "\n".join([_HEAD.sub("", lines[head]), *[line for line in lines[head + 1 :] if line.startswith("  ")]])


@contextmanager
def asked(
    approver: str, calls: Sequence[PendingCall], folder: Path, *, size: tuple[int, int] = (80, 24), wide: bool = False
) -> Iterator[Person]:
    """Start a program that asks about calls, with a terminal of a size in columns and rows."""
    (folder / "calls").write_bytes(b"\n".join(to_json(call) for call in calls))
    with at_terminal(
        loaded_python("-m", "tests.display.asker", approver, str(folder)), folder, size=size, wide=wide
    ) as person:
        yield person


@contextmanager
def at_terminal(
    command: Sequence[str], folder: Path, *, size: tuple[int, int] = (80, 24), wide: bool = False
) -> Iterator[Person]:
    """Start a command at a terminal of a size in columns and rows, which is closed at the end."""
    outer, inner = pty.openpty()
    person = Person(Screen(*size, wide=wide), outer, folder / "decided")
    person.resize(*size)
    env = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"}
    for name in ("COLUMNS", "LINES"):
        env.pop(name, None)
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=env) as process:
        os.close(inner)
        try:
            yield person
        finally:
            os.close(outer)  # the program reads the end of its input
            try:
                process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                process.kill()
