"""Running today's code against a recorded execution."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_redact_records import CanRedactRecords
from agentloop.drivers.open_turns import decided
from agentloop.errors import UnknownExecution
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.journal.chain import verified
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.composition import composition_of
from agentloop.loop.guided import Guidance, guided
from agentloop.replay.comparison import Mask
from agentloop.replay.divergence import Divergence
from agentloop.replay.guard import Guard, WorldTouched, guarded
from agentloop.replay.replay_log import ReplayEnded, ReplayLog
from agentloop.replay.result import Replay
from agentloop.replay.timeline import Timeline
from agentloop.values.agent_state import AgentState
from agentloop.values.execution_state import ExecutionStatus


async def replay(journal: CanJournal, execution_id: str, loop: AgentLoop, *, dependencies: Any = None) -> Replay:
    """Run today's code against a recorded execution, without touching the world, and name the first place where they differ.

    Models and tools are not used: each inference and each call is compared with the recorded one and gets what came of that.
    Driver, compiler and interceptors do their work, but for what stands around an inference or a call, since what is recorded
    came through that. Ids, times, and the order in which concurrent calls end, are not compared. Interceptors that say that
    they touch the world are left out; one that does not say so, and is about to, is kept from it and named. Listeners of the
    loop are told nothing.

    Args:
        journal: where the execution is recorded; it is only read.
        execution_id: the execution; one that was interrupted, or has not ended, is compared as far as it went.
        loop: today's code.
        dependencies: as for `AgentLoop.execute`, for interceptors that ask for them.

    Raises:
        UnknownExecution: when no execution of this id is recorded.
        JournalCorrupt: when its records are not as they were written.
    """
    records = verified(await journal.read(execution_id), execution_id)
    if not records:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded in {journal!r}")
    mask: Mask | None = journal.redacted if isinstance(journal, CanRedactRecords) else None
    timeline, guard = Timeline(records), Guard()
    log = ReplayLog(timeline, guard, mask)
    run = _Replaying(timeline, loop, log, dependencies)
    with guarded(guard):
        failure = await run.to_its_end()
    return run.result(guard, failure)


@frozen(eq=False)
class _Replaying:
    """A replay on its way."""

    timeline: Timeline
    loop: AgentLoop
    log: ReplayLog
    dependencies: Any

    async def to_its_end(self) -> Exception | None:
        """Run until something differs or the record ends; return what went wrong where nothing did in the record."""
        why = _cannot(self.loop)
        if why:
            self.log.ended = why
            return None
        try:
            with suppress(ReplayEnded, WorldTouched):
                await self._run()
        except Exception as error:  # noqa: BLE001  # what today's code raises is what is looked for
            return None if self.log.divergence is not None or self.log.ended else error
        return None

    def result(self, guard: Guard, failure: Exception | None) -> Replay:
        """Return what it comes to."""
        log, changes = self.log, tuple(_changes(self.timeline.origin.get("loop"), self._composition))
        divergence = log.settled()
        if failure is not None and divergence is None:
            divergence = Divergence(
                step=log.step, place="error", replayed=str(failure), reason=f"{type(failure).__name__}: {failure}"
            )
        if divergence is not None:
            divergence = evolve(
                divergence,
                changes=changes,
                reason=_reason(divergence, self.timeline.origin.get("loop"), self._composition),
            )
        return Replay(
            execution_id=self.timeline.start.execution_id,
            divergence=divergence,
            complete=log.complete and divergence is None,
            ended=log.ended if divergence is None else "",
            steps=log.steps,
            inferences=log.inferences,
            calls=log.calls,
            left_out=log.left_out,
            touches=tuple(guard.touches),
            changes=changes,
        )

    @property
    def _composition(self) -> Mapping[str, Any]:
        return composition_of(self.loop, self.timeline.start)

    async def _run(self) -> None:
        state = self._begun()
        if state.status is not ExecutionStatus.SUSPENDED:
            state = await self._went(state, resumed=False, starts=state.step_count == 0)
        else:
            await self.log.begin(state)
        while (decisions := self.log.resumed_with()) is not None:
            going = decided(state, decisions) if decisions else self.log.resumed_state
            state = await self._went(going.with_execution_resumed(self.log.clock.now()), resumed=True, starts=False)

    async def _went(self, state: AgentState, *, resumed: bool, starts: bool) -> AgentState:
        log = self.log
        guidance = Guidance(
            log=log,
            clock=log.clock,
            ids=log.ids,
            events=EventBus(),
            inboxes=log.inboxes,
            dependencies=self.dependencies,
        )
        states: AsyncIterator[AgentState] = guided(self.loop, state, guidance, resumed=resumed, starts=starts)
        async for made in states:
            state = made
        return state

    def _begun(self) -> AgentState:
        """Return the state with which the execution would begin today: with the instructions and the form of this loop."""
        start, told = self.timeline.start, self.timeline.origin.get("loop", {})
        if "fork" in self.timeline.origin:
            return start
        if told.get("own_prompt") and start.step_count == 0:
            start = start.with_system_prompt(self.loop.system_prompt)
        output = self.loop.output_form
        if output is not None and start.step_count == 0:
            return start.with_response_format(output.response_format)
        return start.with_response_format(None) if told.get("typed") and start.step_count == 0 else start


def _cannot(loop: AgentLoop) -> str:
    """Say why a loop cannot be replayed; empty when it can."""
    if isinstance(loop.executor, ToolExecutor):
        return ""
    return f"its executor, {type(loop.executor).__name__}, is none that asks the record: it would run tools"


def _changes(recorded: Any, today: Mapping[str, Any]) -> Iterator[str]:
    """Say how a loop is composed otherwise than it was."""
    if not isinstance(recorded, Mapping):
        return
    for name in ("driver", "mode", "compiler", "executor", "tools", "interceptors"):
        then, now = recorded.get(name), today.get(name)
        if then == now:
            continue
        if isinstance(then, list) and isinstance(now, list):
            yield f"{name}: {_listed(then)} → {_listed(now)}"
        else:
            yield f"{name}: {then} → {now}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _reason(divergence: Divergence, recorded: Any, today: Mapping[str, Any]) -> str:
    """Say of a difference in the state that nobody of today wrote, which interceptors are gone or stand elsewhere."""
    if divergence.interceptor or not isinstance(recorded, Mapping) or not divergence.differences:
        return divergence.reason
    then, now = list(recorded.get("interceptors", ())), list(today["interceptors"])
    gone = [name for name in then if then.count(name) > now.count(name)]
    if gone:
        return f"{_listed(list(dict.fromkeys(gone)))} was there when it was recorded, and is not now"
    if divergence.reason or then == now:
        return divergence.reason
    return "the interceptors stand in another order" if sorted(then) == sorted(now) else divergence.reason
