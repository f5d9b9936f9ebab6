"""Inferences that break one law each under a condition: a cancellation, a failure, another entry of the request, a long answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from attrs import evolve

from agentloop.contracts import CanInfer
from agentloop.errors import InferenceError
from agentloop.testing import InferenceKit
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Text, ToolChoice
from tests.testing.zoo.others import Relay
from tests.testing.zoo.zoo import Member

KEPT: dict[InferenceRequest, InferenceResponse] = {}


class KeepsAnswersByKey(Relay):
    """Keeps answers by a key; the classes below have one that lacks something."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.kept: dict[object, InferenceResponse] = {}

    def key_of(self, request: InferenceRequest) -> object:
        return request

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        key = self.key_of(request)
        if key not in self.kept:
            self.kept[key] = await super().infer(request)
        return self.kept[key]


class KeepsAnswersByLastMessage(KeepsAnswersByKey):
    """Breaks law 9: whoever asks the same gets the same answer, whatever was said before."""

    def key_of(self, request: InferenceRequest) -> object:
        return request.messages[-1].text


class KeepsAnswersByConversation(KeepsAnswersByKey):
    """Breaks law 9: requests that differ in their tool choice alone get the same answer."""

    def key_of(self, request: InferenceRequest) -> object:
        return request.messages, request.system_prompt, request.tools, request.options


class KeepsAnswersForAll(Relay):
    """Breaks law 9: inferences in front of different models answer for each other."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if request not in KEPT:
            KEPT[request] = await super().infer(request)
        return KEPT[request]


class RestartsStreams(Relay):
    """Breaks law 7: after a failure the stream starts again, as if it were the same attempt."""

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        try:
            async for item in self.model.stream(request):
                yield item
        except InferenceError:
            async for item in self.model.stream(request):
                yield item


class StreamsNoRepetition(Relay):
    """Breaks law 7: a delta that equals the one before is taken for a duplicate."""

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        last: object = None
        async for item in self.model.stream(request):
            if item != last:
                yield item
            last = item


class EndsQuietly(Relay):
    """Breaks law 7: a stream that breaks off just ends."""

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        try:
            async for item in self.model.stream(request):
                yield item
        except InferenceError:
            return


class TakesEveryEndForNormal(Relay):
    """Breaks law 23: an answer that the limit of tokens has cut is one that the model has ended."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        response = await super().infer(request)
        return evolve(response, finish_reason="tool_calls" if response.tool_calls else "stop")


class AsksAgainWithLess(Relay):
    """Breaks law 33: what failed is asked again without its options."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        try:
            return await super().infer(request)
        except InferenceError:
            return await super().infer(evolve(request, options=type(request.options)()))


class KeepsLock(Relay):
    """Breaks law 34: a request that is cancelled keeps the lock."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.lock = asyncio.Lock()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await self.lock.acquire()
        try:
            response = await super().infer(request)
        except Exception:
            self.lock.release()
            raise
        self.lock.release()
        return response


class KeepsPlaces(Relay):
    """Breaks law 34: each request that fails keeps one of three places."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.places = asyncio.Semaphore(3)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await self.places.acquire()
        response = await super().infer(request)
        self.places.release()
        return response


class StaysOpen(Relay):
    """Breaks law 34: a request that is cancelled closes the way for all later ones."""

    is_busy = False

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if self.is_busy:
            raise InferenceError("another request has not ended")
        self.is_busy = True
        try:
            response = await super().infer(request)
        except InferenceError:
            self.is_busy = False
            raise
        self.is_busy = False
        return response


class Apologizes(Relay):
    """Breaks law 44: an error is an answer."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        try:
            return await super().infer(request)
        except InferenceError:
            return InferenceResponse((Text("Sorry, I cannot answer now."),))


class DropsTextBesideCalls(Relay):
    """Breaks law 44: of an answer with calls, the text is dropped."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        response = await super().infer(request)
        return response.with_parts(response.tool_calls) if response.tool_calls else response


class CutsAnswers(Relay):
    """Breaks law 44: long texts are cut."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        response = await super().infer(request)
        cut: list[Any] = [Text(part.text[:4096]) if isinstance(part, Text) else part for part in response.parts]
        return response.with_parts(cut)


class SendsLastMessages(Relay):
    """Breaks law 44: only the last ten messages are sent."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await super().infer(request.with_messages(request.messages[-10:]))


class SendsNoChoice(Relay):
    """Breaks law 44: a request is built anew, without the choice of tools."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await super().infer(evolve(request, tool_choice=ToolChoice.auto(), parallel_tool_calls=None))


class SendsNoFormat(Relay):
    """Breaks law 44: after a failure, the request is built anew without the format of the answer."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        try:
            return await super().infer(request)
        except InferenceError:
            return await super().infer(request.with_response_format(None))


class SharesARequest(Relay):
    """Breaks law 9: equal requests at the same time are one, and when its caller is cancelled, nobody gets an answer."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.running: dict[InferenceRequest, asyncio.Task[InferenceResponse]] = {}

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if request not in self.running:
            self.running[request] = asyncio.ensure_future(super().infer(request))
        task = self.running[request]
        try:
            return await task
        finally:
            self.running.pop(request, None)


class KeepsAnswersById(Relay):
    """Breaks law 9: answers are kept by the identity of a request, which is that of another one when the first is gone."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.answers: dict[int, InferenceResponse] = {}

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if id(request) not in self.answers:
            self.answers[id(request)] = await super().infer(request)
        return self.answers[id(request)]


class SendsInBatches(Relay):
    """Breaks law 9: requests of one moment are sent together, and when one fails, nobody gets an answer."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.requests: list[InferenceRequest] = []
        self.batch: asyncio.Task[list[InferenceResponse]] | None = None

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if self.batch is None:
            self.batch = asyncio.ensure_future(self.send())
        self.requests.append(request)
        place = len(self.requests) - 1
        return (await asyncio.shield(self.batch))[place]

    async def send(self) -> list[InferenceResponse]:
        await asyncio.sleep(0.005)
        requests, self.requests, self.batch = self.requests, [], None
        return await asyncio.gather(*map(self.model.infer, requests))


class StreamsWords(Relay):
    """Breaks law 7: deltas are words, and the space between them is lost."""

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        async for item in self.model.stream(request):
            if isinstance(item, InferenceDelta) and item.kind == "text":
                for word in item.text.split():
                    yield evolve(item, text=word)
            else:
                yield item


class BlocksTheLoop(Relay):
    """Breaks law 45: a pause between requests stops the whole event loop."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        return await super().infer(request)


def _inference(law: int, inference: Callable[[CanInfer], CanInfer]) -> Member:
    return Member(inference, law, lambda examples: InferenceKit(inference, examples=examples))


INFERENCES: tuple[Member, ...] = (
    _inference(7, RestartsStreams),
    _inference(7, StreamsNoRepetition),
    _inference(7, EndsQuietly),
    _inference(7, StreamsWords),
    _inference(9, KeepsAnswersByLastMessage),
    _inference(9, KeepsAnswersByConversation),
    _inference(9, KeepsAnswersForAll),
    _inference(9, KeepsAnswersById),
    _inference(9, SharesARequest),
    _inference(9, SendsInBatches),
    _inference(23, TakesEveryEndForNormal),
    _inference(33, AsksAgainWithLess),
    _inference(34, KeepsLock),
    _inference(34, KeepsPlaces),
    _inference(34, StaysOpen),
    _inference(44, Apologizes),
    _inference(44, DropsTextBesideCalls),
    _inference(44, CutsAnswers),
    _inference(44, SendsLastMessages),
    _inference(44, SendsNoChoice),
    _inference(44, SendsNoFormat),
    _inference(45, BlocksTheLoop),
)
