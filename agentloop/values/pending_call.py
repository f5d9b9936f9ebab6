"""A call that waits for a decision."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.decision import Decision
from agentloop.values.tool_call import ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class PendingCall(Value):
    """A call that waits: for a person's decision, or for an earlier call that does.

    Attributes:
        key: the idempotency key of the call; decisions name it.
        call: the call as it would run.
        reason: why it waits, for the one who decides.
        waits_for: the key of the pending call that has to be settled first; empty when it waits for a decision.
        decision: what was decided, until the call is settled by it.
    """

    key: str
    call: ToolCall
    reason: str = ""
    waits_for: str = ""
    decision: Decision | None = None

    @property
    def digest(self) -> str:
        """What a decision is bound to: SHA-256 over key, tool name and arguments, in hexadecimal."""
        import hashlib  # noqa: PLC0415  # loads OpenSSL, 10 ms that only those pay who bind decisions

        bound = f"{self.key}\x00{self.call.name}\x00{self.call.arguments_json}"
        return hashlib.sha256(bound.encode("utf-8", "surrogatepass")).hexdigest()
