"""Puts records at the end of an execution's chain, those that come together as one group."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from attrs import define, evolve, field

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.errors import JournalError
from agentloop.journal.chain import chain_record
from agentloop.journal.redaction import masked_text
from agentloop.values.json import format_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock

REDACTED = "redacted"
"""The entry of a body in which something secret was masked."""


@define(eq=False)
class RecordWriter:
    """The one writer of an execution's records. It lives as long as the run.

    What is put while a group is being written is the next group, so that calls which begin together are written together.

    Attributes:
        journal: where the records go.
        head: what a list shows of the execution, as of the last record put.
        clock: tells when records are made.
    """

    journal: CanJournal
    head: ExecutionHead
    clock: Clock
    _queue: list[JournalRecord] = field(factory=list)
    _lasting: int = field(init=False)
    _task: asyncio.Task[None] | None = None
    _error: BaseException | None = None

    def __attrs_post_init__(self) -> None:
        self._lasting = self.head.record_count

    def put(
        self,
        kind: RecordKind,
        body: dict[str, Any],
        *,
        status: ExecutionStatus | None = None,
        step_count: int | None = None,
    ) -> None:
        """Make the next record; it lasts after the next `flush`.

        Args:
            kind: what it tells.
            body: what it tells, as plain JSON data.
            status: where the execution stands now, if that changes.
            step_count: how many steps are complete now, if that changes.
        """
        if isinstance(self.journal, CanRedactRecords):
            redacted = self.journal.redact(body)
            body = body if redacted is body else {**redacted, REDACTED: True}
        head = self.head
        record = chain_record(
            head.execution_id,
            head.record_count + 1,
            kind,
            format_json(body).decode(),
            at=self.clock.now(),
            previous_hash=head.last_hash,
        )
        self._queue.append(record)
        self.head = evolve(
            head,
            status=head.status if status is None else status,
            step_count=head.step_count if step_count is None else step_count,
            record_count=record.sequence,
            last_hash=record.hash,
            updated_at=record.at,
        )

    async def flush(self) -> None:
        """Wait until everything that was put so far lasts.

        Raises:
            JournalError: when it cannot be written; from then on nothing can.
        """
        wanted = self.head.record_count
        while self._lasting < wanted:
            if self._error is not None:
                raise self._error
            await asyncio.shield(self.flush_soon())

    def flush_soon(self) -> asyncio.Task[None]:
        """Begin to write what was put, unless something is being written; return the task that writes."""
        if self._task is None:
            self._task = asyncio.create_task(self._write(), name=f"agentloop journal {self.head.execution_id}")
        return self._task

    async def aclose(self) -> None:
        """Wait until what was put lasts, or could not be written."""
        if self._task is not None:
            await asyncio.wait((self._task,))
        if self._queue and self._error is None:
            await self.flush()

    async def _write(self) -> None:
        await asyncio.sleep(0)  # what other tasks put before their turn is over goes with it
        group, self._queue = self._queue, []
        try:
            await self.journal.append(self.head, group)
        except BaseException as error:  # noqa: BLE001  # raised by `flush` to those who wait, and to all that come after
            self._error = _as_ours(error, self.head.execution_id)
        else:
            self._lasting = group[-1].sequence
        finally:
            self._task = None


def _as_ours(error: BaseException, execution_id: str) -> BaseException:
    """Return the error that a run raises when its journal raised this one."""
    if isinstance(error, JournalError) or not isinstance(error, Exception):
        return error
    raised = JournalError(
        f"execution {execution_id} cannot be written down: its journal raised {type(error).__name__}: {error}"
    )
    raised.__cause__ = error
    return raised


_SHOWN_CHARACTERS = 200


def new_head(state: AgentState, at: datetime, journal: CanJournal) -> ExecutionHead:
    """Return what is known of an execution that begins with this state, as the journal may hold it."""
    return ExecutionHead(
        execution_id=state.execution_id,
        agent_id=state.agent_id,
        parent_agent_id=state.parent_agent_id,
        number=state.execution_count,
        status=state.status,
        step_count=state.step_count,
        input=masked_text(_input_of(state), journal)[:_SHOWN_CHARACTERS],
        started_at=at,
        updated_at=at,
    )


def _input_of(state: AgentState) -> str:
    asked = next((message for message in reversed(state.messages) if message.role == "user"), None)
    return asked.text if asked is not None else ""
