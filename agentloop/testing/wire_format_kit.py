"""The law suite of wire formats."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from attrs import evolve, field, frozen
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError, InferenceError
from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.testing.bodies import (
    find_changed_object,
    find_mixed_results,
    find_normal_end,
    find_wrong_counts,
    lost_texts,
    parse_body,
    without_counts,
)
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.samples import FIDELITY, NESTED, RICH_REQUESTS, VARIANTS, missing_marks, rich_requests
from agentloop.testing.strategies import inference_requests, tool_calls, tool_specs
from agentloop.values.inference import InferenceDelta, InferenceOptions, InferenceRequest, InferenceResponse, ToolChoice
from agentloop.values.json import EMPTY_OBJECT, thaw
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.serialization import to_json
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolSpec
from agentloop.values.value import Value

_KEY = "sk-kit-0123456789abcdef"
_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_MAX_CUTS = 300
_PLAIN = InferenceRequest((Message.user("Go."),), "Play.")
_HINTS = frozenset({"the model", "parallel_tool_calls", "reasoning_effort"})
"""Entries for which some services have no place. Law 33 has the model, which may be a part of the path."""
_SUCCESS = 200
_OPTIONS: Sequence[tuple[InferenceOptions, InferenceOptions]] = (
    (InferenceOptions(temperature=0.25), InferenceOptions(temperature=0.75)),
    (InferenceOptions(top_p=0.25), InferenceOptions(top_p=0.75)),
    (InferenceOptions(max_tokens=1234), InferenceOptions(max_tokens=4321)),
    (InferenceOptions(stop=("one",)), InferenceOptions(stop=("two",))),
    (InferenceOptions(seed=1234), InferenceOptions(seed=4321)),
    (InferenceOptions(model="one"), InferenceOptions(model="two")),
)
"""For each option, that of the configuration and that of the request."""
_TOOLS = tuple([ToolSpec(name, "Play.", {"type": "object", "properties": {}}) for name in ("one", "two")])
_TOOL_CHOICES = (ToolChoice.auto(), ToolChoice.required(), ToolChoice.none(), *map(ToolChoice.specific, ("one", "two")))


@frozen(eq=False, repr=False)
class RecordedAnswer(Value):
    """One answer of a provider with a success status, in one piece and as a stream.

    Attributes:
        body: the answer in one piece.
        stream: the same answer as a stream, with the same ids, usage and texts; empty if there is none.
        headers: the HTTP headers of the answer in one piece, by lower-case names.
        stream_headers: those of the stream.
        response: what the answer says, if the kit is to compare its parts, its end and its usage; None to compare nothing but what
            can be told from the body.
    """

    body: bytes
    stream: bytes = b""
    headers: Mapping[str, str] = field(default=EMPTY_OBJECT, kw_only=True)
    stream_headers: Mapping[str, str] = field(default=EMPTY_OBJECT, kw_only=True)
    response: InferenceResponse | None = field(default=None, kw_only=True)


@frozen(eq=False, repr=False)
class RecordedRefusal(Value):
    """A response with an error.

    Attributes:
        status: the HTTP status.
        body: the body.
        error: the class of the error that it is decoded to.
        headers: the HTTP headers, by lower-case names.
    """

    status: int
    body: bytes
    error: type[InferenceError] = InferenceError
    headers: Mapping[str, str] = field(default=EMPTY_OBJECT, kw_only=True)


class WireFormatKit(Kit):
    """Checks a wire format against the laws of `WireFormat` and `StreamDecoder`, with recorded answers and generated requests.

    Bodies of requests have to be JSON. That decoding is linear in the length of a response is not checked.

    Args:
        factory: creates the wire format.
        answers: recorded answers; those with text, with calls and with reasoning check the most.
        refusals: recorded errors.
        config: a configuration for the format; the default has any model and URL.
        examples: the number of examples that are tried for each law.

    Raises:
        ConfigurationError: there is no answer.
    """

    laws: tuple[int, ...] = (2, 3, 6, 8, 13, 18, 23, 32, 33, 44)

    def __init__(
        self,
        factory: Callable[[], WireFormat],
        answers: Iterable[RecordedAnswer],
        refusals: Iterable[RecordedRefusal] = (),
        *,
        config: LLMConfig | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], WireFormat] = checked_factory(factory)
        self.answers: tuple[RecordedAnswer, ...] = tuple(answers)
        self.refusals: tuple[RecordedRefusal, ...] = tuple(refusals)
        self.config: LLMConfig = config or LLMConfig(model="any", base_url="http://localhost")
        if not self.answers:
            raise ConfigurationError("a WireFormatKit needs at least one recorded answer")

    def law_2(self) -> None:
        """No encoded request contains a call without its result."""

        def holds(request: InferenceRequest) -> None:
            for encoded in self._encodings(request):
                body = encoded.body.decode("utf-8", "replace")
                marks = [part.execution.value for message in request.messages for part in message.exchanges]
                missing = [mark for mark in marks if f"call of {mark}" in body and f"result of {mark}" not in body]
                require(2, not missing, f"a request contains a call without its result: {body:.2000}")

        self._for_requests(2, holds)
        request = rich_requests(_PLAIN)["calls"]
        for encoded in self._encodings(request):
            problem = find_mixed_results(request, encoded.body)
            require(2, not problem, problem)

    def law_3(self) -> None:
        """Encoding does not change the request."""

        def holds(request: InferenceRequest) -> None:
            before = to_json(request)
            any(self._encodings(request))
            require(3, to_json(request) == before, "encoding has changed the request")

        self.for_all(_conversations() | inference_requests(), holds)

    def law_6(self) -> None:
        """The counts of a response are those of its body, and unknown where the body has none."""
        for answer in self.answers:
            usage = self._decode(answer, answer.body).usage
            if answer.response is not None:
                same = usage == answer.response.usage
                require(6, same, f"the answer has {answer.response.usage}, and its body is decoded to {usage}")
            if (body := parse_body(answer.body)) is not None:
                problem = find_wrong_counts(body, usage)
                require(6, not problem, f"{problem}: {answer.body!r:.1000}")
                for rest in without_counts(body):
                    outcome = _outcome(partial(self._decode, answer, json.dumps(rest).encode()))
                    made_up = isinstance(outcome, InferenceResponse) and outcome.usage.total_tokens is not None
                    require(6, not made_up, f"a body without counts is decoded to {outcome!r:.1000}")

    def law_8(self) -> None:
        """The same request is encoded, and the same answer is decoded, in the same way each time."""

        def holds(request: InferenceRequest) -> None:
            used = self.factory()
            first, second = tuple(self._encodings(request, used)), tuple(self._encodings(request, used))
            require(8, first == second == tuple(self._encodings(request)), "the same request is encoded in two ways")

        self._for_requests(8, holds)
        wire_format = self.factory()
        for answer in self.answers:
            first, second = (wire_format.decode_response(_SUCCESS, answer.headers, answer.body) for _ in range(2))
            require(8, first == second, "the same answer is decoded in two ways")
        self.for_each(VARIANTS, self._require_independence)

    def _require_independence(self, name: str) -> None:
        """Check that a format encodes a request as it would alone, after one that differs from it in one entry."""
        requests = [change(_PLAIN) for change in VARIANTS[name]]
        for order in (requests, requests[::-1]):
            used = self.factory()
            for request in order:
                same = tuple(self._encodings(request, used)) == tuple(self._encodings(request))
                require(
                    8, same, f"after a request that differs from it only in {name}, a request is encoded in another way"
                )

    def law_13(self) -> None:
        """A longer conversation is encoded as an extension of a shorter one."""

        def holds(request: InferenceRequest) -> None:
            wire_format = self.factory()
            shorter = evolve(request, messages=request.messages[:-1])
            before, after = (
                [json.loads(encoded.body) for encoded in self._encodings(longer, wire_format)]
                for longer in (shorter, request)
            )
            places = [_difference(*bodies) for bodies in zip(before, after, strict=False)]
            require(13, not any(places), f"a longer conversation changes what was sent before it at {places}")

        self._for_requests(13, holds)

    def _for_requests(self, law: int, holds: Callable[[InferenceRequest], None]) -> None:
        """Check a law for conversations, some of which the format has to be able to encode."""
        encodable: list[InferenceRequest] = []

        def check(request: InferenceRequest) -> None:
            if any(True for _ in self._encodings(request)):
                encodable.append(request)
                holds(request)

        self.for_all(_conversations(), check)
        require(law, encodable, "the format encodes no conversation of texts and calls")

    def law_18(self) -> None:
        """No encoded request contains the key, which is sent in a header of its own."""
        config = self.config.with_settings(api_key=_KEY)
        for stream in (False, True):
            encoded = self.factory().encode_request(InferenceRequest((Message.user("Hello."),)), config, stream=stream)
            sent = f"{encoded.path} {encoded.body!r} {dict(encoded.headers)}"
            require(18, _KEY not in sent, "an encoded request contains the key")

    def law_23(self) -> None:
        """An answer that was cut off is an error, or the same answer if only its end is missing."""
        for answer in self.answers:
            for cut in _cuts(answer.body):
                self._check_cut(answer, cut, "body", partial(self._decode, answer, answer.body[:cut]))
            for cut in _cuts(answer.stream):
                self._check_cut(answer, cut, "stream", partial(self._receive, answer, answer.stream[:cut]))
            self._check_ends(answer)

    def _check_ends(self, answer: RecordedAnswer) -> None:
        """Check that an answer with another reason for its end is none that ended normally.

        The reason is found in the answer by what the format reports as that of the provider.
        """
        if answer.response is not None:
            ended = self._decode(answer, answer.body).finish_reason
            require(
                23,
                ended is answer.response.finish_reason,
                f"an answer that ended with {answer.response.finish_reason!r} is decoded to {ended!r}",
            )
        reason = self._decode(answer, answer.body).provider_finish_reason
        ways = [(answer.body, partial(self._decode, answer)), (answer.stream, partial(self._receive, answer))]
        for data, decode in ways:
            problem = find_normal_end(data, reason or "", partial(_outcome_of, decode))
            require(23, not problem, problem)

    def law_32(self) -> None:
        """Answers are the same in one piece and in any chunks; errors are typed, whatever the bytes are."""
        for answer in filter(lambda answer: answer.stream, self.answers):
            whole, response = self._decode(answer, answer.body), self._receive(answer, answer.stream)
            require(
                32, _canonical(response) == _canonical(whole), f"a stream is decoded to {response}, its body to {whole}"
            )
            self._check_chunks(answer)
        for refusal in self.refusals:
            outcome = _outcome(partial(self._decode_any, refusal.body, refusal.status, refusal.headers))
            require(
                32,
                isinstance(outcome, refusal.error),
                f"a response of status {refusal.status} is decoded to {outcome!r}",
            )
        damaged = [_damaged(data) for answer in self.answers for data in (answer.body, answer.stream)]
        self.for_all(st.one_of(damaged), self._check_typed)

    def law_33(self) -> None:
        """An option of the request replaces that of the configuration, which applies where the request has none.

        It is sent or refused, as is the choice of tools.
        """
        plain = InferenceRequest((Message.user("Hello."),))
        for configured, requested in _OPTIONS:
            config, request = self.config.with_settings(options=configured), plain.with_options(requested)
            expected = tuple(self._encodings(request))
            name = next(
                name
                for name in ("temperature", "top_p", "max_tokens", "stop", "seed", "model")
                if getattr(requested, name)
            )
            overrides = tuple(self._encodings(request, config=config)) == expected
            require(33, overrides, f"{name} of the configuration changes a request that sets it")
            applies = tuple(self._encodings(plain, config=config)) == tuple(
                self._encodings(plain.with_options(configured))
            )
            require(33, applies, f"{name} of the configuration is not that of a request without it")
            self._require_sent(name, plain.with_options(configured), request)
        for one, other in combinations(_TOOL_CHOICES, 2):
            requests = [plain.with_tools(_TOOLS).with_tool_choice(choice) for choice in (one, other)]
            self._require_sent("tool_choice", *requests)

    def law_44(self) -> None:
        """Everything in a request is encoded or refused; all texts and calls of an answer are decoded, and a stream shows them."""

        def encodes_all(name: str) -> None:
            request = rich_requests(_PLAIN)[name]
            for encoded in self._encodings(request):
                missing = missing_marks(request, encoded.body)
                require(FIDELITY, not missing, f"of a request with {name}, the encoding lacks {' '.join(missing)}")

        def tells_apart(name: str) -> None:
            one, other = [change(_PLAIN) for change in VARIANTS[name]]
            pairs = zip(self._encodings(one), self._encodings(other), strict=False)
            same = any(before == after for before, after in pairs)
            require(FIDELITY, not same, f"requests that differ in {name} are encoded in one way, and none is refused")

        self.for_each(RICH_REQUESTS, encodes_all)
        arguments = ToolCall("", "look").with_arguments({"place": "here", **NESTED}).arguments
        nested = rich_requests(_PLAIN)["nested arguments"]
        for encoded in self._encodings(nested):
            problem = find_changed_object(thaw(arguments), json.loads(encoded.body))
            require(FIDELITY, not problem, problem)
        self.for_each([name for name in VARIANTS if name not in _HINTS], tells_apart)
        for answer in self.answers:
            decoded = self._decode(answer, answer.body)
            if answer.response is not None:
                same = _canonical(decoded).parts == _canonical(answer.response).parts
                require(
                    FIDELITY,
                    same,
                    f"the answer is {answer.response.parts!r:.1000}, and decoded to {decoded.parts!r:.1000}",
                )
            if answer.stream:
                self._check_deltas(answer)
            lost = lost_texts(answer.body, decoded)
            require(FIDELITY, not lost, f"of an answer, the response lacks {lost!r:.1000}: {decoded!r:.1000}")

    def _require_sent(self, name: str, one: InferenceRequest, other: InferenceRequest) -> None:
        """Check that two requests which differ in one entry are encoded in two ways, if the format has both."""
        same = any(before == after for before, after in zip(self._encodings(one), self._encodings(other), strict=False))
        require(33, not same, f"requests that differ in {name} are encoded in one way, and none is refused")

    def _check_deltas(self, answer: RecordedAnswer) -> None:
        """Check that what the deltas of an answer show is in it: texts from their beginning on, and calls in their places."""
        deltas, response = self._receive_all(answer.stream_headers, [answer.stream])
        calls = response.tool_calls
        shown: dict[str, list[InferenceDelta]] = defaultdict(list)
        for delta in deltas:
            is_of_call = delta.kind in {"tool_call", "arguments"}
            known = not is_of_call or 0 <= delta.index < len(calls)
            require(
                FIDELITY, known, f"a stream shows a call of index {delta.index}, and its answer has {len(calls)} calls"
            )
            shown[f"{delta.kind} {delta.index}" if is_of_call else delta.kind].append(delta)
        wholes = {"text": response.text, "reasoning": response.reasoning}
        for index, call in enumerate(calls):
            wholes |= {f"tool_call {index}": call.name, f"arguments {index}": call.arguments_json}
        for place, whole in wholes.items():
            text = "".join([delta.text + delta.name + delta.arguments for delta in shown[place]])
            agrees = whole.startswith(text)
            require(FIDELITY, agrees, f"a stream shows the {place} {text!r:.500}, and its answer has {whole!r:.500}")

    def _encodings(
        self, request: InferenceRequest, wire_format: WireFormat | None = None, config: LLMConfig | None = None
    ) -> Iterator[EncodedRequest]:
        """Yield the request for an answer in one piece and for a stream, unless the format has no encoding for it."""
        for stream in (False, True):
            try:
                yield (wire_format or self.factory()).encode_request(request, config or self.config, stream=stream)
            except InferenceError:
                continue

    def _decode(self, answer: RecordedAnswer, body: bytes) -> InferenceResponse:
        return self._decode_any(body, _SUCCESS, answer.headers)

    def _decode_any(self, body: bytes, status: int, headers: Mapping[str, str]) -> InferenceResponse:
        return self.factory().decode_response(status, headers, body)

    def _receive(self, answer: RecordedAnswer, *chunks: bytes) -> InferenceResponse:
        return self._receive_all(answer.stream_headers, chunks)[1]

    def _receive_all(
        self, headers: Mapping[str, str], chunks: Iterable[bytes]
    ) -> tuple[list[InferenceDelta], InferenceResponse]:
        decoder = self.factory().stream_decoder(headers)
        deltas = [delta for chunk in chunks for delta in decoder.feed(chunk)]
        return deltas, decoder.close()

    def _check_cut(self, answer: RecordedAnswer, cut: int, kind: str, decode: Callable[[], InferenceResponse]) -> None:
        outcome = _outcome(decode)
        if isinstance(outcome, InferenceError):
            return
        # The end of an answer may be followed by its usage, and by markers without a meaning.
        whole = _canonical(self._decode(answer, answer.body))
        is_whole = isinstance(outcome, InferenceResponse) and (
            (_canonical(outcome).parts, outcome.finish_reason) == (whole.parts, whole.finish_reason)
        )
        require(23, is_whole, f"a {kind} that ends after {cut} bytes is decoded to {outcome!r}")

    def _check_chunks(self, answer: RecordedAnswer) -> None:
        expected = self._receive_all(answer.stream_headers, [answer.stream])

        def holds(cuts: Sequence[int]) -> None:
            chunks = _chunks(answer.stream, cuts)
            found = _outcome(partial(self._receive_all, answer.stream_headers, chunks))
            require(32, found == expected, f"the chunks {chunks!r:.2000} are decoded to {found!r}, not {expected!r}")

        holds(range(len(answer.stream)))
        self.for_all(st.lists(st.integers(0, len(answer.stream)), max_size=12), holds)

    def _check_typed(self, data: bytes) -> None:
        decoders: list[Callable[[], object]] = [
            partial(self._decode_any, data, status, EMPTY_OBJECT) for status in (_SUCCESS, 500)
        ]
        for decode in (*decoders, lambda: self._receive_all(EMPTY_OBJECT, [data])[1]):
            outcome = _outcome(decode)
            is_typed = isinstance(outcome, InferenceResponse | InferenceError)
            require(32, is_typed, f"the bytes {data!r:.2000} are decoded to {outcome!r}")


def _canonical(response: InferenceResponse) -> InferenceResponse:
    """Return the response with the arguments of its calls in one notation: an answer in one piece may hold them as JSON."""
    return response.with_parts(
        [_canonical_call(part) if isinstance(part, ToolCall) else part for part in response.parts]
    )


def _canonical_call(call: ToolCall) -> ToolCall:
    try:
        return call.with_arguments_json(json.dumps(json.loads(call.arguments_json), sort_keys=True))
    except ValueError:
        return call


def _outcome(decode: Callable[[], object]) -> object:
    """Return what was decoded, or whatever is raised in its place."""
    try:
        return decode()
    except Exception as error:  # noqa: BLE001  # the caller decides which errors are allowed
        return error


def _outcome_of(decode: Callable[[bytes], object], data: bytes) -> object:
    return _outcome(partial(decode, data))


def _cuts(data: bytes) -> range:
    return range(0, len(data), max(1, len(data) // _MAX_CUTS))


def _chunks(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def _damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that are no answer, or hardly one: any bytes, and an answer with a part that is replaced by other bytes."""
    places = st.integers(0, len(data))
    other = st.binary(max_size=4) | st.sampled_from(
        [b"null", b"[]", b"{}", b'""', b"1e999", b"-1", b"true", b"\\ud800"]
    )
    replaced = st.builds(
        lambda start, end, bytes_: data[:start] + bytes_ + data[max(start, end) :], places, places, other
    )
    return st.binary(max_size=50) | replaced


@st.composite
def _conversations(draw: st.DrawFn) -> InferenceRequest:
    """Requests with texts, tools, and calls and results whose texts can be found in any encoding of the request."""
    texts = st.text(min_size=1, max_size=12)
    messages = [Message.user(draw(texts))]
    for number in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            messages.append(Message.user(draw(texts)))
            continue
        exchanges = [
            _exchange(draw(tool_calls()), f"{number}-{position}.") for position in range(draw(st.integers(0, 2)))
        ]
        messages.append(Message.assistant(draw(texts), *exchanges))
    tools = draw(st.lists(tool_specs(), max_size=2, unique_by=lambda spec: spec.name))
    return InferenceRequest(tuple(messages), draw(texts), tuple(tools))


def _exchange(call: ToolCall, mark: str) -> ToolExchange:
    call = call.with_arguments({"mark": f"call of {mark}"})
    text = Text(f"result of {mark}")
    execution = ToolExecution(
        id="e",
        key="k",
        call=call,
        status="succeeded",
        value=mark,
        content=[text],
        started_at=_MOMENT,
        ended_at=_MOMENT,
    )
    return ToolExchange(call, execution)


def _difference(before: Any, after: Any, path: str = "$") -> str:
    """Return the place at which JSON does not extend other JSON; empty if it does.

    Objects may get more entries, and lists more items; only the last item of a list may be extended itself.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        if [name for name in after if name in before] != list(before):
            return path
        places = (_difference(value, after[name], f"{path}.{name}") for name, value in before.items())
        return next(filter(None, places), "")
    if isinstance(before, list) and isinstance(after, list) and before:
        last = len(before) - 1
        if before[:-1] != after[:last] or len(after) < len(before):
            return path
        return _difference(before[-1], after[last], f"{path}[{last}]")
    return "" if before in (after, []) else path
