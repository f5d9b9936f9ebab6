"""A model behind HTTP."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_report_retries import CanReportRetries, FailedAttempt, RetryReport
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import InferenceError, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_client import HttpClient
from agentloop.inference.retrying import retried, worth_retrying
from agentloop.inference.wire_format import EncodedRequest, WireFormat, wire_format
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.tool_call import ToolCall


def _nobody(_: FailedAttempt) -> None:
    """Take reports that nobody wants."""


@frozen(eq=False)
class HttpInference(CanInfer, CanAcceptExecutionScope, CanReportRetries):
    """Asks a model over HTTP, and tries again when the provider cannot be reached or asks to wait.

    Connections are kept for the length of an execution, or for as long as its loop is entered (`async with loop`).

    Args:
        config: the model and how to reach it.
        wire_format: how requests and responses are spelled; that of the configuration when left out.
        client: an `httpx.AsyncClient`, or any client of that shape, that stays yours to close. It belongs to one event
            loop.
        jitter: a number from 0 to 1 each time it is called, by which waits between attempts are spread.
    """

    config: LLMConfig
    wire_format: WireFormat = field(kw_only=True, repr=lambda made: made.name)
    client: Any = field(default=None, kw_only=True, repr=False)
    jitter: Callable[[], float] = field(default=random.random, kw_only=True, repr=False)
    _identity: object = field(factory=object, kw_only=True, repr=False)
    _http: HttpClient | None = field(default=None, kw_only=True, repr=False)
    _report: RetryReport = field(default=_nobody, kw_only=True, repr=False)

    @wire_format.default
    def _wire_format_of_config(self) -> WireFormat:
        return wire_format(self.config.wire_format)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose connections the scope keeps and closes."""
        key = (HttpInference, self._identity)
        return evolve(self, http=scope.shared.open(key, self._opened, HttpClient.aclose))

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
        encoded = self.wire_format.encode_request(request, self.config)
        if self._http is not None:
            return await self._within_deadline(self._http, encoded)
        http = self._opened()
        try:
            return await self._within_deadline(http, encoded)
        finally:
            await http.aclose()

    def _opened(self) -> HttpClient:
        return HttpClient(self.config, self.client)

    async def _within_deadline(self, http: HttpClient, encoded: EncodedRequest) -> InferenceResponse:
        seconds = self.config.deadline
        if seconds is None:
            return await self._asked(http, encoded)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._asked(http, encoded)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ProviderUnavailable(f"no answer from {self.config.base_url} within {seconds:g} seconds") from error

    async def _asked(self, http: HttpClient, encoded: EncodedRequest) -> InferenceResponse:
        try:
            return await self._attempt(http, encoded)
        except InferenceError as error:
            if not worth_retrying(error, self.config.patience):
                raise
            first = error
        return await retried(
            first,
            lambda: self._attempt(http, encoded),
            self.config.patience,
            jitter=self.jitter,
            report=self._report,
        )

    async def _attempt(self, http: HttpClient, encoded: EncodedRequest) -> InferenceResponse:
        headers = {**_HEADERS, **encoded.headers, **self.config.auth_headers()}
        try:
            raw = await http.post(encoded.path, headers, encoded.body)
            response = self.wire_format.decode_response(raw.status, raw.headers, raw.body)
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        return _with_own_names(response, encoded) if encoded.tool_names else response

    def _redacted(self, error: InferenceError) -> InferenceError:
        """Take the key out of what a provider told."""
        key = self.config.api_key
        if key is not None and error.args:
            error.args = (key.redact(str(error.args[0])), *error.args[1:])
        return error


_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "agentloop",
}


def _with_own_names(response: InferenceResponse, encoded: EncodedRequest) -> InferenceResponse:
    """Give tools that went by another name on the wire their own names back."""
    names = encoded.tool_names
    return response.with_parts(
        *[evolve(p, name=names[p.name]) if isinstance(p, ToolCall) and p.name in names else p for p in response.parts]
    )
