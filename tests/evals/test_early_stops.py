"""An eval that stops when it is sure is wrong no more often than one that runs to its end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from agentloop import AgentLoop, FunctionInference
from agentloop.errors.kinds import InvalidParameter
from agentloop.evals import Case, EvalSuite, ExactAnswer, StopWhenSure, Trial

_CASES = [f"case {number}" for number in range(150)]


def trials(seed: int, shares: Sequence[float], *, repeats: int = 1) -> Iterator[Trial]:
    """Yield trials of `main` and `other`, which pass with these probabilities, case by case."""
    luck = random.Random(seed)
    for repeat in range(repeats):
        for case in _CASES:
            for candidate, share in zip(("main", "other"), shares, strict=True):
                error = "" if luck.random() < share else "wrong"
                yield Trial(candidate=candidate, case=case, repeat=repeat, seed=seed, error=error)


def look_at_each(stop: StopWhenSure, found: Sequence[Trial]) -> tuple[str, int]:
    """Return the reason for which an eval is stopped, and after how many trials."""
    for count in range(1, len(found) + 1):
        if reason := stop(found[:count]):
            return reason, count
    return "", len(found)


def test_equal_candidates_are_hardly_ever_told_apart() -> None:
    """Looking after each of 300 trials, at most 6 % of 200 evals are stopped for a difference that is not there."""
    reasons = [
        look_at_each(StopWhenSure(_CASES, "main", "other"), [*trials(seed, (0.7, 0.7))])[0] for seed in range(200)
    ]
    assert sum(bool(reason) for reason in reasons) <= 12


def test_a_large_difference_stops_an_eval_early() -> None:
    """Where one candidate passes 95 % and the other one 40 %, a third of the trials is enough."""
    reason, count = look_at_each(StopWhenSure(_CASES, "main", "other"), [*trials(1, (0.95, 0.4))])
    assert reason.startswith("other is worse than main: -")
    assert count <= 100


def test_candidates_that_hardly_differ_stop_an_eval_with_a_margin() -> None:
    """Two candidates with the same verdicts differ by less than ten points."""
    found = [*trials(1, (1.0, 1.0))]
    reason, count = look_at_each(StopWhenSure(_CASES, "main", "other", margin=0.1), found)
    assert reason.startswith("other and main differ by less than 10 points")
    assert count < len(found)


def test_the_order_in_which_trials_end_does_not_matter() -> None:
    """The cases count in their order: a slow one holds back those behind it, and further repeats are no cases."""
    found = [*trials(3, (0.9, 0.5), repeats=2)]
    shuffled = random.Random(5).sample(found, len(found))
    first, second = StopWhenSure(_CASES, "main", "other"), StopWhenSure(_CASES, "main", "other")
    assert first(found) == second(shuffled)
    held = StopWhenSure(_CASES, "main", "other")
    assert held([trial for trial in found if trial.case != "case 0"]) == ""


async def test_a_suite_starts_no_further_trial() -> None:
    """The result says why it was stopped, with the interval that is right at every look."""

    def agent(answer: str) -> AgentLoop:
        return AgentLoop.for_model(FunctionInference(lambda _: answer))

    cases = [Case(name=name, input="2 + 2", expected={"answer": "4"}) for name in _CASES]
    suite = EvalSuite("sums", cases, {"main": agent("4"), "other": agent("5")}, [ExactAnswer()], repeats=3)
    result = await suite.run(stop=StopWhenSure(_CASES, "main", "other"))
    assert result.stopped.startswith("other is worse than main: -100.0 points to -")
    assert len(result.trials) < 60


def test_what_cannot_be_compared_is_refused() -> None:
    """A candidate beside itself, and a margin below 0."""
    with pytest.raises(InvalidParameter):
        StopWhenSure(_CASES, "main", "main")
    with pytest.raises(InvalidParameter):
        StopWhenSure(_CASES, "main", "other", margin=-1)
