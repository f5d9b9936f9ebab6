"""Personal data in texts: e-mail addresses, phone numbers, accounts, cards and the like, with their checksums."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final, TypeAlias

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.policies.guardrails import Inspection
from agentloop.tools.patterns import LinearPattern
from agentloop.values.value import Value

Validate: TypeAlias = Callable[[str], int]
"""Returns how many characters of a candidate, from its first, are really of the kind; 0 for none."""


@frozen
class _Kind:
    """A kind of personal data.

    Attributes:
        label: what it is, in words.
        pattern: matches candidates. Each begins where no other can, and has a maximum length, so that searching takes time
            proportional to the text.
        validate: tells which of them are real.
    """

    label: str
    pattern: re.Pattern[str]
    validate: Validate


@frozen(eq=False, repr=False)
class FoundData(Value):
    """A place of personal data in a text.

    Attributes:
        kind: the kind, such as `email`.
        start: the index of its first character.
        end: the index after its last one.
    """

    kind: str
    start: int
    end: int


@frozen(init=False)
class PersonalData:
    """Finds personal data; a check for `Guardrails`.

        Guardrails(output=[PersonalData("card", "iban")], on_output=ReplaceAnswer(PersonalData("card", "iban").mask))

    The kinds are `card`, `email`, `iban`, `ip`, `phone` and `ssn` (of the USA). Cards, accounts and IP addresses are validated by
    their checksums and their form, so that other numbers are rarely taken for them. Phone numbers have neither: only those with
    a `+`, a leading zero or the form of North America are found. Names and postal addresses are not found; a `ModelJudge` can look
    for them.

    Args:
        *kinds: the kinds; all by default.
        patterns: further patterns, by what they find; they are searched in linear time, and masked as `[a project]`.

    Raises:
        ConfigurationError: there is no such kind.
        ToolDefinitionError: a pattern is not a regular expression, or has a part that linear time excludes.
    """

    kinds: tuple[str, ...]
    patterns: Mapping[str, LinearPattern] = field(repr=False)

    def __init__(self, *kinds: str, patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        unknown = next((kind for kind in kinds if kind not in KINDS), None)
        if unknown is not None:
            hint = suggest(unknown, KINDS) or f"; there is {', '.join(KINDS)}"
            raise ConfigurationError(f"there is no kind {unknown!r} of personal data{hint}")
        compiled = {label: LinearPattern(pattern) for label, pattern in patterns.items()}
        chosen = tuple(kinds) if kinds or patterns else tuple(KINDS)
        self.__attrs_init__(chosen, compiled)

    @property
    def name(self) -> str:
        """The name of the check."""
        return "personal data"

    def __call__(self, inspection: Inspection) -> Sequence[str]:
        """Return the kinds that a text has, in words, without the data."""
        found = {place.kind for place in self.find(inspection.text)}
        labels = [f"it has {KINDS[kind].label}" for kind in self.kinds if kind in found]
        return [*labels, *[f"it has {label}" for label in self.patterns if label in found]]

    def find(self, text: str) -> list[FoundData]:
        """Return the places of personal data, in order; where two overlap, the first one and of these the longest.

        A text may be JSON, or hold some: data in it is also found where its characters are written as escapes.
        """
        written = list(self._find_written(text))
        if "\\" in text:
            plain, origins = _unescape(text)
            meant = [
                FoundData(place.kind, origins[place.start], origins[place.end]) for place in self._find_written(plain)
            ]
            # What is written begins within an escape where a letter of one comes first, as in "\nada@example.com".
            meant = _without_overlaps(meant)
            written = [*meant, *[place for place in written if not _overlaps_any(place, meant)]]
        return _without_overlaps(written)

    def _find_written(self, text: str) -> Iterator[FoundData]:
        """Yield the places of data that is written as it is."""
        plain = text if text.isascii() else text.translate(_PLAIN)
        for kind in self.kinds:
            for start, end in _search(KINDS[kind], plain):
                yield FoundData(kind, start, end)
        for label, pattern in self.patterns.items():
            for start, end in pattern.places(text, _ignore):
                yield FoundData(label, start, end)

    def mask(self, text: str) -> str:
        """Return the text with the kind in brackets in place of the data, such as `[email]`."""
        pieces, position = [], 0
        for place in self.find(text):
            pieces += [text[position : place.start], f"[{place.kind}]"]
            position = place.end
        return "".join([*pieces, text[position:]])


def _without_overlaps(places: Sequence[FoundData]) -> list[FoundData]:
    result: list[FoundData] = []
    for place in sorted(places, key=lambda place: (place.start, -place.end)):
        if not result or place.start >= result[-1].end:
            result.append(place)
    return result


def _overlaps_any(place: FoundData, others: Sequence[FoundData]) -> bool:
    """Return whether a place overlaps one of others, which are in order and do not overlap each other."""
    index = bisect_left(others, place.end, key=lambda other: other.start)
    return index > 0 and others[index - 1].end > place.start


# --- spellings --------------------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _unescape(text: str) -> tuple[str, list[int]]:
    """Return a text with the characters that the escapes of JSON in it mean, and the index in the text of each of them."""
    pieces: list[str] = []
    origins: list[int] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        code, letter = match.groups()
        pieces += text[position : match.start()], chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)
        origins += range(position, match.start() + 1)
        position = match.end()
    origins += range(position, len(text) + 1)
    return "".join([*pieces, text[position:]]), origins


class _PlainCharacters:
    """Other spellings of a character, for `str.translate`: digits of all scripts, spaces, hyphens and wide forms, one for one."""

    def __getitem__(self, code: int) -> int:
        return _plain_character(code)


@lru_cache(maxsize=4096)
def _plain_character(code: int) -> int:
    character = chr(code)
    category = unicodedata.category(character)
    if category == "Nd":
        return ord("0") + unicodedata.decimal(character)
    if category in {"Zs", "Pd"}:
        return ord(" ") if category == "Zs" else ord("-")
    return code - _WIDE if _WIDE < code - ord(" ") < _WIDE + _ASCII_COUNT else code


_WIDE, _ASCII_COUNT = 0xFEE0, 95  # the distance of the full-width forms of the characters of ASCII
_PLAIN = _PlainCharacters()


def _ignore(_: float) -> None:
    """Count no steps: they are in proportion to the text."""


def _search(kind: _Kind, text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while (match := kind.pattern.search(text, position)) is not None:
        length = kind.validate(match[0])
        if length:
            yield match.start(), match.start() + length
        position = match.start() + (length or 1)


# --- validation -------------------------------------------------------------------------------------------------


_DOUBLED = str.maketrans("0123456789", "0246813579")  # twice a digit, less 9 where that has two digits


def _is_luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1)."""
    summands = digits[::-2] + digits[-2::-2].translate(_DOUBLED)
    return (sum(summands.encode()) - ord("0") * len(summands)) % 10 == 0


_CARD_LENGTHS = range(13, 20)
# The first digits that are given out to banks: Visa, Mastercard, American Express, Diners, Discover, JCB, Maestro, UnionPay.
_CARD = re.compile(r"4|5[0-8]|6[0-9]|2[2-7]|3[0-9]|81")


def _card_length(candidate: str) -> int:
    """Return the length of a card number at the beginning of groups of digits."""
    digits = candidate.replace(" ", "").replace("-", "")
    if not _CARD.match(digits):
        return 0
    ends = [index + 1 for index, character in enumerate(candidate) if character.isdecimal()]
    for count in reversed(_CARD_LENGTHS):
        if count <= len(digits) and not candidate[ends[count - 1] : ends[count - 1] + 1].isdecimal():
            number = digits[:count]
            if _is_luhn(number) and number.count(number[0]) < count:
                return ends[count - 1]
    return 0


_IBAN_TABLE = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 ES24
FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32
LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24
RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30
"""
_IBAN_LENGTHS: Final = {entry[:2]: int(entry[2:]) for entry in _IBAN_TABLE.split()}
"""The lengths of account numbers by country (SWIFT, IBAN Registry)."""


def _iban_length(candidate: str) -> int:
    """Return the length of an account number whose checksum holds (ISO 13616: 1 modulo 97)."""
    length = _IBAN_LENGTHS.get(candidate[:2].upper(), 0)
    places = [index for index, character in enumerate(candidate) if character.isalnum()]
    if not length or len(places) < length:
        return 0
    end = places[length - 1] + 1
    if candidate[end : end + 1].isalnum():
        return 0
    compact = "".join([candidate[index] for index in places[:length]]).upper()
    number = "".join([str(int(character, 36)) for character in compact[4:] + compact[:4]])
    return end if int(number) % 97 == 1 else 0


def _ip_length(candidate: str) -> int:
    """Return the length of an IP address; a full stop or a colon after it is one of the sentence."""
    text = candidate if candidate.endswith("::") else candidate.rstrip(":")
    first = text.partition(":")[0]
    # Times, and names with colons between them as in C++, are no addresses that anybody means.
    is_long = text.count(":") > 2 or len(first) > 2  # noqa: PLR2004  # colons, and digits
    if ":" in text and not (is_long and any(map(str.isdecimal, first))):
        return 0
    try:
        ip_address(text)
    except ValueError:
        return 0
    return len(text)


_PHONE_DIGITS = range(8, 16)  # E.164 has at most 15
_NORTH_AMERICA = re.compile(r"\(?[2-9]\d{2}\)?[ .-]?[2-9]\d{2}[ .-]\d{4}")
_SSN = re.compile(r"\d{3}([- ])\d{2}\1\d{4}")
_DATE_OR_FRACTION = re.compile(r"\d+\.\d+$|0?\d[./-]\d{1,2}[./-]\d{2,4}")


def _phone_length(candidate: str) -> int:
    """Return the length of a phone number."""
    text = candidate.rstrip(" .-/(")
    if _SSN.fullmatch(text):
        return 0
    if (match := _NORTH_AMERICA.match(text)) is not None and not text[match.end() : match.end() + 1].isdecimal():
        return match.end()
    count = sum(map(str.isdecimal, text))
    is_marked = text.startswith(("+", "00", "(0")) or (text.startswith("0") and len(text) > count)
    is_phone = (
        is_marked
        and count in _PHONE_DIGITS
        and not _DATE_OR_FRACTION.match(text)
        and text.count("(") == text.count(")")
    )
    return len(text) if is_phone else 0


def _ssn_length(candidate: str) -> int:
    """Return the length of a social security number; there is no checksum, but some numbers are never given out."""
    area, group, serial = candidate[:3], candidate[4:6], candidate[7:]
    is_given_out = area not in {"000", "666"} and area < "900" and group != "00" and serial != "0000"
    return len(candidate) if is_given_out and candidate != "123-45-6789" else 0


def _email_length(candidate: str) -> int:
    """Return the length of an e-mail address."""
    text = candidate.rstrip(".-")
    local, _, domain = text.partition("@")
    labels = domain.split(".")
    is_local = not local.startswith(".") and not local.endswith(".") and ".." not in local
    is_domain = len(labels) > 1 and all(labels) and labels[-1].isalpha() and len(labels[-1]) > 1
    return len(text) if is_local and is_domain else 0


KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        "card": _Kind(
            "a card number", re.compile(r"(?<!\d)(?<!\d\.)\d(?:[ -]?\d){12,18}(?![\d])", re.ASCII), _card_length
        ),
        "email": _Kind(
            "an e-mail address",
            re.compile(r"[\w.+%'-]{1,64}@(?:[\w-]{1,63}\.){1,8}[\w-]{2,63}"),
            _email_length,
        ),
        "iban": _Kind(
            "a bank account number",
            re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,40}", re.ASCII),
            _iban_length,
        ),
        "ip": _Kind(
            "an IP address",
            re.compile(
                r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)|(?<!\w)(?<![0-9A-Fa-f:]:)[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?!\w)",
                re.ASCII,
            ),
            _ip_length,
        ),
        "phone": _Kind(
            "a phone number",
            re.compile(r"(?:(?<![\w+])\+|(?<![\w+-])(?<!\d[.,])\(?)\d(?:[ ./()-]{0,2}\d){6,16}(?![\w])", re.ASCII),
            _phone_length,
        ),
        "ssn": _Kind(
            "a social security number", re.compile(r"(?<![\w-])\d{3}([- ])\d{2}\1\d{4}(?![\w-])", re.ASCII), _ssn_length
        ),
    }
)
"""The kinds, by name."""
