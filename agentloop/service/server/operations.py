"""What clients can do, independent of HTTP: each operation checks its principal and takes and returns plain JSON data."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Mapping, Sized
from contextlib import suppress
from typing import Any, Final

from attrs import evolve, field, frozen

from agentloop._shielding import compute_in_thread
from agentloop.contracts.can_intercept import uses_labels
from agentloop.durable.exits import Exit
from agentloop.durable.fold import MANY_RECORDS, state_at
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.durable.forking import fork
from agentloop.durable.searching import ExecutionQuery, matches_query
from agentloop.durable.sessions import SessionQueue, agent_of_session, delete_session
from agentloop.errors import ConfigurationError, ContractViolation, ExecutionClaimed, InvalidDocument, JournalConflict
from agentloop.errors.hints import suggest
from agentloop.service.server.access import Principal, RequestRefused, Scope, unknown_execution, unknown_session
from agentloop.service.server.executions import CanRunExecutions, agent_of
from agentloop.service.server.feeds import Feeds, wait_for_change
from agentloop.service.server.record_events import EXTENSION, JsonDict, ServerEvent, details, summary, unrecorded_head
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit
from agentloop.values.json import EMPTY_OBJECT, format_json, freeze_object, has_more_entries, thaw
from agentloop.values.labels import CLEAN, SourceKind, foreign
from agentloop.values.messages import Message
from agentloop.values.parts import Media, Text, find_url_problem
from agentloop.values.records import MAX_ID_CHARACTERS, MAX_WHOLE_ID_CHARACTERS, ExecutionHead, caller_of
from agentloop.values.run_requests import request_extensions, with_request
from agentloop.values.serialization import from_plain, to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.system_prompts import initial_prompt
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.value import above, at_least


@frozen(kw_only=True)
class ServerLimits:
    """Upper limits on what one client can take of a server.

    Attributes:
        connections: the open connections. The server keeps 320 of the files that its process may open for other things, so that there
            can be fewer. When there are too many, the one that has waited for a request the longest is closed.
        connections_per_address: the open connections of one address, or of one network of 64 bits of IPv6. Behind a proxy, all
            connections have the address of the proxy, so that the two limits should be equal.
        body_bytes: the size of a request's body.
        body_seconds: the time in which a body has to arrive.
        header_seconds: the time in which the headers of a request have to arrive.
        send_seconds: the time that a client may take to receive a part of an answer.
        streams: the streams of events that one principal can have open.
        waits: the requests of one principal that can wait for the end of an execution at once.
        page: the executions that one answer lists.
        scanned: the executions that a list looks at for one answer.
        wait_seconds: the time for which a request can wait for the end of an execution.
        heartbeat_seconds: the time after which a stream without events sends a comment, so that proxies keep it open.
    """

    connections: int = field(default=1_000, validator=at_least(1))
    connections_per_address: int = field(default=500, validator=at_least(1))
    body_bytes: int = field(default=1_000_000, validator=at_least(1))
    body_seconds: float = field(default=30.0, validator=above(0))
    header_seconds: float = field(default=10.0, validator=above(0))
    send_seconds: float = field(default=60.0, validator=above(0))
    streams: int = field(default=32, validator=at_least(1))
    waits: int = field(default=200, validator=at_least(1))
    page: int = field(default=200, validator=at_least(1))
    scanned: int = field(default=1000, validator=at_least(1))
    wait_seconds: float = field(default=60.0, validator=above(0))
    heartbeat_seconds: float = field(default=15.0, validator=above(0))


EVERYTHING = ExecutionQuery()
_RECORDS_COST = 10
"""For how many executions one counts whose records are read, in the number that a list looks at."""
MAX_PARTS = 1_000
"""The maximum number of parts of a message that a client sends: a server works on each of them, again with each event and trace."""
MAX_DECISIONS = 1_000
"""The maximum number of decisions in a request."""
MAX_VALUES = 20_000
"""The maximum number of entries of lists and objects in a message or a decision: each of them is copied many times, in Python."""

_START_SECONDS = 5.0
"""How long a server that has claimed an execution may take to record its start."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_DECISIONS: Mapping[str, tuple[type[Decision], frozenset[str]]] = {
    "approve": (Approve, frozenset({"grant", "endorse"})),
    "deny": (Deny, frozenset({"reason"})),
    "answer": (Answer, frozenset({"value"})),
    "edit": (Edit, frozenset({"arguments"})),
}


class Operations:
    """Starts, lists, follows and controls executions for principals.

    Args:
        executions: runs them.
        limits: the limits on clients.

    Attributes:
        exit: masks secrets in all that clients get.
        closing: set when the server begins to shut down; nothing waits for an execution then.
    """

    def __init__(self, executions: CanRunExecutions, limits: ServerLimits) -> None:
        self.executions = executions
        self.limits = limits
        self.exit: Exit = Exit.of(executions.journal, executions.agents.values())
        self.feeds: Feeds = Feeds(executions.journal, executions.unrecorded_state, self.exit.mask_pieces)
        self.closing: asyncio.Event = asyncio.Event()

    @property
    def clock(self) -> Clock:
        """The clock of the loops; that of this machine where there are none."""
        return next((loop.clock for loop in self.executions.agents.values()), SystemClock())

    # --- starting -----------------------------------------------------------------------------------------------

    async def start(
        self, principal: Principal, body: JsonDict, key: str = "", *, headers: Mapping[str, str] = EMPTY_OBJECT
    ) -> tuple[JsonDict, bool]:
        """Start an execution, or return the one that the same request has started before.

        Args:
            principal: who asks.
            body: `input`, and optionally `id`, `agent`, and either `continues` or `session`.
            key: the idempotency key; empty for none.
            headers: the headers of the request that are recorded with the execution.

        Returns:
            The execution, and whether it is new.

        Raises:
            RequestRefused: the body has mistakes, or another request has started an execution of this id.
        """
        principal.require(Scope.START)
        check_fields(body, {"input"}, {"id", "agent", "continues", "session"})
        agent, message = self.agent_named(body.get("agent")), read_message(body["input"])
        message = self.labeled(principal, agent, message)
        execution_id = self._new_id(principal, body.get("id"), key)
        former = body.get("continues")
        if body.get("session") is not None:
            return await self._start_turn(principal, agent, message, execution_id, body, headers)
        state = None if former is None else await self._ended_state(principal, former)
        return await self.start_state(principal, agent, message, execution_id, state, body, headers=headers)

    def labeled(self, principal: Principal, agent: str, message: Message) -> Message:
        """Return a message of a principal: the words of the user, unless the client says otherwise, or nothing has authenticated it.

        Args:
            principal: who sends it.
            agent: the name of the agent that gets it; empty for one of another process.
            message: the message.
        """
        if principal.identity is None and (not agent or uses_labels(self.executions.agents[agent].interceptors)):
            return evolve(message, label=(message.label or CLEAN) | UNAUTHENTICATED)
        # A label can make a message more foreign; that it is nobody else's is not for a client to say.
        return message if message.label is None or message.label.is_foreign else evolve(message, label=None)

    async def start_state(  # noqa: PLR0917  # all of them identify the start
        self,
        principal: Principal,
        agent: str,
        message: Message,
        execution_id: str,
        state: AgentState | None,
        request: JsonDict,
        agent_id: str | None = None,
        headers: Mapping[str, str] = EMPTY_OBJECT,
    ) -> tuple[JsonDict, bool]:
        """Start an execution with a message, after an earlier state or without one; see `start`."""
        started = {"agent": agent, "principal": principal.name, "request": _fingerprint(request)}
        recorded, is_new = await self._first_state(execution_id), False
        if recorded is None:
            loop = self.executions.agents[agent]
            if state is None:
                prompt = initial_prompt(loop.system_prompt)
                state = AgentState.start(
                    message, system_prompt=prompt, agent_id=agent_id, clock=loop.clock, ids=loop.ids
                )
            else:
                state = state.with_message(message)
            state = with_request(state, execution_id, principal.identity, headers)
            recorded = await self._begin(agent, state.with_extension(EXTENSION, started), execution_id)
            is_new = recorded.agent_id == state.agent_id
        if thaw(recorded.extension(EXTENSION)) != started:
            raise RequestRefused(
                422, "other_request", "another request has started an execution with this id or idempotency key"
            )
        return await self._described(execution_id), is_new

    async def _start_turn(  # noqa: PLR0917  # all of them identify the turn
        self,
        principal: Principal,
        agent: str,
        message: Message,
        execution_id: str,
        body: JsonDict,
        headers: Mapping[str, str],
    ) -> tuple[JsonDict, bool]:
        """Accept a message of a session, or return the execution that the same request has begun before."""
        if not isinstance(body["session"], str) or "continues" in body:
            raise RequestRefused(422, "invalid_session", "`session` is a text, and stands in place of `continues`")
        session = principal.session_id(body["session"])
        started = {"agent": agent, "principal": principal.name, "request": _fingerprint(body)}
        former = await self._first_state(execution_id)
        if former is None:
            asked = request_extensions(execution_id, principal.identity, headers)
            extensions = freeze_object({**asked, EXTENSION: started})
            try:
                await self.executions.start_turn(agent, session, message, execution_id, extensions)
            except ConfigurationError as error:
                raise RequestRefused(422, "no_sessions", f"this server keeps no sessions: {error}") from error
        recorded = former or await self._first_state(execution_id)
        if recorded is not None and thaw(recorded.extension(EXTENSION)) != started:
            raise RequestRefused(
                422, "other_request", "another request has started an execution with this id or idempotency key"
            )
        return await self._described(execution_id), former is None

    async def _begin(self, agent: str, state: AgentState, execution_id: str) -> AgentState:
        """Start an execution, and return the state that it began with: that of another request, if that was faster.

        Raises:
            JournalConflict: the execution cannot start, such as because its conversation has gone on.
        """
        try:
            await self.executions.start(agent, state, execution_id)
        except JournalConflict as conflict:
            recorded = await self._first_state(execution_id)
            if recorded is None and isinstance(conflict, ExecutionClaimed) and conflict.execution_id == execution_id:
                recorded = await self._wait_for_start(execution_id)
            if recorded is None:
                raise
            return recorded
        # Another server may have recorded it at the same time, and a queue takes each id once, whatever the request.
        return await self._first_state(execution_id) or state

    async def _wait_for_start(self, execution_id: str) -> AgentState | None:
        """Return the first state of an execution that another server is about to record; None if it does not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                while (state := await self._first_state(execution_id)) is None:
                    await wait_for_change(self.executions.journal, execution_id, _START_SECONDS)
                return state
        return None

    async def _first_state(self, execution_id: str) -> AgentState | None:
        if await self.executions.journal.head(execution_id) is None:
            state = await self.executions.unrecorded_state(execution_id)
            # A worker may have begun it between both looks.
            if state is not None or await self.executions.journal.head(execution_id) is None:
                return state
        return await state_at(self.executions.journal, execution_id, 0)

    def agent_named(self, name: Any) -> str:
        """Return the name of an agent that a request names, or of the only one.

        Raises:
            RequestRefused: there is none of this name.
        """
        agents = self.executions.agents
        if name is None and len(agents) == 1:
            return next(iter(agents))
        if isinstance(name, str) and name not in agents:
            name = next((key for key, loop in agents.items() if loop.name == name), name)
        if not isinstance(name, str) or name not in agents:
            hint = suggest(str(name), agents) if name is not None else ""
            raise RequestRefused(422, "unknown_agent", f"`agent` is one of {', '.join(agents)}{hint}")
        return name

    def _new_id(self, principal: Principal, name: Any, key: str) -> str:
        if name is not None and not isinstance(name, str):
            raise RequestRefused(422, "invalid_id", "`id` is a text")
        if name is not None and key:
            raise RequestRefused(422, "invalid_id", "send either an `id` or the header Idempotency-Key")
        if len(key) > MAX_ID_CHARACTERS:
            problem = f"the header Idempotency-Key has more than {MAX_ID_CHARACTERS:,} characters"
            raise RequestRefused(422, "invalid_key", problem)
        if key:
            return principal.execution_id(f"key-{hashlib.sha256(key.encode()).hexdigest()[:40]}")
        if name is not None:
            return principal.execution_id(name)
        loop = next(iter(self.executions.agents.values()))
        return principal.execution_id(loop.ids.new_id("execution"))

    async def _ended_state(self, principal: Principal, name: Any) -> AgentState:
        if not isinstance(name, str):
            raise RequestRefused(422, "invalid_id", "`continues` is the id of an execution")
        head = await self.head(principal, name)
        if not head.status.is_terminal:
            raise RequestRefused(409, "not_ended", f"the execution {name} has not ended: it is {head.status.value}")
        return await self._state(head.execution_id)

    # --- reading ------------------------------------------------------------------------------------------------

    async def head(self, principal: Principal, execution_id: str) -> ExecutionHead:
        """Return the summary of an execution that a principal may see.

        Raises:
            RequestRefused: there is none.
        """
        # No id is longer, or has lone surrogates, which most journals cannot look for.
        if len(execution_id) > MAX_WHOLE_ID_CHARACTERS or _SURROGATE.search(execution_id):
            raise unknown_execution()
        if not principal.may_see(execution_id):
            raise unknown_execution()
        return (await self._find(execution_id))[0]

    async def _find(self, execution_id: str) -> tuple[ExecutionHead, AgentState | None]:
        """Return the summary of an execution, and its state if nothing is recorded of it."""
        head = await self.executions.journal.head(execution_id)
        if head is not None:
            return head, None
        state = await self.executions.unrecorded_state(execution_id)
        if state is not None:
            return unrecorded_head(execution_id, state), state
        head = await self.executions.journal.head(execution_id)  # a worker may have begun it between both looks
        if head is None:
            raise unknown_execution()
        return head, None

    async def _state(self, execution_id: str) -> AgentState:
        _, state = await self._find(execution_id)
        return await state_at(self.executions.journal, execution_id) if state is None else state

    async def fetch(self, principal: Principal, execution_id: str, wait: float = 0.0) -> JsonDict:
        """Return an execution, after waiting for its end or suspension for a number of seconds at most, or until the server ends."""
        principal.require(Scope.READ)
        head = await self.head(principal, execution_id)
        if wait and head.status is ExecutionStatus.IN_PROGRESS:
            await self._wait(execution_id, head.record_count, min(wait, self.limits.wait_seconds))
        return await self._described(execution_id)

    async def _wait(self, execution_id: str, after: int, seconds: float) -> None:
        standing = asyncio.ensure_future(self._follow_until_it_stands(execution_id, after))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait((standing, closing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if standing.done():
                standing.result()  # raises the error of the journal
        finally:
            standing.cancel()
            closing.cancel()
            await asyncio.gather(standing, closing, return_exceptions=True)

    async def _follow_until_it_stands(self, execution_id: str, after: int) -> None:
        async for event in self.feeds.follow(execution_id, after):
            if event is not None and event.type in {"execution_ended", "execution_suspended"}:
                return

    async def state(self, principal: Principal, execution_id: str) -> bytes:
        """Return the newest recorded state as a document that `from_json` reads."""
        principal.require(Scope.READ)
        head = await self.head(principal, execution_id)
        state = await self._state(execution_id)
        return await compute_in_thread(to_json, state) if head.record_count > MANY_RECORDS else to_json(state)

    async def follow(
        self, principal: Principal, execution_id: str, after: int, *, catches_up: bool = False
    ) -> tuple[ExecutionHead, AsyncGenerator[ServerEvent | None, None]]:
        """Return the summary of an execution and its events after a sequence number, as `Feeds.follow`; None is a heartbeat."""
        principal.require(Scope.READ)
        head = await self.head(principal, execution_id)
        seconds = self.limits.heartbeat_seconds
        return head, self.feeds.follow(execution_id, after, seconds, catches_up=catches_up)

    async def _described(self, execution_id: str) -> JsonDict:
        head, state = await self._find(execution_id)
        return details(head, await state_at(self.executions.journal, execution_id) if state is None else state)

    async def list(
        self,
        principal: Principal,
        status: str,
        limit: int,
        after: str,
        *,
        session: str = "",
        query: ExecutionQuery = EVERYTHING,
    ) -> JsonDict:
        """Return executions that a principal may see and that a query is for, newest first, and the cursor of the next page."""
        principal.require(Scope.READ)
        journal, wanted = self.executions.journal, _status(status)
        agent_id = agent_of_session(principal.session_id(session)) if session else None
        limit = max(1, min(limit, self.limits.page))
        found: list[JsonDict] = []
        # A page looks at a bounded number of executions: between two of one principal there may be many of others.
        scanned = self.limits.scanned // (_RECORDS_COST if query.needs_records else 1)
        for _ in range(0, max(scanned, limit), limit):
            heads = await journal.list(agent_id=agent_id, status=wanted, after=after, limit=limit)
            for head in heads:
                after = head.cursor
                is_visible = not caller_of(head.execution_id) and principal.may_see(head.execution_id)
                if is_visible and await matches_query(journal, head, query):
                    found.append(summary(head))
                    if len(found) == limit:
                        return {"executions": found, "next": after}
            if len(heads) < limit:
                return {"executions": found, "next": None}
        return {"executions": found, "next": after}

    # --- controlling --------------------------------------------------------------------------------------------

    async def decide(self, principal: Principal, execution_id: str, body: JsonDict) -> tuple[JsonDict, bool]:
        """Decide about pending calls of a suspended execution, which continues.

        Returns:
            The execution, and whether it has continued; if not, the decisions are queued, and count.

        Raises:
            RequestRefused: a decision has mistakes, or the execution is not suspended.
            DecisionError: a decision is not about a call that is pending.
            JournalConflict: another request was faster.
        """
        principal.require(Scope.DECIDE)
        head = await self.head(principal, execution_id)
        check_fields(body, {"decisions"}, set())
        if not isinstance(body["decisions"], dict) or not body["decisions"]:
            raise RequestRefused(422, "invalid_decision", "`decisions` is an object with a decision for each key")
        check_count(body["decisions"], MAX_DECISIONS, "invalid_decision", "decisions")
        check_values(body["decisions"], "invalid_decision", "the request")
        decisions = {key: read_decision(key, data, principal) for key, data in body["decisions"].items()}
        await self.resume(head, decisions)
        execution = await self._described(execution_id)
        return execution, execution["sequence"] > head.record_count

    async def resume(self, head: ExecutionHead, decisions: Mapping[str, Decision]) -> None:
        """Resume a suspended execution with decisions."""
        if head.status is not ExecutionStatus.SUSPENDED:
            raise RequestRefused(409, "not_suspended", f"nothing waits for a decision: it is {head.status.value}")
        state = await state_at(self.executions.journal, head.execution_id)
        await self.executions.resume(self._agent_of(state), head.execution_id, decisions)

    async def send(self, principal: Principal, execution_id: str, body: JsonDict) -> None:
        """Send a user message to an execution that has not ended."""
        principal.require(Scope.START)
        head = await self.head(principal, execution_id)
        check_fields(body, {"message"}, set())
        message = read_message(body["message"])
        _require_controllable(head)
        # Without loops, the message is for a process that has one.
        agent = self._agent_of(await self._state(execution_id)) if self.executions.agents else ""
        await self.executions.send(agent, execution_id, self.labeled(principal, agent, message), principal.name)

    async def stop(self, principal: Principal, execution_id: str, body: JsonDict) -> None:
        """Stop an execution."""
        principal.require(Scope.STOP)
        head = await self.head(principal, execution_id)
        check_fields(body, set(), {"reason"})
        reason = body.get("reason", "")
        if not isinstance(reason, str):
            raise RequestRefused(422, "invalid_body", "`reason` is a text")
        _require_controllable(head)
        await self.executions.stop(execution_id, reason, principal.name)

    async def fork(self, principal: Principal, execution_id: str, body: JsonDict) -> JsonDict:
        """Fork an execution after a step, and run the fork if this server has its agent.

        Raises:
            RequestRefused: the body has mistakes, or there is no such step.
        """
        principal.require(Scope.START)
        head = await self.head(principal, execution_id)
        check_fields(body, {"at_step"}, {"effects"})
        step, effects = body["at_step"], body.get("effects", ForkPolicy.REUSE.value)
        if type(step) is not int or not 0 <= step <= head.step_count:
            raise RequestRefused(422, "invalid_step", f"`at_step` is a number from 0 to {head.step_count}")
        if effects not in [policy.value for policy in ForkPolicy]:
            raise RequestRefused(422, "invalid_effects", f"`effects` is one of {', '.join(ForkPolicy)}")
        if caller_of(execution_id):
            raise RequestRefused(409, "sub_agent", "it is of a sub-agent; fork the execution that it serves")
        fork_id = await fork(self.executions.journal, execution_id, step, effects=effects, clock=self.clock)
        state = await state_at(self.executions.journal, fork_id)
        if state.status is ExecutionStatus.IN_PROGRESS and self.executions.agents:
            await self.executions.run_fork(self._agent_of(state), fork_id)
        return await self._described(fork_id)

    def _agent_of(self, state: AgentState) -> str:
        name, agents = agent_of(state), self.executions.agents
        if name in agents:
            return name
        if not name and len(agents) == 1:  # a program has started it
            return next(iter(agents))
        raise RequestRefused(409, "unknown_agent", "this server does not have the agent of the execution")


# --- reading requests -------------------------------------------------------------------------------------------------


def check_fields(body: Any, required: set[str], optional: set[str]) -> None:
    """Check that a body is an object with these fields and no others.

    Raises:
        RequestRefused: it is not; the status is 422.
    """
    if not isinstance(body, dict):
        raise RequestRefused(422, "invalid_body", "the body is a JSON object")
    missing, unknown = required - body.keys(), body.keys() - required - optional
    if missing:
        raise RequestRefused(422, "invalid_body", f"the field `{min(missing)}` is missing")
    if unknown:
        name = min(unknown)
        raise RequestRefused(422, "invalid_body", f"unknown field {name!r:.50}{suggest(name, required | optional)}")


UNAUTHENTICATED: Final = foreign("a request without a token", kind=SourceKind.UNKNOWN)
"""The label of a message of whom nothing has authenticated."""


def check_count(items: Sized, limit: int, code: str, what: str) -> None:
    """Check that a request has no more items than a limit.

    Raises:
        RequestRefused: it has; the status is 422.
    """
    if len(items) > limit:
        raise RequestRefused(422, code, f"there are {len(items):,} {what}; send at most {limit:,}")


def check_values(data: Any, code: str, what: str) -> None:
    """Check that data of a request has no more than 20,000 entries in its lists and objects.

    Raises:
        RequestRefused: it has; the status is 422.
    """
    if has_more_entries(data, MAX_VALUES):
        raise RequestRefused(422, code, f"{what} has more than {MAX_VALUES:,} entries in its lists and objects")


def read_message(data: Any) -> Message:
    """Return a user message from a text or the JSON form of a `Message`.

    Raises:
        RequestRefused: it is neither, of another role, has too many parts, has provider data, or names media by an address that
            they cannot have.
    """
    if isinstance(data, str):
        return Message.user(data)
    parts = data.get("parts") if isinstance(data, dict) else None
    if isinstance(parts, list | dict):
        check_count(parts, MAX_PARTS, "invalid_message", "parts in the message")
    check_values(data, "invalid_message", "the message")
    try:
        message = from_plain(data, Message)
    except (InvalidDocument, ContractViolation) as error:
        raise RequestRefused(422, "invalid_message", f"a message is a text, or an object: {error}") from error
    if message.role != "user":
        raise RequestRefused(422, "invalid_message", "only messages of the role `user` can be sent")
    # Some wire formats send a block of it in place of the text, which is what guardrails and the record see.
    if any(part.provider_data for part in message.parts if isinstance(part, Text | Media)):
        raise RequestRefused(
            422, "invalid_message", "`provider_data` is of answers of providers; leave it out of a message"
        )
    for part in message.parts:
        # Records are read with any address; this one is new.
        if isinstance(part, Media) and part.url is not None and (problem := find_url_problem(part.url)):
            raise RequestRefused(422, "invalid_message", problem)
    return message


def read_decision(key: str, data: Any, principal: Principal) -> Decision:
    """Return a decision from its JSON form, with its principal.

    Raises:
        RequestRefused: it has mistakes.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _DECISIONS:
        raise RequestRefused(
            422, "invalid_decision", f"the decision about {key:.200} needs a `kind`: {', '.join(_DECISIONS)}"
        )
    cls, names = _DECISIONS[kind]
    check_fields(data, {"kind", "digest"} | (names - {"reason", "value", "grant", "endorse"}), set(names))
    try:
        decision = from_plain({name: value for name, value in data.items() if name != "kind"}, cls)
    except InvalidDocument as error:
        raise RequestRefused(422, "invalid_decision", str(error)) from error
    if not decision.digest:
        raise RequestRefused(422, "invalid_decision", "`digest` is that of the pending call which was reviewed")
    return evolve(decision, principal=principal.name)


def _require_controllable(head: ExecutionHead) -> None:
    if caller := caller_of(head.execution_id):
        raise RequestRefused(
            409, "sub_agent", f"it is of a sub-agent; send this to the execution that it serves: {caller}"
        )
    if head.status.is_terminal:
        raise RequestRefused(409, "ended", f"the execution has ended: it is {head.status.value}")


def _status(name: str) -> ExecutionStatus | None:
    known = [status.value for status in ExecutionStatus]
    if name and name not in known:
        raise RequestRefused(422, "invalid_parameter", f"`status` is one of {', '.join(known)}")
    return ExecutionStatus(name) if name else None


def _fingerprint(request: JsonDict) -> str:
    plain = {name: request[name] for name in sorted(request)}
    return hashlib.sha256(format_json(plain)).hexdigest()


# --- sessions --------------------------------------------------------------------------------------------------------


async def delete_own_session(operations: Operations, principal: Principal, name: str) -> JsonDict:
    """Delete a session of a principal's tenant with all its turns, whoever of the tenant has sent their messages.

    Args:
        operations: the executions of the server.
        principal: who asks.
        name: what the client calls the session, or its id.

    Raises:
        RequestRefused: the principal may not delete, there is no such session of its tenant, or a message of it waits for its turn.
        JournalConflict: a live process runs one of its turns, or an unfinished fork needs one.
    """
    principal.require(Scope.DELETE)
    session, journal = principal.session_id(name), operations.executions.journal
    try:
        queue = SessionQueue.of(journal, session)
    except ConfigurationError as error:
        raise RequestRefused(404, "no_sessions", f"this server keeps no sessions: {error}") from error
    for command in await queue.waiting():
        # Whoever is to run it, here or among the workers, would begin the session anew.
        if await queue.journal.head(command.begins) is None:
            raise RequestRefused(409, "conflict", f"the message {command.begins} waits in the session; stop it first")
    count = await delete_session(journal, session)
    if not count:
        raise unknown_session()
    return {"session": session, "turns": count}
