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
        digest: binds the decision to one key, tool and arguments (`PendingCall.digest`); empty to decide about the call
            that waits under the key, whatever it is.
    """

    digest: str = ""


@frozen(eq=False, repr=False)
class Deny(Value):
    """Keep the call from running and tell the model why.

    Attributes:
        reason: why.
        digest: as that of `Approve`.
    """

    reason: str = ""
    digest: str = ""


@frozen(eq=False, repr=False)
class Answer(Value):
    """Settle the call with this value, without running it.

    Attributes:
        value: the result.
        digest: as that of `Approve`.
    """

    value: JsonValue = field(default=None, converter=freeze)
    digest: str = ""


@frozen(eq=False, repr=False)
class Edit(Value):
    """Let the call run with other arguments, which are validated again.

    Attributes:
        arguments: the arguments.
        digest: as that of `Approve`; of the call that was shown, not of the edited one.
    """

    arguments: JsonObject = field(converter=freeze_object)
    digest: str = ""


Decision: TypeAlias = Approve | Deny | Answer | Edit


def approve(digest: str = "") -> Approve:
    """Decide that the call runs as it is.

    Args:
        digest: `PendingCall.digest` of the call that was shown to the one who decides: if another call, or one with other
            arguments, waits under the key then, the decision is refused.
    """
    return Approve(digest)


def deny(reason: str = "", digest: str = "") -> Deny:
    """Decide that the call does not run; the model is told the reason. The digest is as that of `approve`."""
    return Deny(reason, digest)


def answer(value: object, digest: str = "") -> Answer:
    """Decide that the call is settled with this value, without running. The digest is as that of `approve`."""
    return Answer(value, digest)


def edit(arguments: Mapping[str, object], digest: str = "") -> Edit:
    """Decide that the call runs with these arguments instead. The digest, as that of `approve`, is of the call as it waits."""
    return Edit(arguments, digest)
