"""Whatever raises, lies or is cancelled: no effect is doubled, lost or untold, and every state can be read."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.generated import examples
from tests.soak.long_run import SeededChooser, run_history
from tests.soak.world import History

_STEPS = 5_000
_PARTS = 4


class Histories(RuleBasedStateMachine):
    """Conversations with an agent whose parts misbehave, shrunk to the shortest one that breaks a promise."""

    history: History

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        """Begin a conversation with parts that are chosen; not one by one by Hypothesis, as threads may ask in any order."""
        self.history = History.begin(SeededChooser(Random(seed)))

    @rule()
    def run(self) -> None:
        """Run, continue, resume or recover the agent, perhaps cancelled at some await."""
        self.history.run()

    @invariant()
    def keeps_its_promises(self) -> None:
        """Nothing was doubled, lost, untold or unreadable, and the events follow their grammar."""
        if hasattr(self, "history"):
            assert self.history.world.problems == []


Histories.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase


@pytest.mark.parametrize("part", [0, 1, *[pytest.param(part, marks=pytest.mark.heavy) for part in range(2, _PARTS)]])
def test_long_histories_keep_their_promises(part: int) -> None:
    """Thousands of steps of histories of fixed seeds break no promise; `make soak` runs more of them."""
    steps, seed = 0, part * 1_000_000
    while steps < _STEPS // _PARTS:
        taken, problems = run_history(seed)
        assert problems == []
        steps, seed = steps + taken, seed + 1
