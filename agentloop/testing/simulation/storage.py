"""The storage of a simulation, as one machine sees it: each request takes time, can fail, and can lose its answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from agentloop.contracts.can_journal import Claim
from agentloop.durable.held_claims import HeldClaim
from agentloop.durable.journal import Journal
from agentloop.errors import JournalError
from agentloop.values.commands import ExecutionCommand
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus

T = TypeVar("T")


class Network(Protocol):
    """What lies between a machine and the storage."""

    async def request(self, place: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a request; `place` names it."""

    async def way(self, place: str) -> None:
        """Take the time of a request that asks for nothing."""

    def claimed(self, claim: MachineClaim) -> None:
        """Note a claim of the machine."""

    def give_up(self, claim: Claim) -> None:
        """Let the storage end a claim after some time, since its release has not arrived."""

    def deleted(self, execution_id: str, left: Sequence[str]) -> None:
        """Note that an execution is deleted now, and which executions below it are left."""


class MachineJournal(Journal):
    """A journal in the storage of a simulation, for the loops of one machine.

    Args:
        store: the storage.
        network: the way to it.
    """

    def __init__(self, store: Journal, network: Network) -> None:
        super().__init__()
        self._store, self._network = store, network

    def __repr__(self) -> str:
        return f"MachineJournal({self._store!r})"

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution."""
        held = claim.storage_claim if isinstance(claim, MachineClaim) else claim
        await self._network.request("journal.append", lambda: self._store.append(head, records, held))

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        return await self._network.request("journal.read", lambda: self._store.read(execution_id, after=after))

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution."""
        return await self._network.request("journal.read", lambda: self._store.head(execution_id))

    async def list(
        self,
        *,
        agent_id: str | None = None,
        status: ExecutionStatus | Collection[ExecutionStatus] | None = None,
        prefix: str = "",
        unclaimed: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first."""

        def ask() -> Coroutine[Any, Any, Sequence[ExecutionHead]]:
            return self._store.list(
                agent_id=agent_id, status=status, prefix=prefix, unclaimed=unclaimed, after=after, limit=limit
            )

        return await self._network.request("journal.read", ask)

    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution."""
        made: list[MachineClaim] = []

        async def ask() -> MachineClaim:
            stored = await self._store.claim(execution_id)
            made.append(MachineClaim(stored, self._network))
            self._network.claimed(made[0])
            return made[0]

        try:
            return await self._network.request("journal.claim", ask)
        except BaseException:
            # The answer did not come, or nobody waits for it any more: nobody would release the claim.
            for claim in made:
                await claim.storage_claim.release()
            raise

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it."""

        async def ask() -> bool:
            was_there = await self._store.delete(execution_id)
            if was_there:
                left = await self._store.list(prefix=f"{execution_id}/")
                is_gone = await self._store.head(execution_id) is None
                self._network.deleted(execution_id, [head.execution_id for head in left] if is_gone else [])
            return was_there

        return await self._network.request("journal.delete", ask)

    async def purge(self, before: datetime) -> int:
        """Delete executions that have ended and were last updated before a time."""
        return await self._network.request("journal.delete", lambda: self._store.purge(before))

    async def post(self, command: ExecutionCommand) -> None:
        """Store a command, unless one of this id was posted before."""
        await self._network.request("journal.post", lambda: self._store.post(command))

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for these executions that are not finished."""
        return await self._network.request("journal.read", lambda: self._store.commands(execution_ids))

    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids of executions that start with a text."""
        return await self._network.request("journal.read", lambda: self._store.unfinished(prefix))

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Mark commands as finished."""
        await self._network.request("journal.post", lambda: self._store.finish(command_ids, forget=forget))

    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # a result, not an error
        """Wait until an execution has changed since the previous wait of the same caller."""
        await self._network.way("journal.wait")
        return await self._store.wait_for_change(execution_id, timeout=timeout, caller=caller)

    async def aclose(self) -> None:
        """Leave the storage open: other machines use it."""


class MachineClaim(HeldClaim):
    """A claim of a machine; one whose release is cancelled, or does not arrive, ends nevertheless, some time later.

    Args:
        storage_claim: the claim that the storage has given.
        network: the way to the storage.
    """

    def __init__(self, storage_claim: Claim, network: Network) -> None:
        super().__init__(storage_claim.execution_id, storage_claim.token)
        self.storage_claim: Claim = storage_claim
        self._network = network

    async def release(self) -> None:
        """Release the claim, unless it is lost: then the storage has given it up."""
        if self.is_lost:
            return
        try:
            await self._network.way("journal.release")
        except BaseException:
            self._network.give_up(self.storage_claim)
            raise
        await self.storage_claim.release()


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing to its end.

    Raises:
        JournalError: it waits.
    """
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    call.close()
    raise JournalError("the storage of this simulation has to answer at once")
