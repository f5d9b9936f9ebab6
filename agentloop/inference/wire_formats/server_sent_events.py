"""Server-sent events: from bytes to events, however the bytes are cut.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

from typing import NamedTuple

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event.

    Attributes:
        data: its data lines, joined by line feeds.
        event: its name; empty when it has none.
    """

    data: str
    event: str = ""


class LineReader:
    """Cuts bytes into lines at CR, LF or CRLF; each byte is looked at once, however they come."""

    __slots__ = ("_begun", "_rest", "_seen")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._seen = 0
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes, and return the lines that are complete now, without their ends."""
        rest = self._rest
        if not rest and data.endswith(b"\n") and b"\r" not in data:  # as nearly all come
            return self._without_mark(data[:-1].split(b"\n"))
        rest += data
        end = max(rest.rfind(b"\n", self._seen), rest.rfind(b"\r", self._seen, len(rest) - 1))
        if end < 0:
            self._seen = max(len(rest) - 1, 0)  # a CR at the end may be half of a CRLF: it is looked at again
            return []
        whole = bytes(rest[: end + 1])
        del rest[: end + 1]
        self._seen = max(len(rest) - 1, 0)
        return self._without_mark(whole.splitlines())

    def close(self) -> list[bytes]:
        """Return what is left as a last line, if anything is."""
        rest = bytes(self._rest)
        self._rest.clear()
        self._seen = 0
        return self._without_mark(rest.splitlines())

    def _without_mark(self, lines: list[bytes]) -> list[bytes]:
        if not self._begun and lines:
            self._begun = True
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return lines


class EventReader:
    """Reads the events of a stream; comments, ids and retry times are passed over."""

    __slots__ = ("_data", "_event", "_lines")

    def __init__(self) -> None:
        self._lines = LineReader()
        self._data: list[str] = []
        self._event = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take more bytes, and return the events that are complete now."""
        return self._read(self._lines.feed(data))

    def close(self) -> list[ServerSentEvent]:
        """Return the last event, if the stream ended without the empty line after it."""
        return self._read([*self._lines.close(), b""])

    def _read(self, lines: list[bytes]) -> list[ServerSentEvent]:
        found = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(ServerSentEvent("\n".join(self._data), self._event))
                    self._data = []
                self._event = ""
            else:
                self._take(line)
        return found

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data: "):
            self._data.append(line[6:].decode("utf-8", "replace"))
            return
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._event = text
