"""Personal data in texts."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest

from agentloop import AgentState
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.policies import Inspection, PersonalData
from tests.limits import processor_seconds

POSITIVE = [
    ("email", "write to ada@example.com.", "ada@example.com"),
    ("email", "<a.b+c_d%e'f@sub-1.example.co.uk>", "a.b+c_d%e'f@sub-1.example.co.uk"),
    ("email", "MÜLLER@MÜNCHEN.DE", "MÜLLER@MÜNCHEN.DE"),
    ("email", "mailto:x@y.org?subject=z", "x@y.org"),
    ("card", "4111111111111111", "4111111111111111"),
    ("card", "card: 4111 1111 1111 1111, exp 12/30", "4111 1111 1111 1111"),
    ("card", "4111 1111 1111 1111 123", "4111 1111 1111 1111"),
    ("card", "5500-0000-0000-0004", "5500-0000-0000-0004"),
    ("card", "3782 822463 10005", "3782 822463 10005"),
    ("card", "6011000990139424.", "6011000990139424"),
    ("card", "4222222222222", "4222222222222"),
    ("iban", "DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 00"),
    ("iban", "to GB82WEST12345698765432 today", "GB82WEST12345698765432"),
    ("iban", "de89370400440532013000", "de89370400440532013000"),
    ("iban", "NO93 8601 1117 947 is mine", "NO93 8601 1117 947"),
    ("iban", "MT84MALT011000012345MTLCAST001S", "MT84MALT011000012345MTLCAST001S"),
    ("ip", "at 10.0.0.1:80", "10.0.0.1"),
    ("ip", "from 192.168.178.255.", "192.168.178.255"),
    ("ip", "[2001:db8::1]", "2001:db8::1"),
    ("ip", "fe80::1", "fe80::1"),
    ("ip", "from 1::2:3", "1::2:3"),
    ("ip", "2001:0db8:85a3:0000:0000:8a2e:0370:7334", "2001:0db8:85a3:0000:0000:8a2e:0370:7334"),
    ("phone", "+49 (0)30 1234567", "+49 (0)30 1234567"),
    ("phone", "call +1-212-555-0123 now", "+1-212-555-0123"),
    ("phone", "(212) 555-0123", "(212) 555-0123"),
    ("phone", "212-555-0123", "212-555-0123"),
    ("phone", "030/12345678", "030/12345678"),
    ("phone", "0044 20 7946 0958", "0044 20 7946 0958"),
    ("phone", "020 7946 0958", "020 7946 0958"),
    ("ssn", "SSN 078-05-1120.", "078-05-1120"),
    ("ssn", "899 45 6789", "899 45 6789"),
    ("email", "Mail me...ada@example.com", "ada@example.com"),
    ("email", "-" * 70 + "> ada@example.com", "ada@example.com"),
    ("email", "ada\uff20example.com", "ada\uff20example.com"),
    ("card", "ada,4111111111111111,2027", "4111111111111111"),
    ("card", "no.4111111111111111", "4111111111111111"),
    ("card", "4111\u00a01111\u00a01111\u00a01111", "4111\u00a01111\u00a01111\u00a01111"),
    ("card", "4111\u20111111\u20111111\u20111111", "4111\u20111111\u20111111\u20111111"),
    ("card", "\u0664" + "\u0661" * 15, "\u0664" + "\u0661" * 15),
    (
        "iban",
        "DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00",
        "DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00",
    ),
    ("ip", "IP:2001:db8::1", "2001:db8::1"),
    ("phone", "ada,+14155552671,x", "+14155552671"),
    ("phone", "(415)\u00a0555-2671", "(415)\u00a0555-2671"),
    ("email", "mail: ada\\u0040example.com", "ada\\u0040example.com"),
]
"""The kind, a text, and the data in it."""

NEGATIVE = [
    ("email", "a@b"),
    ("email", "@example.com"),
    ("email", "x@.com"),
    ("email", "v1@2.3"),
    ("email", "react@18.2.10"),
    ("email", "ada@example.c0m"),
    ("email", "ada@example..com"),
    ("email", "ada@example.c--"),
    ("email", "decorator @property.setter"),
    ("card", "4111111111111112"),
    ("card", "1234567890123456"),
    ("card", "0000000000000000"),
    ("card", "order 9000000000000000"),
    ("card", "41111111111111111111111"),
    ("card", "3.14111111111111111"),
    ("iban", "DE88 3704 0044 0532 0130 00"),
    ("iban", "DE89 3704 0044 0532 0130"),
    ("iban", "ZZ89370400440532013000"),
    ("iban", "DE893704004405320130001"),
    ("ip", "256.1.1.1"),
    ("ip", "1.2.3.4.5"),
    ("ip", "version 1.2.3"),
    ("ip", "at 10:30:59"),
    ("ip", "std::a::b"),
    ("ip", "a::b"),
    ("ip", "10::30"),
    ("ip", "::"),
    ("phone", "in 2024, 1234567 of 10000000"),
    ("phone", "2024-01-02 10:30"),
    ("phone", "01.02.2024"),
    ("phone", "0.123456789"),
    ("phone", "078-05-1120"),
    ("phone", "order 49301234567"),
    ("phone", "212-555-01234"),
    ("ssn", "000-12-3456"),
    ("ssn", "666-12-3456"),
    ("ssn", "900-12-3456"),
    ("ssn", "123-00-4567"),
    ("ssn", "123-12-0000"),
    ("ssn", "123-12 4567"),
    ("ssn", "1078-05-1120"),
]
"""The kind, and a text that has none of it."""


@pytest.mark.parametrize(("kind", "text", "data"), POSITIVE)
def test_data_is_found_in_its_place(kind: str, text: str, data: str) -> None:
    """The place is exactly that of the data, and the mask hides it and nothing else."""
    check = PersonalData(kind)
    (place,) = check.find(text)
    assert (place.kind, text[place.start : place.end]) == (kind, data)
    assert check.mask(text) == text.replace(data, f"[{kind}]")


@pytest.mark.parametrize(("kind", "text"), NEGATIVE)
def test_what_looks_similar_is_not_found(kind: str, text: str) -> None:
    """A wrong checksum, a wrong length, a version, a date or a time is no personal data."""
    assert PersonalData(kind).find(text) == []


def test_all_kinds_are_searched_at_once() -> None:
    """Without kinds, all are searched; the problems name the kinds and do not repeat the data."""
    text = "ada@example.com paid with 4111 1111 1111 1111 from 10.0.0.1; SSN 078-05-1120"
    check = PersonalData()
    assert check.mask(text) == "[email] paid with [card] from [ip]; SSN [ssn]"
    problems = check(Inspection("output", text, (), AgentState.start("x")))
    kinds = ("a card number", "an e-mail address", "an IP address", "a social security number")
    assert problems == [f"it has {kind}" for kind in kinds]


def test_own_patterns_are_searched_in_linear_time() -> None:
    """A pattern of the program that would take years with backtracking takes none here."""
    check = PersonalData(patterns={"a project": r"Project (a+)+b"})
    state = AgentState.start("x")
    started = time.process_time()
    assert list(check(Inspection("input", "Project " + "a" * 20_000, (), state))) == []
    assert time.process_time() - started < 2
    assert list(check(Inspection("input", "see Project aab", (), state))) == ["it has a project"]
    assert check.kinds == ()


def test_own_patterns_are_masked() -> None:
    """What a pattern of the program finds is masked like any other data, beside the kinds."""
    check = PersonalData("email", patterns={"a project": r"Project \w+"})
    assert check.mask("Project Ada: ada@example.com, Project Bob.") == "[a project]: [email], [a project]."


@pytest.mark.parametrize(
    "mail",
    [
        "ada\\u0040example.com",
        "\\u0061da@example.com",
        "ada@example\\u002ecom",
        "to\\nada@example.com",
        "\\/ada@example.com",
    ],
)
def test_data_in_json_is_found_however_it_is_escaped(mail: str) -> None:
    """A program that parses the answer would get the data; the mask leaves the JSON valid."""
    check = PersonalData("email")
    masked = check.mask(f'```json\n{{"mail": "{mail}", "path": "C:\\\\u"}}\n```')
    found = json.loads(masked.removeprefix("```json").removesuffix("```"))
    assert "@" not in found["mail"]
    assert found["mail"].endswith("[email]")
    assert found["path"] == "C:\\u"


def test_wrong_kinds_and_patterns_are_errors() -> None:
    """A misspelled kind is named with the closest one; a pattern that linear time excludes is refused."""
    with pytest.raises(ConfigurationError, match="did you mean 'email'"):
        PersonalData("emial")
    with pytest.raises(ToolDefinitionError):
        PersonalData(patterns={"x": r"(a)\1"})


SHAPES = [
    "1",
    "1 ",
    "1-",
    "a@",
    "a.",
    "@",
    "a@a.",
    "1.",
    "1:",
    "::",
    "f:",
    "+1",
    "(",
    "DE89",
    "DE8 ",
    "4111 ",
    "0/",
    "(0",
    "-",
    "a",
    "é",
]


@pytest.mark.parametrize("length", [40_000, pytest.param(200_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("shape", SHAPES)
def test_hostile_texts_take_time_in_proportion_to_their_length(shape: str, length: int) -> None:
    """The longest texts take seconds at most, and twice the text about twice the time."""
    check = PersonalData()
    texts = [shape * (count // len(shape)) for count in (length // 2, length)]
    seconds = [processor_seconds(partial(check.mask, text)) for text in texts]
    assert seconds[1] < max(0.3, 3 * seconds[0])
    assert seconds[1] < 5
