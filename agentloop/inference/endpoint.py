"""The endpoint of a provider: encodes, sends, decodes and retries requests. Loaded with the first request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from attrs import evolve, frozen

from agentloop.contracts.can_infer import FailedAttempt, RetryReport
from agentloop.errors import InferenceError, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_client import HttpClient, OpenResponse
from agentloop.inference.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat, wire_format
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.policies import RetryPolicy
from agentloop.values.tool_calls import ToolCall

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

_SUCCESS = range(200, 300)


@frozen(eq=False)
class Endpoint:
    """An open endpoint of a model.

    Attributes:
        config: the model and how to reach it.
        wire_format: the encoding of requests and responses.
        http: the HTTP client.
    """

    config: LLMConfig
    wire_format: WireFormat
    http: HttpClient

    @classmethod
    def open(cls, config: LLMConfig, custom_format: WireFormat | None, client: Any) -> Self:
        """Return the endpoint for a configuration.

        Args:
            config: the model and how to reach it.
            custom_format: a wire format to use instead of the one that the configuration names.
            client: a client to use instead of new connections.

        Raises:
            ConfigurationError: when the base URL, a proxy in the environment or the name of the wire format is invalid.
        """
        return cls(config, custom_format or wire_format(config.wire_format), HttpClient(config, client))

    async def infer(
        self, request: InferenceRequest, *, jitter: Callable[[], float] | None, report: RetryReport | None
    ) -> InferenceResponse:
        """Send a request and return the response, with the configured retries and deadline.

        Args:
            request: the request.
            jitter: returns a number from 0 to 1 at each call; by default, `random.random`.
            report: called before each further attempt.

        Raises:
            InferenceError: the error of the last attempt.
        """
        encoded = self.wire_format.encode_request(request, self.config)
        work = self._with_retries(lambda: self._attempt(encoded), jitter, report)
        if self.config.deadline is None:
            return await work
        return await self._within_deadline(asyncio.get_running_loop().time() + self.config.deadline, work)

    async def stream(
        self, request: InferenceRequest, *, jitter: Callable[[], float] | None, report: RetryReport | None
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Send a request and yield deltas, then the response. An attempt that fails before its first delta is retried.

        Args:
            request: the request.
            jitter: returns a number from 0 to 1 at each call; by default, `random.random`.
            report: called before each further attempt.

        Raises:
            InferenceError: the error of the last attempt, or an error after the first delta.
        """
        encoded = self.wire_format.encode_request(request, self.config, stream=True)
        seconds = self.config.deadline
        end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        # Retries end with the first delta: after that, a consumer has seen part of the response.
        started = self._with_retries(lambda: self._start_stream(encoded), jitter, report)
        response = await (started if end is None else self._within_deadline(end, started))
        # The generator is closed explicitly below; otherwise, the event loop would finalize it in a task of its own.
        batches = response.deltas()
        try:
            async for deltas in batches if end is None else self._each_within_deadline(end, batches):
                for delta in deltas:
                    yield delta
            yield _with_original_names(response.complete, encoded.tool_names)
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        finally:
            await batches.aclose()
            await response.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def _attempt(self, encoded: EncodedRequest) -> InferenceResponse:
        try:
            raw = await self.http.post(encoded.path, encoded.headers, encoded.body)
            response = self.wire_format.decode_response(raw.status, raw.headers, raw.body)
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        return _with_original_names(response, encoded.tool_names)

    async def _start_stream(self, encoded: EncodedRequest) -> StreamedResponse:
        """Make an attempt up to the first delta."""
        try:
            opened = await self.http.open(encoded.path, encoded.headers, encoded.body)
            decoder = self.wire_format.stream_decoder(opened.headers)
            response = StreamedResponse(opened, decoder, encoded.tool_names)
            # The response is closed on any error, including cancellation, so that its connection is not leaked.
            try:
                if opened.status not in _SUCCESS:
                    raw = await opened.read()
                    self.wire_format.decode_response(raw.status, raw.headers, raw.body)  # raises the typed error
                await response.start()
            except BaseException:
                await response.aclose()
                raise
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        return response

    async def _with_retries(
        self,
        attempt: Callable[[], Awaitable[T]],
        jitter: Callable[[], float] | None,
        report: RetryReport | None,
    ) -> T:
        try:
            return await attempt()
        except InferenceError as error:
            # Checked before tenacity is imported: most failures are permanent.
            policy = self._retry_policy()
            if not is_worth_retrying(error, policy):
                raise
            first_error = error
        return await retry(first_error, attempt, policy, jitter=jitter or random.random, report=report)

    def _retry_policy(self) -> RetryPolicy:
        """Return the configured retry policy; no wait is longer than the deadline."""
        policy, deadline = self.config.retry, self.config.deadline
        # A wait beyond the deadline would be in vain, so the deadline limits the accepted `retry_after` too.
        if deadline is None or deadline >= policy.max_wait:
            return policy
        return evolve(policy, max_wait=deadline)

    async def _within_deadline(self, end: float, work: Awaitable[T]) -> T:
        """Await work, until the deadline.

        Raises:
            ProviderUnavailable: when the deadline expires.
        """
        try:
            # A timeout inside the work also raises TimeoutError; only that of the deadline is translated.
            async with asyncio.timeout_at(end) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ProviderUnavailable(
                f"no complete response from {self.config.address} within {self.config.deadline:g} seconds"
            ) from error

    async def _each_within_deadline(self, end: float, source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Yield the items of a source, until the deadline.

        Raises:
            ProviderUnavailable: when the deadline expires.
        """
        while True:
            try:
                yield await self._within_deadline(end, anext(source))
            except StopAsyncIteration:
                return

    def _redacted(self, error: InferenceError) -> InferenceError:
        for secret in self.config.secrets:
            secret.redact_error(error)
        return error


class StreamedResponse:
    """A response that is being received: batches of deltas, then the complete response.

    Args:
        response: the HTTP response, with a success status.
        decoder: decodes its body.
        tool_names: the original names of the tools that were sent under another name, by that name.
    """

    __slots__ = ("_chunks", "_complete", "_decoder", "_first_deltas", "_response", "_tool_names")

    def __init__(self, response: OpenResponse, decoder: StreamDecoder, tool_names: Mapping[str, str]) -> None:
        self._response = response
        self._decoder = decoder
        self._tool_names = tool_names
        self._chunks = response.chunks()
        self._first_deltas: list[InferenceDelta] = []
        self._complete: InferenceResponse | None = None

    async def start(self) -> None:
        """Read until the first delta, or to the end if there is none.

        Raises:
            InferenceError: for an invalid response; the request can be retried, since no delta was returned yet.
        """
        async for chunk in self._chunks:
            deltas = self._decoder.feed(chunk)
            if deltas:
                self._first_deltas = [self._with_original_name(delta) for delta in deltas]
                return
        self._complete = self._decoder.close()

    async def deltas(self) -> AsyncGenerator[list[InferenceDelta], None]:
        """Yield the deltas of each chunk as it arrives.

        Raises:
            InferenceError: for an invalid response, or an error that the provider reports.
        """
        # Without a delta, `start` has read the stream to its end.
        if not self._first_deltas:
            return
        yield self._first_deltas
        # Local names and the check of `names` keep the loop over chunks short.
        feed, names = self._decoder.feed, self._tool_names
        async for chunk in self._chunks:
            deltas = feed(chunk)
            if deltas:
                yield [self._with_original_name(delta) for delta in deltas] if names else deltas
        self._complete = self._decoder.close()

    @property
    def complete(self) -> InferenceResponse:
        """The complete response, after the last delta.

        Raises:
            ValueError: before the last delta.
        """
        if self._complete is None:
            raise ValueError("the response is not complete yet")
        return self._complete

    async def aclose(self) -> None:
        """Stop receiving the response and close it."""
        await self._chunks.aclose()
        await self._response.aclose()

    def _with_original_name(self, delta: InferenceDelta) -> InferenceDelta:
        return evolve(delta, name=self._tool_names[delta.name]) if delta.name in self._tool_names else delta


def _with_original_names(response: InferenceResponse, names: Mapping[str, str]) -> InferenceResponse:
    """Return a response in which the calls have the original names of their tools."""
    if not names:
        return response
    return response.with_parts(
        *[evolve(p, name=names[p.name]) if isinstance(p, ToolCall) and p.name in names else p for p in response.parts]
    )


# --- retries -------------------------------------------------------------------------------------------------------

_MAX_DOUBLINGS = 64
"""Limits the exponent of the backoff, which would otherwise overflow after a thousand attempts."""


def is_worth_retrying(error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether to send the same request again after this error."""
    if not isinstance(error, InferenceError) or not error.retryable or policy.max_attempts == 1:
        return False
    if not policy.matches(type(error).__name__):
        return False
    return error.retry_after is None or error.retry_after <= policy.max_wait


async def retry(
    first_error: InferenceError,
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    jitter: Callable[[], float],
    report: RetryReport | None,
) -> T:
    """Make further attempts after a first one that failed.

    Args:
        first_error: the error of the first attempt.
        attempt: makes an attempt.
        policy: the number of attempts and the waits between them.
        jitter: returns a number from 0 to 1 at each call, which spreads the retries of clients that failed together.
        report: called before each further attempt.

    Raises:
        InferenceError: the error of the last attempt.
    """
    import tenacity

    errors = [first_error]

    async def next_attempt() -> T:
        # Tenacity starts with the attempt that has already failed, so that its count and waits include it.
        if errors:
            raise errors.pop()
        return await attempt()

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, InferenceError) and error.retry_after is not None:
            return error.retry_after
        doublings = min(state.attempt_number - 1, _MAX_DOUBLINGS)
        return min(policy.initial_wait * 2.0**doublings, policy.max_wait) * (0.5 + jitter() / 2)

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if report is not None and isinstance(error, Exception):
            report(FailedAttempt(state.attempt_number, error, state.upcoming_sleep))

    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(policy.max_attempts),
        wait=wait,
        retry=tenacity.retry_if_exception(lambda error: is_worth_retrying(error, policy)),
        before_sleep=before_sleep,
        reraise=True,
    )
    return await retrying(next_attempt)
