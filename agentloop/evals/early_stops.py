"""Stopping an eval as soon as it says enough, without being wrong more often for that."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.quantities import format_points
from agentloop.evals.results import Trial
from agentloop.evals.sequences import ConfidenceSequence
from agentloop.evals.statistics import CONFIDENCE


class StopWhenSure:
    """Stops an eval when it is sure which of two candidates passes more often, or that they differ by less than a margin.

        result = await suite.run(journal=journal, stop=StopWhenSure(cases, "main", "short", margin=0.05))

    It may look after each trial: its interval is that of a `ConfidenceSequence`. The first trial of each case counts, in the order
    of the cases, whatever order the trials end in: further repeats of a case are no new cases. So the cases have to stand in an order that says nothing about
    their difficulty. The ordinary intervals of a report on an eval that was stopped are too short; the reason for the stop has the honest one.

    Args:
        cases: the names of the cases, in the order of the suite.
        baseline: the name of the one candidate.
        candidate: the name of the other.
        margin: the difference of shares that does not matter, such as 0.05 for five points; with 0, only a difference stops the eval.
        confidence: how probable it is that the eval is not stopped for a wrong reason, between 0 and 1.

    Raises:
        InvalidParameter: the candidates are the same, the margin is negative, or the confidence is not between 0 and 1.
    """

    def __init__(
        self,
        cases: Sequence[str],
        baseline: str,
        candidate: str,
        *,
        margin: float = 0.0,
        confidence: float = CONFIDENCE,
    ) -> None:
        if baseline == candidate:
            raise InvalidParameter(f"{candidate!r} cannot be compared with itself; name two candidates")
        if margin < 0:
            raise InvalidParameter(f"a margin is 0 or more, not {margin}")
        self._cases, self._baseline, self._candidate, self._margin = [*cases], baseline, candidate, margin
        self._sequence = ConfidenceSequence(confidence)
        self._passed: dict[tuple[str, str], bool] = {}
        self._read = 0

    def __call__(self, trials: Sequence[Trial]) -> str:
        """Return why the eval is to stop; empty to go on.

        Args:
            trials: the trials that have run, in the order in which they ended; those of an earlier call, and further ones.
        """
        for trial in trials[self._read :]:
            if not trial.repeat:
                self._passed[trial.case, trial.candidate] = trial.passed
        self._read = len(trials)
        # The next case has to wait for both of its trials: those that end first are not a sample of all.
        while self._sequence.count < len(self._cases):
            case = self._cases[self._sequence.count]
            pair = [self._passed.get((case, name)) for name in (self._baseline, self._candidate)]
            if None in pair:
                break
            self._sequence.add((1 + bool(pair[1]) - bool(pair[0])) / 2)
        return self._verdict()

    def _verdict(self) -> str:
        low, high = 2 * self._sequence.low - 1, 2 * self._sequence.high - 1
        interval = (
            f"{format_points(low)} to {format_points(high)} after {self._sequence.count} cases, right at every look"
        )
        if low > 0 or high < 0:
            return f"{self._candidate} is {'better' if low > 0 else 'worse'} than {self._baseline}: {interval}"
        if -self._margin < low and high < self._margin:
            return (
                f"{self._candidate} and {self._baseline} differ by less than {100 * self._margin:g} points: {interval}"
            )
        return ""
