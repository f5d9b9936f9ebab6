"""A batch of calls on its way: admitted in call order, run side by side, settled in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

from attrs import define, evolve, field

from agentloop.errors import AgentLoopError, InterceptorFailed, ToolError
from agentloop.events.tool_events import ToolCallBlocked, ToolCallCompleted, ToolCallRejected, ToolCallSuspended
from agentloop.executors.call_slot import CallSlot
from agentloop.executors.tool_run import RunSettings, ToolRun, limited_error
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Answer, Approve, Deny, Edit
from agentloop.values.pending_call import PendingCall
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.stop import AgentStop
from agentloop.values.tool_execution import ErrorInfo, ToolExecution, ToolStatus
from agentloop.values.tool_executions import ToolExecutions
from agentloop.values.tool_result import ToolResult
from agentloop.values.verdict import Block, Suspend


@define(eq=False)
class Batch:
    """The calls of one `execute_tools`. It lives as long as that call and is seen by nobody else.

    Attributes:
        slots: one per call, in call order.
        state: the state as the interceptors have made it so far.
        toolbox: the tools.
        settings: what the calls have in common.
        max_concurrency: how many calls run at once; None for all.
        stop_on_block: whether a blocked call keeps those after it from being admitted.
        failure: the first error of an interceptor; nothing is admitted after it.
    """

    slots: list[CallSlot]
    state: AgentState
    toolbox: Toolbox
    settings: RunSettings
    max_concurrency: int | None = None
    stop_on_block: bool = False
    failure: Exception | None = None
    _halted: str = ""
    _group: list[CallSlot] = field(factory=list)
    _group_keys: set[str] = field(factory=set)
    _exclusive: bool = False
    _waiting: str = ""

    async def run(self) -> None:
        """Execute all calls; afterwards every slot has an outcome or waits."""
        for slot in self.slots:
            if self._halted:
                self._cancel(slot, self._halted)
                self._group.append(slot)
            else:
                await self._admit(slot)
        await self._flush()

    def answer(self) -> ToolExecutions:
        """Return what came of the calls."""
        executions = tuple([slot.execution for slot in self.slots if slot.execution is not None])
        pending = tuple([slot.pending for slot in self.slots if slot.pending is not None])
        return ToolExecutions(executions, pending, self.state)

    async def abandon(self, reason: str) -> None:
        """Cancel what runs, wait until it has ended, and settle every call that is still open."""
        running = [slot.task for slot in self.slots if slot.task is not None and not slot.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.close(reason)
        for slot in self.slots:
            await self._settle(slot)

    def close(self, reason: str) -> None:
        """Give every call that is still open the outcome that it was cancelled."""
        for slot in self.slots:
            if slot.is_open:
                self._cancel(slot, reason)

    # --- admit --------------------------------------------------------------------------------------------------

    async def _admit(self, slot: CallSlot) -> None:
        if isinstance(slot.decision, Edit):
            slot.call = slot.call.with_arguments(slot.decision.arguments)
        if not self._found_and_valid(slot):
            self._group.append(slot)
            return
        if self._has_to_wait(slot):
            await self._flush()
            if self._waiting and slot.decision is None and slot.begun is None:
                slot.pending = PendingCall(slot.key, slot.call, f"runs after {self._waiting}", waits_for=self._waiting)
                return
        self._join_group(slot)
        await self._ask_interceptors(slot)

    def _found_and_valid(self, slot: CallSlot) -> bool:
        try:
            slot.tool = self.toolbox.ready(slot.call.name)
            slot.arguments = slot.tool.prepared(slot.call)
            slot.ordering_key = slot.tool.ordering_key(slot.call)
        except ToolError as error:
            slot.execution = slot.end(ToolStatus.REJECTED, ErrorInfo.of(error), self._now())
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the tool's own code failed before it ran
            slot.execution = slot.end(ToolStatus.FAILED, limited_error(error), self._now())
        return slot.execution is None

    def _has_to_wait(self, slot: CallSlot) -> bool:
        """Say whether the calls before this one have to be settled first."""
        if not self._group and not self._waiting:
            return False
        if _tool(slot).tool.policy.sequential or self._exclusive:
            return True
        key = slot.ordering_key
        return bool(key) and (key in self._group_keys or bool(self._waiting))

    def _join_group(self, slot: CallSlot) -> None:
        self._group.append(slot)
        self._exclusive = _tool(slot).tool.policy.sequential
        if slot.ordering_key:
            self._group_keys.add(slot.ordering_key)

    async def _ask_interceptors(self, slot: CallSlot) -> None:
        if isinstance(slot.decision, Deny):
            self._block(slot, slot.decision.reason or "denied")
        elif isinstance(slot.decision, Answer):
            self._answer(slot, slot.decision)
        elif "before_tool_use" in self.settings.interceptor.points:
            await self._pass_before(slot)

    async def _pass_before(self, slot: CallSlot) -> None:
        tool = _tool(slot)
        decision = slot.decision or (Approve() if slot.begun is not None else None)  # what has begun was let run
        before = BeforeToolUse(
            self.state,
            slot.call,
            tool.spec,
            slot.key,
            slot.index,
            decision=decision,
            decided=slot.call if decision is not None else None,
            ensemble=self.toolbox.ensemble(slot.call.name),
        )
        try:
            point = await self.settings.interceptor.before_tool_use(before)
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
            self._block(slot, str(stop))
            return
        except AgentLoopError as error:
            self._fail(slot, error)
            return
        self.state = point.state
        if changed := point.call != slot.call and slot.begun is None:  # what has begun goes on as it began
            slot.call = point.call
        match point.verdict:
            case Block(reason):
                self._block(slot, reason)
            case Answer() as answered:
                self._answer(slot, answered)
            case Suspend(reason):
                self._suspend(slot, reason)
            case None if changed and decision is not None:
                self._suspend(slot, _CHANGED_SINCE)
            case None if changed:
                await self._admit_changed(slot)

    def _suspend(self, slot: CallSlot, reason: str) -> None:
        slot.pending = PendingCall(slot.key, slot.call, reason)
        self._waiting = self._waiting or slot.key

    async def _admit_changed(self, slot: CallSlot) -> None:
        """Validate a call again that an interceptor changed, and let those before it end if its order now demands it."""
        self._group.remove(slot)
        if not self._found_and_valid(slot):
            self._group.append(slot)
            return
        if self._has_to_wait(slot):
            await self._flush()
        self._join_group(slot)

    # --- run ----------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Run the calls that have been admitted, side by side, and settle them in order."""
        group, self._group, self._group_keys, self._exclusive = self._group, [], set(), False
        open_slots = [slot for slot in group if slot.is_open]
        gate = asyncio.Semaphore(self.max_concurrency) if self.max_concurrency is not None else None
        for slot in open_slots:  # also a single one has its own task: what a tool does to its task stays there
            slot.task = asyncio.create_task(self._run(slot, gate), name=f"agentloop tool {slot.key}")
        for slot in group:
            if slot.task is not None and not slot.task.done():
                await asyncio.wait((slot.task,))
            await self._settle(slot)

    async def _run(self, slot: CallSlot, gate: asyncio.Semaphore | None) -> None:
        if gate is not None:
            async with gate:
                await self._run(slot, None)
            return
        run = ToolRun(slot, _tool(slot), self.state, self.settings)
        try:
            await run.run()
        except AgentStop as stop:
            run.stop = stop
            error = ErrorInfo("AgentStop", str(stop))
            slot.execution = slot.end(ToolStatus.CANCELLED, error, self._now())
        except Exception as error:  # noqa: BLE001  # a layer around the call failed, or a strict listener
            self._fail(slot, error)
        if run.suspended is not None:
            slot.suspend(run.suspended)
        if run.stop is not None:
            self.state = self.state.with_stop_signal(run.stop.signal)

    # --- settle -------------------------------------------------------------------------------------------------

    async def _settle(self, slot: CallSlot) -> None:
        if slot.settled:
            return
        if slot.pending is not None:
            await self._settle_suspended(slot, slot.pending)
            return
        if slot.execution is None:  # its task was cancelled by somebody else
            self._cancel(slot, "the call was cancelled")
        slot.settled = True
        if "after_tool_use" in self.settings.interceptor.points:
            await self._pass_after(slot)
        execution = _execution(slot)
        events = self.settings.events
        kind = ToolCallCompleted if slot.started_at is not None else _EVENTS.get(execution.status, ToolCallCompleted)
        if events.due(kind):
            await events.emit(kind(events.head(self.state, step_number=slot.step), execution))

    async def _settle_suspended(self, slot: CallSlot, pending: PendingCall) -> None:
        slot.settled, self._waiting, events = True, self._waiting or slot.key, self.settings.events
        if slot.started and events.due(ToolCallSuspended):
            await events.emit(ToolCallSuspended(events.head(self.state, step_number=slot.step), pending))

    async def _pass_after(self, slot: CallSlot) -> None:
        spec = slot.tool.spec if slot.tool is not None else None
        before = AfterToolUse(self.state, _execution(slot), spec)
        try:
            point = await self.settings.interceptor.after_tool_use(before)
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
        except AgentLoopError as error:
            withheld = slot.end(ToolStatus.FAILED, ErrorInfo.of(error), self._now())
            slot.execution = evolve(withheld, may_have_run=slot.started)
            self.failure = self.failure or error
        else:
            self.state = point.state
            slot.execution = evolve(point.execution, id=slot.id, key=slot.key)

    # --- outcomes without a run ---------------------------------------------------------------------------------

    def _block(self, slot: CallSlot, reason: str) -> None:
        slot.execution = slot.end(ToolStatus.BLOCKED, ErrorInfo("ToolBlocked", reason), self._now())
        if self.stop_on_block:
            self._halted = f"not run, because the call {slot.call.name!r} before it was blocked: {reason}"

    def _answer(self, slot: CallSlot, answered: Answer) -> None:
        slot.execution = slot.succeed(ToolResult(answered.value), self._now())

    def _cancel(self, slot: CallSlot, reason: str) -> None:
        slot.execution = slot.end(ToolStatus.CANCELLED, ErrorInfo("Cancelled", reason), self._now())

    def _fail(self, slot: CallSlot, error: Exception) -> None:
        """Keep a call from running, or from counting as run, because an interceptor failed (law 11)."""
        ended = slot.end(ToolStatus.FAILED, ErrorInfo.of(error), self._now())
        slot.execution = evolve(ended, may_have_run=slot.started)
        self.failure = self.failure or error
        name = error.interceptor if isinstance(error, InterceptorFailed) else type(error).__name__
        self._halted = f"not run, because an interceptor failed: {name}"

    def _now(self) -> datetime:
        return self.settings.scope.clock.now()


_CHANGED_SINCE = "the call was decided about, and then changed by an interceptor; it needs a decision as it is now"

_EVENTS: Mapping[ToolStatus, type[ToolCallBlocked | ToolCallRejected]] = {
    ToolStatus.BLOCKED: ToolCallBlocked,
    ToolStatus.REJECTED: ToolCallRejected,
}


def _tool(slot: CallSlot) -> ReadyTool:
    assert slot.tool is not None  # noqa: S101  # only slots whose tool was found are admitted
    return slot.tool


def _execution(slot: CallSlot) -> ToolExecution:
    assert slot.execution is not None  # noqa: S101  # only slots with an outcome are settled
    return slot.execution
