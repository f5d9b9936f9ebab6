"""Events of permissions."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.event import Event


@frozen(eq=False, repr=False)
class PermissionDecided(Event):
    """A call was let through or kept from running, before it began.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
        allowed: what was decided.
        rule: the rule that decided, in words; empty when no rule spoke of the call.
        reason: what the model is told; empty when the call was let through.
    """

    key: str
    name: str
    allowed: bool
    rule: str = ""
    reason: str = ""
