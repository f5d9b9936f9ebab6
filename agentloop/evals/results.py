"""Results of evals: what each run of each candidate on each case came to, as values that are stored as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Final

from attrs import evolve, field, frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.values import serialization
from agentloop.values.json import as_frozen_dict
from agentloop.values.value import Value, check_types

COST: Final = "cost"
TOKENS: Final = "tokens"
STEPS: Final = "steps"
SECONDS: Final = "seconds"
PASSED: Final = "passed"

MEASURES: Final = (COST, TOKENS, STEPS, SECONDS)
"""What is measured of every trial, whatever its scorers."""


@frozen(eq=False, repr=False)
class Score(Value):
    """What one scorer says about a trial.

    Attributes:
        name: the name of the scorer.
        value: a number; 1 and 0 for a verdict without another one.
        passed: the verdict; None for a measure, which has none.
        reason: why, in words that a person reads.
    """

    name: str
    value: float
    passed: bool | None = None
    reason: str = ""

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class CaseNote(Value):
    """What a result says about a case.

    Attributes:
        name: the name of the case.
        tags: its tags.
        version: the version of what the case was made from: a fingerprint of its content, or of the recorded execution.
    """

    name: str
    tags: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    version: str = ""

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False, kw_only=True)
class Trial(Value):
    """One run of one candidate on one case.

    Attributes:
        candidate: the name of the candidate.
        case: the name of the case.
        repeat: which repeat, from 0.
        seed: the seed of the trial; all candidates have the same one for a case and a repeat.
        execution_id: the id of the execution in the journal; empty when the trial failed before one began.
        status: the status of the execution, such as `completed`; `error` when the trial could not be run or scored.
        scores: what the scorers say, in their order.
        cost: US dollars that the candidate, its tools and its judges cost; None where no price is known.
        tokens: the tokens of all requests of the candidate; None when the model reported none.
        steps: the number of steps.
        seconds: the time that its steps took.
        answered: for each world, the number of calls that it answered.
        error: what went wrong; empty when nothing did.
    """

    candidate: str
    case: str
    repeat: int
    seed: int
    execution_id: str = ""
    status: str = "completed"
    scores: tuple[Score, ...] = field(default=(), converter=tuple[Score, ...])
    cost: float | None = None
    tokens: int | None = None
    steps: int = 0
    seconds: float = 0.0
    answered: Mapping[str, int] = field(factory=dict, converter=as_frozen_dict)
    error: str = ""

    __attrs_post_init__ = check_types

    @property
    def passed(self) -> bool:
        """Whether nothing went wrong and no scorer says that it failed."""
        return not self.error and all(score.passed is not False for score in self.scores)

    def measure(self, name: str) -> float | None:
        """Return a number of the trial.

        Args:
            name: `passed` (1 or 0), `cost`, `tokens`, `steps`, `seconds`, or the name of a scorer.

        Returns:
            The number; None where the trial has none.
        """
        if name == PASSED:
            return float(self.passed)
        own = next((score.value for score in self.scores if score.name == name), None)
        if own is not None:
            return own
        value: float | None = getattr(self, name) if name in MEASURES else None
        return value


@frozen(eq=False, repr=False, kw_only=True)
class EvalResult(Value):
    """What an eval came to. It may be incomplete: a budget can stop an eval, and a failed machine can.

    Attributes:
        suite: the name of the suite.
        candidates: the names of the candidates, in the order of the suite.
        cases: the cases, in the order of the suite.
        trials: the trials, by candidate, case and repeat in these orders.
        repeats: how many trials of each candidate and case were planned.
        seed: the seed of the suite.
        stopped: why it ended before all trials had run; empty when all ran.
    """

    suite: str
    candidates: tuple[str, ...] = field(converter=tuple[str, ...])
    cases: tuple[CaseNote, ...] = field(converter=tuple[CaseNote, ...])
    trials: tuple[Trial, ...] = field(converter=tuple[Trial, ...])
    repeats: int = 1
    seed: int = 0
    stopped: str = ""

    __attrs_post_init__ = check_types

    def to_json(self) -> bytes:
        """Return the result as one JSON document, which `from_json` reads.

        Raises:
            NotJson: a number is infinite.
        """
        return serialization.to_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> EvalResult:
        """Read a result from a document of `to_json`.

        Raises:
            InvalidDocument: it is not such a document, or it is damaged.
            SchemaTooNew: a newer version of agentloop wrote it.
        """
        return serialization.from_json(data, cls)

    @property
    def is_complete(self) -> bool:
        """Whether every planned trial has run."""
        return len(self.trials) == len(self.candidates) * len(self.cases) * self.repeats

    @property
    def cost(self) -> float | None:
        """US dollars of all trials; None where no price is known."""
        known = [trial.cost for trial in self.trials if trial.cost is not None]
        return sum(known) if known else None

    def of(self, candidate: str) -> tuple[Trial, ...]:
        """Return the trials of a candidate, by case and repeat.

        Raises:
            InvalidParameter: the result has no such candidate.
        """
        if candidate not in self.candidates:
            raise InvalidParameter(
                f"the result of {self.suite!r} has no candidate {candidate!r}; it has {', '.join(self.candidates)}"
            )
        return tuple([trial for trial in self.trials if trial.candidate == candidate])

    def measures(self, candidate: str, name: str = PASSED) -> dict[str, list[float]]:
        """Return the numbers of a candidate by case, in the order of the repeats; the input of all statistics.

        Args:
            candidate: the name of the candidate.
            name: as of `Trial.measure`.

        Returns:
            For each case with at least one such number, its numbers.

        Raises:
            InvalidParameter: the result has no such candidate.
        """
        by_case: dict[str, list[float]] = {}
        for trial in self.of(candidate):
            value = trial.measure(name)
            if value is not None:
                by_case.setdefault(trial.case, []).append(float(value))
        return by_case

    @property
    def measure_names(self) -> tuple[str, ...]:
        """The names that some trial has a number for: `passed`, those of the scorers, and what is measured of every trial."""
        named = dict.fromkeys(score.name for trial in self.trials for score in trial.scores)
        measured = [name for name in MEASURES if any(getattr(trial, name) is not None for trial in self.trials)]
        return tuple(dict.fromkeys([PASSED, *named, *measured]))

    def merge(self, *others: EvalResult) -> EvalResult:
        """Return one result of several parts of an eval, such as those of machines that each ran some cases, or one candidate.

        Raises:
            InvalidParameter: the parts are of different suites or seeds, a case has another version in one of them, or two have
                the same trial.
        """
        return reduce(_merge, others, self)


def _merge(first: EvalResult, second: EvalResult) -> EvalResult:
    for name in ("suite", "seed"):
        if getattr(first, name) != getattr(second, name):
            raise InvalidParameter(
                f"results of different evals cannot be merged: the {name} is {getattr(first, name)!r} in one and "
                f"{getattr(second, name)!r} in the other"
            )
    cases = {note.name: note for note in first.cases}
    for note in second.cases:
        if cases.setdefault(note.name, note).version != note.version:
            raise InvalidParameter(
                f"the case {note.name!r} has changed between the two results; run both on the same cases"
            )
    candidates = tuple(dict.fromkeys([*first.candidates, *second.candidates]))
    trials = list(_in_order(candidates, tuple(cases), [*first.trials, *second.trials]))
    return evolve(
        first,
        candidates=candidates,
        cases=tuple(cases.values()),
        trials=trials,
        repeats=max(first.repeats, second.repeats),
        stopped=first.stopped or second.stopped,
    )


def _in_order(candidates: tuple[str, ...], cases: tuple[str, ...], trials: list[Trial]) -> Iterator[Trial]:
    """Yield trials by candidate, case and repeat.

    Raises:
        InvalidParameter: two are of the same candidate, case and repeat.
    """
    places = {
        "candidate": {name: place for place, name in enumerate(candidates)},
        "case": {name: place for place, name in enumerate(cases)},
    }
    ordered = {
        (places["candidate"][trial.candidate], places["case"][trial.case], trial.repeat): trial for trial in trials
    }
    if len(ordered) < len(trials):
        raise InvalidParameter(
            "two results with the same trial cannot be merged; merge parts that ran different trials"
        )
    yield from (trial for _, trial in sorted(ordered.items(), key=lambda item: item[0]))
