"""Scorers: what each says about answers, calls, effects and limits, and that it is silent where nothing is expected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.errors import InvalidParameter
from agentloop.evals import (
    AnswerContains,
    AnswerFields,
    AnswerFits,
    AnswerMatches,
    CallLike,
    CanScore,
    Case,
    EvalSuite,
    ExactAnswer,
    ExpectedCalls,
    ExpectedEffects,
    Real,
    Score,
    ScoreBy,
    Simulated,
    TrialRun,
    WithinLimits,
)
from agentloop.policies import Price, PriceTable
from agentloop.testing import FakeTool

PRICES = PriceTable({"scripted": Price(1_000_000, 0)})
TOOLS = [FakeTool("read", effect="pure"), FakeTool("pay"), FakeTool("refund")]


async def said(scorer: CanScore, answer: str = "done", *calls: tuple[str, str], **case: Any) -> Score | None:
    """Return what a scorer says about an agent that makes calls, one by one, and answers."""
    lines = [ToolCall(f"{number}", name, arguments) for number, (name, arguments) in enumerate(calls)]
    loop = AgentLoop.for_model(ScriptedInference(*lines, answer), tools=TOOLS)
    worlds = [Simulated({"pay": "paid"}), Real()]
    suite = EvalSuite("s", [Case(name="one", input="Go.", **case)], {"a": loop}, [scorer], worlds, prices=PRICES)
    (trial,) = (await suite.run()).trials
    assert trial.error == ""
    return trial.scores[0] if trial.scores else None


async def verdict(scorer: CanScore, answer: str = "done", *calls: tuple[str, str], **case: Any) -> tuple[float, str]:
    score = await said(scorer, answer, *calls, **case)
    assert score is not None
    assert score.passed == (score.value == 1.0)
    return score.value, score.reason


@pytest.mark.parametrize(
    ("scorer", "expected", "answer", "outcome"),
    [
        (ExactAnswer(), {"answer": "four"}, " four\n", (1.0, "")),
        (ExactAnswer(), {"answer": "four"}, "Four", (0.0, "the answer is 'Four', not 'four'")),
        (ExactAnswer(ignore_case=True), {"answer": "four"}, "Four", (1.0, "")),
        (ExactAnswer(name="total"), {"total": 4}, "4", (1.0, "")),
        (AnswerContains(), {"contains": "Paris"}, "It is paris.", (1.0, "")),
        (
            AnswerContains(ignore_case=False),
            {"contains": ["It", "Paris"]},
            "It is paris.",
            (0.0, "the answer lacks 'Paris'"),
        ),
        (AnswerMatches(), {"matches": [r"\b\d{4}\b", "^In"]}, "In 1984", (1.0, "")),
        (AnswerMatches(), {"matches": r"^\d+$"}, "In 1984", (0.0, r"the answer does not match '^\\d+$'")),
        (AnswerFits(), {"schema": {"type": "object", "required": ["a"]}}, 'So: {"a": 1}', (1.0, "")),
        (
            AnswerFits({"type": "object", "required": ["a"]}),
            {},
            '{"b": 1}',
            (0.0, "$: 'a' is a required property"),
        ),
        (AnswerFits(), {"schema": {"type": "object"}}, "none", (0.0, None)),
        (AnswerFields(), {"fields": {"a": 1, "b": [2]}}, '{"a": 1, "b": [2], "c": 3}', (1.0, "")),
        (AnswerFields(), {"fields": {"a": 1, "b": 2}}, '{"a": 1}', (0.5, "b is null, not 2")),
        (AnswerFields(), {"fields": {"a": 1}}, "[1]", (0.0, "a is null, not 1")),
    ],
)
async def test_an_answer_is_scored(
    scorer: CanScore, expected: dict[str, Any], answer: str, outcome: tuple[float, str | None]
) -> None:
    """Each scorer reads its own expectation, and says what is wrong."""
    value, reason = await verdict(scorer, answer, expected=expected)
    assert value == outcome[0]
    assert outcome[1] is None or reason == outcome[1]


@pytest.mark.parametrize(
    "scorer",
    [
        ExactAnswer(),
        AnswerContains(),
        AnswerMatches(),
        AnswerFits(),
        AnswerFields(),
        ExpectedCalls(),
        ExpectedEffects(),
    ],
)
async def test_a_scorer_is_silent_about_cases_that_expect_nothing_of_it(scorer: CanScore) -> None:
    """One suite can have cases of several kinds."""
    assert await said(scorer, "done", ("pay", "{}")) is None


READ_1, READ_2, PAY_5, PAY_9 = (
    ("read", '{"number": 1}'),
    ("read", '{"number": 2}'),
    ("pay", '{"cents": 5, "to": "mia"}'),
    ("pay", '{"cents": 9}'),
)


@pytest.mark.parametrize(
    ("scorer", "calls", "reason"),
    [
        (ExpectedCalls(must=["read", CallLike("pay", {"cents": 5})]), [PAY_5, READ_1], ""),
        (
            ExpectedCalls(must=["read", "pay"], in_order=True),
            [PAY_5, READ_1],
            "no call of pay(…) after that of read(…)",
        ),
        (ExpectedCalls(must=["read", "pay"], in_order=True), [READ_1, READ_2, PAY_5], ""),
        (ExpectedCalls(must=["read", "read"]), [READ_1, PAY_5], "no call of read(…)"),
        # A pattern that any call fits leaves the only fitting call to a stricter one.
        (ExpectedCalls(must=["*", CallLike("read", {"number": 1})]), [READ_1, READ_2], ""),
        (ExpectedCalls(must=[CallLike("pay", {"cents": 5}, exactly=True)]), [PAY_5], "no call of pay(cents=5)"),
        (ExpectedCalls(must=[{"name": "pay", "arguments": {"cents": 9}, "exactly": True}]), [PAY_9], ""),
        (ExpectedCalls(must_not=["re*"]), [PAY_5, READ_2], "called read(number=2)"),
        (ExpectedCalls(must_not=[CallLike("pay", {"cents": lambda cents: cents > 5})]), [PAY_5], ""),
        (ExpectedCalls(counts={"pay": 1, "*": 3}), [PAY_5, PAY_9], "2 calls of pay, not 1; 2 calls of *, not 3"),
        (ExpectedCalls(must=["refund"]), [("refund", "{}")], ""),
        (ExpectedCalls(must=["refund"], succeeded=True), [("refund", "{}")], "no call of refund(…)"),
    ],
)
async def test_calls_are_scored(scorer: CanScore, calls: list[tuple[str, str]], reason: str) -> None:
    """Must, must not, order and count; a refused call counts unless only those that succeeded do."""
    assert await verdict(scorer, "done", *calls) == (float(not reason), reason)


async def test_a_case_says_what_calls_it_expects() -> None:
    """As an object with the names of the attributes, or as a list; a mistake in it is an error."""
    expected: dict[str, Any] = {
        "calls": {"must": ["read", {"name": "pay", "arguments": {"cents": 5}}], "in_order": True, "counts": {"pay": 1}}
    }
    assert await verdict(ExpectedCalls(), "done", READ_1, PAY_5, expected=expected) == (1.0, "")
    assert await verdict(ExpectedCalls(), "done", PAY_5, READ_1, expected=expected) == (
        0.0,
        "no call of pay(cents=5, …) after that of read(…)",
    )
    assert await verdict(ExpectedCalls(), "done", READ_1, expected={"calls": ["read"]}) == (1.0, "")
    mistakes: tuple[Any, ...] = ({"musts": []}, {"must": [3]}, "read")
    for mistake in mistakes:
        case = Case(name="one", expected={"calls": mistake})
        (trial,) = (
            await EvalSuite("s", [case], {"a": AgentLoop.for_model(ScriptedInference("a"))}, [ExpectedCalls()]).run()
        ).trials
        assert trial.error.startswith("a scorer failed: InvalidParameter: ")


async def test_effects_are_those_that_happened_in_the_world() -> None:
    """A refused call has none, and neither has a pure one; each effect needs an expectation of its own."""
    expected = {"effects": [{"name": "pay", "arguments": {"cents": 5}}]}
    assert await verdict(ExpectedEffects(), "done", READ_1, PAY_5, ("refund", "{}"), expected=expected) == (1.0, "")
    assert await verdict(ExpectedEffects(), "done", PAY_9, expected=expected) == (0.0, "no call of pay(cents=5, …)")
    assert await verdict(ExpectedEffects(), "done", PAY_5, PAY_9, expected=expected) == (
        0.0,
        "also changed the world by pay(cents=9)",
    )
    assert await verdict(ExpectedEffects(), "done", PAY_5, ("pay", '{"cents": 5}'), expected=expected) == (
        0.0,
        "also changed the world by pay(cents=5)",
    )
    assert await verdict(ExpectedEffects(), "done", READ_1, expected={"effects": []}) == (1.0, "")


async def test_limits_are_verdicts() -> None:
    """A number that is not known keeps no limit."""
    assert await verdict(WithinLimits(cost=20, tokens=30, steps=2, calls=1, seconds=60), "done", READ_1) == (1.0, "")
    value, reason = await verdict(WithinLimits(cost=19.5, tokens=29, steps=1, calls=0), "done", READ_1)
    assert (value, reason) == (
        0.0,
        "20 cost, more than 19.5; 30 tokens, more than 29; 2 steps, more than 1; 1 calls, more than 0",
    )


async def test_a_function_scores() -> None:
    """It returns a verdict, a number, a score or nothing; it may be async."""

    def length(run: TrialRun) -> float:
        return len(run.answer)

    async def polite(run: TrialRun) -> Score:
        await asyncio.sleep(0)
        return Score("tone", 0.5, passed=True, reason=run.case.name)

    assert await said(ScoreBy(length)) == Score("length", 4.0)
    assert await said(ScoreBy(polite)) == Score("tone", 0.5, passed=True, reason="one")
    assert await said(ScoreBy(lambda run: run.answer == "done", name="is done")) == Score("is done", 1.0, passed=True)
    case = Case(name="one")
    with pytest.raises(InvalidParameter, match="two scorers are named 'length'"):
        EvalSuite("s", [case], {"a": AgentLoop.for_model(ScriptedInference())}, [length, ScoreBy(length)])
    with pytest.raises(InvalidParameter, match="'cost' is measured of every trial"):
        EvalSuite("s", [case], {"a": AgentLoop.for_model(ScriptedInference())}, [ScoreBy(length, name="cost")])
