"""A page with calls that wait, and a person who reads what is in view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from attrs import define, field, frozen

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.values import InferenceRequest, InferenceResponse, PendingCall
from tests.limits import LONGEST
from tests.viewer.browser import Page
from tests.viewer.serving import Served, served, settled

# Returns what a person has in view of the call: for each row of its box that is on the screen, under nothing else and not clipped, the
# number of its line, and where the row begins and ends in the text of the line.
_ROWS = """(() => {
    const box = document.querySelector('.call-text');
    if (!box) return [];
    const area = box.getBoundingClientRect();
    const lines = [...box.querySelectorAll('.call-line')];
    const inView = (x, y) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight && box.contains(document.elementFromPoint(x, y));
    const place = (x, y) => {
        const range = document.caretRangeFromPoint(x, y);
        const line = range && range.startContainer.parentElement?.closest('.call-line');
        if (!line || !box.contains(line)) return null;
        const before = document.createRange();
        before.setStart(line, 0);
        before.setEnd(range.startContainer, range.startOffset);
        return [lines.indexOf(line), before.toString().length];
    };
    const rows = [];
    const [left, right] = [area.left + box.clientLeft + 2, area.left + box.clientLeft + box.clientWidth - 2];
    for (let y = area.top + 3; y < area.bottom; y += 4) {
        if (!inView(left, y) || !inView(right, y) || !inView((left + right) / 2, y)) continue;
        const [start, end] = [place(left, y), place(right, y)];
        if (start && end && start[0] === end[0]) rows.push([start[0], start[1], end[1]]);
    }
    // What is drawn as an escape can be broken between two rows.
    for (const drawn of box.querySelectorAll('.undrawn')) {
        const parts = [...drawn.getClientRects()].filter(part => part.width > 0);
        if (!parts.length || !parts.every(part => inView(part.left + 1, part.top + part.height / 2))) continue;
        const line = drawn.closest('.call-line'), before = document.createRange();
        before.setStart(line, 0);
        before.setEndBefore(drawn);
        const start = before.toString().length;
        rows.push([lines.indexOf(line), start, start + drawn.textContent.length]);
    }
    return rows;
})()"""
# What is around the box scrolls, too, and may show a part of it only: then the box is read again from its beginning.
_SCROLL = """(() => {
    const box = document.querySelector('.call-text'), pane = box.closest('.side-pane');
    const on = (element, by) => { const before = element.scrollTop; element.scrollTop += by; return element.scrollTop > before; };
    const seen = Math.min(box.getBoundingClientRect().bottom, pane.getBoundingClientRect().bottom, innerHeight);
    const height = seen - Math.max(box.getBoundingClientRect().top, pane.getBoundingClientRect().top);
    if (on(box, Math.max(Math.min(height, box.clientHeight) - 40, 10))) return true;
    if (!on(pane, 40)) return false;
    box.scrollTop = 0;
    return true;
})()"""
# Whether the end of the call is in view as a whole, so that the button has to open without another scroll.
_IS_END_IN_VIEW = """(() => {
    const end = document.querySelector('.call-end'), {left, top, right, bottom} = end.getBoundingClientRect();
    const around = [end.closest('.call-text'), end.closest('.side-pane')].map(element => element.getBoundingClientRect());
    const isInside = around.every(area => left >= area.left && top >= area.top && right <= area.right && bottom <= area.bottom);
    return isInside && document.elementFromPoint((left + right) / 2, (top + bottom) / 2) === end;
})()"""
_TEXT = "[...document.querySelectorAll('.call-text .call-line')].map(line => line.textContent)"
_KEY = "[...document.querySelectorAll('.detail .facts dt')].find(name => name.innerText === 'Key')?.nextElementSibling.innerText"
IS_OPEN = "document.querySelector('.decide .primary')?.disabled === false"


@define
class Reader:
    """Somebody in front of a page, who reads one call after another.

    Attributes:
        page: the page.
    """

    page: Page
    _read: dict[int, set[int]] = field(factory=dict)
    _lines: list[str] = field(factory=list)

    def open(self, server: Served, execution_id: str) -> None:
        """Open the page of an execution, and wait until its calls are there."""
        self.page.open(f"{server.url}/trace/{execution_id}")
        self.page.wait_for("document.querySelector('.row.call')")

    def select(self, key: str) -> None:
        """Select the next call that waits, until it is the one with this key."""
        for _ in range(300):
            if self.page.evaluate(_KEY) == key:
                break
            self.page.press("x")
        self.page.wait_for("document.querySelector('.decide .primary')")
        self._read, self._lines = {}, self.page.evaluate(_TEXT)

    def look(self) -> None:
        """Read what is in view now."""
        for line, start, end in self.page.evaluate(_ROWS):
            self._read.setdefault(line, set()).update(range(start, end))

    @property
    def has_read_end(self) -> bool:
        """Whether the last character of the text was in view."""
        return len(self._lines[-1]) - 1 in self._read.get(len(self._lines) - 1, set())

    def text(self) -> str:
        """Return the characters that were in view, in their order."""
        return "\n".join(
            "".join([char for place, char in enumerate(line) if place in self._read.get(number, set())])
            for number, line in enumerate(utf16(line) for line in self._lines)
        )

    def has_end_in_view(self) -> bool:
        """Whether the end of the call is in view now, as a whole."""
        return bool(self.page.evaluate(_IS_END_IN_VIEW))

    def is_open(self) -> bool:
        """Return whether the button decides."""
        return bool(self.page.evaluate(IS_OPEN))

    def wait_for_observers(self) -> None:
        """Wait until the browser has told what observes the end of the call whether it is in view."""
        self.page.evaluate("""new Promise(done => {
            const observer = new IntersectionObserver(done, {trackVisibility: true, delay: 100});
            observer.observe(document.querySelector('.call-end'));
        }).then(() => null)""")
        self.page.settle()

    def scroll(self) -> bool:
        """Scroll on by a little less than what is in view, first the box of the call and then what is around it; return whether there was more."""
        moved = bool(self.page.evaluate(_SCROLL))
        self.page.settle()
        return moved


def utf16(text: str) -> list[str]:
    """Return a text in the units of a browser: the second half of a character is empty."""
    return [unit for char in text for unit in ([char, ""] if ord(char) > 0xFFFF else [char])]


def read_to_end(reader: Reader) -> str:
    """Read a call from its beginning to its end, and return what was in view.

    Raises:
        AssertionError: the button was open before the end was in view, or is not open after that.
    """
    while True:
        is_open = reader.is_open()
        reader.look()
        assert reader.has_read_end or not is_open, "it could be decided before its end was in view"
        if reader.has_end_in_view():
            reader.page.wait_for(IS_OPEN)  # what is scrolled out of view at once was not seen
        if not reader.scroll():
            break
    assert reader.is_open(), "it cannot be decided although its end was in view"
    return reader.text()


@frozen
class Paid:
    """What the tools of a server received, by the id of the call."""

    received: dict[str, tuple[str, dict[str, Any]]] = field(factory=dict)


@contextmanager
def waiting_calls(calls: Sequence[PendingCall]) -> Iterator[tuple[Served, Mapping[str, PendingCall], Paid]]:
    """Serve an execution in which these calls wait; yield the server, the calls by key, and what was paid."""
    paid = Paid()

    @tool(schema={"type": "object"})
    def pay(call: ToolCall, **arguments: Any) -> str:
        """Pay."""
        paid.received[call.id] = ("pay", arguments)
        return "paid"

    @tool
    def restart(call: ToolCall, name: str = "web", note: str = "\u200b") -> str:
        """Restart."""
        paid.received[call.id] = ("restart", {"name": name, "note": note})
        return "restarted"

    made = [ToolCall(str(number), call.call.name, call.call.arguments_json) for number, call in enumerate(calls)]

    def model(request: InferenceRequest) -> InferenceResponse | str:
        return "Done." if any(message.exchanges for message in request.messages) else InferenceResponse(tuple(made))

    def make_loop(journal: MemoryJournal) -> AgentLoop:
        return AgentLoop.for_model(
            ScriptedInference(*[model] * 3), tools=[pay, restart], interceptors=[RequireApproval()], journal=journal
        )

    with served(make_loop) as server:
        answer = httpx.post(f"{server.url}/executions", json={"input": "Go.", "id": "q"}, timeout=LONGEST)
        assert answer.status_code == 201, answer.text
        path = f"{server.url}/executions/{answer.json()['id']}"
        body = settled(path)
        assert len(body["pending"]) == len(calls), body
        yield server, {entry["key"]: call for entry, call in zip(body["pending"], calls, strict=True)}, paid
