"""A journal behind a network that can be cut, and executions whose drivers are cut off from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords, Claim
from agentloop.contracts.tool import Tool, ToolContext
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.durable.held_claims import HeldClaim
from agentloop.errors import JournalError, UnknownExecution
from agentloop.loop.agent_loop import AgentLoop
from agentloop.models.scripted import ScriptedInference
from agentloop.tools.decorator import tool
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolCall

# --- the network ------------------------------------------------------------------------------------------------------

_UNREACHABLE = "the storage could not reach this process"


class Outage(StrEnum):
    """What happens to requests while a network is cut."""

    REFUSED = "refused"
    """They fail at once and never reach the storage."""
    UNANSWERED = "unanswered"
    """The first append reaches the storage, but its answer is lost. Further requests are refused."""
    DELAYED = "delayed"
    """They wait, and reach the storage when the network is healed."""


class UnreliableJournal(CanJournal, CanRedactRecords):
    """A journal as one process sees it over a network that can be cut and healed.

    Args:
        journal: the storage, which other processes may use as well.

    Attributes:
        was_cut: set as soon as a request has met the outage.
    """

    def __init__(self, journal: CanJournal) -> None:
        self._journal = journal
        self._claims: list[DistantClaim] = []
        self._outage: Outage | None = None
        self._healed = asyncio.Event()
        self._appends_left: int | None = None
        self._next_outage = Outage.REFUSED
        self.was_cut: asyncio.Event = asyncio.Event()

    def cut(self, outage: Outage, *, after: int = 0) -> None:
        """Cut the network.

        Args:
            outage: what happens to requests from then on.
            after: the number of appends that still pass.
        """
        self._next_outage, self._appends_left = outage, after
        if not after:
            self._outage = outage
        self._healed.clear()

    def heal(self) -> None:
        """Heal the network; requests that were delayed reach the storage now."""
        self._outage = self._appends_left = None
        self._healed.set()

    async def expire(self, *, tells: bool) -> None:
        """Give up the claims of this process, as a storage does when it cannot reach the process.

        Args:
            tells: whether the process notices the loss at once; else only when the storage refuses its appends.
        """
        for claim in self._claims:
            await claim.storage_claim.release()
        if tells:
            for claim in self._claims:
                claim.lose(_UNREACHABLE)

    def lose(self, execution_id: str) -> None:
        """Tell this process that its claim on an execution is lost.

        Args:
            execution_id: the execution.
        """
        for claim in self._claims:
            if claim.execution_id == execution_id:
                claim.lose(_UNREACHABLE)

    @property
    def has_claims(self) -> bool:
        """Whether this process has claimed an execution."""
        return bool(self._claims)

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record with secrets masked, as the storage does."""
        return self._journal.redact(body) if isinstance(self._journal, CanRedactRecords) else body

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution, unless the network is cut."""
        assert isinstance(claim, DistantClaim)  # noqa: S101  # this object made it
        if self._appends_left == 0:
            self._outage, self._appends_left = self._next_outage, None
        elif self._appends_left is not None:
            self._appends_left -= 1
        if self._outage is Outage.UNANSWERED:
            self._outage = Outage.REFUSED
            await self._journal.append(head, records, claim.storage_claim)
            self.was_cut.set()
            raise JournalError("the connection was lost before the answer came")
        await self._pass()
        await self._journal.append(head, records, claim.storage_claim)

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        await self._pass()
        return await self._journal.read(execution_id, after=after)

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution."""
        await self._pass()
        return await self._journal.head(execution_id)

    async def list(self, **filters: Any) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first."""
        await self._pass()
        return await self._journal.list(**filters)

    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution."""
        await self._pass()
        claim = DistantClaim(await self._journal.claim(execution_id), self._pass)
        self._claims.append(claim)
        return claim

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it."""
        await self._pass()
        return await self._journal.delete(execution_id)

    async def purge(self, before: datetime) -> int:
        """Delete executions that have ended and were last updated before a time."""
        await self._pass()
        return await self._journal.purge(before)

    async def aclose(self) -> None:
        """End the claims of this process; the storage remains open."""
        await self.expire(tells=True)

    async def _pass(self) -> None:
        """Pass the network.

        Raises:
            JournalError: it is cut.
        """
        if self._outage is not None:
            self.was_cut.set()
        if self._outage is Outage.DELAYED:
            await self._healed.wait()
        elif self._outage is not None:
            raise JournalError("the connection is lost")


class DistantClaim(HeldClaim):
    """A claim in a storage behind a network."""

    def __init__(self, storage_claim: Claim, pass_network: Callable[[], Any]) -> None:
        super().__init__(storage_claim.execution_id, storage_claim.token)
        self.storage_claim: Claim = storage_claim
        self._pass_network = pass_network

    async def release(self) -> None:
        """Release the claim, unless it is lost: then the storage has given it up."""
        if not self.is_lost:
            await self._pass_network()
            await self.storage_claim.release()


# --- executions that are cut off ---------------------------------------------------------------------------------------

_EXECUTION_ID = "cut off"
_EFFECTS = {"pay": Effect.EFFECT, "note": Effect.IDEMPOTENT, "look": Effect.PURE}
_STEPS: Sequence[Sequence[str]] = (("pay", "look"), ("pay", "note", "pay"), ("note",), ("pay",))
_ENDING_SECONDS = 10.0
"""How long a driver may take to end after it was told that its claim is lost."""


@frozen
class CutOff:
    """An execution whose first driver is cut off from its journal.

    Attributes:
        after: the number of appends before the network is cut.
        outage: what happens to requests while it is cut.
        is_taken_over: whether the storage gives up the claim, and another driver continues the execution meanwhile.
        tells: whether the first driver then notices at once that its claim is lost.
    """

    after: int
    outage: Outage
    is_taken_over: bool
    tells: bool


@define
class CutOffRun:
    """What came of an execution whose first driver was cut off.

    Attributes:
        effects: how often each call had its effect, by key.
        state: the final state that the last driver returned.
        stayed: whether a driver that was told of its loss went on nevertheless.
    """

    effects: Counter[str] = field(factory=Counter)
    state: AgentState | None = None
    stayed: bool = False

    def problems(self) -> list[str]:
        """Return what is wrong: an effect that is lost or doubled, or an execution that did not end."""
        if self.state is None or self.state.status is not ExecutionStatus.COMPLETED:
            return [f"the execution did not complete: {self.state and self.state.status.value}"]
        executions = [execution for step in self.state.steps for execution in step.executions]
        expected = sum(len(names) for names in _STEPS)
        problems = ["the driver went on although its claim was lost"] if self.stayed else []
        problems += [] if len(executions) == expected else [f"{len(executions)} of {expected} calls have an outcome"]
        for execution in executions:
            count = self.effects[execution.key]
            if execution.succeeded and not count:
                problems.append(f"the call {execution.key} succeeded, and its effect is lost")
            if count > 1 and _EFFECTS[execution.name] is Effect.EFFECT:
                problems.append(f"the call {execution.key} had its effect {count} times")
        return problems


async def run_cut_off(journal: CanJournal, other: CanJournal, case: CutOff) -> CutOffRun:
    """Run an execution whose first driver is cut off, and let another driver or the same one complete it.

    Args:
        journal: the storage of the first driver.
        other: the same storage, as another process has opened it.
        case: when and how the driver is cut off.
    """
    run, network = CutOffRun(), UnreliableJournal(journal)
    network.cut(case.outage, after=case.after)
    driver = asyncio.ensure_future(_loop(network, run).execute("go", execution_id=_EXECUTION_ID))
    await _first_of(driver, network.was_cut.wait())
    if network.was_cut.is_set() and case.is_taken_over:
        await network.expire(tells=case.tells)
        if case.tells and network.has_claims:
            await _first_of(driver, asyncio.sleep(_ENDING_SECONDS))
            run.stayed = not driver.done()
        run.state = await _continue(_loop(other, run))
    network.heal()
    try:
        state = await driver
    except JournalError:
        # A driver that is cut off cannot release its claim; the storage does so in its place.
        await network.expire(tells=True)
        state = await _continue(_loop(other, run))
    run.state = run.state or state
    return run


async def _continue(loop: AgentLoop) -> AgentState:
    try:
        return await loop.recover(_EXECUTION_ID)
    except UnknownExecution:  # it was cut off before its start was stored
        return await loop.execute("go", execution_id=_EXECUTION_ID)


async def _first_of(driver: asyncio.Future[AgentState], other: Any) -> None:
    waiting = asyncio.ensure_future(other)
    await asyncio.wait((driver, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _loop(journal: CanJournal, run: CutOffRun) -> AgentLoop:
    script = [
        [ToolCall(f"{step}.{place}", name, "{}") for place, name in enumerate(names)]
        for step, names in enumerate(_STEPS)
    ]
    tools = [_counting(name, effect, run.effects) for name, effect in _EFFECTS.items()]
    return AgentLoop(ToolCallingDriver(ScriptedInference(*script, "done")), tools, journal=journal)


def _counting(name: str, effect: Effect, effects: Counter[str]) -> Tool:
    @tool(name=name, effect=effect)
    async def count(context: ToolContext) -> str:
        """Count how often the call has its effect."""
        await asyncio.sleep(0)  # so that the network can be cut before the effect, and after it
        effects[context.idempotency_key] += 1
        await asyncio.sleep(0)
        return "done"

    return count
