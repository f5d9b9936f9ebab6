"""Running today's code against a recorded execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.errors import AgentLoopError, JournalError, UnknownExecution
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.journal.chain import verify_records
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.binding import composition_of
from agentloop.loop.recovery import ReplayContext, run_recorded
from agentloop.replay.comparison import Mask
from agentloop.replay.divergence import Divergence
from agentloop.replay.guard import Guard, Touch, WorldTouched, guarded
from agentloop.replay.timeline import Timeline
from agentloop.replay.verifier import ReplayEnded, ReplayVerifier
from agentloop.values.batches import apply_decisions
from agentloop.values.json import as_frozen_dict
from agentloop.values.records import ExecutionHead
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class Replay(Value):
    """What a replay comes to.

    Attributes:
        execution_id: the execution.
        divergence: the first place where today's code does something else; None when there is none.
        complete: whether the replay came to the end of an execution that has ended, or to where it is suspended.
        ended: why nothing more could be compared, although nothing differs: the record ends, or the execution was stopped from
            outside; empty when all was compared.
        steps: how many steps were compared and are equal.
        inferences: how many inferences were compared.
        calls: how many tool calls were.
        left_out: interceptors that were left out, because they say that they touch the world.
        touches: what was about to touch the world, and was kept from it.
        changes: how the loop is composed otherwise than it was, whether anything differs by it or not.
    """

    execution_id: str
    divergence: Divergence | None = None
    complete: bool = False
    ended: str = ""
    steps: int = 0
    inferences: int = 0
    calls: int = 0
    left_out: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    touches: tuple[Touch, ...] = field(default=(), converter=tuple[Touch, ...])
    changes: tuple[str, ...] = field(default=(), converter=tuple[str, ...])

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as could be compared."""
        return self.divergence is None

    def __str__(self) -> str:
        compared = f"{self.steps} steps, {self.inferences} inferences, {self.calls} calls"
        if self.divergence is not None:
            return f"{self.execution_id}: diverges after {compared}: {self.divergence}"
        return f"{self.execution_id}: equal over {compared}{f'; {self.ended}' if self.ended else ''}"

    def explain(self) -> str:
        """Return an account of several lines, for a person to read."""
        lines = [str(self)] if self.divergence is None else [self.execution_id, self.divergence.explain()]
        lines += [f"  left out, since it touches the world: {name}" for name in self.left_out]
        if self.divergence is None:
            lines += [f"  the loop has changed: {change}" for change in self.changes]
        return "\n".join(lines)


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
    records = verify_records(await journal.read(execution_id), execution_id)
    if not records:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded in {journal!r}")
    mask: Mask | None = journal.redact if isinstance(journal, CanRedactRecords) else None
    timeline, guard = Timeline(records), Guard()
    log = ReplayVerifier(timeline, guard, mask)
    run = _Replaying(timeline, loop, log, dependencies)
    with guarded(guard):
        failure = await run.to_its_end()
    return run.result(guard, failure)


@frozen(eq=False)
class _Replaying:
    """A replay on its way."""

    timeline: Timeline
    loop: AgentLoop
    log: ReplayVerifier
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
            state = await self._went(state, resumed=False, at_start=state.step_count == 0)
        else:
            await self.log.start(state)
        while (decisions := self.log.resumed_with()) is not None:
            going = apply_decisions(state, decisions) if decisions else self.log.resumed_state
            state = await self._went(going.with_execution_resumed(self.log.clock.now()), resumed=True, at_start=False)

    async def _went(self, state: AgentState, *, resumed: bool, at_start: bool) -> AgentState:
        log = self.log
        guidance = ReplayContext(
            log=log,
            clock=log.clock,
            ids=log.ids,
            events=EventBus(),
            inboxes=log.inboxes,
            dependencies=self.dependencies,
        )
        states: AsyncIterator[AgentState] = run_recorded(self.loop, state, guidance, resumed=resumed, at_start=at_start)
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


LoopFor: TypeAlias = AgentLoop | Callable[[ExecutionHead], AgentLoop | None]
"""The loop that all executions are replayed with, or a function that gives it for each; None for none."""
OnProgress: TypeAlias = Callable[[int, int, Replay | None], object]
"""Is told, plain or async, after each execution: how many are done, how many there are, and what it came to."""


@frozen(eq=False, repr=False, kw_only=True)
class ReplaySummary(Value):
    """What the replays of many executions come to.

    Attributes:
        replays: those that were replayed, in order.
        not_replayed: the others by their ids, and why.
    """

    replays: tuple[Replay, ...] = field(default=(), converter=tuple[Replay, ...])
    not_replayed: Mapping[str, str] = field(factory=dict, converter=as_frozen_dict)

    @property
    def equal(self) -> tuple[Replay, ...]:
        """Those in which nothing differs, as far as could be compared."""
        return tuple([one for one in self.replays if one.is_equal])

    @property
    def diverged(self) -> tuple[Replay, ...]:
        """Those in which something differs."""
        return tuple([one for one in self.replays if not one.is_equal])

    @property
    def places(self) -> Mapping[str, int]:
        """How many first differ at each place, the most frequent first."""
        return dict(Counter(one.divergence.place for one in self.replays if one.divergence is not None).most_common())

    def __str__(self) -> str:
        lines = [
            f"{len(self.equal)} equal, {len(self.diverged)} differ, {len(self.not_replayed)} could not be replayed"
        ]
        lines += [f"  {count} at {place}" for place, count in self.places.items()]
        lines += [f"  {one}" for one in self.diverged]
        lines += [f"  {execution_id}: not replayed: {why}" for execution_id, why in self.not_replayed.items()]
        return "\n".join(lines)


async def replay_all(
    journal: CanJournal,
    loop: LoopFor,
    *,
    executions: Iterable[str] | None = None,
    on_progress: OnProgress | None = None,
    dependencies: Any = None,
) -> ReplaySummary:
    """Replay many executions, one after the other.

    Args:
        journal: where they are recorded; it is only read.
        loop: today's code, or a function that gives it for what is known of an execution. A single loop is used for the
            executions that are nobody's sub-agent.
        executions: their ids; all that are recorded, the oldest first, when left out.
        on_progress: is told after each.
        dependencies: as for `replay`.
    """
    heads = await _heads(journal, executions)
    replays: list[Replay] = []
    not_replayed: dict[str, str] = {}
    for done, (execution_id, head) in enumerate(heads.items(), 1):
        made = await _one(journal, execution_id, head, loop, dependencies)
        if isinstance(made, Replay):
            replays.append(made)
        else:
            not_replayed[execution_id] = made
        if on_progress is not None:
            told = on_progress(done, len(heads), made if isinstance(made, Replay) else None)
            if isawaitable(told):
                await told
    return ReplaySummary(replays=replays, not_replayed=not_replayed)


async def _heads(journal: CanJournal, executions: Iterable[str] | None) -> dict[str, ExecutionHead | None]:
    if executions is None:
        return {head.execution_id: head for head in reversed(await journal.list())}
    return {execution_id: await journal.head(execution_id) for execution_id in executions}


async def _one(
    journal: CanJournal, execution_id: str, head: ExecutionHead | None, loop: LoopFor, dependencies: Any
) -> Replay | str:
    if head is None:
        return "it is not recorded"
    if isinstance(loop, AgentLoop):
        if head.parent_agent_id is not None:
            return "it is a sub-agent's; give a function that returns the loop of each execution"
        chosen: AgentLoop | None = loop
    else:
        chosen = loop(head)
    if chosen is None:
        return "there is no loop for it"
    try:
        return await replay(journal, execution_id, chosen, dependencies=dependencies)
    except (JournalError, AgentLoopError) as error:
        return f"{type(error).__name__}: {error}"
