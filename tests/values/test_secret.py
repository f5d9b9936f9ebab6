"""Tests of `Secret`."""

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
from agentloop.values import Secret
from agentloop.values.secrets import as_secret

KEY = "sk-test-0123456789abcdef"


def test_no_conversion_to_text_shows_the_key() -> None:
    """Neither repr nor str nor format contains the key."""
    secret = Secret(KEY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{[secret]}", f"{ {'key': secret} }"]
    assert not any(KEY[:10] in text for text in shown)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_cannot_be_pickled(protocol: int) -> None:
    """Pickling raises with every protocol, and the error does not contain the key."""
    with pytest.raises(TypeError, match="cannot be pickled") as caught:
        pickle.dumps({"key": Secret(KEY)}, protocol)
    assert KEY not in str(caught.value)


def test_a_secret_cannot_be_converted_to_json() -> None:
    """Conversion to JSON raises, or yields asterisks with `default=str`."""
    with pytest.raises(TypeError):
        json.dumps({"key": Secret(KEY)})
    assert KEY not in json.dumps({"key": Secret(KEY)}, default=str)


@pytest.mark.parametrize("copy_function", [copy.copy, copy.deepcopy])
def test_a_secret_can_be_copied_in_memory(copy_function: Any) -> None:
    """An object with a secret can be copied within the process."""
    assert copy_function([Secret(KEY)])[0].reveal() == KEY


def test_secrets_compare_by_their_key() -> None:
    """Secrets with equal keys are equal, and a secret does not equal its text."""
    assert Secret(KEY) == Secret(KEY)
    assert hash(Secret(KEY)) == hash(Secret(KEY))
    assert Secret(KEY) != Secret("another")
    assert Secret(KEY) != KEY


def test_whitespace_around_a_key_is_removed() -> None:
    """A line end after a key from a file does not make it invalid."""
    assert Secret(f" {KEY}\n").reveal() == KEY


@pytest.mark.parametrize("invalid", ["sk-te\nst", "sk-te\x00st", "sk-te…st", "sk-tést", "sk-te\x7fst"])
def test_an_invalid_key_is_refused_without_being_shown(invalid: str) -> None:
    """The error gives the position of the invalid character and not the key."""
    with pytest.raises(ConfigurationError, match=r"its character \d of \d is") as caught:
        Secret(invalid)
    assert "sk-t" not in str(caught.value)


def test_an_empty_key_is_none() -> None:
    """`as_secret` returns None for None, an empty text and whitespace."""
    assert (as_secret(None), as_secret(""), as_secret("  "), as_secret(Secret(""))) == (None, None, None, None)
    assert as_secret(KEY) == Secret(KEY)
    with pytest.raises(TypeError, match="a key is text"):
        as_secret(5)  # type: ignore[arg-type]  # the invalid type


@given(before=st.text(), after=st.text(), times=st.integers(0, 3))
@example(before="", after="", times=1)
def test_every_occurrence_of_the_key_is_redacted(before: str, after: str, times: int) -> None:
    """All occurrences are replaced, and the other text is unchanged."""
    text = before + f"{KEY}{after}" * times
    assert Secret(KEY).redact(text) == before + f"***{after}" * times


@given(cut=st.integers(8, len(KEY) - 1), before=st.text())
def test_a_truncated_key_is_redacted(cut: int, before: str) -> None:
    """The beginning of a key is replaced too."""
    assert Secret(KEY).redact(f"{before}{KEY[:cut]}…") == f"{before}***…"


@given(st.text())
def test_other_text_is_not_redacted(text: str) -> None:
    """A text without the key is unchanged."""
    assert Secret(KEY).redact(text) == text
    assert Secret("").redact(text) == text


def test_short_keys_are_redacted() -> None:
    """A key of a few characters is redacted too."""
    assert Secret("key").redact("the key: key") == "the ***: ***"


def test_an_error_loses_the_key_and_the_causes_that_contain_it() -> None:
    """Texts and attributes are redacted, and the chain of causes ends before the first error that contains the key."""
    innermost = ValueError(f"refused {KEY}")
    inner = KeyError("harmless")
    inner.__cause__ = innermost
    error = RuntimeError(f"key {KEY} refused", 5)
    error.__cause__ = inner
    error.request = KEY  # type: ignore[attr-defined]  # httpx sets such an attribute
    Secret(KEY).redact_error(error)
    assert error.args == ("key *** refused", 5)
    assert vars(error) == {"request": "***"}
    assert list(error_chain(error)) == [error, inner]


def test_a_cause_with_the_key_in_an_attribute_is_removed() -> None:
    """An attribute of a cause, such as the document of a JSON error, is checked too."""
    error = RuntimeError("no response")
    error.__cause__ = json.JSONDecodeError("no JSON", f"[{KEY}", 1)
    Secret(KEY).redact_error(error)
    assert list(error_chain(error)) == [error]


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes and contexts."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
