"""Answers that come in pieces: from bytes to deltas and, in the end, to a response."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.errors import OTHER_SHAPE, error_in_answer, not_an_answer
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.inference.wire_formats.server_sent_events import EventReader, LineReader, ServerSentEvent
from agentloop.values.inference import InferenceDelta, InferenceResponse
from agentloop.values.json import parse_json

_OK = 200
_DONE = "[DONE]"

PlainDecoder = Callable[[int, Mapping[str, str], bytes], InferenceResponse]
"""Reads an answer that came whole: `WireFormat.decode_response`."""


class StreamDecoder(ABC):
    """Reads one streamed answer.

    An implementer keeps these laws:

    - What is told does not depend on how the bytes are cut, also not inside of a character.
    - The response equals what `decode_response` would make of the same answer in one piece.
    - Bytes that are not an answer, and errors told inside of the stream, raise typed errors; the time and memory taken grow
      with the length of the stream.
    """

    @abstractmethod
    def feed(self, data: bytes) -> list[InferenceDelta]:
        """Take the next bytes, and return what is new in them.

        Raises:
            InferenceError: for an error that the provider tells, or what is not an answer.
        """

    @abstractmethod
    def close(self) -> InferenceResponse:
        """End the stream, and return the whole answer.

        Raises:
            InferenceError: for an error that the provider tells, or what is not an answer: `InvalidResponse` also when it
                ended too early to be one.
        """


class Framing(Protocol):
    """Cuts a stream into events."""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take more bytes, and return the events that are complete now."""

    def close(self) -> list[ServerSentEvent]:
        """Return what is left as events."""


class JsonLines:
    """Cuts a stream into lines, each of which is the data of an event."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = LineReader()

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take more bytes, and return the lines that are complete now."""
        return self._events(self._lines.feed(data))

    def close(self) -> list[ServerSentEvent]:
        """Return the last line, if it has no end."""
        return self._events(self._lines.close())

    def _events(self, lines: list[bytes]) -> list[ServerSentEvent]:
        return [ServerSentEvent(line.decode("utf-8", "replace")) for line in lines if line.strip()]


class JsonEventDecoder(StreamDecoder):
    """A template for streams whose events are JSON objects; a format says what each of them means.

    A service that does not stream when it is asked to is understood too: a body that begins as JSON or as a page is read
    whole. The text `[DONE]` is passed over; nothing depends on it.

    Args:
        plain: reads a body that came whole.
        headers: the HTTP headers of the answer, by names in lower case.
    """

    plain_begins_with = b"{[<"
    """With what a body begins that is no stream."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        self.builder: ResponseBuilder = ResponseBuilder()
        self.headers = headers
        self._decode_plain = plain
        self._whole: bytearray | None = None
        self._has_begun = False
        self._has_events = False
        self._framing = self.framing()

    @abstractmethod
    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take one event.

        Args:
            data: its data.
            name: its name; empty when it has none.

        Raises:
            InferenceError: for an error that the provider tells; what goes wrong with the shape of the data (`KeyError`,
                `TypeError` and the like) is told as `InvalidResponse` by the template.
        """

    @abstractmethod
    def response(self) -> InferenceResponse:
        """Return the whole answer, after the last event.

        Raises:
            InferenceError: when the stream ended too early to be one.
        """

    def framing(self) -> Framing:
        """Return what cuts the bytes into events: those of server-sent events."""
        return EventReader()

    def failed(self, data: Any) -> InferenceError:
        """Make the typed error of an error that is told inside of the stream."""
        return error_in_answer(data, _OK, self.headers)

    def cut_short(self, why: str) -> InferenceError:
        """Make the error of a stream that ended too early."""
        return not_an_answer(f"the stream ended too early: {why}", _OK, self.headers)

    def feed(self, data: bytes) -> list[InferenceDelta]:
        """Take the next bytes, and return what is new in them.

        Raises:
            InferenceError: for an error that the provider tells, or what is not an answer.
        """
        if not self._has_begun:
            data = data.lstrip()
            if not data:
                return []
            self._has_begun = True
            if data[0] in self.plain_begins_with:
                self._whole = bytearray()
        if self._whole is not None:
            self._whole += data
            return []
        return self._read(self._framing.feed(data))

    def close(self) -> InferenceResponse:
        """End the stream, and return the whole answer.

        Raises:
            InferenceError: for an error that the provider tells, or what is not an answer.
        """
        if self._whole is not None:
            return self._decode_plain(_OK, self.headers, bytes(self._whole))
        self._read(self._framing.close())
        if not self._has_events:
            raise self.cut_short("nothing came")
        try:
            return self.response()
        except OTHER_SHAPE as error:
            raise self._of_another_shape() from error

    def _read(self, events: list[ServerSentEvent]) -> list[InferenceDelta]:
        found: list[InferenceDelta] = []
        for event in events:
            if event.data[:1] == "[" and event.data.strip() == _DONE:
                continue
            data = self._parsed(event)
            self._has_events = True
            try:
                found += self.take(data, event.event)
            except OTHER_SHAPE as error:
                raise self._of_another_shape() from error
        return found

    def _parsed(self, event: ServerSentEvent) -> dict[str, Any]:
        try:
            data = parse_json(event.data)
        except ValueError as error:
            why = f"an event of the stream is not JSON ({error})"
            raise not_an_answer(why, _OK, self.headers, event.data.encode("utf-8", "replace")) from error
        if not isinstance(data, dict):
            raise not_an_answer(
                "an event of the stream is not a JSON object", _OK, self.headers, event.data.encode("utf-8", "replace")
            )
        return data

    def _of_another_shape(self) -> InferenceError:
        return not_an_answer("the stream has not the shape of an answer", _OK, self.headers)
