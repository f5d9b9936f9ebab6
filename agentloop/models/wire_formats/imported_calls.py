"""Tool executions for imported conversations, which contain calls and results but no executions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from attrs import frozen

from agentloop.errors import InvalidDocument
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus

UnansweredCalls: TypeAlias = Literal["refuse", "cancel"]
"""What to do with a call without a result: refuse the conversation, or import the call as cancelled."""

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The default time of imported executions, since conversations do not contain times."""


@frozen
class ImportedCalls:
    """Creates the executions of imported calls.

    Attributes:
        unanswered: what to do with a call without a result.
        at: the start and end time of all executions.
    """

    unanswered: UnansweredCalls
    at: datetime

    def create_execution(self, call: ToolCall, path: str, outcome: Mapping[str, Any]) -> ToolExecution:
        """Return the execution of a call with this outcome.

        Args:
            call: the call.
            path: where the call is in the imported conversation.
            outcome: the fields of `ToolExecution` that the result determines.
        """
        # Paths are unique within a conversation, and so are the keys.
        key = f"imported/{path}"
        return ToolExecution.of(call, key=key, id=key, at=self.at, **outcome)

    def create_cancelled(self, call: ToolCall, path: str) -> ToolExecution:
        """Return the cancelled execution of a call without a result.

        Raises:
            InvalidDocument: when such calls are refused.
        """
        if self.unanswered == "refuse":
            raise InvalidDocument(
                f"{path} calls {call.name!r}, and no result for {call.id!r} follows; add one, or pass unanswered='cancel'"
            )
        error = ErrorInfo("Cancelled", "the conversation was imported without a result for this call")
        # The tool may have run without its result being recorded.
        return self.create_execution(call, path, {"status": ToolStatus.CANCELLED, "error": error, "may_have_run": True})
