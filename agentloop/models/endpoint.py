"""The endpoint of a provider: encodes, sends, decodes and retries requests. Loaded with the first request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

from attrs import define, evolve, field, frozen

from agentloop._shielding import compute_in_thread
from agentloop.contracts.can_infer import DelayReport, FailedAttempt, OmissionReport, RetryReport
from agentloop.contracts.execution_scope import Resources
from agentloop.errors import AuthenticationError, InferenceError, RateLimited
from agentloop.models.config import LLMConfig
from agentloop.models.connections import close_idle_connections
from agentloop.models.http_client import HttpClient, OpenResponse, RawResponse, TransferLimits
from agentloop.models.keys import fetch_key
from agentloop.models.model_capabilities import published_capabilities
from agentloop.models.model_limits import UNLIMITED, ModelGate, Permit, model_gate
from agentloop.models.tool_gate import PassedStream, PassedTools, ToolGate
from agentloop.models.tool_limits import tool_limits
from agentloop.models.wire_formats.fields import model_of
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat, wire_format
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.estimates import RequestSize
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ToolChoice
from agentloop.values.json import format_json
from agentloop.values.policies import RetryPolicy
from agentloop.values.secrets import Secret
from agentloop.values.tool_calls import ToolCall, ToolSpec

T = TypeVar("T")

_SUCCESS = range(200, 300)
_LONG_TOOLS = 50_000
"""The bytes of the parameters of all tools from which on requests are encoded in a thread."""
_LONG_BODY = 65_536
"""The bytes of a body from which on it is decoded in a thread."""
_SLICE = 200
"""The deltas after which other tasks have a turn: many may have arrived at once."""
_UNAUTHORIZED = 401
_NOT_FOUND = 404


@frozen(eq=False)
class InferenceTerms:
    """How the attempts of one inference are repeated, measured and reported.

    Attributes:
        jitter: returns a number from 0 to 1 at each call, which spreads the retries of clients that failed together; by
            default, `random.random`.
        report: called before each further attempt.
        delay_report: called when the request has to wait for the limits of the model.
        size: measures requests that extend each other; None for a request of its own.
        encoder: encodes requests that extend each other; None for a request of its own.
        gate: holds requests that extend each other to what the API accepts in tools; None for a request of its own.
        omission_report: called with each tool that is left out.
    """

    jitter: Callable[[], float] | None = None
    report: RetryReport | None = None
    delay_report: DelayReport | None = None
    size: RequestSize | None = None
    encoder: WireFormat | None = None
    gate: ToolGate | None = None
    omission_report: OmissionReport | None = None


@frozen(eq=False)
class Endpoint:
    """An open endpoint of a model.

    Attributes:
        config: the model and how to reach it.
        wire_format: the encoding of requests and responses.
        http: the HTTP client.
        limits: the limits on each response.
    """

    config: LLMConfig
    wire_format: WireFormat
    http: HttpClient
    limits: TransferLimits

    @classmethod
    def open(
        cls, config: LLMConfig, custom_format: WireFormat | None, client: Any, bounds: Bounds = DEFAULT_BOUNDS
    ) -> Self:
        """Return the endpoint for a configuration.

        Args:
            config: the model and how to reach it.
            custom_format: a wire format to use instead of the one that the configuration names.
            client: a client to use instead of new connections.
            bounds: the limits that the configuration does not set.

        Raises:
            ConfigurationError: when the base URL, a proxy in the environment or the name of the wire format is invalid.
        """
        limits = TransferLimits.of(config, bounds)
        return cls(config, custom_format or wire_format(config.wire_format), HttpClient(config, client, limits), limits)

    async def infer(self, request: InferenceRequest, terms: InferenceTerms) -> InferenceResponse:
        """Send a request and return the response, with the configured retries and deadline.

        Args:
            request: the request.
            terms: how it is repeated, measured and reported.

        Raises:
            InferenceError: the error of the last attempt.
        """
        request = self._possible(request)
        passed = self._pass_tools(request, terms)
        request = passed.request(request)
        encoded = await self._encode(request, terms)
        attempts = _Attempts(self, request, terms)
        while True:
            try:
                with await attempts.admit() as permit:
                    return permit.settle(await attempts.with_key(partial(self._attempt, encoded, passed)))
            except InferenceError as error:
                await attempts.wait(error)

    async def stream(
        self, request: InferenceRequest, terms: InferenceTerms
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Send a request and yield deltas, then the response.

        An attempt that fails before its first delta is retried; one that fails later only if the consumer learns from
        the report of retries that the deltas of the attempt are void.

        Args:
            request: the request.
            terms: how it is repeated, measured and reported.

        Raises:
            InferenceError: the error of the last attempt.
        """
        request = self._possible(request)
        passed = self._pass_tools(request, terms)
        request = passed.request(request)
        encoded = await self._encode(request, terms, stream=True)
        attempts = _Attempts(self, request, terms)
        complete: InferenceResponse | None = None
        while complete is None:
            has_deltas = False
            try:
                with await attempts.admit() as permit:
                    response = await attempts.with_key(partial(self._start_stream, encoded, passed))
                    # The generator is closed explicitly below; otherwise, the event loop would finalize it in its own task.
                    batches = response.deltas()
                    try:
                        async for deltas in batches:
                            has_deltas = True
                            for number, delta in enumerate(deltas, 1):
                                yield delta
                                if not number % _SLICE:
                                    await asyncio.sleep(0)
                        complete = permit.settle(_as_of_tools(response.complete, encoded, passed))
                    finally:
                        await batches.aclose()
                        await response.aclose()
            except InferenceError as error:
                failure = self._redacted(error, attempts.key)
                if has_deltas and terms.report is None:
                    raise failure from error.__cause__
                await attempts.wait(failure)
        yield complete

    def open_gate(self) -> ToolGate:
        """Return the gate for the requests of one execution."""
        return ToolGate(tool_limits(self.config.provider, self.wire_format.name))

    def _pass_tools(self, request: InferenceRequest, terms: InferenceTerms) -> PassedTools:
        hosted = len(request.options.hosted_tools or self.config.options.hosted_tools)
        return (terms.gate or self.open_gate()).pass_tools(request, hosted, terms.omission_report)

    async def aclose(self) -> None:
        """Let go of the connections, of which some are kept for later."""
        await self.http.aclose()

    def leave_idle_connections_to(self, resources: Resources) -> None:
        """Let idle connections to this address be closed with these resources."""
        key = self.http.address_key
        if key is not None:
            resources.open((Endpoint, key), lambda: key, close_idle_connections)

    async def fetch_key(self, ends_at: float) -> Secret | None:
        """Return the key that the function of the configuration returns; None if there is no function.

        Raises:
            AuthenticationError: the function failed.
            ProviderUnavailable: it took too long.
        """
        function = self.config.api_key
        if function is None or isinstance(function, Secret):
            return None
        try:
            async with asyncio.timeout_at(None if ends_at == inf else ends_at):
                return await fetch_key(function, self.config.name)
        except TimeoutError:  # of the deadline: the function's own errors are translated
            raise self.limits.deadline_error() from None

    async def _encode(
        self, request: InferenceRequest, terms: InferenceTerms, *, stream: bool = False
    ) -> EncodedRequest:
        """Return the encoded request; the definitions of many tools are encoded in a thread, since they come from servers, too."""
        encode = partial((terms.encoder or self.wire_format).encode_request, request, self.config, stream=stream)
        size = sum([spec.encoded("bytes of the parameters", _bytes_of_parameters) for spec in request.tools])
        return encode() if size < _LONG_TOOLS else await compute_in_thread(encode)

    def _possible(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request without a forced call, which some models refuse in every wire format."""
        if not request.tool_choice.is_forced:
            return request
        model = model_of(request, self.config)
        known = published_capabilities(self.config.provider, model, self.wire_format.name)
        return request if known.forced_calls else evolve(request, tool_choice=ToolChoice.auto())

    async def _attempt(
        self, encoded: EncodedRequest, passed: PassedTools, key: Secret | None, ends_at: float
    ) -> InferenceResponse:
        try:
            raw = await self.http.post(encoded.path, encoded.headers, encoded.body, ends_at, key=key)
            response = await self._decode(raw)
        except InferenceError as error:
            raise self._redacted(self._located(error, encoded.path), key) from error.__cause__
        return _as_of_tools(response, encoded, passed)

    async def _decode(self, raw: RawResponse) -> InferenceResponse:
        decode = partial(self.wire_format.decode_response, raw.status, raw.headers, raw.body)
        return await compute_in_thread(decode) if len(raw.body) >= _LONG_BODY else decode()

    async def _start_stream(
        self, encoded: EncodedRequest, passed: PassedTools, key: Secret | None, ends_at: float
    ) -> StreamedResponse:
        """Make an attempt up to the first delta."""
        try:
            opened = await self.http.open(encoded.path, encoded.headers, encoded.body, ends_at, key=key)
            decoder = self.wire_format.stream_decoder(opened.headers)
            response = StreamedResponse(opened, decoder, encoded.tool_names, passed.stream())
            # The response is closed on any error, including cancellation, so that its connection is not leaked.
            try:
                if opened.status not in _SUCCESS:
                    raw = await opened.read()
                    await self._decode(raw)  # raises the typed error
                await response.start()
            except BaseException:
                await response.aclose()
                raise
        except InferenceError as error:
            raise self._redacted(self._located(error, encoded.path), key) from error.__cause__
        return response

    def _located(self, error: InferenceError, path: str) -> InferenceError:
        """Return an error that says where nothing was found: the model has no such name there, or the base URL is another one."""
        if error.status == _NOT_FOUND and error.args:
            url = self.config.url(path).partition("?")[0]
            error.args = (f"{error.args[0]}; the request went to {url}, is the base URL right?", *error.args[1:])
        return error

    def _redacted(self, error: InferenceError, key: Secret | None) -> InferenceError:
        args = error.args
        for secret in self.config.secrets if key is None else (key, *self.config.secrets):
            secret.redact_error(error)
        # Where the response contains the key, so do the local variables of its decoder.
        if error.args != args:
            error.__traceback__ = None
        return error


class StreamedResponse:
    """A response that is being received: batches of deltas, then the complete response.

    Args:
        response: the HTTP response, with a success status.
        decoder: decodes its body.
        tool_names: the original names of the tools that were sent under another name, by that name.
        keys: gives the arguments in deltas the keys of their tools; None if all have them.
    """

    __slots__ = (
        "_chunks",
        "_complete",
        "_decoder",
        "_first_deltas",
        "_keys",
        "_received",
        "_response",
        "_tool_names",
        "_undecoded",
    )

    def __init__(
        self,
        response: OpenResponse,
        decoder: StreamDecoder,
        tool_names: Mapping[str, str],
        keys: PassedStream | None = None,
    ) -> None:
        self._response = response
        self._decoder = decoder
        self._tool_names = tool_names
        self._keys = keys
        self._chunks = response.chunks()
        self._first_deltas: list[InferenceDelta] = []
        self._complete: InferenceResponse | None = None
        self._received = 0
        self._undecoded = 0

    async def start(self) -> None:
        """Read until the first delta, or to the end if there is none.

        Raises:
            InferenceError: for an invalid response; the request can be retried, since no delta was returned yet.
        """
        async for chunk in self._chunks:
            self._first_deltas = await self._decode(chunk)
            if self._first_deltas:
                return
        self._complete = await self._close()

    async def deltas(self) -> AsyncGenerator[list[InferenceDelta], None]:
        """Yield the deltas of each chunk as it arrives.

        Raises:
            InferenceError: for an invalid response, or an error that the provider reports.
        """
        # Without a delta, `start` has read the stream to its end.
        if not self._first_deltas:
            return
        yield self._first_deltas
        async for chunk in self._chunks:
            deltas = await self._decode(chunk)
            if deltas:
                yield deltas
        self._complete = await self._close()
        rest = [] if self._keys is None else self._keys.close()
        if rest:
            yield rest

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

    async def _decode(self, chunk: bytes) -> list[InferenceDelta]:
        """Return the deltas of a chunk, with the original names of tools; an event that has become long is decoded in a thread."""
        size, names = len(chunk), self._tool_names
        self._received += size
        self._undecoded += size
        feed = self._decoder.feed
        deltas = feed(chunk) if self._undecoded < _LONG_BODY else await compute_in_thread(feed, chunk)
        if deltas:
            self._undecoded = size  # the start of the next event is a part of this chunk
        if self._decoder.is_done:
            self._response.expect_end()
        if names:
            deltas = [evolve(delta, name=names[delta.name]) if delta.name in names else delta for delta in deltas]
        return deltas if self._keys is None else self._keys.feed(deltas)

    async def _close(self) -> InferenceResponse:
        close = self._decoder.close
        return close() if self._received < _LONG_BODY else await compute_in_thread(close)


def _bytes_of_parameters(spec: ToolSpec) -> int:
    return len(format_json(spec.parameters))


def _as_of_tools(response: InferenceResponse, encoded: EncodedRequest, passed: PassedTools) -> InferenceResponse:
    """Return a response in which the calls have the names and the keys of their tools."""
    return passed.response(_with_original_names(response, encoded.tool_names))


def _with_original_names(response: InferenceResponse, names: Mapping[str, str]) -> InferenceResponse:
    """Return a response in which the calls have the original names of their tools."""
    if not names:
        return response
    return response.with_parts(
        [evolve(p, name=names[p.name]) if isinstance(p, ToolCall) and p.name in names else p for p in response.parts]
    )


# --- retries -------------------------------------------------------------------------------------------------------


def is_worth_retrying(error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether to send the same request again after this error."""
    if not isinstance(error, InferenceError) or not error.retryable or policy.max_attempts == 1:
        return False
    if not policy.matches(type(error).__name__):
        return False
    return error.retry_after is None or error.retry_after <= policy.max_wait


@define(eq=False)
class _Attempts:
    """Counts the attempts of one inference, and waits before and between them.

    Attributes:
        endpoint: the endpoint.
        request: the request.
        terms: how it is repeated, measured and reported.
        policy: the number of attempts and the waits between them.
        count: the number of failed attempts.
        ends_at: the deadline, in the time of the event loop.
        key: the key of the last attempt, if a function returned it.
        gate: what admits requests to the model; None without limits.
        tokens: the tokens that the request counts with, before its usage is known.
    """

    endpoint: Endpoint
    request: InferenceRequest
    terms: InferenceTerms
    policy: RetryPolicy = field(init=False)
    count: int = field(default=0, init=False)
    ends_at: float = field(init=False)
    key: Secret | None = field(default=None, init=False, repr=False)
    gate: ModelGate | None = field(default=None, init=False)
    tokens: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        policy, deadline = self.endpoint.config.retry, self.endpoint.config.deadline
        # A wait beyond the deadline would be in vain, so the deadline limits the accepted `retry_after` too.
        max_wait = policy.max_wait if deadline is None else min(policy.max_wait, deadline)
        self.policy = policy if max_wait == policy.max_wait else evolve(policy, max_wait=max_wait)
        self.ends_at = asyncio.get_running_loop().time() + self.endpoint.limits.total
        config, options = self.endpoint.config, self.request.options
        if config.limits is None:
            return
        self.gate = model_gate(config.limits, config.address, model_of(self.request, config), config.api_key)
        if config.limits.tokens_per_minute is not None:
            size = self.terms.size or RequestSize()
            self.tokens = size.tokens(self.request) + (options.max_tokens or config.options.max_tokens or 0)

    async def admit(self) -> Permit:
        """Wait until the limits of the model allow an attempt.

        Raises:
            ProviderUnavailable: the deadline of the configuration is over.
            RateLimited: the provider has asked for a longer pause than the policy allows.
        """
        limits = self.endpoint.config.limits
        if self.gate is None or limits is None:
            return UNLIMITED
        clock = asyncio.get_running_loop().time
        started = clock()
        has_deadline = self.endpoint.config.deadline is not None
        try:
            async with asyncio.timeout_at(self.ends_at if has_deadline and self.ends_at != inf else None):
                permit = await self.gate.enter(
                    limits, self.tokens, max_pause=self.policy.max_wait, report=self.terms.delay_report
                )
        except TimeoutError:
            raise self.endpoint.limits.deadline_error() from None
        # As for the waits between attempts: the deadline of the configuration includes the wait, that of the bounds does not.
        if not has_deadline:
            self.ends_at += clock() - started
        return permit

    async def with_key(self, send: Callable[[Secret | None, float], Awaitable[T]]) -> T:
        """Make an attempt with the current key. If the service refuses a key, its function is asked once more.

        Args:
            send: makes the attempt, with the key that the function of the configuration returned, until the deadline.

        Raises:
            InferenceError: the attempt failed, or there is no key.
        """
        self.key = await self.endpoint.fetch_key(self.ends_at)
        try:
            return await send(self.key, self.ends_at)
        except AuthenticationError as error:
            if self.key is None or error.status != _UNAUTHORIZED:
                raise
            # A function that caches its token may not know yet that the service refuses it; another attempt would be in vain.
            renewed = await self.endpoint.fetch_key(self.ends_at)
            if renewed == self.key:
                raise
        self.key = renewed
        return await send(renewed, self.ends_at)

    async def wait(self, error: InferenceError) -> None:
        """Wait for the next attempt after one that failed.

        Raises:
            InferenceError: the error itself when there is no further attempt, or that of the deadline.
        """
        self.count += 1
        if isinstance(error, RateLimited) and error.retry_after is not None and self.gate is not None:
            self.gate.pause(error.retry_after)
        now = asyncio.get_running_loop().time()
        if self.count >= self.policy.max_attempts or now >= self.ends_at or not is_worth_retrying(error, self.policy):
            raise error
        delay = error.retry_after
        if delay is None:
            delay = self.policy.backoff(self.count, (self.terms.jitter or random.random)())
        if self.terms.report is not None:
            self.terms.report(FailedAttempt(self.count, error, delay))
        # The deadline of the configuration includes the waits, that of the bounds does not.
        if self.endpoint.config.deadline is None:
            self.ends_at += delay
        await asyncio.sleep(min(delay, self.ends_at - now))
        if now + delay >= self.ends_at:
            raise self.endpoint.limits.deadline_error() from error
