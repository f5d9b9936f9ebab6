"""Results of evals: what a trial says, and how results are stored and put together."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from agentloop.errors import InvalidDocument, InvalidParameter
from agentloop.evals import CaseNote, EvalResult, Score, Trial
from agentloop.values.journal_errors import SchemaTooNew


def trial(candidate: str = "a", case: str = "one", repeat: int = 0, **parts: object) -> Trial:
    scores = (Score("calls", 1.0, passed=True), Score("words", 12.0))
    return Trial(**{"candidate": candidate, "case": case, "repeat": repeat, "seed": 3, "scores": scores, **parts})  # type: ignore[arg-type]  # as the tests write them


def result(*trials: Trial, **parts: object) -> EvalResult:
    cases = [CaseNote(name) for name in dict.fromkeys(each.case for each in trials)]
    names = dict.fromkeys(each.candidate for each in trials)
    return EvalResult(**{"suite": "s", "candidates": tuple(names), "cases": cases, "trials": trials, **parts})  # type: ignore[arg-type]  # as the tests write them


def test_a_result_is_read_as_it_was_written() -> None:
    """The document holds every field."""
    written = result(
        trial(cost=0.25, tokens=12, steps=3, seconds=1.5, answered={"recorded": 2, "refused": 1}),
        trial(case="two", status="error", error="ValueError: no such invoice"),
        repeats=2,
        seed=9,
        stopped="the budget of 1 USD is used up",
    )
    assert EvalResult.from_json(written.to_json()) == written


def test_a_result_of_a_newer_version_is_refused() -> None:
    """Nothing is guessed about fields that this version does not know."""
    document = json.loads(result(trial()).to_json())
    with pytest.raises(SchemaTooNew):
        EvalResult.from_json(json.dumps({**document, "schema_version": 999}))
    with pytest.raises(InvalidDocument, match=r"\$\.trials"):
        EvalResult.from_json(json.dumps({**document, "value": {**document["value"], "trials": [3]}}))


def test_a_trial_passes_when_nothing_says_that_it_failed() -> None:
    """A measure is not a verdict, and an error is a failure."""
    assert trial().passed
    assert not trial(scores=(Score("a", 1.0, passed=True), Score("b", 0.0, passed=False))).passed
    assert not trial(error="TimeoutError").passed
    assert trial(scores=()).passed


def test_measures_are_listed_by_case() -> None:
    """Each case has the numbers of its repeats; where a trial has none, there is none."""
    whole = result(trial(cost=1.0), trial(repeat=1), trial(case="two", cost=2.0, scores=()), repeats=2)
    assert whole.measures("a") == {"one": [1.0, 1.0], "two": [1.0]}
    assert whole.measures("a", "words") == {"one": [12.0, 12.0]}
    assert whole.measures("a", "cost") == {"one": [1.0], "two": [2.0]}
    assert whole.measure_names == ("passed", "calls", "words", "cost", "steps", "seconds")
    assert whole.cost == 3.0
    assert not whole.is_complete
    with pytest.raises(InvalidParameter, match="no candidate 'b'; it has a"):
        whole.measures("b")


def test_parts_of_an_eval_are_merged() -> None:
    """The trials of machines that each ran some cases, or one candidate, are those of one result, in its order."""
    first, second = result(trial(repeat=1), trial(case="two")), result(trial(), trial("b"))
    merged = first.merge(second)
    assert [(each.candidate, each.case, each.repeat) for each in merged.trials] == [
        ("a", "one", 0),
        ("a", "one", 1),
        ("a", "two", 0),
        ("b", "one", 0),
    ]
    assert merged.candidates == ("a", "b")
    for other, message in (
        (first, "the same trial"),
        (evolve(second, suite="t"), "the suite is 's' in one and 't'"),
        (evolve(second, cases=(CaseNote("one", version="2"),)), "the case 'one' has changed"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            first.merge(other)
