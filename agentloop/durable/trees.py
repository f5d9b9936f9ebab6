"""Trees of executions: an execution and those of the agents that serve its calls, which are deleted together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalConflict, JournalError
from agentloop.values.records import ExecutionHead, caller_of, callers_of
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionTree(Value):
    """An execution that serves no recorded call, and all executions below it.

    Attributes:
        root: the execution.
        below: the executions of the agents that serve its calls, and of those that serve theirs; ordered by id.
        needed_by: the id of a fork that has not ended and needs the records of this tree; empty if there is none.
    """

    root: ExecutionHead
    below: tuple[ExecutionHead, ...] = field(default=(), converter=tuple[ExecutionHead, ...])
    needed_by: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all its executions, that of the root first."""
        return (self.root.execution_id, *[head.execution_id for head in self.below])

    def is_expired(self, before: datetime) -> bool:
        """Return whether its root has ended, all of it was last updated before a time, and no unfinished fork needs it.

        An agent cannot continue after its caller has ended, so that the status of the root is that of the tree.
        """
        updated_at = max([self.root.updated_at, *[head.updated_at for head in self.below]])
        return self.root.status.is_terminal and updated_at < before and not self.needed_by


def group_trees(heads: Iterable[ExecutionHead]) -> list[ExecutionTree]:
    """Return the trees of all executions of a journal, in the order of their roots.

    Args:
        heads: the heads of all executions.
    """
    by_id = {head.execution_id: head for head in heads}
    below: dict[str, list[ExecutionHead]] = {}
    for execution_id, head in sorted(by_id.items()):
        below.setdefault(root_of(execution_id, by_id.__contains__), []).append(head)
    forks = [(head.execution_id, head.forked_from) for head in by_id.values() if not head.status.is_terminal]
    needed = sources_of_forks(forks, lambda source: by_id[source].forked_from if source in by_id else "")
    return [
        ExecutionTree(
            root=head, below=[each for each in below[root] if each is not head], needed_by=needed.get(root, "")
        )
        for root, head in by_id.items()
        if root in below
    ]


async def list_below(journal: CanJournal, execution_id: str) -> Sequence[ExecutionHead]:
    """Return the executions of the agents that serve the calls of an execution, and of those that serve theirs."""
    heads = await journal.list(prefix=f"{execution_id}/")
    return [head for head in heads if execution_id in callers_of(head.execution_id)]


def root_of(execution_id: str, is_recorded: Callable[[str], bool]) -> str:
    """Return the id of the topmost recorded execution above an execution; its own id if it serves no recorded call."""
    recorded = [caller for caller in callers_of(execution_id) if is_recorded(caller)]
    return recorded[-1] if recorded else execution_id


def sources_of_forks(forks: Iterable[tuple[str, str]], source_of: Callable[[str], str]) -> Mapping[str, str]:
    """Return the ids of the executions whose records unfinished forks need, each with the id of such a fork.

    A fork of a fork reads the calls of both originals. Forks of agents that serve a fork are part of it.

    Args:
        forks: the executions that have not ended, each with the execution from which it was forked, empty if from none.
        source_of: returns the id of the execution from which another one was forked; empty if from none.
    """
    needed: dict[str, str] = {}
    sources: set[str] = set()
    for fork_id, original in forks:
        source = "" if caller_of(fork_id) else original
        while source and source not in sources:
            sources.add(source)
            needed |= dict.fromkeys((source, *callers_of(source)), fork_id)
            source = source_of(source)
    return needed


def check_deletable(execution_id: str, root: str, needed_by: str) -> None:
    """Check that an execution can be deleted with all executions below it.

    Args:
        execution_id: the execution.
        root: the root of its tree.
        needed_by: the id of an unfinished fork that needs the records of the tree; empty if there is none.

    Raises:
        JournalConflict: it serves a call of another recorded execution, or an unfinished fork needs it.
    """
    if root != execution_id:
        raise JournalConflict(
            f"execution {execution_id} serves a call of execution {root}, with which it is deleted; delete {root}"
        )
    if needed_by:
        raise JournalConflict(
            f"execution {execution_id} is the original of the fork {needed_by}, which has not ended and reuses its effects; "
            f"delete or finish {needed_by} first"
        )


INTERRUPTED: Final = "interrupted"
"""The effective status of an execution in progress that no live process runs."""


async def effective_status(journal: CanJournal, head: ExecutionHead) -> str:
    """Return the status of an execution; `interrupted` instead of `in_progress` when no live process runs it."""
    if head.status is not ExecutionStatus.IN_PROGRESS:
        return head.status.value
    try:
        unclaimed = await journal.list(agent_id=head.agent_id, status=head.status, unclaimed=True)
    # Without permission to read the claims, it is not known whether there is a writer.
    except JournalError:
        return head.status.value
    if any(each.execution_id == head.execution_id for each in unclaimed):
        return INTERRUPTED
    current = await journal.head(head.execution_id)  # it may have ended between the two reads
    return (current or head).status.value
