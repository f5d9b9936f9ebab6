"""Where a streamed answer is shown: each command runs in a process of its own, at a pseudo-terminal."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from tempfile import TemporaryFile

import pytest

from tests.loaded import loaded_agentloop

pty = pytest.importorskip("pty", reason="pseudo-terminals exist on POSIX only")
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _run_at_terminal(*arguments: str, answer_to_file: bool) -> tuple[str, str]:
    """Run a command at a terminal, and return what was written to the terminal and to the file of stdout."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, TemporaryFile() as file:
        try:
            out = file if answer_to_file else theirs
            command = loaded_agentloop(*arguments)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=theirs)
        finally:
            os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux reports that the other end is closed
            while piece := terminal.read(4096):
                shown += piece
        assert process.wait() == 0
        file.seek(0)
        return _CONTROL_SEQUENCE.sub("", shown.decode()), file.read().decode()


@pytest.mark.parametrize(("driver", "mode"), [("tools", "native"), ("tools", "structured"), ("react", "text")])
def test_a_streamed_answer_is_shown_once_on_one_terminal(shop_run: list[str], driver: str, mode: str) -> None:
    """Where stdout and stderr are the same terminal, the streamed text is the answer and is not repeated."""
    options = ("--driver", driver, "--mode", mode, "--stream")
    shown, _ = _run_at_terminal(*shop_run, *options, answer_to_file=False)
    assert shown.count("Dear Ada Lovelace,") == 1


def test_an_answer_that_was_not_streamed_is_shown_at_the_end() -> None:
    """Without --stream, the terminal shows the answer after the progress."""
    shown, _ = _run_at_terminal("run", "--model", "demo", answer_to_file=False)
    assert shown.count("The payments service was down") == 1


def test_a_streamed_answer_is_written_where_stdout_is_redirected() -> None:
    """The terminal shows the streamed text, and the file gets the answer."""
    shown, written = _run_at_terminal("run", "--model", "demo", "--stream", answer_to_file=True)
    assert shown.count("The payments service was down") == 1
    assert written.startswith("The payments service was down")
