"""A batch of calls on its way: admitted in call order, run side by side, settled in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from attrs import define, evolve, field

from agentloop.errors import AgentLoopError
from agentloop.events.tool_events import ToolCallBlocked, ToolCallCompleted, ToolCallRejected, ToolCallSuspended
from agentloop.executors.batch_outcomes import BatchOutcomes
from agentloop.executors.call_slot import CallSlot
from agentloop.executors.kept_intent import keep_intent
from agentloop.executors.recorded_run import RecordedRun
from agentloop.executors.tool_run import ToolRun
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Answer, Approve, Deny, Edit
from agentloop.values.pending_call import PendingCall
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.stop import AgentStop
from agentloop.values.tool_execution import ErrorInfo, ToolExecution, ToolStatus
from agentloop.values.tool_executions import ToolExecutions
from agentloop.values.verdict import Block, Suspend


@define(eq=False)
class Batch(BatchOutcomes):
    """The calls of one `execute_tools`. It lives as long as that call and is seen by nobody else.

    Attributes:
        state: the state as the interceptors have made it so far.
        failure: the first error of an interceptor or of the journal; nothing is admitted after it.
        slots: one per call, in call order.
        toolbox: the tools.
        max_concurrency: how many calls run at once; None for all.
    """

    state: AgentState = field(kw_only=True)
    failure: Exception | None = field(default=None, init=False)
    slots: list[CallSlot] = field(kw_only=True)
    toolbox: Toolbox = field(kw_only=True)
    max_concurrency: int | None = field(default=None, kw_only=True)
    _group: list[CallSlot] = field(factory=list)
    _group_keys: set[str] = field(factory=set)
    _exclusive: bool = False
    _waiting: str = ""

    async def run(self) -> None:
        """Execute all calls; afterwards every slot has an outcome or waits."""
        for slot in self.slots:
            if self.halted and slot.recorded is None:
                slot.cancel(self.halted, self.now())
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
                slot.cancel(reason, self.now())

    # --- admit --------------------------------------------------------------------------------------------------

    async def _admit(self, slot: CallSlot) -> None:
        if isinstance(slot.decision, Edit):
            slot.call = slot.call.with_arguments(slot.decision.arguments)
        if slot.recorded is not None:  # what has begun goes on as it began
            slot.call, slot.id = slot.recorded.intent.call, slot.recorded.intent.id
        if not slot.find(self.toolbox, self.now()):
            if slot.recorded is not None:
                slot.execution = None
            self._group.append(slot)
            return
        if self._has_to_wait(slot):
            await self._flush()
            if self._waiting and slot.decision is None and not slot.has_begun:
                slot.pending = PendingCall(slot.key, slot.call, f"runs after {self._waiting}", waits_for=self._waiting)
                return
        self._join_group(slot)
        await self._ask_interceptors(slot)

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
            self.block(slot, slot.decision.reason or "denied")
        elif isinstance(slot.decision, Answer):
            self.settle_with(slot, slot.decision)
        elif "before_tool_use" in self.settings.interceptor.points:
            await self._pass_before(slot)

    async def _pass_before(self, slot: CallSlot) -> None:
        tool = _tool(slot)
        decision = slot.decision or (Approve() if slot.has_begun else None)  # what has begun was let run
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
            await self.refuse(slot, str(stop))
            return
        except AgentLoopError as error:
            self.fail(slot, error)
            return
        self.state = point.state
        if slot.recorded is not None:
            await keep_intent(slot, point, self.settings)
            return
        if changed := point.call != slot.call and not slot.has_begun:
            slot.call = point.call
        match point.verdict:
            case Block(reason):
                self.block(slot, reason)
            case Answer() as answered:
                self.settle_with(slot, answered)
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
        if not slot.find(self.toolbox, self.now()):
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
        run = ToolRun(slot, slot.tool, self.state, self.settings) if slot.tool is not None else None
        log = self.settings.scope.log
        recorded = RecordedRun(slot, run, self.state, self.settings, log) if log is not None else None
        try:
            await _one(recorded, run).run()
        except AgentStop as stop:
            slot.stop = stop.signal
            error = ErrorInfo("AgentStop", str(stop))
            slot.execution = slot.end(ToolStatus.CANCELLED, error, self.now())
        except Exception as error:  # noqa: BLE001  # a layer around the call failed, or a strict listener, or the journal
            self.fail(slot, error)
        if run is not None and run.suspended is not None:
            slot.suspend(run.suspended)
        if run is not None and run.stop is not None:
            slot.stop = run.stop.signal
        if slot.stop is not None:
            self.state = self.state.with_stop_signal(slot.stop)
        if recorded is not None:
            self.failure = self.failure or recorded.failure
            await self.note(slot)

    # --- settle -------------------------------------------------------------------------------------------------

    async def _settle(self, slot: CallSlot) -> None:
        if slot.settled:
            return
        if slot.is_open:  # its task was cancelled by somebody else
            slot.cancel("the call was cancelled", self.now())
        await self.note(slot)
        if slot.pending is not None:
            await self._settle_suspended(slot, slot.pending)
            return
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
            slot.fail(error, self.now())
            self.failure = self.failure or error
        else:
            self.state = point.state
            slot.execution = evolve(point.execution, id=slot.id, key=slot.key)


def _one(recorded: RecordedRun | None, run: ToolRun | None) -> RecordedRun | ToolRun:
    one = recorded or run
    assert one is not None  # noqa: S101  # without a journal, only calls whose tool was found are run
    return one


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
