"""Keeping secrets out of what is written down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.errors import ConfigurationError
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import CallIntent, RecordedCall
from agentloop.values.secrets import MASK, Secret, SecretFields
from agentloop.values.serialization import to_plain
from agentloop.values.tool_calls import ErrorInfo, ToolStatus
from agentloop.values.value import Value

_SHORT = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_PLAIN = re.compile(r'[^\x00-\x1f"\\/\x7f-\U0010ffff]+')
"""Characters that are themselves in all JSON, unless somebody spells them by their number."""


def plain_part(text: str) -> str:
    r"""Return the longest part of a text that stands in every spelling of it that has no `\u00`; empty when there is none."""
    return max(_PLAIN.findall(text), key=len, default="")


def secrets_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Make a pattern that finds any of these texts in any spelling, the first that fits."""
    return re.compile("|".join([_spelled(text) for text in texts]))


def field_pattern(names: Iterable[str]) -> re.Pattern[str]:
    r"""Make a pattern that finds a field of JSON in the middle of a text, as far as its value is a text, a number or a word.

    The group `name` is all before the value, `level` the backslashes that quotation marks have at the depth of this JSON. A value
    that is cut off ends with the text.
    """
    name = "|".join([_spelled(name) for name in names])
    value = r'(?:(?P=level)".*?(?:(?<!\\)(?P=level)"|\Z)|[^\s,"\\{}\[\]]+)'
    return re.compile(rf'(?P<name>(?<!\\)(?P<level>\\*)"(?:{name})(?P=level)"\s*:\s*){value}', re.DOTALL)


def _spelled(text: str) -> str:
    r"""Write the pattern of a text; a run of backslashes is one of any length, for each level doubles it."""
    once = re.sub(r"\\+", r"\\", text)
    return _spelled_character(once[0], r"(?<!\\)") + "".join([_spelled_character(other) for other in once[1:]])


def _spelled_character(character: str, begin: str = "") -> str:
    r"""Write the pattern of a character; `begin` keeps one that comes first from being tried inside a run of backslashes."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    number = begin + "".join([rf"\\+u(?i:{units[at : at + 4]})" for at in range(0, len(units), 4)])
    if character == "\\":
        return rf"(?:{number}|{begin}\\+)"
    if character in '"/':
        return rf"(?:{begin}\\*{character}|{number})"
    short = rf"|{begin}\\+{_SHORT[character]}" if character in _SHORT else ""
    return f"(?:{re.escape(character)}|{number}{short})"


_SHORTEST = 4
"""A shorter text would be found everywhere, and what is recorded could not be read again."""


class Redaction:
    """Masks secrets in JSON data: texts wherever they stand, and fields by their names.

    Texts are found in strings, in names, in numbers, and in any spelling that JSON allows inside a string, however deeply it is
    nested there. Fields are found in data and in strings that hold JSON; in other strings, a field of a single name is found where its
    value is a text, a number or a word.

    A field is masked wherever it stands, so the names should be such as only arguments and results have: to mask `id` or
    `text` would also mask what the record itself is made of.

    Args:
        secrets: texts of at least four characters, or keys; empty ones are left out.
        fields: names, as `password`, or dotted paths, as `card.number`, which are found below any other field; `*` stands
            for every name.

    Raises:
        ConfigurationError: when a secret is too short; the message does not show it.
    """

    __slots__ = ("_field", "_paths", "_probes", "_secrets")

    def __init__(self, secrets: Iterable[str | Secret] = (), fields: Iterable[str] = ()) -> None:
        texts = _texts(secrets)
        self._paths = SecretFields(fields).paths
        self._secrets = secrets_pattern(texts) if texts else None
        names = [path[0] for path in self._paths if len(path) == 1]
        self._field = field_pattern(names) if names else None
        told = [*texts, *(max((name for name in path if name != "*"), default="", key=len) for path in self._paths)]
        self._probes = frozenset(plain_part(text) for text in told)

    def __repr__(self) -> str:
        return f"Redaction({len(self._probes)} secrets)"

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return plain JSON data with what is secret masked; the same object when nothing is."""
        if not self._probes or not self._may_be_in(format_json(body).decode()):
            return body
        masked: dict[str, Any] = self._masked(body, ())
        return body if masked == body else masked

    def _may_be_in(self, text: str) -> bool:
        """Whether it is worth to look closely: a plain part of a secret is there, or a character that is spelled by its number."""
        return any(probe in text for probe in self._probes) or "\\u00" in text

    def _masked(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            return self._masked_text(value, path) if self._may_be_in(value) else value
        if isinstance(value, dict):
            return {self._without(name): self._masked_field(one, (*path, name)) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(one, path) for one in value]
        if value is None or isinstance(value, bool) or self._secrets is None:
            return value
        return MASK if self._secrets.search(format_json(value).decode()) else value

    def _masked_field(self, value: Any, path: tuple[str, ...]) -> Any:
        return MASK if any(_leads_to(secret, path) for secret in self._paths) else self._masked(value, path)

    def _masked_text(self, text: str, path: tuple[str, ...]) -> str:
        """Mask inside the JSON that a text holds, so that it stays JSON, and then in what else is there."""
        if text.lstrip()[:1] in {"{", "[", '"'}:
            try:
                value = parse_json(text)
                masked = self._masked(value, path)
            except ValueError:
                pass  # a text like any other
            except RecursionError:
                return MASK
            else:
                text = text if masked == value else format_json(masked).decode()
        if self._field is not None:
            text = self._field.sub(_field_masked, text)
        return self._without(text)

    def _without(self, text: str) -> str:
        return self._secrets.sub(MASK, text) if self._secrets is not None and self._may_be_in(text) else text


def _texts(secrets: Iterable[str | Secret]) -> list[str]:
    given = (secrets,) if isinstance(secrets, str) else secrets
    texts = {(one.reveal() if isinstance(one, Secret) else one).strip() for one in given} - {""}
    if any(len(text) < _SHORTEST for text in texts):
        raise ConfigurationError(
            f"a secret of a journal is shorter than {_SHORTEST} characters: it would be found everywhere"
        )
    return sorted(texts, key=len, reverse=True)


def _field_masked(found: re.Match[str]) -> str:
    return f'{found["name"]}{found["level"]}"{MASK}{found["level"]}"'


def _leads_to(secret: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if len(secret) > len(path):
        return False
    return all(one in {"*", name} for one, name in zip(secret, path[-len(secret) :], strict=True))


def masked_text(text: str, journal: CanJournal) -> str:
    """Return a text as the journal would hold it."""
    if not isinstance(journal, CanRedactRecords):
        return text
    masked = journal.redact({"text": text})
    return str(masked.get("text", MASK))


def is_equal_after_masking(given: Value | None, recorded: Value | None, journal: CanJournal) -> bool:
    """Say whether a value is the recorded one, or would be if what is secret in it were masked."""
    if given == recorded:
        return True
    if not isinstance(journal, CanRedactRecords):
        return False
    plain: dict[str, Any] = {"value": to_plain(given)}
    return journal.redact(plain) == {"value": to_plain(recorded)}


def refusal(intent: CallIntent) -> RecordedCall | None:
    """Return what comes of a call whose arguments were read from a journal that masks: nothing, if something in them is masked.

    Args:
        intent: the call.
    """
    if MASK not in intent.call.arguments_json:
        return None
    error = ErrorInfo(
        "ToolFailed",
        "something secret in the arguments was not written down, so the call cannot be run from what was recorded; make "
        "it again",
    )
    return RecordedCall(intent=intent, execution=intent.ended(ToolStatus.FAILED, error=error), redacted=True)
