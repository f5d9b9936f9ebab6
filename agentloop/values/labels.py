"""Labels: who wrote what a model has read, so that it is known who may have decided about a call.

Text that a tool returns can instruct a model. A label names the foreign sources of a text: everybody but the user, the developer and
the persons who decide about calls. A value without a label counts as foreign, whoever has left the label out.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from operator import attrgetter
from typing import Final

from attrs import field, frozen

from agentloop.values.value import Value, check_types

_MAX_SOURCES = 50
_MAX_SHOWN = 10


class SourceKind(StrEnum):
    """The kind of a foreign source.

    `TOOL` is the result of a call, `AGENT` the text of another agent, `ATTACHMENT` a file or an image of a user's message, and
    `SERVER` what the provider of a model has fetched. `UNKNOWN` is a text of which nobody has said who wrote it.
    """

    TOOL = "tool"
    AGENT = "agent"
    ATTACHMENT = "attachment"
    SERVER = "server"
    UNKNOWN = "unknown"


@frozen(eq=False, repr=False)
class Source(Value):
    """A foreign source of a text.

    Attributes:
        kind: its kind.
        name: the name of the tool, the agent or the provider; may be empty.
        key: the idempotency key of the call whose result it is; empty for other kinds.
    """

    kind: SourceKind = field(converter=SourceKind)
    name: str = ""
    key: str = ""

    __attrs_post_init__ = check_types

    # Faster than those of `Value`: in a long execution, labels of dozens of sources are joined in each turn.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and (self.key, self.name, self.kind) == (other.key, other.name, other.kind)

    def __hash__(self) -> int:
        return hash((self.key, self.name, self.kind))

    def __str__(self) -> str:
        match self.kind:
            case SourceKind.TOOL:
                return f"the result of {self.name}"
            case SourceKind.AGENT:
                return f"the agent {self.name}" if self.name else "another agent"
            case SourceKind.ATTACHMENT:
                return "an attachment"
            case SourceKind.SERVER:
                return f"what {self.name or 'the provider'} has fetched"
        return self.name or "a text of unknown origin"


_ORDER = attrgetter("kind", "name", "key")


def _as_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    distinct = sorted(dict.fromkeys(sources), key=_ORDER)
    if len(distinct) <= _MAX_SOURCES:
        return tuple(distinct)
    return (*distinct[: _MAX_SOURCES - 1], Source(SourceKind.UNKNOWN, "further sources"))


@frozen(eq=False, repr=False)
class Label(Value):
    """The foreign sources of a text, of a value or of a decision; none for words of the user, the developer and those who decide.

    Attributes:
        sources: the sources, at most 50 of them; `UNKNOWN` stands for the others.
    """

    sources: tuple[Source, ...] = field(
        default=(),
        converter=_as_sources,
    )

    @property
    def is_foreign(self) -> bool:
        """Whether anybody else than the user, the developer and those who decide has had a part in it."""
        return bool(self.sources)

    def __or__(self, other: Label) -> Label:
        """Return the label of both together. One that is full stays as it is: it says that there are further sources."""
        if self is other or not other.sources or len(self.sources) == _MAX_SOURCES:
            return self
        if not self.sources:
            return other
        known = self.sources
        new = [source for source in other.sources if source not in known]
        return Label((*known, *new)) if new else self

    def __str__(self) -> str:
        names = list(dict.fromkeys(map(str, self.sources)))
        if len(names) > _MAX_SHOWN:
            names[_MAX_SHOWN:] = [f"{len(names) - _MAX_SHOWN} more"]
        return ", ".join(names) or "nobody else"


class Writer(StrEnum):
    """The writer of an argument: the user, a source that it is quoted from, the model, or the program that makes the call.

    `ENDORSED`: a person has counted this value of this argument as his, by a decision about an earlier call.
    """

    USER = "user"
    ENDORSED = "endorsed"
    SOURCE = "source"
    MODEL = "model"
    PROGRAM = "program"


@frozen(eq=False, repr=False)
class ArgumentOrigin(Value):
    """Who had a part in an argument of a call; its text says it to the person who decides about the call.

    Attributes:
        argument: the name of the argument.
        label: the foreign sources of its value.
        writer: who wrote it.
    """

    argument: str
    label: Label
    writer: Writer = field(default=Writer.PROGRAM, converter=Writer)

    __attrs_post_init__ = check_types

    def __str__(self) -> str:
        return self.told_with(str(self.label))

    def told_with(self, sources: str) -> str:
        """Return who wrote it, in words.

        Args:
            sources: the text of its label, with every character visible.
        """
        match self.writer:
            case Writer.USER:
                return "yours"
            case Writer.ENDORSED:
                return "yours, by the decision about an earlier call"
            case Writer.SOURCE:
                return f"from {sources}"
            case Writer.MODEL:
                read = f"after reading {sources}" if self.label.is_foreign else "before it read anything foreign"
                return f"the model, {read}"
        return f"the program, from {sources}" if self.label.is_foreign else "the program"


@frozen(eq=False, repr=False)
class CallOrigins(Value):
    """Who had a part in a call that a program makes.

    Attributes:
        control: who had a part in the decision to make it.
        arguments: who had a part in each of its arguments; one that is missing is of unknown origin.
    """

    control: Label
    arguments: tuple[ArgumentOrigin, ...] = field(default=(), converter=tuple[ArgumentOrigin, ...])

    __attrs_post_init__ = check_types


CLEAN: Final = Label()
"""The label of what no foreign source has had a part in."""
UNKNOWN: Final = Label((Source(SourceKind.UNKNOWN),))
"""The label of what has none."""
ATTACHMENT: Final = Label((Source(SourceKind.ATTACHMENT),))
"""The label of a file, an image or piped text in a user's message."""


def foreign(name: str = "", *, kind: SourceKind | str = SourceKind.AGENT, key: str = "") -> Label:
    """Return the label of a text that somebody else wrote, for messages that a program makes of it.

    Args:
        name: who wrote it.
        kind: the kind of source.
        key: the idempotency key of the call whose result it is; empty for other kinds.
    """
    return Label((Source(SourceKind(kind), name, key),))
