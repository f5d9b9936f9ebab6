"""Statements about tools, their speakers, and the statement that holds.

Code declares a tool. A file, a server or a row of a database may say more about the tool, and a stranger may have written them.
Their statements can make a tool stricter, never looser: more of its calls wait for a person, none fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import reduce
from typing import Any, Final, Self

from attrs import field, frozen

from agentloop.values.tool_calls import ALL, Effect, Egress
from agentloop.values.value import Value


class Authority(StrEnum):
    """The kind of speaker of a statement: code, a person, a file, a server, or a row of a database."""

    CODE = "code"
    PERSON = "person"
    FILE = "file"
    SERVER = "server"
    ROW = "row"

    @property
    def may_loosen(self) -> bool:
        """Whether a statement may make a tool looser than another one: only statements of code and persons may."""
        return self in {Authority.CODE, Authority.PERSON}


_EFFECTS: Final = (Effect.PURE, Effect.IDEMPOTENT, Effect.EFFECT)


def _stricter_effect(one: Effect, other: Effect) -> Effect:
    return max(one, other, key=_EFFECTS.index)


def _stricter_egress(one: Egress, other: Egress) -> Egress:
    if isinstance(one, bool) or isinstance(other, bool):
        return True if True in {one, other} else one or other
    return tuple(sorted({*one, *other}))


def _in_both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if ALL in {one, other}:
        return other if one == ALL else one
    return tuple(sorted({*one} & {*other}))


def _in_either(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return ALL if ALL in {one, other} else tuple(sorted({*one, *other}))


def _either(one: bool, other: bool) -> bool:  # noqa: FBT001  # joins two of a kind
    return one or other


def _both(one: bool, other: bool) -> bool:  # noqa: FBT001  # joins two of a kind
    return one and other


_STRICTER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "effect": _stricter_effect,
    "egress": _stricter_egress,
    "own": _in_both,
    "identifiers": _in_both,
    "decides": _in_either,
    "runs_code": _either,
    "strict": _either,
    "sequential": _either,
    "eager": _both,
}
DECLARED: Final = tuple(_STRICTER)
"""The subjects of statements that can be stricter or looser: options of `@tool`."""


def strictest(about: str, values: Iterable[Any]) -> Any:
    """Return the strictest of some values, or one that is as strict as all of them: `pure` and `effect` are `effect`.

    Args:
        about: one of `DECLARED`.
        values: at least one.
    """
    return reduce(_STRICTER[about], values)


def is_looser(about: str, value: object, than: object) -> bool:
    """Return whether a value lets a call pass that the other one would not let pass.

    Args:
        about: one of `DECLARED`.
        value: the value.
        than: the other one.
    """
    return bool(strictest(about, (value, than)) != value)


@frozen(eq=False, repr=False)
class Statement(Value):
    """A word of somebody about a tool, or about a group of tools.

    Attributes:
        about: its subject: an option of `@tool` such as `effect`, an option of a group such as `root`, the `module` that a
            tool was imported from, or the `annotations` of a server.
        value: the value of the subject.
        by: the kind of speaker.
        place: the place of the statement, such as `agent.toml, line 4`; may be empty.
    """

    about: str
    value: Any
    by: Authority
    place: str = ""

    @property
    def speaker(self) -> str:
        """The speaker, with the place, in words for people."""
        return f"{self.by} ({self.place})" if self.place else str(self.by)


def _as_statements(statements: Iterable[Statement]) -> tuple[Statement, ...]:
    return tuple(statements)


@frozen(eq=False, repr=False)
class Declarations(Value):
    """All statements about one tool.

    On each subject, the word of a person holds, or else the word of code, and every other statement on it can only make this word
    stricter. The result does not depend on the order of the statements, and a statement that is made twice counts once.

    Attributes:
        statements: the statements; code makes one about each of `DECLARED`.
    """

    statements: tuple[Statement, ...] = field(default=(), converter=_as_statements)

    @classmethod
    def of_code(cls, **values: object) -> Self:
        """Return the declarations of a tool that code alone describes."""
        return cls([Statement(about, value, Authority.CODE) for about, value in values.items()])

    def about(self, name: str) -> tuple[Statement, ...]:
        """Return the statements on one subject, in the order in which they were made."""
        return tuple([statement for statement in self.statements if statement.about == name])

    def holding(self, about: str) -> Statement:
        """Return the statement that holds.

        Args:
            about: one of `DECLARED`.

        Raises:
            KeyError: neither code nor a person has said anything about it.
        """
        said = self.about(about)
        words = [statement for statement in said if statement.by.may_loosen]
        if not words:
            raise KeyError(about)
        by_persons = [statement for statement in words if statement.by is Authority.PERSON]
        ground = by_persons or words
        counting = [*ground, *[statement for statement in said if not statement.by.may_loosen]]
        value = strictest(about, [statement.value for statement in counting])
        holding = next((statement for statement in counting if statement.value == value), None)
        # Names of arguments add up: then no statement alone says all of it.
        return holding or Statement(about, value, counting[-1].by, counting[-1].place)

    def plus(self, *statements: Statement) -> Self:
        """Return a copy with more statements."""
        return type(self)((*self.statements, *statements))

    def replaced_by(self, statement: Statement) -> Self:
        """Return a copy with a word of code or of a person, in place of its earlier word and of the words of files, servers and rows."""
        others = {Authority.CODE, Authority.PERSON} - {statement.by}
        kept = [each for each in self.statements if each.about != statement.about or each.by in others]
        return type(self)([*kept, statement])

    def restated(self, **values: object) -> Self:
        """Return a copy in which the word of code on these subjects replaces all earlier statements on them."""
        kept = [statement for statement in self.statements if statement.about not in values]
        return type(self)([*kept, *self.of_code(**values).statements])
