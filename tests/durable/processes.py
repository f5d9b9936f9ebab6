"""Starting processes that use a journal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def start_process(path: Path | str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start `journal_process` on a journal; kill it at the end."""
    command = [sys.executable, "-m", "tests.durable.journal_process", str(path), *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def read_line(child: subprocess.Popen[str]) -> str:
    """Wait for a line that a process prints; empty when the process has ended."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def send_line(child: subprocess.Popen[str]) -> None:
    """Let a process that waits for a line continue."""
    assert child.stdin is not None
    child.stdin.write("continue\n")
    child.stdin.flush()
