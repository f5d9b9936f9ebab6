"""Faults on purpose: they occur where and as often as the plan says, and equal seeds give equal runs."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, SqliteJournal, TimeLimit, ToolCall, ToolContext, ToolExecutor, tool
from agentloop.contracts import CanAccessToolContext, Tool
from agentloop.contracts.tool import CanPrepareArguments, CanUseInline, CanUseThread
from agentloop.durable import MemoryJournal
from agentloop.errors import (
    ClaimLost,
    ConfigurationError,
    InterceptorFailed,
    JournalError,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.events import EventBus, ToolCallAbandoned
from agentloop.policies import Resilience
from agentloop.testing import CountingIds, Fault, FaultPlan, LoopClock, ManualClock, run_in_virtual_time
from agentloop.toolkits import Ensemble
from agentloop.values import AgentState, Effect, Event, ExecutionStatus, ToolStatus, approve
from agentloop.values.policies import RetryPolicy


@tool(effect="pure", timeout=30)
async def look(item: str) -> str:
    """Look something up."""
    await asyncio.sleep(1)
    return f"{item} is here"


@tool(timeout=30)
def count(context: ToolContext, number: int) -> int:
    """Count, in a thread."""
    return number + len(context.execution_id) * 0


def calls(*names: str) -> list[ToolCall]:
    arguments = {"look": '{"item": "lamp"}', "count": '{"number": 1}'}
    return [ToolCall(f"c{index}", name, arguments.get(name, "{}")) for index, name in enumerate(names)]


def make_loop(*script: Any, **options: Any) -> AgentLoop:
    options = {"tools": [look, count], "clock": LoopClock(), "ids": CountingIds(), **options}
    return AgentLoop.for_model(ScriptedInference(*(script or (calls("look", "look"), "done"))), **options)


def run(plan: FaultPlan, loop: AgentLoop) -> AgentState:
    return run_in_virtual_time(plan.apply(loop).execute("go", execution_id="run"))


def statuses(state: AgentState) -> list[ToolStatus]:
    return [execution.status for step in state.steps for execution in step.executions]


def test_the_second_call_of_a_tool_hangs_until_its_timeout() -> None:
    """A fault with a number occurs at this passage of its place alone, and inside of the limits of the tool."""
    plan = FaultPlan(Fault.hang("tool:look", number=2))
    state = run(plan, make_loop())
    assert statuses(state) == [ToolStatus.SUCCEEDED, ToolStatus.TIMED_OUT]
    assert [(each.fault.place, each.number) for each in plan.occurred] == [("tool:look", 2)]
    plan.assert_complete()


def test_a_tool_in_a_thread_hangs_and_is_abandoned() -> None:
    """A thread cannot be cancelled: its call times out, and it ends when the plan is closed."""
    abandoned: list[Event] = []
    loop = make_loop(calls("count"), "done")
    loop.on(ToolCallAbandoned, abandoned.append)
    with FaultPlan(Fault.hang("tool:count")) as plan:
        assert statuses(run(plan, loop)) == [ToolStatus.TIMED_OUT]
    assert len(abandoned) == 1


def test_an_answer_that_is_lost_after_the_call_is_one_of_a_tool_that_ran() -> None:
    """A fault after an operation loses its outcome, not its effect."""
    ran: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    state = run(FaultPlan(Fault.drop("tool:pay", when="after")), make_loop(calls("pay"), "done", tools=[pay]))
    assert ran == ["paid"]
    assert state.steps[0].executions[0].status is ToolStatus.FAILED
    assert state.steps[0].executions[0].may_have_run


@pytest.mark.parametrize(
    "faults",
    [
        (Fault.fail("tool", ValueError("broken")), Fault.drop("tool:count", when="after")),
        (Fault.fail("tool", ValueError("broken")), Fault.jump("tool:count", 60)),
        (Fault.fail("inference", ValueError("broken")), Fault.drop("inference", when="after")),
    ],
    ids=["in a thread", "of one passage", "of the model"],
)
def test_a_fault_that_a_failure_before_it_prevents_has_not_occurred(faults: tuple[Fault, Fault]) -> None:
    """A test that waits for it is told that it shows nothing."""
    plan = FaultPlan(*faults)
    run(plan, make_loop(calls("count"), "done"))
    assert [each.fault for each in plan.occurred] == [faults[0]]
    with pytest.raises(AssertionError, match=faults[1].kind.value):
        plan.assert_complete()


def test_an_inline_tool_has_faults_and_can_hang() -> None:
    """It is awaited then; a copy of it that knows its call has the faults, too."""

    @tool(effect="pure", inline=True)
    def double(context: ToolContext, number: int) -> int:
        """Double a number."""
        return number * context.attempt * 2

    class Half(Tool, CanUseInline, CanAccessToolContext):
        """A tool of another class."""

        name = "half"
        description = "Halve a number."
        parameters = double.parameters
        effect = Effect.PURE

        def with_tool_context(self, context: ToolContext) -> Half:
            return self

        async def use(self, *_: Any, **arguments: Any) -> Any:
            return self.use_inline(**arguments)

        def use_inline(self, **arguments: Any) -> Any:
            return arguments["number"] / 2

    batch = [ToolCall(name, name, '{"number": 3}') for name in ("double", "half", "half")]
    plan = FaultPlan(Fault.fail("tool:double", ValueError("broken")), Fault.hang("tool:half", number=2))
    state = run(plan, make_loop(batch, "done", tools=[double, Half()], interceptors=[TimeLimit(60)]))
    plan.assert_complete()
    assert statuses(state) == [ToolStatus.FAILED, ToolStatus.SUCCEEDED, ToolStatus.TIMED_OUT]
    assert state.steps[0].executions[1].value == 1.5


def test_a_retried_call_passes_its_place_again() -> None:
    """Attempts are counted, so that the first one fails and the second one does not."""
    plan = FaultPlan(Fault.fail("tool", ConnectionResetError("reset"), number=1))
    flaky = tool(retry=RetryPolicy(max_attempts=2))(look.function)
    state = run(plan, make_loop(calls("look"), "done", tools=[flaky], interceptors=[Resilience()]))
    assert statuses(state) == [ToolStatus.SUCCEEDED]
    assert len(plan.occurred) == 1


def test_the_model_fails_with_the_error_of_the_plan() -> None:
    """A fault of the model is raised by the inference, streamed or not, as it would be by a provider."""
    for streaming in (False, True):
        plan = FaultPlan(Fault.fail("inference", lambda: RateLimited("slow down"), number=2))
        state = run(plan, make_loop(streaming=streaming))
        assert state.status is ExecutionStatus.FAILED
        assert [[error.type for error in step.errors] for step in state.steps] == [[], ["RateLimited"]]


def test_the_answer_of_the_model_is_lost() -> None:
    """A dropped connection raises what the provider's client raises."""
    for streaming in (False, True):
        script = ScriptedInference("done")
        loop = AgentLoop.for_model(script, streaming=streaming)
        with pytest.raises(Exception, match="the connection to the model is lost") as raised:
            FaultPlan(Fault.drop("inference", when="after")).apply(loop).run_sync("go")
        assert "ProviderUnavailable" in repr(raised.value.__cause__) or isinstance(raised.value, ProviderUnavailable)
        script.assert_complete()


def test_a_point_of_the_interceptors_fails() -> None:
    """A point is a place as well: what fails there is an interceptor."""
    plan = FaultPlan(Fault.fail("after_step", RuntimeError("broken"), number=1))
    state = run(plan, make_loop())
    assert state.status is ExecutionStatus.FAILED
    assert [error.type for error in state.errors] == [InterceptorFailed.__name__]
    assert statuses(state) == [ToolStatus.SUCCEEDED, ToolStatus.SUCCEEDED]


def test_the_clock_jumps() -> None:
    """The time of day jumps, the monotonic time does not, and the run goes on."""
    clock = ManualClock()
    before = clock.now()
    plan = FaultPlan(Fault.jump("before_step", -3600, number=2))
    state = plan.apply(make_loop(clock=clock)).execute_sync("go")
    assert state.status is ExecutionStatus.COMPLETED
    assert state.execution is not None
    assert state.execution.ended_at is not None
    assert (state.execution.ended_at - before).total_seconds() == -3600


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_lost_connection_to_the_journal_interrupts_the_execution(when: Any, number: int) -> None:
    """Whether the records were stored or not, the execution can be recovered and no effect is doubled."""
    journal, ran = MemoryJournal(), []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    loop = make_loop(calls("pay"), "done", tools=[pay], journal=journal)
    plan = FaultPlan(Fault.drop("journal", number=number, when=when))
    with pytest.raises(JournalError, match="the connection is lost"):
        run(plan, loop)
    if number > 1 or when == "after":
        run_in_virtual_time(loop.recover("run"))
        assert len(ran) <= 1


@pytest.mark.parametrize(
    ("place", "when"),
    [
        ("tool:pay", "before"),
        ("tool:pay", "after"),
        ("journal", "after"),
        ("before_step", "before"),
        ("tool:plain", "after"),
        ("inference", "before"),
        ("inference", "after"),
        ("after_tool_use", "before"),
    ],
)
def test_what_a_simulated_death_leaves_can_be_recovered(place: str, when: Any) -> None:
    """After the death nothing reaches the journal, and the execution is not claimed any more; an effect happened at most once."""
    journal, ran = MemoryJournal(), []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @tool
    def plain() -> str:
        """Pay in a thread."""
        ran.append("plain")
        return "paid"

    loop = make_loop(calls("pay"), calls("plain"), "done", tools=[pay, plain], journal=journal)
    with FaultPlan(Fault.die(place, number=1 if "tool" in place else 2, when=when)) as plan:
        with pytest.raises(ClaimLost, match="the process died at"):
            run(plan, loop)
        assert plan.is_dead
    recovered = run_in_virtual_time(loop.recover("run"))
    if recovered.pending:
        recovered = run_in_virtual_time(
            loop.resume("run", {call.key: approve(call.digest) for call in recovered.pending})
        )
    assert recovered.status in {ExecutionStatus.COMPLETED, ExecutionStatus.SUSPENDED}
    assert sorted(set(ran)) in ([], ["pay"], ["plain"], ["pay", "plain"])
    assert len(ran) == len(set(ran))


@tool
async def touch(path: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a", encoding="utf-8") as file:  # noqa: ASYNC230  # the effect of a test
        file.write("x\n")
    return "done"


def disk_loop(folder: Path) -> AgentLoop:
    call = ToolCall("1", "touch", f'{{"path": "{folder / "effects"}"}}')
    journal = SqliteJournal(folder / "runs.db")
    return AgentLoop.for_model(ScriptedInference([call], "done"), tools=[touch], journal=journal)


def die_for_real(folder: str) -> None:
    plan = FaultPlan(Fault.die("tool:touch", when="after"), kills=True)
    plan.apply(disk_loop(Path(folder))).run_sync("go", execution_id="run")


def test_a_process_is_killed_at_the_place(tmp_path: Path) -> None:
    """With `kills=True` the process dies by SIGKILL between the effect and its record, and another process is told of the doubt."""
    process = multiprocessing.get_context("spawn").Process(target=die_for_real, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    state = disk_loop(tmp_path).recover_sync("run")
    assert statuses(state) == [ToolStatus.IN_DOUBT]
    assert (tmp_path / "effects").read_text() == "x\n"


def event_log(seed: int) -> list[str]:
    events: list[str] = []
    loop = make_loop(*[calls("look", "look", "look")] * 4, "done", events=EventBus(clock=LoopClock()))
    loop.wiretap(lambda event: events.append(repr(event)))
    faults = [
        Fault.hang("tool:look", probability=0.3),
        Fault.fail("tool", RuntimeError, probability=0.3),
        Fault.delay("tool", 5, probability=0.3),
    ]
    run(FaultPlan(*faults, seed=seed), loop)
    return events


def test_equal_seeds_give_equal_event_logs() -> None:
    """The faults of a seed are always the same, those of another seed are others."""
    logs = [event_log(seed) for seed in (1, 1, 2)]
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


def test_a_fault_that_did_not_occur_is_named() -> None:
    """A test whose faults do not occur shows nothing."""
    plan = FaultPlan(Fault.hang("tool:look", number=9))
    run(plan, make_loop())
    with pytest.raises(AssertionError, match=r"have not occurred:\n.*'tool:look'.*\(2 passages\)"):
        plan.assert_complete()


def test_what_a_tool_can_do_it_can_do_with_faults() -> None:
    """A tool in a plan has the class, and so every capability contract, of the tool; its repr and its copies as well."""
    plan = FaultPlan()
    wrapped = plan.wrap_tool(count)
    assert isinstance(wrapped, type(count))
    assert isinstance(wrapped, CanUseThread)
    assert isinstance(wrapped, CanPrepareArguments)
    assert isinstance(wrapped, CanAccessToolContext)
    assert repr(wrapped) == repr(count)
    assert wrapped.spec is count.spec


def test_tools_of_ensembles_have_faults_too() -> None:
    """The executor gets the tools of groups, whatever discovers them."""
    plan = FaultPlan(Fault.drop("tool:look"))
    state = run(plan, make_loop(calls("look"), "done", tools=[Ensemble("house", [look])], executor=ToolExecutor()))
    assert statuses(state) == [ToolStatus.FAILED]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fault.hang("tools"), "'tools' is no place of a fault, did you mean 'tool'?"),
        (lambda: Fault.cut("tool", size=3), "only the answer of an http request can be cut"),
        (lambda: Fault.die("before_step", when="after"), "has no before and after"),
        (lambda: Fault.delay("tool", 0), "more than 0 seconds"),
        (lambda: FaultPlan(Fault.die("tool")).apply(make_loop()), "without a journal nothing survives"),
        (lambda: FaultPlan(Fault.drop("journal")).apply(make_loop()), "needs a loop with a journal"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(make: Any, message: str) -> None:
    """A plan says at once what is wrong with it."""
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert message in str(raised.value)
