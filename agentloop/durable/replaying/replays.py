"""Replays: run today's code against recorded executions, and report the first difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.durable.chain import verify_records
from agentloop.durable.recovery import ReplayContext, run_recorded
from agentloop.durable.replaying.comparison import Mask
from agentloop.durable.replaying.divergence import Divergence
from agentloop.durable.replaying.guard import BlockedOperation, Guard, SideEffectBlocked, guarded
from agentloop.durable.replaying.timeline import Timeline
from agentloop.durable.replaying.verifier import ReplayEnded, ReplayVerifier
from agentloop.errors import AgentLoopError, JournalError, UnknownExecution
from agentloop.events.bus import EventBus
from agentloop.executors.forwarding import innermost_executor
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.binding import composition_of
from agentloop.values.batches import apply_decisions
from agentloop.values.json import as_frozen_dict
from agentloop.values.records import ExecutionHead
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.system_prompts import render_system_prompt
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class Replay(Value):
    """The result of a replay.

    Attributes:
        execution_id: the id of the execution.
        divergence: the first place where today's code behaves differently; None when there is none.
        is_complete: whether the replay reached the end of an execution that has ended or is suspended.
        end_reason: why nothing more could be compared although nothing differs: the record ends, or the execution was stopped
            from outside; empty when everything was compared.
        steps: the number of steps that are equal.
        inferences: the number of inferences that were compared.
        calls: the number of tool calls that were compared.
        skipped: the names of the interceptors that were left out because they declare side effects.
        blocked: the operations with side effects that were blocked.
        changes: how the composition of the loop has changed, whether or not it makes a difference.
    """

    execution_id: str
    divergence: Divergence | None = None
    is_complete: bool = False
    end_reason: str = ""
    steps: int = 0
    inferences: int = 0
    calls: int = 0
    skipped: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    blocked: tuple[BlockedOperation, ...] = field(default=(), converter=tuple[BlockedOperation, ...])
    changes: tuple[str, ...] = field(default=(), converter=tuple[str, ...])

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as the record goes."""
        return self.divergence is None

    def __str__(self) -> str:
        compared = f"{self.steps} steps, {self.inferences} inferences, {self.calls} calls"
        if self.divergence is not None:
            return f"{self.execution_id}: diverges after {compared}: {self.divergence}"
        return f"{self.execution_id}: equal over {compared}{f'; {self.end_reason}' if self.end_reason else ''}"

    def explain(self) -> str:
        """Return a report of several lines."""
        lines = [str(self)] if self.divergence is None else [self.execution_id, self.divergence.explain()]
        lines += [f"  left out because of its side effects: {name}" for name in self.skipped]
        if self.divergence is None:
            lines += [f"  the loop has changed: {change}" for change in self.changes]
        return "\n".join(lines)


async def replay(journal: CanJournal, execution_id: str, loop: AgentLoop, *, dependencies: Any = None) -> Replay:
    """Run today's code against a recorded execution, without side effects, and return the first difference.

    No model is called and no tool runs: each request and each call is compared with the recorded one, and gets the recorded
    result. Driver, compiler and interceptors run, except for the layers around inferences and calls, which the recorded results
    have passed already. Ids, times, and the order in which concurrent calls end are not compared. Interceptors that declare
    side effects are left out; a side effect of any other code is blocked and reported. The listeners of the loop receive no
    events.

    Args:
        journal: where the execution is recorded; it is only read.
        execution_id: the id of the execution; one that was interrupted or is still running is compared as far as it is recorded.
        loop: today's code.
        dependencies: as for `AgentLoop.execute`, for interceptors that use them.

    Raises:
        UnknownExecution: no execution with this id is recorded.
        JournalCorrupt: the records are damaged.
    """
    records = verify_records(await journal.read(execution_id), execution_id)
    if not records:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded in {journal!r}")
    mask: Mask | None = journal.redact if isinstance(journal, CanRedactRecords) else None
    timeline, guard = Timeline(records), Guard()
    log = ReplayVerifier(timeline, guard, mask)
    run = _ReplayRun(timeline, loop, log, dependencies)
    with guarded(guard):
        failure = await run.run()
    return run.result(guard, failure)


@frozen(eq=False)
class _ReplayRun:
    """One replay while it runs."""

    timeline: Timeline
    loop: AgentLoop
    log: ReplayVerifier
    dependencies: Any

    async def run(self) -> Exception | None:
        """Run until something differs or the record ends; return an error that the recorded run did not have."""
        obstacle = _obstacle(self.loop)
        if obstacle:
            self.log.end_reason = obstacle
            return None
        try:
            with suppress(ReplayEnded, SideEffectBlocked):
                await self._run()
        except Exception as error:  # noqa: BLE001  # an error of today's code is a result of the replay
            return None if self.log.divergence is not None or self.log.end_reason else error
        return None

    def result(self, guard: Guard, failure: Exception | None) -> Replay:
        """Return the result of the replay."""
        log, changes = self.log, tuple(_changes(self.timeline.origin.get("loop"), self._composition))
        divergence = log.final_divergence()
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
            is_complete=log.is_complete and divergence is None,
            end_reason=log.end_reason if divergence is None else "",
            steps=log.steps,
            inferences=log.inferences,
            calls=log.calls,
            skipped=log.skipped,
            blocked=tuple(guard.blocked),
            changes=changes,
        )

    @property
    def _composition(self) -> Mapping[str, Any]:
        return composition_of(self.loop, self.timeline.start)

    async def _run(self) -> None:
        state = self._initial_state()
        if state.status is not ExecutionStatus.SUSPENDED:
            state = await self._run_from(state, resumed=False, at_start=state.step_count == 0)
        else:
            await self.log.start(state)
        while (decisions := self.log.resumed_with()) is not None:
            resumed = apply_decisions(state, decisions) if decisions else self.log.resumed_state
            state = await self._run_from(
                resumed.with_execution_resumed(self.log.clock.now()), resumed=True, at_start=False
            )

    async def _run_from(self, state: AgentState, *, resumed: bool, at_start: bool) -> AgentState:
        log = self.log
        context = ReplayContext(
            log=log,
            clock=log.clock,
            ids=log.ids,
            events=EventBus(),
            inboxes=log.inboxes,
            dependencies=self.dependencies,
        )
        states: AsyncIterator[AgentState] = run_recorded(self.loop, state, context, resumed=resumed, at_start=at_start)
        async for latest in states:
            state = latest
        return state

    def _initial_state(self) -> AgentState:
        """Return the state with which the execution would start today: with the prompt and output form of today's loop."""
        start, composition = self.timeline.start, self.timeline.origin.get("loop", {})
        if "fork" in self.timeline.origin:
            return start
        if composition.get("own_prompt") and start.step_count == 0:
            start = start.with_system_prompt(render_system_prompt(self.loop.system_prompt, start))
        output = self.loop.output_form
        if output is not None and start.step_count == 0:
            # The extensions stay as recorded.
            return start.with_context(start.context.with_response_format(output.response_format))
        return start.with_response_format(None) if composition.get("typed") and start.step_count == 0 else start


def _obstacle(loop: AgentLoop) -> str:
    """Return why a loop cannot be replayed; empty when it can."""
    executor = innermost_executor(loop.executor)
    if isinstance(executor, ToolExecutor):
        return ""
    return f"its executor, {type(executor).__name__}, does not read recorded calls: it would run tools"


def _changes(recorded: Any, today: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the composition of a loop has changed."""
    if not isinstance(recorded, Mapping):
        return
    for name in ("driver", "mode", "compiler", "executor", "tools", "interceptors"):
        then, now = recorded.get(name), today.get(name)
        if then == now:
            continue
        if isinstance(then, list) and isinstance(now, list):
            yield f"{name}: {_join(then)} → {_join(now)}"
        else:
            yield f"{name}: {then} → {now}"


def _join(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _reason(divergence: Divergence, recorded: Any, today: Mapping[str, Any]) -> str:
    """Explain a difference that no interceptor wrote by interceptors that are missing or reordered."""
    if divergence.interceptor or not isinstance(recorded, Mapping) or not divergence.differences:
        return divergence.reason
    then, now = list(recorded.get("interceptors", ())), list(today["interceptors"])
    gone = [name for name in then if then.count(name) > now.count(name)]
    if gone:
        return f"{_join(list(dict.fromkeys(gone)))} was part of the recorded loop, and is missing now"
    if divergence.reason or then == now:
        return divergence.reason
    return "the order of the interceptors has changed" if sorted(then) == sorted(now) else divergence.reason


LoopFor: TypeAlias = AgentLoop | Callable[[ExecutionHead], AgentLoop | None]
"""The loop for all executions, or a function that returns the loop for each; None when there is none."""
OnProgress: TypeAlias = Callable[[int, int, Replay | None], object]
"""Called after each execution, plain or async: with how many are done, how many there are, and the result, if there is one."""


@frozen(eq=False, repr=False, kw_only=True)
class ReplaySummary(Value):
    """The results of replaying many executions.

    Attributes:
        replays: the results, in order.
        not_replayed: the ids of executions that could not be replayed, with the reasons.
    """

    replays: tuple[Replay, ...] = field(default=(), converter=tuple[Replay, ...])
    not_replayed: Mapping[str, str] = field(factory=dict, converter=as_frozen_dict)

    @property
    def equal(self) -> tuple[Replay, ...]:
        """The replays without a difference."""
        return tuple([result for result in self.replays if result.is_equal])

    @property
    def diverged(self) -> tuple[Replay, ...]:
        """The replays with a difference."""
        return tuple([result for result in self.replays if not result.is_equal])

    @property
    def places(self) -> Mapping[str, int]:
        """How many replays first differ at each place, most frequent first."""
        divergences = [result.divergence for result in self.replays if result.divergence is not None]
        return dict(Counter(divergence.place for divergence in divergences).most_common())

    def __str__(self) -> str:
        lines = [
            f"{len(self.equal)} equal, {len(self.diverged)} differ, {len(self.not_replayed)} could not be replayed"
        ]
        lines += [f"  {count} at {place}" for place, count in self.places.items()]
        lines += [f"  {result}" for result in self.diverged]
        lines += [f"  {execution_id}: not replayed: {reason}" for execution_id, reason in self.not_replayed.items()]
        return "\n".join(lines)


async def replay_all(
    journal: CanJournal,
    loop: LoopFor,
    *,
    executions: Iterable[str] | None = None,
    on_progress: OnProgress | None = None,
    dependencies: Any = None,
) -> ReplaySummary:
    """Replay many executions, one after another.

    Args:
        journal: where they are recorded; it is only read.
        loop: today's code, or a function from the head of an execution to its loop. A single loop is used only for executions
            that are not those of sub-agents.
        executions: the ids; None for all recorded executions, oldest first.
        on_progress: called after each execution.
        dependencies: as for `replay`.
    """
    heads = await _heads(journal, executions)
    replays: list[Replay] = []
    not_replayed: dict[str, str] = {}
    for done, (execution_id, head) in enumerate(heads.items(), 1):
        result = await _replay_one(journal, execution_id, head, loop, dependencies)
        if isinstance(result, Replay):
            replays.append(result)
        else:
            not_replayed[execution_id] = result
        if on_progress is not None:
            reported = on_progress(done, len(heads), result if isinstance(result, Replay) else None)
            if isawaitable(reported):
                await reported
    return ReplaySummary(replays=replays, not_replayed=not_replayed)


async def _heads(journal: CanJournal, executions: Iterable[str] | None) -> dict[str, ExecutionHead | None]:
    if executions is None:
        return {head.execution_id: head for head in reversed(await journal.list())}
    return {execution_id: await journal.head(execution_id) for execution_id in executions}


async def _replay_one(
    journal: CanJournal, execution_id: str, head: ExecutionHead | None, loop: LoopFor, dependencies: Any
) -> Replay | str:
    if head is None:
        return "it is not recorded"
    if isinstance(loop, AgentLoop):
        if head.parent_agent_id is not None:
            return "it is the execution of a sub-agent; pass a function that returns the loop of each execution"
        chosen: AgentLoop | None = loop
    else:
        chosen = loop(head)
    if chosen is None:
        return "there is no loop for it"
    try:
        return await replay(journal, execution_id, chosen, dependencies=dependencies)
    except (JournalError, AgentLoopError) as error:
        return f"{type(error).__name__}: {error}"
