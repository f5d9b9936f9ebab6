"""Where a streamed answer is shown, at a terminal of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from tempfile import TemporaryFile

import pytest

pty = pytest.importorskip("pty", reason="terminals of this kind are on POSIX only")
_COMMANDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What sets colors and moves the cursor."""


def _at_a_terminal(*arguments: str, answer_to_file: bool) -> tuple[str, str]:
    """Run the command in a process of its own at a terminal, and return what the terminal and stdout's file got."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, TemporaryFile() as file:
        try:
            out = file if answer_to_file else theirs
            command = [sys.executable, "-m", "agentloop.cli.main", *arguments]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=theirs)
        finally:
            os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux says that nobody has the other end any more
            while piece := terminal.read(4096):
                shown += piece
        assert process.wait() == 0
        file.seek(0)
        return _COMMANDS.sub("", shown.decode()), file.read().decode()


@pytest.mark.parametrize(("driver", "mode"), [("tools", "native"), ("tools", "structured"), ("react", "text")])
def test_at_a_terminal_a_streamed_answer_is_shown_once(driver: str, mode: str) -> None:
    """Where stdout and stderr are one terminal, the text that was shown while it was written is the answer."""
    shown, _ = _at_a_terminal(
        "run", "--model", "demo", "--driver", driver, "--mode", mode, "--stream", answer_to_file=False
    )
    assert shown.count("Dear Ada Lovelace,") == 1


def test_at_a_terminal_an_answer_that_was_not_streamed_is_shown() -> None:
    """Without --stream the answer comes at the end."""
    shown, _ = _at_a_terminal("run", "--model", "demo", answer_to_file=False)
    assert shown.count("Dear Ada Lovelace,") == 1


def test_a_streamed_answer_is_written_where_stdout_goes_elsewhere() -> None:
    """A person sees it written, and the file has it."""
    shown, written = _at_a_terminal("run", "--model", "demo", "--stream", answer_to_file=True)
    assert shown.count("Dear Ada Lovelace,") == 1
    assert written.startswith("Dear Ada Lovelace,\n")
