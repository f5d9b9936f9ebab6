"""What a tool raised, as data."""

from __future__ import annotations

from agentloop.errors import NotJson, ToolError, ToolFailed
from agentloop.values.tool_execution import ErrorInfo

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
