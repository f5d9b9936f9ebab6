"""A model that follows a script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Self, TypeAlias

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Usage,
    told_in_pieces,
)
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall

Line: TypeAlias = (
    InferenceResponse
    | str
    | ToolCall
    | Sequence[str | ToolCall]
    | Exception
    | Callable[[InferenceRequest], InferenceResponse | str]
)
"""One answer: a response; a text; a call; texts and calls; an error to raise; or a function of the request."""


_USAGE = Usage(10, 5, 0, 0, 0)


class ScriptedInference(CanInfer, CanAcceptExecutionScope):
    """Answers with the lines of a script, in order; each execution of a loop begins at the first line.

    It stands where a model would: in tests, in demonstrations, wherever no model can be asked.

    Args:
        *lines: the answers.
        usage: the tokens to report for answers that are not whole responses.

    Attributes:
        requests: everything that was asked so far, by any execution.
    """

    def __init__(self, *lines: Line, usage: Usage = _USAGE) -> None:
        self.lines = lines
        self.usage = usage
        self.requests: list[InferenceRequest] = []
        self._told = 0

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # only the beginning is needed
        """Return a copy that stands at the first line."""
        copied = type(self)(*self.lines, usage=self.usage)
        copied.requests = self.requests
        return copied

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Give the next answer.

        Raises:
            ContractViolation: when the script is at its end.
            Exception: when the line is an error.
        """
        number, self._told = self._told, self._told + 1
        self.requests.append(request)
        if number >= len(self.lines):
            raise ContractViolation(f"the script has {len(self.lines)} lines, and answer {number + 1} was asked for")
        line = self.lines[number]
        if isinstance(line, Exception):
            raise line
        made = line(request) if callable(line) else line
        return made if isinstance(made, InferenceResponse) else self._response(made, number)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Give the next answer in pieces: text by words.

        Raises:
            ContractViolation: when the script is at its end.
            Exception: when the line is an error.
        """
        response = await self.infer(request)
        for delta in told_in_pieces(response):
            yield delta
        yield response

    def _response(self, line: str | ToolCall | Sequence[str | ToolCall], number: int) -> InferenceResponse:
        items = [line] if isinstance(line, str | ToolCall) else line
        parts = [Text(item) if isinstance(item, str) else item for item in items]
        has_calls = any(isinstance(part, ToolCall) for part in parts)
        finish = FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP
        return InferenceResponse(tuple(parts), finish, self.usage, model="scripted", id=f"scripted-{number + 1}")

    def __repr__(self) -> str:
        return f"ScriptedInference({len(self.lines)} lines)"
