"""Framing of streamed responses: bytes in, events out, at any chunk boundaries.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

ERROR_EVENTS = frozenset({"error", "response.error"})
"""The names of events that report an error, whatever their data are."""


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

    __slots__ = ("_data", "_event", "_lines")

    def __init__(self) -> None:
        self._lines = LineReader()
        self._data: list[str] = []
        self._event = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add bytes and return the events that are now complete."""
        return self._read(self._lines.feed(data))

    def close(self) -> list[ServerSentEvent]:
        """Return the last event if the stream ended without the empty line that terminates it."""
        return self._read([*self._lines.close(), b""])

    def _read(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events = []
        for line in lines:
            if line:
                self._add_field(line)
                continue
            # An error without data is an error, too.
            if self._data or self._event in ERROR_EVENTS:
                events.append(ServerSentEvent("\n".join(self._data), self._event))
                self._data = []
            self._event = ""
        return events

    def _add_field(self, line: bytes) -> None:
        # Nearly every line has this form, so it skips the general parsing below.
        if line.startswith(b"data: "):
            self._data.append(line[6:].decode("utf-8", "replace"))
            return
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._event = text
        elif name == b"error" or line.startswith(b'{"error"'):
            # Older versions of llama.cpp send an error as a field of its own, some proxies without any field.
            self._event = "error"
            self._data.append(text if name == b"error" else line.decode("utf-8", "replace"))


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
