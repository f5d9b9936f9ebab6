"""The law suite of wire formats: the package's formats pass, and every broken one fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attrs import evolve

from agentloop.errors import ConfigurationError, InferenceError, InvalidResponse, RateLimited
from agentloop.inference import EncodedRequest, LLMConfig, StreamDecoder, WireFormat, wire_format
from agentloop.inference.wire_formats.wire_format import WIRE_FORMATS
from agentloop.testing import LawViolation, RecordedAnswer, RecordedRefusal, WireFormatKit
from agentloop.values import InferenceDelta, InferenceOptions, InferenceRequest, InferenceResponse, Text
from tests.inference.wire_formats.test_whole_answers import SAMPLES

REFUSALS = [
    RecordedRefusal(429, b'{"error": {"message": "slow down"}}', RateLimited),
    RecordedRefusal(500, b"<html>"),
]


def answers_of(name: str) -> list[RecordedAnswer]:
    """Return an answer with a call in a wire format."""
    sample = SAMPLES[name]
    body = {"id": "c", "model": "m", **sample.body} if name == "openai-chat" else sample.body
    return [RecordedAnswer(json.dumps(body).encode(), sample.encode(*sample.before, *sample.end))]


@pytest.mark.parametrize("law", WireFormatKit.laws)
@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_wire_formats_obey_the_laws(name: str, law: int) -> None:
    """Each wire format of the package obeys every law of the contract."""
    WireFormatKit(lambda: wire_format(name), answers_of(name), REFUSALS, examples=25).check(law)


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


BROKEN: list[tuple[Callable[[], WireFormat], int]] = [
    (DropsResults, 2),
    (ChangesRequests, 3),
    (NumbersRequests, 8),
    (NumbersResponses, 8),
    (SendsTheLastMessageFirst, 13),
    (CountsMessages, 13),
    (SendsTheKey, 18),
    (AcceptsCutBodies, 23),
    (AcceptsCutStreams, 23),
    (MarksChunks, 32),
    (SplitsCharacters, 32),
    (StreamsAnotherAnswer, 32),
    (RaisesUntypedErrors, 32),
    (IgnoresStatus, 32),
    (PrefersTheConfiguration, 33),
    (IgnoresTheConfiguration, 33),
]


@pytest.mark.parametrize(("factory", "law"), BROKEN)
def test_a_broken_wire_format_violates_its_law(factory: Callable[[], WireFormat], law: int) -> None:
    """Each check fails for a format that breaks the law, and the violation names the law."""
    with pytest.raises(LawViolation) as caught:
        WireFormatKit(factory, answers_of("openai-chat"), REFUSALS).check(law)
    assert caught.value.law == law
    assert "the check failed with" not in str(caught.value)


def test_every_law_has_a_format_that_breaks_it() -> None:
    """No check of the kit is one that cannot fail."""
    assert {law for _, law in BROKEN} == set(WireFormatKit.laws)


def test_the_wrapped_format_obeys_all_laws() -> None:
    """What the broken formats have in common breaks no law."""
    WireFormatKit(Wrapped, answers_of("openai-chat"), REFUSALS, examples=25).check_all()


def test_a_kit_without_an_answer_is_refused() -> None:
    """Without an answer, most laws would hold for any format."""
    with pytest.raises(ConfigurationError, match="at least one recorded answer"):
        WireFormatKit(Wrapped, [])
