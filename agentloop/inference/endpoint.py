"""A provider's endpoint: encode, send, decode, and try again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from attrs import evolve, frozen

from agentloop.contracts.can_report_retries import RetryReport
from agentloop.errors import InferenceError, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_client import HttpClient
from agentloop.inference.retrying import Patience, retried, worth_retrying
from agentloop.inference.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.tool_call import ToolCall


@frozen(eq=False)
class Endpoint:
    """An open way to a model.

    Attributes:
        config: the model and how to reach it.
        wire_format: how requests and responses are spelled.
        http: the connections.
    """

    config: LLMConfig
    wire_format: WireFormat
    http: HttpClient

    async def ask(
        self, request: InferenceRequest, *, jitter: Callable[[], float] | None, report: RetryReport
    ) -> InferenceResponse:
        """Send a request, as often as it takes within the patience and the deadline of the configuration.

        Args:
            request: the request.
            jitter: a number from 0 to 1 each time it is called; `random.random` for None.
            report: told before each repetition.

        Raises:
            InferenceError: typed by what went wrong at the last attempt.
        """
        encoded = self.wire_format.encode_request(request, self.config)
        seconds = self.config.deadline
        jitter = jitter or random.random
        if seconds is None:
            return await self._asked(encoded, jitter, report)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._asked(encoded, jitter, report)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ProviderUnavailable(f"no answer from {self.config.address} within {seconds:g} seconds") from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def _asked(
        self, encoded: EncodedRequest, jitter: Callable[[], float], report: RetryReport
    ) -> InferenceResponse:
        try:
            return await self._attempt(encoded)
        except InferenceError as error:
            patience = self._patience()
            if not worth_retrying(error, patience):
                raise
            first = error
        return await retried(first, lambda: self._attempt(encoded), patience, jitter=jitter, report=report)

    def _patience(self) -> Patience:
        """Return the patience of the configuration; to wait longer than until the deadline would be in vain."""
        patience, deadline = self.config.patience, self.config.deadline
        if deadline is None or deadline >= patience.longest_wait:
            return patience
        return evolve(patience, longest_wait=deadline)

    async def _attempt(self, encoded: EncodedRequest) -> InferenceResponse:
        try:
            raw = await self.http.post(encoded.path, encoded.headers, encoded.body)
            response = self.wire_format.decode_response(raw.status, raw.headers, raw.body)
        except InferenceError as error:
            if self.config.api_key is not None:
                self.config.api_key.redact_error(error)
            raise
        return _with_own_names(response, encoded) if encoded.tool_names else response


def _with_own_names(response: InferenceResponse, encoded: EncodedRequest) -> InferenceResponse:
    """Give tools that went by another name on the wire their own names back."""
    names = encoded.tool_names
    return response.with_parts(
        *[evolve(p, name=names[p.name]) if isinstance(p, ToolCall) and p.name in names else p for p in response.parts]
    )
