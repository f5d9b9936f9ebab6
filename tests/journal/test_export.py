"""Recorded executions become tests that come to what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ReActDriver, ScriptedInference, ToolCall, tool
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool
from agentloop.errors import RateLimited
from agentloop.interception import Budget, RequireApproval
from agentloop.journal import Fixture, MemoryJournal, pytest_source
from agentloop.testing import play
from agentloop.values import InferenceResponse, Message, Reasoning, Text, answer, approve, deny, edit
from agentloop.values.decisions import CallSuspended, Decision
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import AgentStop, StopReason
from tests.journal.exported import (
    AnswerPayments,
    BlockPayments,
    ChangeArguments,
    ContinueAfterAnswer,
    FailAfterToolUse,
    FailBeforeSecondStep,
    RecoverFromErrors,
    RewriteResults,
    record_execution,
    run_test,
)


@tool(effect="pure")
def look(x: int) -> int:
    """Look."""
    return x * 2


@tool
def pay(x: int) -> str:
    """Pay."""
    return f"paid {x}"


@tool
def fail(x: int) -> str:
    """Fail."""
    raise ValueError(f"no luck with {x}")


@tool
def quit_now() -> str:
    """Stop all."""
    raise AgentStop("enough", reason=StopReason.STOP_REQUESTED)


@tool
def wait(x: int) -> str:
    """Wait for somebody."""
    raise CallSuspended(f"who is {x}?")


TOOLS: list[Tool] = [look, pay, fail, quit_now, wait]


def call(name: str, x: int = 1, call_id: str = "") -> ToolCall:
    return ToolCall(call_id or f"call_{name}", name, "{}" if name == "quit_now" else f'{{"x": {x}}}')


SCRIPTS: dict[str, tuple[Sequence[Any], Sequence[CanIntercept]]] = {
    "an answer": (["done"], []),
    "calls that succeed and fail": ([["hm", call("look"), call("fail"), call("pay")], "done"], []),
    "calls that are rejected": (
        [[call("nope"), ToolCall("1", "look", '{"x": "a"}'), ToolCall("2", "look", "{")], "done"],
        [],
    ),
    "the same id twice, and none": (
        [[call("look", call_id="1"), call("look", 2, call_id="1"), ToolCall("", "pay", '{"x":1}')], "done"],
        [],
    ),
    "a model that fails": ([call("look"), RateLimited("slow down")], []),
    "an error of nobody's": ([ValueError("boom")], []),
    "a call that is changed": ([[call("pay")], "done"], [ChangeArguments()]),
    "a call that is blocked": ([[call("pay"), call("look")], "done"], [BlockPayments()]),
    "a call that is answered": ([[call("pay"), call("look")], "done"], [AnswerPayments()]),
    "an outcome that is changed": ([[call("pay"), call("fail")], "done"], [RewriteResults()]),
    "a rule that fails before a step": ([call("look"), "done"], [FailBeforeSecondStep()]),
    "a rule that fails after a call": ([[call("look"), call("pay")], "done"], [FailAfterToolUse()]),
    "an error after which it goes on": ([call("look"), RateLimited("slow"), "done"], [RecoverFromErrors()]),
    "a failed rule after which it goes on": ([[call("look")], "done"], [FailAfterToolUse(), RecoverFromErrors()]),
    "an answer after which it goes on": (["first", "second"], [ContinueAfterAnswer()]),
    "a tool that stops all": ([[call("look"), call("quit_now")], "done"], []),
    "a limit of steps": ([call("look"), call("look"), "done"], [Budget(steps=2)]),
    "thoughts": ([InferenceResponse((Reasoning("hm"), Text("done")))], []),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_execution_becomes_a_test_that_passes(name: str) -> None:
    """Whatever happened in it, the test comes to the same calls, outcomes, answer, status and errors."""
    script, interceptors = SCRIPTS[name]
    loop = AgentLoop.for_model(ScriptedInference(*script), tools=TOOLS, interceptors=interceptors, max_steps=6)
    fixture, source, state = await record_execution(loop)
    await _check(fixture, source, state)


async def _check(fixture: Fixture, source: str, state: AgentState) -> None:
    played = await asyncio.to_thread(play, fixture)
    assert played.status is state.status
    assert played.errors == state.errors
    assert [(one.call, one.status, one.text) for step in played.steps for one in step.executions] == [
        (one.call, one.status, one.text) for step in state.steps for one in step.executions
    ]
    assert played.final_text == state.final_text
    assert {one.reason for one in _signals(played)} == {one.reason for one in _signals(state)}
    await asyncio.to_thread(run_test, source)


def _signals(state: AgentState) -> Sequence[Any]:
    return () if state.execution is None else state.execution.continuation.signals


@pytest.mark.parametrize(
    "decision",
    [approve(), deny("no money"), answer({"paid": "elsewhere"}), edit({"x": 9}), edit({"x": "wrong"})],
    ids=["approve", "deny", "answer", "edit", "edit that does not fit"],
)
async def test_decisions_are_made_again(decision: Decision) -> None:
    """A call that waited waits, and ends as it was decided about."""
    loop = AgentLoop.for_model(
        ScriptedInference([call("look"), call("pay")], "done"),
        tools=TOOLS,
        interceptors=[RequireApproval(), ChangeArguments()],
    )
    loop = _going_on(loop)
    await _check(*await record_execution(loop, "go", decision))


def _going_on(loop: AgentLoop) -> AgentLoop:
    """Return the loop with a model that answers from the conversation, since each resumption begins a script anew."""

    def line(request: Any) -> InferenceResponse | str:
        if any(message.exchanges for message in request.messages):
            return "done"
        return InferenceResponse((call("look"), call("pay")))

    return loop.with_driver(type(loop.driver)(ScriptedInference(line, line, line)))  # type: ignore[call-arg]


async def test_what_still_waits_waits_in_the_test() -> None:
    """A suspended execution becomes a test that ends suspended, with the same calls waiting."""
    script = ScriptedInference([call("look"), call("pay"), call("pay", 2)], "done")
    loop = AgentLoop.for_model(script, tools=TOOLS, interceptors=[RequireApproval()])
    fixture, source, state = await record_execution(loop)
    await _check(fixture, source, state)
    assert "state.pending" in source


async def test_a_tool_that_waits_waits_again() -> None:
    """So does a call whose tool has suspended it, and an answer settles it."""

    def line(request: Any) -> InferenceResponse | str:
        return "done" if any(message.exchanges for message in request.messages) else InferenceResponse((call("wait"),))

    loop = AgentLoop.for_model(ScriptedInference(line, line), tools=TOOLS)
    await _check(*await record_execution(loop, "go", answer("me")))


async def test_an_agent_in_it_is_not_run() -> None:
    """A call that an agent served returns what the agent said, and waits where a call of the agent waited."""
    child = AgentLoop.for_model(
        ScriptedInference(
            lambda r: "child done" if any(m.exchanges for m in r.messages) else InferenceResponse((call("pay"),)),
            lambda r: "child done",
        ),
        tools=TOOLS,
        interceptors=[RequireApproval()],
    )

    def line(request: Any) -> InferenceResponse | str:
        if any(message.exchanges for message in request.messages):
            return "done"
        return InferenceResponse((ToolCall("1", "helper", '{"task": "x"}'),))

    loop = AgentLoop.for_model(ScriptedInference(line, line), tools=[child.as_tool("helper", "Helps.")])
    await _check(*await record_execution(loop, "go", approve()))


async def test_a_call_that_timed_out_times_out_at_once() -> None:
    """What no tool can bring about of itself is put in place."""

    @tool(timeout=0.01)
    async def slow() -> str:
        """Be slow."""
        await asyncio.Event().wait()
        return ""

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "slow"), "done"), tools=[slow])
    fixture, source, state = await record_execution(loop)
    assert state.steps[0].executions[0].status.value == "timed_out"
    await _check(fixture, source, state)


async def test_another_driver_is_not_needed() -> None:
    """What a ReAct driver asked for in vain, and again, comes down to the calls that were made and the failure that came."""
    loop = AgentLoop(ReActDriver(ScriptedInference(*["nonsense"] * 9)), TOOLS)
    fixture, source, state = await record_execution(loop)
    assert state.status is ExecutionStatus.FAILED
    played = await asyncio.to_thread(play, fixture)
    assert (played.status, played.errors) == (state.status, state.errors)
    await asyncio.to_thread(run_test, source)


async def test_a_conversation_that_goes_on_begins_where_it_stood() -> None:
    """What was said before the execution, with pictures and calls, stands in the test."""
    loop = AgentLoop.for_model(ScriptedInference([call("look")], "done"), tools=TOOLS, system_prompt="Be good.")
    state = await loop.execute("first")
    fixture, source, ended = await record_execution(
        loop, state.with_message(Message.user("second")).with_metadata(tenant="a")
    )
    await _check(fixture, source, ended)
    assert "from_json(" in source


async def test_a_message_that_came_meanwhile_comes_again() -> None:
    """A message that was sent to it is taken by the same step."""
    loop = AgentLoop.for_model(ScriptedInference([call("look")], "done"), tools=TOOLS)
    loop.inbox("e/1").send("hurry")
    fixture, source, state = await record_execution(loop)
    assert [message.text for message in state.messages if message.role == "user"] == ["go", "hurry"]
    await _check(fixture, source, state)


async def test_what_was_masked_stays_masked() -> None:
    """A secret is not in the test, and a masked argument does not have to fit the schema."""
    journal = MemoryJournal(secrets=["hunter22"], secret_fields=["x"])
    loop = AgentLoop.for_model(
        ScriptedInference(["hunter22 it is", call("pay", 4711)], "done"), tools=TOOLS, journal=journal
    )
    await loop.execute("my password is hunter22", execution_id="e/1")
    source = pytest_source(await journal.read("e/1"), "e/1")
    assert "hunter22" not in source
    assert "4711" not in source.replace("paid 4711", "")
    await asyncio.to_thread(run_test, source)


async def test_the_tools_and_rules_of_a_loop_can_be_used_instead() -> None:
    """With a loop, today's rules decide: a call that is blocked now makes the test fail."""
    loop = AgentLoop.for_model(ScriptedInference([call("look"), call("pay")], "done"), tools=TOOLS)
    fixture, _, state = await record_execution(loop)
    same = await asyncio.to_thread(play, fixture, loop)
    assert [one.text for one in same.steps[0].executions] == [one.text for one in state.steps[0].executions]
    other = await asyncio.to_thread(play, fixture, loop.with_interceptors(BlockPayments()))
    assert [one.status.value for one in other.steps[0].executions] == ["succeeded", "blocked"]


async def test_a_test_fails_when_something_else_comes_of_it() -> None:
    """The expectations are not empty: another answer, another outcome or another call is found."""
    loop = AgentLoop.for_model(ScriptedInference([call("pay")], "done"), tools=TOOLS)
    _, source, _ = await record_execution(loop)
    for told, other in (("[Text('done')]", "[Text('other')]"), ("Outcome(value='paid 1')", "Outcome(value='x')")):
        assert source.count(told) == 1
        with pytest.raises(AssertionError):
            await asyncio.to_thread(run_test, source.replace(told, other))
