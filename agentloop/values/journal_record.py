"""One entry of a journal, and what a list of executions shows of each."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from attrs import field, frozen

from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.value import Value

RECORD_SCHEMA_VERSION = 1
"""The version of the bodies of records that are written now."""

FIRST_HASH = ""
"""What stands in the first record of an execution in place of the hash of the one before."""


class RecordKind(StrEnum):
    """What a record tells."""

    EXECUTION_STARTED = "execution_started"
    EXECUTION_RECOVERED = "execution_recovered"
    EXECUTION_RESUMED = "execution_resumed"
    EXECUTION_SUSPENDED = "execution_suspended"
    EXECUTION_ENDED = "execution_ended"
    MESSAGES_SENT = "messages_sent"
    MESSAGES_TAKEN = "messages_taken"
    INFERENCE_RECORDED = "inference_recorded"
    INFERENCE_FAILED = "inference_failed"
    CALL_INTENT = "call_intent"
    CALL_OUTCOME = "call_outcome"
    CALL_SUSPENDED = "call_suspended"
    DECISION_USED = "decision_used"
    STEP_COMPLETED = "step_completed"


@frozen(eq=False, repr=False, kw_only=True)
class JournalRecord(Value):
    """One entry of a journal.

    Attributes:
        execution_id: the execution that it is of.
        sequence: its place among the records of the execution, from 1, without gaps.
        kind: what it tells.
        at: when it was made, by the clock of the loop.
        schema_version: the version of the form of `body`.
        body: what it tells, as the text of a JSON object.
        previous_hash: the hash of the record before it; empty for the first.
        hash: SHA-256 over all of the above, in hexadecimal; `agentloop.journal.chained` makes it.
    """

    execution_id: str
    sequence: int
    kind: RecordKind = field(converter=RecordKind)
    at: datetime
    schema_version: int = RECORD_SCHEMA_VERSION
    body: str
    previous_hash: str
    hash: str


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionHead(Value):
    """What a journal knows of an execution without reading its records.

    Attributes:
        execution_id: the id of the execution.
        agent_id: the agent that it is of.
        parent_agent_id: the agent whose tool call it serves; None for one of its own.
        number: the how manieth execution of its agent it is, from 1.
        status: where it stands; `in_progress` also when the process that drove it has died.
        step_count: how many steps are complete.
        record_count: how many records there are; the sequence number of the last.
        last_hash: the hash of the last record.
        input: the beginning of the text that it began with, for people to know it by.
        forked_from: the execution that it was forked from; empty for others.
        started_at: when it began.
        updated_at: when the last record was made.
    """

    execution_id: str
    agent_id: str
    parent_agent_id: str | None = None
    number: int
    status: ExecutionStatus = field(converter=ExecutionStatus)
    step_count: int = 0
    record_count: int = 0
    last_hash: str = FIRST_HASH
    input: str = ""
    forked_from: str = ""
    started_at: datetime
    updated_at: datetime
