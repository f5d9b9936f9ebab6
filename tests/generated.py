"""How many generated cases a test has: a part of them in every run, all of them in `make test-heavy`.

The cases are the same in every run, so that a failure can be repeated; what a change breaks is nearly always found by the first of them.
"""

from __future__ import annotations

_SHARE = 3
_FEWEST = 4
_all_are_run = [False]


def run_all() -> None:
    """Let tests have all of their cases; effective for modules of tests that are loaded afterwards."""
    _all_are_run[0] = True


def examples(count: int) -> int:
    """Return how many of so many generated cases are run now."""
    return count if _all_are_run[0] else min(count, max(_FEWEST, count // _SHARE))
