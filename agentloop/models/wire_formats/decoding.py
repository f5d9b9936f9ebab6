"""Decoding of JSON responses, complete or streamed: the parts that all wire formats have in common."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from agentloop.errors import InferenceError, InvalidResponse
from agentloop.models.wire_formats.errors import (
    find_bare_error,
    find_error,
    invalid_response,
    reported_error,
    status_error,
    truncation_error,
)
from agentloop.models.wire_formats.framing import ERROR_EVENTS, MAX_ENTRIES, EventReader, Framing, ServerSentEvent
from agentloop.models.wire_formats.response_builder import MAX_PARTS
from agentloop.models.wire_formats.wire_format import StreamDecoder
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse
from agentloop.values.json import TooManyEntries, format_json, is_truncated_json, parse_json

BodyDecoder: TypeAlias = Callable[[int, Mapping[str, str], bytes], InferenceResponse]
"""Decodes a complete response: `WireFormat.decode_response`."""

SHAPE_ERRORS = (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError)
"""The exceptions that reading an unexpected JSON structure raises."""

_SUCCESS = range(200, 300)
_OK = 200
_DONE = "[DONE]"
_UNLISTED_REASONS = (
    (re.compile("malformed|error|fail|abort|cancel|interrupt|insufficient|unexpected|invalid"), FinishReason.ERROR),
    (
        re.compile("filter|safety|sensitive|refus|moderation|block|policy|prohibited|recitation"),
        FinishReason.CONTENT_FILTER,
    ),
    (re.compile("length|max.?tokens|context.?window|token.?limit"), FinishReason.LENGTH),
)


def reason_of(value: object) -> str:
    """Return the finish reason that a service reports, or an empty text; one that is no text as JSON, since it is none that is known."""
    if isinstance(value, str) or not value:
        return value if isinstance(value, str) else ""
    return format_json(value).decode()


def finish_reason(word: str, known: Mapping[str, FinishReason]) -> FinishReason:
    """Return the neutral finish reason.

    Args:
        word: the reason that the service reports; empty when it reports none.
        known: the reasons that the wire format defines. Services invent others, most of which say that something failed.
    """
    if not word:
        return FinishReason.UNKNOWN
    reason = known.get(word)
    if reason is not None:
        return reason
    lowered = word.lower()
    return next((kind for pattern, kind in _UNLISTED_REASONS if pattern.search(lowered)), FinishReason.OTHER)


def decode_body(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    decode: Callable[[Any], InferenceResponse],
    expected: str,
    find_error: Callable[[Any], object] = find_error,
) -> InferenceResponse:
    """Decode a complete response.

    Args:
        status: the HTTP status.
        headers: the HTTP headers, by lower-case names.
        body: the complete body.
        decode: decodes the JSON of a response; may raise any of `SHAPE_ERRORS`.
        expected: what the body should be, for error messages.
        find_error: returns the JSON value that reports an error, or a false value when there is none.

    Raises:
        InferenceError: typed by status and body.
    """
    if status not in _SUCCESS:
        raise status_error(status, headers, body)
    data = _parse_body(status, headers, body)
    # Some services report errors with status 200, also next to an answer.
    failure = find_error(data)
    if failure:
        raise reported_error(failure, status, headers)
    try:
        response = decode(data)
    except (*SHAPE_ERRORS, InvalidResponse) as error:
        if failure := find_bare_error(data):
            raise reported_error(failure, status, headers) from error
        if isinstance(error, InvalidResponse):
            raise
        reason = f"the response does not have the structure of {expected}"
        raise invalid_response(reason, status, headers, body) from error
    if not response.parts and (failure := find_bare_error(data)):
        raise reported_error(failure, status, headers)
    if len(response.parts) > MAX_PARTS:
        raise invalid_response(f"the response has more than {MAX_PARTS:,} parts", status, headers, body)
    return response


def _parse_body(status: int, headers: Mapping[str, str], body: bytes) -> Any:
    try:
        return parse_json(body, MAX_ENTRIES)
    except TooManyEntries as error:
        raise invalid_response(f"the response {error}", status, headers, body) from error
    except ValueError as error:
        reason = f"the response is not JSON ({error})"
        if is_truncated_json(body):
            raise truncation_error(f"the response ended too early: {reason}", status, headers, body) from error
        raise invalid_response(reason, status, headers, body) from error


class JsonEventDecoder(StreamDecoder):
    """Template for decoders of streams whose events are JSON objects; a wire format implements `process` and `response`.

    Some services do not stream although the request asks for it. A body that begins like JSON or HTML is therefore buffered
    and decoded as a complete response. An event that reports an error raises it, wherever it is in the stream: neither the
    answer before it nor one in the same event counts. Other events with blank data are skipped.

    Args:
        decode_body: decodes a complete response.
        headers: the HTTP headers of the response, by lower-case names.
    """

    whole_body_prefixes = b"{[<"
    """The first bytes of bodies that are not streams. A format whose events begin with one of them, as lines of JSON do, leaves it out."""
    answer_entry = "type"
    """An entry of every event with a part of an answer: such an event reports an error only in an error entry."""

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._decode_body = decode_body
        self._body: bytearray | None = None
        self._has_bytes = False
        self._has_events = False
        self.is_done: bool = False
        self._framing = self.framing()

    @abstractmethod
    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Process one event and return its deltas.

        Args:
            data: the event's data.
            name: the event's name; empty when it has none.

        Raises:
            InferenceError: for an answer that is not usable. Any of `SHAPE_ERRORS` is converted to `InvalidResponse`.
        """

    @abstractmethod
    def response(self) -> InferenceResponse:
        """Return the complete response; called after the last event.

        Raises:
            InferenceError: when the stream ended too early.
        """

    def mark_done(self) -> None:
        """Note that the service has said that the response is complete."""
        self.is_done = True

    def framing(self) -> Framing:
        """Return a new reader that splits the bytes into events: by default, server-sent events."""
        return EventReader()

    def find_error(self, data: Any) -> object:
        """Return the JSON value that reports an error in an event, or a false value when there is none."""
        return find_error(data)

    def reported_error(self, data: Any) -> InferenceError:
        """Return the typed error for an error object in the stream."""
        return reported_error(data, _OK, self.headers)

    def truncation_error(self, reason: str) -> InferenceError:
        """Return the error for a stream that ended too early, which is worth another attempt."""
        return truncation_error(f"the stream ended too early: {reason}", _OK, self.headers)

    def feed(self, data: bytes) -> list[InferenceDelta]:
        """Add bytes and return the deltas that they complete.

        Raises:
            InferenceError: for an error that the provider reports, or an invalid stream.
        """
        # Leading whitespace does not tell a stream from a complete body, so it is skipped.
        if not self._has_bytes:
            data = data.lstrip()
            if not data:
                return []
            self._has_bytes = True
            if data[0] in self.whole_body_prefixes:
                self._body = bytearray()
        if self._body is not None:
            self._body += data
            return []
        return self._decode(self._framing.feed(data))

    def close(self) -> InferenceResponse:
        """End the stream and return the complete response.

        Raises:
            InferenceError: for an error that the provider reports, or an invalid stream.
        """
        if self._body is not None:
            return self._decode_body(_OK, self.headers, bytes(self._body))
        self._decode(self._framing.close(), is_end=True)
        # An empty stream is an error and not an empty response: the connection may have been cut.
        if not self._has_events:
            raise self.truncation_error("it contains no events")
        try:
            return self.response()
        except SHAPE_ERRORS as error:
            raise self._unexpected_structure() from error

    def _decode(self, events: list[ServerSentEvent], *, is_end: bool = False) -> list[InferenceDelta]:
        deltas: list[InferenceDelta] = []
        find_error, process = self.find_error, self.process
        for text, name in events:
            # The first character is compared first, because this runs for every event.
            if text[:1] == "[" and text.strip() == _DONE:
                self.mark_done()
                continue
            if name in ERROR_EVENTS:
                raise self.reported_error(_lenient_json(text))
            try:
                data = parse_json(text, MAX_ENTRIES)
            except ValueError as error:
                # Proxies send events without data, which keep the connection alive. The end marker says nothing new.
                if not text.strip() or (is_end and _DONE.startswith(text)):
                    continue
                raise self._unreadable_event(text, error, is_end=is_end) from error
            if not isinstance(data, dict):
                raise self._invalid_event(text, "is not a JSON object")
            self._has_events = True
            try:
                failure = find_error(data) or (None if data.get(self.answer_entry) else find_bare_error(data))
                if failure:
                    raise self.reported_error(failure)
                deltas += process(data, name)
            except SHAPE_ERRORS as error:
                raise self._unexpected_structure() from error
        return deltas

    def _unreadable_event(self, text: str, error: ValueError, *, is_end: bool) -> InferenceError:
        if isinstance(error, TooManyEntries):
            return self._invalid_event(text, str(error))
        problem = f"is not JSON ({error})"
        if is_end and is_truncated_json(text):
            return self.truncation_error(f"its last event {problem}")
        return self._invalid_event(text, problem)

    def _invalid_event(self, text: str, problem: str) -> InferenceError:
        excerpt = text.encode("utf-8", "replace")
        return invalid_response(f"an event of the stream {problem}", _OK, self.headers, excerpt)

    def _unexpected_structure(self) -> InferenceError:
        return invalid_response("the stream does not have the structure of a response", _OK, self.headers)


def _lenient_json(text: str) -> Any:
    """Parse the data of an error event; text that is not JSON is the message itself."""
    try:
        return parse_json(text, MAX_ENTRIES)
    except ValueError:
        return text
