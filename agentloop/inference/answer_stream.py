"""An answer on its way from a provider's endpoint."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from attrs import evolve

from agentloop.inference.raw_answer import RawAnswer
from agentloop.inference.wire_formats.stream_decoder import StreamDecoder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse


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
