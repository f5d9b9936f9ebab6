"""Keys that do not show themselves."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError
from agentloop.inference import Secret
from agentloop.values.secrets import as_secret

KEY = "sk-test-0123456789abcdef"


def test_a_secret_is_shown_nowhere() -> None:
    """No way to turn a secret into text shows the key."""
    secret = Secret(KEY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{[secret]}", f"{ {'key': secret} }"]
    assert not any(KEY[:10] in text for text in shown)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_is_not_pickled(protocol: int) -> None:
    """A secret refuses to be written, under every protocol, and the refusal does not show it."""
    with pytest.raises(TypeError, match="not written anywhere") as caught:
        pickle.dumps({"key": Secret(KEY)}, protocol)
    assert KEY not in str(caught.value)


def test_a_secret_is_not_json() -> None:
    """A secret that gets into JSON by mistake is an error, or asterisks."""
    with pytest.raises(TypeError):
        json.dumps({"key": Secret(KEY)})
    assert KEY not in json.dumps({"key": Secret(KEY)}, default=str)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_in_memory_is_the_same_secret(copied: Any) -> None:
    """What holds a secret can be copied within the process."""
    assert copied([Secret(KEY)])[0].reveal() == KEY


def test_secrets_compare_by_their_key() -> None:
    """Equal keys are equal secrets, and a secret is not equal to its text."""
    assert Secret(KEY) == Secret(KEY)
    assert hash(Secret(KEY)) == hash(Secret(KEY))
    assert Secret(KEY) != Secret("another")
    assert Secret(KEY) != KEY


def test_space_around_a_key_is_no_part_of_it() -> None:
    """A line end that came with a key out of a file does not make it invalid."""
    assert Secret(f" {KEY}\n").reveal() == KEY


@pytest.mark.parametrize("wrong", ["sk-te\nst", "sk-te\x00st", "sk-te…st", "sk-tést", "sk-te\x7fst"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(wrong: str) -> None:
    """A key with a character that no header can carry is told by the character's place alone."""
    with pytest.raises(ConfigurationError, match=r"its character \d of \d is") as caught:
        Secret(wrong)
    assert "sk-t" not in str(caught.value)


def test_no_key_is_none() -> None:
    """None, nothing and space are no key."""
    assert (as_secret(None), as_secret(""), as_secret("  "), as_secret(Secret(""))) == (None, None, None, None)
    assert as_secret(KEY) == Secret(KEY)
    with pytest.raises(TypeError, match="a key is text"):
        as_secret(5)  # type: ignore[arg-type]  # what is tested


@given(before=st.text(), after=st.text(), times=st.integers(0, 3))
@example(before="", after="", times=1)
def test_every_occurrence_of_the_key_is_redacted(before: str, after: str, times: int) -> None:
    """However often and wherever the key stands in a text, none of it is left, and the rest is."""
    text = before + f"{KEY}{after}" * times
    assert Secret(KEY).redact(text) == before + f"***{after}" * times


@given(cut=st.integers(8, len(KEY) - 1), before=st.text())
def test_a_key_that_is_cut_off_is_redacted(cut: int, before: str) -> None:
    """What is left of a key where a text was cut short is redacted too."""
    assert Secret(KEY).redact(f"{before}{KEY[:cut]}…") == f"{before}***…"


@given(st.text())
def test_other_text_is_not_redacted(text: str) -> None:
    """A text without the key stays as it is."""
    assert Secret(KEY).redact(text) == text
    assert Secret("").redact(text) == text


def test_short_keys_are_redacted() -> None:
    """A key of a few characters is one too."""
    assert Secret("key").redact("the key: key") == "the ***: ***"


def test_an_error_loses_the_key_and_the_causes_that_tell_it() -> None:
    """An error is cleaned in its texts, and what came before it is kept as far as it does not tell the key."""
    innermost = ValueError(f"refused {KEY}")
    inner = KeyError("harmless")
    inner.__cause__ = innermost
    error = RuntimeError(f"key {KEY} refused", 5)
    error.__cause__ = inner
    error.request = KEY  # type: ignore[attr-defined]  # an attribute as errors have them
    Secret(KEY).redact_error(error)
    assert error.args == ("key *** refused", 5)
    assert vars(error) == {"request": "***"}
    assert list(links(error)) == [error, inner]


def test_an_attribute_of_a_cause_that_tells_the_key_cuts_the_chain() -> None:
    """A cause that carries the key in an attribute, as errors of parsers do, is not kept."""
    error = RuntimeError("no answer")
    error.__cause__ = json.JSONDecodeError("no JSON", f"[{KEY}", 1)
    Secret(KEY).redact_error(error)
    assert list(links(error)) == [error]


def links(error: BaseException | None) -> Iterator[BaseException]:
    """Go through an error and all that came before it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
