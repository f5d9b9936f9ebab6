"""How many generated or recorded cases a test has: a part of them in every run, all of them in `make test-heavy`.

The cases are the same in every run, so that a failure can be repeated; what a change breaks is nearly always found by the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.strategies import none

T = TypeVar("T")

# Hypothesis also tries the constants in the source of all modules that are loaded. The cases would depend on the tests that ran before,
# and on each line of the package: a test would find something now, and not after a change elsewhere.
providers._get_local_constants = Constants  # none; kits do the same for whoever uses them

_SHARE = 6
_FEWEST = 4
_all_are_run = [False]


def load_settings(**changes: Any) -> None:
    """Load the settings of cases that Hypothesis generates; tests that are loaded afterwards have them.

    Args:
        changes: settings that are to be different.
    """
    common = settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=examples(60),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.register_profile("agentloop", common, **changes)
    settings.load_profile("agentloop")


def run_first_case() -> None:
    """Let Hypothesis make its random generator.

    It then checks that something refers to it, and would not find what `gc.freeze` has frozen.
    """
    settings(max_examples=1, phases=[Phase.generate], database=None)(given(none())(lambda _: None))()


def run_all() -> None:
    """Let tests have all of their cases; effective for modules of tests that are loaded afterwards."""
    _all_are_run[0] = True


def examples(count: int, *, share: int = _SHARE) -> int:
    """Return how many of so many generated cases are run now: one of as many as the share says, which is more for dear cases."""
    return count if _all_are_run[0] else min(count, max(_FEWEST, count // share))


def part_of(rows: Sequence[T]) -> list[T]:
    """Return which of these recorded cases are run now, in their order: chosen at random once for all runs, so that every kind occurs."""
    return [rows[index] for index in sorted(Random(len(rows)).sample(range(len(rows)), examples(len(rows))))]
