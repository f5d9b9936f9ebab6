"""Replays of many recorded executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import AgentLoopError, JournalError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.replay.replaying import replay
from agentloop.replay.result import Replay
from agentloop.values.frozen_dict import FrozenDict
from agentloop.values.journal_record import ExecutionHead
from agentloop.values.value import Value

LoopFor: TypeAlias = AgentLoop | Callable[[ExecutionHead], AgentLoop | None]
"""The loop that all executions are replayed with, or a function that gives it for each; None for none."""
OnProgress: TypeAlias = Callable[[int, int, Replay | None], object]
"""Is told, plain or async, after each execution: how many are done, how many there are, and what it came to."""


def _as_replays(replays: Iterable[Replay]) -> tuple[Replay, ...]:
    return tuple(replays)


def _as_reasons(reasons: Mapping[str, str]) -> Mapping[str, str]:
    return FrozenDict(reasons)


@frozen(eq=False, repr=False, kw_only=True)
class ReplaySummary(Value):
    """What the replays of many executions come to.

    Attributes:
        replays: those that were replayed, in order.
        not_replayed: the others by their ids, and why.
    """

    replays: tuple[Replay, ...] = field(default=(), converter=_as_replays)
    not_replayed: Mapping[str, str] = field(factory=dict, converter=_as_reasons)

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
