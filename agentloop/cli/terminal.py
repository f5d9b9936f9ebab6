"""Consoles: where the command line writes."""

from __future__ import annotations

import os

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
