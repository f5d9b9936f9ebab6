"""Values that keep their encoded form."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from agentloop.values.messages import Message
from agentloop.values.serialization import from_json, to_json
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.value import EncodeOnce, encode_each


def hello() -> Message:
    """Return a message."""
    return Message.user("hello", metadata={"a": 1})


class Counting:
    """An encoder that counts how often it is used."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, message: Message) -> str:
        self.calls += 1
        return message.text.upper()


def test_a_value_is_encoded_once_for_each_fingerprint() -> None:
    """The second call returns the cached form, also when many values are encoded together."""
    message, encode = hello(), Counting()
    assert message.encoded("upper", encode) == "HELLO"
    assert message.encoded("upper", encode) == "HELLO"
    assert encode_each([message, message], "upper", encode) == ["HELLO", "HELLO"]
    assert encode.calls == 1
    assert message.encoded(("upper", "strict"), encode) == "HELLO"
    assert encode.calls == 2


def test_many_values_are_encoded_in_order() -> None:
    """Cached and new encodings are in the order of their values."""
    encode = Counting()
    messages = [Message.user(name) for name in "abc"]
    messages[1].encoded("upper", encode)
    assert encode_each(iter(messages), "upper", encode) == ["A", "B", "C"]
    assert encode.calls == 3


def test_an_encoder_that_fails_leaves_nothing_behind() -> None:
    """A failed encoding is not cached."""
    message = hello()

    def broken(_: Message) -> str:
        raise ValueError("no")

    for encode in (lambda: message.encoded("upper", broken), lambda: encode_each([message], "upper", broken)):
        with pytest.raises(ValueError, match="no"):
            encode()
    assert message.encoded("upper", Counting()) == "HELLO"


@pytest.mark.parametrize("value", [hello(), ToolSpec("find", "Find.", {"type": "object"})])
def test_encoded_forms_are_no_part_of_the_value(value: EncodeOnce) -> None:
    """Cached encodings are not compared, hashed, shown or written."""
    fresh: Any = copy.deepcopy(value)
    before = (repr(fresh), hash(fresh), to_json(fresh))
    fresh.encoded("any", lambda _: object())
    assert fresh == value
    assert (repr(fresh), hash(fresh), to_json(fresh)) == before
    assert from_json(to_json(fresh), type(fresh)) == fresh


@pytest.mark.parametrize("value", [hello(), ToolSpec("find", "Find.", {"type": "object"})])
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)), attrs.evolve],
    ids=["copy", "deepcopy", "pickle", "evolve"],
)
def test_copies_are_equal_and_leave_encoded_forms_behind(value: Any, copied: Callable[[Any], Any]) -> None:
    """A copy has no cache, so values can be copied whatever the cache holds."""
    value.encoded("any", lambda _: (character for character in "a generator cannot be copied"))
    again = copied(value)
    assert again == value
    assert again.encoded("any", lambda _: "new") == "new"
