"""The place of one call in a batch while it is being executed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import define, evolve

from agentloop.errors import NotJson, ToolError, ToolFailed
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.decisions import CallSuspended, Decision, PendingCall
from agentloop.values.records import RecordedCall
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExecution, ToolResult, ToolStatus

_ERROR_CHARACTERS = 10_000


class Escaping(Exception):  # internal to this room; becomes an outcome
    """The tool raised what a task would let out of the event loop, and so end the program."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException = error


def limited_error(error: BaseException) -> ErrorInfo:
    """Describe what a tool raised, shortened where it is very long."""
    if isinstance(error, Escaping):
        error = error.error
    if isinstance(error, NotJson):
        error = ToolFailed(str(error))
    message = ErrorInfo.of(error).message
    if len(message) > _ERROR_CHARACTERS:
        message = f"{message[:_ERROR_CHARACTERS]}… ({len(message)} characters)"
    return ErrorInfo(type(error).__name__, message, error.path if isinstance(error, ToolError) else "")


@define(eq=False)
class CallState:
    """One call of a batch, from admission to settlement. It lives as long as its batch and is seen by nobody else.

    Attributes:
        step: the number of the step it belongs to.
        index: its place among the calls of its step.
        key: its idempotency key.
        id: the id of its execution, drawn in call order.
        call: the call; interceptors and decisions may replace it.
        decision: what was decided about it, when it waited.
        begun: what its tool left when it suspended the call; None when the tool has not begun before.
        recorded: what a journal knows of it, when it had begun before its execution was interrupted.
        tool: its tool, once found.
        ordering_key: calls with the same one run one after the other; empty for none.
        arguments: its arguments as the tool takes them, once valid; used by the first attempt.
        execution: its outcome, once there is one; final when `settled`.
        pending: set when it waits for a decision.
        started_at: when it began to run; None before.
        started: whether the tool was begun.
        settled: whether the interceptors have seen the outcome and the event was emitted.
        attempts: how often the tool was begun.
        task: what runs it.
        stop: the stop that its tool asked for.
        to_note: whether its end has to be written down: it has begun, as a journal knows.
    """

    step: int
    index: int
    key: str
    id: str
    call: ToolCall
    decision: Decision | None = None
    begun: PendingCall | None = None
    recorded: RecordedCall | None = None
    tool: ReadyTool | None = None
    ordering_key: str = ""
    arguments: Mapping[str, Any] | None = None
    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    started_at: datetime | None = None
    started: bool = False
    settled: bool = False
    attempts: int = 0
    task: asyncio.Task[None] | None = None
    stop: StopSignal | None = None
    to_note: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether it was let run before, so that it goes on as it began."""
        return self.begun is not None or self.recorded is not None

    def find(self, toolbox: Toolbox, at: datetime) -> bool:
        """Find its tool and make its arguments ready; say whether that could be done, and settle it where not."""
        try:
            self.tool = toolbox.ready(self.call.name)
            self.arguments = self.tool.prepared(self.call)
            self.ordering_key = self.tool.ordering_key(self.call)
        except ToolError as error:
            self.execution = self.end(ToolStatus.REJECTED, ErrorInfo.of(error), at)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the tool's own code failed before it ran
            self.execution = self.end(ToolStatus.FAILED, limited_error(error), at)
        return self.execution is None

    def block(self, reason: str, at: datetime) -> None:
        """Settle it as kept from running."""
        self.execution = self.end(ToolStatus.BLOCKED, ErrorInfo("ToolBlocked", reason), at)

    def cancel(self, reason: str, at: datetime) -> None:
        """Settle it as cancelled; one that had begun before an interruption as what is known of it."""
        recorded = self.recorded
        if recorded is None or self.started:
            self.execution = self.end(ToolStatus.CANCELLED, ErrorInfo("Cancelled", reason), at)
            return
        self.started_at = recorded.intent.at
        if recorded.execution is not None:
            self.execution, self.stop = recorded.execution, recorded.stop
            return
        self.to_note = True
        why = f"it was interrupted, and then {reason}"
        if recorded.intent.effect is Effect.EFFECT:
            self.doubt(ErrorInfo("ToolInDoubt", why), at)
        else:
            cancelled = self.end(ToolStatus.CANCELLED, ErrorInfo("Cancelled", why), at)
            self.execution = evolve(cancelled, may_have_run=recorded.intent.effect is not Effect.PURE)

    def fail(self, error: Exception, at: datetime) -> None:
        """Settle it as failed because of what is around it."""
        self.execution = evolve(self.end(ToolStatus.FAILED, ErrorInfo.of(error), at), may_have_run=self.started)

    def doubt(self, error: ErrorInfo, at: datetime) -> None:
        """Settle it as one of which nobody knows whether it has run."""
        self.execution = evolve(self.end(ToolStatus.IN_DOUBT, error, at), may_have_run=True)

    @property
    def is_open(self) -> bool:
        """Whether it still has to run."""
        return self.execution is None and self.pending is None

    def take_arguments(self) -> Mapping[str, Any]:
        """Return arguments that no other attempt has used, since a tool may change what it gets."""
        arguments, self.arguments = self.arguments, None
        if arguments is not None:
            return arguments
        assert self.tool is not None  # noqa: S101  # a slot runs only after its tool was found
        return self.tool.prepared(self.call)

    def suspend(self, suspended: CallSuspended) -> None:
        """Let the call wait, as its tool says; it has no outcome yet."""
        waits_for = next((call.key for call in suspended.inner if not call.waits_for), "")
        self.execution = None
        self.pending = PendingCall(
            self.key,
            self.call,
            suspended.reason,
            waits_for,
            begun=True,
            inner=suspended.inner,
            progress=suspended.progress,
        )

    def end(self, status: ToolStatus, error: ErrorInfo, at: datetime) -> ToolExecution:
        """Make an outcome that is not a success."""
        return ToolExecution(
            id=self.id,
            key=self.key,
            call=self.call,
            status=status,
            error=error,
            may_have_run=self.may_have_run(status),
            started_at=self.started_at or at,
            ended_at=at,
        )

    def succeed(self, result: ToolResult, at: datetime) -> ToolExecution:
        """Make an outcome that is a success."""
        return ToolExecution(
            id=self.id,
            key=self.key,
            call=self.call,
            status=ToolStatus.SUCCEEDED,
            value=result.value,
            content=result.content,
            started_at=self.started_at or at,
            ended_at=at,
        )

    def finished(self, execution: ToolExecution, at: datetime) -> ToolExecution:
        """Stamp what the layers around the call made of it: this slot's id and key, and the end."""
        return evolve(
            execution,
            id=self.id,
            key=self.key,
            may_have_run=execution.may_have_run or self.may_have_run(execution.status),
            ended_at=at,
        )

    def may_have_run(self, status: ToolStatus) -> bool:
        """Say whether an effect cannot be excluded for a call that ended like this."""
        if status is ToolStatus.SUCCEEDED or self.tool is None or self.tool.spec.effect is Effect.PURE:
            return False
        return status in _UNCERTAIN if self.started else self.begun is not None


_UNCERTAIN = frozenset({ToolStatus.TIMED_OUT, ToolStatus.CANCELLED, ToolStatus.IN_DOUBT})
