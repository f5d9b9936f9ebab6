"""Judges: their verdicts, what they cost, which of two answers they prefer, and how far they agree with people."""

from __future__ import annotations

import json

import pytest

from agentloop import AgentLoop, FunctionInference, ScriptedInference
from agentloop.durable import MemoryJournal
from agentloop.errors import InvalidParameter
from agentloop.evals import Case, Cases, EvalSuite, LabeledAnswer, PairJudge, RubricJudge, measure_agreement
from agentloop.policies import Price, PriceTable
from agentloop.values import InferenceRequest

PRICES = PriceTable({"function": Price(1_000_000, 0), "scripted": Price(0, 0)})


def judge_of(asked: list[InferenceRequest]) -> RubricJudge:
    """Return a judge that passes polite answers."""

    def say(request: InferenceRequest) -> str:
        asked.append(request)
        seen = json.loads(request.messages[0].text)
        return json.dumps({"passes": "please" in seen["answer"], "reason": f"about {seen['task']}"})

    return RubricJudge(FunctionInference(say), "The answer is polite.", name="polite")


async def test_a_judge_scores_trials_and_is_asked_once() -> None:
    """It sees the task, the answer and the reference; its verdict is in the journal, and its cost is that of the trial."""
    asked: list[InferenceRequest] = []
    cases = Cases([Case(name="one", input="Ask.", expected={"polite": "Say please."})])
    candidates = {
        "rude": AgentLoop.for_model(ScriptedInference("go")),
        "kind": AgentLoop.for_model(ScriptedInference("go, please")),
    }
    suite, journal = EvalSuite("s", cases, candidates, [judge_of(asked)], prices=PRICES), MemoryJournal()
    result = await suite.run(journal=journal)
    assert [(trial.passed, trial.scores[0].reason, trial.cost) for trial in result.trials] == [
        (False, "about Ask.", 10.0),
        (True, "about Ask.", 10.0),
    ]
    assert json.loads(asked[0].messages[0].text) == {
        "task": "Ask.",
        "reference": "Say please.",
        "calls": [],
        "answer": "go",
    }
    assert "The answer is polite." in asked[0].system_prompt
    assert await suite.run(journal=journal) == result
    assert len(asked) == 2
    assert await Cases.from_journal(journal) == Cases()


async def test_a_judge_without_a_verdict_is_an_error_of_the_trial() -> None:
    """Nothing is guessed."""
    judge = RubricJudge(FunctionInference(lambda _: "Well."), "Any.")
    candidates = {"a": AgentLoop.for_model(ScriptedInference("go"))}
    (trial,) = (await EvalSuite("s", [Case(name="one")], candidates, [judge]).run()).trials
    assert not trial.passed
    assert trial.error.startswith("a scorer failed: ")


async def test_the_agreement_with_people_has_an_interval() -> None:
    """Kappa as published: of 50 proposals, two readers agree about 20 and 15, and differ about 5 and 10; kappa is 0.4."""
    asked: list[InferenceRequest] = []
    answers = [("please", True)] * 20 + [("please", False)] * 5 + [("no", True)] * 10 + [("no", False)] * 15
    labeled = [
        LabeledAnswer(case=Case(name=f"{number}", input=f"{number}"), answer=answer, passed=passed)
        for number, (answer, passed) in enumerate(answers)
    ]
    journal = MemoryJournal()
    agreement = await measure_agreement(judge_of(asked), labeled, journal=journal, prices=PRICES)
    assert agreement.kappa.value == pytest.approx(0.4)
    assert agreement.kappa.low < 0.4 < agreement.kappa.high
    assert agreement.kappa.high - agreement.kappa.low > 0.3
    assert (agreement.agreement.value, agreement.too_kind, agreement.too_strict) == (0.7, 5, 10)
    assert agreement.cost == 500.0
    assert str(agreement).startswith("polite: kappa 0.40 [0.")
    assert await measure_agreement(judge_of(asked), labeled, journal=journal, prices=PRICES) == agreement
    assert len(asked) == 50
    with pytest.raises(InvalidParameter, match="there is none"):
        await measure_agreement(judge_of(asked), [])


async def test_a_preference_holds_in_both_orders() -> None:
    """A judge that prefers a place prefers nothing."""
    journal = MemoryJournal()
    cases = Cases([Case(name="one", input="Ask."), Case(name="two", input="Ask more.")])
    candidates = {
        "short": AgentLoop.for_model(ScriptedInference("a")),
        "long": AgentLoop.for_model(ScriptedInference("aaa")),
    }
    result = await EvalSuite("s", cases, candidates).run(journal=journal)
    asked: list[InferenceRequest] = []

    def longer(request: InferenceRequest) -> str:
        asked.append(request)
        seen = json.loads(request.messages[0].text)
        better = "first" if seen["task"] == "Ask more." or len(seen["first"]) > len(seen["second"]) else "second"
        return json.dumps({"better": better, "reason": "so"})

    judge = PairJudge(FunctionInference(longer), "The longer one.")
    found = await judge.preferences(result, cases, "short", "long", journal=journal)
    assert [(each.case, each.better, each.is_consistent) for each in found] == [
        ("one", "long", True),
        ("two", "", False),
    ]
    assert await judge.preferences(result, cases, "short", "long", journal=journal) == found
    assert len(asked) == 4
