"""Exported tests reproduce the recorded executions."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ReActDriver, ScriptedInference, ToolCall, tool
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool
from agentloop.durable import MemoryJournal, build_fixture, pytest_source
from agentloop.durable.fixture import Fixture, is_decision
from agentloop.errors import RateLimited
from agentloop.interception import RequireApproval
from agentloop.policies import Budget
from agentloop.testing import play
from agentloop.values import InferenceResponse, Message, Reasoning, Text, answer, approve, deny, edit
from agentloop.values.decisions import CallSuspended, Decision
from agentloop.values.reprs import MAX_REPR
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import AgentStop, StopReason
from tests.durable.exported import (
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
    """Stop."""
    raise AgentStop("enough", reason=StopReason.STOP_REQUESTED)


@tool
def wait(x: int) -> str:
    """Wait."""
    raise CallSuspended(f"who is {x}?")


TOOLS: list[Tool] = [look, pay, fail, quit_now, wait]


def call(name: str, x: int = 1, call_id: str = "") -> ToolCall:
    return ToolCall(call_id or f"call_{name}", name, "{}" if name == "quit_now" else f'{{"x": {x}}}')


SCRIPTS: dict[str, tuple[Sequence[Any], Sequence[CanIntercept]]] = {
    "an answer": (["done"], []),
    "calls that succeed and fail": ([["hm", call("look"), call("fail"), call("pay")], "done"], []),
    "rejected calls": (
        [[call("nope"), ToolCall("1", "look", '{"x": "a"}'), ToolCall("2", "look", "{")], "done"],
        [],
    ),
    "a duplicate id and an empty one": (
        [[call("look", call_id="1"), call("look", 2, call_id="1"), ToolCall("", "pay", '{"x":1}')], "done"],
        [],
    ),
    "an inference that fails": ([call("look"), RateLimited("slow down")], []),
    "an error of another kind": ([ValueError("boom")], []),
    "changed arguments": ([[call("pay")], "done"], [ChangeArguments()]),
    "a blocked call": ([[call("pay"), call("look")], "done"], [BlockPayments()]),
    "an answered call": ([[call("pay"), call("look")], "done"], [AnswerPayments()]),
    "a changed result": ([[call("pay"), call("fail")], "done"], [RewriteResults()]),
    "an interceptor that fails before a step": ([call("look"), "done"], [FailBeforeSecondStep()]),
    "an interceptor that fails after a call": ([[call("look"), call("pay")], "done"], [FailAfterToolUse()]),
    "a recovered inference error": ([call("look"), RateLimited("slow"), "done"], [RecoverFromErrors()]),
    "a recovered interceptor error": ([[call("look")], "done"], [FailAfterToolUse(), RecoverFromErrors()]),
    "an answer after which it continues": (["first", "second"], [ContinueAfterAnswer()]),
    "a tool that stops the execution": ([[call("look"), call("quit_now")], "done"], []),
    "a step limit": ([call("look"), call("look"), "done"], [Budget(steps=2)]),
    "reasoning": ([InferenceResponse((Reasoning("hm"), Text("done")))], []),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_exported_test_passes(name: str) -> None:
    """The exported test has the same calls, outcomes, answer, status and errors as the execution."""
    script, interceptors = SCRIPTS[name]
    loop = AgentLoop.for_model(ScriptedInference(*script), tools=TOOLS, interceptors=interceptors, max_steps=6)
    fixture, source, state = await record_execution(loop)
    await _check(fixture, source, state)


async def _check(fixture: Fixture, source: str, state: AgentState) -> None:
    played = await asyncio.to_thread(play, fixture)
    assert played.status is state.status
    assert played.errors == state.errors
    assert [
        (execution.call, execution.status, execution.text) for step in played.steps for execution in step.executions
    ] == [(execution.call, execution.status, execution.text) for step in state.steps for execution in step.executions]
    assert played.final_text == state.final_text
    assert {signal.reason for signal in _signals(played)} == {signal.reason for signal in _signals(state)}
    await asyncio.to_thread(run_test, source)


def _signals(state: AgentState) -> Sequence[Any]:
    return () if state.execution is None else state.execution.continuation.signals


@pytest.mark.parametrize(
    "decision",
    [approve(), deny("no money"), answer({"paid": "elsewhere"}), edit({"x": 9}), edit({"x": "wrong"})],
    ids=["approve", "deny", "answer", "edit", "invalid edit"],
)
async def test_decisions_are_replayed(decision: Decision) -> None:
    """A call that waited for a decision waits again, and has the outcome of the decision."""
    loop = AgentLoop.for_model(
        ScriptedInference([call("look"), call("pay")], "done"),
        tools=TOOLS,
        interceptors=[RequireApproval(), ChangeArguments()],
    )
    loop = _with_repeatable_model(loop)
    await _check(*await record_execution(loop, "go", decision))


def _with_repeatable_model(loop: AgentLoop) -> AgentLoop:
    """Return the loop with a model that answers from the conversation, because each resumption restarts the script."""

    def respond(request: Any) -> InferenceResponse | str:
        if any(message.exchanges for message in request.messages):
            return "done"
        return InferenceResponse((call("look"), call("pay")))

    return loop.replace(driver=type(loop.driver)(ScriptedInference(respond, respond, respond)))  # type: ignore[call-arg]


async def test_pending_calls_are_pending_in_the_exported_test() -> None:
    """The exported test of a suspended execution ends suspended with the same pending calls."""
    script = ScriptedInference([call("look"), call("pay"), call("pay", 2)], "done")
    loop = AgentLoop.for_model(script, tools=TOOLS, interceptors=[RequireApproval()])
    fixture, source, state = await record_execution(loop)
    await _check(fixture, source, state)
    assert "state.pending" in source


@pytest.mark.parametrize("decisions", [[], [approve()], [deny("no")], [answer("done")]])
async def test_a_call_that_waited_for_an_earlier_one_waits_again(decisions: list[Decision]) -> None:
    """It needs no decision of its own, and is pending as long as the earlier one is."""

    @tool(sequential=True)
    async def file(x: int) -> str:
        """File."""
        return f"filed {x}"

    def respond(request: Any) -> InferenceResponse | str:
        if any(message.exchanges for message in request.messages):
            return "done"
        return InferenceResponse((call("look"), call("pay"), call("file"), call("look", 2)))

    loop = AgentLoop.for_model(
        ScriptedInference(respond, respond), tools=[*TOOLS, file], interceptors=[RequireApproval("pay")]
    )
    await _check(*await record_execution(loop, "go", *decisions))


async def test_a_call_that_its_tool_suspended_is_suspended_again() -> None:
    """A call that its tool suspended waits again, and the recorded answer settles it."""

    def respond(request: Any) -> InferenceResponse | str:
        return "done" if any(message.exchanges for message in request.messages) else InferenceResponse((call("wait"),))

    loop = AgentLoop.for_model(ScriptedInference(respond, respond), tools=TOOLS)
    await _check(*await record_execution(loop, "go", answer("me")))


async def test_an_agent_that_serves_a_call_does_not_run() -> None:
    """A call that an agent served returns the recorded answer, and waits where a call of the agent waited."""
    child = AgentLoop.for_model(
        ScriptedInference(
            lambda r: "child done" if any(m.exchanges for m in r.messages) else InferenceResponse((call("pay"),)),
            lambda r: "child done",
        ),
        tools=TOOLS,
        interceptors=[RequireApproval()],
    )

    def respond(request: Any) -> InferenceResponse | str:
        if any(message.exchanges for message in request.messages):
            return "done"
        return InferenceResponse((ToolCall("1", "helper", '{"task": "x"}'),))

    loop = AgentLoop.for_model(ScriptedInference(respond, respond), tools=[child.as_tool("helper", "Helps.")])
    await _check(*await record_execution(loop, "go", approve()))


async def test_a_timeout_is_reproduced_without_waiting() -> None:
    """An outcome that no tool can produce replaces the outcome of the call."""

    @tool(timeout=0.01)
    async def slow() -> str:
        """Be slow."""
        await asyncio.Event().wait()
        return ""

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "slow"), "done"), tools=[slow])
    fixture, source, state = await record_execution(loop)
    assert state.steps[0].executions[0].status.value == "timed_out"
    await _check(fixture, source, state)


async def test_the_driver_of_the_execution_is_not_needed() -> None:
    """The exported test of a ReAct execution reproduces its calls and its failure without a ReAct driver."""
    loop = AgentLoop(ReActDriver(ScriptedInference(*["nonsense"] * 9)), TOOLS)
    fixture, source, state = await record_execution(loop)
    assert state.status is ExecutionStatus.FAILED
    played = await asyncio.to_thread(play, fixture)
    assert (played.status, played.errors) == (state.status, state.errors)
    await asyncio.to_thread(run_test, source)


async def test_a_continued_conversation_keeps_its_history() -> None:
    """The exported test holds the conversation before the execution."""
    loop = AgentLoop.for_model(ScriptedInference([call("look")], "done"), tools=TOOLS, system_prompt="Be good.")
    state = await loop.execute("first")
    fixture, source, ended = await record_execution(
        loop, state.with_message(Message.user("second")).with_metadata(tenant="a")
    )
    await _check(fixture, source, ended)
    assert "from_json(" in source


async def test_messages_to_the_execution_are_replayed() -> None:
    """A message that was sent to the execution is taken by the same step."""
    loop = AgentLoop.for_model(ScriptedInference([call("look")], "done"), tools=TOOLS)
    loop.inbox("e/1").send("hurry")
    fixture, source, state = await record_execution(loop)
    assert [message.text for message in state.messages if message.role == "user"] == ["go", "hurry"]
    await _check(fixture, source, state)


async def test_masked_values_stay_masked() -> None:
    """The exported test holds no secret, and a masked argument need not match the schema."""
    journal = MemoryJournal(secrets=["hunter22"], secret_fields=["x"])
    loop = AgentLoop.for_model(
        ScriptedInference(["hunter22 it is", call("pay", 4711081547)], "done"), tools=TOOLS, journal=journal
    )
    await loop.execute("my password is hunter22", execution_id="e/1")
    source = pytest_source(await journal.read("e/1"), "e/1")
    assert "hunter22" not in source
    # Long enough that no hash has it by chance.
    assert "4711081547" not in source.replace("paid 4711081547", "")
    await asyncio.to_thread(run_test, source)


async def test_the_tools_and_interceptors_of_a_loop_can_be_used() -> None:
    """With a loop, its interceptors decide: a call that they block is blocked in the played execution."""
    loop = AgentLoop.for_model(ScriptedInference([call("look"), call("pay")], "done"), tools=TOOLS)
    fixture, _, state = await record_execution(loop)
    same = await asyncio.to_thread(play, fixture, loop)
    assert [execution.text for execution in same.steps[0].executions] == [
        execution.text for execution in state.steps[0].executions
    ]
    other = await asyncio.to_thread(play, fixture, loop.with_interceptors(BlockPayments()))
    assert [execution.status.value for execution in other.steps[0].executions] == ["succeeded", "blocked"]


async def test_an_exported_test_fails_for_another_outcome() -> None:
    """The assertions detect another answer and another outcome."""
    loop = AgentLoop.for_model(ScriptedInference([call("pay")], "done"), tools=TOOLS)
    _, source, _ = await record_execution(loop)
    for recorded, changed in (("[Text('done')]", "[Text('other')]"), ("Outcome(value='paid 1')", "Outcome(value='x')")):
        assert source.count(recorded) == 1
        with pytest.raises(AssertionError):
            await asyncio.to_thread(run_test, source.replace(recorded, changed))


async def test_an_exported_test_fails_for_another_error() -> None:
    """The assertions detect another message; without errors, there is nothing to assert about them."""
    loop = AgentLoop.for_model(ScriptedInference([call("look")], ValueError("boom")), tools=TOOLS)
    _, source, _ = await record_execution(loop)
    with pytest.raises(AssertionError):
        await asyncio.to_thread(run_test, source.replace("'boom'", "'bang'", 1))
    _, source, _ = await record_execution(AgentLoop.for_model(ScriptedInference("done")))
    assert "errors" not in source


async def test_an_exported_test_imports_only_what_it_uses() -> None:
    """A linter has nothing to say about its imports."""
    for script in (["done"], [call("look"), "done"]):
        _, source, _ = await record_execution(AgentLoop.for_model(ScriptedInference(*script), tools=TOOLS))
        nodes = list(ast.walk(ast.parse(source)))
        imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert imported - {"annotations"} <= {node.id for node in nodes if isinstance(node, ast.Name)}


async def test_a_fixture_of_a_long_execution_is_shown_in_short() -> None:
    """Its repr fits on a screen, however many calls the model has made."""
    script = ScriptedInference([call("look", number) for number in range(50)], "word " * 5_000)
    fixture, _, _ = await record_execution(AgentLoop.for_model(script, tools=TOOLS))
    assert repr(fixture).startswith("Fixture(")
    assert len(repr(fixture)) <= MAX_REPR


async def test_the_reasons_that_the_loop_finds_itself_are_not_played() -> None:
    """A fixture holds the reason why an execution stopped only if the played one would not have it anyway."""
    fixture, _, _ = await record_execution(AgentLoop.for_model(ScriptedInference("done")))
    assert fixture.stop_signals == ()
    loop = AgentLoop.for_model(ScriptedInference([call("quit_now")], "done"), tools=TOOLS)
    fixture, _, _ = await record_execution(loop)
    assert [signal.reason for signal in fixture.stop_signals] == [StopReason.STOP_REQUESTED]


async def test_a_tool_that_no_request_offered_can_be_played() -> None:
    """A fixture has a tool for each call that ran, also where it was requested before the record; none for a rejected call."""
    loop = AgentLoop.for_model(ScriptedInference(call("pay")), tools=TOOLS, interceptors=[RequireApproval()])
    state, journal = await loop.execute("go", execution_id="e/1"), MemoryJournal()
    loop = loop.replace(journal=journal).with_interceptors(Budget(steps=1))
    state = await loop.resume(state, {state.pending[0].key: approve()})
    assert [execution.text for execution in state.steps[0].executions] == ["paid 1"]
    records = await journal.read("e/1")
    assert [spec.name for spec in build_fixture(records, "e/1").tools] == ["pay"]
    await asyncio.to_thread(run_test, pytest_source(records, "e/1"))
    fixture, _, _ = await record_execution(AgentLoop.for_model(ScriptedInference([call("nope")], "done")))
    assert fixture.tools == ()


async def test_a_decision_that_could_not_be_used_is_no_call_of_the_model() -> None:
    """It has the name of one of two failures and no id, and is in a step that failed."""
    failed = await AgentLoop(ReActDriver(ScriptedInference(*["nonsense"] * 9)), TOOLS).execute("go")
    done = await AgentLoop.for_model(ScriptedInference([call("look")], "done"), tools=TOOLS).execute("go")
    step = failed.steps[0]
    assert all(is_decision(execution.call, step) for execution in step.executions)
    unusable = step.executions[0].call
    for other in (ToolCall("1", unusable.name), ToolCall("", "look")):
        assert not is_decision(other, step)
    assert not is_decision(unusable, done.steps[0])
