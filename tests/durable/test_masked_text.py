"""Secrets do not get into texts that leave in pieces, wherever the pieces are cut."""

from __future__ import annotations

import json
from base64 import b64encode, encodebytes
from collections.abc import Callable, Sequence
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.durable import MemoryJournal, Redaction
from agentloop.durable.masked_text import MaskedText, Prefixes
from agentloop.values.secrets import MASK
from tests.durable.test_redaction import KEY, SECRETS, write_escaped
from tests.generated import examples

_SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in JSON": lambda secret: json.dumps(secret)[1:-1],
    "in nested JSON": lambda secret: json.dumps(json.dumps(secret))[1:-1],
    "escaped by number": lambda secret: write_escaped(secret, [True]),
    "escaped in part": lambda secret: write_escaped(secret, [True, False, False]),
    "percent-encoded": lambda secret: "".join(f"%{byte:02x}" for byte in secret.encode()),
    "percent-encoded twice": lambda secret: quote("".join(f"%{byte:02X}" for byte in secret.encode())),
    "in hexadecimal": lambda secret: secret.encode().hex(),
    "in Base64": lambda secret: b64encode(secret.encode()).decode(),
    "in Base64 of more": lambda secret: b64encode(f"user:{secret}:".encode()).decode(),
    "in Base64 of lines": lambda secret: encodebytes(b"x" * 50 + secret.encode() + b"y" * 50).decode(),
    "in hexadecimal of lines": lambda secret: "\n".join(_cut(secret.encode().hex() * 2, 20)),
}


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _shown(mask: MaskedText | None, pieces: Sequence[str]) -> str:
    """Return what is shown of a text in pieces."""
    assert mask is not None
    return "".join([mask.add(piece) for piece in pieces]) + mask.end()


@pytest.mark.parametrize("spell", _SPELLINGS.values(), ids=_SPELLINGS)
@pytest.mark.parametrize("secret", [KEY, 'pa"ss\\wörd/+', "correct horse", "💥boom💥"])
def test_no_cut_shows_a_secret(secret: str, spell: Callable[[str], str]) -> None:
    """A text in two pieces, cut at any place, and one in single characters, is shown as it is recorded."""
    redaction = Redaction([secret])
    text = f"the key is {spell(secret)} - and {spell(secret)[:-1]}"
    recorded = redaction.mask_text(text)
    assert MASK in recorded
    cuts = [[text[:place], text[place:]] for place in range(len(text) + 1)]
    for pieces in [*cuts, list(text), _cut(text, 3), [text]]:
        assert _shown(redaction.mask_pieces(), pieces) == recorded, pieces


def _reads_as_a_whole(text: str) -> bool:
    """Return whether a record reads a text as JSON, whose white space it does not keep."""
    return text.lstrip()[:1] in {"{", "[", '"'}


@given(
    secrets=st.lists(SECRETS, min_size=1, max_size=3),
    parts=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(list(_SPELLINGS)), st.integers(0, 100)) | st.text(max_size=6),
        max_size=6,
    ),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
def test_what_is_shown_in_pieces_is_what_is_recorded(
    secrets: list[str], parts: list[tuple[int, str, int] | str], sizes: list[int]
) -> None:
    """Whatever the secrets, their spellings and the cuts: what is shown holds no secret, and is the recorded text."""
    redaction = Redaction(secrets)
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            spelled = _SPELLINGS[part[1]](secrets[part[0] % len(secrets)])
            text += spelled[: 1 + len(spelled) * part[2] // 100]
    pieces: list[str] = []
    place = 0
    while place < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[place : place + size])
        place += size
    shown = _shown(redaction.mask_pieces(), pieces)
    assert redaction.mask_document(shown) == shown
    if not _reads_as_a_whole(text) and redaction.mask_text(text) != text:
        assert shown == redaction.mask_text(text)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('so "password": "hun\\"ter2", then', f'so "password": "{MASK}", then'),
        ('so \\"password\\": \\"hunter2\\" then', f'so \\"password\\": \\"{MASK}\\" then'),
        ('so "password" :  12345, then', f'so "password" :  "{MASK}", then'),
        ('so "password": "never closed', f'so "password": "{MASK}"'),
        ('so "pass": "word", "password', 'so "pass": "word", "password'),
        ('{"password": {"old": "hunter2"}, "x": 1}', f'{{"password":"{MASK}","x":1}}'),
        ('  ["a", {"card": {"number": 4111}}]', f'["a",{{"card":{{"number":"{MASK}"}}}}]'),
        ("the password is a word", "the password is a word"),
    ],
)
def test_the_values_of_fields_are_masked_in_pieces(text: str, expected: str, size: int) -> None:
    """Fields are masked in the middle of a text; a text that is JSON is read as a whole, and shown at its end."""
    redaction = Redaction(fields=["password", "card.number"])
    assert redaction.mask_text(text).strip() == expected
    assert _shown(redaction.mask_pieces(), _cut(text, size)).strip() == expected


def test_a_text_without_secrets_is_hardly_held_back() -> None:
    """What cannot be the beginning of a secret is shown at once, but for a few characters that could be Base64 of its beginning."""
    mask = Redaction([KEY]).mask_pieces()
    assert mask is not None
    text = "The quick brown fox jumps over the lazy dog, and nothing else happens today. " * 20
    shown = ""
    for number, piece in enumerate(_cut(text, 4), 1):
        shown += mask.add(piece)
        held = text[: 4 * number].removeprefix(shown)
        assert len(held) <= 3, held
    assert shown + mask.end() == text


def test_without_secrets_there_is_no_mask() -> None:
    """Where nothing was declared, no text passes a mask."""
    assert Redaction().mask_pieces() is None
    assert MemoryJournal().mask_pieces() is None


@pytest.mark.parametrize("filler", ["\\", "%25", "\n", "sk-", KEY[:-1], "\\u00", '"', "a"])
def test_no_text_is_held_back_without_end(filler: str) -> None:
    """A text that could go on as a secret for ever is shown all the same, and each piece takes a bounded time."""
    mask = Redaction([KEY], ["password"]).mask_pieces()
    assert mask is not None
    count = examples(1200)
    shown = "".join([mask.add(filler) for _ in range(count)])
    assert len(filler * count) - len(shown) < 2000
    assert shown + mask.end() == filler * count


def test_the_check_finds_a_mask_that_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask over single pieces shows a secret that is cut, which these tests notice."""
    monkeypatch.setattr(Prefixes, "find", lambda _, text, __: len(text))
    redaction = Redaction([KEY])
    assert _shown(redaction.mask_pieces(), [KEY]) == MASK
    assert KEY in _shown(redaction.mask_pieces(), list(KEY))
