"""What masks secrets where texts leave the process: those of a journal, and the keys that agents have.

Listeners in the process get events as they are: they are parts of the program, which may see its own data. An exit is what hands data on to
somebody else, such as a server, a protocol, a span or a line of a log. Each exit masks with an `Exit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from attrs import define, field

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.durable.journal import Journal
from agentloop.durable.masked_text import MaskedText, TextHeldBack, TextMaskedTwice
from agentloop.durable.redaction import Redaction
from agentloop.models.config import LLMConfig
from agentloop.values.secrets import MASK, Secret

MIN_KEY = 4
"""The minimum length of a key that is masked: placeholders for local servers, such as `-`, would match everywhere."""
_MAX_OBJECTS = 20_000
"""How many objects of an agent are looked at; one that holds more holds data of the program."""


class Secrets:
    """The secrets that parts of a program hold, such as the keys of the models of an agent.

    Args:
        parts: agents, or anything that holds `Secret`s: in fields and attributes, at any depth.
    """

    def __init__(self, parts: Iterable[object]) -> None:
        found = list(_reachable(parts))
        self._fixed = tuple([each for each in found if isinstance(each, Secret)])
        self._configurations = tuple([each for each in found if isinstance(each, LLMConfig)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secrets) and (self._fixed, self._configurations) == (
            other._fixed,
            other._configurations,
        )

    def __hash__(self) -> int:
        return hash(self._fixed)

    def current(self) -> tuple[Secret, ...]:
        """Return the secrets now: the keys that functions return change."""
        found = [*self._fixed, *[secret for each in self._configurations for secret in each.secrets]]
        return tuple(dict.fromkeys(secret for secret in found if len(secret.reveal()) >= MIN_KEY))


def secrets_of(*parts: object) -> tuple[Secret, ...]:
    """Return the secrets that parts of a program hold now, such as the keys of the models of agents."""
    return Secrets(parts).current()


def _reachable(parts: Iterable[object]) -> Iterator[object]:
    """Yield the objects that parts hold, without what is no part of an agent: journals, buses, classes and modules."""
    seen: dict[int, object] = {}
    waiting = list(parts)
    while waiting and len(seen) < _MAX_OBJECTS:
        each = waiting.pop()
        kind: Any = type(each)
        if id(each) in seen or _is_closed(kind):
            continue
        seen[id(each)] = each
        yield each
        waiting += _held_by(each)


_CLOSED = (str, bytes, int, float, type(None), type, ModuleType, CanJournal, CanHandleEvents)
_MAX_CLASSES = 4096


@lru_cache(_MAX_CLASSES)
def _is_closed(kind: type) -> bool:
    return issubclass(kind, _CLOSED)


def _held_by(each: object) -> Iterable[object]:
    if isinstance(each, Mapping):
        return list(each.values())
    if isinstance(each, list | tuple | set | frozenset):
        return list(each)
    if isinstance(each, partial):
        return [each.func, *each.args, *each.keywords.values()]
    if isinstance(each, MethodType):
        return [each.__self__, each.__func__]
    if isinstance(each, FunctionType):
        return _closed_over(each)
    kind: Any = type(each)
    # Without what a class makes of a look at its attributes.
    held = [_attribute(each, name) for name in _slots_of(kind)]
    return [*held, *(_attribute(each, "__dict__") or {}).values()]


def _closed_over(function: FunctionType) -> Sequence[object]:
    found: list[object] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty one
            found.append(cell.cell_contents)
    return found


@lru_cache(_MAX_CLASSES)
def _slots_of(kind: type) -> Sequence[str]:
    """Return the names of the slots of a class and of those above it."""
    found: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(found)


def _attribute(each: object, name: str) -> Any:
    try:
        return object.__getattribute__(each, name)
    except AttributeError:  # a slot that is not filled, or whose name Python has changed
        return None


@define(eq=False)
class Exit(CanRedactRecords):
    """Masks what leaves the process.

    Attributes:
        recorded: masks records, and what it masks there is masked here; None if nothing is.
        secrets: what is masked besides.
    """

    recorded: CanRedactRecords | None
    secrets: Secrets
    _known: tuple[Secret, ...] = field(default=(), init=False)
    _keys: Redaction = field(factory=Redaction, init=False)

    @classmethod
    def of(cls, journal: object, parts: Iterable[object]) -> Exit:
        """Return an exit for what a journal records, and for the secrets that parts hold, such as agents.

        Args:
            journal: the journal, or None.
            parts: the parts.
        """
        recorded = journal if isinstance(journal, CanRedactRecords) else None
        return cls(None if isinstance(recorded, Journal) and not recorded.masks_secrets else recorded, Secrets(parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exit) and (self.recorded, self.secrets) == (other.recorded, other.secrets)

    def __hash__(self) -> int:
        return hash((self.recorded, self.secrets))

    @property
    def _redaction(self) -> Redaction:
        """Masks the keys; another one after they have changed."""
        known = self.secrets.current()
        if known != self._known:
            self._known, self._keys = known, Redaction(known)
        return self._keys

    @property
    def is_open(self) -> bool:
        """Whether nothing is masked now."""
        return self.recorded is None and self._redaction.is_empty

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return plain JSON data with secrets masked, as in a record; the same object when it holds none."""
        if self.recorded is not None:
            body = self.recorded.redact(body)
        return self._redaction.redact(body)

    def mask_text(self, text: str) -> str:
        """Return a text with secrets masked, as in a record."""
        return str(self.redact({"text": text}).get("text", MASK))

    def mask_document(self, document: Any) -> Any:
        """Return plain JSON data of another form than that of records, with secret texts masked; the same object when it holds none.

        Fields are masked in records by their names, which other documents use for other things.
        """
        if isinstance(self.recorded, Journal):
            document = self.recorded.mask_document(document)
        elif self.recorded is not None:
            document = self.recorded.redact({"document": document}).get("document", MASK)
        return self._redaction.mask_document(document)

    def mask_pieces(self) -> MaskedText | None:
        """Return a mask for one text that arrives in pieces; None if nothing is masked."""
        ways: list[MaskedText | None] = [self._redaction.mask_pieces()]
        if isinstance(self.recorded, Journal):
            ways.append(self.recorded.mask_pieces())
        elif self.recorded is not None:
            # Nobody knows which beginnings of texts it would mask.
            ways.append(TextHeldBack(self.mask_text))
        found = [way for way in ways if way is not None]
        return TextMaskedTwice(found) if found else None


def redaction_of(journal: object, parts: Iterable[object]) -> Exit:
    """Return an exit for what a journal records, and for the secrets that parts hold, such as agents."""
    return Exit.of(journal, parts)
