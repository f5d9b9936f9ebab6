"""Agents as tools: results, events, limits, suspension, cancellation, and independence of the order of completion."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    CancellationToken,
    Permissions,
    RequireApproval,
    ScriptedDriver,
    ScriptedInference,
    Tool,
    ToolCall,
    ToolContext,
    from_json,
    handoff_to,
    to_json,
    tool,
)
from agentloop.contracts import ToolPolicy
from agentloop.contracts.tool import CanAccessAgentState, CanAccessToolCall, CanAccessToolContext
from agentloop.drivers import ScenarioStep
from agentloop.errors import CallSuspended, DecisionError, ToolDefinitionError
from agentloop.events import AgentExecutionStarted, AgentExecutionSuspended, ProtocolMonitor, ToolCallSuspended
from agentloop.events.operations import QUEUE_SECONDS
from agentloop.interception import BeforeToolUse, at
from agentloop.policies import Resilience
from agentloop.testing import CountingIds, LoopClock, ManualClock, run_in_virtual_time
from agentloop.values import (
    Effect,
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    PendingCall,
    RetryPolicy,
    StopReason,
    Text,
    ToolStatus,
    Usage,
    answer,
    approve,
    deny,
)
from agentloop.values.batches import close_open_turn
from agentloop.values.interruptions import interrupted_state
from tests.generated import examples

ROOT = Path(__file__).parents[2]
final, calls = ScenarioStep.final, ScenarioStep.tool_calls


def scripted(*script: ScenarioStep, tools: list[Tool] | None = None, **parts: object) -> AgentLoop:
    """Return a loop that follows a script, with ids that count."""
    defaults: dict[str, Any] = {"ids": CountingIds(), "clock": ManualClock(), **parts}
    return AgentLoop(ScriptedDriver(*script), tools or [], **defaults)


def caller(*agents: Tool, tasks: int = 1, **parts: object) -> AgentLoop:
    """Return a loop that calls each of these agents, `tasks` times each, in one batch."""
    batch = [(agent.name, {"task": f"{agent.name} {number}"}) for agent in agents for number in range(tasks)]
    return scripted(calls(*batch), final("over"), tools=list(agents), **parts)


@tool
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def clerk(*, tools: list[Tool] | None = None, **options: object) -> Tool:
    """Return an agent tool whose payments need an approval."""
    script = (calls(("pay", {"to": "Ada"})), final("it is paid"))
    loop = scripted(*script, tools=tools or [pay], interceptors=[RequireApproval()])
    return loop.as_tool("clerk", "Pays.", **options)  # type: ignore[arg-type]  # options of as_tool


def leaves(state: AgentState) -> list[PendingCall]:
    """Return the pending calls that can be decided."""
    return [call for call in state.pending if not call.waits_for]


async def test_the_final_text_of_an_agent_is_the_result_of_the_call() -> None:
    """The call is an execution of its own, of an agent whose parent is the caller."""
    model = ScriptedInference("42")
    child = AgentLoop.for_model(model, system_prompt="Be exact.")
    loop = caller(child.as_tool("ask", "Knows."))
    seen: list[Event] = []
    loop.wiretap(seen.append)
    child_events: list[Event] = []
    child.wiretap(child_events.append)

    state = await loop.execute("go", execution_id="run")

    execution = state.steps[0].executions[0]
    assert (execution.status, execution.value) == (ToolStatus.SUCCEEDED, "42")
    assert model.requests[0].system_prompt == "Be exact."
    assert [message.text for message in model.requests[0].messages] == ["ask 0"]
    served = [event for event in seen if event.execution_id == "run/1/0/agent"]
    assert served == child_events
    assert {event.parent_agent_id for event in served} == {state.agent_id}
    assert {event.agent_id for event in served} == {"tool_execution_1/agent_1"}


async def test_only_the_outermost_execution_has_waited_in_the_queue() -> None:
    """The time in the queue of a cluster is that of the caller, not of the agents that it calls."""
    loop = caller(scripted(final("42")).as_tool("ask", "Knows."))
    seen: list[float | None] = []
    loop.on(AgentExecutionStarted, lambda event: seen.append(event.queue_seconds))
    token = QUEUE_SECONDS.set(1.5)
    try:
        await loop.execute("go")
    finally:
        QUEUE_SECONDS.reset(token)
    assert seen == [1.5, None]


def test_a_copy_for_a_call_is_equal_to_its_tool() -> None:
    """Context, state and call do not make another tool of an agent or of a handoff, and are not shown."""
    context = ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0")
    ask = scripted(final("42")).as_tool("ask", "Knows.")
    over = handoff_to(scripted(final("42")), name="over", description="Hands over.")
    for each in (ask, over):
        copies: list[Any] = [each]
        if isinstance(each, CanAccessToolContext):
            copies.append(each.with_tool_context(context))
        if isinstance(each, CanAccessAgentState):
            copies.append(each.with_agent_state(AgentState.start("go")))
        if isinstance(each, CanAccessToolCall):
            copies.append(each.with_tool_call(ToolCall("1", each.name)))
        assert len(copies) == (3 if each is ask else 4)
        assert all(copy == each for copy in copies)
        assert {repr(copy) for copy in copies} == {repr(each)}


async def test_a_listener_of_both_loops_receives_each_event_once() -> None:
    """An agent that shares the bus of its caller emits each event once."""
    base = scripted(final("yes"))
    loop = base.replace(driver=ScriptedDriver(calls(("ask", {"task": "?"})), final("over"))).replace(
        tools=[base.as_tool("ask", "Knows.")]
    )
    seen: list[Event] = []
    loop.wiretap(seen.append)
    await loop.execute("go")
    assert Counter(type(event) for event in seen)[AgentExecutionStarted] == 2


async def test_the_stream_of_the_caller_has_the_events_of_nested_agents() -> None:
    """A reader of the stream sees the events of agents at any depth."""
    inner = scripted(final("deep")).as_tool("inner", "Is deep.")
    loop = caller(caller(inner).as_tool("outer", "Is outer."))
    executions = {event.execution_id async for event in loop.stream("go", execution_id="run")}
    assert executions == {"run", "run/1/0/agent", "run/1/0/agent/1/0/agent"}


async def test_a_typed_answer_is_data() -> None:
    """An agent with an output type returns the JSON of its answer."""

    @frozen
    class Sum:
        total: int

    child = AgentLoop.for_model(ScriptedInference('```json\n{"total": 42}\n```'), output_type=Sum)
    state = await caller(child.as_tool("add", "Adds.")).execute("go")
    assert state.steps[0].executions[0].value == {"total": 42}


async def test_typed_parameters_reach_the_agent_as_json() -> None:
    """The fields of the input type are the parameters; arguments are validated before the agent starts."""

    @frozen
    class Question:
        topic: str
        depth: int = 1

    model = ScriptedInference("ok")
    ask = AgentLoop.for_model(model).as_tool("ask", "Knows.", input_type=Question)
    batch = calls(("ask", {"topic": "x", "depth": 2}), ("ask", {"depth": 1}))
    state = await scripted(batch, final("over"), tools=[ask]).execute("go")
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.SUCCEEDED, ToolStatus.REJECTED]
    assert [request.messages[0].text for request in model.requests] == ['{"topic":"x","depth":2}']


def test_parameters_that_are_not_an_object_are_refused() -> None:
    """Invalid parameters are an error when the tool is created."""
    loop = scripted(final("x"))
    with pytest.raises(ToolDefinitionError, match="object"):
        loop.as_tool("ask", "Knows.", input_type=int)
    with pytest.raises(ToolDefinitionError, match="not both"):
        loop.as_tool("ask", "Knows.", input_type=int, parameters={"type": "object"})


async def test_a_failed_agent_is_a_failed_call() -> None:
    """The caller receives the error of the agent and continues."""
    child = scripted(ScenarioStep.error(ValueError("no such file")))
    state = await caller(child.as_tool("ask", "Knows.")).execute("go")
    execution = state.steps[0].executions[0]
    assert execution.status is ToolStatus.FAILED
    assert "ValueError: no such file" in execution.error_message
    assert state.final_text == "over"


PAYS = ToolCall("1", "pay", '{"to": "Ada"}')
HALF = InferenceResponse((Text("Ada is"),), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("lines", "error", "told"),
    [
        ([ValueError("no such file")], "ExecutionFailed", "failed after 1 step: ValueError: no such file"),
        ([PAYS, ValueError("no such file")], "ExecutionFailed", "failed after 2 steps: ValueError: no such file"),
        ([HALF], "ExecutionStopped", "was stopped after 1 step: finish_reason"),
        ([PAYS, HALF], "ExecutionStopped", "was stopped after 2 steps: finish_reason"),
    ],
)
async def test_an_agent_without_a_whole_answer_fails_its_call_with_its_own_error(
    lines: list[Any], error: str, told: str
) -> None:
    """Half an answer is not taken for a result, and the model is told which error ended the agent."""
    child = AgentLoop.for_model(ScriptedInference(*lines), tools=[pay])
    state = await caller(child.as_tool("ask", "Knows.")).execute("go", execution_id="run")
    (execution,) = state.steps[0].executions
    assert (execution.status, execution.value) == (ToolStatus.FAILED, None)
    assert execution.error is not None
    assert execution.error.type == error
    assert f"run/1/0/agent {told}" in execution.error_message
    assert state.final_text == "over"


async def test_an_agent_that_reaches_its_limit_reports_its_work() -> None:
    """The result of the call names the limit and the calls that the agent made."""
    child = scripted(calls(("pay", {"to": "Ada"})), calls(("pay", {"to": "Bob"})), tools=[pay], max_steps=1)
    state = await caller(child.as_tool("ask", "Knows.")).execute("go")
    execution = state.steps[0].executions[0]
    assert execution.status is ToolStatus.FAILED
    assert "step_limit" in execution.error_message
    assert "paid Ada" in execution.error_message


async def test_an_agent_uses_the_budget_of_its_caller() -> None:
    """The remaining budget of the caller limits its agents, and their usage counts as the caller's."""
    child = AgentLoop.for_model(
        ScriptedInference(*[ToolCall("1", "pay", '{"to": "x"}')] * 30), tools=[pay], max_steps=None
    )
    loop = caller(child.as_tool("ask", "Knows."), tasks=2, interceptors=[Budget(steps=20)])
    seen: list[Event] = []
    loop.on(AgentExecutionStarted, seen.append)
    state = await loop.execute("go")
    assert state.final_text == "over"
    assert len(seen) == 3
    messages = [execution.error_message for execution in state.steps[0].executions]
    assert all("step_limit" in text for text in messages)
    assert state.extensions["agentloop.budget"]["Budget"]["steps"] < 20


async def test_the_depth_of_nested_agents_is_limited() -> None:
    """An agent beyond its maximum depth does not start, and its caller receives the reason."""
    agent = scripted(final("deepest")).as_tool("agent", "Acts.", max_depth=2)
    for _ in range(3):
        agent = caller(agent).as_tool("agent", "Acts.", max_depth=9)
    loop = caller(agent)
    messages: list[str] = []
    loop.wiretap(lambda event: messages.append(getattr(getattr(event, "execution", None), "error_message", "")))
    state = await loop.execute("go")
    assert state.status is ExecutionStatus.COMPLETED
    assert any("a max_depth of 2" in text for text in messages)


async def test_an_agent_may_use_half_of_the_budget_that_is_left_by_default() -> None:
    """A call makes as many requests as with this share, and fewer than with all that is left."""
    requests: list[int] = []
    shares: list[dict[str, Any]] = [{}, {"budget_share": 0.5}, {"budget_share": 1.0}]
    for share in shares:
        model = ScriptedInference(*[ToolCall("1", "pay", '{"to": "x"}')] * 30)
        child = AgentLoop.for_model(model, tools=[pay], max_steps=None)
        await caller(child.as_tool("ask", "Knows.", **share), interceptors=[Budget(steps=21)]).execute("go")
        requests.append(len(model.requests))
    assert requests[0] == requests[1] < requests[2]


@pytest.mark.parametrize("count", [3, 4])
async def test_three_agents_can_be_nested_by_default(count: int) -> None:
    """A fourth one does not start, and its caller receives the reason."""
    agent = scripted(final("deepest")).as_tool("agent", "Acts.")
    for _ in range(count - 1):
        agent = caller(agent).as_tool("agent", "Acts.")
    loop, seen = caller(agent), list[Event]()
    loop.wiretap(seen.append)
    await loop.execute("go")
    assert sum(isinstance(event, AgentExecutionStarted) for event in seen) == 1 + 3
    messages = [getattr(getattr(event, "execution", None), "error_message", "") for event in seen]
    assert any("a max_depth of 3" in text for text in messages) == (count > 3)


async def test_an_agent_has_only_its_allowed_tools() -> None:
    """Tools that are denied, or not allowed, are neither offered nor run."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    for options in ({"tools_denied": ["pay"]}, {"tools_allowed": ["lo*"]}):
        model = ScriptedInference([ToolCall("1", "pay", '{"to": "x"}'), ToolCall("2", "look", "{}")], "ok")
        ask = AgentLoop.for_model(model, tools=[pay, look]).as_tool("ask", "Knows.", **options)  # type: ignore[arg-type]
        await caller(ask).execute("go")
        assert [spec.name for spec in model.requests[0].tools] == ["look"]
        statuses = [part.execution.status for part in model.requests[1].messages[-1].exchanges]
        assert statuses == [ToolStatus.REJECTED, ToolStatus.SUCCEEDED]


def test_an_unknown_tool_can_be_neither_allowed_nor_denied() -> None:
    """A misspelled name is an error when the tool is created."""
    loop = scripted(final("x"), tools=[pay])
    with pytest.raises(ToolDefinitionError, match="did you mean 'pay'"):
        loop.as_tool("ask", "Knows.", tools_denied=["pya"])


async def test_an_agent_has_the_dependencies_of_its_caller() -> None:
    """The dependencies of the caller's execution reach the tools of the agent."""

    @tool
    async def who(context: ToolContext) -> str:
        """Tell."""
        return str(context.dependencies)

    child = scripted(calls(("who", {})), final("x"), tools=[who])
    loop = caller(child.as_tool("ask", "Knows."))
    values: list[object] = []
    loop.wiretap(lambda event: values.append(getattr(getattr(event, "execution", None), "value", None)))
    await loop.execute("go", dependencies="Ada")
    assert "Ada" in values


# --- suspension ---------------------------------------------------------------------------------------------------


async def test_a_pending_call_of_an_agent_is_pending_in_its_caller() -> None:
    """The caller's call waits for the agent's call; after the decision the agent continues, then the caller."""
    loop = caller(clerk())
    suspended: list[ToolCallSuspended] = []
    loop.on(ToolCallSuspended, suspended.append)

    state = await loop.execute("go", execution_id="run")

    assert state.status is ExecutionStatus.SUSPENDED
    assert [(call.key, call.waits_for) for call in state.pending] == [
        ("run/1/0", "run/1/0/agent/1/0"),
        ("run/1/0/agent/1/0", ""),
    ]
    assert [event.key for event in suspended] == ["run/1/0"]
    stored = from_json(to_json(state), AgentState)
    assert stored == state

    (leaf,) = leaves(stored)
    ended = await loop.resume(stored, {leaf.key: approve(leaf.digest)})
    assert ended.status is ExecutionStatus.COMPLETED
    assert ended.steps[0].executions[0].value == "it is paid"


async def test_siblings_of_a_suspended_agent_run_once() -> None:
    """Calls without a decision to wait for run before the suspension and not again."""
    run_in_order: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        run_in_order.append("look")
        return "seen"

    batch = calls(("look", {}), ("clerk", {"task": "a"}), ("clerk", {"task": "b"}))
    loop = scripted(batch, final("over"), tools=[look, clerk()])
    state = await loop.execute("go")
    first, second = leaves(state)
    state = await loop.resume(state, {second.key: deny("not today")})
    assert [call.key for call in leaves(state)] == [first.key]
    state = await loop.resume(state, {first.key: approve()})
    assert state.status is ExecutionStatus.COMPLETED
    assert run_in_order == ["look"]
    assert [execution.value for execution in state.steps[0].executions] == ["seen", "it is paid", "it is paid"]


async def test_a_suspension_passes_through_nested_agents() -> None:
    """A call two agents below is decided in the outermost state, by its own key, and nothing runs twice."""
    paid: list[str] = []

    @tool(name="pay")
    async def paying(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    office = caller(clerk(tools=[paying])).as_tool("office", "Has a clerk.")
    loop = caller(office, tasks=2)
    state = await loop.execute("go", execution_id="run")
    keys = [call.key for call in leaves(state)]
    assert keys == [f"run/1/{index}/agent/1/0/agent/1/0" for index in range(2)]
    state = await loop.resume(from_json(to_json(state), AgentState), {key: approve() for key in keys})
    assert state.status is ExecutionStatus.COMPLETED
    assert [execution.value for execution in state.steps[0].executions] == ["over", "over"]
    assert paid == ["Ada", "Ada"]


async def test_the_call_of_a_suspended_agent_can_be_denied_or_answered() -> None:
    """The agent does not continue then; an approval is refused, since the call itself needs no decision."""
    loop = caller(clerk())
    state = await loop.execute("go", execution_id="run")
    with pytest.raises(DecisionError, match="needs no decision"):
        await loop.resume(state, {"run/1/0": approve()})
    denied = await loop.resume(state, {"run/1/0": deny("no payments")})
    execution = denied.steps[0].executions[0]
    assert (execution.status, execution.may_have_run) == (ToolStatus.BLOCKED, True)
    answered = await caller(clerk()).resume(state, {"run/1/0": answer("paid by hand")})
    assert answered.steps[0].executions[0].value == "paid by hand"


async def test_a_wrong_digest_is_refused_at_any_depth() -> None:
    """A decision that was made about another call of the agent is refused before anything runs."""
    loop = caller(clerk())
    state = await loop.execute("go")
    with pytest.raises(DecisionError, match="another tool"):
        await loop.resume(state, {leaves(state)[0].key: approve("0" * 64)})


async def test_a_tool_can_suspend_its_call() -> None:
    """An approval runs the tool again with its stored progress; an answer settles the call without the tool."""

    @tool
    async def order(context: ToolContext) -> str:
        """Order."""
        if context.resumed is None:
            raise CallSuspended("the shop is closed", progress={"tried": 1})
        return f"tried {context.resumed.progress}"

    script = (calls(("order", {})), final("over"))
    loop, other = scripted(*script, tools=[order]), scripted(*script, tools=[order])
    state = from_json(to_json(await loop.execute("go")), AgentState)
    assert [(call.reason, call.begun) for call in state.pending] == [("the shop is closed", True)]
    key = state.pending[0].key
    approved = await loop.resume(state, {key: approve(state.pending[0].digest)})
    assert approved.steps[0].executions[0].value == "tried {'tried': 1}"
    assert (await other.resume(state, {key: answer(7)})).steps[0].executions[0].value == 7


PROGRAM = '''
import asyncio, sys
from pathlib import Path
from agentloop import AgentLoop, AgentState, RequireApproval, ScriptedDriver, from_json, to_json, tool
from agentloop.drivers import ScenarioStep
from agentloop.values import approve

@tool
def pay(to: str) -> str:
    """Pay."""
    with open("paid", "a") as file:
        file.write(to)
    return "paid " + to

child = AgentLoop(
    ScriptedDriver(ScenarioStep.tool_call("pay", {"to": "Ada"}), ScenarioStep.final("it is paid")),
    [pay], interceptors=[RequireApproval()],
)
loop = AgentLoop(
    ScriptedDriver(ScenarioStep.tool_call("clerk", {"task": "pay Ada"}), ScenarioStep.final("over")),
    [child.as_tool("clerk", "Pays.")],
)
stored = Path("state.json")

async def main() -> None:
    if not stored.exists():
        state = await loop.execute("go")
    else:
        state = from_json(stored.read_bytes(), AgentState)
        state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending if not call.waits_for})
    stored.write_bytes(to_json(state))

asyncio.run(main())
'''


def test_a_suspended_agent_can_be_resumed_in_another_process(tmp_path: Path) -> None:
    """The state of the agent is inside that of its caller, so one file is enough."""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, check=True, env={"PYTHONPATH": str(ROOT)})
    state = from_json((tmp_path / "state.json").read_bytes(), AgentState)
    assert state.status is ExecutionStatus.COMPLETED
    assert state.steps[0].executions[0].value == "it is paid"
    assert (tmp_path / "paid").read_text() == "Ada"


# --- cancellation and time ----------------------------------------------------------------------------------------


def stuck_agent(started: list[asyncio.Event]) -> AgentLoop:
    """Return a loop whose tool sets an event when it starts, and never ends."""

    @tool
    async def hang() -> None:
        """Hang."""
        started[0].set()
        await asyncio.Event().wait()

    return scripted(calls(("hang", {})), final("never"), tools=[hang])


async def test_cancelling_the_caller_cancels_its_agents() -> None:
    """No task is left, every execution has its final event, and the error carries the caller's state."""
    started = [asyncio.Event()]
    monitor = ProtocolMonitor()
    loop = caller(stuck_agent(started).as_tool("ask", "Hangs."))
    loop.wiretap(monitor)
    before = asyncio.all_tasks()
    run = asyncio.create_task(loop.execute("go", execution_id="run"))
    await started[0].wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await run
    state = interrupted_state(raised.value)
    assert state is not None
    assert state.execution_id == "run"
    assert state.steps[0].executions[0].status is ToolStatus.CANCELLED
    assert asyncio.all_tasks() == before
    assert monitor.unfinished == []


async def test_a_cancellation_token_cancels_running_agents() -> None:
    """The token of the caller cancels the running agent, and the caller returns its state."""
    started = [asyncio.Event()]
    token = CancellationToken()
    loop = caller(stuck_agent(started).as_tool("ask", "Hangs."), interceptors=[token])
    before = asyncio.all_tasks()
    run = asyncio.create_task(loop.execute("go"))
    await started[0].wait()
    token.cancel("enough")
    state = await run
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.USER_REQUESTED
    assert asyncio.all_tasks() - {run} == before


def test_a_timeout_cancels_the_agent() -> None:
    """A call that exceeds its timeout is run_with_timeout out, and its agent ends."""

    async def run_with_timeout() -> tuple[AgentState, list[str]]:
        monitor = ProtocolMonitor()
        agent = stuck_agent([asyncio.Event()]).as_tool("ask", "Hangs.", policy=ToolPolicy(timeout=3.0))
        loop = caller(agent, clock=LoopClock())
        loop.wiretap(monitor)
        state = await loop.execute("go")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return state, monitor.unfinished

    state, unfinished = run_in_virtual_time(run_with_timeout())
    assert state.steps[0].executions[0].status is ToolStatus.TIMED_OUT
    assert unfinished == []


# --- the same whatever finishes first -----------------------------------------------------------------------------


def concurrent_agents(delays: list[float], *, approvals: bool) -> AgentLoop:
    """Return a loop with one agent per delay, whose tools take these times."""

    @tool
    async def work(index: int) -> str:
        """Work."""
        await asyncio.sleep(delays[index])
        return f"done {index}"

    def agent(index: int) -> Tool:
        inner = scripted(calls(("work", {"index": index})), final(f"inner {index}"), tools=[work])
        both = [inner.as_tool("inner", "Works.", effect="pure"), work]
        batch = calls(("inner", {"task": "x"}), ("work", {"index": -1 - index}))
        waits = [RequireApproval(["work"])] if approvals and index % 2 else []
        outer = scripted(batch, final(f"outer {index}"), tools=both, interceptors=waits)
        return outer.as_tool(f"agent_{index}", "Works.")

    return caller(*[agent(index) for index in range(len(delays))])


@settings(max_examples=examples(25))
@given(
    delays=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=4),
    data=st.data(),
    approvals=st.booleans(),
)
def test_states_do_not_depend_on_the_order_of_completion(
    delays: list[float], data: st.DataObject, *, approvals: bool
) -> None:
    """Caller and agents have equal bytes and valid events for any order in which their work ends."""

    async def run_in_order(order: list[float]) -> tuple[bytes, list[tuple[str, list[str]]]]:
        loop = concurrent_agents(order, approvals=approvals)
        monitor = ProtocolMonitor()
        loop.wiretap(monitor)
        by_execution: dict[str, list[str]] = {}
        loop.wiretap(lambda event: by_execution.setdefault(event.execution_id, []).append(type(event).__name__))
        state = await loop.execute("go", execution_id="run")
        while state.pending:
            state = await loop.resume(state, {leaves(state)[0].key: approve()})
        monitor.check()
        assert monitor.unfinished == []
        return to_json(state), sorted(by_execution.items())

    shuffled = data.draw(st.permutations(delays))
    first, second = run_in_virtual_time(run_in_order(delays)), run_in_virtual_time(run_in_order(shuffled))
    assert first == second


async def test_concurrent_agents_are_isolated() -> None:
    """Each call has its own agent, execution and conversation."""
    model = ScriptedInference(lambda request: request.messages[0].text.upper())
    loop = caller(AgentLoop.for_model(model).as_tool("ask", "Shouts."), tasks=5)
    agents: set[tuple[str, str]] = set()
    loop.wiretap(lambda event: agents.add((event.execution_id, event.agent_id)))
    state = await loop.execute("go", execution_id="run")
    assert [execution.value for execution in state.steps[0].executions] == [f"ASK {number}" for number in range(5)]
    expected = {(f"run/1/{index}/agent", f"tool_execution_{index + 1}/agent_1") for index in range(5)}
    assert agents == {("run", state.agent_id), *expected}
    assert all(len(request.messages) == 1 for request in model.requests)


async def test_suspension_events_list_all_pending_calls() -> None:
    """The final event lists the same calls as the state."""
    loop = caller(clerk())
    suspensions: list[AgentExecutionSuspended] = []
    loop.on(AgentExecutionSuspended, suspensions.append)
    state = await loop.execute("go", execution_id="run")
    assert [event.execution_id for event in suspensions] == ["run/1/0/agent", "run"]
    assert suspensions[-1].pending == state.pending


# --- together with other layers ------------------------------------------------------------------------------------------


async def test_a_call_of_an_agent_that_needs_approval_is_approved_once() -> None:
    """First the call of the agent is pending, then the call inside it; the first approval holds."""
    loop = caller(clerk(), interceptors=[RequireApproval(["clerk"])])
    state = await loop.execute("go", execution_id="run")
    assert [(call.key, call.begun) for call in state.pending] == [("run/1/0", False)]
    state = await loop.resume(state, {"run/1/0": approve(state.pending[0].digest)})
    assert [call.key for call in leaves(state)] == ["run/1/0/agent/1/0"]
    state = await loop.resume(state, {"run/1/0/agent/1/0": approve()})
    assert state.steps[0].executions[0].value == "it is paid"


async def test_interceptors_do_not_change_a_resumed_agent_call() -> None:
    """Changes that were made to the call before its start are not made again, and its agent continues."""

    def add_exclamation_mark(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"task": point.arguments["task"] + "!"})

    loop = caller(clerk(), interceptors=[at("before_tool_use", add_exclamation_mark)])
    state = await loop.execute("go")
    state = await loop.resume(state, {leaves(state)[0].key: approve()})
    execution = state.steps[0].executions[0]
    assert (execution.value, execution.call.arguments) == ("it is paid", {"task": "clerk 0!"})


async def test_a_resumed_agent_call_can_still_be_denied() -> None:
    """A permission that was withdrawn during the suspension applies."""
    state = await caller(clerk()).execute("go")
    loop = caller(clerk(), interceptors=[Permissions(deny=["clerk"])])
    state = await loop.resume(state, {leaves(state)[0].key: approve()})
    execution = state.steps[0].executions[0]
    assert (execution.status, execution.may_have_run) == (ToolStatus.BLOCKED, True)


async def test_each_attempt_of_an_agent_is_another_execution() -> None:
    """Each attempt has its own id and its own events."""
    failures = [ValueError("no"), ValueError("no")]

    def fail_twice(_: InferenceRequest) -> str:
        if failures:
            raise failures.pop()
        return "at last"

    child = AgentLoop.for_model(ScriptedInference(fail_twice))
    policy = ToolPolicy(retry=RetryPolicy(max_attempts=3, initial_wait=0))
    agent = child.as_tool("ask", "Knows.", effect=Effect.IDEMPOTENT, policy=policy)
    loop = caller(agent, interceptors=[Resilience()])
    executions: list[str] = []
    loop.on(AgentExecutionStarted, lambda event: executions.append(event.execution_id))
    state = await loop.execute("go", execution_id="run")
    assert state.steps[0].executions[0].value == "at last"
    assert executions == ["run", "run/1/0/agent", "run/1/0/agent-2", "run/1/0/agent-3"]


async def test_calls_behind_a_suspended_agent_keep_their_order() -> None:
    """A sequential call waits until the agent before it has ended, also over a second suspension."""

    @tool(sequential=True)
    async def tidy() -> str:
        """Tidy up."""
        return "tidy"

    @tool
    async def sign(paper: str) -> str:
        """Sign."""
        return paper

    script = (calls(("pay", {"to": "Ada"})), calls(("sign", {"paper": "a"})), final("both done"))
    agent = scripted(*script, tools=[pay, sign], interceptors=[RequireApproval()]).as_tool("agent", "Acts.")
    loop = scripted(calls(("agent", {"task": "x"}), ("tidy", {})), final("over"), tools=[agent, tidy])
    state = await loop.execute("go", execution_id="run")
    for step in (1, 2):
        assert [(call.key, call.waits_for) for call in state.pending] == [
            ("run/1/0", f"run/1/0/agent/{step}/0"),
            (f"run/1/0/agent/{step}/0", ""),
            ("run/1/1", "run/1/0"),
        ]
        state = await loop.resume(from_json(to_json(state), AgentState), {f"run/1/0/agent/{step}/0": approve()})
    assert [execution.value for execution in state.steps[0].executions] == ["both done", "tidy"]


async def test_closing_a_suspended_turn_cancels_the_call_of_the_agent() -> None:
    """The cancelled call is marked as one that may have run."""
    loop = caller(clerk())
    state = await loop.execute("go")
    closed_state = close_open_turn(state, "given up", state.updated_at, CountingIds())
    execution = closed_state.steps[0].executions[0]
    assert (execution.status, execution.may_have_run) == (ToolStatus.CANCELLED, True)


# --- budgets ------------------------------------------------------------------------------------------------------


async def test_the_usage_of_a_suspended_agent_is_counted_once() -> None:
    """However often nested agents are suspended, the caller's budget counts their total usage."""

    def next_payment(request: InferenceRequest) -> InferenceResponse | str:
        answered = sum(len(message.exchanges) for message in request.messages)
        return paying[answered] if answered < len(paying) else "done"

    paying = [
        InferenceResponse(
            (ToolCall("1", "pay", json.dumps({"to": name})),), FinishReason.TOOL_CALLS, Usage(60, 40), model="", id=""
        )
        for name in ("Ada", "Bea")
    ]
    child = AgentLoop.for_model(ScriptedInference(*[next_payment] * 3), tools=[pay], interceptors=[RequireApproval()])

    def office() -> AgentLoop:
        middle = caller(child.as_tool("clerk", "Pays."), tasks=2).as_tool("office", "Has a clerk.")
        return caller(middle, interceptors=[Budget(tokens=200_000, steps=100, tool_calls=100)])

    state = await office().execute("go")
    rounds = 0
    while state.pending:
        rounds += 1
        stored = from_json(to_json(state), AgentState)
        state = await office().resume(stored, {leaves(stored)[-1].key: approve()})
    spent = state.extensions["agentloop.budget"]["Budget"]
    assert rounds == 4
    assert (spent["tokens"], spent["steps"], spent["tool_calls"]) == (2 * (100 + 100 + 15), 2 + 2 * 3, 2 + 2 * 2)


async def test_a_resumed_agent_has_the_remaining_time() -> None:
    """The time before the suspension does not count against the new lease."""
    clock = ManualClock()

    @tool(name="pay")
    async def slow(to: str) -> str:
        """Pay."""
        clock.advance(25)
        return to

    def office() -> AgentLoop:
        batch = calls(("pay", {"to": "a"}))
        child = scripted(
            batch, batch, batch, final("paid"), tools=[slow], interceptors=[RequireApproval()], clock=clock
        )
        return caller(child.as_tool("clerk", "Pays."), interceptors=[Budget(seconds=100, wrap_up=0)], clock=clock)

    state = await office().execute("go")
    while state.pending:
        clock.advance(10_000)
        state = await office().resume(state, {leaves(state)[0].key: approve()})
    assert state.steps[0].executions[0].value == "paid"


async def test_the_last_answer_of_an_agent_at_its_limit_is_the_result() -> None:
    """The program receives the answer, and the model also that the agent was stopped."""
    model = ScriptedInference(ToolCall("1", "pay", '{"to": "Ada"}'), "Ada is paid, Bob is not.")
    child = AgentLoop.for_model(model, tools=[pay], interceptors=[Budget(steps=2)])
    state = await caller(child.as_tool("ask", "Pays.")).execute("go")
    execution = state.steps[0].executions[0]
    assert execution.value == "Ada is paid, Bob is not."
    assert execution.content is not None
    assert "step_limit" in str(execution.content[0])


async def test_cancelling_settles_the_siblings_of_a_suspended_agent() -> None:
    """A running agent is settled as cancelled, a suspended one stays suspended, and the events are in a valid order."""
    started = [asyncio.Event()]
    waits = asyncio.Event()
    loop = caller(clerk(), stuck_agent(started).as_tool("ask", "Hangs."))
    monitor = ProtocolMonitor()
    loop.wiretap(monitor)
    loop.on(AgentExecutionSuspended, lambda _: waits.set())
    run = asyncio.create_task(loop.execute("go"))
    await started[0].wait()
    await waits.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await run
    state = interrupted_state(raised.value)
    assert state is not None
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.CANCELLED]
    assert state.steps[0].executions[0].may_have_run
    assert [call.call.name for call in state.pending] == ["clerk", "pay"]
    assert (await loop.execute(state)).status is ExecutionStatus.SUSPENDED
    monitor.check()


async def test_a_nested_agent_call_can_be_denied() -> None:
    """Its caller, an agent as well, receives the denial and continues."""
    loop = caller(caller(clerk()).as_tool("office", "Has a clerk."))
    state = await loop.execute("go", execution_id="run")
    middle = "run/1/0/agent/1/0"
    assert middle in [call.key for call in state.pending]
    state = await loop.resume(from_json(to_json(state), AgentState), {middle: deny("no clerks")})
    assert state.status is ExecutionStatus.COMPLETED
    assert state.steps[0].executions[0].value == "over"


async def test_the_order_of_decisions_about_agents_does_not_matter() -> None:
    """Each of several suspended agents has the same outcome, whichever is decided first."""
    ended: list[list[object]] = []
    for order in ((0, 1, 2), (2, 0, 1)):
        loop = caller(clerk(), tasks=3)
        state = await loop.execute("go", execution_id="run")
        for index in order:
            key = f"run/1/{index}/agent/1/0"
            state = await loop.resume(state, {key: deny("no") if index == 1 else approve()})
        ended.append([(execution.key, execution.value, execution.status) for execution in state.steps[0].executions])
    assert ended[0] == ended[1]
