"""Secrets do not get into records, in any spelling."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, RequireApproval, ScriptedInference
from agentloop.durable import MemoryJournal, Redaction
from agentloop.durable.redaction import decisions_as_recorded, used_decisions
from agentloop.errors import ConfigurationError
from agentloop.testing import Ledger, toy_call, toy_tools
from agentloop.testing.strategies import json_objects
from agentloop.values import Decision, answer, approve, deny
from agentloop.values.json import format_json, parse_json, thaw
from agentloop.values.secrets import Secret

KEY = "sk-live-0123456789abcdef"
SECRETS = (
    (st.text(min_size=4, max_size=12) | st.text('\\\\"/ub0\n +', min_size=4, max_size=8))
    .map(str.strip)
    .filter(lambda text: len(text) >= 4)
)
"""Texts, also of the characters with which JSON and URLs write others."""


def write_escaped(text: str, flags: list[bool]) -> str:
    r"""Return the content of a JSON string with some characters escaped by number."""
    written = ""
    for index, character in enumerate(text):
        if flags[index % len(flags)]:
            units = character.encode("utf-16-be").hex()
            written += "".join(rf"\u{units[start : start + 4]}" for start in range(0, len(units), 4))
        else:
            written += json.dumps(character, ensure_ascii=False)[1:-1]
    return written


@given(
    secret=SECRETS,
    around=st.text(max_size=5),
    flags=st.lists(st.booleans(), min_size=1, max_size=4),
    depth=st.integers(0, 3),
)
def test_a_secret_is_masked_in_every_spelling(secret: str, around: str, flags: list[bool], depth: int) -> None:
    """A secret is masked in strings, in keys and in nested JSON, with any of its characters escaped."""
    redaction = Redaction([secret])
    text = f'{{"a": ["{write_escaped(around + secret + around, flags)}"], "{write_escaped(secret, flags)}": 1}}'
    for _ in range(depth):
        text = format_json({"arguments_json": text}).decode()
    for body in (
        {"plain": [f"{around}{secret}{around}"]},
        {secret: 1},
        {"nested": text},
        {"prose": f"the call: {text}"},
    ):
        masked = redaction.redact(body)
        assert "***" in format_json(masked).decode()
        assert not any(secret in text for text in list_texts(masked))
    assert "\\***" not in format_json(redaction.redact({"nested": text})).decode()


@given(secret=SECRETS, before=st.binary(max_size=4), after=st.binary(max_size=4), depth=st.integers(0, 2))
def test_a_secret_is_masked_in_web_encodings(secret: str, before: bytes, after: bytes, depth: int) -> None:
    """A secret is masked in Base64 of both alphabets, in any position, and percent-encoded any number of times."""
    redaction, data = Redaction([secret]), secret.encode()
    inside = b64encode(bytes(len(before)) + data).decode()[(len(before) * 8 + 5) // 6 :]
    known = inside[: (len(before) + len(data)) * 8 // 6 - (len(before) * 8 + 5) // 6]
    for encode in (b64encode, urlsafe_b64encode):
        text = encode(before + data + after).decode()
        for _ in range(depth):
            text = quote(text, safe="")
        masked = str(redaction.redact({"nested": format_json({"header": f"Basic {text}"}).decode()}))
        assert "***" in masked
        assert known not in masked
    for written in (quote(secret), quote(secret, safe=""), quote_plus(secret), quote(quote(secret, safe=""), safe="")):
        masked = str(redaction.redact({"url": f"https://example.com/?key={written}&more=1"}))
        assert "***" in masked
        assert f"={written}&" not in masked


@given(
    secret=SECRETS,
    before=st.binary(max_size=60),
    after=st.binary(max_size=60),
    width=st.integers(16, 80),
    line_end=st.sampled_from(["\n", "\r\n", "\n    "]),
)
def test_a_secret_is_masked_in_wrapped_lines(
    secret: str, before: bytes, after: bytes, width: int, line_end: str
) -> None:
    """A secret is masked in Base64 and in hexadecimal that are wrapped into lines, as in a mail or a PEM file."""
    redaction, data = Redaction([secret]), before + secret.encode() + after
    for encoded in (b64encode(data).decode(), data.hex(), data.hex().upper()):
        text = line_end.join([encoded[start : start + width] for start in range(0, len(encoded), width)])
        nested = format_json({"file": format_json({"lines": text}).decode()}).decode()
        for content in (text, nested, f"the call: {nested}"):
            assert "***" in str(redaction.redact({"content": content}))


@pytest.mark.parametrize(
    "secret", ["two words", "a b c d e", 'p+ss/w"rd & more', "päss 100% sure", "no-spaces", "a\\\\b c", "\\\\host"]
)
def test_a_secret_is_masked_in_forms(secret: str) -> None:
    """A space is a plus sign there, or a percent code; the form may be a part of another one, or of JSON that escapes plus signs."""
    redaction = Redaction([secret])
    for form in (
        f"key={quote_plus(secret)}&more=1",
        f"key={quote(secret)}&more=1",
        f"key={re.sub('%..', lambda code: code[0].lower(), quote_plus(secret))}&more=1",
        f"key={quote_plus(quote_plus(secret))}&more=1",
        f"key={quote(quote(quote_plus(secret)))}&more=1",
    ):
        assert redaction.redact({"body": form}) == {"body": "key=***&more=1"}
        nested = format_json({"body": form}).decode().replace("+", r"\u002B")
        assert parse_json(redaction.redact({"call": nested})["call"]) == {"body": "key=***&more=1"}
        assert redaction.redact({"call": f"so: {nested}"}) == {"call": 'so: {"body":"key=***&more=1"}'}
    form = urlencode({"next": f"/?{urlencode({'key': secret, 'more': 1})}"})
    assert redaction.redact({"body": form}) == {"body": "next=%2F%3Fkey%3D***%26more%3D1"}


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("secret", ["a\\äb", 'a\\"b', "a\\\nb", "\\\täb", "a\\\\b", "\\\\host", "\\\\host\\c"])
def test_a_secret_with_backslashes_is_masked_where_json_is_cut_out(secret: str, depth: int) -> None:
    """Each level of JSON doubles them; what begins with one may follow, and they may be written by number or percent-encoded."""
    text, redaction = secret, Redaction([secret])
    for _ in range(depth):
        text = json.dumps(text)[1:-1]
    bodies = [f"so: {text}, and more"]
    if secret.isascii() and secret.isprintable() and '"' not in secret:
        bodies += [f"so: {text.replace(chr(92), written)}, and more" for written in (r"\u005c", "%5C", "%255c")]
    for body in bodies:
        assert redaction.redact({"text": body}) == {"text": "so: ***, and more"}


@pytest.mark.parametrize("text", ["+wo words", "two-words", "twowords", "two_words", "two++words", "two+word+"])
def test_only_a_space_is_written_as_a_plus_sign(text: str) -> None:
    """What is like a secret but for other characters remains."""
    body = {"text": text, "url": f"/?{urlencode({'key': text})}"}
    assert Redaction(["two words"]).redact(body) is body


def list_texts(value: Any) -> list[str]:
    """Return all strings and keys in JSON data, and in the JSON that strings hold, at any depth."""
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in list_texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in list_texts(item)]
    if not isinstance(value, str):
        return []
    try:
        inner = json.loads(value)
    except ValueError:
        return [value]
    return [value, *(list_texts(inner) if inner != value else [])]


@given(body=json_objects())
def test_a_body_without_secrets_is_returned_unchanged(body: Any) -> None:
    """A body without secrets is the same object after redaction, and so is a body that was redacted before."""
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
def test_fields_are_masked_by_name(fields: list[str], body: Any, masked: Any, *, nested: bool) -> None:
    """Names match everywhere and paths below any field, in data and in the JSON that strings hold."""
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
        ('call: {"password" : 1234}', 'call: {"password" : "***"}'),
        (r'so: "{\"password\": \"hid\\\"den\", \"x\": 1}"', r'so: "{\"password\": \"***\", \"x\": 1}"'),
        ('cut off: {"password": "hidd', 'cut off: {"password": "***"'),
        (r'{"p\u0061ssword": "hidden"} and more', '{"p\\u0061ssword": "***"} and more'),
        ('{"password": "hidden", "password": "***"}', '{"password": "***", "password": "***"}'),
        ('the password "hidden" is no field', 'the password "hidden" is no field'),
    ],
)
def test_fields_in_the_middle_of_a_text_are_masked(text: str, masked: str) -> None:
    """Fields are masked in calls that a model writes as text."""
    result = Redaction((), ["password"]).redact({"text": text})["text"]
    assert result.replace(" ", "") == masked.replace(" ", "")
    assert "hidd" not in result or "no field" in result


@pytest.mark.parametrize(
    "text",
    ['{"card": {"number": "4111"}, "card": 1}', '[{"card": {"number": "4111", "x": 1}, "card": {"number": null}}]'],
)
def test_a_path_below_a_key_that_occurs_twice_is_masked(text: str) -> None:
    """Parsing such a text keeps the last value of the key; the others are not stored."""
    body = {"arguments_json": text}
    assert "4111" not in str(Redaction([], ["card.number"]).redact(body))
    assert Redaction([], ["other"]).redact(body) is body


def test_a_secret_can_be_a_number() -> None:
    """A secret of digits is masked in numbers, and JSON with it stays valid."""
    redaction = Redaction(["123456789"])
    masked = redaction.redact({"value": 123456789, "arguments_json": '{"pin": 123456789}', "other": [1234, True, None]})
    assert masked == {"value": "***", "arguments_json": '{"pin":"***"}', "other": [1234, True, None]}


LINE = "A" * 16 + "\nA"
"""The end of a line of encoded text: of such texts, more spellings are searched for."""


@pytest.mark.parametrize("secret", [KEY, 's"\\/k', "\\back", "ab\\cd", "two words", 'a"\nb'])
@pytest.mark.parametrize(
    "hostile",
    [
        "[" * 100_000,
        "\\" * 200_000,
        LINE + "\\" * 200_000,
        "ab" + "\\" * 200_000,
        "ab\\" * 50_000,
        's"' + "\\" * 200_000,
        "two" + "+" * 200_000,
        "two%" + "25" * 100_000,
        '{"password":"' * 20_000,
        '\\"password\\":\\"' * 20_000,
        '"password"' + " " * 200_000,
        "\\u0073" * 50_000,
        "\\u005c" * 50_000,
        "%5C" * 60_000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_hostile_texts_are_masked_in_time(hostile: str, secret: str) -> None:
    """Redaction takes linear time on texts that are made to be slow; otherwise the test would not end."""
    redaction = Redaction([secret], ["password"])
    for text in (hostile, f"{hostile} {secret}"):
        assert secret not in redaction.redact({"text": text})["text"]


def test_secrets_are_not_shown() -> None:
    """Reprs and errors do not show secrets; short secrets are refused, and empty ones are ignored."""
    journal = MemoryJournal(secrets=[Secret(KEY), "other secret", "", " \n"], secret_fields=["password"])
    assert KEY not in f"{journal!r} {journal._redaction!r}"
    assert journal.redact({"a": f"x{KEY}y other secret"}) == {"a": "x***y ***"}
    with pytest.raises(ConfigurationError) as caught:
        Redaction(["q7z"])
    assert "q7z" not in str(caught.value)
    assert Redaction(KEY).redact({"a": KEY}) == {"a": "***"}


@pytest.mark.parametrize("length", range(4, 13))
def test_nothing_of_a_secret_remains_beside_its_mask_in_base64(length: int) -> None:
    """A character that holds bits of the secret is masked with it; those after it remain."""
    secret, after = KEY[:length], b"\xff" * 6
    encoded = b64encode(secret.encode() + after).decode()
    masked = Redaction([secret]).redact({"header": f"Basic {encoded}"})
    assert masked == {"header": f"Basic ***{encoded[-(-length * 8 // 6) :]}"}


async def test_decisions_are_compared_as_they_are_recorded() -> None:
    """A decision that holds a secret is that of its record, and another one is not; other records do not matter."""
    journal = MemoryJournal(secrets=[KEY])
    calls = [toy_call("echo", number, id=str(number)) for number in range(3)]
    model = ScriptedInference(calls, "Done.")
    loop = AgentLoop.for_model(model, tools=toy_tools(Ledger()), interceptors=[RequireApproval()], journal=journal)
    state = await loop.execute("Go.", execution_id="masked")
    head = await journal.head("masked")
    assert head is not None
    first, second, third = [call.key for call in state.pending]
    decisions: dict[str, Decision] = {first: answer({"token": KEY}), second: approve(), third: deny("no")}
    await loop.resume("masked", decisions)
    used = await used_decisions(journal, "masked", head.record_count)
    assert used == decisions_as_recorded(decisions, journal)
    assert KEY not in str(used)
    assert used != decisions_as_recorded({**decisions, first: answer({"token": "another"})}, journal)
    newest = await journal.head("masked")
    assert newest is not None
    assert await used_decisions(journal, "masked", newest.record_count) == {}
