"""Executors that break one law each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop import ToolExecutor
from agentloop.contracts import CanHandleEvents, CanIntercept, ExecutionScope, Tool, ToolPolicy
from agentloop.contracts.can_accept import CanAcceptTools
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.tools import Tools
from agentloop.durable.recorder import ExecutionRecorder
from agentloop.events import EventBus, ToolCallBlocked, ToolCallCompleted, ToolCallRejected
from agentloop.events.bus import JoinedBus
from agentloop.executors import ForwardingExecutor
from agentloop.interception import AroundToolUse, Interceptor, InterceptorStack
from agentloop.testing import ExecutorKit
from agentloop.values import AgentState, Effect, ToolCalls, ToolExecution, ToolExecutions, ToolStatus, approve
from agentloop.values.event import Event
from agentloop.values.interruptions import BatchInterrupted
from agentloop.values.json import parse_json
from agentloop.values.points import ProceedToolUse
from tests.testing.zoo.zoo import Member

LEAKED: list[asyncio.Task[None]] = []


@frozen
class DropsFailures(ToolExecutor):
    """Breaks law 1: a call that fails has no outcome."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(
            answer, executions=tuple(each for each in answer.executions if each.status is not ToolStatus.FAILED)
        )


@frozen
class Reorders(ToolExecutor):
    """Breaks law 1: executions are in reverse order."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=answer.executions[::-1])


@frozen
class MutatesState(ToolExecutor):
    """Breaks law 3: the executor changes the state that is passed to it."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        object.__setattr__(state, "execution_count", state.execution_count + 1)
        return answer


@frozen
class NumbersByCompletion(ToolExecutor):
    """Breaks law 8: ids depend on the order in which calls end."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        ended: list[str] = []

        async def execute_alone(key: str) -> ToolExecution:
            batch = ToolCalls((tool_calls.calls[tool_calls.keys.index(key)],), (key,))
            answer = await ToolExecutor.execute_tools(self, batch, state)
            ended.append(key)
            return evolve(answer.executions[0], id=f"ended as number {len(ended)}")

        executions = await asyncio.gather(*[execute_alone(key) for key in tool_calls.keys])
        return ToolExecutions(tuple(executions), (), state)


class Shared:
    """State that a broken executor shares between executions."""

    state: AgentState | None = None


@frozen
class SharesState(ToolExecutor):
    """Breaks law 9: an execution returns the state of another."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        Shared.state = state
        answer = await super().execute_tools(tool_calls, state)
        return answer.with_state(Shared.state)


@frozen
class ChangesAfterEvent(ToolExecutor):
    """Breaks law 10: outcomes change after their events."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=tuple(evolve(each, may_have_run=True) for each in answer.executions))


class _OneEnd(JoinedBus):
    """Passes events on, and the end of every call as that of one that has run."""

    def __init__(self, bus: CanHandleEvents) -> None:
        super().__init__(bus, EventBus())

    async def emit(self, event: Event) -> None:
        await self.first.emit(self._changed(event))

    def emit_soon(self, event: Event) -> None:
        self.first.emit_soon(self._changed(event))

    def _changed(self, event: Event) -> Event:
        if isinstance(event, ToolCallBlocked | ToolCallRejected):
            return ToolCallCompleted(event.head, event.execution)
        return event


@frozen
class CompletesEveryCall(ToolExecutor):
    """Breaks law 10: a call that was blocked or rejected is reported as one that has ended."""

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        return super().with_lifecycle(interceptor, _OneEnd(events))


@frozen
class SkipsInterceptors(ToolExecutor):
    """Breaks law 11: calls bypass the interceptors."""

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        del interceptor
        return super().with_lifecycle(ToolExecutor()._interceptor, events)


class Unchecked(Tool):
    """A tool whose schema accepts anything."""

    def __init__(self, inner: Tool) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def description(self) -> str:
        return self._inner.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object"}

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return await self._inner.use(**arguments)


class Relabeled(Unchecked):
    """A tool that forwards what its author knew of."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._inner.parameters

    @property
    def effect(self) -> Effect:
        return self._inner.effect


@frozen
class ForgetsPolicies(ToolExecutor):
    """Breaks law 38: tools are wrapped, and the wrapper has no policy."""

    def with_tools(self, tools: Tools) -> Self:
        return super().with_tools(Tools.of([Relabeled(each) for each in tools]))


class Impatient(Relabeled):
    """A tool with all of a policy but the time limit."""

    @property
    def policy(self) -> ToolPolicy:
        return evolve(self._inner.policy, timeout=None)


@frozen
class IgnoresTimeouts(ToolExecutor):
    """Breaks law 38: calls may take as long as they like."""

    def with_tools(self, tools: Tools) -> Self:
        return super().with_tools(Tools.of([Impatient(each) for each in tools]))


@frozen
class SkipsValidation(ToolExecutor):
    """Breaks law 17: arguments are not validated."""

    def with_tools(self, tools: Tools) -> Self:
        return super().with_tools(Tools.of([Unchecked(each) for each in tools]))


@frozen
class LeaksTask(ToolExecutor):
    """Breaks law 19: a task is still running after the batch."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        LEAKED.append(asyncio.create_task(_forever()))
        return await super().execute_tools(tool_calls, state)


async def _forever() -> None:
    await asyncio.Event().wait()


@frozen
class RecordsNothing(ToolExecutor):
    """Breaks law 14: calls run without a recorded intent."""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        return super().with_execution_scope(evolve(scope, log=None))


@frozen
class RepeatsCalls(ToolExecutor):
    """Breaks law 14: recorded calls run again."""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        if isinstance(scope.log, ExecutionRecorder) and scope.log.recorded is not None:
            scope.log.recorded.calls.clear()
        return super().with_execution_scope(scope)


@frozen
class AnswersFromMemory(ForwardingExecutor):
    """Breaks law 10: a pure call whose result is known is answered without the executor inside, so that nobody hears of it."""

    results: MutableMapping[tuple[str, str], ToolExecution] = field(factory=dict, kw_only=True)
    tools: Tools = field(factory=lambda: Tools.of(()), kw_only=True)

    def with_tools(self, tools: Tools) -> Self:
        return evolve(super().with_tools(tools), tools=tools)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        pairs = list(zip(tool_calls.calls, tool_calls.keys, strict=True))
        known = {key: self.results.get((call.name, call.arguments_json)) for call, key in pairs}
        answered = {
            key: ToolExecution.of(call, ToolStatus.SUCCEEDED, key=key, id=key, at=state.updated_at, value=found.value)
            for call, key in pairs
            if (found := known[key]) is not None and key not in tool_calls.rejections
        }
        rest = [(call, key) for call, key in pairs if key not in answered]
        batch = evolve(tool_calls, calls=tuple(call for call, _ in rest), keys=tuple(key for _, key in rest))
        outcome = await self.inner.execute_tools(batch, state)
        for each in outcome.executions:
            tool = self.tools.by_name.get(each.name)
            if tool is not None and tool.effect is Effect.PURE and each.succeeded:
                self.results[each.name, each.call.arguments_json] = each
        by_key = {each.key: each for each in outcome.executions} | answered
        return evolve(outcome, executions=tuple(by_key[key] for key in tool_calls.keys if key in by_key))


class RemembersResults(Interceptor):
    """Leaves out the run of a pure tool whose result is known, whichever agent it was for."""

    priority = -(10**6)

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], ToolExecution] = {}

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        key = (point.call.name, point.call.arguments_json)
        if point.tool.effect is Effect.PURE and key in self.results:
            return point.succeed(self.results[key].value)
        outcome = await proceed()
        if outcome.succeeded:
            self.results[key] = outcome
        return outcome


@frozen
class RemembersForEverybody(ForwardingExecutor):
    """Breaks law 9: what a pure tool returned for one agent is the result of another agent's call."""

    memory: RemembersResults = field(factory=RemembersResults, kw_only=True)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        return super().with_lifecycle(InterceptorStack.of(interceptor).with_layers([self.memory]), events)


def _has_effect(tools: Tools | None, calls: ToolCalls) -> bool:
    known = {} if tools is None else tools.by_name
    return any(call.name in known and known[call.name].effect is Effect.EFFECT for call in calls.calls)


@frozen
class TrustsPureCalls(ToolExecutor):
    """Breaks law 11: calls without an effect bypass the interceptors."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        tools = None if self._toolbox is None else self._toolbox.tools
        if _has_effect(tools, tool_calls):
            return await super().execute_tools(tool_calls, state)
        unguarded = super().with_lifecycle(ToolExecutor()._interceptor, self._events)
        return await ToolExecutor.execute_tools(unguarded, tool_calls, state)


@frozen
class RecordsEffectsAlone(ToolExecutor):
    """Breaks law 14: calls without an effect are not recorded."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        tools = None if self._toolbox is None else self._toolbox.tools
        if _has_effect(tools, tool_calls) or self._scope is None:
            return await super().execute_tools(tool_calls, state)
        unrecorded = super().with_execution_scope(evolve(self._scope, log=None))
        return await ToolExecutor.execute_tools(unrecorded, tool_calls, state)


@frozen
class RunsRejectedCalls(ToolExecutor):
    """Breaks law 17: calls run although the driver rejects them."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return await super().execute_tools(evolve(tool_calls, rejections={}), state)


@frozen
class ForgetsRejections(ToolExecutor):
    """Breaks law 17: a rejected call does not run, but its outcome does not say why."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        reasons = dict.fromkeys(tool_calls.rejections, "no")
        return await super().execute_tools(evolve(tool_calls, rejections=reasons), state)


@frozen
class ApprovesWaitingCalls(ToolExecutor):
    """Breaks law 16: a call that waits for a decision is approved by the executor itself."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        decisions = dict.fromkeys(tool_calls.keys, approve()) | dict(tool_calls.decisions)
        return await super().execute_tools(evolve(tool_calls, decisions=decisions), state)


@frozen
class IgnoresDecisions(ToolExecutor):
    """Breaks law 16: decided calls are executed as if nobody had decided."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return await super().execute_tools(evolve(tool_calls, decisions={}), state)


@frozen
class ObeysNoDenial(ToolExecutor):
    """Breaks law 16: what was denied runs all the same."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        approved = {key: approve() for key in tool_calls.decisions}
        return await super().execute_tools(evolve(tool_calls, decisions=approved), state)


@frozen
class ForgetsBegunCalls(ToolExecutor):
    """Breaks law 16: a tool that has suspended its call begins anew when it is resumed."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return await super().execute_tools(evolve(tool_calls, begun={}), state)


@frozen
class ValidatesNothing(CanExecuteToolCalls, CanAcceptTools):
    """Breaks law 17: calls reach their tools as the model wrote them, and not a part of the contract besides is kept."""

    tools: Tools = field(factory=lambda: Tools.of(()))

    def with_tools(self, tools: Tools) -> Self:
        return evolve(self, tools=tools)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        pairs = zip(tool_calls.calls, tool_calls.keys, strict=True)
        executions = [await self._execute(call.name, call.arguments_json, call, key, state) for call, key in pairs]
        return ToolExecutions(tuple(executions), (), state)

    async def _execute(self, name: str, arguments: str, call: Any, key: str, state: AgentState) -> ToolExecution:
        try:
            tool = self.tools.by_name[name]
            value = await tool.use(**parse_json(arguments))
            status, error = ToolStatus.SUCCEEDED, ""
        except Exception as raised:  # noqa: BLE001  # whatever the tool raises
            value, status, error = None, ToolStatus.FAILED, str(raised)
        settled = ToolExecution.of(call, status, key=key, id=key, at=state.updated_at, value=value)
        return settled if not error else settled.with_value(error)


@frozen
class LosesBatchOnError(ToolExecutor):
    """Breaks law 21: when an interceptor fails, its error leaves the executor without the outcomes."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        try:
            return await super().execute_tools(tool_calls, state)
        except BatchInterrupted as interrupted:
            raise RuntimeError(str(interrupted)) from None


@frozen
class LosesBatchOnCancellation(ToolExecutor):
    """Breaks law 21: a cancellation leaves the executor without the outcomes."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        try:
            return await super().execute_tools(tool_calls, state)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None


@frozen
class LosesInterceptorState(ToolExecutor):
    """Breaks law 22: the state after the batch is the one before it, without what interceptors changed."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return (await super().execute_tools(tool_calls, state)).with_state(state)


@frozen
class SwallowsCancellation(ToolExecutor):
    """Breaks law 34: a cancelled batch returns as if nothing had happened."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        try:
            return await super().execute_tools(tool_calls, state)
        except asyncio.CancelledError as cancelled:
            carrier = BatchInterrupted.find_in(cancelled)
            assert carrier is not None
            return carrier.executions


@frozen
class CutsLongResults(ForwardingExecutor):
    """Breaks law 10: a text of more than 1,000 characters is cut after its event was emitted."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await self.inner.execute_tools(tool_calls, state)
        return evolve(answer, executions=tuple(map(self._shorten, answer.executions)))

    def _shorten(self, execution: ToolExecution) -> ToolExecution:
        return evolve(execution, value=execution.value[:1000]) if isinstance(execution.value, str) else execution


@frozen
class CutsIds(ForwardingExecutor):
    """Breaks law 10: ids of calls have 64 characters at most."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await self.inner.execute_tools(tool_calls, state)
        cut = [evolve(each, call=evolve(each.call, id=each.call.id[:64])) for each in answer.executions]
        return evolve(answer, executions=tuple(cut))


@frozen
class SharesResultsOfEqualCalls(ForwardingExecutor):
    """Breaks law 10: equal calls of a batch all have the result of the first one."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await self.inner.execute_tools(tool_calls, state)
        first: dict[tuple[str, str], ToolExecution] = {}
        for each in answer.executions:
            first.setdefault((each.name, each.call.arguments_json), each)
        known = [first[each.name, each.call.arguments_json] for each in answer.executions]
        same = [evolve(each, value=other.value) for each, other in zip(answer.executions, known, strict=True)]
        return evolve(answer, executions=tuple(same))


@frozen
class LosesStops(ForwardingExecutor):
    """Breaks law 38: a tool that stops the agent is one that was cancelled, and the agent goes on."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await self.inner.execute_tools(tool_calls, state)
        if state.execution is None or answer.state.execution is None:
            return answer
        execution = evolve(answer.state.execution, continuation=state.execution.continuation)
        return answer.with_state(evolve(answer.state, execution=execution))


@frozen
class KeepsPermits(ForwardingExecutor):
    """Breaks law 34: two batches run at a time, and one that is cancelled keeps its permit."""

    permits: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(2))

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        await self.permits.acquire()
        answer = await self.inner.execute_tools(tool_calls, state)
        self.permits.release()
        return answer


@frozen
class StaysBusy(ForwardingExecutor):
    """Breaks law 34: an agent whose batch was cancelled has one that runs for ever."""

    busy: set[str] = field(factory=set)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        if state.agent_id in self.busy:
            raise RuntimeError(f"{state.agent_id} has a batch that runs")
        self.busy.add(state.agent_id)
        answer = await self.inner.execute_tools(tool_calls, state)
        self.busy.remove(state.agent_id)
        return answer


@frozen
class TakesItsTime(ForwardingExecutor):
    """Breaks law 34: a batch that is cancelled waits for an hour before it ends."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        try:
            return await self.inner.execute_tools(tool_calls, state)
        except asyncio.CancelledError:
            await asyncio.sleep(3600)
            raise


@frozen
class WaitsForSuccess(ForwardingExecutor):
    """Breaks law 1: the executor waits for a call that succeeds, and none may."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await self.inner.execute_tools(tool_calls, state)
        succeeded = asyncio.Event()
        if not answer.failures or len(answer.failures) < len(answer.executions):
            succeeded.set()
        await succeeded.wait()
        return answer


@frozen
class LooksAgain(ForwardingExecutor):
    """Breaks law 1: the executor looks again and again whether a call has succeeded, and none may."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await self.inner.execute_tools(tool_calls, state)
        while answer.executions and len(answer.failures) == len(answer.executions):  # noqa: ASYNC110  # the fault
            await asyncio.sleep(0.1)
        return answer


@frozen
class WritesAnAuditRow(ForwardingExecutor):
    """Breaks law 45: the event loop waits for a database before each batch."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        return await self.inner.execute_tools(tool_calls, state)


def _member(law: int, executor: Any) -> Member:
    return Member(executor, law, lambda examples: ExecutorKit(executor, examples=examples))


def _wrapper(law: int, executor: Any) -> Member:
    return Member(executor, law, lambda examples: ExecutorKit(lambda: executor(ToolExecutor()), examples=examples))


EXECUTORS: tuple[Member, ...] = (
    _member(1, DropsFailures),
    _member(1, Reorders),
    _wrapper(1, WaitsForSuccess),
    _wrapper(1, LooksAgain),
    _member(3, MutatesState),
    _member(8, NumbersByCompletion),
    _member(9, SharesState),
    _wrapper(9, RemembersForEverybody),
    _member(10, ChangesAfterEvent),
    _member(10, CompletesEveryCall),
    _wrapper(10, AnswersFromMemory),
    _wrapper(10, CutsLongResults),
    _wrapper(10, CutsIds),
    _wrapper(10, SharesResultsOfEqualCalls),
    _member(11, SkipsInterceptors),
    _member(11, TrustsPureCalls),
    _member(14, RecordsNothing),
    _member(14, RecordsEffectsAlone),
    _member(14, RepeatsCalls),
    _member(16, ApprovesWaitingCalls),
    _member(16, IgnoresDecisions),
    _member(16, ObeysNoDenial),
    _member(16, ForgetsBegunCalls),
    _member(17, SkipsValidation),
    _member(17, RunsRejectedCalls),
    _member(17, ForgetsRejections),
    _member(17, ValidatesNothing),
    _member(19, LeaksTask),
    _member(21, LosesBatchOnError),
    _member(21, LosesBatchOnCancellation),
    _member(22, LosesInterceptorState),
    _member(34, SwallowsCancellation),
    _wrapper(34, KeepsPermits),
    _wrapper(34, StaysBusy),
    _wrapper(34, TakesItsTime),
    _member(38, ForgetsPolicies),
    _member(38, IgnoresTimeouts),
    _wrapper(38, LosesStops),
    _wrapper(45, WritesAnAuditRow),
)
