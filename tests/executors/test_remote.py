"""Executors whose tools run in another process."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    Interceptor,
    ScriptedInference,
    Tool,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    ToolExecutor,
    tool,
)
from agentloop.contracts import ToolLike
from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.tool import CanPrepareArguments
from agentloop.durable import MemoryJournal
from agentloop.errors import InvalidArguments, ToolUnavailable
from agentloop.events import ToolCallCompleted, ToolCallProgressed
from agentloop.executors import ProgressReport, RemoteCall, RemoteResult, RemoteToolExecutor, run_remote_call
from agentloop.executors.remote import FoundResult
from agentloop.executors.remote_calls import RemoteSuspension
from agentloop.interception import RequireApproval
from agentloop.policies import Resilience
from agentloop.testing import CrashableJournal, ExecutorKit
from agentloop.values import (
    ErrorInfo,
    ExecutionStatus,
    RecordKind,
    RetryPolicy,
    StopReason,
    Text,
    ToolExecution,
    ToolResult,
    ToolStatus,
    approve,
    cannot_tell,
    did_not_happen,
    from_json,
    happened,
    to_json,
)
from agentloop.values.decisions import PendingCall
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.records import Reconciliation
from agentloop.values.stop import StopSignal
from tests.durable.recovery_bench import Model
from tests.executors.far_tools import TOOLS
from tests.executors.json_lines import Child, ChildExecutor
from tests.generated import examples

SECOND = 0.02
"""How long a second of the toys takes, here and in the child process."""


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """A child process."""
    child = Child("tests.executors.far_tools")
    yield child
    child.close()


@pytest.fixture(scope="module")
def fast_child() -> Iterator[Child]:
    """A child process whose time is fifty times as fast."""
    child = Child("tests.executors.far_tools", speed=1 / SECOND)
    child.start()
    yield child
    child.close()


@pytest.mark.parametrize("law", ExecutorKit.laws)
def test_an_executor_over_a_child_process_obeys_the_laws(law: int, fast_child: Child) -> None:
    """The laws of executors hold for tools in another process."""
    ExecutorKit(lambda: ChildExecutor(child=fast_child), second=SECOND, examples=examples(4)).check(law)


@frozen
class KillingExecutor(ChildExecutor):
    """Kills the child after every third call that was sent."""

    count: Iterator[int] = field(factory=itertools.count, kw_only=True)

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
        """Send a call, and kill the child."""
        if next(self.count) % 3 == 2:
            asyncio.get_running_loop().call_soon(self.child.kill)
        return await super().call_remotely(call, report)


# Without 11, under which no call is sent, 19, because a new child has a new thread that reads from it, and 8 and 14, which say
# what a call returns whose process does not die.
@pytest.mark.parametrize("law", [1, *[pytest.param(law, marks=pytest.mark.heavy) for law in (3, 9, 10, 17)]])
def test_the_laws_hold_while_the_child_process_is_killed(law: int, fast_child: Child) -> None:
    """Calls of dead processes have outcomes as well; what the laws say about these outcomes holds."""
    count = itertools.count()
    ExecutorKit(lambda: KillingExecutor(child=fast_child, count=count), second=SECOND, examples=10).check(law)
    assert next(count) > 3, "nothing was killed"


def run(child: Child, *calls: ToolCall, tools: Sequence[ToolLike] = TOOLS, **options: Any) -> tuple[ToolExecution, ...]:
    """Return the outcomes of the calls of one step."""
    model = ScriptedInference(list(calls), "done")
    loop = AgentLoop.for_model(model, tools=tools, executor=ChildExecutor(child=child), **options)
    return loop.execute_sync("go").steps[0].executions


def call(name: str, **arguments: Any) -> ToolCall:
    """Return a call."""
    return ToolCall("", name).with_arguments(arguments)


def test_a_tool_runs_in_the_other_process(child: Child) -> None:
    """Its process is not this one."""
    (execution,) = run(child, call("process_id"))
    assert isinstance(execution.value, int)
    assert execution.value != os.getpid()


def test_a_tool_has_its_context_and_the_dependencies_of_its_process(child: Child) -> None:
    """The context has the key, and the dependencies are those of the far side; none are needed here."""
    (execution,) = run(child, call("place"))
    assert isinstance(execution.value, dict)
    assert execution.value["place"] == "far"
    assert execution.value["key"] == execution.key
    assert execution.value["execution"] == execution.key.partition("/")[0]
    assert execution.value["attempt"] == 1
    assert execution.value["token"] is None


def test_the_state_travels_to_a_tool_that_reads_it(child: Child) -> None:
    """A tool reads the conversation."""
    (execution,) = run(child, call("history"))
    assert execution.value == ("go",)


def test_an_error_of_an_unknown_class_keeps_its_name(child: Child) -> None:
    """The model sees the name and the message of the error."""
    (execution,) = run(child, call("strange"))
    assert execution.status is ToolStatus.FAILED
    assert execution.error is not None
    assert (execution.error.type, execution.error.message) == ("StrangeError", "something odd")


def test_an_error_of_the_package_comes_back_as_itself(child: Child) -> None:
    """The class is the one that the tool raised there, so that policies for it apply."""
    (execution,) = run(child, call("closed"))
    assert execution.status is ToolStatus.FAILED
    assert execution.error == ErrorInfo("ToolUnavailable", "closed on Sundays")


def test_media_come_back(child: Child) -> None:
    """A picture is content for the model."""
    (execution,) = run(child, call("picture"))
    assert execution.content is not None
    assert execution.content[0].data == b"png"  # type: ignore[union-attr]


def test_a_result_is_cut_for_the_model_only_here(child: Child) -> None:
    """A long result arrives whole, and the model sees a part of it."""
    (execution,) = run(child, call("long_text", size=300_000))
    assert len(str(execution.value)) == 300_000
    assert execution.content is not None
    assert len(execution.content[0].text) < 110_000  # type: ignore[union-attr]


def test_a_result_that_is_too_large_to_travel_is_an_error(child: Child) -> None:
    """The error says how large it was, and what to do."""
    (execution,) = run(child, call("long_text", size=2_000_000))
    assert execution.status is ToolStatus.FAILED
    assert execution.error is not None
    assert execution.error.type == "BoundExceeded"
    assert "at most 1,000,000" in execution.error.message


def test_progress_arrives_before_the_outcome(child: Child) -> None:
    """The updates of a generator are events of the execution."""
    seen: list[object] = []
    model = ScriptedInference([call("count_up", to=3)], "done")
    loop = AgentLoop.for_model(model, tools=TOOLS, executor=ChildExecutor(child=child))
    loop.on(ToolCallProgressed, lambda event: seen.append(event.update))
    loop.on(ToolCallCompleted, lambda event: seen.append(event.execution.value))
    loop.execute_sync("go")
    assert len(seen) >= 2
    assert seen[:2] == [1, 2]


def test_a_suspended_call_resumes_in_the_other_process(child: Child) -> None:
    """Its progress and the decision travel back to the tool."""
    model = ScriptedInference([call("ask", question="Really?")], "done")
    loop = AgentLoop.for_model(model, tools=TOOLS, executor=ChildExecutor(child=child))
    state = loop.execute_sync("go")
    (pending,) = state.pending
    assert pending.reason == "Really?"
    resumed = loop.resume_sync(state, {pending.key: approve()})
    assert "Really? Approve" in resumed.steps[0].executions[0].text


def test_a_tool_stops_the_execution(child: Child) -> None:
    """The signal names the tool."""
    model = ScriptedInference([call("give_up")], "done")
    state = AgentLoop.for_model(model, tools=TOOLS, executor=ChildExecutor(child=child)).execute_sync("go")
    assert state.execution is not None
    assert [(signal.message, signal.source) for signal in state.execution.continuation.signals] == [
        ("enough", "give_up")
    ]


def test_invalid_arguments_do_not_travel(child: Child) -> None:
    """They are rejected here, and arguments of a similar type are coerced here."""
    rejected, coerced = run(child, call("long_text", size="many"), call("long_text", size="3"))
    assert rejected.status is ToolStatus.REJECTED
    assert coerced.value == "xxx"


def test_interceptors_run_here(child: Child) -> None:
    """They change arguments before the call travels, and its result after it."""

    class Change(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            return point.with_arguments({"size": 2})

        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_value(f"{point.execution.value} from {os.getpid()}")

    (execution,) = run(child, call("long_text", size=5), interceptors=[Change()])
    assert execution.value == f"xx from {os.getpid()}"


def test_a_timeout_cancels_the_tool_in_the_other_process(child: Child) -> None:
    """The other process is told to stop the tool."""
    child.on_cancelled.clear()
    slow = [tool(name="sleep", timeout=0.05)(sleep_here)]
    (execution,) = run(child, call("sleep", seconds=60), tools=slow)
    assert execution.status is ToolStatus.TIMED_OUT
    assert child.on_cancelled.wait(10)


async def sleep_here(seconds: float) -> str:
    """Sleep."""
    raise AssertionError(f"ran here, for {seconds} s")


def test_a_local_tool_runs_here(child: Child) -> None:
    """A tool that is named as local does not travel, and needs dependencies."""

    @tool(effect="pure")
    def process_id(ctx: ToolContext[str]) -> str:
        """Return the process."""
        return f"{os.getpid()} {ctx.dependencies}"

    model = ScriptedInference([call("process_id")], "done")
    executor = ChildExecutor(child=child, local=["process_id"])
    loop = AgentLoop.for_model(model, tools=[process_id], executor=executor)
    (execution,) = loop.execute_sync("go", dependencies="here").steps[0].executions
    assert execution.value == f"{os.getpid()} here"


def test_an_agent_as_a_tool_runs_here_and_its_calls_travel(child: Child) -> None:
    """The records of a sub-agent are in the journal of this process."""
    helper_loop = AgentLoop.for_model(
        ScriptedInference([call("process_id")], "helped"), tools=TOOLS, executor=ChildExecutor(child=child)
    )
    helper = helper_loop.as_tool(name="helper", description="Helps.")
    assert helper.is_local
    (execution,) = run(child, call("helper", task="help"), tools=[helper])
    assert execution.value == "helped"


# --- the death of the other process ---------------------------------------------------------------------------------


def test_an_effect_whose_process_dies_is_in_doubt(child: Child, tmp_path: Path) -> None:
    """It is not sent again."""
    path = tmp_path / "effects"
    (execution,) = run(child, call("write_then_die", path=str(path)))
    assert execution.status is ToolStatus.IN_DOUBT
    assert "not known whether" in execution.error_message
    assert path.read_text() == "written\n"


def test_an_idempotent_call_whose_process_dies_is_sent_again_with_the_same_key(child: Child, tmp_path: Path) -> None:
    """The second process gets the key of the first call."""
    path = tmp_path / "keys"
    (execution,) = run(child, call("die_once", path=str(path)))
    assert execution.value == "done"
    assert path.read_text().split() == [execution.key, execution.key]


def test_a_call_that_always_kills_its_process_fails(child: Child, tmp_path: Path) -> None:
    """It is sent three times, and no more."""
    path = tmp_path / "deaths"
    (execution,) = run(child, call("always_die", path=str(path)))
    assert execution.status is ToolStatus.FAILED
    assert "sent 3 times" in execution.error_message
    assert path.read_text().count("died") == 3


@pytest.mark.parametrize(
    ("die", "status", "lines"),
    [
        ("before", ToolStatus.SUCCEEDED, 1),
        ("after", ToolStatus.SUCCEEDED, 1),
        ("lost", ToolStatus.IN_DOUBT, 1),
    ],
)
def test_a_tool_that_can_tell_is_asked(child: Child, tmp_path: Path, die: str, status: ToolStatus, lines: int) -> None:
    """The tool in the new process says whether the effect happened."""
    path = tmp_path / "books"
    (execution,) = run(child, call("transfer", path=str(path), die=die))
    assert execution.status is status
    assert path.read_text().count("written") == lines


def test_a_call_that_was_not_sent_has_not_run(child: Child, tmp_path: Path) -> None:
    """There is no doubt about it."""
    executor = ChildExecutor(child=child, is_refusing=True)
    model = ScriptedInference([call("write_then_die", path=str(tmp_path / "x"))], "done")
    (execution,) = AgentLoop.for_model(model, tools=TOOLS, executor=executor).execute_sync("go").steps[0].executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.FAILED, False)
    assert execution.error is not None
    assert execution.error.type == ToolUnavailable.__name__


def test_a_retry_is_another_run_of_the_same_key(child: Child) -> None:
    """Attempts count in the other process, too; the id of a run is that of one attempt."""
    first = RemoteCall(call=call("place"), key="e/1/0")
    again = RemoteCall(call=call("place"), key="e/1/0", attempt=2)
    assert first.run_id.partition("#")[0] == again.run_id.partition("#")[0] == "e/1/0"
    assert first.run_id != again.run_id
    assert from_json(to_json(again), RemoteCall) == again


def test_the_id_of_a_run_is_the_same_in_every_version() -> None:
    """A process that recovers an execution finds the result by it, also after an update in between."""
    first = RemoteCall(call=ToolCall("c", "pay").with_arguments({"n": 1}), key="e/1/0")
    assert first.run_id == "e/1/0#a91a31ae2915f3c7"
    assert (first.attempt, evolve(first, attempt=1).run_id) == (1, first.run_id)
    others = [evolve(first, attempt=2), evolve(first, call=first.call.with_arguments({"n": 2}))]
    others.append(evolve(first, resumed=PendingCall("e/1/0", first.call, "ask", suspension=1)))
    assert len({call.run_id for call in (first, *others)}) == 4


def test_results_have_a_json_form() -> None:
    """What comes back is read as it was written."""
    result = RemoteResult.of_error(ValueError("odd"))
    assert from_json(to_json(result), RemoteResult) == result


# --- a process of which nothing is known but what it answers --------------------------------------------------------


@frozen
class NearExecutor(RemoteToolExecutor):
    """Runs calls by other tools of the same names, as another process would.

    Attributes:
        far: the tools that run.
        sent: the calls that were sent.
    """

    far: Sequence[ToolLike] = field(kw_only=True)
    sent: list[RemoteCall] = field(factory=list, kw_only=True)

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
        """Run a call as it arrives, and return the result as it comes back."""
        self.sent.append(call)
        result = await run_remote_call(self.far, from_json(to_json(call), RemoteCall), report=report)
        return from_json(to_json(result), RemoteResult)


@frozen
class FindingExecutor(NearExecutor):
    """Knows what has become of calls that were sent before, or fails to find out."""

    found: FoundResult | Exception = field(kw_only=True)

    async def find_result(self, call: RemoteCall) -> FoundResult:
        """Return what is known."""
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


def paying(answer: Reconciliation | Exception) -> ToolLike:
    """Return a tool with an effect that can tell whether it happened."""

    def reconcile(n: int) -> Reconciliation:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return tool(reconcile=reconcile)(pay)


async def test_a_call_that_waits_is_shown_with_the_defaults_of_its_tool() -> None:
    """The tool that runs elsewhere is known here with its parameters."""

    @tool
    async def restart(name: str = "web") -> str:
        """Restart."""
        return name

    loop = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "restart", "{}"), "Done."),
        tools=[restart],
        executor=NearExecutor(far=[restart]),
        interceptors=[RequireApproval()],
    )
    state = await loop.execute("Go.")
    [waiting] = state.pending
    assert waiting.rendering == 'restart\n  name = "web" (default)'
    state = await loop.resume(state, {waiting.key: approve(waiting.digest)})
    assert state.steps[0].executions[0].value == "web"


async def recover(executor: NearExecutor, near: ToolLike, in_doubt: str = "tell") -> AgentState:
    """Return what becomes of an execution that was interrupted while its only call ran."""
    journal = CrashableJournal()
    turns = [("pay", {"n": 1})], "done"
    await AgentLoop.for_model(Model(*turns), tools=[pay], journal=journal).execute("go", execution_id="run")
    place = next(at for at, record in enumerate(journal.appended) if record.kind is RecordKind.CALL_INTENT)
    loop = AgentLoop.for_model(
        Model(*turns), tools=[near], journal=await journal.after_crash(place + 1), executor=executor
    )
    return await loop.recover("run", in_doubt=in_doubt)


FOUND = RemoteResult(result=ToolResult("paid before"))


@pytest.mark.parametrize(
    ("found", "answer", "status", "value", "sent"),
    [
        (None, happened("in the books"), ToolStatus.SUCCEEDED, "in the books", ["inquiry"]),
        (None, did_not_happen(), ToolStatus.SUCCEEDED, "paid 1", ["inquiry", "call"]),
        (None, OSError("the books are locked"), ToolStatus.IN_DOUBT, None, ["inquiry"]),
        (FOUND, happened("in the books"), ToolStatus.SUCCEEDED, "paid before", []),
        (did_not_happen(), happened("in the books"), ToolStatus.SUCCEEDED, "paid 1", ["call"]),
        (cannot_tell("no trace"), happened("in the books"), ToolStatus.SUCCEEDED, "in the books", ["inquiry"]),
        (OSError("no network"), happened("in the books"), ToolStatus.SUCCEEDED, "in the books", ["inquiry"]),
        (OSError("no network"), OSError("the books are locked"), ToolStatus.IN_DOUBT, None, ["inquiry"]),
    ],
)
async def test_an_interrupted_call_is_looked_for_before_it_is_sent_again(
    found: FoundResult | Exception | None,
    answer: Reconciliation | Exception,
    status: ToolStatus,
    value: object,
    sent: list[str],
) -> None:
    """First the executor is asked, if it can find results, and then the tool in the other process; an error is no answer."""
    far = [paying(answer)]
    executor = NearExecutor(far=far) if found is None else FindingExecutor(far=far, found=found)
    (execution,) = (await recover(executor, paying(answer))).steps[0].executions
    assert (execution.status, execution.value) == (status, value)
    assert ["inquiry" if call.is_inquiry else "call" for call in executor.sent] == sent
    if status is ToolStatus.IN_DOUBT:
        assert "the books are locked" in execution.error_message


@pytest.mark.parametrize(
    ("in_doubt", "status"),
    [
        ("tell", ExecutionStatus.COMPLETED),
        ("suspend", ExecutionStatus.SUSPENDED),
        ("fail", ExecutionStatus.FAILED),
    ],
)
async def test_a_call_of_which_the_executor_finds_no_trace_is_treated_like_any_doubt(
    in_doubt: str, status: ExecutionStatus
) -> None:
    """The execution goes on, waits or fails, as it does with calls in doubt."""
    executor = FindingExecutor(far=[pay], found=cannot_tell("no trace"))
    state = await recover(executor, tool(pay), in_doubt)
    assert state.status is status
    assert all(call.is_inquiry for call in executor.sent)
    reason = state.pending[0].reason if state.pending else state.steps[0].executions[0].error_message
    assert "no trace" in reason


@pytest.mark.parametrize("in_doubt", ["tell", "suspend", "fail"])
async def test_a_call_whose_result_the_executor_finds_is_in_no_doubt(in_doubt: str) -> None:
    """The execution goes on, however it treats calls in doubt."""
    state = await recover(FindingExecutor(far=[pay], found=FOUND), tool(pay), in_doubt)
    assert state.status is ExecutionStatus.COMPLETED
    assert state.steps[0].executions[0].value == "paid before"


async def test_a_tool_that_cannot_be_asked_there_cannot_tell() -> None:
    """The other process may have an older version of the tool, which cannot find out."""

    class OldPay(Tool):
        name = "pay"
        description = "Pay."
        parameters: Mapping[str, Any] = {"type": "object"}

        async def use(self, *_: Any, **__: Any) -> str:
            raise AssertionError("it must not run")

    result = await run_remote_call([OldPay()], RemoteCall(call=call("pay", n=1), key="e/1/0", is_inquiry=True))
    assert (result.status, result.reconciliation) == (ToolStatus.SUCCEEDED, cannot_tell())


class Choosy(Tool, CanPrepareArguments):
    """A tool that refuses what its schema allows, and changes what it gets."""

    name = "choosy"
    description = "Choose."
    parameters: Mapping[str, Any] = {"type": "object"}  # as a user writes it

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Refuse the number 13."""
        if arguments.pop("n") == 13:
            raise InvalidArguments("not that number")
        return arguments

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Return what is left."""
        return sorted(arguments)


@pytest.mark.parametrize(
    ("number", "status", "sent"), [(13, ToolStatus.REJECTED, []), (7, ToolStatus.SUCCEEDED, [{"n": 7, "m": (1,)}])]
)
async def test_only_arguments_that_the_tool_accepts_travel_and_as_they_are(
    number: int, status: ToolStatus, sent: list[object]
) -> None:
    """The tool checks them here, by more than its schema; what it makes of them is made there again."""
    executor = NearExecutor(far=[Choosy()])
    model = ScriptedInference([call("choosy", n=number, m=[1])], "done")
    loop = AgentLoop.for_model(model, tools=[Choosy()], executor=executor)
    (execution,) = (await loop.execute("go")).steps[0].executions
    assert execution.status is status
    assert [each.call.arguments for each in executor.sent] == sent
    assert execution.value == (("m",) if sent else None)


@pytest.mark.parametrize("max_resends", [0, 1, 3])
async def test_a_call_is_sent_again_as_often_as_the_executor_may(max_resends: int) -> None:
    """After that it fails, and the error says how often it was sent."""

    @frozen
    class Losing(NearExecutor):
        async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
            """Lose the result."""
            self.sent.append(call)
            raise ConnectionError("lost")

    executor = Losing(far=[pay], max_resends=max_resends)
    model = ScriptedInference([call("pay", n=1)], "done")
    loop = AgentLoop.for_model(model, tools=[tool(effect="pure")(pay)], executor=executor)
    (execution,) = (await loop.execute("go")).steps[0].executions
    assert execution.status is ToolStatus.FAILED
    assert len(executor.sent) == max_resends + 1
    assert f"sent {max_resends + 1} times" in execution.error_message


async def test_a_tool_there_knows_whose_call_it_runs() -> None:
    """Its context names the agent and the execution; of a call that names none, it says that it is remote."""

    @tool
    async def whose(context: ToolContext) -> list[str]:
        """Return whose call it is."""
        return [context.agent_id, context.execution_id]

    for agent, execution in (("ada", "e"), ("", "")):
        sent = RemoteCall(call=call("whose"), key="e/1/0", agent_id=agent, execution_id=execution)
        result = await run_remote_call([whose], sent)
        assert result.result == ToolResult((agent or "remote", execution or "remote"))


@pytest.mark.parametrize(("attempt", "token"), [(1, None), (2, 1), (5, 7)])
async def test_a_tool_there_counts_the_attempts_and_has_the_claim_of_its_sender(
    attempt: int, token: int | None
) -> None:
    """The first attempt is number 1, and a resource can refuse what an earlier driver of the execution writes."""

    @tool
    async def look(context: ToolContext) -> list[int | None]:
        """Return what the context says."""
        return [context.attempt, context.claim_token]

    result = await run_remote_call(
        [look], RemoteCall(call=call("look"), key="e/1/0", attempt=attempt, claim_token=token)
    )
    assert result.result == ToolResult((attempt, token))


async def test_attempts_and_claims_travel_with_the_calls() -> None:
    """A retry is sent as the next attempt, under the same claim, and with another id of its run."""

    @tool(name="pay", effect="idempotent", retry=RetryPolicy(3, initial_wait=0))
    async def fail(n: int) -> str:
        """Fail."""
        raise OSError("down")

    executor = NearExecutor(far=[fail])
    loop = AgentLoop.for_model(
        Model([("pay", {"n": 1})], "done"),
        tools=[fail],
        executor=executor,
        interceptors=[Resilience()],
        journal=MemoryJournal(),
    )
    await loop.execute("go", execution_id="run")
    assert [sent.attempt for sent in executor.sent] == [1, 2, 3]
    assert {sent.key for sent in executor.sent} == {"run/1/0"}
    assert len({sent.run_id for sent in executor.sent}) == 3
    (token,) = {sent.claim_token for sent in executor.sent}
    assert token is not None


async def test_the_id_of_a_call_travels_to_a_tool_that_can_have_its_context() -> None:
    """It is not read for one that cannot, which may run before its call has an id."""

    @tool(effect="pure")
    async def own_id(context: ToolContext) -> str:
        """Return the id of the call."""
        return context.id

    executor = NearExecutor(far=[own_id, Choosy()])
    model = ScriptedInference([call("own_id"), call("choosy", n=7)], "done")
    loop = AgentLoop.for_model(model, tools=[own_id, Choosy()], executor=executor)
    asked, not_asked = (await loop.execute("go")).steps[0].executions
    assert (asked.value, not_asked.value) == (asked.id, ())
    assert {sent.call.name: sent.id for sent in executor.sent} == {"own_id": asked.id, "choosy": ""}


async def test_progress_that_is_not_reported_meanwhile_comes_back_with_the_result() -> None:
    """An executor whose transport has only answers need not do anything for it: the updates are events, in order."""

    @frozen
    class Answering(NearExecutor):
        async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
            """Run a call, and return nothing but its result."""
            return from_json(to_json(await run_remote_call(self.far, call)), RemoteResult)

    @tool(effect="pure")
    async def count(context: ToolContext) -> str:
        """Count."""
        for number in (1, 2):
            context.progress({"counted": number})
        return "done"

    seen: list[object] = []
    loop = AgentLoop.for_model(
        ScriptedInference([call("count")], "done"), tools=[count], executor=Answering(far=[count])
    )
    loop.on(ToolCallProgressed, lambda event: seen.append(event.update))
    loop.on(ToolCallCompleted, lambda event: seen.append(event.execution.value))
    await loop.execute("go")
    assert seen == [{"counted": 1}, {"counted": 2}, "done"]


@pytest.mark.parametrize("executor", [ToolExecutor(), NearExecutor(far=())])
def test_programs_are_told_what_tools_return_wherever_these_run(executor: ToolExecutor) -> None:
    """The signature of a typed function names its result, and that of a tool without a known result does not."""

    class Untyped(Tool):
        name = "untyped"
        description = "Do."
        parameters: Mapping[str, Any] = {"type": "object"}

        async def use(self, *_: Any, **__: Any) -> str:
            return "done"

    model = ScriptedInference("done")
    loop = AgentLoop(ToolCallingDriver(model, mode="program"), [tool(pay), Untyped()], executor=executor)
    loop.execute_sync("go")
    (offered,) = model.requests[0].tools
    assert "def pay(n: int) -> str" in offered.description
    assert "def untyped() -> Any" in offered.description


async def test_calls_of_a_process_share_what_it_gives_them() -> None:
    """A connection that a tool opens as a shared resource is opened once, and stays open until the process closes it."""
    opened, closed = list[str](), list[str]()

    @tool
    async def connect(context: ToolContext) -> str:
        """Connect."""

        def make() -> str:
            opened.append("connection")
            return "connection"

        return context.scope.shared_resources.open("connection", make, closed.append)

    sent, shared = RemoteCall(call=call("connect"), key="e/1/0"), Resources()
    for _ in range(2):
        await run_remote_call([connect], sent, shared_resources=shared)
    assert (len(opened), len(closed)) == (1, 0)
    await shared.aclose()
    assert len(closed) == 1
    for _ in range(2):
        await run_remote_call([connect], sent)
    assert (len(opened), len(closed)) == (3, 3)


@pytest.mark.parametrize(
    ("size", "status"), [(1, "succeeded"), (16_776_000, "succeeded"), (16 * 1024 * 1024, "failed")]
)
async def test_up_to_sixteen_megabytes_come_back(size: int, status: str) -> None:
    """A larger result becomes an error, which says how large it was."""

    @tool
    async def fill(size: int) -> str:
        """Return a text."""
        return "x" * size

    result = await run_remote_call([fill], RemoteCall(call=call("fill", size=size), key="e/1/0"))
    assert result.status.value == status
    if result.error is not None:
        assert "at most 16,777,216 can be sent back" in result.error.message


@pytest.mark.parametrize("content", [None, (Text("x" * 30), Text("short"))])
async def test_a_result_travels_whole_although_its_tool_has_a_limit(content: tuple[Text, ...] | None) -> None:
    """The sender cuts it for the model, and keeps the rest."""

    @tool(max_result_bytes=10)
    async def write() -> ToolResult:
        """Return a text, or parts."""
        return ToolResult("y" * 30, content)

    result = await run_remote_call([write], RemoteCall(call=call("write"), key="e/1/0"))
    assert result.result == ToolResult("y" * 30, content)


async def test_content_that_fits_travels_as_it_is() -> None:
    """A picture, or a text that is not cut, is the content here as it was there."""
    parts = (Text("short"), Text("text"))

    @tool
    async def write() -> ToolResult:
        """Return parts."""
        return ToolResult("value", parts)

    result = await run_remote_call([write], RemoteCall(call=call("write"), key="e/1/0"))
    assert result.result == ToolResult("value", parts)


@pytest.mark.parametrize(
    "travels",
    [
        RemoteSuspension(reason="why? " * 10_000, progress={"secret": 1}),
        RemoteResult(
            result=ToolResult("x" * 10_000, [Text("y" * 3_000)] * 30), error=ErrorInfo("why? " * 1_000, "why? " * 1_000)
        ),
        RemoteResult(stop=StopSignal(StopReason.STOP_REQUESTED, "why? " * 10_000), progress=["secret"] * 1_000),
        RemoteCall(call=ToolCall("c", "pay").with_arguments({"n": ["n"] * 10_000}), key="e/1/0"),
    ],
)
def test_what_travels_is_shown_in_short(travels: RemoteCall | RemoteResult | RemoteSuspension) -> None:
    """In a log or a debugger its size is bounded, and progress is left out."""
    assert len(repr(travels)) < 2_000
    assert "secret" not in repr(travels)


def test_executors_are_equal_by_their_settings() -> None:
    """What a loop has given to an executor, such as tools and a bus, does not make it another one."""
    assert ToolExecutor(strict=True) == ToolExecutor(strict=True) != ToolExecutor()
    near, tools = NearExecutor(far=()), AgentLoop.for_model(ScriptedInference(), tools=[pay]).tools
    assert near.with_tools(tools) == near
    assert near.with_tools(tools) != NearExecutor(far=(), max_resends=0)
