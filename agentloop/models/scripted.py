"""Models with scripted responses, or with those of a function, for tests and demonstrations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Self, TypeAlias, TypeGuard

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation, InvalidParameter
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

ResponseLike: TypeAlias = InferenceResponse | str | ToolCall | Sequence[str | ToolCall]
"""An `InferenceResponse`, or the parts that one is made of: a text, a call, or texts and calls."""
ScriptLine: TypeAlias = ResponseLike | Exception | Callable[[InferenceRequest], InferenceResponse | str]
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
        return _response(result, self.usage, model="scripted", id=f"scripted-{index + 1}")

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

    def __repr__(self) -> str:
        return f"ScriptedInference({self._count})"

    @property
    def _count(self) -> str:
        return "1 line" if len(self.lines) == 1 else f"{len(self.lines)} lines"


class FunctionInference(CanInfer):
    """Responds with what a function makes of each request, for tests and for models without an API.

    The function decides by the request alone, so that a resumed execution and one that runs at the same time get the same answers.

        def answer(request: InferenceRequest) -> str:
            return f"You said: {request.messages[-1].text}"

        loop = AgentLoop.for_model(FunctionInference(answer))

    Args:
        function: a plain or async function of the request. It returns an `InferenceResponse`, a text, a call, or a sequence of texts
            and calls; what it raises is an error of the model.
        usage: the token usage of responses that are not given as `InferenceResponse`.

    Raises:
        InvalidParameter: `function` cannot be called.
    """

    def __init__(
        self,
        function: Callable[[InferenceRequest], ResponseLike | Awaitable[ResponseLike]],
        *,
        usage: Usage = _DEFAULT_USAGE,
    ) -> None:
        if not callable(function):
            raise InvalidParameter(
                f"FunctionInference takes a function of the request, not {type(function).__name__}; for fixed answers, write "
                "ScriptedInference(…)"
            )
        self.function = function
        self.usage = usage

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the response that the function makes.

        Raises:
            ContractViolation: the function returns anything else.
            Exception: whatever the function raises.
        """
        made = self.function(request)
        answer: object = await made if isawaitable(made) else made
        if not _is_response_like(answer):
            raise ContractViolation(
                f"{self!r} returned {answer!r:.100}; its function returns an InferenceResponse, a text, a ToolCall, or a sequence of "
                "texts and calls"
            )
        return _response(answer, self.usage, model="function")

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Yield the response as deltas, word by word, then the complete response.

        Raises:
            ContractViolation: the function returns anything else.
            Exception: whatever the function raises.
        """
        response = await self.infer(request)
        for delta in iter_deltas(response):
            yield delta
        yield response

    def __repr__(self) -> str:
        return f"FunctionInference({getattr(self.function, '__name__', type(self.function).__name__)})"


def _is_response_like(value: object) -> TypeGuard[ResponseLike]:
    if isinstance(value, InferenceResponse | str | ToolCall):
        return True
    return isinstance(value, Sequence) and all(isinstance(item, str | ToolCall) for item in value)


def _response(line: ResponseLike, usage: Usage, *, model: str, id: str = "") -> InferenceResponse:  # noqa: A002  # names the field
    if isinstance(line, InferenceResponse):
        return line
    items = [line] if isinstance(line, str | ToolCall) else line
    parts = [Text(item) if isinstance(item, str) else item for item in items]
    has_calls = any(isinstance(part, ToolCall) for part in parts)
    finish_reason = FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP
    return InferenceResponse(tuple(parts), finish_reason, usage, model=model, id=id)
