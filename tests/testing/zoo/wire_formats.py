"""Wire formats that break one law each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from agentloop.errors import InferenceError, InvalidResponse, RateLimited
from agentloop.models import EncodedRequest, LLMConfig, StreamDecoder, WireFormat, wire_format
from agentloop.testing import RecordedAnswer, RecordedRefusal, WireFormatKit
from agentloop.values import InferenceDelta, InferenceOptions, InferenceRequest, InferenceResponse, Text
from tests.models.wire_formats.test_whole_answers import SAMPLES
from tests.testing.zoo.zoo import Member

REFUSALS = [
    RecordedRefusal(429, b'{"error": {"message": "slow down"}}', RateLimited),
    RecordedRefusal(500, b"<html>"),
]


def answers_of(name: str) -> list[RecordedAnswer]:
    """Return an answer with a call in a wire format."""
    sample = SAMPLES[name]
    body = {"id": "c", "model": "m", **sample.body} if name == "openai-chat" else sample.body
    return [RecordedAnswer(json.dumps(body).encode(), sample.encode(*sample.before, *sample.end))]


class Wrapped(WireFormat):
    """Obeys all laws, as the format does that it wraps; the classes below break one each."""

    def __init__(self) -> None:
        self.inner = wire_format("openai-chat")
        self.count = 0

    @property
    def name(self) -> str:
        return "wrapped"

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        encoded = self.inner.encode_request(request, config, stream=stream)
        body = json.loads(encoded.body)
        self.change_body(body)
        return evolve(encoded, body=json.dumps(body).encode())

    def change_body(self, body: dict[str, Any]) -> None:
        """Change the JSON of a request."""

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        return self.inner.decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        return self.inner.stream_decoder(headers)


class WrappedDecoder(StreamDecoder):
    """Decodes as the decoder does that it wraps."""

    def __init__(self) -> None:
        self.inner = wire_format("openai-chat").stream_decoder()

    def feed(self, data: bytes) -> list[InferenceDelta]:
        return self.inner.feed(data)

    def close(self) -> InferenceResponse:
        return self.inner.close()


class DropsResults(Wrapped):
    """Breaks law 2: the results of calls are not sent."""

    def change_body(self, body: dict[str, Any]) -> None:
        body["messages"] = [message for message in body["messages"] if message["role"] != "tool"]


class ChangesRequests(Wrapped):
    """Breaks law 3: the request is changed in place."""

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        object.__setattr__(request, "system_prompt", f"{request.system_prompt} Be brief.")
        return super().encode_request(request, config, stream=stream)


class NumbersRequests(Wrapped):
    """Breaks law 8: the requests of an object differ."""

    def change_body(self, body: dict[str, Any]) -> None:
        self.count += 1
        body["user"] = str(self.count)


class NumbersResponses(Wrapped):
    """Breaks law 8: the responses of an object differ."""

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        self.count += 1
        return evolve(super().decode_response(status, headers, body), id=str(self.count))


class SendsTheLastMessageFirst(Wrapped):
    """Breaks law 13: what was sent before stands behind what is new."""

    def change_body(self, body: dict[str, Any]) -> None:
        body["messages"].reverse()


class CountsMessages(Wrapped):
    """Breaks law 13: an entry before the messages changes with them."""

    def change_body(self, body: dict[str, Any]) -> None:
        body["metadata"] = {"messages": str(len(body["messages"]))}


class SendsTheKey(Wrapped):
    """Breaks law 18: the key is in a header of the request."""

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        headers = {"x-key": config.auth_headers().get("authorization", "")}
        return evolve(super().encode_request(request, config, stream=stream), headers=headers)


class AcceptsCutBodies(Wrapped):
    """Breaks law 23: what was received of a body is an answer."""

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        try:
            return super().decode_response(status, headers, body)
        except InvalidResponse:
            return InferenceResponse((Text(body.decode(errors="replace")),))


class AcceptsCutStreams(Wrapped):
    """Breaks law 23: what was received of a stream is an answer."""

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        class Decoder(WrappedDecoder):
            def close(self) -> InferenceResponse:
                try:
                    return super().close()
                except InvalidResponse:
                    return InferenceResponse((Text("as far as it came"),))

        return Decoder()


class MarksChunks(Wrapped):
    """Breaks law 32: the deltas depend on the chunks."""

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        class Decoder(WrappedDecoder):
            def feed(self, data: bytes) -> list[InferenceDelta]:
                return [*super().feed(data), InferenceDelta("text")]

        return Decoder()


class SplitsCharacters(Wrapped):
    """Breaks law 32: each chunk is decoded on its own."""

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        class Decoder(WrappedDecoder):
            def feed(self, data: bytes) -> list[InferenceDelta]:
                return super().feed(data + b"\n\n")

        return Decoder()


class StreamsAnotherAnswer(Wrapped):
    """Breaks law 32: the response of a stream differs from that of a body."""

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        class Decoder(WrappedDecoder):
            def close(self) -> InferenceResponse:
                return evolve(super().close(), id="")

        return Decoder()


class RaisesUntypedErrors(Wrapped):
    """Breaks law 32: bytes that are no answer raise an error of a parser."""

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        json.loads(body)
        return super().decode_response(status, headers, body)


class IgnoresStatus(Wrapped):
    """Breaks law 32: a refusal does not raise the error of its status."""

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        try:
            return super().decode_response(status, headers, body)
        except InferenceError as error:
            raise InferenceError(str(error)) from error


class PrefersTheConfiguration(Wrapped):
    """Breaks law 33: an option of the configuration replaces that of the request."""

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        if config.options != InferenceOptions():
            request = request.with_options(config.options)
        return super().encode_request(request, config, stream=stream)


class IgnoresTheConfiguration(Wrapped):
    """Breaks law 33: the options of the configuration do not apply."""

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        return super().encode_request(request, config.with_settings(options=InferenceOptions()), stream=stream)


class DropsSampling(Wrapped):
    """Breaks law 33: the temperature is not sent."""

    def change_body(self, body: dict[str, Any]) -> None:
        body.pop("temperature", None)


class DropsToolChoice(Wrapped):
    """Breaks law 33: the model may always decide whether it calls a tool."""

    def change_body(self, body: dict[str, Any]) -> None:
        body.pop("tool_choice", None)


def _member(law: int, wire_format: Callable[[], WireFormat]) -> Member:
    answers = answers_of("openai-chat")
    return Member(wire_format, law, lambda examples: WireFormatKit(wire_format, answers, REFUSALS, examples=examples))


WIRE_FORMATS: tuple[Member, ...] = (
    _member(2, DropsResults),
    _member(3, ChangesRequests),
    _member(8, NumbersRequests),
    _member(8, NumbersResponses),
    _member(13, SendsTheLastMessageFirst),
    _member(13, CountsMessages),
    _member(18, SendsTheKey),
    _member(23, AcceptsCutBodies),
    _member(23, AcceptsCutStreams),
    _member(32, MarksChunks),
    _member(32, SplitsCharacters),
    _member(32, StreamsAnotherAnswer),
    _member(32, RaisesUntypedErrors),
    _member(32, IgnoresStatus),
    _member(33, PrefersTheConfiguration),
    _member(33, IgnoresTheConfiguration),
    _member(33, DropsSampling),
    _member(33, DropsToolChoice),
)
