"""Suites: seeds, resumption after every crash, budgets, progress, and what a trial says when something fails."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, FunctionInference, RequireApproval, ScriptedInference, SqliteJournal, approve
from agentloop.contracts import CanJournal, Claim
from agentloop.durable import MemoryJournal, check_journal
from agentloop.errors import ConfigurationError, InvalidParameter, UnknownExecution
from agentloop.evals import (
    CallLike,
    Candidate,
    Case,
    CaseOrigin,
    Cases,
    EvalProgress,
    EvalResult,
    EvalSuite,
    ExpectedCalls,
    Played,
    Real,
    Recorded,
    Simulated,
    TrialContext,
    TrialRun,
)
from agentloop.policies import Price, PriceTable
from agentloop.testing import CrashableJournal, ManualClock
from agentloop.values import ExecutionHead, InferenceRequest, JournalRecord, RecordKind
from tests.evals.invoices import PAID, clerk, clerks, record
from tests.loaded import LoadedProcess

TOO_MUCH = ExpectedCalls(must_not=[CallLike("pay", {"cents": lambda cents: cents >= 500})])
PRICES = PriceTable({"function": Price(input=100_000, output=0)})  # a dollar per request of ten tokens


async def recorded_cases(journal: CanJournal) -> Cases:
    await record(journal, 3, 6, 7, 9)
    return await Cases.from_journal(journal, each_decision=True)


def suite_of(cases: Cases, asked: Any = lambda _: None, **options: Any) -> EvalSuite:
    played = Played(FunctionInference(lambda _: "paid"), ["pay"])
    given = {"repeats": 2, "prices": PRICES, "worlds": [Recorded(), played, Real()], **options}
    return EvalSuite("invoices", cases, clerks(asked, clock=ManualClock()), [TOO_MUCH], **given)


async def test_recorded_runs_tell_a_careless_candidate_from_a_careful_one() -> None:
    """Forked at each decision, both meet the same world, and no fork pays."""
    journal = MemoryJournal()
    cases = await recorded_cases(journal)
    PAID.clear()
    result = await suite_of(cases, repeats=8).run(recordings=journal)
    assert PAID == []
    assert result.is_complete
    rates = {
        name: {case: sum(passed) / 8 for case, passed in result.measures(name).items()} for name in result.candidates
    }
    decided = [case.name for case in cases if case.name[-1] == "2" and "run-3" not in case.name]
    assert all(rates["careless"][case] < rates["careful"][case] for case in decided), rates
    assert rates["careless"]["run-3#2"] == 1.0
    assert {trial.seed for trial in result.of("careless")} == {trial.seed for trial in result.of("careful")}
    assert len({trial.seed for trial in result.trials}) == len(cases) * 8
    assert len(await journal.list()) == 4


async def test_a_trial_has_the_same_seed_whatever_else_the_suite_has() -> None:
    """More cases, candidates or repeats change no trial that has run."""
    journal = MemoryJournal()
    cases = await recorded_cases(journal)
    small = await evolve(suite_of(cases[2:4]), repeats=1).run(recordings=journal)
    large = await suite_of(cases).run(recordings=journal)
    assert set(small.trials) < set(large.trials)


def inferences_in(journal: CrashableJournal, count: int) -> int:
    """Return how many answers of the candidates are among the first records."""
    kinds = [each.kind for each in journal.appended[:count]]
    return kinds.count(RecordKind.INFERENCE_RECORDED)


async def test_an_eval_that_is_killed_at_any_record_goes_on() -> None:
    """The report is the same, and what is recorded is not asked for again."""
    recordings, journal = MemoryJournal(), CrashableJournal()
    cases, asked = await recorded_cases(recordings), list[InferenceRequest]()
    suite = suite_of(cases, asked.append)
    whole = await suite.run(journal=journal, recordings=recordings)
    paid, records = len(asked), len(journal.appended)
    assert records > 200
    for count in range(10, records, 10):
        survived = await journal.after_crash(count)
        asked.clear()
        assert await suite.run(journal=survived, recordings=recordings) == whole
        assert len(asked) + inferences_in(journal, count) == paid, count
    asked.clear()
    assert await suite.run(journal=journal, recordings=recordings) == whole
    assert asked == []
    assert not await check_journal(journal)


KILLED = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from agentloop import SqliteJournal
from tests.evals.test_runner import dying_run
asyncio.run(dying_run())
"""


class DyingJournal(SqliteJournal):
    """Kills its process after ten records."""

    left = 10

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        await super().append(head, records, claim)
        DyingJournal.left -= len(records)
        if DyingJournal.left <= 0:
            os._exit(9)


def note_request(_: InferenceRequest) -> None:
    with Path("requests").open("a", encoding="utf-8") as file:
        file.write("asked\n")


async def dying_run() -> None:
    recordings = SqliteJournal("recordings.db")
    journal = DyingJournal("evals.db")
    suite = suite_of(await Cases.from_journal(recordings, each_decision=True), note_request, concurrency=1)
    result = await suite.run(journal=journal, recordings=recordings)
    await journal.aclose()
    await recordings.aclose()
    write_result(result)


def write_result(result: EvalResult) -> None:
    Path("result.json").write_bytes(result.to_json())


async def test_an_eval_goes_on_in_another_process(loaded: LoadedProcess, tmp_path: Path) -> None:
    """Processes that are killed after ten records each come to the report of one that is not, with as many requests."""
    recordings, asked = SqliteJournal(tmp_path / "recordings.db"), list[InferenceRequest]()
    await record(recordings, 6, 7)
    suite = suite_of(await Cases.from_journal(recordings, each_decision=True), asked.append, concurrency=1)
    whole = await suite.run(recordings=recordings)
    await recordings.aclose()
    program, deaths = KILLED.format(root=str(Path(__file__).parents[2])), 0
    while (ended := await asyncio.to_thread(loaded.run, program, tmp_path)).code == 9:
        deaths += 1
        assert deaths < 50
    assert ended.code == 0, ended.err
    assert deaths > 5
    assert EvalResult.from_json((tmp_path / "result.json").read_bytes()) == whole
    assert (tmp_path / "requests").read_text().count("asked") == len(asked)


async def test_a_changed_candidate_runs_anew() -> None:
    """Trials are found again by what they were made of: the prompt, the tools, the worlds, the version, the case, the seed."""
    journal, asked = MemoryJournal(), list[InferenceRequest]()
    case = Case(name="one", input="Pay invoice 3")

    async def requests(make: Any, case: Case = case, **options: Any) -> int:
        asked.clear()
        await EvalSuite("s", [case], make, **options).run(journal=journal)
        return len(asked)

    def agent(prompt: str = "", **parts: Any) -> Any:
        return {"a": lambda _: clerk(1.0, 0, asked.append, system_prompt=prompt, **parts)}

    assert await requests(agent()) == 3
    assert await requests(agent()) == 0
    assert await requests(agent("Be careful.")) == 3
    assert await requests(agent(max_steps=9)) == 3
    assert await requests(agent(), worlds=[Simulated(pay="paid"), Real()]) == 3
    assert await requests(agent(), seed=1) == 3
    assert await requests(agent(), version="2") == 3
    assert await requests([Candidate("a", agent()["a"], version="2")]) == 3
    assert await requests(agent(), evolve(case, expected={"answer": "done"})) == 3
    assert await requests(agent("Be careful.")) == 0


async def test_a_fork_has_the_instructions_of_the_candidate() -> None:
    """The conversation is the recorded one, and the system prompt is not."""
    journal, asked = MemoryJournal(), list[InferenceRequest]()
    await clerk(0.0, system_prompt="Old.", journal=journal).execute("Pay invoice 7", execution_id="run")
    cases = await Cases.from_journal(journal, each_decision=True)
    candidates = {
        "text": lambda _: clerk(1.0, 0, asked.append, system_prompt="New."),
        "function": lambda _: clerk(
            1.0, 0, asked.append, system_prompt=lambda state: f"{len(state.messages)} messages."
        ),
    }
    result = await EvalSuite("s", cases[1:2], candidates, concurrency=1).run(recordings=journal)
    assert [request.system_prompt for request in asked] == ["New.", "2 messages."]
    assert [trial.steps for trial in result.trials] == [1, 1]


async def test_a_budget_stops_an_eval_which_a_larger_one_continues() -> None:
    """Trials that have run are in the result and are not paid again; candidates have run on nearly the same trials."""
    journal, asked, progress = MemoryJournal(), list[InferenceRequest](), list[EvalProgress]()
    cases = Cases([Case(name=f"{number}", input=f"Pay invoice {number}") for number in range(6)])
    small = suite_of(cases, asked.append, budget=10.0, concurrency=1, worlds=[Simulated(pay="paid"), Real()])
    result = await small.run(journal=journal, on_progress=progress.append)
    assert result.stopped == "the budget of 10 USD is used up: 12 USD"
    assert (len(result.trials), result.cost, len(asked)) == (4, 12.0, 12)
    assert [(each.done, each.planned, each.cost) for each in progress] == [
        (1, 24, 3.0),
        (2, 24, 6.0),
        (3, 24, 9.0),
        (4, 24, 12.0),
    ]
    assert {trial.candidate for trial in result.trials} == {"careless", "careful"}
    assert not result.is_complete
    asked.clear()
    larger = await evolve(small, budget=1000.0).run(journal=journal)
    assert larger.is_complete
    assert not larger.stopped
    assert len(asked) == larger.cost - 12 if larger.cost is not None else False
    with pytest.raises(ConfigurationError, match="the price of a model of 'careless' is not known"):
        await evolve(small, prices=PriceTable({})).run()
    with pytest.raises(InvalidParameter, match="budget"):
        evolve(small, budget=0)


async def test_what_fails_is_in_the_result() -> None:
    """A candidate that cannot be made, one whose model fails, and a scorer that raises: each is an error of its trial alone."""

    def broken(_: TrialContext) -> AgentLoop:
        raise LookupError("no prompt of this name")

    def failing(_: InferenceRequest) -> str:
        raise ValueError("no answer")

    def scorer(run: TrialRun) -> bool:
        return run.answer == "done" or 1 / 0 > 0

    candidates = {
        "broken": broken,
        "failing": lambda _: AgentLoop.for_model(FunctionInference(failing)),
        "other": AgentLoop.for_model(ScriptedInference("undone")),
        "good": AgentLoop.for_model(ScriptedInference("done")),
        "none": lambda _: None,
    }
    result = await EvalSuite("s", [Case(name="one", input="Go.")], candidates, [scorer]).run()  # type: ignore[arg-type]  # the mistake of one
    assert [(trial.candidate, trial.status, trial.passed, trial.error) for trial in result.trials] == [
        ("broken", "error", False, "LookupError: no prompt of this name"),
        ("failing", "failed", False, "ValueError: no answer"),
        ("other", "completed", False, "a scorer failed: ZeroDivisionError: division by zero"),
        ("good", "completed", True, ""),
        (
            "none",
            "error",
            False,
            "ContractViolation: the candidate 'none' returned None; it has to return an AgentLoop",
        ),
    ]


async def test_a_case_of_an_execution_that_is_gone_is_an_error() -> None:
    """It is one of the suite, before anything runs for it."""
    case = Case(name="one", origin=CaseOrigin(execution_id="gone"))
    with pytest.raises(UnknownExecution, match="'gone'"):
        await EvalSuite("s", [case], {"a": clerk(1.0)}).run()
    journal, other = MemoryJournal(), MemoryJournal()
    await record(journal, 3)
    await record(other, 3)
    made = await Cases.from_journal(journal)
    await EvalSuite("s", made, {"a": clerk(1.0)}).run(recordings=journal)
    with pytest.raises(ConfigurationError, match="the case 'run-3' was made from another execution"):
        await EvalSuite("s", made, {"a": clerk(1.0)}).run(recordings=other)


async def test_a_function_decides_about_calls_that_wait() -> None:
    """Without one, the trial ends as suspended."""
    case = Case(name="one", input="Pay invoice 3")
    candidates = {"a": lambda _: clerk(1.0, interceptors=[RequireApproval("pay")])}
    worlds = [Simulated(pay="paid"), Real()]
    (trial,) = (await EvalSuite("s", [case], candidates, worlds=worlds).run()).trials
    assert (trial.status, trial.answered) == ("suspended", {"real": 1})
    decided = EvalSuite("s", [case], candidates, worlds=worlds, decide=lambda call, _: approve(call.digest))
    (trial,) = (await decided.run()).trials
    assert (trial.status, trial.answered) == ("completed", {"real": 1, "simulated": 1})


async def test_trials_are_executions_that_anybody_can_read() -> None:
    """The ids in the result lead to complete executions."""
    journal = MemoryJournal()
    result = await suite_of(await recorded_cases(journal)).run(journal=journal)
    for trial in result.trials:
        head = await journal.head(trial.execution_id)
        assert head is not None
        assert head.status.value == trial.status
    assert json.loads(result.to_json())["kind"] == "EvalResult"
    assert len(await Cases.from_journal(journal)) == 4
