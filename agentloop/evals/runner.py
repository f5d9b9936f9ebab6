"""Suites: which candidates run on which cases in which worlds, how often, and up to which cost."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote

from attrs import define, evolve, field, frozen
from attrs.validators import optional

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.errors.kinds import ConfigurationError, InvalidParameter
from agentloop.evals.candidates import Candidate, TrialContext, as_candidates, fingerprint_of
from agentloop.evals.cases import TRIALS, Case, Cases
from agentloop.evals.results import EvalResult, Score, Trial
from agentloop.evals.scorers import CanScore, as_scorers, score_trial
from agentloop.evals.trials import CaseStart, Decide, TrialRun, finish_trial, run_trial
from agentloop.evals.worlds import DEFAULT_WORLDS, World, as_worlds
from agentloop.policies.budgets.prices import Prices, published_prices
from agentloop.values.journal_errors import JournalError
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value, above, at_least

ERROR: Final = "error"
_MAX_NAME = 200


@frozen(eq=False, repr=False, kw_only=True)
class EvalProgress(Value):
    """How far an eval is.

    Attributes:
        trial: the trial that has just ended.
        done: how many have ended.
        planned: how many there are.
        cost: US dollars so far; None where a price is not known.
    """

    trial: Trial
    done: int
    planned: int
    cost: float | None


OnProgress: TypeAlias = Callable[[EvalProgress], object]
"""Called after each trial; a plain function."""

StopEval: TypeAlias = Callable[[Sequence[Trial]], str]
"""Looks at the trials that have run, and returns why no further one starts; empty to go on."""


@frozen(eq=False, repr=False, kw_only=True)
class PlannedTrial(Value):
    """A trial that is to run.

    Attributes:
        candidate: the candidate.
        case: the case.
        repeat: which repeat, from 0.
        seed: the seed.
    """

    candidate: Candidate
    case: Case
    repeat: int
    seed: int


def _as_cases(given: Iterable[Case]) -> Cases:
    return given if isinstance(given, Cases) else Cases(given)


@frozen(eq=False, repr=False)
class EvalSuite(Value):
    """Candidates, the cases that they are compared on, and what judges them.

        suite = EvalSuite("desk", cases, {"today": today, "new": new}, [ExpectedCalls()], repeats=3)
        result = await suite.run(journal=SqliteJournal("evals.db"))

    Attributes:
        name: the name.
        cases: the cases.
        candidates: the candidates; by name, or as a list.
        scorers: what scores each trial: scorers, and functions of a `TrialRun`.
        worlds: what answers the calls of tools, in order; by default recorded outcomes, then pure tools themselves. Effects are refused.
        repeats: how many trials each candidate has of each case.
        seed: where the seeds of the trials come from.
        budget: US dollars after which no further trial starts; None for no limit. Trials that run are finished.
        prices: the prices of models; by default those that the extra `prices` publishes.
        decide: decides about calls that wait for a person; without it, such a trial ends as suspended.
        concurrency: how many trials run at the same time.
        version: distinguishes what no fingerprint can see, such as the functions of worlds: with another version, all trials run anew.
    """

    name: str
    cases: Cases = field(converter=_as_cases)
    candidates: tuple[Candidate, ...] = field(converter=as_candidates)
    scorers: tuple[CanScore, ...] = field(default=(), converter=as_scorers)
    worlds: tuple[World, ...] = field(default=DEFAULT_WORLDS, converter=as_worlds)
    repeats: int = field(default=1, validator=at_least(1), kw_only=True)
    seed: int = field(default=0, kw_only=True)
    budget: float | None = field(default=None, validator=optional(above(0)), kw_only=True)
    prices: Prices | None = field(factory=published_prices, kw_only=True)
    decide: Decide | None = field(default=None, kw_only=True)
    concurrency: int = field(default=4, validator=at_least(1), kw_only=True)
    version: str = field(default="", kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidParameter("a suite needs a name: EvalSuite('desk', …)")

    def plan(self) -> Iterator[PlannedTrial]:
        """Yield the trials in the order in which they run: all candidates on a case, then the next case, then the next repeat.

        Where an eval is stopped, each candidate has run on nearly the same trials.
        """
        for repeat in range(self.repeats):
            for case in self.cases:
                seed = seed_of(self.seed, case.name, repeat)
                for candidate in self.candidates:
                    yield PlannedTrial(candidate=candidate, case=case, repeat=repeat, seed=seed)

    async def run(
        self,
        *,
        journal: CanJournal | None = None,
        recordings: CanJournal | None = None,
        on_progress: OnProgress | None = None,
        stop: StopEval | None = None,
    ) -> EvalResult:
        """Run the trials, and return what they came to.

        Each trial is an execution in the journal. One that is recorded there is not run again: a suite that was interrupted goes on,
        and one with more repeats or cases runs only these. What is recorded has been paid, and is not paid again.

        Args:
            journal: where the trials are recorded; in memory by default.
            recordings: where the executions are recorded that cases were made from, which is only read; by default the same journal.
            on_progress: called after each trial.
            stop: says after each trial whether a further one starts, such as `StopWhenSure`. Trials that run are finished.

        Returns:
            The result. Where the budget was used up, or `stop` has a reason, it lacks trials and says so.

        Raises:
            UnknownExecution: a case was made from an execution that `recordings` does not have.
            ConfigurationError: there is a budget, and the price of a model is not known; or the execution that a case was made from
                is not the one that is recorded under its id.
            JournalError: a trial cannot be recorded; run the suite again to go on.
        """
        target = MemoryJournal() if journal is None else journal
        running = _Running(self, target, target if recordings is None else recordings, on_progress, stop)
        await running.run()
        places = {case.name: place for place, case in enumerate(self.cases)}
        ranks = {candidate.name: place for place, candidate in enumerate(self.candidates)}
        trials = sorted(running.trials, key=lambda trial: (ranks[trial.candidate], places[trial.case], trial.repeat))
        return EvalResult(
            suite=self.name,
            candidates=[*ranks],
            cases=[case.note for case in self.cases],
            trials=trials,
            repeats=self.repeats,
            seed=self.seed,
            stopped=running.stopped,
        )

    def with_cases(self, cases: Iterable[Case]) -> EvalSuite:
        """Return the suite with other cases."""
        return evolve(self, cases=cases)


def seed_of(seed: int, case: str, repeat: int) -> int:
    """Return the seed of the trials of a case and a repeat; other cases and other repeats of the suite do not change it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{repeat}/{case}".encode()).digest()[:7])


@define(eq=False)
class _Running:
    """A suite while it runs."""

    suite: EvalSuite
    journal: CanJournal
    recordings: CanJournal
    on_progress: OnProgress | None
    stop: StopEval | None
    trials: list[Trial] = field(factory=list)
    stopped: str = ""
    _spent: float = 0.0
    _is_priced: bool = True
    _starts: dict[str, CaseStart] = field(factory=dict)
    _waiting: deque[PlannedTrial] = field(factory=deque)

    async def run(self) -> None:
        self._waiting.extend(self.suite.plan())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.suite.concurrency, len(self._waiting))):
                    group.create_task(self._work())
        except* Exception as failed:  # noqa: BLE001  # raised again, as itself
            raise failed.exceptions[0]  # noqa: B904  # the group says nothing more

    async def _work(self) -> None:
        while self._waiting and not self._is_over():
            trial = await self._run_planned(self._waiting.popleft())
            self.trials.append(trial)
            self._count(trial)

    def _is_over(self) -> bool:
        budget = self.suite.budget
        if budget is not None and self._spent >= budget and not self.stopped:
            self.stopped = f"the budget of {budget:g} USD is used up: {self._spent:.4g} USD"
        if self.stop is not None and not self.stopped:
            self.stopped = self.stop(self.trials)
        return bool(self.stopped)

    def _count(self, trial: Trial) -> None:
        if trial.cost is not None:
            self._spent += trial.cost
        elif trial.tokens:
            self._is_priced = False
            if self.suite.budget is not None:
                raise ConfigurationError(
                    f"the suite {self.suite.name!r} has a budget, and the price of a model of {trial.candidate!r} is not known; "
                    "pass prices=PriceTable({'model': Price(input=…, output=…)})"
                )
        if self.on_progress is not None:
            cost = self._spent if self._is_priced else None
            planned = len(self.suite.cases) * len(self.suite.candidates) * self.suite.repeats
            self.on_progress(EvalProgress(trial=trial, done=len(self.trials), planned=planned, cost=cost))

    async def _start_of(self, case: Case) -> CaseStart:
        start = self._starts.get(case.name)
        if start is None:
            start = self._starts[case.name] = await CaseStart.read(case, self.recordings)
        return start

    async def _run_planned(self, planned: PlannedTrial) -> Trial:
        start, suite = await self._start_of(planned.case), self.suite
        blank = Trial(
            candidate=planned.candidate.name,
            case=planned.case.name,
            repeat=planned.repeat,
            seed=planned.seed,
            status=ERROR,
        )
        context = TrialContext(case=planned.case, repeat=planned.repeat, seed=planned.seed, journal=self.journal)
        try:
            loop = await planned.candidate.loop(context)
            execution_id = trial_id(suite, planned, fingerprint_of(loop, planned.candidate.version, *_worlds_of(suite)))
            blank = evolve(blank, execution_id=execution_id)
            state, worlds = await run_trial(
                loop,
                start,
                execution_id,
                worlds=suite.worlds,
                seed=planned.seed,
                journal=self.journal,
                decide=suite.decide,
            )
            run = await finish_trial(
                state,
                worlds,
                start,
                candidate=blank.candidate,
                repeat=blank.repeat,
                prices=suite.prices,
                journal=self.journal,
            )
        except JournalError:
            raise  # nothing is known about the trial; the next run goes on with it
        except Exception as error:  # noqa: BLE001  # a candidate that cannot run has failed the trial
            return evolve(blank, error=f"{type(error).__name__}: {error}")
        return await _scored(blank, run, suite.scorers)


async def _scored(blank: Trial, run: TrialRun, scorers: Sequence[CanScore]) -> Trial:
    """Return the trial with its measures and scores."""
    state, scores, error = run.state, tuple[Score, ...](), ""
    if state.status is ExecutionStatus.FAILED:
        error = "; ".join(f"{info.type}: {info.message}" for info in state.errors[-1:]) or "the execution failed"
    try:
        scores = await score_trial(scorers, run)
    except JournalError:
        raise
    except Exception as failure:  # noqa: BLE001  # a trial that cannot be scored is reported as one
        error = error or f"a scorer failed: {type(failure).__name__}: {failure}"
    return evolve(
        blank,
        status=state.status.value,
        scores=scores,
        cost=run.account.cost,
        tokens=run.tokens,
        steps=len(run.steps),
        seconds=run.seconds,
        answered=run.answered,
        error=error,
    )


def _worlds_of(suite: EvalSuite) -> tuple[str, ...]:
    return (suite.version, str(suite.seed), repr(suite.worlds), f"decides: {suite.decide is not None}")


def trial_id(suite: EvalSuite, planned: PlannedTrial, fingerprint: str) -> str:
    """Return the id of the execution of a trial: the same in each run of the suite, and another one when anything has changed.

    Args:
        suite: the suite.
        planned: the trial.
        fingerprint: the fingerprint of the candidate and of the worlds.
    """
    candidate = f"{_part(planned.candidate.name)}~{fingerprint}"
    case = f"{_part(planned.case.name)}@{planned.case.version}"
    return f"{TRIALS}{_part(suite.name)}/{candidate}/{case}/{planned.repeat}"


def _part(name: str) -> str:
    """Return a name as a part of an id; a long one is shortened, and told apart by a hash."""
    quoted = quote(name, safe=" #@:,()")
    if len(quoted) <= _MAX_NAME:
        return quoted
    return f"{quoted[: _MAX_NAME - 13]}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"
