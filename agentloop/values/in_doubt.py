"""Calls that have begun and of which nobody knows whether they have run: what can be learnt of them, and what becomes of them."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from agentloop.values.json_value import JsonValue, freeze
from agentloop.values.value import Value


class InDoubt(StrEnum):
    """What becomes of a call with an effect that was interrupted, when nobody can be asked whether it has run.

    `TELL` settles it as `in_doubt`: the model is told, and so are listeners. `SUSPEND` lets it wait for a person: to approve
    is to run it again, to answer says what came of it, to deny leaves it. `FAIL` ends the execution as failed.
    """

    TELL = "tell"
    SUSPEND = "suspend"
    FAIL = "fail"


@frozen(eq=False, repr=False)
class Happened(Value):
    """The call has run.

    Attributes:
        value: what the tool would have returned.
    """

    value: JsonValue = field(default=None, converter=freeze)


@frozen(eq=False, repr=False)
class DidNotHappen(Value):
    """The call has not run, and will not unless it is run again."""


@frozen(eq=False, repr=False)
class CannotTell(Value):
    """It cannot be found out whether the call has run.

    Attributes:
        reason: why not, for the model and for people.
    """

    reason: str = ""


Probed: TypeAlias = Happened | DidNotHappen | CannotTell
"""What a tool has found out about a call of its own that was interrupted."""


def happened(value: object = None) -> Happened:
    """Say that the call has run, and what came of it."""
    return Happened(value)


def did_not_happen() -> DidNotHappen:
    """Say that the call has not run: it is run now."""
    return DidNotHappen()


def cannot_tell(reason: str = "") -> CannotTell:
    """Say that it cannot be found out."""
    return CannotTell(reason)
