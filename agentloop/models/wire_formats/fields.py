"""Helpers that the wire formats share: request bodies, call ids, tool names, and tolerant readers of response fields."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any, TypeVar, cast

from attrs import field, frozen

from agentloop.errors import BadRequest, UnsupportedOption
from agentloop.models.config import LLMConfig
from agentloop.values.inference import MAX_TOP_LOGPROBS, HostedTool, InferenceRequest, TokenLogprob
from agentloop.values.json import (
    EMPTY_OBJECT,
    JsonObject,
    format_json,
    freeze_object,
    replace_lone_surrogates,
    thaw,
)
from agentloop.values.messages import OF_TOOLS, Message
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.tool_calls import ContentPart, ToolExchange
from agentloop.values.value import encode_each

T = TypeVar("T")


def merge_entries(entries: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries updated by `extra`: objects of the same name are merged recursively, other values replaced."""
    merged = dict(entries)
    for name, value in extra.items():
        current = merged.get(name)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            merged[name] = merge_entries(current, value)
        else:
            merged[name] = value
    return merged


def refuse_duplicates(entries: Mapping[str, Any], encoded: Iterable[str]) -> None:
    """Refuse entries that the body already contains, since it is undefined which of two equal keys a service reads.

    Args:
        entries: the entries to add to the body.
        encoded: the names that the body already contains.

    Raises:
        BadRequest: names the duplicates.
    """
    duplicates = entries.keys() & set(encoded)
    if duplicates:
        raise BadRequest(
            f"options.extra contains {', '.join(sorted(duplicates))}, which the request itself sets; remove it there"
        )


@frozen
class FormatTerms:
    """What a wire format cannot say, for the errors that name it.

    Attributes:
        name: the name of the wire format.
        title: what its documentation calls it.
        hosted_forms: how it writes the hosted tools that it has, by their kind.
    """

    name: str
    title: str
    hosted_forms: Mapping[str, HostedForm] = EMPTY_OBJECT

    def refuse(
        self, option: str, remedy: str = "remove it, or use a model of another wire format"
    ) -> UnsupportedOption:
        """Return the error for an option without an equivalent.

        Args:
            option: the option as it is written, such as `seed`, or with its value.
            remedy: what to write instead.
        """
        name = option.partition("=")[0].partition(".")[0]
        return UnsupportedOption(
            f"{self.title} has no equivalent of the option {option}; {remedy}", option=name, wire_format=self.name
        )

    def refuse_options(
        self,
        request: InferenceRequest,
        config: LLMConfig,
        *names: str,
        remedy: str = "remove it, or pass it in options.extra to a service that has it",
    ) -> None:
        """Refuse options that are set, in the request or the configuration.

        Raises:
            UnsupportedOption: names the first one.
        """
        for name in names:
            for options in (config.options, request.options):
                # By identity: a seed of zero is one.
                if not any(getattr(options, name) is unset for unset in (None, False, ())):
                    raise self.refuse(name, remedy)

    def hosted_tools(self, request: InferenceRequest, config: LLMConfig) -> list[Mapping[str, Any]]:
        """Return the hosted tools of a request, or else of its configuration, as the wire format writes them.

        Raises:
            UnsupportedOption: when the wire format has no such tool, or a tool no such setting; names it.
        """
        tools = request.options.hosted_tools or config.options.hosted_tools
        return [self._hosted_tool(tool) for tool in tools]

    def _hosted_tool(self, tool: HostedTool) -> Mapping[str, Any]:
        if tool.wire_format == self.name:
            return tool.settings
        form = self.hosted_forms.get(tool.kind)
        if form is None:
            written = tool.kind if tool.kind != "provider" else f"written for {tool.wire_format}"
            raise self.refuse(f"hosted_tools={written}")
        encoded: dict[str, Any] = thaw(form.tool)
        for name, value in tool.settings.items():
            if name not in form.settings:
                raise self.refuse(f"hosted_tools={tool.kind}.{name}", f"leave out {name}")
            *path, key = form.settings[name].split(".")
            target = encoded
            for step in path:
                target = target.setdefault(step, {})
            target[key] = value
        return encoded


@frozen
class HostedForm:
    """How a wire format writes a hosted tool.

    Attributes:
        tool: the tool without settings.
        settings: the place of each setting that it has, as a path in the tool.
    """

    tool: JsonObject = field(converter=freeze_object)
    settings: Mapping[str, str] = EMPTY_OBJECT


def unique_call_ids(exchanges: Sequence[ToolExchange]) -> list[str]:
    """Return one distinct id per call of a turn: the provider's id, or one derived from the call's position."""
    provider_ids = {exchange.call.id for exchange in exchanges}
    ids: list[str] = []
    used: set[str] = set()
    for index, exchange in enumerate(exchanges):
        call_id = exchange.call.id
        # The first call with an id keeps it; the provider would refuse the others.
        if not call_id or call_id in used:
            call_id = f"{call_id or 'call'}_{index}"
            # A derived id must not equal an id of the model either.
            while call_id in provider_ids or call_id in used:
                call_id = f"{call_id}_{index}"
        ids.append(call_id)
        used.add(call_id)
    return ids


_ID_DIGEST_LENGTH = 16


@lru_cache(maxsize=4096)
def limited_call_id(call_id: str, max_length: int) -> str:
    """Return an id of a call, shortened for a service that refuses longer ones, with a digest; different ids stay different.

    Args:
        call_id: the id, which another service may have made.
        max_length: the maximum number of characters; 0 for no limit.
    """
    if not max_length or len(call_id) <= max_length:
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGEST_LENGTH]
    return f"{call_id[: max_length - _ID_DIGEST_LENGTH - 1]}_{digest}"


class RequestCache:
    """What the requests of one execution have in common, encoded; a request usually extends the one before."""

    __slots__ = ("_fingerprint", "_joined", "_messages", "_settings", "_settings_key")

    def __init__(self) -> None:
        self._messages: tuple[Message, ...] = ()
        self._fingerprint: Hashable = None
        self._joined = bytearray()
        self._settings_key: tuple[object, ...] = ()
        self._settings: Any = None

    def join(
        self, messages: tuple[Message, ...], fingerprint: Hashable, encode: Callable[[Message], bytes]
    ) -> bytes | bytearray:
        """Return the encodings of messages, joined by commas, without empty ones and lone surrogates.

        Only messages that the last request did not begin with are looked at in Python.

        Args:
            messages: the messages.
            fingerprint: identifies the encoder and everything else that its output depends on besides the message.
            encode: a pure function.
        """
        known = self._messages
        # By identity: values that are equal, such as 1 and True, may have different encodings.
        extends = len(known) <= len(messages) and fingerprint == self._fingerprint and all(map(is_, known, messages))
        if not extends:
            known, self._messages, self._joined, self._fingerprint = (), (), bytearray(), fingerprint
        # Nothing is kept before all of it is encoded: a message may have no encoding.
        segments = encode_each(messages[len(known) :], fingerprint, encode)
        for segment in segments:
            if segment:
                self._joined += b"," if self._joined else b""
                self._joined += replace_lone_surrogates(segment)
        self._messages = messages
        return self._joined

    def settings(self, key: tuple[object, ...], encode: Callable[[], T]) -> T:
        """Return `encode()`, computed anew when one of the objects in the key is another one than for the last request."""
        if len(key) != len(self._settings_key) or not all(map(is_, key, self._settings_key)):
            settings = encode()
            self._settings_key, self._settings = key, settings
        return cast("T", self._settings)


_MAX_LABEL_START = 48
"""How many characters of a label precede a suffix; providers accept 64 in all."""


def encode_labeled(
    messages: Sequence[Message],
    fingerprint: Hashable,
    encode: Callable[[Message, Sequence[str]], T],
    labels_of: Callable[[Message], Sequence[str]],
    separator: str,
) -> list[T]:
    """Encode each message with labels, such as the ids of its calls, that are unique in the conversation.

    A label that an earlier message has gets the position of its message as a suffix. Positions do not change while the
    conversation grows, so neither do the encodings, which are computed once.

    Args:
        messages: the conversation.
        fingerprint: identifies the encoding of a message with its own labels.
        encode: encodes a message with its labels, or with others in their place.
        labels_of: returns the labels of a message, each unique in the message.
        separator: what precedes the position.
    """

    def encode_again(message: Message, labels: tuple[str, ...]) -> T:
        return message.encoded((fingerprint, labels), lambda same: encode(same, labels))

    encoded = encode_each(messages, fingerprint, lambda message: encode(message, labels_of(message)))
    used: set[str] = set()
    for position, labels in enumerate(encode_each(messages, (fingerprint, "labels"), labels_of)):
        # Most messages have unused labels, and are encoded without regard to their position.
        if not used.isdisjoint(labels):
            unused = unused_labels(labels, used, position, separator)
            encoded[position] = encode_again(messages[position], unused)
            used.update(unused)
        used.update(labels)
    return encoded


def unused_labels(labels: Sequence[str], used: Container[str], position: int, separator: str) -> tuple[str, ...]:
    """Return labels that differ from each other and from the used ones; one that does not gets the position as a suffix."""
    unused: list[str] = []
    for label in labels:
        candidate, attempt = label, 0
        while candidate in used or candidate in unused or (candidate != label and candidate in labels):
            further = f"{separator}{attempt}" if attempt else ""
            candidate = f"{label[:_MAX_LABEL_START]}{separator}{position}{further}"
            attempt += 1
        unused.append(candidate)
    return tuple(unused)


_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_NO_IDENTIFIER_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")
_LEADING_LETTER = re.compile(r"[a-zA-Z_]")
_DIGEST_SUFFIX = re.compile(r"__[0-9a-f]{8}\Z")
_MAX_NAME_LENGTH = 64
_DIGEST_LENGTH = 8


@lru_cache(maxsize=4096)
def wire_name(name: str, *, letter_first: bool = False, has_dashes: bool = True) -> str:
    """Return the name under which a tool is sent to a provider.

    A name of at most 64 letters, digits, underscores and dashes is unchanged. Any other name is shortened and sanitized, and
    gets a digest of the original as a suffix, so that different names stay different. The result depends on the arguments
    alone.

    Args:
        name: the name of the tool.
        letter_first: whether the provider refuses names that start with a digit or a dash.
        has_dashes: whether the provider accepts dashes.
    """
    invalid = _INVALID_CHARACTER if has_dashes else _NO_IDENTIFIER_CHARACTER
    needs_letter = letter_first and not _LEADING_LETTER.match(name)
    is_valid = 0 < len(name) <= _MAX_NAME_LENGTH and not needs_letter and not invalid.search(name)
    # A valid name that already ends like a digest is encoded too: it could be the encoded form of another name.
    if is_valid and not _DIGEST_SUFFIX.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    readable = invalid.sub("_", f"_{name}" if needs_letter else name)
    return f"{readable[: _MAX_NAME_LENGTH - _DIGEST_LENGTH - 2]}__{digest}"


def encoded_names(names: Iterable[str], *, letter_first: bool = False, has_dashes: bool = True) -> dict[str, str]:
    """Return the original tool names by their wire names, for the names that `wire_name` changes."""
    pairs = [(wire_name(name, letter_first=letter_first, has_dashes=has_dashes), name) for name in names]
    return {wire: name for wire, name in pairs if wire != name}


def text_of(value: object) -> str:
    """Return a string unchanged, and an empty string for any other value."""
    return value if isinstance(value, str) else ""


def object_of(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged, and an empty object for any other value."""
    return value if isinstance(value, dict) else {}


def count_of(value: object) -> int | None:
    """Return a token count as an int, and None for a value that is not a count: negative, infinite, or not a number."""
    # Some services send counts as floats; JSON also allows numbers that are too large for a float.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    return None


def output_with_reasoning(inputs: int | None, outputs: int | None, reasoning: int | None, total: object) -> int | None:
    """Return the output tokens with those of the reasoning, which some services count apart: the total then includes both.

    Args:
        inputs: the input tokens.
        outputs: the output tokens, as the service reports them.
        reasoning: the tokens of the reasoning.
        total: the sum that the service reports.
    """
    if inputs is None or outputs is None or reasoning is None:
        return outputs
    return outputs + reasoning if count_of(total) == inputs + outputs + reasoning else outputs


def read_logprobs(items: object) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities that a service reports in OpenAI's form; what is not in that form is left out."""
    if not isinstance(items, list):
        return ()
    read = [_read_logprob(item, _read_alternatives(item)) for item in items]
    return tuple([logprob for logprob in read if logprob is not None])


def _read_alternatives(item: object) -> tuple[TokenLogprob, ...]:
    alternatives = object_of(item).get("top_logprobs")
    read = [_read_logprob(other) for other in alternatives[:MAX_TOP_LOGPROBS]] if isinstance(alternatives, list) else []
    return tuple([logprob for logprob in read if logprob is not None])


def _read_logprob(item: object, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob | None:
    entries = object_of(item)
    token, logprob = entries.get("token"), finite_number_of(entries.get("logprob"))
    if not isinstance(token, str) or logprob is None:
        return None
    return TokenLogprob(token, logprob, _read_bytes(entries.get("bytes")), top)


def _read_bytes(data: object) -> bytes | None:
    try:
        return bytes(data) if isinstance(data, list) else None
    except (TypeError, ValueError):  # no list of bytes
        return None


def finite_number_of(value: object) -> float | None:
    """Return a JSON number as a float, and None for any other value, also for one that a float cannot hold."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


CUT_OFF = "the answer ended before this call was complete; make the call again, with all arguments"
"""Why a call must not run of which the rest may be missing."""


def arguments_json(arguments: Any, *, missing: str = "{}") -> str:
    """Return the arguments of a call as JSON text, whether the service sends them as text, as an object or not at all.

    Args:
        arguments: what the service sends.
        missing: the text for arguments that are not there. It is empty where the rest of an answer is missing: empty arguments
            would be complete.
    """
    if arguments is None:
        return missing
    return arguments if isinstance(arguments, str) else format_json(arguments).decode()


def model_of(request: InferenceRequest, config: LLMConfig) -> str:
    """Return the model that a request is for: its own, that of the options of the configuration, or the configuration's."""
    return request.options.model or config.options.model or config.model


def describe_media(part: Image | Audio | Document) -> str:
    """Return a short text that stands for a medium, such as `image/png "chart.png"`."""
    kind = part.media_type or type(part).__name__.lower()
    return f'{kind} "{part.name}"' if part.name else kind


OPENAI_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
"""The images that OpenAI accepts in both of its APIs."""
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")


def bare_media_type(media_type: str) -> str:
    """Return a MIME type in lower case, without parameters: `text/csv` for `Text/CSV; charset=utf-8`."""
    return media_type.partition(";")[0].strip().lower()


def is_text_type(media_type: str) -> bool:
    """Return whether content of this MIME type is text, such as JSON, XML, and everything that begins with `text/`."""
    bare = bare_media_type(media_type)
    return bare.startswith("text/") or bare in _TEXT_TYPES or bare.endswith(_TEXT_SUFFIXES)


def written_out(part: ContentPart) -> Text | None:
    """Return the text of a document that contains text, below its name; None for any other part, and for text that is not UTF-8."""
    if not isinstance(part, Document) or part.data is None or not is_text_type(part.media_type):
        return None
    try:
        # Texts are joined without separators.
        return Text(f"\n[{describe_media(part)}]\n{part.data.decode('utf-8-sig')}\n")
    except UnicodeDecodeError:
        return None


def sendable_parts(
    parts: Iterable[ContentPart], encode: Callable[[Image | Audio | Document], object]
) -> list[ContentPart]:
    """Return the parts of a tool's result; of each medium that cannot be sent, its text, or else a note for the model.

    What a user sends is refused instead; but what a tool returns depends on the model, and must not end the run.

    Args:
        parts: the parts.
        encode: encodes a medium; raises `BadRequest` when the wire format has no encoding for it.
    """
    return [
        part
        if isinstance(part, Text) or _is_encodable(part, encode)
        else written_out(part) or Text(f"[{describe_media(part)}: this API cannot transmit it]")
        for part in parts
    ]


def message_content(message: Message, encode: Callable[[Image | Audio | Document], object]) -> list[ContentPart]:
    """Return the texts and media of a message of the user or the system; of a document that cannot be sent, its text.

    Args:
        message: the message. If a mode has made it of the results of tools, other media that cannot be sent are replaced by a
            note.
        encode: encodes a medium; raises `BadRequest` when the wire format has no encoding for it.
    """
    content = [part for part in message.parts if isinstance(part, Text | Image | Audio | Document)]
    if OF_TOOLS.items() <= message.metadata.items():
        return sendable_parts(content, encode)
    return [
        part if isinstance(part, Text) or (text := written_out(part)) is None or _is_encodable(part, encode) else text
        for part in content
    ]


def _is_encodable(part: Image | Audio | Document, encode: Callable[[Image | Audio | Document], object]) -> bool:
    try:
        encode(part)
    except BadRequest:
        return False
    return True
