"""The tasks of tau-bench, with agents of planted quality: evals find the order, the cases and the cause that were planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentloop.evals import (
    Cases,
    EvalSuite,
    ExpectedCalls,
    ExpectedEffects,
    Recorded,
    Refused,
    TrialContext,
    compare,
    find_blame,
)
from agentloop.testing import CrashableJournal, FakeTool, ManualClock
from agentloop.values import InferenceRequest, RecordKind
from tests.evals.tau_bench import Plant, Unimportant, tau_agent, tau_cases, tau_tools

PLANTED = ("cancel_reservation", "return_delivered_order_items", "update_reservation_flights")
"""The calls with which the planted agents have trouble."""
PERFECT, CAREFUL, CARELESS = Plant(0.0), Plant(0.25, PLANTED), Plant(0.7, PLANTED)
WORLDS = [Recorded(), Refused("Error: there is nothing like that")]


@pytest.fixture(scope="module")
def cases(corpus: Path) -> Cases:
    if not (corpus / "executor" / "tau_gold.jsonl").exists():
        pytest.skip("the corpus has no tasks of tau-bench")
    return tau_cases(corpus)


@pytest.fixture(scope="module")
def tools(corpus: Path) -> dict[str, list[FakeTool]]:
    return tau_tools(corpus)


def suite_of(cases: Cases, tools: dict[str, list[FakeTool]], plants: dict[str, Plant], **options: Any) -> EvalSuite:
    asked = options.pop("asked", lambda _: None)

    def maker(plant: Plant) -> Any:
        return lambda trial: tau_agent(trial, tools, plant, asked, clock=ManualClock())

    candidates = {name: maker(plant) for name, plant in plants.items()}
    return EvalSuite("tau-bench", cases, candidates, [ExpectedCalls(), ExpectedEffects()], WORLDS, **options)


async def test_evals_find_the_planted_order_and_the_planted_cases(
    cases: Cases, tools: dict[str, list[FakeTool]]
) -> None:
    """Whoever knows all gold calls passes everything; the others fail where they were made to, and no candidate touches the world."""
    plants = {"careless": CARELESS, "perfect": PERFECT, "careful": CAREFUL}
    result = await suite_of(cases, tools, plants).run()
    assert result.is_complete
    assert [trial.error for trial in result.trials if trial.error] == []
    rates = {name: sum(trial.passed for trial in result.of(name)) / len(result.of(name)) for name in plants}
    assert rates["perfect"] == 1.0
    assert sorted(rates, key=rates.__getitem__) == ["careless", "careful", "perfect"]
    planted = {case.name for case in cases if set(PLANTED) & set(case.tags)}
    for name in ("careless", "careful"):
        failed = {trial.case for trial in result.of(name) if not trial.passed}
        assert failed
        assert failed <= planted
    comparison = compare(result, baseline="perfect")
    passing = [each for each in comparison.differences if each.quantity.name == "pass"]
    worse = {each.candidate for each in passing if each.estimate.high < 0 and each.corrected_p < 0.05}
    assert worse == {"careless", "careful"}
    assert all(tool.calls == [] for domain in tools.values() for tool in domain)
    assert {world for trial in result.of("perfect") for world in trial.answered} == {"recorded"}


async def test_evals_find_the_planted_cause(cases: Cases, tools: dict[str, list[FakeTool]]) -> None:
    """Of a new prompt and a new interceptor, the prompt makes the agent worse."""
    plant = Plant(0.7, PLANTED, unless="twice")

    def old(trial: TrialContext) -> Any:
        return tau_agent(trial, tools, plant, system_prompt="Look twice.")

    def new(trial: TrialContext) -> Any:
        return tau_agent(trial, tools, plant, system_prompt="Be quick.", interceptors=[Unimportant()])

    hard = Cases([case for case in cases if set(PLANTED) & set(case.tags)][:12])
    suite = EvalSuite("tau-bench", hard, {"old": old, "new": new}, [ExpectedEffects()], WORLDS, repeats=2)
    blame = await find_blame(suite, baseline="old", changed="new")
    assert blame.cause == "prompt", str(blame)
    assert {part.part for part in blame.parts if part.restored} == {"prompt"}
    assert "interceptors" in {part.part for part in blame.parts}


async def test_an_eval_of_tau_bench_survives_every_tenth_record(cases: Cases, tools: dict[str, list[FakeTool]]) -> None:
    """The same report, and nothing is paid twice."""
    asked: list[InferenceRequest] = []
    suite = suite_of(cases[:6], tools, {"careless": CARELESS, "careful": CAREFUL}, asked=asked.append)
    journal = CrashableJournal()
    whole = await suite.run(journal=journal)
    paid = len(asked)
    assert len(journal.appended) > 50
    for count in range(10, len(journal.appended), 10):
        survived = await journal.after_crash(count)
        known = [record.kind for record in journal.appended[:count]].count(RecordKind.INFERENCE_RECORDED)
        asked.clear()
        assert await suite.run(journal=survived) == whole
        assert len(asked) + known == paid, count
