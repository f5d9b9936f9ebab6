"""What can be decided about a call that waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentloop.errors import AgentLoopError
from agentloop.values.json import JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.tool_calls import ToolCall
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


def _as_inner(calls: Iterable[PendingCall]) -> tuple[PendingCall, ...]:
    return tuple(calls)


@frozen(eq=False, repr=False)
class PendingCall(Value):
    """A call that waits: for a person's decision, or for an earlier call that does.

    Attributes:
        key: the idempotency key of the call; decisions name it.
        call: the call as it would run.
        reason: why it waits, for the one who decides.
        waits_for: the key of the pending call that has to be settled first; empty when it waits for a decision.
        decision: what was decided, until the call is settled by it.
        begun: whether its tool has begun to run and has suspended the call itself.
        inner: the calls inside of it that wait, where an agent serves it; decisions may name their keys.
        progress: what its tool needs to go on, as JSON; an agent's state, where one serves the call.
    """

    key: str
    call: ToolCall
    reason: str = ""
    waits_for: str = ""
    decision: Decision | None = None
    begun: bool = False
    inner: tuple[PendingCall, ...] = field(default=(), converter=_as_inner)
    progress: JsonValue = field(default=None, converter=freeze, repr=False)

    @property
    def is_decided(self) -> bool:
        """Whether something was decided about it, or about a call inside of it."""
        return self.decision is not None or any(call.decision is not None for call in self.inner)

    @property
    def flat(self) -> tuple[PendingCall, ...]:
        """The call, and after it those inside of it, at any depth."""
        return (self, *self.inner)

    def without_internals(self) -> PendingCall:
        """Return the call without what only its tool needs."""
        return evolve(self, inner=(), progress=None) if self.inner or self.progress is not None else self

    @property
    def digest(self) -> str:
        """What a decision is bound to: SHA-256 over key, tool name and arguments, in hexadecimal."""
        import hashlib  # noqa: PLC0415  # loads OpenSSL, 10 ms that only those pay who bind decisions

        bound = f"{self.key}\x00{self.call.name}\x00{self.call.arguments_json}"
        return hashlib.sha256(bound.encode("utf-8", "surrogatepass")).hexdigest()


class CallSuspended(AgentLoopError):
    """Raise it in a tool to let its call wait for a decision: the execution is suspended, and the call is in `state.pending`.

    When the call is approved, or a call inside of it is decided, the tool is used again, with what it left in
    `ToolContext.resumed`. An answer settles the call without the tool, and so does a denial.

    Attributes:
        reason: why it waits, for the one who decides.
        inner: the calls inside of it that wait; with them, it goes on when one of these is decided.
        progress: what the tool needs to go on, as JSON.
    """

    def __init__(self, reason: str = "", *, inner: Iterable[PendingCall] = (), progress: object = None) -> None:
        super().__init__(reason or "the call waits for a decision")
        self.reason = reason
        self.inner: tuple[PendingCall, ...] = tuple(inner)
        self.progress: JsonValue = freeze(progress)


@frozen(eq=False, repr=False)
class Block(Value):
    """The call does not run; the model is told the reason."""

    reason: str


@frozen(eq=False, repr=False)
class Suspend(Value):
    """The call waits for a decision; the reason is for the one who decides."""

    reason: str = ""


Verdict: TypeAlias = Block | Answer | Suspend
