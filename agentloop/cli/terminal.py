"""Consoles: where the command line writes."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

_WIDTH_OF_A_FILE = 120


def console(*, stderr: bool = False) -> Console:
    """Make a console that writes text as it is: no markup, no emoji codes, colours only where a terminal shows them.

    Args:
        stderr: write to stderr instead of stdout.
    """
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=_WIDTH_OF_A_FILE)
    return made


def on_one_terminal(one: TextIO, other: TextIO) -> bool:
    """Say whether two streams go to the same terminal, so that a person sees both."""
    if not (one.isatty() and other.isatty()):
        return False
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except OSError:  # a stream that is no file
        return False
