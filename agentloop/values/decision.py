"""What can be decided about a call that waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import field, frozen

from agentloop.values.json_value import JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Approve(Value):
    """Let the call run as it is.

    Attributes:
        digest: bind the approval to one key, tool and arguments (`PendingCall.digest`); empty to approve what is pending.
    """

    digest: str = ""


@frozen(eq=False, repr=False)
class Deny(Value):
    """Keep the call from running and tell the model why."""

    reason: str = ""


@frozen(eq=False, repr=False)
class Answer(Value):
    """Settle the call with this value, without running it."""

    value: JsonValue = field(default=None, converter=freeze)


@frozen(eq=False, repr=False)
class Edit(Value):
    """Let the call run with other arguments, which are validated again."""

    arguments: JsonObject = field(converter=freeze_object)


Decision: TypeAlias = Approve | Deny | Answer | Edit


def approve(digest: str = "") -> Approve:
    """Decide that the call runs as it is; with a digest, only if the pending call still has that digest."""
    return Approve(digest)


def deny(reason: str = "") -> Deny:
    """Decide that the call does not run; the model is told the reason."""
    return Deny(reason)


def answer(value: object) -> Answer:
    """Decide that the call is settled with this value, without running."""
    return Answer(value)


def edit(arguments: Mapping[str, object]) -> Edit:
    """Decide that the call runs with these arguments instead."""
    return Edit(arguments)
