"""Pending calls, the decisions about them, and the verdicts of interceptors about calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentloop.errors.kinds import AgentLoopError
from agentloop.values.grants import Grant
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.labels import ArgumentOrigin, Label
from agentloop.values.rendering import render_lines, render_name
from agentloop.values.tool_calls import ToolCall, ToolExchange
from agentloop.values.value import EncodeOnce, Value, check_types
from agentloop.values.visible_text import escape_all, render_text


def _as_names(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@frozen(eq=False, repr=False)
class Approve(Value):
    """Run the call unchanged.

    Attributes:
        digest: binds the decision to one suspension of one call (`PendingCall.digest`); empty to decide about whatever call
            is pending under the key.
        principal: who decided; empty when that is unknown.
        grant: what is allowed from now on, for later calls of the tool; None for this call alone. Only a pending call that is
            `grantable` takes it.
        endorse: the names of arguments whose values count as the words of the person from now on: where a later call of the tool has
            the same value in the same argument. They are some of `PendingCall.endorsable`, and the decision has the digest of what was
            shown.
    """

    digest: str = ""
    principal: str = field(default="", kw_only=True)
    grant: Grant | None = field(default=None, kw_only=True)
    endorse: tuple[str, ...] = field(default=(), converter=_as_names, kw_only=True)

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class Deny(Value):
    """Do not run the call, and send the model the reason.

    Attributes:
        reason: the reason, for the model.
        digest: as for `Approve`.
        principal: as for `Approve`.
    """

    reason: str = ""
    digest: str = ""
    principal: str = field(default="", kw_only=True)

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class Answer(Value):
    """Use this value as the result of the call, without running it.

    Attributes:
        value: the result.
        digest: as for `Approve`.
        principal: as for `Approve`.
    """

    value: JsonValue = field(default=None, converter=freeze)
    digest: str = ""
    principal: str = field(default="", kw_only=True)

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class Edit(Value):
    """Run the call with other arguments, which are validated again.

    Attributes:
        arguments: the new arguments.
        digest: as for `Approve`; the digest of the pending call, not of the edited one.
        principal: as for `Approve`.
    """

    arguments: JsonObject = field(converter=freeze_object)
    digest: str = ""
    principal: str = field(default="", kw_only=True)

    __attrs_post_init__ = check_types


Decision: TypeAlias = Approve | Deny | Answer | Edit
"""What is decided about a pending call: to run it, not to run it, to use a result in its place, or to run it with other arguments."""


def approve(
    digest: str = "", *, principal: str = "", grant: Grant | None = None, endorse: str | Iterable[str] = ()
) -> Approve:
    """Decide to run the call unchanged.

    Args:
        digest: `PendingCall.digest` of the reviewed call. The decision is refused if another call, or one with other
            arguments, is pending under the key by then, or if the call was suspended again.
        principal: who decides, for the record.
        grant: what is allowed from now on, for later calls of the tool.
        endorse: the names of arguments whose values, as they were shown, count as the person's own from now on in this execution:
            where a program calls the tool again with the same value of the same argument. Needs the digest.
    """
    return Approve(digest, principal=principal, grant=grant, endorse=_as_names(endorse))


def deny(reason: str = "", digest: str = "", *, principal: str = "") -> Deny:
    """Decide not to run the call; the model gets the reason. The digest and the principal are as for `approve`."""
    return Deny(reason, digest, principal=principal)


def answer(value: object, digest: str = "", *, principal: str = "") -> Answer:
    """Decide to use this value as the result, without running the call. The digest and the principal are as for `approve`."""
    return Answer(value, digest, principal=principal)


def edit(arguments: Mapping[str, object], digest: str = "", *, principal: str = "") -> Edit:
    """Decide to run the call with these arguments instead.

    The digest and the principal are as for `approve`; the digest is that of the call before the edit.
    """
    return Edit(arguments, digest, principal=principal)


def _as_inner(calls: Iterable[PendingCall]) -> tuple[PendingCall, ...]:
    return tuple(calls)


@frozen(eq=False, repr=False)
class PendingCall(EncodeOnce):
    """A call that waits for a decision, or for an earlier call that does.

    Attributes:
        key: the idempotency key of the call; decisions refer to it.
        call: the call as it would run.
        reason: why it waits, for the reviewer.
        waits_for: the key of the pending call that has to be settled first; empty if it waits for a decision.
        decision: the decision, until the call is settled by it.
        begun: whether its tool has started and has suspended the call itself.
        inner: the pending calls of the agent that serves this call, if its tool is an agent; decisions may refer to them.
        progress: what its tool needs to resume, as JSON; the state of the agent, if its tool is an agent.
        suspension: 1-based index of this suspension among those of the call; a decision is about one of them.
        definition: `ToolSpec.definition` of its tool; a decision to run the call is about this definition of the tool.
        settled: the settled calls inside this call, if its tool makes calls itself: each as it was made, with its outcome.
        defaults: what its tool adds to the arguments: the value of each parameter that the call leaves out, by its path, such as
            `payment/currency` or `items/*/count`. A decision to run the call is about these values.
        grantable: whether its approval may come with a `Grant` for later calls of its tool.
        label: who had a part in the decision to make it; None where that is not tracked.
        origins: who had a part in each of its arguments; empty where that is not tracked.
    """

    key: str
    call: ToolCall
    reason: str = ""
    waits_for: str = ""
    decision: Decision | None = None
    begun: bool = False
    inner: tuple[PendingCall, ...] = field(default=(), converter=_as_inner)
    progress: JsonValue = field(default=None, converter=freeze, repr=False)
    suspension: int = 1
    definition: str = ""
    settled: tuple[ToolExchange, ...] = field(default=(), converter=tuple[ToolExchange, ...], repr=False)
    defaults: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    grantable: bool = False
    label: Label | None = None
    origins: tuple[ArgumentOrigin, ...] = ()

    __attrs_post_init__ = check_types

    @property
    def endorsable(self) -> tuple[str, ...]:
        """The arguments whose values a person can count as his own, with `approve(digest, endorse=…)`.

        They are those which somebody else has written, of a call that a planned program makes: where somebody else may have decided
        about the call itself, each later call waits in any case.
        """
        if self.label is None or self.label.is_foreign or self.waits_for:
            return ()
        return tuple([each.argument for each in self.origins if each.label.is_foreign])

    @property
    def is_decided(self) -> bool:
        """Whether there is a decision about it, or about one of its inner calls."""
        return self.decision is not None or any(call.decision is not None for call in self.inner)

    @property
    def flat(self) -> tuple[PendingCall, ...]:
        """The call, followed by its inner calls."""
        return (self, *self.inner)

    def without_internals(self) -> PendingCall:
        """Return the call without its inner calls and progress, which only its tool needs."""
        if not self.inner and self.progress is None:
            return self
        return evolve(self, inner=(), progress=None, settled=())

    @property
    def rendering(self) -> str:
        """The call as text for the person who decides about it: whole, with its defaults, and every character visible.

        The first line is the tool; each further line is an argument, or a default that is marked as such. Where that is tracked, a
        line follows that says who may have decided about the call, and one for each argument that says who wrote it. Show all of it, in
        this form, before you take a decision: the digest is that of this text.
        """
        return self.encoded("rendering", _render)

    @property
    def digest(self) -> str:
        """The identity of this suspension and of what is shown of it, for decisions, in hexadecimal.

        SHA-256 over key, arguments, rendering, suspension, and the definition of a tool that another program defines.
        """
        return self.encoded("digest", _digest_of)


def _render(pending: PendingCall) -> str:
    lines = render_lines(pending.call, pending.defaults)
    label = pending.label
    if label is not None:
        read = f"after reading {render_text(str(label))}" if label.is_foreign else "before anything foreign was read"
        lines.append(f"  decided {read}")
    # No line of an argument looks like one of these: behind its name is an equals sign, and texts are in quotation marks.
    for each in pending.origins:
        lines.append(f"  {render_name(each.argument)}: {each.told_with(render_text(str(each.label)))}")
    return "\n".join(lines)


def _digest_of(pending: PendingCall) -> str:
    import hashlib  # noqa: PLC0415  # loads OpenSSL, which takes 10 ms

    # Each version of Python escapes the characters that it does not know; here all are, so that all versions agree.
    rendering = escape_all(pending.rendering)
    bound = (
        f"{pending.key}\x00{pending.suspension}\x00{pending.definition}\x00{pending.call.arguments_json}\x00{rendering}"
    )
    return hashlib.sha256(bound.encode("utf-8", "surrogatepass")).hexdigest()


class CallSuspended(AgentLoopError):
    """Raise this in a tool to suspend its call until there is a decision; the call is then in `state.pending`.

    When the call is approved, or one of its inner calls is decided, the tool is called again and gets the pending call as
    `ToolContext.resumed`. `Answer` and `Deny` settle the call without the tool.

    Args:
        reason: why the call waits, for the reviewer.
        inner: pending calls inside this call; a decision about one of them resumes it.
        progress: what the tool needs to resume, as JSON.
        settled: the settled calls inside this call, each as it was made, with its outcome.

    Attributes:
        reason: why the call waits.
        inner: the pending calls inside this call.
        progress: what the tool needs to resume.
        settled: the settled calls inside this call.

    Raises:
        NotJson: if the progress has no JSON form.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        inner: Iterable[PendingCall] = (),
        progress: object = None,
        settled: Iterable[ToolExchange] = (),
    ) -> None:
        super().__init__(reason or "the call waits for a decision")
        self.reason = reason
        self.inner: tuple[PendingCall, ...] = tuple(inner)
        self.progress: JsonValue = freeze(progress)
        self.settled: tuple[ToolExchange, ...] = tuple(settled)


@frozen(eq=False, repr=False)
class Block(Value):
    """The verdict that a call does not run.

    Attributes:
        reason: the reason, for the model.
    """

    reason: str

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class Suspend(Value):
    """The verdict that a call waits for a decision.

    Attributes:
        reason: the reason, for the reviewer.
        grantable: whether an approval may come with a `Grant` for later calls of the tool.
    """

    reason: str = ""
    grantable: bool = False

    __attrs_post_init__ = check_types


Verdict: TypeAlias = Block | Answer | Suspend
"""What an interceptor decides about a call before it runs: to block it, to answer in its place, or to let it wait."""
