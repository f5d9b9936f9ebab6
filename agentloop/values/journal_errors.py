"""The errors of journals, which may carry the state of an execution."""

from __future__ import annotations

from agentloop.errors.kinds import AgentLoopError
from agentloop.values.state import AgentState


class JournalError(AgentLoopError):
    """A journal cannot be read or written, or a recorded execution cannot be used.

    Attributes:
        state: the last state of the execution, if the error ended one; else None. `interrupted_state` in
            `agentloop.values` also finds it in errors that were raised from this one.
    """

    state: AgentState | None = None


class UnknownExecution(JournalError):
    """No execution with this id is recorded."""


class JournalConflict(JournalError):
    """Another writer drives the execution, or has continued it, so the records do not extend its chain."""


class ExecutionClaimed(JournalConflict):
    """A live writer has claimed the execution; try again when it has ended, or has lost its claim.

    A call of a sub-agent that another process still drives interrupts the caller, which records no outcome of the call.

    Attributes:
        execution_id: the execution; empty if unknown.
    """

    def __init__(self, message: str, *, execution_id: str = "") -> None:
        super().__init__(message)
        self.execution_id = execution_id


class ClaimLost(JournalError):
    """This process lost its claim on an execution, so it cannot append to it any more; another process may drive it.

    The execution stays in progress. `loop.recover` continues it where its record ends, in any process.

    Attributes:
        execution_id: the execution; empty if unknown.
        token: the token of the lost claim; 0 if unknown.
        reason: why it was lost.
    """

    def __init__(self, message: str, *, execution_id: str = "", token: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.execution_id = execution_id
        self.token = token
        self.reason = reason


class InferenceNotRecorded(JournalError):
    """An inference has to be repeated, but calls of its step have started for an earlier response that is not recorded.

    The loop handles this error: it settles these calls and returns to the state before the step.
    """


class JournalCorrupt(JournalError):
    """A record was changed, dropped, moved or damaged.

    Attributes:
        execution_id: the execution; empty if unknown.
        sequence: the sequence number of the first wrong record; 0 if unknown.
    """

    def __init__(self, message: str, *, execution_id: str = "", sequence: int = 0) -> None:
        super().__init__(message)
        self.execution_id = execution_id
        self.sequence = sequence


class JournalFull(JournalError):
    """No space is left to write."""


class JournalBusy(JournalError):
    """Another writer held the lock of the journal for too long."""


class SchemaTooNew(JournalError):
    """A newer version of agentloop wrote the document; it is refused, never read in part.

    Attributes:
        document_version: the schema version of the document.
        supported: the newest schema version that this agentloop reads.
    """

    def __init__(self, document_version: int, supported: int) -> None:
        super().__init__(
            f"the document has schema version {document_version}, this agentloop reads up to {supported}; "
            "read it with the agentloop that wrote it, or a newer one"
        )
        self.document_version = document_version
        self.supported = supported
