"""What is secret does not come into a record, however it is spelled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError
from agentloop.journal import MemoryJournal, Redaction
from agentloop.testing.strategies import json_objects
from agentloop.values.json import format_json, thaw
from agentloop.values.secrets import Secret

KEY = "sk-live-0123456789abcdef"
SECRETS = st.text(min_size=4, max_size=12).map(str.strip).filter(lambda text: len(text) >= 4)


def escaped(text: str, flags: list[bool]) -> str:
    r"""Write a text as JSON does, with some characters by their numbers."""
    written = ""
    for at, character in enumerate(text):
        if flags[at % len(flags)]:
            units = character.encode("utf-16-be").hex()
            written += "".join(rf"\u{units[place : place + 4]}" for place in range(0, len(units), 4))
        else:
            written += json.dumps(character, ensure_ascii=False)[1:-1]
    return written


@given(
    secret=SECRETS,
    around=st.text(max_size=5),
    flags=st.lists(st.booleans(), min_size=1, max_size=4),
    depth=st.integers(0, 3),
)
def test_a_secret_is_found_in_every_spelling(secret: str, around: str, flags: list[bool], depth: int) -> None:
    """A text is masked plain, in a name, and in JSON in strings of JSON, with any characters spelled by their numbers."""
    redaction = Redaction([secret])
    text = f'{{"a": ["{escaped(around + secret + around, flags)}"], "{escaped(secret, flags)}": 1}}'
    for _ in range(depth):
        text = format_json({"arguments_json": text}).decode()
    for body in (
        {"plain": [f"{around}{secret}{around}"]},
        {secret: 1},
        {"nested": text},
        {"prose": f"I call it: {text}"},
    ):
        masked = redaction.redact(body)
        assert "***" in format_json(masked).decode()
        assert not any(secret in one for one in every_text(masked))
    assert "\\***" not in format_json(redaction.redact({"nested": text})).decode()


def every_text(value: Any) -> list[str]:
    """Return all texts in JSON data, and in the JSON that they hold, to the bottom."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in every_text(one)]
    if isinstance(value, list):
        return [text for one in value for text in every_text(one)]
    if not isinstance(value, str):
        return []
    try:
        inner = json.loads(value)
    except ValueError:
        return [value]
    return [value, *(every_text(inner) if inner != value else [])]


@given(body=json_objects())
def test_what_holds_no_secret_stays_the_same_object(body: Any) -> None:
    """Without a secret in it, a body is handed back as it is, and what is masked once stays."""
    plain = thaw(body)
    redaction = Redaction([KEY], ["password"])
    assert redaction.redact(plain) is plain
    once = redaction.redact({"key": KEY, "body": plain, "password": "x"})
    assert once == {"key": "***", "body": plain, "password": "***"}
    assert redaction.redact(once) is once


@pytest.mark.parametrize(
    ("fields", "body", "masked"),
    [
        (["password"], {"a": [{"password": "hidden"}]}, {"a": [{"password": "***"}]}),
        (["password"], {"password": {"all": ["hidden"]}}, {"password": "***"}),
        (["password"], {"password": None}, {"password": "***"}),
        (["card.number"], {"x": {"card": {"number": 7, "name": "A"}}}, {"x": {"card": {"number": "***", "name": "A"}}}),
        (["card.number"], {"card": [{"number": 7}]}, {"card": [{"number": "***"}]}),
        (["card.number"], {"number": 7}, {"number": 7}),
        (["card.*"], {"card": {"number": 7, "name": "A"}}, {"card": {"number": "***", "name": "***"}}),
        (["a.*.pin"], {"a": {"b": {"pin": 1}, "pin": 2}}, {"a": {"b": {"pin": "***"}, "pin": 2}}),
        (["päss"], {"päss": "hidden"}, {"päss": "***"}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_fields_are_masked_by_their_names(fields: list[str], body: Any, masked: Any, *, nested: bool) -> None:
    """A name is masked wherever it stands, a path below any field, in data as in the JSON that a string holds."""
    redaction = Redaction((), fields)
    if not nested:
        assert redaction.redact(body) == masked
        return
    inside = redaction.redact({"arguments_json": json.dumps(body), "deeper": json.dumps({"x": json.dumps(body)})})
    assert json.loads(inside["arguments_json"]) == masked
    assert json.loads(json.loads(inside["deeper"])["x"]) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('Action Input: {"password": "hidden", "x": 1}', 'Action Input: {"password": "***", "x": 1}'),
        ('I call {"password" : 1234}', 'I call {"password" : "***"}'),
        (r'so: "{\"password\": \"hid\\\"den\", \"x\": 1}"', r'so: "{\"password\": \"***\", \"x\": 1}"'),
        ('cut off: {"password": "hidd', 'cut off: {"password": "***"'),
        (r'{"p\u0061ssword": "hidden"} and more', '{"p\\u0061ssword": "***"} and more'),
        ('{"password": "hidden", "password": "***"}', '{"password": "***", "password": "***"}'),
        ('the password "hidden" is no field', 'the password "hidden" is no field'),
    ],
)
def test_fields_in_the_middle_of_a_text_are_masked(text: str, masked: str) -> None:
    """A model that writes its calls as text writes its arguments there, too."""
    found = Redaction((), ["password"]).redact({"text": text})["text"]
    assert found.replace(" ", "") == masked.replace(" ", "")
    assert "hidd" not in found or "no field" in found


def test_a_number_may_be_secret() -> None:
    """A secret of digits is masked as a number, and JSON with it stays JSON."""
    redaction = Redaction(["123456789"])
    masked = redaction.redact({"value": 123456789, "arguments_json": '{"pin": 123456789}', "other": [1234, True, None]})
    assert masked == {"value": "***", "arguments_json": '{"pin":"***"}', "other": [1234, True, None]}


@pytest.mark.parametrize(
    "hostile",
    ["[" * 100_000, "\\" * 200_000, '{"password":"' * 20_000, '\\"password\\":\\"' * 20_000, "\\u0073" * 50_000],
)
def test_hostile_texts_are_masked_in_time(hostile: str) -> None:
    """A text that is made to be slow is not: the test would not end."""
    redaction = Redaction(['s"\\/k', KEY], ["password"])
    masked = redaction.redact({"text": f"{hostile} {KEY}"})
    assert KEY not in masked["text"]


def test_secrets_do_not_show() -> None:
    """Neither the journal nor an error shows what is declared to it; what is too short is refused, what is empty left out."""
    journal = MemoryJournal(secrets=[Secret(KEY), "other secret", "", " \n"], secret_fields=["password"])
    assert KEY not in f"{journal!r} {journal._redaction!r}"
    assert journal.redact({"a": f"x{KEY}y other secret"}) == {"a": "x***y ***"}
    with pytest.raises(ConfigurationError) as caught:
        Redaction(["q7z"])
    assert "q7z" not in str(caught.value)
    assert Redaction(KEY).redact({"a": KEY}) == {"a": "***"}
