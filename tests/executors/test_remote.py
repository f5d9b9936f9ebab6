"""Executors whose tools run in another process."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.contracts import ToolLike
from agentloop.errors import ToolUnavailable
from agentloop.events import ToolCallCompleted, ToolCallProgressed
from agentloop.executors import ProgressReport, RemoteCall, RemoteResult
from agentloop.testing import ExecutorKit
from agentloop.values import ErrorInfo, ToolExecution, ToolStatus, approve, from_json, to_json
from agentloop.values.points import AfterToolUse, BeforeToolUse
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


def test_results_have_a_json_form() -> None:
    """What comes back is read as it was written."""
    result = RemoteResult.of_error(ValueError("odd"))
    assert from_json(to_json(result), RemoteResult) == result
