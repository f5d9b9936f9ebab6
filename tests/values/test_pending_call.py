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


def test_a_digest_is_stable_over_time() -> None:
    """Approvals outlive the process, so the digest must not change between versions."""
    assert WAITING.digest == sha256(b'run/1/0\x00pay\x00{"amount": 5}').hexdigest()


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
