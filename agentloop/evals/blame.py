"""Blame: which part of a changed agent makes it worse, found by swapping its parts back one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from attrs import evolve, field, frozen, has

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.errors.hints import suggest
from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.candidates import Candidate, TrialContext
from agentloop.evals.cases import Cases
from agentloop.evals.results import PASSED, EvalResult
from agentloop.evals.runner import EvalSuite, OnProgress
from agentloop.evals.statistics import holm, mcnemar, permutation_p
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.value import Value

_SIGNIFICANT: Final = 0.05
Loop = AgentLoop[Any]


@frozen(eq=False, repr=False, kw_only=True)
class PartBlame(Value):
    """What swapping one part back has changed.

    Attributes:
        part: the name of the part, such as `prompt`.
        passed: the share of trials that the changed agent passes with this part of the baseline.
        restored: the share of trials that fail with the changed part, and pass with that of the baseline.
        broken: the share of trials the other way round.
        p_value: how probable so uneven a split is if the part makes no difference, corrected for the number of parts.
    """

    part: str
    passed: float
    restored: float
    broken: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.part}: {self.passed:.0%} pass with it swapped back (p = {self.p_value:.2g})"


@frozen(eq=False, repr=False, kw_only=True)
class Blame(Value):
    """Which part of a changed agent makes it worse.

    Attributes:
        baseline: the share of trials that the baseline passes.
        changed: the share of trials that the changed agent passes.
        parts: what swapping each part back has changed, the most helpful one first. Parts that are equal are not among them.
        result: the trials, of all these agents.
    """

    baseline: float
    changed: float
    parts: tuple[PartBlame, ...] = field(converter=tuple[PartBlame, ...])
    result: EvalResult

    @property
    def cause(self) -> str:
        """The part that matters: the one that restores most, if chance would hardly do so; else empty."""
        best = next(iter(self.parts), None)
        if best is None or best.passed <= self.changed or best.p_value >= _SIGNIFICANT:
            return ""
        return best.part

    def __str__(self) -> str:
        found = f"the {self.cause} matters" if self.cause else "no single part explains it; run more repeats"
        lines = [f"baseline passes {self.baseline:.0%}, changed {self.changed:.0%}: {found}"]
        return "\n".join([*lines, *[f"  {part}" for part in self.parts]])


async def find_blame(
    suite: EvalSuite,
    *,
    baseline: str,
    changed: str,
    case: str | None = None,
    repeats: int | None = None,
    journal: CanJournal | None = None,
    recordings: CanJournal | None = None,
    on_progress: OnProgress | None = None,
) -> Blame:
    """Swap the parts of a candidate back to those of another one, one at a time, and run each on the same trials.

    The parts are the prompt, the model, the driver, the tools, the interceptors, the compiler, the executor, the type of answers and
    the limit of steps. A part that is equal in both is left out. Trials that the journal has are not run again.

    Args:
        suite: the suite.
        baseline: the name of the candidate that is better.
        changed: the name of the one that is worse.
        case: the case that got worse; None for all cases.
        repeats: how many trials each of these agents has; by default as many as in the suite. With fewer than about six, nothing
            can be said about one case.
        journal: where the trials are recorded, such as that of the eval; in memory by default.
        recordings: as for `EvalSuite.run`.
        on_progress: called after each trial.

    Raises:
        InvalidParameter: there is no such candidate or case.
        JournalError: a trial cannot be recorded.
        Exception: whatever a candidate raises where it makes its loop.
    """
    named = {candidate.name: candidate for candidate in suite.candidates}
    for name in (baseline, changed):
        if name not in named:
            raise InvalidParameter(f"the suite {suite.name!r} has no candidate {name!r}{suggest(name, named)}")
    cases = suite.cases if case is None else Cases([suite.cases.named(case)])
    old, new = named[baseline], named[changed]
    kept = MemoryJournal() if journal is None else journal
    swaps = {
        f"{changed} with the {part} of {baseline}": part
        for part in await _differing(evolve(suite, cases=cases), old, new, kept)
    }
    made = [
        Candidate(name, partial(_swapped, part, old, new), version=f"{old.version}/{new.version}")
        for name, part in swaps.items()
    ]
    larger = evolve(suite, cases=cases, candidates=[old, new, *made], repeats=repeats or suite.repeats)
    result = await larger.run(journal=kept, recordings=recordings, on_progress=on_progress)
    return _blame(result, baseline, changed, swaps)


def _blame(result: EvalResult, baseline: str, changed: str, swaps: Mapping[str, str]) -> Blame:
    before = _passed(result, changed)
    compared = {}
    for name, part in swaps.items():
        after = _passed(result, name)
        pairs = [(case, before[case, repeat], after[case, repeat]) for case, repeat in before.keys() & after.keys()]
        compared[part] = (pairs, _share(after.values()), _p_value(pairs))
    corrected = holm([p_value for _, _, p_value in compared.values()])
    parts = [
        PartBlame(
            part=part,
            passed=share,
            restored=_share(old < new for _, old, new in pairs),
            broken=_share(old > new for _, old, new in pairs),
            p_value=p_value,
        )
        for (part, (pairs, share, _)), p_value in zip(compared.items(), corrected, strict=True)
    ]
    parts.sort(key=lambda part: (-part.passed, part.p_value))
    return Blame(
        baseline=_share(_passed(result, baseline).values()), changed=_share(before.values()), parts=parts, result=result
    )


def _passed(result: EvalResult, candidate: str) -> dict[tuple[str, int], bool]:
    return {(trial.case, trial.repeat): bool(trial.measure(PASSED)) for trial in result.of(candidate)}


def _share(passed: Any) -> float:
    listed = list(passed)
    return sum(listed) / len(listed) if listed else 0.0


def _p_value(pairs: list[tuple[str, bool, bool]]) -> float:
    """Return the p-value of the difference: over the repeats of one case, or over cases, whose repeats resemble each other."""
    cases = sorted({case for case, _, _ in pairs})
    if len(cases) == 1:
        return mcnemar(sum(old > new for _, old, new in pairs), sum(old < new for _, old, new in pairs))
    return permutation_p(
        [
            _share(new for name, _, new in pairs if name == case)
            - _share(old for name, old, _ in pairs if name == case)
            for case in cases
        ]
    )


# --- parts --------------------------------------------------------------------------------------------------------------


async def _differing(suite: EvalSuite, old: Candidate, new: Candidate, journal: CanJournal) -> list[str]:
    """Return the names of the parts that differ in the loops of the first trial."""
    planned = next(suite.plan(), None)
    if planned is None:
        return []
    context = TrialContext(case=planned.case, repeat=planned.repeat, seed=planned.seed, journal=journal)
    before, after = await old.loop(context), await new.loop(context)
    return [part for part, swap in PARTS.items() if swap(after, before) is not None]


async def _swapped(part: str, old: Candidate, new: Candidate, context: TrialContext) -> Loop:
    before, after = await old.loop(context), await new.loop(context)
    return PARTS[part](after, before) or after


def _option(name: str) -> Callable[[Loop, Loop], Loop | None]:
    """Return the swap of a parameter of a loop."""

    def swap(loop: Loop, other: Loop) -> Loop | None:
        own, theirs = getattr(loop, name), getattr(other, name)
        changes: dict[str, Any] = {name: theirs}
        return None if own is theirs or own == theirs else loop.replace(**changes)

    return swap


def _swap_tools(loop: Loop, other: Loop) -> Loop | None:
    own, theirs = loop.tools.by_name, other.tools.by_name
    is_equal = own.keys() == theirs.keys() and all(own[name] is theirs[name] for name in own)
    return None if is_equal else loop.replace(tools=other.tools)


def _swap_executor(loop: Loop, other: Loop) -> Loop | None:
    own, theirs = loop.executor, other.executor
    return None if own == theirs or repr(own) == repr(theirs) else loop.replace(executor=theirs)


def _swap_model(loop: Loop, other: Loop) -> Loop | None:
    own, theirs = _inference(loop.driver), _inference(other.driver)
    if own is None or theirs is None or own is theirs or own == theirs:
        return None
    return loop.replace(driver=_with_inference(loop.driver, theirs))


def _swap_driver(loop: Loop, other: Loop) -> Loop | None:
    """Swap everything in the driver but its model."""
    own, theirs = loop.driver, other.driver
    inference = _inference(own)
    if inference is not None and _inference(theirs) is not None:
        theirs = _with_inference(theirs, inference)
    same = own is theirs or (type(own) is type(theirs) and repr(own) == repr(theirs))
    return None if same else loop.replace(driver=theirs)


def _with_inference(driver: Any, inference: CanInfer) -> CanUseTools:
    changed: CanUseTools = evolve(driver, inference=inference)
    return changed


def _inference(driver: CanUseTools) -> CanInfer | None:
    inference = getattr(driver, "inference", None) if has(type(driver)) else None
    return inference if isinstance(inference, CanInfer) else None


PARTS: Final[Mapping[str, Callable[[Loop, Loop], Loop | None]]] = {
    "prompt": _option("system_prompt"),
    "model": _swap_model,
    "driver": _swap_driver,
    "tools": _swap_tools,
    "interceptors": _option("interceptors"),
    "compiler": _option("compiler"),
    "executor": _swap_executor,
    "output type": _option("output_type"),
    "output check": _option("output_check"),
    "step limit": _option("max_steps"),
}
"""The parts by name, each with a function of a loop and another one that returns the loop with the part of the other; None where
both have the same."""
