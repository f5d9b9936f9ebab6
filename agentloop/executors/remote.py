"""The base of executors whose tools run in other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanDescribeDefaults,
    CanPrepareArguments,
    CanReconcileCall,
    Tool,
    ToolContext,
    ToolFromSpec,
    ToolPolicy,
)
from agentloop.contracts.tools import Tools
from agentloop.errors import (
    AgentLoopError,
    ContractViolation,
    InvalidDependencies,
    ToolError,
    ToolFailed,
    ToolInDoubt,
    kinds,
)
from agentloop.events.trace_context import trace_headers
from agentloop.executors.invocation import CancelledItself, ToolTimeout
from agentloop.executors.remote_calls import ProgressReport, RemoteCall, RemoteResult
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.executors.toolbox import Toolbox
from agentloop.tools.fitting import describe_defaults
from agentloop.values.decisions import CallSuspended
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue
from agentloop.values.records import CannotTell, DidNotHappen, Happened, Reconciliation
from agentloop.values.run_requests import stored_request
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolResult, ToolSpec, ToolStatus

FoundResult: TypeAlias = RemoteResult | DidNotHappen | CannotTell
"""What is known of a call that was sent: its result, that it did not run, or nothing."""


def _as_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@frozen(eq=False, repr=False)
class RemoteToolExecutor(ToolExecutor, ABC):
    """Runs calls as `ToolExecutor` does, except for the tools themselves, which run in another process.

    Interceptors, approvals, budgets, validation and coercion, retries, timeouts, events and records stay in this process. A
    subclass, which is an attrs class as well, writes `call_remotely`; the other process runs `run_remote_call`, with tools of the
    same names.

    These run here, because they work with what only this process has (`Tool.is_local`): agents as tools and handoffs, programs,
    whose inner calls travel, tools of MCP servers, tools that search tools or read earlier results, and those in `local`.

    A call with an effect is sent once. When its result does not come, `find_result` and then the tool itself are asked whether it
    happened; if nobody knows, the call is in doubt. A call of a pure or idempotent tool is sent again, with the same key.

    Attributes:
        local: the names of more tools that run in this process.
        max_resends: how often a call is sent again whose result did not come, if it may be repeated or did not happen.
    """

    local: frozenset[str] = field(default=frozenset(), kw_only=True, converter=_as_names)
    max_resends: int = field(default=2, kw_only=True, validator=ge(0))
    _tools: Tools | None = field(default=None, kw_only=True, repr=False, eq=False)

    @abstractmethod
    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
        """Send a call, and return its result.

        If the task is cancelled, because of a timeout or the end of the execution, tell the other process to stop the tool, as far
        as that is possible; a result that comes later is dropped.

        Args:
            call: the call.
            report: emits progress of the tool; not needed for updates that come with the result.

        Raises:
            ToolUnavailable: the call was not sent, so that it did not run.
            ToolError: any other outcome of the call, except for `ToolInDoubt`.
            Exception: any other error: the result did not come, and it is not known whether the call ran.
        """

    async def find_result(self, call: RemoteCall) -> FoundResult:  # noqa: ARG002  # for executors that can find results
        """Find out what has become of a call that was sent before, by this process or by one that was interrupted.

        It may wait for a call that still runs. By default, nothing is known.

        Args:
            call: the call. `RemoteCall.run_id` is the one under which it was sent.

        Returns:
            Its result; `did_not_happen()`, which sends it; or `cannot_tell(reason)`, which sends a call again that may be repeated,
            and leaves one with an effect in doubt.

        Raises:
            Exception: any error means that nothing is known.
        """
        return CannotTell()

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that runs these tools.

        Raises:
            ToolDefinitionError: the parameters of a tool are not a valid JSON Schema.
        """
        return evolve(super().with_tools(tools), tools=tools)._with_remote_tools()  # noqa: SLF001  # a copy

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy with this clock, these ids and these dependencies."""
        return super().with_execution_scope(scope)._with_remote_tools()  # noqa: SLF001  # a copy

    def local_tools(self, tools: Tools) -> Tools:
        """Return those of the tools that run in this process, and need the dependencies of the execution."""
        return tools.only([tool.name for tool in tools if self._is_local(tool)])

    def _is_local(self, tool: Tool) -> bool:
        return tool.is_local or tool.name in self.local

    def _with_remote_tools(self) -> Self:
        if self._tools is None:
            return self
        tools = self._tools.as_strict if self.strict else self._tools
        by_name: dict[str, Tool] = {
            tool.name: tool if self._is_local(tool) else _RemoteTool(tool, self, self._scope) for tool in tools
        }
        return evolve(self, toolbox=Toolbox(evolve(tools, by_name=by_name)))


@frozen(eq=False)
class _RemoteTool(
    ToolFromSpec,
    CanPrepareArguments,
    CanDescribeDefaults,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanReconcileCall,
):
    """Stands in for a tool that runs in another process.

    Attributes:
        tool: the tool, of which everything but `use` is used here.
        executor: sends the calls.
        scope: the scope of the execution; None outside of one.
    """

    tool: Tool
    executor: RemoteToolExecutor = field(repr=False)
    scope: ExecutionScope | None = field(repr=False)
    _call: ToolCall | None = field(default=None, repr=False)
    _context: ToolContext | None = field(default=None, repr=False)
    _state: AgentState | None = field(default=None, repr=False)

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return self.tool.spec

    @property
    def policy(self) -> ToolPolicy:
        """How executors run the calls of the tool."""
        return self.tool.policy

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Check that the tool accepts the arguments; they travel as JSON.

        Raises:
            InvalidArguments: a value does not fit its type.
        """
        if isinstance(self.tool, CanPrepareArguments):
            self.tool.prepare(deepcopy(arguments))  # it may change them
        return arguments

    def describe_defaults(self, arguments: Mapping[str, Any]) -> JsonObject:
        """Return the values that the tool gives to what a call leaves out, by path."""
        return describe_defaults(self.tool, self.tool.spec, arguments)

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that sends this state, if the tool reads it."""
        # What a wrapper returns says whether the tool inside reads the state.
        reads = isinstance(self.tool, CanAccessAgentState) and self.tool.with_agent_state(state) is not self.tool
        return evolve(self, state=state) if reads else self

    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that sends this call."""
        return evolve(self, call=call)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy with the context of the call."""
        return evolve(self, context=context)

    @property
    def continues_calls(self) -> bool:
        """Whether the call was interrupted, and the executor can find out what has become of it."""
        context, log = self._context, None if self.scope is None else self.scope.log
        if context is None or log is None or not self._finds_results:
            return False
        recorded = log.recorded_call(context.idempotency_key)
        return recorded is not None and recorded.execution is None and recorded.pending is None

    async def reconcile(self, **arguments: Any) -> Reconciliation:  # noqa: ARG002  # they are in the call
        """Ask the tool in the other process whether an interrupted call has happened."""
        return await self._inquire(self._remote_call())

    async def use(self, *_: Any, **arguments: Any) -> ToolResult:  # noqa: ARG002  # they are in the call
        """Run the tool in the other process, and return its result.

        Raises:
            ToolInDoubt: it is not known whether the call, which has an effect, ran.
            ToolFailed: no result came for a call that may be repeated, however often it was sent.
            BaseException: what the tool raised.
        """
        call = self._remote_call()
        known = await self._find_or_doubt(call, "", None) if self.continues_calls else None
        return self._open(await self._send(call) if known is None else known)

    async def _send(self, call: RemoteCall) -> RemoteResult:
        """Send a call until its result is known."""
        sent = 0
        while True:
            sent += 1
            try:
                return await self.executor.call_remotely(call, self._report)
            except Exception as error:
                # Other errors of agentloop are outcomes: that the call was not sent, or what the tool raised.
                if isinstance(error, AgentLoopError) and not isinstance(error, ToolInDoubt):
                    raise
                known = await self._find_or_doubt(call, _text(error), error)
                if known is not None:
                    return known
                if sent > self.executor.max_resends:
                    problem = f"no result came, although the call was sent {sent} times: {_text(error)}"
                    raise ToolFailed(problem) from error

    async def _find_or_doubt(self, call: RemoteCall, reason: str, error: Exception | None) -> RemoteResult | None:
        """Return the result of a call that was sent before; None if it is to be sent again.

        Raises:
            ToolInDoubt: nobody knows whether the call, which has an effect, ran.
        """
        try:
            found = await self.executor.find_result(call)
        except Exception as failure:  # noqa: BLE001  # an executor that fails to find out cannot tell
            found = CannotTell(_text(failure))
        if isinstance(found, RemoteResult):
            return found
        if isinstance(found, DidNotHappen) or self.effect is not Effect.EFFECT:
            return None
        answer = await self._inquire(call)
        if isinstance(answer, Happened):
            return RemoteResult(result=ToolResult(answer.value))
        if isinstance(answer, DidNotHappen):
            return None
        why = "; ".join(filter(None, [reason, found.reason, answer.reason]))
        raise ToolInDoubt(f"it is not known whether the call ran in the other process: {why}") from error

    async def _inquire(self, call: RemoteCall) -> Reconciliation:
        if not isinstance(self.tool, CanReconcileCall):
            return CannotTell()
        try:
            result = await self.executor.call_remotely(evolve(call, is_inquiry=True), lambda _: None)
        except Exception as error:  # noqa: BLE001  # without an answer, nothing is known
            return CannotTell(_text(error))
        return CannotTell() if result.reconciliation is None else result.reconciliation

    def _remote_call(self) -> RemoteCall:
        call, context = self._call, self._context
        if call is None or context is None:
            raise ContractViolation(f"the remote tool {self.name!r} needs its call: run it by an executor")
        # Read only for tools that use them: a call that starts before its batch has neither an id nor a scope yet.
        id, request = "", None  # noqa: A001  # names the field
        if self._reads_context(context):
            id, request = context.id, context.scope.request  # noqa: A001  # names the field
        return RemoteCall(
            call=call,
            trace=trace_headers(),
            key=context.idempotency_key,
            id=id,
            execution_id=context.execution_id,
            agent_id=context.agent_id,
            attempt=context.attempt,
            resumed=context.resumed,
            state=self._state,
            claim_token=context.claim_token,
            deadline=self._deadline(),
            request=EMPTY_OBJECT if request is None else stored_request(request),
            label=context.label,
        )

    def _reads_context(self, context: ToolContext) -> bool:
        if not isinstance(self.tool, CanAccessToolContext):
            return False
        try:
            return self.tool.with_tool_context(context) is not self.tool
        except InvalidDependencies:  # it reads them, and the other process has them
            return True

    def _deadline(self) -> datetime | None:
        timeout = self.policy.timeout or self.executor.default_timeout
        if timeout is None or self.scope is None:
            return None
        return self.scope.clock.now() + timedelta(seconds=timeout)

    def _report(self, update: JsonValue) -> None:
        if self._context is not None:
            self._context.progress(update)

    @property
    def _finds_results(self) -> bool:
        return type(self.executor).find_result is not RemoteToolExecutor.find_result

    def _open(self, result: RemoteResult) -> ToolResult:
        """Return what a tool has returned in the other process, or raise what it has raised."""
        for update in result.progress:
            self._report(update)
        if result.stop is not None:
            stop = result.stop
            raise AgentStop(stop.message, reason=stop.reason, source=stop.source, context=stop.context)
        if result.suspended is not None:
            raise CallSuspended(result.suspended.reason, progress=result.suspended.progress)
        if result.status is ToolStatus.SUCCEEDED:
            return result.result or ToolResult()
        error = result.error or ErrorInfo(ToolFailed.__name__, f"the call {result.status.value}, without an error")
        if result.status is ToolStatus.TIMED_OUT:
            raise ToolTimeout(error.message)
        if result.status is ToolStatus.CANCELLED:
            raise CancelledItself
        raise _rebuild(error)


def _rebuild(error: ErrorInfo) -> ToolError:
    """Return an error that was raised in another process; its class has the same name."""
    known = _REBUILT.get(error.type)
    if known is not None:
        return known(error.message, path=error.path)
    # The outcome of the call holds the name of the class, which policies compare, so that it has to survive.
    name = error.type if error.type.isidentifier() else ToolFailed.__name__
    made: type[ToolError] = type(name, (ToolError,), {"__module__": "remote"})
    return made(error.message, path=error.path)


# Those with parameters of their own cannot be made of a message.
_REBUILT: Mapping[str, type[ToolError]] = {
    name: kind
    for name, kind in vars(kinds).items()
    if isinstance(kind, type) and issubclass(kind, ToolError) and kind.__init__ is ToolError.__init__
}
"""The errors of tools by the names of their classes: a name that comes from elsewhere is looked up here alone."""


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {ErrorInfo.of(error).message}"
