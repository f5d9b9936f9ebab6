"""A model with scripted responses, for tests and demonstrations."""

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
    iter_deltas,
)
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall

ScriptLine: TypeAlias = (
    InferenceResponse
    | str
    | ToolCall
    | Sequence[str | ToolCall]
    | Exception
    | Callable[[InferenceRequest], InferenceResponse | str]
)
"""One response: an `InferenceResponse`, a text, a call, texts and calls, an error to raise, or a function of the request."""


_DEFAULT_USAGE = Usage(10, 5, 0, 0, 0)


class ScriptedInference(CanInfer, CanAcceptExecutionScope):
    """Responds with the lines of a script, in order; each execution starts at the first line.

    Args:
        *lines: the responses.
        usage: the token usage of responses that are not given as `InferenceResponse`.

    Attributes:
        requests: all requests so far, of all executions.
    """

    def __init__(self, *lines: ScriptLine, usage: Usage = _DEFAULT_USAGE) -> None:
        self.lines = lines
        self.usage = usage
        self.requests: list[InferenceRequest] = []
        self._position = 0

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # the script needs no resources
        """Return a copy that starts at the first line."""
        copy = type(self)(*self.lines, usage=self.usage)
        # The list is shared, so that tests find the requests of all executions in one place.
        copy.requests = self.requests
        return copy

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next response.

        Raises:
            ContractViolation: at the end of the script.
            Exception: when the line is an error.
        """
        # Advanced before the line is evaluated, so that an error is followed by the next line.
        index, self._position = self._position, self._position + 1
        self.requests.append(request)
        if index >= len(self.lines):
            raise ContractViolation(f"the script has {len(self.lines)} lines, and response {index + 1} was requested")
        line = self.lines[index]
        if isinstance(line, Exception):
            raise line
        result = line(request) if callable(line) else line
        return result if isinstance(result, InferenceResponse) else self._response(result, index)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Yield the next response as deltas, word by word, then the complete response.

        Raises:
            ContractViolation: at the end of the script.
            Exception: when the line is an error.
        """
        response = await self.infer(request)
        for delta in iter_deltas(response):
            yield delta
        yield response

    def _response(self, line: str | ToolCall | Sequence[str | ToolCall], index: int) -> InferenceResponse:
        items = [line] if isinstance(line, str | ToolCall) else line
        parts = [Text(item) if isinstance(item, str) else item for item in items]
        has_calls = any(isinstance(part, ToolCall) for part in parts)
        finish_reason = FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP
        return InferenceResponse(tuple(parts), finish_reason, self.usage, model="scripted", id=f"scripted-{index + 1}")

    def __repr__(self) -> str:
        return f"ScriptedInference({len(self.lines)} lines)"
