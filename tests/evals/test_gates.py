"""A gate fails only where the interval says so, and says so where nothing can be said."""

from __future__ import annotations

import pytest
from attrs import evolve

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.gates import Gate, gate_of
from agentloop.evals.results import Score
from tests.evals.made_results import make_result, mostly

_GOOD = make_result({"agent": mostly(196, 200)})
_POOR = make_result({"agent": mostly(100, 200)})
_FEW = make_result({"agent": mostly(9, 10)})
_LONG = evolve(_FEW, trials=[evolve(trial, scores=[Score("length", 80.0 + trial.seed)]) for trial in _FEW.trials])


def test_a_gate_fails_where_the_whole_interval_is_beyond_it() -> None:
    """Half of the cases is less than 90 %, whatever the truth in the interval."""
    report = Gate("pass^3 < 0.9").check(_POOR)
    assert report.outcome == "fails"
    assert str(report).splitlines() == [
        "The gate fails: 'pass^3 < 0.9' holds.",
        "  agent: pass^3 is 50.0 % (43.1 % to 56.9 %, 95 % interval): so pass^3 < 0.9 holds",
    ]


def test_a_gate_passes_where_no_value_of_the_interval_is_beyond_it() -> None:
    """With 98 % of 200 cases, even the low end is above 90 %."""
    assert Gate("pass^3 < 0.9").check(_GOOD).outcome == "passes"


def test_a_gate_is_open_where_the_interval_is_on_both_sides() -> None:
    """Nine of ten cases may be less than 95 %, or more; the report says what would settle it."""
    report = Gate("pass@1 < 0.95").check(_FEW)
    assert report.outcome == "open"
    assert "not enough repeats" in str(report)
    assert "more cases would settle it" in str(report)


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("pass@1 < 0.9 or cost > 1", "passes"),
        ("pass@1 < 0.9 or cost > $0.005", "fails"),
        ("pass@1 > 0.9 and cost > 0.005", "fails"),
        ("not (pass@1 > 90 % and cost < 0.02)", "passes"),
        ("not pass@1 > 0.9 or not cost > 0.02", "fails"),
        ("right >= 0.9 and 'right' <= 100 %", "fails"),
        ("pass@1 > 0.97 and cost > 1", "passes"),
        ("pass@1 > 0.97 and cost < 1", "open"),
        ("pass@1 > 0.97 or cost > 1", "open"),
        ("pass@1 > 0.97 or cost < 1", "fails"),
        ("tokens > 1,000", "fails"),
        ("passed >= 0.5", "fails"),
    ],
)
def test_conditions_are_joined_as_written(condition: str, outcome: str) -> None:
    """`or` decides with one part that holds, `and` with one that does not, and what is open stays open otherwise."""
    assert Gate(condition).check(_GOOD).outcome == outcome


def test_a_change_is_compared_with_the_baseline() -> None:
    """A loss of half of the cases is more than three points; a cost that is the same has not risen by 10 %."""
    report = Gate("pass@1 < -3 points or cost > +10 %").check(_POOR, _GOOD)
    assert report.outcome == "fails"
    assert [finding.is_true for finding in report.findings] == [True, False]
    assert "against agent (baseline)" in report.findings[0].text
    assert Gate("cost > +10 %").check(_POOR, _GOOD).outcome == "passes"


def test_a_change_is_compared_with_the_first_candidate_where_no_baseline_is_given() -> None:
    """Candidates of one eval are compared with its first, which is not judged itself."""
    result = make_result({"main": mostly(180, 200), "same": mostly(180, 200), "worse": mostly(90, 200)})
    report = Gate("passed < -5 points").check(result)
    assert [(each.candidate, each.is_true) for each in report.findings] == [("same", False), ("worse", True)]


def test_intervals_are_wider_the_more_comparisons_a_gate_has() -> None:
    """A gate of two comparisons and two candidates has intervals of 98.75 %, so that 95 % hold together."""
    result = make_result({"main": mostly(15, 20), "a": mostly(15, 20), "b": mostly(15, 20)})
    report = Gate("pass@1 < 0.5 or cost > 1").check(result)
    assert len(report.findings) == 4
    assert all("98.75 % interval" in each.text for each in report.findings)


def test_costs_that_vary_are_open_until_enough_is_run() -> None:
    """Costs that differ by chance neither hold nor fail a gate on their change."""
    passes = mostly(5, 6, 1)
    noisy = make_result({"agent": passes}, cost=lambda _, case, __: 0.01 * (1 + (case * 7 % 5)))
    other = make_result({"agent": passes}, cost=lambda _, case, __: 0.01 * (1 + (case * 3 % 5)))
    assert Gate("cost > +10 %").check(noisy, other).outcome == "open"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a quantity"),
        ("pass^3", "expected <, <=, > or >= behind pass^3"),
        ("pass^3 <", "expected a number behind <"),
        ("pass^ < 0.9", "needs the number of trials"),
        ("pass^3 < 0.9 cost > 1", "expected 'and', 'or' or the end"),
        ("(pass^3 < 0.9", "expected ')'"),
        ("pass^3 = 0.9", "this cannot be read"),
        ("pass^3 < 90", "at most 1, or 100 %"),
        ("pass@1 < -3 %", "write its change in points"),
        ("pass@1 < 3 points", "need a sign"),
        ("cost > 10 %", "a change needs a sign"),
        ("cost > +3 points", "points are of a share"),
        ("tokens > $3", "only a cost has dollars"),
        ("cost > 1.2.3", "cannot be read"),
        ("not " * 60 + "cost > 1", "nested too deeply"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, problem: str) -> None:
    """An error names the word, what is wrong with it, and marks it under the text."""
    with pytest.raises(InvalidParameter) as caught:
        Gate(text)
    assert problem in str(caught.value)
    *_, shown, marks = str(caught.value).splitlines()
    assert shown == f"  {text}"
    assert set(marks) <= {" ", "^"}


def test_what_a_result_does_not_have_is_refused() -> None:
    """A gate about a scorer that never ran is an error of the gate, not one that passes."""
    with pytest.raises(InvalidParameter, match="no trial of 'agent' has a number 'tone'"):
        Gate("tone < 0.5").check(_GOOD)
    with pytest.raises(InvalidParameter, match="there is nothing to compare with"):
        Gate("cost > +10 %").check(_GOOD)
    with pytest.raises(InvalidParameter, match=r"such as \+10 %, not in points"):
        Gate("'length' < -3 points").check(_LONG, _LONG)
    with pytest.raises(InvalidParameter, match="write its change in points"):
        Gate("right < -10 %").check(_POOR, _GOOD)


def test_several_conditions_are_one_gate() -> None:
    """Each of several conditions refuses a change; one that cannot be read is named."""
    assert gate_of(["pass@1 < 0.5", "cost > 1 and steps > 3"]).text == "(pass@1 < 0.5) or (cost > 1 and steps > 3)"
    with pytest.raises(InvalidParameter):
        gate_of(["pass@1 < 0.5", "cost >"])
    with pytest.raises(InvalidParameter):
        gate_of([])
