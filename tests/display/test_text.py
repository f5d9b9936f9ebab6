"""In process: the text of a call is the call, and no two texts look alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given

from agentloop.values import PendingCall, render_call
from tests.display.calls import CALLS, HOSTILE, as_written, pending, read_call, truth

Show = Callable[[PendingCall], str]


def require_whole(show: Show, call: PendingCall) -> None:
    """Check that a reader of the text knows tool, arguments, order and defaults, and that nothing in it is unseen or reordered."""
    text = show(call)
    assert as_written(read_call(text)) == as_written(truth(call))
    for line in text.split("\n"):
        assert [
            ascii(char) for char in line if unicodedata.category(char) in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
        ] == []
        assert not {"\u00a0", "\u2003", "\u2800", "\u3164", "\ufe0f"} & set(line)


def require_apart(show: Show, first: PendingCall, second: PendingCall) -> None:
    """Check that two texts are equal exactly when the calls are."""
    is_same = as_written(truth(first)) == as_written(truth(second))
    assert (show(first) == show(second)) is is_same
    assert (first.digest == second.digest) is (is_same and first.call.arguments_json == second.call.arguments_json)


def rendering(call: PendingCall) -> str:
    return call.rendering


@given(call=CALLS)
def test_the_text_of_a_call_is_the_call(call: PendingCall) -> None:
    """Whatever a call holds, a reader of its text knows it."""
    require_whole(rendering, call)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_text_of_a_hostile_call_is_the_call(name: str) -> None:
    """Each way to hide a part, or to look like another call, ends in a text that says what the call is."""
    require_whole(rendering, pending(HOSTILE[name]))


@given(first=CALLS, second=CALLS)
def test_different_calls_have_different_texts(first: PendingCall, second: PendingCall) -> None:
    """Two calls have one text, and one digest, exactly when they are the same."""
    require_apart(rendering, first, second)


def test_hostile_calls_have_different_texts() -> None:
    """None of them has the text or the digest of another one."""
    calls = [pending(arguments) for arguments in HOSTILE.values()]
    assert len({call.rendering for call in calls}) == len({call.digest for call in calls}) == len(HOSTILE)


def raw(call: PendingCall) -> str:
    """Show a call as JSON, as it came."""
    return f"{call.call.name}\n  {call.call.arguments_json}"


def cut(call: PendingCall) -> str:
    """Show the first lines and characters of a call."""
    return "\n".join(line[:600] for line in call.rendering.split("\n")[:40])


def without_defaults(call: PendingCall) -> str:
    """Show the arguments alone."""
    return "\n".join(line for line in call.rendering.split("\n") if not line.endswith(" (default)"))


def on_one_line(call: PendingCall) -> str:
    """Show a call as one would write it."""
    return render_call(call.call, defaults=call.defaults)


@pytest.mark.parametrize("show", [raw, cut, without_defaults, on_one_line])
def test_a_display_that_hides_a_part_is_found(show: Show) -> None:
    """Each way of showing less than all fails the check for some call."""
    calls = [pending(arguments, defaults={"currency": "EUR"}) for arguments in HOSTILE.values()]
    failed = 0
    for call in calls:
        try:
            require_whole(show, call)
        except AssertionError:
            failed += 1
    assert failed
