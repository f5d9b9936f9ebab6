"""Keeping secrets out of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.durable.masked_text import (
    FieldText,
    MaskedText,
    Prefixes,
    SecretText,
    TextByBeginning,
    TextHeldBack,
    TextMaskedTwice,
)
from agentloop.durable.spellings import (
    BREAKS,
    PERCENT,
    WRAPPED,
    base64_parts,
    field_pattern,
    field_spelling,
    field_start_pattern,
    hex_of,
    plain_part,
    spellings_of,
)
from agentloop.errors import ConfigurationError
from agentloop.values.decisions import Decision
from agentloop.values.json import canonical_json, duplicate_key, format_json, freeze_object, parse_json
from agentloop.values.records import CallIntent, RecordedCall, RecordKind
from agentloop.values.secrets import MASK, Secret, SecretFields
from agentloop.values.serialization import to_plain
from agentloop.values.tool_calls import ErrorInfo, ToolStatus

_MIN_LENGTH = 4
"""The minimum length of a secret; a shorter text would match everywhere and make the records unreadable."""


class Redaction(CanRedactRecords):
    """Masks secrets in plain JSON data: texts wherever they occur, and fields by name.

    Texts are matched in strings, in keys, in numbers, and in every spelling that JSON allows inside a string, at any depth of
    nested JSON; also with any of their characters percent-encoded, as in URLs and forms, and in hexadecimal, and in Base64 of
    either alphabet, alone or as a part of what was encoded, also where the encoded text is wrapped into lines. Fields are matched in data and in strings that hold JSON; in other strings, a field with a
    single name is matched when its value is a string, a number or a word.

    A field is masked wherever it occurs, so choose names that only arguments and results have: masking `id` or `text` would
    also mask parts of the record itself.

    Args:
        secrets: texts of at least four characters, or keys; empty ones are ignored.
        fields: names such as `password`, or dotted paths such as `card.number`, which match below any other field; `*` matches
            every name.

    Raises:
        ConfigurationError: a secret is too short; the message does not contain it.
    """

    __slots__ = ("_count", "_field", "_field_start", "_paths", "_prefixes", "_probes", "_secrets")

    def __init__(self, secrets: Iterable[str | Secret] = (), fields: Iterable[str] = ()) -> None:
        texts = _texts_of(secrets)
        self._paths = SecretFields(fields).paths
        self._secrets = (
            re.compile("|".join([each.pattern for text in texts for each in spellings_of(text)])) if texts else None
        )
        names = [path[0] for path in self._paths if len(path) == 1]
        self._field = field_pattern(names) if names else None
        self._field_start = field_start_pattern(names) if names else None
        self._prefixes = (
            Prefixes(tuple([each for text in texts for each in spellings_of(text)])),
            Prefixes(tuple(map(field_spelling, names))),
        )
        longest_names = [max((name for name in path if name != "*"), default="", key=len) for path in self._paths]
        encoded = [part for text in texts for part in base64_parts(text)]
        self._probes = frozenset(
            [
                *map(plain_part, [*texts, *longest_names]),
                *[max(re.split("[+/]", part), key=len) for part in encoded],
                *[spelling for text in texts for spelling in (hex_of(text), hex_of(text).upper())],
            ]
        )
        self._count = len(texts) + len(self._paths)

    def __repr__(self) -> str:
        return f"Redaction({self._count} secrets)"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is masked."""
        return not self._count

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return plain JSON data with secrets masked; the same object when it holds none."""
        if not self._probes or not self._may_contain_secret(format_json(body).decode()):
            return body
        masked: dict[str, Any] = self._mask(body, ())
        return body if masked == body else masked

    def mask_document(self, document: Any) -> Any:
        """Return plain JSON data with secret texts masked, and no fields; the same object when it holds none."""
        if self._secrets is None or not self._may_contain_secret(format_json(document).decode()):
            return document
        return self._mask_all_texts(document)

    def _mask_all_texts(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mask_texts(value)
        if isinstance(value, dict):
            return {self._mask_texts(name): self._mask_all_texts(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mask_all_texts(item) for item in value]
        return self._mask(value, ())

    def mask_text(self, text: str) -> str:
        """Return a text as a record would have it."""
        return str(self.redact({"text": text}).get("text", MASK))

    def mask_pieces(self) -> MaskedText | None:
        """Return a mask for one text that arrives in pieces; None if nothing is masked.

        What it shows is what `mask_text` returns for the whole text, apart from the white space of JSON. Where fields are masked, it shows
        a text that begins as JSON at its end only: it has to be read as a whole.
        """
        if self.is_empty:
            return None
        if any(_is_suffix(path, ("text",)) for path in self._paths):
            return TextHeldBack(self.mask_text)
        secrets, fields = self._prefixes
        ways: list[MaskedText] = []
        if self._field_start is not None:
            ways.append(FieldText(self._field_start, fields))
        if self._secrets is not None:
            ways.append(SecretText(self._secrets, secrets))
        text = TextMaskedTwice(ways)
        return TextByBeginning(TextHeldBack(self.mask_text), text) if self._paths else text

    def _may_contain_secret(self, text: str) -> bool:
        """Return whether a text needs a full search: it has the plain part of a secret or an escaped character.

        This substring search decides about most records; the patterns are much slower. A plain part may be wrapped into lines.
        """
        if any(probe in text for probe in self._probes) or "\\u00" in text or PERCENT.search(text) is not None:
            return True
        if WRAPPED.search(text) is None:
            return False
        unwrapped = BREAKS.sub("", text)
        return any(probe in unwrapped for probe in self._probes)

    def _mask(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            return self._mask_string(value, path) if self._may_contain_secret(value) else value
        if isinstance(value, dict):
            return {self._mask_texts(name): self._mask_field(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mask(item, path) for item in value]
        if value is None or isinstance(value, bool) or self._secrets is None:
            return value
        return MASK if self._secrets.search(format_json(value).decode()) else value

    def _mask_field(self, value: Any, path: tuple[str, ...]) -> Any:
        return MASK if any(_is_suffix(secret, path) for secret in self._paths) else self._mask(value, path)

    def _mask_string(self, text: str, path: tuple[str, ...]) -> str:
        """Mask inside the JSON that a string holds, so that it stays valid JSON, and then in the rest of the string."""
        if text.lstrip()[:1] in {"{", "[", '"'}:
            try:
                value = parse_json(text)
                masked = self._mask(value, path)
            except ValueError:
                pass  # the string is no JSON; the patterns below apply to it
            # Too deep to be searched.
            except RecursionError:
                return MASK
            else:
                # An unchanged text keeps its spelling.
                text = text if masked == value and self._has_searched(text) else format_json(masked).decode()
        if self._field is not None:
            text = self._field.sub(_masked_field, text)
        return self._mask_texts(text)

    def _has_searched(self, text: str) -> bool:
        """Return whether all of a JSON text was searched for paths: of a key that occurs twice, only the last value was."""
        return all(len(path) == 1 for path in self._paths) or duplicate_key(text) is None

    def _mask_texts(self, text: str) -> str:
        return self._secrets.sub(MASK, text) if self._secrets is not None and self._may_contain_secret(text) else text


def _texts_of(secrets: Iterable[str | Secret]) -> list[str]:
    """Return the texts of secrets, longest first, so that a secret which contains another one is masked as a whole."""
    values = (secrets,) if isinstance(secrets, str) else secrets
    texts = {(secret.reveal() if isinstance(secret, Secret) else secret).strip() for secret in values} - {""}
    if any(len(text) < _MIN_LENGTH for text in texts):
        raise ConfigurationError(
            f"a secret of a journal is shorter than {_MIN_LENGTH} characters: it would match everywhere"
        )
    return sorted(texts, key=len, reverse=True)


def _masked_field(match: re.Match[str]) -> str:
    return f'{match["name"]}{match["level"]}"{MASK}{match["level"]}"'


def _is_suffix(secret: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Return whether a path ends with a secret path, in which `*` matches every name."""
    if len(secret) > len(path):
        return False
    return all(part in {"*", name} for part, name in zip(secret, path[-len(secret) :], strict=True))


# --- masks and journals -----------------------------------------------------------------------------------------------


def mask_text(text: str, journal: CanJournal) -> str:
    """Return a text as the journal would store it."""
    if not isinstance(journal, CanRedactRecords):
        return text
    masked = journal.redact({"text": text})
    return str(masked.get("text", MASK))


def decisions_as_recorded(decisions: Mapping[str, Decision], journal: CanJournal) -> Mapping[str, str]:
    """Return decisions as the journal would store them: their JSON texts, by the keys of the calls."""
    return dict(_as_recorded(key, to_plain(decision, Decision), journal) for key, decision in decisions.items())


async def used_decisions(journal: CanJournal, execution_id: str, after: int) -> Mapping[str, str]:
    """Return the decisions that an execution has used since a record, the first one about each call, as `decisions_as_recorded` does.

    Args:
        journal: the journal.
        execution_id: the execution.
        after: the number of the record.
    """
    used: dict[str, str] = {}
    for record in await journal.read(execution_id, after=after):
        if record.kind is RecordKind.DECISION_USED:
            body = parse_json(record.body)
            used.setdefault(*_as_recorded(body["key"], body["decision"], journal))
    return used


def _as_recorded(key: str, decision: object, journal: CanJournal) -> tuple[str, str]:
    body = {"key": key, "decision": decision}
    if isinstance(journal, CanRedactRecords):
        body = journal.redact(body)
    return str(body["key"]), canonical_json(freeze_object({"decision": body["decision"]}))


def refuse_masked_call(intent: CallIntent) -> RecordedCall | None:
    """Return the failure of a call with a mask in its arguments; None when there is none.

    A call that a model made before a crash is read from the journal, where secrets are masked; it must not run with the mask.
    """
    if MASK not in intent.call.arguments_json:
        return None
    error = ErrorInfo(
        "ToolFailed",
        "a secret in the arguments was masked in the journal, so the recorded call cannot be run; make the call again",
    )
    return RecordedCall(intent=intent, execution=intent.to_execution(ToolStatus.FAILED, error=error), redacted=True)
