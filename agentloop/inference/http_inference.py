"""A model behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer, CanNameModel, CanReportRetries, FailedAttempt, RetryReport
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.inference.config import LLMConfig
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from agentloop.inference.endpoint import Endpoint
    from agentloop.inference.wire_formats.wire_format import WireFormat


def _nobody(_: FailedAttempt) -> None:
    """Take reports that nobody wants."""


@frozen(eq=False)
class HttpInference(CanInfer, CanAcceptExecutionScope, CanReportRetries, CanNameModel):
    """Asks a model over HTTP, and tries again when the provider cannot be reached or asks to wait.

    Connections are kept for the length of an execution, or for as long as its loop is entered (`async with loop`).

    Attributes:
        config: the model and how to reach it.
        wire_format: how requests and responses are spelled; that of the configuration when left out.
        client: an `httpx.AsyncClient`, or any client of that shape, that stays yours to close; the configuration's headers
            and limits go before its own. It belongs to one event loop.
        jitter: a number from 0 to 1 each time it is called, by which waits between attempts are spread; `random.random` when
            left out.
    """

    config: LLMConfig
    wire_format: WireFormat | None = field(default=None, kw_only=True, repr=False)
    client: Any = field(default=None, kw_only=True, repr=False)
    jitter: Callable[[], float] | None = field(default=None, kw_only=True, repr=False)
    _endpoint: Endpoint | None = field(default=None, kw_only=True, repr=False)
    _report: RetryReport = field(default=_nobody, kw_only=True, repr=False)

    @property
    def model_name(self) -> str:
        """The model that the configuration has asked."""
        model = self.config.options.model
        return self.config.name if model is None else self.config.with_settings(model=model).name

    @property
    def wire_format_name(self) -> str:
        """The name of the wire format that requests are spelled in."""
        return self.config.wire_format if self.wire_format is None else self.wire_format.name

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose connections the scope keeps and closes."""
        key = (HttpInference, id(self.config), id(self.wire_format), id(self.client))  # the endpoint keeps them alive
        return evolve(self, endpoint=scope.shared.open(key, self._opened, lambda endpoint: endpoint.aclose()))

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that tells of failed attempts before it repeats them."""
        return evolve(self, report=report)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model and wait for its whole answer.

        Raises:
            AuthenticationError: when the key is refused.
            RateLimited: when the provider still asks to slow down after the last attempt.
            ContextLengthExceeded: when the conversation is too long for the model.
            BadRequest: when the provider refuses the request.
            ProviderUnavailable: when it cannot be reached or fails, still after the last attempt, or at the deadline.
            InvalidResponse: when what it answers is not an answer.
        """
        if self._endpoint is not None:
            return await self._endpoint.ask(request, jitter=self.jitter, report=self._report)
        endpoint = self._opened()
        try:
            return await endpoint.ask(request, jitter=self.jitter, report=self._report)
        finally:
            await endpoint.aclose()

    def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Ask the model and take its answer while it is written: deltas, then the whole response.

        Raises:
            InferenceError: as `infer` does; after the first delta nothing is tried again.
        """
        if self._endpoint is None:
            return self._stream_alone(request)
        return self._endpoint.stream(request, jitter=self.jitter, report=self._report)

    async def _stream_alone(
        self, request: InferenceRequest
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        endpoint = self._opened()
        pieces = endpoint.stream(request, jitter=self.jitter, report=self._report)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()
            await endpoint.aclose()

    def _opened(self) -> Endpoint:
        """Open the way to the model; the HTTP stack is loaded with the first one."""
        from agentloop.inference.endpoint import Endpoint
        from agentloop.inference.http_client import HttpClient
        from agentloop.inference.wire_formats.wire_format import wire_format

        spelling = self.wire_format or wire_format(self.config.wire_format)
        return Endpoint(self.config, spelling, HttpClient(self.config, self.client))
