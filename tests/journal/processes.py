"""Starting processes that use a journal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def process(path: Path, *given: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process that does something with a journal; it is killed at the end."""
    arguments = [sys.executable, "-m", "tests.journal.journal_process", str(path), *[str(one) for one in given]]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    """Wait for a line that a process says; empty when it has ended."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def tell(child: subprocess.Popen[str]) -> None:
    """Let a process go on."""
    assert child.stdin is not None
    child.stdin.write("go on\n")
    child.stdin.flush()
