"""Errors that carry the work done before a batch, a step or an execution was interrupted.

An error that interrupts a batch or a step leaves as the `cause` of a carrier: `raise BatchInterrupted(executions, error) from
error`. A cancellation has to stay an `asyncio.CancelledError`, since `asyncio.timeout` compares the class; it is raised from
its carrier: `raise cancelled from BatchInterrupted(executions)`. `find_in` finds the carrier in both forms, and also behind
errors that were raised from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from agentloop.errors.kinds import AgentLoopError, ToolError
from agentloop.values.batches import ToolExecutions
from agentloop.values.journal_errors import JournalError
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolExecution


class Interruption(AgentLoopError):
    """The base of the carriers.

    Attributes:
        cause: the error that interrupted the work; None when the carrier itself is the cause of a cancellation.
    """

    def __init__(self, cause: Exception | None) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}" if cause is not None else "cancelled")
        self.cause: Exception | None = cause

    @classmethod
    def find_in(cls, error: BaseException) -> Self | None:
        """Return the first carrier of this class among an error and what it was raised from, or None."""
        return next((link for link in _chain(error) if isinstance(link, cls)), None)


class BatchInterrupted(Interruption):
    """A batch of tool calls was interrupted; every call was settled before.

    Attributes:
        executions: the outcome of every call of the batch, and the state after it.
        cause: the error that interrupted the batch; None when the carrier itself is the cause of a cancellation.
    """

    def __init__(self, executions: ToolExecutions, cause: Exception | None = None) -> None:
        super().__init__(cause)
        self.executions: ToolExecutions = executions


class StepInterrupted(Interruption):
    """A step was interrupted.

    Attributes:
        state: the state with the part of the step that was completed.
        cause: the error that interrupted the step; None when the carrier itself is the cause of a cancellation.
    """

    def __init__(self, state: AgentState, cause: Exception | None = None) -> None:
        super().__init__(cause)
        self.state: AgentState = state


class ExecutionInterrupted(Interruption):
    """An execution was cancelled. The `asyncio.CancelledError` that leaves the loop is raised from this error.

    Attributes:
        state: the last state of the execution.
        cause: None.
    """

    def __init__(self, state: AgentState) -> None:
        super().__init__(None)
        self.state: AgentState = state


class BatchFailed(ToolError):
    """A tool failed under an executor that raises on failure: the cause of a `BatchInterrupted`.

    Attributes:
        execution: the first execution of the batch that failed.
    """

    def __init__(self, execution: ToolExecution) -> None:
        super().__init__(f"the tool {execution.name!r} {execution.status.value}: {execution.error_message}")
        self.execution: ToolExecution = execution


def interrupted_state(error: BaseException) -> AgentState | None:
    """Return the last state of an execution that ended with an `asyncio.CancelledError` or a `JournalError`.

    Args:
        error: what `AgentLoop.execute` raised, or an error raised from it, such as the `TimeoutError` of `asyncio.timeout`.

    Returns:
        The last state, or None when the error carries none.
    """
    for link in _chain(error):
        if isinstance(link, ExecutionInterrupted):
            return link.state
        if isinstance(link, JournalError) and isinstance(link.state, AgentState):
            return link.state
    return None


def cause_of(error: BaseException) -> BaseException:
    """Return the error that a carrier stands for; an error that is no carrier is returned as it is."""
    while isinstance(error, Interruption) and error.cause is not None:
        error = error.cause
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and so on, as a traceback shows them."""
    seen: set[int] = set()  # user code can create cycles by raising an error from itself
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
