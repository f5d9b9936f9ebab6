"""A comparison says what differs between candidates, how sure that is, and what would settle it."""

from __future__ import annotations

import pytest
from attrs import evolve

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.comparison import compare
from agentloop.evals.quantities import Quantity, format_cost
from tests.evals.made_results import make_result, mostly


def test_a_candidate_that_loses_many_cases_is_worse() -> None:
    """A planted loss of half of the cases is found, with all cases that lost first."""
    result = make_result({"main": mostly(36, 40), "short": mostly(18, 40)})
    comparison = compare(result)
    found = comparison.difference("short")
    assert found.verdict == "worse"
    assert found.estimate.value == pytest.approx(-18 / 40)
    assert found.corrected_p < 0.001
    assert (found.more_repeats, found.more_cases) == (None, None)
    lost = [each.case for each in comparison.cases if each.difference < 0]
    assert lost == [f"case {number}" for number in range(18, 36)]
    assert comparison.cases[0].difference == -1.0


def test_equal_candidates_are_not_told_apart_and_the_report_says_what_would() -> None:
    """Where no case differs, the interval still has a width, and more cases would narrow it."""
    comparison = compare(make_result({"main": mostly(18, 20), "same": mostly(18, 20)}))
    found = comparison.difference("same")
    assert found.verdict == "open"
    assert found.p == 1.0
    assert found.more_cases is not None
    assert found.more_cases > 20
    assert found.detectable > 0.05


def test_repeats_that_vary_are_settled_by_more_repeats() -> None:
    """Where cases are alike and repeats vary, the number of repeats that would settle it is given."""
    first = [[True, False, True], [False, True, True], [True, True, False]] * 20
    second = [[False, True, True], [False, False, True], [True, False, False]] * 20
    found = compare(make_result({"main": first, "other": second})).difference("other")
    assert found.power is not None
    assert found.verdict in {"open", "worse"}


def test_costs_are_compared_as_relative_changes() -> None:
    """A candidate that costs a tenth more in every case is found to do so, and to be worse in cost."""
    passes = mostly(9, 10, 1)
    result = make_result(
        {"main": passes, "long": passes},
        cost=lambda name, case, _: (0.01 + case / 1_000) * (1.1 if name == "long" else 1),
    )
    found = compare(result).difference("long", "cost")
    assert found.relative is not None
    assert found.relative.value == pytest.approx(0.1)
    assert found.verdict == "worse"
    assert str(found).startswith("cost of long against main: +$0.0015 (")


def test_single_trials_are_tested_by_mcnemar() -> None:
    """With one trial per case, the p-value is that of McNemar's exact test: here 8 cases lost and none won."""
    found = compare(make_result({"main": mostly(10, 20, 1), "short": mostly(2, 20, 1)})).difference("short")
    assert found.p == pytest.approx(2 / 2**8)


def test_p_values_are_corrected_for_all_comparisons() -> None:
    """Holm's correction raises the p-values of a report that has many."""
    comparison = compare(make_result({"main": mostly(15, 20), "a": mostly(10, 20), "b": mostly(20, 20)}))
    assert all(each.corrected_p >= each.p for each in comparison.differences)
    assert comparison.difference("a").corrected_p > comparison.difference("a").p


def test_another_result_is_a_baseline_and_cases_that_changed_are_left_out() -> None:
    """Candidates are compared with those of the same name in the baseline, over cases with the same version."""
    main = make_result({"agent": mostly(18, 20)})
    change = make_result({"agent": mostly(9, 21)}, versions={"case 3": "2"})
    comparison = compare(change, main)
    assert comparison.candidates == ("agent (baseline)", "agent")
    found = comparison.difference("agent")
    assert found.estimate.count == 19
    assert found.left_out == ("case 3", "case 20")
    assert {each.case for each in comparison.cases}.isdisjoint(found.left_out)


def test_a_result_of_one_candidate_has_estimates_and_no_differences() -> None:
    """One candidate alone has a table of its own."""
    comparison = compare(make_result({"agent": mostly(18, 20)}))
    assert comparison.differences == ()
    # The only scorer says the same as pass@1, so that it is not counted as another comparison.
    assert comparison.quantities == ("pass@1", "pass@3", "pass^3", "cost", "tokens", "steps", "seconds")
    assert comparison.estimates["agent"]["pass@1"].value == 0.9


def test_the_shown_trials_of_a_case_are_the_first_that_differ() -> None:
    """A reader looks at a repeat in which one candidate passes and the other one does not."""
    result = make_result({"main": [[True, True, True]], "short": [[True, False, False]]})
    (each,) = compare(result).cases
    assert [trial.execution_id for trial in each.shown] == ["main-0-1", "short-0-1"]


def test_pass_all_k_needs_as_many_repeats() -> None:
    """What was not run often enough is refused, with what is known."""
    result = make_result({"main": mostly(3, 4, 2)})
    with pytest.raises(InvalidParameter, match=r"pass\^3 needs 3 repeats of a case; the result has 2"):
        Quantity.parse("pass^3").estimate(result, "main")
    with pytest.raises(InvalidParameter, match=r"known are pass@1, pass\^2, right, cost"):
        Quantity.parse("tone").estimate(result, "main")
    with pytest.raises(InvalidParameter, match="needs the number of trials"):
        Quantity.parse("pass^")


@pytest.mark.parametrize(
    ("dollars", "text"), [(0, "$0.00"), (12.5, "$12.50"), (0.0123, "$0.0123"), (0.00001234, "$1.2e-05"), (-2, "-$2.00")]
)
def test_costs_have_as_many_digits_as_they_need(dollars: float, text: str) -> None:
    """Small costs are not rounded to nothing."""
    assert format_cost(dollars) == text


def test_measures_that_are_1_in_every_trial_are_no_shares() -> None:
    """An agent that takes one step in each trial has a mean of one step, not a share of 100 %."""
    result = make_result({"main": mostly(3, 4)})
    single = evolve(result, trials=[evolve(trial, steps=1, tokens=0) for trial in result.trials])
    for name in ("steps", "tokens"):
        assert compare(single).estimates["main"][name].method == "clustered t"
