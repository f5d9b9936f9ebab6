"""The interceptors that come with the package."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    CancellationToken,
    CostLimit,
    Interceptor,
    Permissions,
    ScriptedInference,
    StepLimit,
    TimeLimit,
    TokenLimit,
    ToolCall,
    ToolCallingDriver,
    ToolCallLimit,
    ToolContext,
    tool,
)
from agentloop.contracts import CanInfer, CanIntercept
from agentloop.interception import (
    AfterToolUse,
    BeforeInference,
    BeforeStep,
    InterceptorStack,
    RequireApproval,
    Rule,
    StopOnFinishReason,
    StopOnRepeatedCalls,
    ToolSelection,
    at,
)
from agentloop.policies import AuditLog, EgressApproval, Guardrails, PriceTable, SummarizeHistory
from agentloop.testing import Ledger, LoopClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.values import ExecutionStatus, FinishReason, InferenceRequest, InferenceResponse, Text, ToolStatus, Usage
from tests.limits import LONGEST

BUILT_IN: Sequence[tuple[int, CanIntercept]] = (
    (3000, CancellationToken()),
    (2000, AuditLog()),
    (1000, Budget(steps=5)),
    (1000, StepLimit(5)),
    (1000, TokenLimit(500)),
    (1000, CostLimit(1, prices=PriceTable({}))),
    (1000, TimeLimit(5)),
    (1000, ToolCallLimit(5)),
    (1000, StopOnRepeatedCalls()),
    (900, Guardrails()),
    (500, Permissions()),
    (500, ToolSelection("*")),
    (0, SummarizeHistory(ScriptedInference(), tokens=500)),
    (0, StopOnFinishReason()),
    (-900, RequireApproval()),
    (-950, EgressApproval()),
)
"""The interceptors with their priorities, outermost first."""


def run_script(*lines: Any, interceptors: Any = (), ledger: Ledger | None = None, **parts: Any) -> AgentState:
    """Run a scripted model in virtual time."""
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(*lines)),
        toy_tools(ledger or Ledger()),
        interceptors=interceptors,
        clock=LoopClock(),
        **parts,
    )
    return run_in_virtual_time(loop.execute(AgentState.start("go", agent_id="clerk")))


def status_and_reason(state: AgentState) -> tuple[str, str]:
    """Return the status, and the reason of the stop signal."""
    return state.status.value, state.stop_signal.reason.value if state.stop_signal is not None else ""


def test_the_built_in_interceptors_have_their_places_among_others() -> None:
    """Whoever gives an interceptor of their own a priority chooses it by these; `describe` shows them, outermost first."""
    stack = InterceptorStack.of([layer for _, layer in sorted(BUILT_IN, key=itemgetter(0))])
    rows = stack.describe().split("written by several:")[0].splitlines()[1:]
    shown = [row.split()[:2] for row in rows if row[:8].strip()]  # the other lines go on with the cells above
    assert shown == [[str(priority), layer.name] for priority, layer in BUILT_IN]


def test_a_step_limit_keeps_the_work() -> None:
    """At the limit the execution stops, and its state has every step with its tokens."""
    state = run_script(*[[toy_call("echo", n)] for n in range(5)], max_steps=3)
    assert status_and_reason(state) == ("stopped", "step_limit")
    assert state.step_count == 3
    assert [execution.value for step in state.steps for execution in step.executions] == [0, 1, 2]
    assert state.usage.input_tokens == 30


def test_a_limit_that_is_not_reached_does_nothing() -> None:
    """An answer in the last allowed step completes the execution."""
    assert status_and_reason(run_script([toy_call("echo", 1)], "done", max_steps=2)) == ("completed", "completed")


def test_a_requested_continuation_does_not_override_a_limit() -> None:
    """An execution with a request for continuation after each step still stops at the limit."""
    insist = at("after_step", lambda point: point.request_continuation())
    state = run_script(*["not yet"] * 9, interceptors=[insist], max_steps=3)
    assert status_and_reason(state) == ("stopped", "step_limit")
    assert state.step_count == 3


def test_a_tool_call_limit_holds_inside_a_batch() -> None:
    """Of a batch that exceeds the limit, the calls up to the limit run, and the others are blocked."""
    ledger = Ledger()
    state = run_script(
        [toy_call("echo", 1)], [toy_call("echo", n) for n in range(20)], interceptors=[ToolCallLimit(3)], ledger=ledger
    )
    assert status_and_reason(state) == ("stopped", "tool_call_limit")
    assert len(ledger.calls) == 3
    statuses = [execution.status for execution in state.steps[1].executions]
    assert statuses == [ToolStatus.SUCCEEDED] * 2 + [ToolStatus.BLOCKED] * 18


def test_a_token_limit_counts_input_and_output() -> None:
    """The limit applies to the sum of both."""
    state = run_script(*[[toy_call("echo", n)] for n in range(9)], interceptors=[TokenLimit(40)])
    assert status_and_reason(state) == ("stopped", "token_limit")
    assert state.usage.total_tokens == 45


def test_unknown_tokens_are_estimated() -> None:
    """With a provider that reports no usage, the limit takes effect on estimates."""
    unknown = InferenceResponse((Text("x" * 400), toy_call("echo", 1)), FinishReason.TOOL_CALLS, Usage())
    state = run_script(*[unknown] * 30, interceptors=[TokenLimit(2_000)])
    assert status_and_reason(state) == ("stopped", "token_limit")
    assert 3 <= state.step_count <= 8
    assert state.usage.total_tokens is None
    assert state.stop_signal is not None
    assert state.stop_signal.context["estimated"] is True


def test_a_time_limit_cancels_running_calls_only() -> None:
    """Calls that run at the limit end as timed out, and the others keep their outcomes."""
    state = run_script(
        [toy_call("echo", 1, seconds=2), toy_call("echo", 2, seconds=50)], "never", interceptors=[TimeLimit(10)]
    )
    assert status_and_reason(state) == ("stopped", "time_limit")
    assert [execution.status.value for execution in state.steps[0].executions] == ["succeeded", "timed_out"]


class Slow(CanInfer):
    """A model that answers after a hundred seconds."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(100)
        return InferenceResponse((Text(str(len(request.messages))),))


def test_a_time_limit_cancels_a_running_inference() -> None:
    """The execution stops at the limit even if the model has not answered."""
    loop = AgentLoop(ToolCallingDriver(Slow()), interceptors=[TimeLimit(10)], clock=LoopClock())

    async def timed() -> tuple[AgentState, float]:
        state = await loop.execute("go")
        return state, asyncio.get_running_loop().time()

    state, seconds = run_in_virtual_time(timed())
    assert status_and_reason(state) == ("stopped", "time_limit")
    assert seconds == pytest.approx(10)


def test_a_finish_reason_stops_softly() -> None:
    """A truncated response stops the execution, unless a continuation is requested."""
    truncated = InferenceResponse((Text("half an ans"),), FinishReason.LENGTH)
    assert status_and_reason(run_script(truncated, "more", interceptors=[StopOnFinishReason()])) == (
        "stopped",
        "finish_reason",
    )
    insist = at("after_step", lambda point: point.request_continuation() if point.state.step_count == 1 else point)
    assert status_and_reason(run_script(truncated, "more", interceptors=[StopOnFinishReason(), insist])) == (
        "completed",
        "completed",
    )


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        (Permissions(), [True, True, True]),
        (Permissions(deny=["echo"]), [False, True, False]),
        (Permissions(deny=["e*"]), [False, True, False]),
        (Permissions(allow=["echo"]), [True, False, True]),
        (Permissions(allow=[]), [False, False, False]),
        (Permissions(allow=["*"], deny=[lambda point: point.arguments["value"] > 2]), [True, True, False]),
        (Permissions(deny=[Rule(tool="echo", caller="cl*")]), [False, True, False]),
        (Permissions(deny=[Rule(tool="echo", caller="other")]), [True, True, True]),
        (Permissions(allow=[Rule(tool="whoami"), Rule(when=lambda p: p.arguments["value"] == 1)]), [True, True, False]),
    ],
)
def test_permissions_by_tool_pattern_caller_and_predicate(permissions: Permissions, allowed: list[bool]) -> None:
    """A denying rule takes precedence, and if there are allowing rules, all other calls are denied."""
    state = run_script(
        [toy_call("echo", 1), toy_call("whoami", 2), toy_call("echo", 3)], "done", interceptors=[permissions]
    )
    executions = state.steps[0].executions
    assert [execution.succeeded for execution in executions] == allowed
    assert all(execution.was_blocked for execution in executions if not execution.succeeded)


def test_a_permission_that_raises_denies() -> None:
    """When a predicate raises, the call does not run, and the execution fails (law 11)."""
    ledger = Ledger()
    broken = Permissions(deny=[lambda point: bool(point.arguments["missing"])])
    state = run_script([toy_call("echo", 1)], "done", interceptors=[broken], ledger=ledger)
    assert state.status is ExecutionStatus.FAILED
    assert not ledger.calls


def test_an_invalid_rule_is_refused() -> None:
    """Construction raises an error that names the valid types."""
    with pytest.raises(TypeError, match="a permission is a Rule, a tool name or pattern"):
        Permissions(deny=[7])  # type: ignore[list-item]  # the mistake under test


def test_the_audit_log_has_a_line_per_call(tmp_path: Path) -> None:
    """Each settled call is one JSON line with its outcome, whether it ran or not."""
    path = tmp_path / "audit.jsonl"
    run_script(
        [toy_call("echo", 1, seconds=1.5), toy_call("fail", 2), toy_call("ekko", 3), toy_call("whoami", 4)],
        "done",
        interceptors=[AuditLog(path), Permissions(deny=["whoami"])],
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["tool"], line["outcome"], line["success"]) for line in lines] == [
        ("echo", "succeeded", True),
        ("fail", "failed", False),
        ("ekko", "rejected", False),
        ("whoami", "blocked", False),
    ]
    described = {
        "time",
        "caller",
        "execution",
        "key",
        "tool",
        "arguments",
        "outcome",
        "error",
        "duration_ms",
        "success",
    }
    assert all(line.keys() == described for line in lines)  # no results, unless they are asked for
    assert lines[0]["caller"] == "clerk"
    assert json.loads(lines[0]["arguments"]) == {"value": 1, "seconds": 1.5}
    assert lines[0]["duration_ms"] == pytest.approx(1500)


@pytest.mark.parametrize("priority", [1_000, -1_000])
def test_the_audit_log_has_a_line_of_a_call_at_which_another_interceptor_fails(priority: int) -> None:
    """No call goes unaudited, whether the audit log is outside or inside of the other one."""

    def fail(point: AfterToolUse) -> AfterToolUse:
        raise ValueError("no luck")

    lines, ledger = list[Any](), Ledger()
    layers = [AuditLog(lines.append), at("after_tool_use", fail, priority=priority)]
    run_script([toy_call("echo", 1), toy_call("echo", 2)], "done", interceptors=layers, ledger=ledger)
    assert ledger.values == [1, 2]
    assert [line["key"][-3:] for line in lines] == ["1/0", "1/1"]


def test_the_audit_log_writes_to_a_file_a_function_or_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    """The destination may be an open file, a function, or the default logger."""
    file, entries = io.StringIO(), list[Any]()
    with caplog.at_level(logging.INFO, logger="agentloop.audit"):
        run_script([toy_call("echo", 1)], "done", interceptors=[AuditLog(file), AuditLog(entries.append), AuditLog()])
    assert json.loads(file.getvalue())["tool"] == "echo"
    assert [entry["tool"] for entry in entries] == ["echo"]
    assert [json.loads(record.message)["tool"] for record in caplog.records] == ["echo"]


@pytest.mark.unreplayed  # a replay leaves the log out, and with it the failure
def test_an_async_function_writes_the_audit_log() -> None:
    """It is awaited, and its failure fails the execution."""
    entries = list[Any]()

    async def send(entry: Mapping[str, Any]) -> None:
        await asyncio.sleep(0)
        if entry["tool"] != "echo":
            raise ConnectionError("no log")
        entries.append(entry)

    state = run_script([toy_call("echo", 1)], [toy_call("whoami", 1)], "done", interceptors=[AuditLog(send)])
    assert [entry["tool"] for entry in entries] == ["echo"]
    assert state.status is ExecutionStatus.FAILED
    assert "no log" in state.errors[0].message


@pytest.mark.unreplayed  # a replay leaves the log out, and with it the failure
def test_an_audit_log_that_cannot_be_written_fails_the_execution(tmp_path: Path) -> None:
    """No call goes unaudited."""
    state = run_script(
        [toy_call("echo", 1)], "done", interceptors=[AuditLog(tmp_path / "no such folder" / "audit.jsonl")]
    )
    assert state.status is ExecutionStatus.FAILED


def test_a_token_cancels_before_the_first_step() -> None:
    """A token that is already cancelled stops the execution before its first step."""
    token = CancellationToken()
    token.cancel("changed my mind")
    token.cancel("and again")
    state = run_script("done", interceptors=[token])
    assert status_and_reason(state) == ("stopped", "user_requested")
    assert state.stop_signal is not None
    assert state.stop_signal.message == "changed my mind"
    assert state.step_count == 0


def test_a_token_cancels_running_calls_and_blocks_later_ones() -> None:
    """Running calls end as cancelled, calls that have ended keep their outcomes, and later calls do not start."""
    token, ledger = CancellationToken(), Ledger()

    class CancelLater(Interceptor):
        async def before_step(self, point: Any) -> Any:
            asyncio.get_running_loop().call_later(2, token.cancel, "time to go")
            return point

    state = run_script(
        [toy_call("echo", 1, seconds=1), toy_call("echo", 2, seconds=9), toy_call("alone", 3)],
        "never",
        interceptors=[token, CancelLater()],
        ledger=ledger,
    )
    assert status_and_reason(state) == ("stopped", "user_requested")
    assert [execution.status.value for execution in state.steps[0].executions] == ["succeeded", "cancelled", "blocked"]
    assert state.steps[0].executions[1].may_have_run
    assert [arguments["value"] for _, arguments in ledger.calls] == [1, 2]
    assert state.execution is not None
    assert [signal.reason.value for signal in state.execution.continuation.signals] == ["user_requested"]


def test_a_token_cancels_a_running_inference() -> None:
    """The execution stops without the response of the model."""
    token = CancellationToken()
    loop = AgentLoop(ToolCallingDriver(Slow()), interceptors=[token])

    async def run() -> tuple[AgentState, float]:
        running = asyncio.get_running_loop()
        running.call_later(3, token.cancel)
        return await loop.execute("go"), running.time()

    state, seconds = run_in_virtual_time(run())
    assert status_and_reason(state) == ("stopped", "user_requested")
    assert seconds == pytest.approx(3)


def test_a_request_is_not_sent_after_a_cancellation() -> None:
    """Neither if the token is cancelled between the beginning of the step and the request."""
    token, model = CancellationToken(), ScriptedInference("done")

    def cancel(point: BeforeInference) -> BeforeInference:
        token.cancel("just in time")
        return point

    state = AgentLoop(ToolCallingDriver(model), interceptors=[token, at("before_inference", cancel)]).execute_sync("go")
    assert status_and_reason(state) == ("stopped", "user_requested")
    assert not model.requests


def test_a_cancelled_token_changes_no_state_without_an_execution() -> None:
    """There is nothing to stop."""
    token, point = CancellationToken(), BeforeStep(AgentState.start("go"))
    token.cancel()
    assert token.before_step(point) is point


async def test_a_token_outlives_an_event_loop_that_was_closed() -> None:
    """What a program has left with its event loop keeps no execution of another one from being stopped."""
    token = CancellationToken()

    async def wait_for_stop() -> None:
        token.notify_at_stop(lambda: None)

    def leave_an_event_loop() -> None:
        left = asyncio.new_event_loop()
        left.run_until_complete(wait_for_stop())
        left.close()

    await asyncio.to_thread(leave_an_event_loop)
    running = asyncio.create_task(AgentLoop(ToolCallingDriver(Slow()), interceptors=[token]).execute("go"))
    await asyncio.sleep(0.05)
    token.cancel("time to go")
    async with asyncio.timeout(LONGEST):
        assert status_and_reason(await running) == ("stopped", "user_requested")


async def test_a_token_may_be_cancelled_from_any_thread() -> None:
    """`cancel` is thread-safe."""
    token, started = CancellationToken(), asyncio.Event()

    @tool
    async def endless(context: ToolContext) -> str:
        """Never end."""
        started.set()
        await asyncio.Event().wait()
        return context.agent_id

    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("", "endless")])), [endless], interceptors=[token])
    run = asyncio.create_task(loop.execute("go"))
    await started.wait()
    thread = threading.Thread(target=token.cancel, args=("from a thread",))
    thread.start()
    state = await run
    thread.join()
    assert status_and_reason(state) == ("stopped", "user_requested")
    assert repr(token) == "CancellationToken(cancelled='from a thread')"
