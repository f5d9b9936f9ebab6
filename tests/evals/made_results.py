"""Results of evals that never ran, for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agentloop.evals.results import CaseNote, EvalResult, Score, Trial


def make_result(
    passes: Mapping[str, Sequence[Sequence[bool]]],
    *,
    cost: Callable[[str, int, int], float | None] = lambda candidate, case, repeat: 0.01,
    suite: str = "refunds",
    versions: Mapping[str, str] | None = None,
    stopped: str = "",
) -> EvalResult:
    """Return a result with these passes by candidate, case and repeat.

    Args:
        passes: for each candidate, for each case, whether each repeat passes.
        cost: the cost of a trial, by candidate, number of the case and repeat.
        suite: the name of the suite.
        versions: the versions of cases that have not the usual one, by name.
        stopped: why the eval was stopped.
    """
    count = max(len(cases) for cases in passes.values())
    notes = [CaseNote(f"case {number}", version=(versions or {}).get(f"case {number}", "1")) for number in range(count)]
    trials = [
        Trial(
            candidate=candidate,
            case=f"case {number}",
            repeat=repeat,
            seed=100 * number + repeat,
            execution_id=f"{candidate}-{number}-{repeat}",
            scores=(Score("right", float(passed), passed, "" if passed else "the refund is missing"),),
            cost=cost(candidate, number, repeat),
            tokens=1_000 + 10 * number + repeat,
            steps=3 + repeat % 2,
            seconds=1.5,
            answered={"recorded": 2},
        )
        for candidate, cases in passes.items()
        for number, repeats in enumerate(cases)
        for repeat, passed in enumerate(repeats)
    ]
    most = max(len(repeats) for cases in passes.values() for repeats in cases)
    return EvalResult(
        suite=suite,
        candidates=tuple(passes),
        cases=tuple(notes),
        trials=tuple(trials),
        repeats=most,
        seed=7,
        stopped=stopped,
    )


def mostly(passing: int, cases: int, repeats: int = 3) -> list[list[bool]]:
    """Return cases of which so many pass always, and the others never."""
    return [[number < passing] * repeats for number in range(cases)]
