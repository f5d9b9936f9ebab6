"""The writer of an execution's records, which appends concurrent records in groups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from attrs import define, field

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_journal import CanJournal, CanRedactRecords, Claim
from agentloop.durable.chain import chain_record
from agentloop.durable.redaction import mask_text
from agentloop.errors import ForeignCancellation, JournalBusy, JournalError, JournalFull
from agentloop.values.json import format_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock
from agentloop.values.value import copier

REDACTED = "redacted"
"""The key that marks the body of a record in which a secret was masked."""

_INPUT_LENGTH = 200
"""The number of characters of the input that a head shows."""

BUSY_SECONDS = 60.0
"""How long an execution tries to write while its journal raises `JournalBusy` or `JournalFull`, in seconds."""
_RETRY_SECONDS = 0.1
"""The time between these attempts, in seconds."""
_MAX_DELAY = 0.1
"""The time, in seconds, after which a record is written for those who follow the execution, if nothing has to be durable before."""
_LOG = logging.getLogger("agentloop.journal")
_WAITS = "execution %s waits for its journal, and keeps in memory what it has to record: %s: %s"
_copy_head = copier(ExecutionHead, "status", "step_count", "record_count", "last_hash", "updated_at")


class CanAppendRecords(Protocol):
    """A journal, as the writer sees it."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records, as `CanJournal.append` does."""


@define(eq=False)
class RecordWriter:
    """The only writer of an execution's records. It lives as long as the run.

    Records that are put while a group is being written form the next group, so calls that start together are written together.
    While somebody else locks the journal, or no space is left, records are held in memory and written as soon as that is possible.

    Attributes:
        journal: the journal to append to.
        head: the summary of the execution, including records that are not written yet.
        clock: the source of the records' times.
        claim: the claim on the execution.
    """

    journal: CanAppendRecords
    head: ExecutionHead
    clock: Clock
    claim: Claim
    _queue: list[JournalRecord] = field(factory=list)
    _task_name: str = field(init=False)
    _durable_count: int = field(init=False)
    _task: asyncio.Task[None] | None = None
    _waiting: list[asyncio.Future[None]] = field(factory=list)
    _error: BaseException | None = None
    _timer: asyncio.TimerHandle | None = None

    def __attrs_post_init__(self) -> None:
        self._task_name = f"agentloop journal {self.head.execution_id}"
        self._durable_count = self.head.record_count

    def put(
        self,
        kind: RecordKind,
        body: dict[str, Any],
        *,
        status: ExecutionStatus | None = None,
        step_count: int | None = None,
    ) -> bool:
        """Add a record to the queue; it is durable after the next `flush`. Return whether it is stored unmasked.

        Args:
            kind: the kind of the record.
            body: its content, as plain JSON data.
            status: the new status of the execution, if it changes.
            step_count: the new number of complete steps, if it changes.
        """
        # Before the record is hashed: the hash covers what is stored.
        redacted = self.redact(body)
        is_unmasked = redacted is body
        body = body if is_unmasked else {**redacted, REDACTED: True}
        self.put_redacted(kind, body, status=status, step_count=step_count)
        return is_unmasked

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body as the journal stores it, with secrets masked; the same object when it holds none."""
        return self.journal.redact(body) if isinstance(self.journal, CanRedactRecords) else body

    def put_redacted(
        self,
        kind: RecordKind,
        body: dict[str, Any] | str,
        *,
        status: ExecutionStatus | None = None,
        step_count: int | None = None,
    ) -> None:
        """Add a record in whose body, as JSON or as its text, no secret is left; otherwise as `put`."""
        head = self.head
        record = chain_record(
            head.execution_id,
            head.record_count + 1,
            kind,
            body if isinstance(body, str) else format_json(body).decode(),
            at=self.clock.now(),
            previous_hash=head.last_hash,
        )
        self._queue.append(record)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MAX_DELAY, self._write_late)
        self.head = _copy_head(
            head,
            head.status if status is None else status,
            head.step_count if step_count is None else step_count,
            record.sequence,
            record.hash,
            record.at,
        )

    async def flush(self) -> None:
        """Wait until all records that were put so far are durable.

        Raises:
            JournalError: they cannot be written; nothing can be written after that.
        """
        target = self.head.record_count
        while self._durable_count < target:
            if self._error is not None:
                raise self._error
            self.flush_soon()
            # The task is not awaited itself: a caller that is cancelled must not cancel the write of the others' records, and a
            # write that `fail` cancels is no cancellation of the caller.
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def flush_soon(self) -> None:
        """Start writing the queue, unless a write is running."""
        if self._task is None:
            self._task = asyncio.create_task(self._write(), name=self._task_name)
            # Also when it is cancelled before it has begun.
            self._task.add_done_callback(self._wake_all)

    def _write_late(self) -> None:
        self._timer = None
        if self._queue and self._error is None:
            self.flush_soon()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def aclose(self) -> None:
        """Wait until all records are durable, or could not be written."""
        self._stop_timer()
        if self._task is not None:
            await asyncio.wait((self._task,))
        # Records may be left by a caller that was cancelled before its flush.
        if self._queue and self._error is None:
            await self.flush()

    def fail(self, error: Exception) -> None:
        """Write nothing more; current and later callers of `flush` get the error, also those whose append does not return."""
        if self._error is None:
            self._error = error
        if self._task is not None:
            self._task.cancel()
        self._wake_all()

    def _wake_all(self, _: object = None) -> None:
        """Let all who wait look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _write(self) -> None:
        try:
            if self._error is None and self._queue:
                await self._append_queue()
        except BaseException as error:  # noqa: BLE001  # `flush` raises it to current and later callers
            if self._error is None:
                if isinstance(error, asyncio.CancelledError) and not is_task_cancelled():
                    error = ForeignCancellation(f"the journal {type(self.journal).__name__}", error)
                self._error = _as_journal_error(error, self.head.execution_id)
        finally:
            self._task = None
            self._wake_all()

    async def _append_queue(self) -> None:
        loop = asyncio.get_running_loop()
        deadline, has_told = loop.time() + BUSY_SECONDS, False
        while True:
            # In each attempt with what was put during the one before.
            head, count = self.head, len(self._queue)
            try:
                await self.journal.append(head, tuple(self._queue), self.claim)
            except (JournalBusy, JournalFull) as error:
                if loop.time() >= deadline:
                    raise
                if not has_told:
                    has_told = True
                    _LOG.warning(_WAITS, head.execution_id, type(error).__name__, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                del self._queue[:count]
                self._durable_count = head.record_count
                return


def _as_journal_error(error: BaseException, execution_id: str) -> BaseException:
    """Return the error that a run raises when its journal raised this one."""
    if isinstance(error, JournalError) or not isinstance(error, Exception):
        return error
    raised = JournalError(
        f"execution {execution_id} cannot be recorded: its journal raised {type(error).__name__}: {error}"
    )
    raised.__cause__ = error
    return raised


def create_head(state: AgentState, at: datetime, journal: CanJournal) -> ExecutionHead:
    """Return the summary of an execution that starts with a state, with secrets masked as the journal masks them."""
    return ExecutionHead(
        execution_id=state.execution_id,
        agent_id=state.agent_id,
        parent_agent_id=state.parent_agent_id,
        number=state.execution_count,
        status=state.status,
        step_count=state.step_count,
        # Masked before it is cut: a secret that the cut divides would not be recognized.
        input=mask_text(_input_of(state), journal)[:_INPUT_LENGTH],
        started_at=at,
        updated_at=at,
        agent_name=state.agent_name,
    )


def _input_of(state: AgentState) -> str:
    """Return the text of the last user message."""
    question = next((message for message in reversed(state.messages) if message.role == "user"), None)
    return question.text if question is not None else ""
