"""Calls that wait, decisions about them, and verdicts before they run."""

from __future__ import annotations

from hashlib import sha256

import attrs
import pytest

from agentloop.errors import NotJson
from agentloop.values.decisions import (
    Answer,
    Approve,
    Block,
    Deny,
    Edit,
    PendingCall,
    Suspend,
    answer,
    approve,
    deny,
    edit,
)
from agentloop.values.tool_calls import ToolCall

CALL = ToolCall("1", "pay", '{"amount": 5}')
WAITING = PendingCall("run/1/0", CALL)


def test_a_digest_binds_key_tool_and_arguments() -> None:
    """Equal calls have equal digests; a different key, tool or argument changes the digest."""
    assert WAITING.digest == PendingCall("run/1/0", ToolCall("2", "pay", '{"amount": 5}'), "why").digest
    others = [
        attrs.evolve(WAITING, key="run/1/1"),
        attrs.evolve(WAITING, call=attrs.evolve(CALL, name="refund")),
        attrs.evolve(WAITING, call=CALL.with_arguments_json('{"amount": 6}')),
        attrs.evolve(WAITING, call=CALL.with_arguments_json('{"amount":5}')),
    ]
    assert len({WAITING.digest, *[other.digest for other in others]}) == 5


def test_a_digest_is_that_of_what_is_shown() -> None:
    """Approvals outlive the process, so the digest changes between versions only where the call is shown in another way."""
    bound = b'run/1/0\x001\x00\x00{"amount": 5}\x00pay\n  amount = 5'
    assert WAITING.digest == sha256(bound).hexdigest()
    with_defaults = attrs.evolve(WAITING, defaults={"currency": "EUR"})
    assert with_defaults.digest == sha256(bound + b'\n  currency = "EUR" (default)').hexdigest()


def test_a_digest_does_not_depend_on_what_python_knows_of_unicode() -> None:
    """A character that one version of Python escapes and another one shows gives the same digest."""
    call = CALL.with_arguments({"to": "\u00e9 \u4e2d \U0001f600 \u202e"})
    bound = f"run/1/0\x001\x00\x00{call.arguments_json}\x00" + 'pay\n  to = "\\u00e9 \\u4e2d \\ud83d\\ude00 \\u202e"'
    assert PendingCall("run/1/0", call).digest == sha256(bound.encode()).hexdigest()


def test_a_call_is_rendered_whole() -> None:
    """The tool, each argument in order, and each default with its mark, are lines of their own; nothing else is a line."""
    call = ToolCall("1", "p\u200bay").with_arguments({"a\n  b": "x\ny", "": [], "n": {"\u0430": None}})
    pending = attrs.evolve(WAITING, call=call, defaults={"p/q~0r": True, "*/a~1b~2": 1, "\u202e\n": "\u05d0"})
    assert pending.rendering.split("\n") == [
        '"p\\u200bay"',
        '  "a\\n  b" = "x\\ny"',
        '  "" = []',
        '  n = {"\\u0430": null}',
        '  p/"q~r" = true (default)',
        '  */"a/b*" = 1 (default)',
        '  "\\u202e\\n" = "\\u05d0" (default)',
    ]
    assert PendingCall("k", ToolCall("1", "pay")).rendering == "pay\n  without arguments"
    assert PendingCall("k", ToolCall("1", "pay", "[1")).rendering == 'pay\n  "[1"'


def test_each_suspension_has_a_digest_of_its_own() -> None:
    """A decision about one suspension of a call is not one about the next."""
    digests = {attrs.evolve(WAITING, suspension=suspension).digest for suspension in (1, 2, 3)}
    assert len(digests) == 3
    assert WAITING.digest in digests


def test_a_call_with_half_a_character_has_a_digest() -> None:
    """Lone surrogates in arguments are no reason to fail."""
    assert len(PendingCall("k", CALL.with_arguments_json('{"a": "\ud800"}')).digest) == 64


def test_decisions_are_created_by_functions() -> None:
    """Each function makes its decision, with JSON frozen."""
    assert approve() == Approve("")
    assert approve(WAITING.digest) == Approve(WAITING.digest)
    assert deny("too much") == Deny("too much")
    assert answer([1, {"a": 2}]) == Answer((1, {"a": 2}))
    assert edit({"amount": 4}) == Edit({"amount": 4})
    assert len({approve(), deny(), answer(None), edit({})}) == 4


def test_decisions_hold_json_only() -> None:
    """An answer or an edit that could not be stored is refused."""
    with pytest.raises(NotJson):
        answer({1})
    with pytest.raises(NotJson):
        edit({"a": float("nan")})


def test_verdicts_are_distinct_classes() -> None:
    """To block and to suspend for the same reason are two things."""
    assert Block("no") != Suspend("no")
    assert Suspend() == Suspend("")
