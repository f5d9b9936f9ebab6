"""In a browser: nothing is decided on the page before the end of a call was in view, and what was read is what runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.values import PendingCall
from tests.display.calls import ARGUMENTS, HOSTILE, as_written, pending, read_call
from tests.display.page import IS_OPEN, Reader, read_to_end, waiting_calls
from tests.generated import examples
from tests.viewer.browser import Browser, Page

pytestmark = pytest.mark.unreplayed

CALLS = [
    *[pending(arguments) for arguments in HOSTILE.values()],
    pending({}, name="restart"),
    pending({"note": "x"}, name="restart"),
]


_AT_ONCE = 7  # in one execution, all of whose calls that wait are recorded again with each decision


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
        assert paid.received.keys() == approved.keys()
        for number, read in approved.items():
            name, arguments, defaults = read_call(read)
            assert as_written((name, {**arguments, **defaults})) == as_written(paid.received[number])
        for number, call in enumerate(calls):
            assert (str(number) in approved) is ("EVIL" not in call.rendering)


def test_hostile_calls_are_decided_by_what_is_in_view(page: Page) -> None:
    """None of forty calls that hide something is paid unseen: the amount and the receiver that were read are those that were paid."""
    assert len(CALLS) >= 40
    for start in range(0, len(CALLS), _AT_ONCE):
        decide_by_sight(page, CALLS[start : start + _AT_ONCE])


@pytest.mark.generated
@settings(max_examples=examples(12, share=6))
@given(calls=st.lists(ARGUMENTS, min_size=6, max_size=14), size=st.sampled_from([(1280, 900), (420, 760), (900, 420)]))
def test_generated_calls_are_decided_by_what_is_in_view(
    browser: Browser, calls: list[dict[str, Any]], size: tuple[int, int]
) -> None:
    """In a window of any size, a reader of what is in view knows what runs."""
    with browser.page(*size) as page:
        decide_by_sight(page, [pending(arguments) for arguments in calls])
        assert page.problems == []


LONG = pending({"cents": 1, "note": "all is well " * 900, "iban": "DE"})


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
        with pytest.raises((AssertionError, ValueError)):
            assert read_to_end(reader) == LONG.rendering


def test_the_check_passes_for_the_page(browser: Browser) -> None:
    """Where nothing is hidden, all of the same call is read."""
    with browser.page() as page, waiting_calls([LONG]) as (server, keys, _):
        reader = Reader(page)
        reader.open(server, "local:q")
        reader.select(next(iter(keys)))
        assert read_to_end(reader) == LONG.rendering
