"""Decoding of responses of Chat Completions, tolerant of the many services that implement it.

Source: https://platform.openai.com/docs/api-reference/chat/object
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from attrs import define, evolve, field

from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason, reason_of
from agentloop.models.wire_formats.errors import find_error
from agentloop.models.wire_formats.fields import (
    CUT_OFF,
    arguments_json,
    count_of,
    object_of,
    output_with_reasoning,
    read_logprobs,
    text_of,
)
from agentloop.models.wire_formats.openai_chat.requests import CUSTOM, DETAILS, EXTRA_CONTENT, NAME
from agentloop.models.wire_formats.response_builder import ResponseBuilder
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, TokenLogprob, Usage
from agentloop.values.json import parse_json
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "endoftext": FinishReason.STOP,
    "complete": FinishReason.STOP,
    "completed": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_call": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
    "error": FinishReason.ERROR,
}
_REFUSAL: Mapping[str, Any] = {NAME: {"type": "refusal"}}
"""The provider data of a text that is a refusal."""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response.

    Raises:
        InferenceError: typed by status and body.
    """
    return decode_body(status, headers, body, find_error=_find_error, decode=_completion, expected="a chat completion")


def _find_error(data: Any) -> dict[str, Any] | None:
    """Return the object that reports an error: the body or chunk, or a choice, where OpenRouter puts the error."""
    failure = find_error(data)
    if failure is not None or not isinstance(data, dict):
        return failure
    choices = data.get("choices")
    # Most chunks have a single choice without an error, which costs no more than this.
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and choice.get("error"):
                return choice
    return None


def _completion(data: Any) -> InferenceResponse:
    choice = data["choices"][0]
    # Some services respond with a chunk to a request that is not for a stream.
    message = choice.get("message") or choice.get("delta") or {}
    reason, has_calls = reason_of(choice.get("finish_reason")), bool(_calls_in(message))
    finish = _finish_reason(reason, has_calls=has_calls, is_refusal=bool(message.get("refusal")))
    return InferenceResponse(
        message_parts(message, is_cut=finish.is_incomplete),
        finish,
        _usage(data.get("usage")),
        text_of(data.get("model")),
        text_of(data.get("id")),
        reason if reason or choice.get("finish_reason") == "" else None,
        logprobs=_logprobs(choice),
    )


def _logprobs(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    entries = object_of(choice.get("logprobs"))
    return read_logprobs(entries.get("content")) + read_logprobs(entries.get("refusal"))


def message_parts(message: Mapping[str, Any], *, is_cut: bool = False) -> tuple[ResponsePart, ...]:
    """Return the reasoning, text and calls of an assistant message, in that order; a refusal is text.

    Args:
        message: the message.
        is_cut: whether the answer did not end normally, so that calls without arguments may lack them.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: when the message does not have the expected structure.
    """
    parts: list[ResponsePart] = []
    # DeepSeek and vLLM use the first name, OpenRouter and Groq the second; some services send both.
    reasoning = text_of(message.get("reasoning_content") or message.get("reasoning"))
    details = _details(message)
    if reasoning or details:
        parts.append(Reasoning(reasoning, provider_data={NAME: {DETAILS: details}} if details else {}))
    parts.extend(_content_parts(message.get("content")))
    refusal = message.get("refusal")
    # Some services repeat the refusal as content.
    if isinstance(refusal, str) and refusal and not any(isinstance(part, Text) for part in parts):
        parts.append(Text(refusal, provider_data=_REFUSAL))
    calls = [_call(call, "" if is_cut else "{}") for call in _calls_in(message)]
    if is_cut and calls and _has_object(_calls_in(message)[-1]):
        calls[-1] = evolve(calls[-1], rejection=CUT_OFF)
    return (*parts, *calls)


def _content_parts(content: Any) -> list[Text | Reasoning]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[Text | Reasoning] = []
    for item in [content] if isinstance(content, dict) else content or ():
        text = item if isinstance(item, str) else item.get("text") or item.get("refusal")
        if isinstance(text, str) and text:
            parts.append(Text(text))
        elif isinstance(item, dict) and item.get("thinking"):
            parts.append(Reasoning(_thinking(item["thinking"])))
    return parts


def _thinking(thinking: Any) -> str:
    return thinking if isinstance(thinking, str) else "".join(text_of(item.get("text")) for item in thinking)


def _calls_in(message: Mapping[str, Any]) -> Any:
    """Return the calls of a message or delta; some services send a single call without the list around it."""
    calls = message.get("tool_calls") or ()
    return [calls] if isinstance(calls, dict) else calls


def _call(call: Mapping[str, Any], missing_arguments: str) -> ToolCall:
    name, arguments = _name_and_arguments(call, missing_arguments)
    return ToolCall(_call_id(call), name, arguments, provider_data=_call_data(call))


def _name_and_arguments(call: Mapping[str, Any], missing: str = "") -> tuple[str, str]:
    """Return the name and the arguments of a call or of a fragment; the arguments of a custom call are any text."""
    custom = _custom(call)
    if custom is not None:
        return text_of(custom.get("name")), text_of(custom.get("input"))
    # Some services put name and arguments into the call itself.
    function = call.get("function") or call
    return text_of(function.get("name")), arguments_json(function.get("arguments"), missing=missing)


def _custom(call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entry of a custom call; None for other calls, beside which some services write an empty one."""
    custom, function = call.get(CUSTOM), call.get("function")
    is_other = isinstance(function, dict) and any(function.values())
    return custom if isinstance(custom, dict) and not is_other else None


def _has_object(call: Mapping[str, Any]) -> bool:
    """Whether the arguments of a call are an object, or the text of a custom call: neither shows whether the rest of it is missing."""
    return _custom(call) is not None or isinstance((call.get("function") or call).get("arguments"), dict)


def _without_repetitions(parts: tuple[ResponsePart, ...]) -> tuple[ResponsePart, ...]:
    """Return the parts of a stream without calls that another one with the same id and name repeats, or completes.

    Gateways and local servers send some calls twice, under another index, such as with the end of the answer behind them. Calls
    with other arguments are kept: some services give several calls the same id.
    """
    ids = [part.id for part in parts if isinstance(part, ToolCall) and part.id]
    if len({*ids}) == len(ids):
        return parts
    with_arguments = {(part.id, part.name) for part in parts if isinstance(part, ToolCall) and _given(part)}
    seen: set[tuple[str, str, str]] = set()
    kept: list[ResponsePart] = []
    for part in parts:
        if isinstance(part, ToolCall) and part.id:
            given = _given(part)
            is_completed = not given and (part.id, part.name) in with_arguments
            if is_completed or (part.id, part.name, given) in seen:
                continue
            seen.add((part.id, part.name, given))
        kept.append(part)
    return tuple(kept)


def _given(call: ToolCall) -> str:
    """Return the arguments of a call; empty if it has none."""
    text = call.arguments_json.strip()
    return "" if text == "{}" else text


def _details(message: Mapping[str, Any]) -> list[Any]:
    details = message.get(DETAILS)
    return details if isinstance(details, list) else []


_DETAIL_TEXTS = frozenset({"text", "summary", "data"})
"""The entries of a detail that come in pieces."""


def _join_details(fragments: Iterable[Any]) -> list[Any]:
    """Return the details that were streamed in these fragments, in the order in which they began.

    They are those of a complete response: a provider refuses a signature beside another text than it has signed. The
    fragments of a detail have the same type and index.
    """
    details: list[_PartialDetail] = []
    latest: dict[tuple[str, int | None], _PartialDetail] = {}
    for fragment in fragments:
        entries = object_of(fragment)
        index = entries.get("index")
        key = (text_of(entries.get("type")), index if isinstance(index, int) else None)
        detail = latest.get(key)
        if detail is None or not detail.is_continued_by(entries, key[1], is_last=detail is details[-1]):
            detail = latest[key] = _PartialDetail(fragment)
            details.append(detail)
        detail.add(entries)
    return [detail.build() for detail in details]


@define(eq=False)
class _PartialDetail:
    """A detail of the reasoning of which fragments may still arrive.

    Attributes:
        first: its first fragment.
        entries: its entries.
        texts: the pieces of the entries that come in pieces.
    """

    first: Any
    entries: dict[str, Any] = field(factory=dict)
    texts: dict[str, list[str]] = field(factory=dict)

    def is_continued_by(self, fragment: Mapping[str, Any], index: int | None, *, is_last: bool) -> bool:
        """Return whether a fragment of the same type and index belongs to this detail."""
        # Gemini's details have the ids of the calls that they belong to, and may all have index 0.
        ids = self.entries.get("id"), fragment.get("id")
        if not fragment or (all(ids) and ids[0] != ids[1]):
            return False
        # Without an index, only the order tells: a detail is complete with its signature, and encrypted data come whole.
        is_complete = self.entries.get("signature") or "data" in self.entries or "data" in fragment
        return index is not None or (is_last and not is_complete)

    def add(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment."""
        for name, value in fragment.items():
            if name in _DETAIL_TEXTS and isinstance(value, str):
                self.entries.setdefault(name, "")
                self.texts.setdefault(name, []).append(value)
            # The signature follows the text, and the first fragment may have an empty one.
            elif (name == "signature" and value) or self.entries.get(name) is None:
                self.entries[name] = value

    def build(self) -> Any:
        """Return the detail with its pieces joined."""
        if not self.entries:
            return self.first
        return {**self.entries, **{name: "".join(pieces) for name, pieces in self.texts.items()}}


def _call_data(call: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = object_of(call.get(EXTRA_CONTENT))
    if _custom(call) is not None:
        return {NAME: {"type": CUSTOM}}
    return {NAME: {EXTRA_CONTENT: extra}} if extra else {}


def _call_id(call: Mapping[str, Any]) -> str:
    call_id = call.get("id")
    return str(call_id) if isinstance(call_id, int) else text_of(call_id)


def _finish_reason(reason: str, *, has_calls: bool, is_refusal: bool) -> FinishReason:
    # Many services say "stop" for every response, so calls and refusals take precedence.
    word = reason.lower()
    if has_calls and word in {"stop", ""}:
        return FinishReason.TOOL_CALLS
    if is_refusal and word in {"stop", ""}:
        return FinishReason.CONTENT_FILTER
    return finish_reason(word, _FINISH_REASONS)


def _usage(usage: Any) -> Usage:
    """Return the token counts; a count that the service does not report is None."""
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = (
        object_of(usage.get("prompt_tokens_details")),
        object_of(usage.get("completion_tokens_details")),
    )
    # OpenAI, DeepSeek and Moonshot report cached tokens in different places.
    cached = (prompt.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    inputs, outputs = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    reasoning = count_of(completion.get("reasoning_tokens"))
    return Usage(
        inputs,
        output_with_reasoning(inputs, outputs, reasoning, usage.get("total_tokens")),  # xAI counts it apart
        next((count for count in map(count_of, cached) if count is not None), None),
        count_of(prompt.get("cache_write_tokens")),
        reasoning,
    )


class ChatStreamDecoder(JsonEventDecoder):
    """Decodes a streamed chat completion; only the first choice is read."""

    answer_entry = "choices"

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._builder = ResponseBuilder()
        self._model = ""
        self._id = ""
        self._finish = ""
        self._usage: Any = None
        self._is_refusal = False
        self._has_choices = False
        self._logprobs: list[TokenLogprob] = []
        self._details: list[Any] = []
        # By the index of a chunk, the number of the last call with this index: some services send every call complete
        # and with index 0.
        self._call_numbers: dict[object, int] = {}
        # The latest call, if its arguments came as an object.
        self._whole_object: Hashable = None
        self._names_fragments = False

    def find_error(self, data: Any) -> object:
        """Return the chunk or the choice that reports an error."""
        return _find_error(data)

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:  # noqa: ARG002  # chunks have no names
        """Process one chunk."""
        # The last chunks of some services have no model and id.
        self._model = self._model or text_of(data.get("model"))
        self._id = self._id or text_of(data.get("id"))
        choices = data.get("choices") or ()
        # The last token counts of the stream are those of the response; services put them in different places.
        for source in (data, data.get("x_groq"), choices[0] if choices else None):
            if source and source.get("usage"):
                self._usage = source["usage"]
        deltas: list[InferenceDelta] = []
        for choice in choices:
            if not choice.get("index"):
                self._has_choices = True
                deltas += self._process_choice(choice)
        return deltas

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream contained no choices, or neither a finish reason nor `[DONE]`.
        """
        if not self._has_choices:
            raise self.truncation_error("it contains no choices")
        if not self._finish and not self.is_done:
            raise self.truncation_error("it contains no finish reason")
        reason = _finish_reason(self._finish, has_calls=self._builder.has_calls, is_refusal=self._is_refusal)
        if self._details:
            self._builder.mark(DETAILS, {NAME: {DETAILS: _join_details(self._details)}})
        if not self._finish:
            # Proxies send `[DONE]` also when the service behind them has failed.
            self._builder.reject_empty(or_objects=False)
        if reason.is_incomplete and self._whole_object is not None:
            self._builder.reject(self._whole_object)
        return InferenceResponse(
            _without_repetitions(self._builder.parts(reason)),
            reason,
            _usage(self._usage),
            self._model,
            self._id,
            self._finish or None,
            logprobs=self._logprobs,
        )

    def _process_choice(self, choice: dict[str, Any]) -> list[InferenceDelta]:
        if choice.get("finish_reason"):
            self._note_end(reason_of(choice["finish_reason"]))
        if choice.get("logprobs"):
            self._logprobs += _logprobs(choice)
        delta = choice.get("delta") or choice.get("message") or {}
        content = delta.get("content")
        # Nearly all chunks have a piece of text and nothing else.
        if len(delta) == 1 and isinstance(content, str):
            return self._builder.text(content)
        deltas: list[InferenceDelta] = []
        deltas += self._process_reasoning(delta)
        deltas += self._process_content(content)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            # The key keeps the fragments of a refusal apart from those of the content.
            self._is_refusal = True
            deltas += self._builder.text(refusal, "refusal")
            self._builder.mark("refusal", _REFUSAL)
        for call in _calls_in(delta):
            deltas += self._process_call(call, call.get("index"))
        return deltas

    def _note_end(self, reason: str) -> None:
        # A gateway may end every stream with "stop", also behind the chunk that says that the generation failed.
        if not finish_reason(self._finish.lower(), _FINISH_REASONS).is_incomplete:
            self._finish = reason

    def _process_reasoning(self, delta: Mapping[str, Any]) -> list[InferenceDelta]:
        reasoning = text_of(delta.get("reasoning_content") or delta.get("reasoning"))
        details = _details(delta)
        if not details:
            return self._builder.reasoning(reasoning)
        # The details come in fragments too, and go back with all of the reasoning.
        self._details += details
        return self._builder.reasoning(reasoning, DETAILS)

    def _process_content(self, content: Any) -> list[InferenceDelta]:
        if isinstance(content, str):
            return self._builder.text(content)
        deltas: list[InferenceDelta] = []
        for part in _content_parts(content) if content else ():
            add = self._builder.reasoning if isinstance(part, Reasoning) else self._builder.text
            deltas += add(part.text)
        return deltas

    def _process_call(self, call: dict[str, Any], index: object) -> list[InferenceDelta]:
        """Process a fragment of a call.

        Fragments with the same index belong to one call, until a name with another id starts a new call, or without ids a name
        after complete arguments. Fragments without an index extend the last call, unless they have an id or a name of their own.
        """
        call_id, (name, arguments) = _call_id(call), _name_and_arguments(call)
        number = self._call_numbers.get(index, -1)
        if number < 0 or self._starts_call((index, number), call_id, name, arguments):
            self._call_numbers[index] = number = number + 1
            deltas = self._builder.call((index, number), call_id, name)
        else:
            self._builder.name_call((index, number), call_id, name)
            deltas = []
        self._whole_object = (index, number) if _has_object(call) else None
        self._builder.mark((index, number), _call_data(call))
        return deltas + self._builder.arguments((index, number), arguments)

    def _starts_call(self, key: tuple[object, int], call_id: str, name: str, arguments: str) -> bool:
        # Most fragments have nothing but a piece of the arguments.
        if not name and not call_id:
            return False
        last_id = self._builder.call_id(key)
        if key[0] is None:
            return not call_id or call_id != last_id
        # Some services make up another id for each fragment, or for all but the first.
        if not name:
            return False
        if call_id and last_id:
            return call_id != last_id
        # The name again, without arguments, says nothing new.
        if not (arguments or name != self._builder.call_name(key)):
            return False
        return self._is_whole(key)

    def _is_whole(self, key: tuple[object, int]) -> bool:
        """Return whether the arguments of a call are complete, so that a name begins another call."""
        # A service that has named a call within its arguments may do so in each chunk; they are not parsed for each.
        if self._names_fragments:
            return False
        arguments = self._builder.call_arguments(key)
        is_whole = _is_object(arguments)
        self._names_fragments = bool(arguments) and not is_whole
        return is_whole


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False
