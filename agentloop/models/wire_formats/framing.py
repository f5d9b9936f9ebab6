"""Framing of streamed responses: bytes in, events out, at any chunk boundaries.

Sources: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream,
https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import re
import struct
from binascii import crc32
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from agentloop.values.json import format_json, parse_json

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_ENTRIES = 200_000
"""The entries of the lists and objects in a body or an event: a parser in C lets no other thread go on meanwhile."""

ERROR_EVENTS = frozenset({"error", "response.error"})
"""The names of events that report an error, whatever their data are."""
_BARE_ERROR = re.compile(rb'\{\s*"error"')
"""The start of an error that a service or a proxy sends in a stream as JSON without any field."""


class ServerSentEvent(NamedTuple):
    """One event of a stream.

    Attributes:
        data: the data lines, joined by line feeds.
        event: the event name; empty when the event has none.
    """

    data: str
    event: str = ""


class Framing(Protocol):
    """Splits the bytes of a stream into events."""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add bytes and return the events that are now complete."""

    def close(self) -> list[ServerSentEvent]:
        """End the stream and return the events that were still buffered."""


class EventReader:
    """Reads server-sent events; comments, ids and retry times are ignored."""

    __slots__ = ("_bare", "_data", "_event", "_lines")

    def __init__(self) -> None:
        self._lines = LineReader()
        self._data: list[str] = []
        self._event = ""
        self._bare: list[bytes] = []

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add bytes and return the events that are now complete."""
        return self._read(self._lines.feed(data))

    def close(self) -> list[ServerSentEvent]:
        """Return the last event if the stream ended without the empty line that terminates it."""
        return self._read([*self._lines.close(), b""])

    def _read(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events, data = [], self._data
        for line in lines:
            # Nearly every line that is not empty has this form.
            if line.startswith(b"data: "):
                data.append(line[6:].decode("utf-8", "replace"))
            elif line:
                self._add_field(line)
            else:
                if self._bare:
                    self._add_bare_error()
                # An error without data is an error, too.
                if data or self._event in ERROR_EVENTS:
                    events.append(ServerSentEvent("\n".join(data), self._event))
                    data.clear()
                self._event = ""
        return events

    def _add_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._event = text
        elif name == b"error":
            # Older versions of llama.cpp send an error as a field of its own.
            self._event = "error"
            self._data.append(text)
        elif self._bare or line.startswith(b"{"):
            self._bare.append(line)

    def _add_bare_error(self) -> None:
        """Add JSON without any field, in one line or in several, if it is an error; anything else is no event."""
        text = b"\n".join(self._bare)
        self._bare.clear()
        if _BARE_ERROR.match(text):
            self._event = "error"
            self._data.append(text.decode("utf-8", "replace"))


class JsonLines:
    """Reads a stream of lines, each of which is the data of one event; blank lines are ignored."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = LineReader()

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add bytes and return the lines that are now complete."""
        return self._events(self._lines.feed(data))

    def close(self) -> list[ServerSentEvent]:
        """Return the last line if it was not terminated."""
        return self._events(self._lines.close())

    def _events(self, lines: list[bytes]) -> list[ServerSentEvent]:
        return [ServerSentEvent(line.decode("utf-8", "replace")) for line in lines if line.strip()]


class LineReader:
    """Splits bytes into lines at CR, LF or CRLF. Time is linear in the number of bytes, however small the chunks."""

    __slots__ = ("_buffer", "_has_lines", "_searched")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._has_lines = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the lines that are now complete, without their terminators."""
        buffer = self._buffer
        # The common case: the chunk ends at a line end and nothing is buffered.
        if not buffer and data.endswith(b"\n") and b"\r" not in data:
            return self._without_mark(data[:-1].split(b"\n"))
        buffer += data
        end = max(buffer.rfind(b"\n", self._searched), buffer.rfind(b"\r", self._searched, len(buffer) - 1))
        # A CR in the last position may be the first half of a CRLF, so the next call looks at it again.
        if end < 0:
            self._searched = max(len(buffer) - 1, 0)
            return []
        complete = bytes(buffer[: end + 1])
        del buffer[: end + 1]
        self._searched = max(len(buffer) - 1, 0)
        return self._without_mark(complete.splitlines())

    def close(self) -> list[bytes]:
        """Return the buffered bytes as the last line, if there are any."""
        remainder = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return self._without_mark(remainder.splitlines())

    def _without_mark(self, lines: list[bytes]) -> list[bytes]:
        """Remove a byte order mark from the first line of the stream."""
        if not self._has_lines and lines:
            self._has_lines = True
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return lines


# --- AWS event streams ---------------------------------------------------------------------------------------------

DAMAGE = ":damage"
"""The name of the event that stands for bytes that are not an event stream; its data have the `problem`."""
ERROR_TYPE = "__type"
"""The entry of the data of an error event that has the type of the error."""

_PRELUDE = struct.Struct("!III")  # the lengths of the message and of its headers, and the checksum of both
_CHECKSUM = struct.Struct("!I")
_LENGTH = struct.Struct("!H")
_MAX_HEADERS = 128 * 1024
_MAX_PAYLOAD = 24 * 1024 * 1024
_OVERHEAD = _PRELUDE.size + _CHECKSUM.size
_FIXED_SIZES: Mapping[int, int] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The sizes of header values by their type: true, false, integers, timestamps and UUIDs."""
_BYTES, _STRING = 6, 7


class AwsEventStream:
    """Reads the messages of an AWS event stream and checks their checksums.

    An exception or error message becomes an `error` event with the type of the error under `ERROR_TYPE`. Bytes that are not a
    message become a `DAMAGE` event instead of an error, so that the events before them are processed first, whatever the chunk
    boundaries; everything after them is ignored.
    """

    __slots__ = ("_buffer", "_is_damaged")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_damaged = False

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add bytes and return the events that are now complete."""
        if self._is_damaged:
            return []
        self._buffer += data
        events: list[ServerSentEvent] = []
        start = 0
        try:
            while (end := self._end_of_message(start)) is not None:
                events.append(_event(bytes(self._buffer[start:end])))
                start = end
        except (ValueError, struct.error, IndexError) as error:
            self._is_damaged = True
            self._buffer.clear()
            return [*events, _damage(str(error) if type(error) is ValueError else "its headers are malformed")]
        del self._buffer[:start]
        return events

    def close(self) -> list[ServerSentEvent]:
        """Return a `DAMAGE` event when the stream ended inside a message."""
        return [_damage("it ended inside a message")] if self._buffer else []

    def _end_of_message(self, start: int) -> int | None:
        """Return where the message ends that starts here, or None when it is incomplete.

        Raises:
            ValueError: when the bytes are not a message.
        """
        if len(self._buffer) - start < _PRELUDE.size:
            return None
        total, headers, checksum = _PRELUDE.unpack_from(self._buffer, start)
        if crc32(self._buffer[start : start + _PRELUDE.size - _CHECKSUM.size]) != checksum:
            raise ValueError("the checksum of a prelude is wrong")
        # The lengths are limited before the message is buffered.
        if headers > _MAX_HEADERS or not 0 <= total - headers - _OVERHEAD <= _MAX_PAYLOAD:
            raise ValueError("the length of a message is invalid")
        return start + total if len(self._buffer) - start >= total else None


def _event(message: bytes) -> ServerSentEvent:
    """Return the event for a complete message.

    Raises:
        ValueError: when the checksum is wrong or a header is missing.
        struct.error, IndexError: when the headers are malformed.
    """
    (checksum,) = _CHECKSUM.unpack(message[-_CHECKSUM.size :])
    if crc32(message[: -_CHECKSUM.size]) != checksum:
        raise ValueError("the checksum of a message is wrong")
    _, length, _ = _PRELUDE.unpack_from(message)
    headers = _headers(message[_PRELUDE.size : _PRELUDE.size + length])
    payload = message[_PRELUDE.size + length : -_CHECKSUM.size].decode("utf-8", "replace")
    kind = headers.get(":message-type")
    if kind == "event":
        return ServerSentEvent(payload, headers.get(":event-type", ""))
    if kind == "exception":
        return _error(headers.get(":exception-type", ""), payload)
    if kind == "error":
        return _error(
            headers.get(":error-code", ""), format_json({"message": headers.get(":error-message", "")}).decode()
        )
    raise ValueError("a message has no known type")


def _headers(data: bytes) -> dict[str, str]:
    """Return the text headers of a message; those of other types are skipped."""
    headers: dict[str, str] = {}
    position = 0
    while position < len(data):
        name_end = position + 1 + data[position]
        name, kind = data[position + 1 : name_end], data[name_end]
        position = name_end + 1
        if kind in _FIXED_SIZES:
            position += _FIXED_SIZES[kind]
        elif kind in {_BYTES, _STRING}:
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size + length
            if kind == _STRING:
                headers[name.decode("utf-8", "replace")] = data[position - length : position].decode("utf-8", "replace")
        else:
            raise ValueError("a header of a message has an unknown type")
    if position > len(data):
        raise ValueError("the headers of a message are cut off")
    return headers


def _error(kind: str, payload: str) -> ServerSentEvent:
    try:
        data = parse_json(payload, MAX_ENTRIES)
    except ValueError:
        data = None
    entries = data if isinstance(data, dict) else {"message": payload}
    return ServerSentEvent(format_json({**entries, ERROR_TYPE: kind}).decode(), "error")


def _damage(problem: str) -> ServerSentEvent:
    return ServerSentEvent(format_json({"problem": problem}).decode(), DAMAGE)
