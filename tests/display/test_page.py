"""In a browser: nothing is decided on the page before the end of a call was in view, and what was read is what runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.values import PendingCall
from tests.display.calls import ARGUMENTS, HOSTILE, pending, read_call, truth
from tests.display.page import IS_OPEN, Reader, read_to_end, waiting_calls
from tests.generated import examples
from tests.limits import LONGEST
from tests.viewer.browser import Browser, Page
from tests.viewer.serving import served, settled

pytestmark = pytest.mark.unreplayed

CALLS = [
    *[pending(arguments) for arguments in HOSTILE.values()],
    pending({}, name="restart"),
    pending({"note": "x"}, name="restart"),
]


_AT_ONCE = 6  # in one execution, all of whose calls that wait are recorded again with each decision


def decide_by_sight(page: Page, calls: Sequence[PendingCall]) -> None:
    """Read each call on the page, approve or deny it by what was in view, and check that what was read is what ran.

    A person who reads "EVIL" denies the call; whatever else was read is approved.
    """
    reader = Reader(page)
    approved: dict[str, str] = {}
    with waiting_calls(calls) as (server, keys, paid):
        reader.open(server, "local:q")
        for key in keys:
            reader.select(key)
            read = read_to_end(reader)
            if "EVIL" in read:
                page.click(".choices button", "Deny")
            else:
                approved[key.rpartition("/")[2]] = read
            page.click(".decide .primary")
            page.wait_for("!document.querySelector('.decide') || document.querySelector('.decide [role=alert]')")
        page.wait_for("document.querySelector('.head .badge')?.innerText === 'completed'")
        ended = settled(f"{server.url}/executions/local:q")
        assert ended["status"] == "completed"
        assert paid.received.keys() == approved.keys()
        for call_id, read in approved.items():
            name, arguments, defaults = read_call(read)
            assert in_any_order((name, {**arguments, **defaults})) == in_any_order(paid.received[call_id])
        for number, call in enumerate(calls):
            assert (str(number) in approved) is ("EVIL" not in call.rendering)


def in_any_order(value: object) -> str:
    """Return JSON that differs wherever two calls differ, but not by the order of names: defaults are shown last."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("start", range(0, len(CALLS), _AT_ONCE))
def test_hostile_calls_are_decided_by_what_is_in_view(page: Page, start: int) -> None:
    """None of forty calls that hide something is paid unseen: the amount and the receiver that were read are those that were paid."""
    assert len(CALLS) >= 40
    decide_by_sight(page, CALLS[start : start + _AT_ONCE])


@pytest.mark.generated
@settings(max_examples=examples(12, share=6), phases=[Phase.explicit, Phase.generate])
@given(calls=st.lists(ARGUMENTS, min_size=6, max_size=14), size=st.sampled_from([(1280, 900), (420, 760), (900, 420)]))
def test_generated_calls_are_decided_by_what_is_in_view(
    browser: Browser, calls: list[dict[str, Any]], size: tuple[int, int]
) -> None:
    """In a window of any size, a reader of what is in view knows what runs."""
    with browser.page(*size) as page:
        decide_by_sight(page, [pending(arguments) for arguments in calls])
        assert page.problems == []


LONG = pending({"cents": 1, "note": "all is well " * 900, "iban": "DE"})
LONG_NOTE = json.dumps({"note": "all is well " * 900})


def test_the_end_of_a_call_opens_the_button_whatever_is_pressed_before(page: Page) -> None:
    """Neither a click, nor a key, nor a form that is sent by a script decides about a call whose end was not in view."""
    with waiting_calls([LONG]) as (server, keys, paid):
        reader = Reader(page)
        reader.open(server, "local:q")
        [key] = keys
        reader.select(key)
        for kind in ("Approve", "Deny", "Answer", "Edit"):
            page.click(".choices button", kind)
            page.click(".decide .primary")
            page.evaluate("document.querySelector('.decide .primary').focus()")
            page.press("Enter", " ")
            page.evaluate("document.querySelector('form.decide').requestSubmit()")
            page.evaluate(
                "document.querySelector('form.decide').dispatchEvent(new Event('submit', {cancelable: true}))"
            )
        for press in ("y", "a", "Enter", "Escape"):
            page.press(press)
        page.settle()
        assert not paid.received
        assert httpx.get(f"{server.url}/executions/local:q").json()["status"] == "suspended"
        page.click(".row.call .title", "pay")
        assert page.evaluate(IS_OPEN) is False
        page.click(".choices button", "Approve")
        page.evaluate("document.querySelector('.call-text').focus()")
        page.evaluate("document.querySelector('.call-text').scrollTop = 1e9")
        page.wait_for(IS_OPEN)
        page.click(".decide .primary")
        page.wait_for("document.querySelector('.head .badge')?.innerText === 'completed'")
        assert len(paid.received) == 1


def test_a_call_of_a_sub_agent_is_decided_when_its_end_was_in_view(page: Page) -> None:
    """The row of a call inside of another one has its own text and its own button."""
    paid: list[str] = []

    @tool
    def pay(note: str, currency: str = "EUR") -> str:
        """Pay."""
        paid.append(currency)
        return note

    def make_loop(journal: MemoryJournal) -> AgentLoop:
        call = ToolCall("1", "pay", LONG_NOTE)
        clerk = AgentLoop.for_model(
            ScriptedInference(call, "It is paid."), tools=[pay], interceptors=[RequireApproval()]
        )
        work = ToolCall("1", "clerk", '{"task": "Pay."}')
        return AgentLoop.for_model(
            ScriptedInference(work, "Done."), tools=[clerk.as_tool("clerk", "Pays.")], journal=journal
        )

    with served(make_loop) as server:
        httpx.post(f"{server.url}/executions", json={"input": "Go.", "id": "q"}, timeout=LONGEST)
        path = f"{server.url}/executions/local:q"
        pending = settled(path)["pending"]
        [rendering] = [call["rendering"] for call in pending if not call["waits_for"]]
        reader = Reader(page)
        reader.open(server, "local:q")
        page.click(".row.call .title", "pay", is_whole=True)
        page.wait_for("document.querySelector('.decide .primary')")
        assert page.evaluate("[...document.querySelectorAll('.decide .primary')].map(button => button.disabled)") == [
            True
        ]
        page.click(".decide .primary")
        page.evaluate("document.querySelector('form.decide').requestSubmit()")
        assert not paid
        assert page.text(".decide .call-text") == rendering
        assert rendering.endswith('currency = "EUR" (default)')
        page.evaluate("document.querySelector('.decide .call-end').scrollIntoView()")
        page.wait_for(IS_OPEN)
        page.click(".decide .primary")
        page.wait_for("document.querySelector('.head .badge')?.innerText === 'completed'")
        assert settled(path)["status"] == "completed"
    assert paid == ["EUR"]


# --- looks ------------------------------------------------------------------------------------------------------------

# fmt: off
ALIKE = [
    "Ada", "\u0410da", "Ad\u0430", "\u0410d\u0430", "A\u200bda", "Ada ", "Ada\u00a0", "Ada\ufe0f", "\u202eadA", "A\u00adda", "\uff21da",
    "Jos\u00e9", "Jose\u0301", "Jos\u00e9\u0301", "\u4e2d", "\u6587", "\u4e2d\ufe0f", "\u53e3", "\u30ed", "\\u4e2d", "", " ", "  ", "\u2800",
    "\u3164", "\u3000", "\n", "\\n", "\t", "I", "l", "1", "|", "O", "0", "\u041e", "\u039f", "rn", "m", "fi", "\ufb01", "-", "\u2010", "\u2212",
    "\u2013", "\u2014", "\u05d0", "\u05d1", "\u0627", "\u0e01\u0e34\u0e48", "\u0e01\u0e48\u0e34", "\U0001f389", "\U0001f38a", "\ud83d",
    "\\ud83d", "'", "\u2019", "`", "=>", "->", "!=", "1.0", "1,0", "\ue000", "\ue001", "\U000f0000", "\u0378", "\u0915\u093f", "\u0916\u093f",
]
# fmt: on


def test_no_two_texts_look_alike(page: Page) -> None:
    """Pictures of the line of an argument are equal for no two of many texts, also where the browser has no font for them."""
    calls = [pending({"to": text}) for text in ALIKE]
    pictures: dict[str, str] = {}
    with waiting_calls(calls) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        for key, call in keys.items():
            reader.select(key)
            box = page.evaluate(
                "(({left, top, width, height}) => ({x: left, y: top, width, height, scale: 1}))"
                "(document.querySelector('.call-line:nth-child(2)').getBoundingClientRect())"
            )
            page.evaluate("document.querySelector('.call-end').style.display = 'none'")
            picture = page.send("Page.captureScreenshot", format="png", clip=box)["data"]
            assert picture not in pictures, f"{call.rendering!r} looks like {pictures[picture]!r}"
            pictures[picture] = call.rendering
    assert len(pictures) == len(set(ALIKE)) == len(ALIKE)


def test_a_character_without_a_font_is_shown_as_its_escape(page: Page) -> None:
    """The text stays what the server has sent, and what is drawn in place of a blank is the escape; letters with a font are drawn."""
    call = pending({"to": "Ada \u0418\u0432\u0430\u043d \u4e2d\u6587 \U0001f389 \u0939\u093f"})
    with waiting_calls([call]) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        reader.select(next(iter(keys)))
        assert page.text(".call-text") == call.rendering
        shown = page.evaluate(
            "[...document.querySelectorAll('.undrawn')].map(drawn => [drawn.textContent, getComputedStyle(drawn, '::after').content])"
        )
        # Whether the machine has a font for these, the test cannot know; for no font, each is shown.
        assert {char for char, _ in shown} <= {"\u4e2d", "\u6587", "\U0001f389", "\u0939", "\u093f"}
        for char, content in shown:
            escape = "".join(f"\\u{int.from_bytes(unit, 'big'):04x}" for unit in batched(char.encode("utf-16-be")))
            assert content.strip('"').replace("\\\\", "\\") == escape


def batched(data: bytes) -> list[bytes]:
    """Return the units of UTF-16."""
    return [data[place : place + 2] for place in range(0, len(data), 2)]


# --- edits ------------------------------------------------------------------------------------------------------------


def test_an_edit_shows_what_it_holds(page: Page) -> None:
    """Arguments to be edited have escapes for what is not seen, what is pasted gets them before it is sent, and large numbers stay."""
    call = pending({"to": "A\u200bda\ufe0f", "cents": 12345678901234567890, "note": "\u0418"})
    with waiting_calls([call]) as (server, keys, paid):
        reader = Reader(page)
        reader.open(server, "local:q")
        reader.select(next(iter(keys)))
        page.wait_for(IS_OPEN)
        page.click(".choices button", "Edit")
        field = "document.querySelector('.decide textarea')"
        assert page.evaluate(f"{field}.value") == call.call.arguments_json.replace("\u200b", "\\u200b").replace(
            "\ufe0f", "\\ufe0f"
        )
        page.evaluate(f"{field}.focus(), {field}.setSelectionRange(1, 1)")
        page.type('"x\u2066": "\U000e0041", ')
        page.click(".decide .primary")
        page.wait_for("document.querySelector('.decide [role=alert]')?.innerText.includes('cannot be seen')")
        assert not paid.received
        assert page.evaluate(f"{field}.value").startswith('{"x\\u2066": "\\udb40\\udc41", "to"')
        page.click(".decide .primary")
        page.wait_for("document.querySelector('.head .badge')?.innerText === 'completed'")
        expected = {"x\u2066": "\U000e0041", **truth(call)[1]}
        assert paid.received["0"] == ("pay", expected)


# --- boxes that show nothing ------------------------------------------------------------------------------------------

_RULE = "document.adoptedStyleSheets = [Object.assign(new CSSStyleSheet()), ...[]]; document.adoptedStyleSheets[0].replaceSync({rule})"
HIDING = {
    "no height": ".call-text { height: 0 !important; min-height: 0 !important; padding: 0 !important; border: 0 !important }",
    "no width": ".call-text { width: 0 !important; padding: 0 !important; border: 0 !important }",
    "covered": "#app::after { content: ''; position: fixed; inset: 0; background: red; z-index: 99 }",
    "covered without a target": "#app::after { content: ''; position: fixed; inset: 0; background: red; z-index: 99; pointer-events: none }",
    "outside of the window": ".decide { position: absolute; left: -5000px }",
    "transparent": ".call-text { opacity: 0.02 }",
    "clipped": ".decide { overflow: hidden; height: 10px !important }",
    "not drawn": ".call-text { visibility: hidden }",
    "not there": ".call-text { display: none }",
}


@pytest.mark.parametrize("name", HIDING)
def test_a_box_that_shows_nothing_opens_no_button(page: Page, name: str) -> None:
    """The end has to be in view: in a box with a size, in the window, under nothing else. Then the button opens."""
    with waiting_calls([pending({"cents": 1})]) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        page.evaluate(_RULE.format(rule=repr(HIDING[name])))
        [key] = keys
        reader.select(key)
        reader.wait_for_observers()
        assert page.evaluate(IS_OPEN) is False
        page.evaluate("document.adoptedStyleSheets = []")
        page.wait_for(IS_OPEN)


def test_a_tab_that_is_not_shown_opens_no_button(page: Page) -> None:
    """What is in a hidden tab was not in view; the button opens when the tab is shown."""
    hidden = "Object.defineProperty(document, 'visibilityState', {get: () => 'STATE', configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    with waiting_calls([pending({"cents": 1})]) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        page.evaluate(hidden.replace("STATE", "hidden"))
        [key] = keys
        reader.select(key)
        reader.wait_for_observers()
        assert page.evaluate(IS_OPEN) is False
        page.evaluate(hidden.replace("STATE", "visible"))
        page.wait_for(IS_OPEN)


def test_each_call_is_shown_from_its_beginning(page: Page) -> None:
    """In a small window, in which the end of one call was in view, the next one begins at the top."""
    page.resize(900, 420)
    with waiting_calls([pending({f"n{n}": n for n in range(count)}) for count in (30, 9)]) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        for key in keys:
            reader.select(key)
            assert page.evaluate("document.querySelector('.side-pane').scrollTop") == 0
            read_to_end(reader)


def test_a_window_that_becomes_larger_shows_the_end(page: Page) -> None:
    """A call that does not fit is open as soon as it does, without a scroll."""
    with waiting_calls([pending({f"n{n}": n for n in range(15)})]) as (server, keys, _):
        page.resize(1280, 420)
        reader = Reader(page)
        reader.open(server, "local:q")
        [key] = keys
        reader.select(key)
        reader.wait_for_observers()
        assert page.evaluate(IS_OPEN) is False
        page.resize(1280, 1400)
        page.wait_for(IS_OPEN)


# --- displays that hide a part ----------------------------------------------------------------------------------------

_LIES = """window.IntersectionObserver = class {
    constructor(callback) { this.callback = callback; }
    observe(target) { this.callback([{isIntersecting: true, intersectionRatio: 1, isVisible: true, target}]); }
    disconnect() {}
};
const find = document.elementFromPoint.bind(document);
document.elementFromPoint = (x, y) => window.lies === false ? find(x, y) : (document.querySelector('.call-end') ?? find(x, y));"""
_BROKEN = {
    "opens at once": (_LIES, ""),
    "leaves out a line": ("", ".call-line:nth-child(2) { display: none }"),
    "cuts a text": ("", ".call-line { max-height: 5em; overflow: hidden }"),
    "does not wrap": ("", ".call-line { white-space: pre !important } .call-text { overflow: hidden !important }"),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_a_page_that_hides_a_part_is_found(browser: Browser, name: str) -> None:
    """The check fails where the button opens before the end was in view, and where a part is never in view."""
    script, rule = _BROKEN[name]
    with browser.page() as page, waiting_calls([LONG]) as (server, keys, _):
        page.send("Page.addScriptToEvaluateOnNewDocument", source=script)
        reader = Reader(page)
        reader.open(server, "local:q")
        if rule:
            page.evaluate(_RULE.format(rule=repr(rule)))
        reader.select(next(iter(keys)))
        page.evaluate("window.lies = false")
        with pytest.raises(AssertionError):
            assert read_to_end(reader) == LONG.rendering


def test_the_check_passes_for_the_page(browser: Browser) -> None:
    """Where nothing is hidden, all of the same call is read."""
    with browser.page() as page, waiting_calls([LONG]) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        reader.select(next(iter(keys)))
        assert read_to_end(reader) == LONG.rendering
