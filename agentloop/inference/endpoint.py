"""A provider's endpoint: encode, send, decode, and try again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

from attrs import evolve, frozen

from agentloop.contracts.can_infer import RetryReport
from agentloop.errors import InferenceError, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_client import HttpClient
from agentloop.inference.raw_answer import RawAnswer
from agentloop.inference.retrying import retried, worth_retrying
from agentloop.inference.wire_formats.stream_decoder import StreamDecoder
from agentloop.inference.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.policies import RetryPolicy
from agentloop.values.tool_calls import ToolCall


class AnswerStream:
    """An answer that is being read: deltas for as long as there are any, then the response.

    Args:
        answer: the answer, with a status of success.
        decoder: reads its bytes.
        tool_names: for tools that go by another name on the wire, that name and their own.
    """

    __slots__ = ("_answer", "_begun", "_decoder", "_pieces", "_response", "_tool_names")

    def __init__(self, answer: RawAnswer, decoder: StreamDecoder, tool_names: Mapping[str, str]) -> None:
        self._answer = answer
        self._decoder = decoder
        self._tool_names = tool_names
        self._pieces: AsyncGenerator[bytes, None] = answer.pieces()
        self._begun: list[InferenceDelta] = []
        self._response: InferenceResponse | None = None

    async def begin(self) -> None:
        """Read until the first delta, or to the end if there is none.

        Raises:
            InferenceError: for what is not an answer; it may be asked for again, since nothing was told yet.
        """
        async for piece in self._pieces:
            deltas = self._decoder.feed(piece)
            if deltas:
                self._begun = [self._with_own_name(delta) for delta in deltas]
                return
        self._response = self._decoder.close()

    async def rest(self) -> AsyncGenerator[list[InferenceDelta], None]:
        """Give the deltas as they come.

        Raises:
            InferenceError: for what is not an answer, or an error told inside of it.
        """
        if not self._begun:
            return
        yield self._begun
        feed, names = self._decoder.feed, self._tool_names
        async for piece in self._pieces:
            deltas = feed(piece)
            if deltas:
                yield [self._with_own_name(delta) for delta in deltas] if names else deltas
        self._response = self._decoder.close()

    @property
    def response(self) -> InferenceResponse:
        """The whole answer, after the last delta."""
        if self._response is None:
            raise ValueError("the answer is still being read")
        return self._response

    async def aclose(self) -> None:
        """Leave the answer."""
        await self._pieces.aclose()
        await self._answer.aclose()

    def _with_own_name(self, delta: InferenceDelta) -> InferenceDelta:
        return evolve(delta, name=self._tool_names[delta.name]) if delta.name in self._tool_names else delta


T = TypeVar("T")

_OK = range(200, 300)


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
        """Send a request, as often as it takes within the retry policy and the deadline of the configuration.

        Args:
            request: the request.
            jitter: a number from 0 to 1 each time it is called; `random.random` for None.
            report: told before each repetition.

        Raises:
            InferenceError: typed by what went wrong at the last attempt.
        """
        encoded = self.wire_format.encode_request(request, self.config)
        asked = self._repeated(lambda: self._attempt(encoded), jitter, report)
        if self.config.deadline is None:
            return await asked
        return await self._before(asyncio.get_running_loop().time() + self.config.deadline, asked)

    async def stream(
        self, request: InferenceRequest, *, jitter: Callable[[], float] | None, report: RetryReport
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Send a request and take the answer in pieces; what fails before the first piece is tried again.

        Args:
            request: the request.
            jitter: a number from 0 to 1 each time it is called; `random.random` for None.
            report: told before each repetition.

        Raises:
            InferenceError: typed by what went wrong at the last attempt, or after the first piece.
        """
        encoded = self.wire_format.encode_request(request, self.config, stream=True)
        seconds = self.config.deadline
        end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        opened = self._repeated(lambda: self._begun(encoded), jitter, report)
        answer = await (opened if end is None else self._before(end, opened))
        rest = answer.rest()
        try:
            async for deltas in rest if end is None else self._each_before(end, rest):
                for delta in deltas:
                    yield delta
            yield _with_own_names(answer.response, encoded)
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        finally:
            await rest.aclose()
            await answer.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def _before(self, end: float, work: Awaitable[T]) -> T:
        """Do some work before the deadline.

        Raises:
            ProviderUnavailable: when it comes first.
        """
        try:
            async with asyncio.timeout_at(end) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ProviderUnavailable(
                f"no whole answer from {self.config.address} within {self.config.deadline:g} seconds"
            ) from error

    async def _each_before(self, end: float, source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Give what comes before the deadline.

        Raises:
            ProviderUnavailable: when it comes first.
        """
        while True:
            try:
                yield await self._before(end, anext(source))
            except StopAsyncIteration:
                return

    async def _repeated(
        self, attempt: Callable[[], Awaitable[T]], jitter: Callable[[], float] | None, report: RetryReport
    ) -> T:
        try:
            return await attempt()
        except InferenceError as error:
            policy = self._retry_policy()
            if not worth_retrying(error, policy):
                raise
            first = error
        return await retried(first, attempt, policy, jitter=jitter or random.random, report=report)

    def _retry_policy(self) -> RetryPolicy:
        """Return the configured retry policy; no wait is longer than the deadline."""
        policy, deadline = self.config.retry, self.config.deadline
        if deadline is None or deadline >= policy.max_wait:
            return policy
        return evolve(policy, max_wait=deadline)

    async def _attempt(self, encoded: EncodedRequest) -> InferenceResponse:
        try:
            raw = await self.http.post(encoded.path, encoded.headers, encoded.body)
            response = self.wire_format.decode_response(raw.status, raw.headers, raw.body)
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        return _with_own_names(response, encoded)

    async def _begun(self, encoded: EncodedRequest) -> AnswerStream:
        """Make an attempt up to the first delta."""
        try:
            raw = await self.http.open(encoded.path, encoded.headers, encoded.body)
            answer = AnswerStream(raw, self.wire_format.stream_decoder(raw.headers), encoded.tool_names)
            try:
                if raw.status not in _OK:
                    told = await raw.read()
                    self.wire_format.decode_response(told.status, told.headers, told.body)
                await answer.begin()
            except BaseException:
                await answer.aclose()
                raise
        except InferenceError as error:
            raise self._redacted(error) from error.__cause__
        return answer

    def _redacted(self, error: InferenceError) -> InferenceError:
        for secret in self.config.secrets:
            secret.redact_error(error)
        return error


def _with_own_names(response: InferenceResponse, encoded: EncodedRequest) -> InferenceResponse:
    """Give tools that went by another name on the wire their own names back."""
    names = encoded.tool_names
    if not names:
        return response
    return response.with_parts(
        *[evolve(p, name=names[p.name]) if isinstance(p, ToolCall) and p.name in names else p for p in response.parts]
    )
