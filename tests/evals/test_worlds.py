"""Worlds: what answers the calls of an agent in an eval, and that nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from agentloop import AgentLoop, FunctionInference, Interceptor, ScriptedInference, ToolCall, ToolExecution, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import InvalidParameter
from agentloop.evals import (
    Case,
    CaseCall,
    Cases,
    EvalResult,
    EvalSuite,
    Played,
    Real,
    Recorded,
    Refused,
    Simulated,
    TrialContext,
    TrialRun,
    World,
    WorldCall,
)
from agentloop.policies import Price, PriceTable
from agentloop.testing import FakeTool
from agentloop.values import InferenceRequest, ToolStatus, thaw
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse
from tests.evals.invoices import PAID, clerk, record

DONE: list[str] = []


@tool
def send(text: str) -> str:
    """Send."""
    DONE.append(text)
    return "sent"


@tool(effect="pure")
def read(text: str) -> str:
    """Read."""
    DONE.append(text)
    return f"read {text}"


def calls(*named: tuple[str, str]) -> list[ToolCall]:
    return [ToolCall(f"c{index}", name, f'{{"text": "{text}"}}') for index, (name, text) in enumerate(named)]


def caller(*batches: list[ToolCall], tools: Iterable[Any] = (send, read)) -> Callable[[TrialContext], AgentLoop]:
    return lambda _: AgentLoop.for_model(ScriptedInference(*batches, "done"), tools=tools)


async def outcomes(
    make: Callable[[TrialContext], AgentLoop], *worlds: World, case: Case | None = None, **options: Any
) -> tuple[list[tuple[ToolStatus, object]], EvalResult, TrialRun]:
    """Return how the calls of a trial ended, the result of the eval, and the trial."""
    runs: list[TrialRun] = []
    suite = EvalSuite("s", [case or Case(name="one", input="Go.")], {"a": make}, [runs.append], worlds, **options)
    result = await suite.run()
    assert [trial.error for trial in result.trials] == [""]
    (run,) = runs
    return (
        [(call.status, thaw(call.error_message if call.has_error else call.value)) for call in run.calls],
        result,
        run,
    )


async def test_no_effect_runs_unless_its_tool_is_named() -> None:
    """Pure tools run by default, and others are refused, whatever the candidate wants."""
    DONE.clear()
    both = calls(("send", "a"), ("read", "b"))
    ended, result, run = await outcomes(caller(both), Recorded(), Real())
    assert ended == [
        (ToolStatus.BLOCKED, "send: it is not available; continue without it"),
        (ToolStatus.SUCCEEDED, "read b"),
    ]
    assert DONE == ["b"]
    assert result.trials[0].answered == {"real": 1, "refused": 1}
    assert run.effects == ()
    ended, result, run = await outcomes(caller(both), Real("send"))
    assert [status for status, _ in ended] == [ToolStatus.SUCCEEDED] * 2
    assert DONE == ["b", "a", "b"]
    assert [(entry.name, entry.value) for entry in run.effects] == [("send", "sent")]
    with pytest.raises(InvalidParameter, match="name each tool"):
        Real("se*")


async def test_the_calls_of_sub_agents_are_answered_one_by_one() -> None:
    """An agent runs, since it is part of what is evaluated; its effects do not."""
    DONE.clear()
    helper = AgentLoop.for_model(ScriptedInference(calls(("send", "a")), "helped"), tools=[send]).as_tool(
        "helper", "Helps."
    )
    asking = [ToolCall("1", "helper", '{"task": "x"}')]
    ended, result, run = await outcomes(caller(asking, tools=[helper]))
    assert ended == [(ToolStatus.SUCCEEDED, "helped")]
    assert (DONE, result.trials[0].answered) == ([], {"refused": 1})
    assert [(entry.name, entry.status) for entry in run.ledger] == [("send", ToolStatus.BLOCKED)]
    assert result.trials[0].tokens == 4 * 15
    ended, result, _ = await outcomes(caller(asking, tools=[helper]), Simulated(helper="simulated help"))
    assert (ended, result.trials[0].answered) == ([(ToolStatus.SUCCEEDED, "simulated help")], {"simulated": 1})


async def test_the_calls_of_a_case_are_answered_as_recorded() -> None:
    """An equal call gets the recorded outcome, one with an effect once; any other call goes on to the next world."""
    case = Case(
        name="one",
        input="Go.",
        calls=[
            CaseCall(name="send", arguments={"text": "a"}, value="sent first"),
            CaseCall(name="send", arguments={"text": "b"}, error="no such address"),
            CaseCall(name="read", arguments={"text": "a"}, value="recorded text"),
        ],
    )
    made = calls(("send", "a"), ("send", "b"), ("send", "a"), ("read", "a"), ("read", "a"), ("read", "z"))
    ended, result, _ = await outcomes(caller(made), Recorded(), case=case)
    refused = "it is not available; continue without it"
    assert ended == [
        (ToolStatus.SUCCEEDED, "sent first"),
        (ToolStatus.FAILED, "no such address"),
        (ToolStatus.BLOCKED, f"send: {refused}"),
        (ToolStatus.SUCCEEDED, "recorded text"),
        (ToolStatus.SUCCEEDED, "recorded text"),
        (ToolStatus.BLOCKED, f"read: {refused}"),
    ]
    assert result.trials[0].answered == {"recorded": 4, "refused": 2}


async def test_a_fork_meets_what_was_recorded_after_its_step() -> None:
    """The invoice was read before the step, and can be read again; the payment was made after it."""
    journal = MemoryJournal()
    await record(journal, 7)
    PAID.clear()
    cases = await Cases.from_journal(journal, each_decision=True)
    for case, answered in zip(cases, ({"recorded": 2}, {"recorded": 1}, {}), strict=True):
        suite = EvalSuite("s", [case], {"a": lambda _: clerk(0.0)}, worlds=[Recorded(), Refused()])
        (trial,) = (await suite.run(recordings=journal)).trials
        assert (trial.status, trial.answered) == ("completed", answered)
        assert trial.steps == 3 - (case.origin.at_step if case.origin else 0)
        assert trial.tokens == 15 * trial.steps
    assert PAID == []
    assert len(await journal.list()) == 1


async def test_functions_and_fakes_simulate_tools() -> None:
    """A function gets the arguments, and the call if it asks for it; a fake counts the calls of one trial; errors are those of a tool."""

    def sending(text: str, call: WorldCall) -> str:
        if text == "bad":
            raise ValueError("no such address")
        call.state.append(text)
        return f"{len(call.state)} sent, {call.effect}, {call.random.random():.2f}"

    async def reading(text: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"text": text}

    made = [calls(("send", "a")), calls(("send", "bad")), calls(("send", "a")), calls(("read", "a"))]
    world = Simulated(send=sending, read=reading, state=lambda _: [])
    ended, _, run = await outcomes(caller(*made), world)
    again, _, _ = await outcomes(caller(*made), world)
    assert again == ended
    (_, first), bad, (_, second), seen = ended
    assert bad == (ToolStatus.FAILED, "no such address")
    assert seen == (ToolStatus.SUCCEEDED, {"text": "a"})
    assert str(first).startswith("1 sent, effect, ")
    assert str(second).startswith("2 sent, effect, ")
    assert str(first)[-4:] != str(second)[-4:]
    assert [entry.name for entry in run.effects] == ["send", "send"]
    fake = FakeTool(send, returns=["first", "second"])
    for _ in range(2):
        ended, _, _ = await outcomes(caller(calls(("send", "a")), calls(("send", "b"))), Simulated({"se*": fake}))
        assert [value for _, value in ended] == ["first", "second"]
    assert fake.calls == []
    with pytest.raises(InvalidParameter, match="names the tools"):
        Simulated()


async def test_a_model_plays_a_tool_and_is_paid() -> None:
    """It sees the call and the earlier ones, and its tokens are those of the trial."""
    asked: list[InferenceRequest] = []

    def play(request: InferenceRequest) -> str:
        asked.append(request)
        return '{"ok": true}' if len(asked) == 1 else "plain"

    made = [calls(("send", "a")), calls(("send", "b"))]
    prices = PriceTable({"function": Price(1_000_000, 0), "scripted": Price(0, 0)})
    world = Played(FunctionInference(play), ["send"], rules="The address of b is wrong.")
    ended, result, _ = await outcomes(caller(*made), world, prices=prices)
    assert ended == [(ToolStatus.SUCCEEDED, {"ok": True}), (ToolStatus.SUCCEEDED, "plain")]
    assert '"earlier":[{"tool":"send","arguments":{"text":"a"},"result":{"ok":true}}]' in asked[1].messages[0].text
    assert "The address of b is wrong." in asked[0].system_prompt
    assert (result.trials[0].cost, result.trials[0].answered) == (20.0, {"played": 2})
    assert result.trials[0].tokens == 3 * 15 + 2 * 15


async def test_an_answered_call_passes_the_interceptors_that_see_it() -> None:
    """It may be refused before, and its outcome is seen after; only what is laid around a tool has no tool to run."""
    passed: list[str] = []

    class Watching(Interceptor):
        async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            passed.append(f"before {point.call.name}")
            return point

        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            passed.append("around")
            return await proceed()

        async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            passed.append(f"after {point.execution.value}")
            return point

    def guarded(trial: TrialContext) -> AgentLoop:
        return caller(calls(("send", "a")))(trial).with_interceptors(Watching())

    await outcomes(guarded, Simulated(send="simulated"))
    assert passed == ["before send", "after simulated"]


async def test_a_world_of_a_program_comes_before_the_refusal() -> None:
    """Worlds are asked in their order, and a program writes its own."""

    class Offline(World):
        name = "offline"

        def answer(self, call: WorldCall) -> None:
            raise ConnectionError(f"{call.name} is offline")

    ended, result, _ = await outcomes(caller(calls(("send", "a"), ("read", "b"))), Simulated(read="b"), Offline())
    assert ended == [(ToolStatus.FAILED, "send is offline"), (ToolStatus.SUCCEEDED, "b")]
    assert result.trials[0].answered == {"offline": 1, "simulated": 1}
    with pytest.raises(InvalidParameter, match="two worlds are named 'offline'"):
        EvalSuite("s", [], {"a": caller()}, worlds=[Offline(), Offline()])
    with pytest.raises(InvalidParameter, match="worlds are objects"):
        EvalSuite("s", [], {"a": caller()}, worlds=["recorded"])  # type: ignore[list-item]  # the mistake
