"""Suspension from end to end: pending calls, finished calls, other processes, and limits."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Budget,
    Interceptor,
    ScriptedDriver,
    ScriptedInference,
    TimeLimit,
    TokenLimit,
    ToolCall,
    ToolCallLimit,
    ToolExecutor,
    from_json,
    to_json,
    tool,
)
from agentloop.contracts import CanExecuteToolCalls, CanJournal
from agentloop.contracts.tools import Tools
from agentloop.drivers import ScenarioStep
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.errors import DecisionError
from agentloop.events import (
    AgentExecutionStarted,
    AgentExecutionSuspended,
    AgentStepCompleted,
    AgentStepStarted,
    EventBus,
    ToolCallCompleted,
)
from agentloop.interception import BeforeExecution, BeforeStep, InterceptorStack, RequireApproval, at
from agentloop.testing import Ledger, ManualClock, toy_tools
from agentloop.values import (
    Decision,
    Event,
    ExecutionStatus,
    StopReason,
    ToolCalls,
    ToolExecutions,
    ToolStatus,
    Usage,
    answer,
    approve,
    deny,
    edit,
)
from agentloop.values.interruptions import interrupted_state
from tests.generated import examples
from tests.limits import LONGEST
from tests.loaded import loaded_python

ROOT = Path(__file__).parents[2]

PROGRAM = '''
import asyncio, sys
from pathlib import Path
from agentloop import AgentLoop, AgentState, ScriptedDriver, from_json, to_json, tool
from agentloop.drivers import ScenarioStep
from agentloop.interception import RequireApproval
from agentloop.values import answer, approve, deny, edit

folder = Path(sys.argv[1])

@tool
def pay(to: str) -> str:
    """Pay."""
    with (folder / "paid").open("a") as file:
        file.write(to + "\\\\n")
    return "paid " + to

@tool(effect="pure")
def look() -> str:
    """Look."""
    with (folder / "paid").open("a") as file:
        file.write("looked\\\\n")
    return "seen"

calls = [("pay", {"to": "Ada"}), ("look", {}), ("pay", {"to": "Bob"}), ("pay", {"to": "Cid"}), ("pay", {"to": "Dot"})]
driver = ScriptedDriver(ScenarioStep.tool_call("look"), ScenarioStep.tool_calls(*calls), ScenarioStep.final("done"))
loop = AgentLoop(driver, [pay, look], interceptors=[RequireApproval()])
stored = folder / "state.json"

async def main() -> None:
    if not stored.exists():
        state = await loop.execute("go", execution_id="run")
    else:
        state = from_json(stored.read_bytes(), AgentState)
        state = await loop.resume(state, eval(sys.argv[2]))
    stored.write_bytes(to_json(state))

asyncio.run(main())
'''


def run_in_process(folder: Path, decisions: str = "") -> AgentState:
    """Start the execution, or resume it with these decisions, in another process; return the stored state."""
    program = PROGRAM.replace("\\\\n", "\\n")
    done = subprocess.run(
        loaded_python("-c", program, str(folder), decisions),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return from_json((folder / "state.json").read_bytes(), AgentState)


def test_each_round_of_decisions_can_be_another_process(tmp_path: Path) -> None:
    """Nothing runs twice, undecided calls stay pending, and the order is that of the calls."""
    state = run_in_process(tmp_path)
    assert state.status is ExecutionStatus.SUSPENDED
    assert [call.key for call in state.pending] == ["run/2/0", "run/2/2", "run/2/3", "run/2/4"]
    digest = state.pending[0].digest
    state = run_in_process(tmp_path, f"{{'run/2/2': deny('not Bob'), 'run/2/0': approve({digest!r})}}")
    assert [call.key for call in state.pending] == ["run/2/3", "run/2/4"]
    state = run_in_process(tmp_path, "{'run/2/4': edit({'to': 'Eve'})}")
    assert [call.key for call in state.pending] == ["run/2/3"]
    state = run_in_process(tmp_path, "{'run/2/3': answer('by hand')}")
    assert (state.status, state.final_text, state.step_count) == (ExecutionStatus.COMPLETED, "done", 3)
    assert [execution.text for execution in state.steps[1].executions] == [
        "paid Ada",
        "seen",
        "ToolBlocked: not Bob",
        "by hand",
        "paid Eve",
    ]
    assert [execution.key for execution in state.steps[1].executions] == [f"run/2/{place}" for place in range(5)]
    assert (tmp_path / "paid").read_text().split() == ["looked", "looked", "Ada", "Eve"]
    assert [message.role for message in state.messages] == ["user", "assistant", "assistant", "assistant"]
    exchange = state.messages[2].exchanges[4]
    assert (exchange.call.arguments, exchange.execution.call.arguments) == ({"to": "Dot"}, {"to": "Eve"})


def loop_suspending(*values: int, ledger: Ledger | None = None, **parts: Any) -> AgentLoop:
    """Return a loop whose first step calls echo with each value, and whose second step answers."""
    usage = Usage(10, 10)
    script = ScenarioStep.tool_calls(*[("echo", {"value": value}) for value in values], usage=usage)
    driver = ScriptedDriver(script, ScenarioStep.final("done", usage=usage))
    return AgentLoop(driver, toy_tools(ledger or Ledger()), **parts)


async def test_the_events_of_a_suspension_and_a_resumption() -> None:
    """The run ends as suspended; the next one is resumed, in the same step, without another inference."""
    loop = loop_suspending(1, 2, interceptors=[RequireApproval([lambda point: point.arguments["value"] == 2])])
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("go", execution_id="run")
    ended = events[-1]
    assert isinstance(ended, AgentExecutionSuspended)
    assert ended.pending == state.pending
    events.clear()
    await loop.resume(state, {"run/1/1": approve()})
    kinds = (AgentExecutionStarted, AgentStepStarted, ToolCallCompleted, AgentStepCompleted)
    seen = [(type(event).__name__, event.step_number) for event in events if isinstance(event, kinds)]
    assert seen == [
        ("AgentExecutionStarted", 1),
        ("AgentStepStarted", 1),
        ("ToolCallCompleted", 1),
        ("AgentStepCompleted", 1),
        ("AgentStepStarted", 2),
        ("AgentStepCompleted", 2),
    ]
    first = events[0]
    assert isinstance(first, AgentExecutionStarted)
    assert first.resumed


async def test_before_execution_does_not_run_again() -> None:
    """An interceptor of the start of an execution does not run when it is resumed."""
    passed: list[int] = []

    def note(point: BeforeExecution) -> BeforeExecution:
        passed.append(1)
        return point

    loop = loop_suspending(1, interceptors=[at("before_execution", note), RequireApproval()])
    state = await loop.execute("go", execution_id="run")
    assert (await loop.resume(state, {"run/1/0": approve()})).status is ExecutionStatus.COMPLETED
    assert passed == [1]


@pytest.mark.parametrize(
    "limit",
    [{"max_steps": 1}, {"interceptors": [TokenLimit(20)]}, {"interceptors": [ToolCallLimit(2)]}],
    ids=["steps", "tokens", "calls"],
)
async def test_approved_calls_run_although_their_step_reaches_a_limit(limit: dict[str, Any]) -> None:
    """The suspended step counts as one step, and its calls count once."""
    ledger, plain = Ledger(), Ledger()
    unhindered = await loop_suspending(1, 2, ledger=plain, **limit).execute("go", execution_id="run")
    limit["interceptors"] = [*limit.get("interceptors", []), RequireApproval()]
    loop = loop_suspending(1, 2, ledger=ledger, **limit)
    state = await loop.execute("go", execution_id="run")
    state = await loop.resume(state, {"run/1/0": approve()})
    state = await loop.resume(state, {"run/1/1": approve()})
    assert sorted(arguments["value"] for _, arguments in ledger.calls) == [1, 2]
    assert (state.status, state.stop_signal) == (unhindered.status, unhindered.stop_signal)
    assert state.tool_call_count == unhindered.tool_call_count


@tool(effect="pure")
def hang_up() -> str:
    """Stop the execution."""
    raise AgentStop("the customer has hung up")


STOPS: dict[str, tuple[tuple[str, dict[str, Any]], list[Interceptor]]] = {
    "a tool": (("hang_up", {}), []),
    "a limit": (("echo", {"value": 3}), [ToolCallLimit(2)]),
    "nothing": (("echo", {"value": 3}), [ToolCallLimit(3)]),
}


@pytest.mark.parametrize("journal", [None, MemoryJournal])
@pytest.mark.parametrize("stop", STOPS)
async def test_what_stopped_a_suspended_step_counts_when_its_calls_are_settled(
    stop: str, journal: Callable[[], CanJournal] | None
) -> None:
    """The execution ends as if no call had waited, however many decisions it takes, and in another process, too."""
    third, interceptors = STOPS[stop]
    calls = ScenarioStep.tool_calls(("echo", {"value": 1}), ("echo", {"value": 2}), third)
    driver = ScriptedDriver(calls, ScenarioStep.final("done"))
    tools = [*toy_tools(Ledger()), hang_up]
    unhindered = await AgentLoop(driver, tools, interceptors=interceptors).execute("go", execution_id="run")
    interceptors = [*interceptors, RequireApproval([lambda point: point.arguments.get("value") in {1, 2}])]
    loop = AgentLoop(driver, tools, interceptors=interceptors, journal=journal and journal())
    state = await loop.execute("go", execution_id="run")
    for place in range(2):
        assert state.status is ExecutionStatus.SUSPENDED
        state = await loop.resume(from_json(to_json(state), AgentState), {f"run/1/{place}": approve()})
    assert (state.status, state.stop_signal) == (unhindered.status, unhindered.stop_signal)
    assert state.step_count == unhindered.step_count


@pytest.mark.parametrize("journal", [None, MemoryJournal])
async def test_what_stopped_a_suspended_step_counts_after_an_interruption(
    journal: Callable[[], CanJournal] | None,
) -> None:
    """Also if the step is interrupted again while its calls are settled."""
    began = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> None:
        """Wait without end at first."""
        if not began.is_set():
            began.set()
            await asyncio.sleep(LONGEST)

    calls = ScenarioStep.tool_calls(("hang_up", {}), ("wait", {}))
    driver = ScriptedDriver(calls, ScenarioStep.final("done"))
    loop = AgentLoop(driver, [hang_up, wait], interceptors=[RequireApproval(["wait"])], journal=journal and journal())
    state = await loop.execute("go", execution_id="run")
    running = asyncio.create_task(loop.resume(state, {"run/1/1": approve()}))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    interrupted = interrupted_state(caught.value)
    assert interrupted is not None
    state = await (loop.recover("run") if journal else loop.execute(interrupted))
    assert state.stop_signal is not None
    assert (state.stop_signal.message, state.step_count) == ("the customer has hung up", 1)


@tool
async def plain(number: int) -> int:
    """Run beside other calls."""
    return number


@tool(key="one")
async def keyed(number: int) -> int:
    """Run after calls of the same kind."""
    return number


@tool(sequential=True)
async def alone(number: int) -> int:
    """Run alone."""
    return number


@given(
    names=st.lists(st.sampled_from(["plain", "keyed", "alone"]), min_size=1, max_size=5),
    waiting=st.sets(st.integers(0, 4)),
    limit=st.integers(0, 5),
    wrap_up=st.sampled_from([0.0, 0.1]),
    data=st.data(),
)
def test_the_same_calls_run_under_a_limit_as_if_none_had_waited(
    names: list[str], waiting: set[int], limit: int, wrap_up: float, data: st.DataObject
) -> None:
    """A call that waits for a decision about another one runs only if it is within the limit, as does one that needs none."""
    calls = ScenarioStep.tool_calls(*[(name, {"number": number}) for number, name in enumerate(names)])
    driver = ScriptedDriver(calls, ScenarioStep.tool_call("plain", {"number": 9}), ScenarioStep.final("done"))
    budget, tools = Budget(tool_calls=limit, wrap_up=wrap_up), [plain, keyed, alone]
    unhindered = AgentLoop(driver, tools, interceptors=[budget]).execute_sync("go", execution_id="run")
    approval = RequireApproval([lambda point: point.arguments["number"] in waiting])
    loop = AgentLoop(driver, tools, interceptors=[budget, approval])
    state = loop.execute_sync("go", execution_id="run")
    while state.pending:
        keys = [call.key for call in state.pending if not call.waits_for]
        chosen = data.draw(st.sets(st.sampled_from(keys), min_size=1))
        state = loop.resume_sync(state, {key: approve() for key in chosen})
    outcomes, expected = [
        [[execution.status for execution in step.executions] for step in each.steps] for each in (state, unhindered)
    ]
    assert outcomes == expected
    assert (state.status, state.stop_signal) == (unhindered.status, unhindered.stop_signal)


async def test_the_time_of_a_suspension_does_not_count() -> None:
    """A time limit counts all time but that of the suspension."""
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    loop = loop_suspending(1, 2, interceptors=[TimeLimit(60), RequireApproval()], clock=clock)
    state = await loop.execute("go", execution_id="run")
    for place in range(2):
        clock.advance(timedelta(days=3).total_seconds())
        state = await loop.resume(from_json(to_json(state), AgentState), {f"run/1/{place}": approve()})
    assert state.status is ExecutionStatus.COMPLETED
    assert state.execution is not None
    assert state.execution.waited_seconds == pytest.approx(6 * 86400, abs=1)


async def test_a_call_that_waits_for_another_runs_when_the_other_is_settled() -> None:
    """A sequential call after an undecided one needs no decision, and keeps its place."""
    ledger = Ledger()
    script = ScenarioStep.tool_calls(("echo", {"value": 1}), ("alone", {"value": 2}), ("echo", {"value": 3}))
    driver = ScriptedDriver(script, ScenarioStep.final("done"))
    loop = AgentLoop(
        driver, toy_tools(ledger), interceptors=[RequireApproval([lambda point: point.arguments["value"] == 1])]
    )
    state = await loop.execute("go", execution_id="run")
    assert [(call.key, call.waits_for) for call in state.pending] == [("run/1/0", ""), ("run/1/1", "run/1/0")]
    with pytest.raises(DecisionError, match="needs no decision: it runs when 'run/1/0' is settled"):
        await loop.resume(state, {"run/1/1": approve()})
    state = await loop.resume(state, {"run/1/0": approve()})
    assert [execution.value for execution in state.steps[0].executions] == [1, 2, 3]
    assert [arguments["value"] for _, arguments in ledger.calls] == [3, 1, 2]


async def test_an_approved_call_is_not_suspended_again() -> None:
    """One decision is enough, however many interceptors suspended the call."""
    asks = [at("before_tool_use", lambda point: point.suspend("again")) for _ in range(3)]
    loop = loop_suspending(1, interceptors=[*asks, RequireApproval()])
    state = await loop.execute("go", execution_id="run")
    assert (await loop.resume(state, {"run/1/0": approve()})).status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize("error", [ValueError("no"), AgentStop("enough", source="test")])
async def test_a_pending_call_that_is_cancelled_is_reported(error: Exception, tmp_path: Path) -> None:
    """Each call gets one event when it is settled, also where the execution ends while it waits for a decision."""

    def end_resumption(point: BeforeStep) -> BeforeStep:
        if point.state.pending:
            raise error
        return point

    journal = SqliteJournal(tmp_path / "runs.db")
    interceptors = [RequireApproval(), at("before_step", end_resumption)]
    loop = loop_suspending(1, 2, 3, journal=journal, interceptors=interceptors)
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("go", execution_id="run")
    state = await loop.resume(state, {"run/1/1": approve()})
    assert state.status.is_terminal
    assert [event.execution for event in events if isinstance(event, ToolCallCompleted)] == [*state.steps[0].executions]
    assert await journal.state("run") == state
    await journal.aclose()


async def test_a_failed_resumption_leaves_a_complete_conversation() -> None:
    """If an interceptor fails while decided calls are settled, the execution ends and undecided calls are cancelled."""
    ledger = Ledger()

    class FailingInterceptor(Interceptor):
        priority = 700

        def before_tool_use(self, point: Any) -> Any:
            if point.decision is not None:
                raise ValueError("no")
            return point

    loop = loop_suspending(1, 2, ledger=ledger, interceptors=[FailingInterceptor(), RequireApproval()])
    state = await loop.resume(await loop.execute("go", execution_id="run"), {"run/1/0": approve()})
    assert state.status is ExecutionStatus.FAILED
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.FAILED, ToolStatus.CANCELLED]
    assert [message.role for message in state.messages] == ["user", "assistant"]
    assert not ledger.calls


class DyingExecutor(CanExecuteToolCalls):
    """Executes one batch, and then fails without reporting the outcomes of the next."""

    def __init__(self, executor: CanExecuteToolCalls) -> None:
        self.executor = executor
        self.batches = 0

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        self.batches += 1
        if self.batches > 1:
            raise ConnectionError("gone")
        return await self.executor.execute_tools(tool_calls, state)


async def test_decided_calls_whose_executor_dies_may_have_run() -> None:
    """Their outcome is unknown, and the state says so; undecided calls did not run."""
    stack = InterceptorStack.of([RequireApproval()])
    inner = ToolExecutor().with_tools(Tools.of(toy_tools(Ledger()))).with_lifecycle(stack, EventBus())
    loop = loop_suspending(1, 2, executor=DyingExecutor(inner))
    state = await loop.execute("go", execution_id="run")
    state = await loop.resume(state, {"run/1/1": approve()})
    assert state.status is ExecutionStatus.FAILED
    assert [(execution.status, execution.may_have_run) for execution in state.steps[0].executions] == [
        (ToolStatus.CANCELLED, False),
        (ToolStatus.FAILED, True),
    ]
    assert state.errors[0].type == "ConnectionError"


async def test_a_decision_for_no_pending_call_is_refused() -> None:
    """The error lists the pending calls, and nothing is decided."""
    loop = loop_suspending(1, 2, interceptors=[RequireApproval()])
    state = await loop.execute("go", execution_id="run")
    with pytest.raises(DecisionError, match="no call with the key 'other/1/0' waits; waiting are run/1/0, run/1/1"):
        await loop.resume(state, {"run/1/0": approve(), "other/1/0": approve()})
    assert all(call.decision is None for call in state.pending)
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.SUSPENDED


# --- random rounds ----------------------------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(st.sampled_from(["echo", "alone", "fail", "keyed"]), st.integers(0, 5)), min_size=1, max_size=6
)
DECISIONS = st.sampled_from(["approve", "deny", "answer", "edit"])


class DecisionRounds(RuleBasedStateMachine):
    """An execution of one batch whose calls are decided in any order and any number of rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.expected: dict[str, tuple[str, int]] = {}
        self.settled: dict[str, Any] = {}

    @initialize(calls=CALLS, threshold=st.integers(0, 5))
    def begin(self, calls: list[tuple[str, int]], threshold: int) -> None:
        """Let the model make the calls; those with a value of at least the threshold are suspended."""
        self.calls = calls
        numbered = [(name, {"value": value, "key": str(place)}) for place, (name, value) in enumerate(calls)]
        driver = ScriptedDriver(ScenarioStep.tool_calls(*numbered), ScenarioStep.final("done"))
        approval = RequireApproval([lambda point: point.arguments["value"] >= threshold])
        self.loop = AgentLoop(driver, toy_tools(self.ledger), interceptors=[approval])
        self.state = self.loop.execute_sync("go", execution_id="run")

    @precondition(lambda self: self.state.status is ExecutionStatus.SUSPENDED)
    @rule(kinds=st.lists(st.none() | DECISIONS, min_size=6, max_size=6), stored=st.booleans(), bound=st.booleans())
    def decide(self, kinds: list[str | None], *, stored: bool, bound: bool) -> None:
        """Decide about some of the pending calls, and resume."""
        waiting = [call for call in self.state.pending if not call.waits_for]
        assert waiting, "something waits for nothing"
        decisions: dict[str, Decision] = {}
        for call, kind in zip(waiting, kinds, strict=False):
            digest = call.digest if bound else ""
            by_kind: dict[str | None, Decision] = {
                "approve": approve(digest),
                "deny": deny("no", digest),
                "answer": answer("by hand", digest),
                "edit": edit({"value": 50, "key": call.key.rpartition("/")[2]}, digest),
            }
            if kind is not None:
                decisions[call.key] = by_kind[kind]
                self.expected[call.key] = (kind, call.call.arguments["value"])
        state = from_json(to_json(self.state), AgentState) if stored else self.state
        self.state = asyncio.run(self.loop.resume(state, decisions))
        assert not set(decisions) & {call.key for call in self.state.pending}

    @precondition(lambda self: self.state.status is not ExecutionStatus.SUSPENDED)
    @rule()
    def decide_too_late(self) -> None:
        """Nothing is pending any more, so a decision is refused."""
        with pytest.raises(DecisionError, match="nothing waits for a decision"):
            asyncio.run(self.loop.resume(self.state, {"run/1/0": approve()}))

    @invariant()
    def every_call_is_settled_or_pending(self) -> None:
        """Both together are in call order, and settled calls do not change (law 1)."""
        if not hasattr(self, "state"):
            return
        step = self.state.steps[0]
        settled = {execution.key: execution for execution in step.executions}
        waiting = {call.key for call in step.pending}
        assert [execution.key for execution in step.executions] == sorted(settled)
        assert sorted([*settled, *waiting]) == [f"run/1/{place}" for place in range(len(self.calls))]
        for key, execution in self.settled.items():
            assert settled[key] == execution
        self.settled = settled
        for key, (kind, value) in self.expected.items():
            self.check_outcome(settled[key], kind, value)

    def check_outcome(self, execution: Any, kind: str, value: int) -> None:
        """Compare an outcome with the decision."""
        if kind == "deny":
            assert (execution.status, execution.error_message) == (ToolStatus.BLOCKED, "no")
        elif kind == "answer":
            assert (execution.status, execution.value) == (ToolStatus.SUCCEEDED, "by hand")
        else:
            assert execution.status in {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.REJECTED}
            if execution.status is ToolStatus.SUCCEEDED:
                assert execution.value == (50 if kind == "edit" else value)

    @invariant()
    def no_tool_runs_twice(self) -> None:
        """A call is in the ledger once if it ran, and else not at all."""
        if not hasattr(self, "state"):
            return
        runs = Counter(arguments["key"] for _, arguments in self.ledger.calls)
        assert all(times == 1 for times in runs.values())
        by_decision = {key for key, (kind, _) in self.expected.items() if kind in {"deny", "answer"}}
        should = {
            execution.key.rpartition("/")[2]
            for execution in self.settled.values()
            if execution.key not in by_decision and execution.status in {ToolStatus.SUCCEEDED, ToolStatus.FAILED}
        }
        assert set(runs) == should

    @invariant()
    def the_execution_continues_when_all_calls_are_settled(self) -> None:
        """It is suspended as long as a call is pending, and no longer."""
        if not hasattr(self, "state"):
            return
        if self.state.pending:
            assert self.state.status is ExecutionStatus.SUSPENDED
            assert [message.role for message in self.state.messages] == ["user"]
        else:
            assert (self.state.status, self.state.final_text) == (ExecutionStatus.COMPLETED, "done")
            assert len(self.state.messages[1].exchanges) == len(self.calls)


TestRounds = DecisionRounds.TestCase
TestRounds.settings = settings(max_examples=examples(40), stateful_step_count=8, deadline=None)


def fail(_: object) -> Any:
    """Fail, as a report to a service that is away."""
    raise ConnectionError("the metrics are down")


async def test_a_failure_at_the_end_that_is_recovered_leaves_the_calls_pending() -> None:
    """An execution that waits for a decision still waits, and goes on with it, although an interceptor failed when it stopped."""
    model = ScriptedInference(ToolCall("1", "echo", '{"value": 5}'), "Done.")
    interceptors = [RequireApproval(), at("on_stop", fail), at("on_error", lambda point: point.recover())]
    loop = AgentLoop.for_model(model, tools=toy_tools(Ledger()), interceptors=interceptors)
    state = await loop.execute("Go.")
    assert (state.status, len(state.pending), state.step_count) == (ExecutionStatus.SUSPENDED, 1, 1)
    state = await loop.resume(state, {call.key: approve() for call in state.pending})
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "Done.")


@pytest.mark.parametrize("point", [at("on_stop"), at("after_execution")])
async def test_a_failure_at_the_end_that_is_recovered_leaves_the_answer(point: Any) -> None:
    """No step follows the one with the answer, and none of a failure hides it."""
    interceptors = [point(fail), at("on_error", lambda error: error.recover())]
    state = await AgentLoop.for_model(ScriptedInference("Done."), interceptors=interceptors).execute("Go.")
    assert (state.status, state.final_text, state.step_count) == (ExecutionStatus.COMPLETED, "Done.", 1)
