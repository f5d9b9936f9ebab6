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
    """Responds with the lines of a script, in order.

    Each execution starts at the first line. One that is resumed, recovered or forked continues with the line after those that it
    has used: its position is the number of requests that the execution has sent to it, with failed ones. Where a driver has
    several models besides its own, each of these counts the requests to all of them.

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
        self._used: set[int] = set()
        self._position = 0

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that starts at the line after those that the execution has used."""
        bound = type(self)(*self.lines, usage=self.usage)
        # Shared, so that tests find the requests and the used lines of all executions in one place.
        bound.requests, bound._used = self.requests, self._used  # noqa: SLF001  # of this class
        bound._position = scope.inference_count  # noqa: SLF001  # of this class
        # They may have been used in another process.
        self._used.update(range(scope.inference_count))
        return bound

    def assert_complete(self) -> None:
        """Check that each line was used by an execution.

        Raises:
            AssertionError: lines were not used; the message names them.
        """
        unused = [
            f"{number}: {line!r:.200}" for number, line in enumerate(self.lines, 1) if number - 1 not in self._used
        ]
        if unused:
            listed = "\n".join(unused)
            raise AssertionError(f"{len(unused)} of {len(self.lines)} lines of the script were not used:\n{listed}")

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next response.

        Raises:
            ContractViolation: at the end of the script.
            Exception: when the line is an error.
        """
        # Advanced before the line is evaluated, so that an error is followed by the next line.
        index, self._position = self._position, self._position + 1
        self.requests.append(request)
        self._used.add(index)
        if index >= len(self.lines):
            raise ContractViolation(f"the script has {self._count}, and response {index + 1} was requested")
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
        return f"ScriptedInference({self._count})"

    @property
    def _count(self) -> str:
        return "1 line" if len(self.lines) == 1 else f"{len(self.lines)} lines"
