"""Approvals that hold from now on: calls that a grant covers run without a question."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from inspect import isawaitable
from typing import Protocol, Self, runtime_checkable
from urllib.parse import quote

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanForetellQuestions, CanIntercept, CanUseLabels, MaybeAwaitable
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_keep_grants import CanKeepGrants, CanReplayGrants, CanUseGrants
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanCallTools, Tool
from agentloop.errors import ConfigurationError
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import GrantGiven, ToolCallGranted
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import parse_key
from agentloop.values.decisions import Approve, Suspend
from agentloop.values.grants import Grant, GrantState, GrantUse
from agentloop.values.json import format_json
from agentloop.values.owners import Owner, check_owner
from agentloop.values.points import AfterExecution, AroundToolUse, BeforeToolUse, ProceedToolUse
from agentloop.values.run_requests import principal_of
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.tool_calls import ALL, ToolExecution, ToolSpec

_MAX_OWNER = 200


@runtime_checkable
class CanAskAboutCalls(Protocol):
    """An interceptor that suspends calls until there is a decision, such as `RequireApproval`."""

    @property
    def priority(self) -> int:
        """The position among other interceptors."""

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return whether calls of a tool wait: True for all, False for none, None for some of them."""

    def before_tool_use(self, point: BeforeToolUse) -> MaybeAwaitable[BeforeToolUse]:
        """Suspend a call, or let it pass."""


@define(eq=False)
class _Uses:
    """The calls of one execution that grants let through.

    Attributes:
        journal: keeps the grants.
        log: counts the uses.
        scope: has the clock, and the token of the claim under which the execution runs once it has started.
    """

    journal: CanKeepGrants
    log: CanUseGrants
    scope: ExecutionScope
    held: dict[str, GrantUse] = field(factory=dict)
    has_cleared: bool = False

    @property
    def token(self) -> int:
        """The token of the claim on the execution."""
        return self.scope.claim_token or 0

    async def find(self, point: BeforeToolUse, owner: str) -> GrantState | None:
        """Let a call through by the oldest grant that covers it and has room for it; None if there is none."""
        await self.release(point.key)  # it may have been let through with other arguments
        known, now = await self.journal.grants(owner=owner), self.scope.clock.now()
        if not self.has_cleared:
            await self._clear(point.state.execution_id, known)
        definition = definition_digest(point.tool, point.ensemble)
        for state in known:
            is_for_tool = state.tool == point.call.name and state.definition == definition
            is_for_call = is_for_tool and state.revoked_at is None and state.grant.covers(point.arguments, now)
            if is_for_call and (state.grant.untrusted or not _is_untrusted(point, state.grant)):
                found = await self._hold(state, point)
                if found is not None:
                    return found
        return None

    async def _hold(self, state: GrantState, point: BeforeToolUse) -> GrantState | None:
        arguments, now = point.arguments, self.scope.clock.now()
        use = GrantUse(
            grant_id=state.id,
            key=point.key,
            amount=str(state.grant.amount_of(arguments) or 0),
            execution_id=point.state.execution_id,
            token=self.token,
            at=now,
        )
        await self._drop_dead(state)
        found = await self.journal.update_grant(state.id, lambda stored: stored.hold(use, arguments, now))
        if found is None or not found.holds_for(point.key):
            return None
        self.held[point.key] = use
        return found

    async def _clear(self, execution_id: str, known: Sequence[GrantState]) -> None:
        """Drop what an earlier process has let through for the execution: its calls are decided about again."""
        self.has_cleared = True
        for state in known:
            if state.drop_earlier(execution_id, self.token) is not state:
                await self.journal.update_grant(state.id, lambda stored: stored.drop_earlier(execution_id, self.token))

    async def _drop_dead(self, state: GrantState) -> None:
        """Drop what was let through for executions that run no more, as after a cancellation."""
        for use in state.holds:
            head = await self.journal.head(use.execution_id)
            if head is None or head.status is not ExecutionStatus.IN_PROGRESS:
                await self.journal.update_grant(state.id, use.drop_from)

    def begin(self, key: str) -> None:
        """Count the use of a call that is about to begin, with its intent."""
        if (use := self.held.get(key)) is not None:
            self.log.use_grant(use)

    async def release(self, key: str) -> None:
        """Give back what a call was let through by and has not used."""
        use = self.held.pop(key, None)
        if use is not None and not self.log.has_used_grant(key):
            await self.journal.update_grant(use.grant_id, lambda stored: stored.release(key))


def _as_asking(approval: object) -> CanAskAboutCalls:
    if not isinstance(approval, CanAskAboutCalls):
        raise ConfigurationError(
            f"AskUnlessGranted takes an interceptor that asks about calls, as in AskUnlessGranted(RequireApproval('pay')); not "
            f"{approval!r:.100}"
        )
    return approval


@frozen
class AskUnlessGranted(
    Interceptor, CanAcceptExecutionScope, CanAcceptLifecycle, CanForetellQuestions, CanNameTools, CanUseLabels
):
    """Lets calls run that a grant covers, and asks about the others.

    A person gives a `Grant` together with the approval of a call. Later calls of the same tool that are within its limits then run
    without a question, in this execution and in others of the same owner that use the journal, also in other processes:

        loop = loop.with_interceptors(AskUnlessGranted(RequireApproval("pay")))
        state = await loop.execute("…")
        grant = Grant(arguments=["amount <= 50"], uses=10)
        state = await loop.resume(state, {call.key: approve(call.digest, grant=grant) for call in state.pending})

    The grant holds for the definition of the tool that the person saw: its name, description, parameters, effect and
    group. A use is counted in the append that records the intent of the call, so never twice. Calls of tools that run
    code are always asked about, and with `AskUntrusted` so are those that somebody else may have decided about, unless
    the grant says `untrusted=True`.

    Attributes:
        approval: which calls need a decision, such as a `RequireApproval`.
        by: whose calls share grants: those of a `principal`, of a `tenant`, or those for which a function of the state returns the same
            text. Where nobody is known to have asked for an execution, its grants hold for all such executions. A principal without a
            tenant shares grants with nobody.
        priority: the position among other interceptors; by default that of `approval`.

    Raises:
        ConfigurationError: an execution starts without a journal that keeps grants, or `by` is something else.
    """

    approval: CanAskAboutCalls = field(converter=_as_asking)
    by: Owner = field(default="principal", kw_only=True)
    priority: int = field(kw_only=True)
    _uses: _Uses | None = field(default=None, repr=False, eq=False, kw_only=True)
    _record: CanReplayGrants | None = field(default=None, repr=False, eq=False, kw_only=True)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)
    checks_calls = True
    writes = ("verdict", "call")  # type: tuple[str, ...]  # an annotation would be a field

    @priority.default
    def _priority_of_approval(self) -> int:
        return self.approval.priority

    @by.validator
    def _check_owner(self, _: object, by: object) -> None:
        check_owner(by)

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools that the rules of the approval name."""
        return self.approval.tool_references if isinstance(self.approval, CanNameTools) else ()

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return whether calls of a tool wait; which of them are granted is known at the call."""
        return self.approval.asks_about(tool, ensemble)

    @property
    def uses_labels(self) -> bool:
        """Whether the approval looks at labels."""
        return isinstance(self.approval, CanUseLabels) and self.approval.uses_labels

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that keeps grants in the journal of the execution, or none while it is replayed.

        Raises:
            ConfigurationError: there is no journal, or it keeps no grants.
        """
        log = scope.log
        journal = None if log is None else log.settings.journal
        if log is None or (isinstance(log, CanUseGrants) and not isinstance(journal, CanKeepGrants)):
            found = "" if journal is None else f"; {type(journal).__name__} is no CanKeepGrants"
            raise ConfigurationError(f"AskUnlessGranted keeps grants in a journal: AgentLoop(…, journal=…){found}")
        if not isinstance(log, CanUseGrants) or not isinstance(journal, CanKeepGrants):
            return evolve(self, record=log) if isinstance(log, CanReplayGrants) else self
        return evolve(self, uses=_Uses(journal, log, scope))

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that reports to this bus."""
        return evolve(self, events=events)

    # --- calls --------------------------------------------------------------------------------------------------

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Suspend a call that requires a decision, has none, and is not granted."""
        asked = self.approval.before_tool_use(point)
        if isawaitable(asked):
            asked = await asked
        uses = self._uses
        if uses is None:
            return self._replay(point, asked)
        if isinstance(point.decision, Approve) and point.decision.grant is not None:
            await self._give(uses, point, point.decision)
        if point.decision is not None or not isinstance(asked.verdict, Suspend):
            await uses.release(point.key)
            return asked
        if point.runs_code:
            return asked
        found = await uses.find(point, owner_of(point.state, self.by))
        if found is None:
            return _as_grantable(asked)
        await self._report(point, found)
        return point

    def _replay(self, point: BeforeToolUse, asked: BeforeToolUse) -> BeforeToolUse:
        """Ask about a call, or let it through, as it was recorded."""
        if point.decision is not None or point.runs_code or not isinstance(asked.verdict, Suspend):
            return asked
        return point if self._record is not None and self._record.was_granted(point.key) else _as_grantable(asked)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Count the use of a grant when the tool begins."""
        if self._uses is None:
            return await proceed()
        self._uses.begin(point.key)
        execution = await proceed()
        await self._uses.release(point.key)
        return execution

    async def after_execution(self, point: AfterExecution) -> AfterExecution:
        """Give back what calls were let through by that did not begin."""
        for key in () if self._uses is None else tuple(self._uses.held):
            assert self._uses is not None  # noqa: S101  # it holds the keys
            await self._uses.release(key)
        return point

    async def _give(self, uses: _Uses, point: BeforeToolUse, decision: Approve) -> None:
        """Store the grant of a decision. It is stored once, however often the execution resumes with the decision."""
        assert decision.grant is not None  # noqa: S101  # callers have checked it
        given = point.key.encode("utf-8", "surrogatepass") + to_json(decision)
        digest = hashlib.sha256(given).hexdigest()
        state = GrantState(
            id=f"grant_{digest[:16]}",
            grant=decision.grant,
            tool=point.call.name,
            definition=definition_digest(point.tool, point.ensemble),
            owner=owner_of(point.state, self.by),
            by=decision.principal,
            key=point.key,
            given_at=uses.scope.clock.now(),
        )
        await uses.journal.add_grant(state)
        if self._events is not None:
            await emit_at_step(
                self._events, GrantGiven, point.state, _step_of(point), point.key, point.call.name, state
            )

    async def _report(self, point: BeforeToolUse, state: GrantState) -> None:
        if self._events is not None:
            details = (point.key, point.call.name, state.id, state.by, str(state.grant))
            await emit_at_step(self._events, ToolCallGranted, point.state, _step_of(point), *details)


def _as_grantable(asked: BeforeToolUse) -> BeforeToolUse:
    """Return a point whose call waits, if it does, for a decision that may come with a grant."""
    verdict = asked.verdict
    return asked.suspend(verdict.reason, grantable=True) if isinstance(verdict, Suspend) else asked


def _step_of(point: BeforeToolUse) -> int | None:
    place = parse_key(point.key)
    return None if place is None else place[0]


async def give_grant(  # one argument for each thing that a grant says
    journal: CanJournal | None,
    tool: Tool,
    grant: Grant,
    *,
    ensemble: str = "",
    owner: str = "",
    by: str = "",
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> GrantState:
    """Give a grant without a call that waits, and return it; it is durable when this returns.

        await give_grant(journal, pay, Grant(arguments=["amount <= 50"], uses=10), owner="acme/ada", by="boss")

    Args:
        journal: keeps the grant, beside the executions whose calls use it.
        tool: the tool, as it is now: a changed definition ends the grant.
        grant: the limits.
        ensemble: the name of the tool's group; empty for none.
        owner: whose calls may use it, as `AskUnlessGranted.by` names them: `acme/ada` for the principal `ada` of the tenant `acme`,
            `/ada` without a tenant, `acme/` for all of a tenant that shares grants; by default the executions for which nobody is
            known to have asked.
        by: who gives it, for the record.
        clock: the source of the time; by default that of the system.
        ids: the source of its id; by default a random one.

    Raises:
        ConfigurationError: there is no journal, or it keeps no grants; the tool runs code, so that each of its calls is asked about;
            or the owner is longer than 200 characters.
        JournalError: the journal cannot be written.
    """
    if not isinstance(journal, CanKeepGrants):
        found = "" if journal is None else f"; {type(journal).__name__} is no CanKeepGrants"
        raise ConfigurationError(f"a grant is kept in a journal, such as SqliteJournal('runs.db'){found}")
    if tool.policy.runs_code or isinstance(tool, CanCallTools):
        raise ConfigurationError(f"the tool {tool.name!r} runs code, so that there is no grant for its calls")
    state = GrantState(
        id=(ids or RandomIds()).new_id("grant"),
        grant=grant,
        tool=tool.name,
        definition=definition_digest(tool.spec, ensemble),
        owner=_checked_owner(owner, "the owner of a grant is"),
        by=by,
        given_at=(clock or SystemClock()).now(),
    )
    await journal.add_grant(state)
    return state


def definition_digest(tool: ToolSpec, ensemble: str = "") -> str:
    """Return the identity of a tool's definition, for grants: SHA-256, in hexadecimal.

    Args:
        tool: the tool.
        ensemble: the name of its group.
    """
    return tool.encoded(("grant", ensemble), lambda spec: _digest_of(spec, ensemble))


def _is_untrusted(point: BeforeToolUse, grant: Grant) -> bool:
    """Return whether somebody else may have decided about a call, or written an argument that the grant limits."""
    if point.label is None:
        return False
    return point.label.is_foreign or any(point.origin_of(name).is_foreign for name in grant.limited)


_UNDECLARED = ((), (), ALL)


def _digest_of(tool: ToolSpec, ensemble: str) -> str:
    egress = tool.egress if isinstance(tool.egress, bool) else sorted(tool.egress)
    parts = [
        tool.name,
        ensemble,
        tool.description,
        tool.parameters,
        tool.effect.value,
        tool.definition,
        tool.strict,
        egress,
    ]
    said = (tool.own, tool.identifiers, tool.decides)
    if said != _UNDECLARED:  # a tool that says nothing has the digest that it had before it could
        parts.append(said)
    return hashlib.sha256(format_json(parts)).hexdigest()


def owner_of(state: AgentState, by: Owner) -> str:
    """Return whose grants an execution uses; empty where nobody is known to have asked for it.

    Args:
        state: the state of the execution.
        by: what names the owner.

    Raises:
        ConfigurationError: a function returns something other than a text of at most 200 characters.
    """
    if callable(by):
        return _checked_owner(by(state), "the function that names the owner of grants returns")
    principal = principal_of(state)
    if principal is None:
        return ""
    tenant = quote(principal.tenant, safe="")
    # Those without a tenant have nothing in common.
    is_shared = by == "tenant" and tenant
    return f"{tenant}/" if is_shared else f"{tenant}/{quote(principal.name, safe='')}"


def _checked_owner(owner: object, subject: str) -> str:
    if not isinstance(owner, str) or len(owner) > _MAX_OWNER:
        raise ConfigurationError(f"{subject} a text of at most {_MAX_OWNER} characters, not {owner!r:.100}")
    return owner
