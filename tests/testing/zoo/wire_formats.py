"""Wire formats that break one law each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from attrs import evolve

from agentloop.errors import InferenceError, InvalidResponse, RateLimited
from agentloop.models import EncodedRequest, LLMConfig, StreamDecoder, WireFormat, wire_format
from agentloop.testing import RecordedAnswer, RecordedRefusal, WireFormatKit
from agentloop.values import InferenceDelta, InferenceOptions, InferenceRequest, InferenceResponse, Text, Usage
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


class MergesParallelResults(Wrapped):
    """Breaks law 2: the results of parallel calls are one message, for the first call."""

    def change_body(self, body: dict[str, Any]) -> None:
        merged: list[dict[str, Any]] = []
        for message in body["messages"]:
            if message["role"] == "tool" and merged and merged[-1]["role"] == "tool":
                merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n{message['content']}"}
            else:
                merged.append(message)
        body["messages"] = merged


class SwapsResults(Wrapped):
    """Breaks law 2: the results of two parallel calls carry each other's ids."""

    def change_body(self, body: dict[str, Any]) -> None:
        for one, other in pairwise(body["messages"]):
            if one["role"] == other["role"] == "tool":
                one["tool_call_id"], other["tool_call_id"] = other["tool_call_id"], one["tool_call_id"]
                return


class ChangesDeltas(Wrapped):
    """Changes what a stream shows before its answer is complete."""

    def change(self, delta: InferenceDelta) -> InferenceDelta:
        return delta

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        change = self.change

        class Decoder(WrappedDecoder):
            def feed(self, data: bytes) -> list[InferenceDelta]:
                return [change(delta) for delta in super().feed(data)]

        return Decoder()


class NumbersCallsFromOne(ChangesDeltas):
    """Breaks law 44: what is streamed of a call names the place of the next one."""

    def change(self, delta: InferenceDelta) -> InferenceDelta:
        return evolve(delta, index=delta.index + 1) if delta.kind in {"tool_call", "arguments"} else delta


class ShowsEscapedArguments(ChangesDeltas):
    """Breaks law 44: the arguments in a stream are those of the answer, escaped once more."""

    def change(self, delta: InferenceDelta) -> InferenceDelta:
        return evolve(delta, arguments=json.dumps(delta.arguments)[1:-1]) if delta.kind == "arguments" else delta


class ShowsShortTexts(ChangesDeltas):
    """Breaks law 44: white space is left out of a text while it is streamed."""

    def change(self, delta: InferenceDelta) -> InferenceDelta:
        return evolve(delta, text="".join(delta.text.split())) if delta.kind == "text" else delta


class ChangesResponses(Wrapped):
    """Changes what was decoded, in one piece and of a stream."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        return response

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        return self.change(super().decode_response(status, headers, body))

    def stream_decoder(self, headers: Mapping[str, str] = {}) -> StreamDecoder:  # not changed
        change = self.change

        class Decoder(WrappedDecoder):
            def close(self) -> InferenceResponse:
                return change(super().close())

        return Decoder()


class CountsOutputTwice(ChangesResponses):
    """Breaks law 6: reasoning is added to the output, which has it already."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        usage = response.usage
        return evolve(response, usage=evolve(usage, output_tokens=usage.output_tokens and usage.output_tokens * 2))


class CountsNothing(ChangesResponses):
    """Breaks law 6: an answer costs nothing."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        return evolve(response, usage=Usage(0, 0, 0, 0, 0))


class KeepsSystemPrompt(Wrapped):
    """Breaks law 8: the system prompt of the first request is that of all."""

    first: str | None = None

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        self.first = request.system_prompt if self.first is None else self.first
        return super().encode_request(request.with_system_prompt(self.first), config, stream=stream)


class TakesEveryEndForNormal(ChangesResponses):
    """Breaks law 23: whatever ends an answer, it is whole."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        return evolve(response, finish_reason="tool_calls" if response.tool_calls else "stop")


class TakesTheLimitForTheEnd(ChangesResponses):
    """Breaks law 23: an answer at the limit of tokens is whole."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        return evolve(response, finish_reason="stop") if response.finish_reason == "length" else response


class DropsErrors(Wrapped):
    """Breaks law 44: the result of a call that failed is empty."""

    def change_body(self, body: dict[str, Any]) -> None:
        for message in body["messages"]:
            if message["role"] == "tool" and "error" in str(message["content"]).lower():
                message["content"] = ""


class CutsResults(Wrapped):
    """Breaks law 44: long results are cut."""

    def change_body(self, body: dict[str, Any]) -> None:
        for message in body["messages"]:
            if message["role"] == "tool":
                message["content"] = str(message["content"])[:2000]


class FlattensArguments(Wrapped):
    """Breaks law 44: arguments that are no scalars are sent as texts."""

    def change_body(self, body: dict[str, Any]) -> None:
        for message in body["messages"]:
            for call in message.get("tool_calls") or ():
                arguments = json.loads(call["function"]["arguments"] or "{}")
                flat = {
                    name: str(value) if isinstance(value, list | dict) else value for name, value in arguments.items()
                }
                call["function"]["arguments"] = json.dumps(flat)


class DropsDescriptions(Wrapped):
    """Breaks law 44: tools are sent without their descriptions."""

    def change_body(self, body: dict[str, Any]) -> None:
        for tool in body.get("tools", ()):
            tool["function"].pop("description", None)


class DropsTextBesideCalls(ChangesResponses):
    """Breaks law 44: of an answer with calls, the text is dropped."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        return response.with_parts(response.tool_calls or response.parts)


class DecodesTheFirstCall(ChangesResponses):
    """Breaks law 44: of several calls, the first one is decoded."""

    def change(self, response: InferenceResponse) -> InferenceResponse:
        dropped = response.tool_calls[1:]
        return response.with_parts([part for part in response.parts if part not in dropped])


def counted_answers() -> list[RecordedAnswer]:
    """Return an answer with a text, two calls and the counts of its tokens."""
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    functions = [{"name": "look", "arguments": json.dumps({"number": number})} for number in (1, 2)]
    calls = [{"id": f"k{place}", "type": "function", "function": each} for place, each in enumerate(functions)]
    head = {"id": "c", "model": "m"}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": calls}
    body = {**head, "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}], "usage": usage}
    deltas = [message | {"tool_calls": []}, *[{"tool_calls": [{**call, "index": at}]} for at, call in enumerate(calls)]]
    chunks: list[dict[str, Any]] = [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    lines = [json.dumps(each) for each in (*chunks, end, {**head, "choices": [], "usage": usage})]
    stream = "".join([f"data: {line}\n\n" for line in (*lines, "[DONE]")])
    return [RecordedAnswer(json.dumps(body).encode(), stream.encode())]


def _member(law: int, wire_format: Callable[[], WireFormat]) -> Member:
    answers = [*answers_of("openai-chat"), *counted_answers()]
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
    _member(2, MergesParallelResults),
    _member(2, SwapsResults),
    _member(6, CountsOutputTwice),
    _member(6, CountsNothing),
    _member(8, KeepsSystemPrompt),
    _member(23, TakesEveryEndForNormal),
    _member(23, TakesTheLimitForTheEnd),
    _member(44, DropsErrors),
    _member(44, CutsResults),
    _member(44, FlattensArguments),
    _member(44, DropsDescriptions),
    _member(44, DropsTextBesideCalls),
    _member(44, DecodesTheFirstCall),
    _member(44, NumbersCallsFromOne),
    _member(44, ShowsEscapedArguments),
    _member(44, ShowsShortTexts),
)
