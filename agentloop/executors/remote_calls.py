"""Calls that run in another process: what travels there, what comes back, and how they run there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.tool import CanReconcileCall, ToolContext, ToolLike
from agentloop.contracts.tools import Tools
from agentloop.errors import NotJson, ToolError, ToolUnavailable
from agentloop.events.bus import EventBus
from agentloop.events.tool_calls import ToolCallProgressed
from agentloop.events.trace_context import continue_trace
from agentloop.executors.call import Call
from agentloop.executors.call_layers import CallOutcome
from agentloop.executors.invocation import CallRuntime, ToolInvocation, tool_error
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.tools.decorator import collect_tools
from agentloop.values.batches import parse_key
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.decisions import PendingCall
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, format_json, freeze, freeze_object
from agentloop.values.labels import Label
from agentloop.values.records import CannotTell, Reconciliation
from agentloop.values.run_requests import read_request
from agentloop.values.serialization import to_plain
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolResult, ToolStatus
from agentloop.values.value import Value, check_types

ProgressReport: TypeAlias = Callable[[JsonValue], None]
"""Receives an update of a running tool, as JSON."""

MAX_REMOTE_BYTES = 16 * 1024 * 1024
"""The default maximum of what comes back from one call, in bytes of JSON."""


@frozen(eq=False, repr=False, kw_only=True)
class RemoteCall(Value):
    """A call as it travels to the process that runs it; `to_json` and `from_json` convert it.

    Attributes:
        call: the tool and its arguments, which are valid and coerced.
        key: the idempotency key of the call.
        id: the id of its execution, if its tool uses a `ToolContext`; else empty.
        execution_id: the execution that it belongs to.
        agent_id: the agent of the execution.
        attempt: 1-based; the attempts of a resumed call start again at 1.
        resumed: the pending call with its progress and decision, if the tool had suspended it; else None.
        state: the state of the agent, if its tool reads it; else None.
        claim_token: the token of the claim under which the execution runs; None without a journal.
        deadline: the time at which nobody waits for the result any more, by the clock of the sender; None for no limit.
        is_inquiry: whether the tool is asked if the call, which was interrupted, has happened; it must not run.
        trace: the trace of the sender, as headers such as `traceparent`; `run_remote_call` continues it. Empty for none.
        request: how the execution was asked for, as `stored_request` returns it.
        label: who had a part in the call, as for `ToolContext`; None where nothing is labeled.
    """

    call: ToolCall
    key: str
    id: str = ""
    execution_id: str = ""
    agent_id: str = ""
    attempt: int = 1
    resumed: PendingCall | None = None
    state: AgentState | None = field(default=None, repr=False)
    claim_token: int | None = None
    deadline: datetime | None = None
    is_inquiry: bool = False
    trace: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    request: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, repr=False)
    label: Label | None = field(default=None, repr=False)

    __attrs_post_init__ = check_types

    @property
    def run_id(self) -> str:
        """The identity of this run of the tool: its key, then a hash of the call, the suspension and the attempt.

        It is the same when the same attempt is sent again, also by the process that recovers the execution, and another one for a
        retry, for a resumed call, and for other arguments.
        """
        import hashlib  # noqa: PLC0415  # loads OpenSSL, which takes 10 ms

        suspension = 0 if self.resumed is None else self.resumed.suspension
        bound = f"{self.call.name}\x00{self.call.arguments_json}\x00{suspension}\x00{self.attempt}"
        return f"{self.key}#{hashlib.sha256(bound.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


@frozen(eq=False, repr=False, kw_only=True)
class RemoteSuspension(Value):
    """That a tool has suspended its call.

    Attributes:
        reason: why the call waits, for the reviewer.
        progress: what the tool needs to resume, as JSON.
    """

    reason: str = ""
    progress: JsonValue = field(default=None, converter=freeze, repr=False)


def _freeze_each(updates: Iterable[object]) -> tuple[JsonValue, ...]:
    return tuple([freeze(update) for update in updates])


@frozen(eq=False, repr=False, kw_only=True)
class RemoteResult(Value):
    """What comes back from a call that ran in another process; `to_json` and `from_json` convert it.

    Attributes:
        status: how the call ended.
        result: the result of a success, with media for the model.
        error: the error of any other status.
        suspended: that the tool has suspended the call; None if it has not.
        stop: the stop that the tool requested; None if it requested none.
        progress: the updates of the tool, if the transport did not deliver them while it ran.
        reconciliation: the answer to an inquiry; else None.
    """

    status: ToolStatus = field(default=ToolStatus.SUCCEEDED, converter=ToolStatus)
    result: ToolResult | None = None
    error: ErrorInfo | None = None
    suspended: RemoteSuspension | None = None
    stop: StopSignal | None = None
    progress: tuple[JsonValue, ...] = field(default=(), converter=_freeze_each, repr=False)
    reconciliation: Reconciliation | None = None

    @classmethod
    def of_error(cls, error: BaseException, status: ToolStatus = ToolStatus.FAILED) -> RemoteResult:
        """Return the result of a call that failed with an error."""
        return cls(status=status, error=tool_error(error))


async def run_remote_call(
    tools: Tools | Iterable[ToolLike],
    call: RemoteCall,
    *,
    dependencies: Any = None,
    report: ProgressReport | None = None,
    shared_resources: Resources | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
    clock: Clock | None = None,
    max_result_bytes: int = MAX_REMOTE_BYTES,
) -> RemoteResult:
    """Run a call that another process sent, by the rules of an executor: arguments are validated, functions run in threads.

    To stop the call, cancel the task. Interceptors, approvals, budgets and records stay with the sender.

    Args:
        tools: the tools of this process; tools of groups have to be held.
        call: the call.
        dependencies: those of this process, as for `AgentLoop.execute(…, dependencies=…)`.
        report: receives the progress of the tool while it runs; None to return it with the result.
        shared_resources: the resources that the calls of this process share; by default each call has its own.
        bounds: the bounds on the work that the call can cause.
        clock: the source of times; by default that of the system.
        max_result_bytes: the maximum size of what comes back, as JSON. A larger one becomes an error.

    Returns:
        How the call ended. Whatever the tool raises is in it.

    Raises:
        asyncio.CancelledError: the task was cancelled, and with it the tool.
    """
    resources, kept = Resources(), _Progress()
    scope = ExecutionScope(
        clock=clock or SystemClock(),
        dependencies=dependencies,
        request=read_request(call.execution_id, call.request) if call.request else None,
        local_resources=resources,
        shared_resources=resources if shared_resources is None else shared_resources,
        bounds=bounds,
    )
    try:
        with continue_trace({name: str(text) for name, text in call.trace.items()}):
            result = await _run(tools, call, scope, report or kept.add)
    except (ToolError, SystemExit) as error:
        result = RemoteResult.of_error(error, ToolStatus.REJECTED)
    finally:
        await resources.aclose()
    return _within(evolve(result, progress=tuple(kept.updates)), max_result_bytes)


class _Progress:
    """Keeps the progress of a tool until its call ends."""

    def __init__(self) -> None:
        self.updates: list[JsonValue] = []

    def add(self, update: JsonValue) -> None:
        """Keep an update."""
        self.updates.append(update)


async def _run(
    tools: Tools | Iterable[ToolLike], call: RemoteCall, scope: ExecutionScope, report: ProgressReport
) -> RemoteResult:
    if call.deadline is not None and scope.clock.now() >= call.deadline:
        raise ToolUnavailable(f"the call {call.key} was not run: it arrived after its deadline")
    invocation, arguments = _prepare(collect_tools(tools), call, scope, report)
    if not call.is_inquiry:
        return _result_of(await invocation.run())
    tool = invocation.bind_tool()
    if not isinstance(tool, CanReconcileCall):
        return RemoteResult(reconciliation=CannotTell())
    try:
        return RemoteResult(reconciliation=await tool.reconcile(**arguments))
    except Exception as error:  # noqa: BLE001  # a tool that fails to find out cannot tell
        reason = f"its tool failed to find out: {ErrorInfo.of(error).message}"
        return RemoteResult(reconciliation=CannotTell(reason))


def _prepare(
    tools: Tools, call: RemoteCall, scope: ExecutionScope, report: ProgressReport
) -> tuple[ToolInvocation, Mapping[str, Any]]:
    """Return what runs the call, and its arguments as the tool takes them."""
    toolbox = Toolbox(tools)
    ready = toolbox.get(call.call.name)
    # The sender has coerced the arguments. Its tool may be of another version, so that they are checked again.
    fitted, arguments = ready.admit(call.call, scope.bounds, strict=True)
    step_number, index = parse_key(call.key) or (1, 0)
    admitted = Call(
        step_number=step_number,
        index=index,
        key=call.key,
        id=call.id,
        call=fitted,
        resumed=call.resumed,
        tool=ready,
        arguments=arguments,
    )
    bus = EventBus(clock=scope.clock)
    bus.on(ToolCallProgressed, lambda event: report(event.update))
    runtime = CallRuntime(events=bus, scope=scope, toolbox=toolbox, max_result_bytes=sys.maxsize)
    state = call.state or _bare_state(call, scope.clock)
    return _RemoteInvocation(admitted, ready, state, runtime, call), arguments


class _RemoteInvocation(ToolInvocation):
    """The tool of a call of another process, which runs under the claim of that process."""

    __slots__ = ("_claim_token", "_label")

    def __init__(self, call: Call, tool: ReadyTool, state: AgentState, runtime: CallRuntime, sent: RemoteCall) -> None:
        super().__init__(call, tool, state, runtime, attempts=sent.attempt - 1)
        self._claim_token = sent.claim_token
        self._label = sent.label

    def create_context(self) -> ToolContext:
        """Return the context of the call, with the claim of the process that sent it unless this one has its own."""
        context = evolve(super().create_context(), label=self._label)
        return context if self._runtime.scope.log is not None else evolve(context, claim_token=self._claim_token)


def _bare_state(call: RemoteCall, clock: Clock) -> AgentState:
    """Return a state that says no more than whose call it is; the tool does not read it."""
    state = AgentState.start(agent_id=call.agent_id or "remote", clock=clock)
    return state.with_execution_started(call.execution_id or "remote", clock.now())


def _result_of(outcome: CallOutcome) -> RemoteResult:
    if outcome.pending is not None:
        suspended = RemoteSuspension(reason=outcome.pending.reason, progress=outcome.pending.progress)
        return RemoteResult(status=ToolStatus.CANCELLED, suspended=suspended, stop=outcome.stop)
    execution = outcome.execution
    assert execution is not None  # noqa: S101  # a call ends with one of the two
    if not execution.succeeded:
        return RemoteResult(status=execution.status, error=execution.error, stop=outcome.stop)
    return RemoteResult(result=_whole_result(execution), stop=outcome.stop)


def _whole_result(execution: ToolExecution) -> ToolResult:
    """Return a result that is not cut: the sender cuts it, and keeps the rest."""
    content = execution.content if execution.uncut is None else execution.uncut or None
    return ToolResult(execution.value, content, label=execution.label)


def _within(result: RemoteResult, max_bytes: int) -> RemoteResult:
    """Return a result that can travel."""
    try:
        size = len(format_json(to_plain(result)))
    except (TypeError, ValueError, RecursionError) as error:
        return RemoteResult.of_error(NotJson(f"the result of the tool has no JSON form: {error}"))
    if size <= max_bytes:
        return result
    problem = f"the result has {size:,} bytes of JSON, and at most {max_bytes:,} can be sent back"
    return RemoteResult(
        status=ToolStatus.FAILED,
        error=ErrorInfo("BoundExceeded", f"{problem}; return less, or where the result is stored"),
        stop=result.stop,
    )
