"""Who runs the executions of a server: this process, or the workers of a cluster."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Self

from agentloop.contracts.can_handle_events import Subscription
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.chain import verify_records
from agentloop.durable.commands import CommandListener, request_stop, send_message
from agentloop.durable.fold import state_from_records
from agentloop.durable.journal import Journal
from agentloop.durable.sessions import (
    SessionQueue,
    all_waiting,
    find_waiting,
    post_to_waiting,
    session_of,
    waiting_state,
)
from agentloop.errors import ConfigurationError, ExecutionClaimed, JournalConflict, JournalError
from agentloop.events.execution import AgentExecutionStarted
from agentloop.events.grammar import TERMINAL
from agentloop.events.inference import (
    InferenceDeltaReceived,
    InferenceRequestStarted,
    InferenceResponseReceived,
)
from agentloop.events.tool_calls import InferenceReused
from agentloop.interception.cancellation import CancellationToken
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.dependencies import with_dependencies
from agentloop.service.server.feeds import wait_for_change
from agentloop.service.server.record_events import EXTENSION
from agentloop.values.commands import CommandKind
from agentloop.values.decisions import Decision
from agentloop.values.event import Event
from agentloop.values.json import JsonObject, thaw
from agentloop.values.messages import Message
from agentloop.values.records import ExecutionHead, caller_of
from agentloop.values.run_requests import Identity
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus

logger: logging.Logger = logging.getLogger("agentloop.server")

_RECOVERY_SECONDS = 2.0
"""How often a server looks for executions whose process has died."""
_CHECK_SECONDS = 0.25
_WATCHED = (
    InferenceDeltaReceived,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceReused,
    *TERMINAL,
)


class CanRunExecutions(ABC):
    """Runs the executions of a server, each of which is recorded in its journal.

    An object is entered once, before its other methods are called.
    """

    @property
    @abstractmethod
    def journal(self) -> CanJournal:
        """The journal of all executions."""

    @property
    @abstractmethod
    def agents(self) -> Mapping[str, AgentLoop]:
        """The loops, by the names under which clients start them."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *exception: object) -> None:
        """Stop running; what is in progress stays so, and is continued later."""

    @abstractmethod
    async def start(
        self, agent: str, state: AgentState, execution_id: str, *, principal: Identity | None = None
    ) -> None:
        """Start an execution; it is durable when this returns: recorded, or known to `unrecorded_state`.

        Args:
            agent: the name of its loop.
            state: the state with which it starts.
            execution_id: its id, which no recorded execution has.
            principal: who asks for it; None for who does so in the state, or for nobody.

        Raises:
            JournalConflict: there is an execution of this id, or another one continues the same conversation.
        """

    async def start_turn(
        self,
        agent: str,  # noqa: ARG002  # of the contract, as the others
        session: str,  # noqa: ARG002
        message: Message,  # noqa: ARG002
        execution_id: str,  # noqa: ARG002
        extensions: JsonObject,  # noqa: ARG002
        *,
        principal: Identity | None = None,  # noqa: ARG002
    ) -> None:
        """Accept a message of a session; it is durable when this returns, and waits for the turns before it.

        Args:
            agent: the name of its loop.
            session: the id of the session.
            message: the message.
            execution_id: the execution that it begins; the same id again is the same message.
            extensions: what the state of the execution holds besides its conversation.
            principal: who asks for it; None for who does so in the extensions, or for nobody.

        Raises:
            JournalConflict: no sessions are kept here, which is the default.
        """
        raise JournalConflict(f"{type(self).__name__} keeps no sessions: send the message without one")

    async def unrecorded_state(self, execution_id: str) -> AgentState | None:  # noqa: ARG002  # of the contract
        """Return the state of an execution of which nothing is recorded; None by default.

        Its status is in progress while it waits to be started; it can end before that.
        """
        return None

    @abstractmethod
    async def resume(self, agent: str, execution_id: str, decisions: Mapping[str, Decision]) -> None:
        """Continue a suspended execution; the decisions are durable when this returns: recorded, or queued for who runs it.

        Of several requests at once one is accepted, also if all decide the same.

        Raises:
            DecisionError: a decision cannot be used, for example because one was used before.
            JournalConflict: another process or request resumes the execution.
        """

    @abstractmethod
    async def send(self, agent: str, execution_id: str, message: Message, principal: str) -> None:
        """Send a user message to an execution that has not ended.

        Raises:
            InboxClosed: the execution has ended.
            JournalConflict: the execution cannot be reached from here.
        """

    @abstractmethod
    async def stop(self, execution_id: str, reason: str, principal: str) -> None:
        """Stop an execution; one that runs elsewhere stops soon after this returns.

        Raises:
            JournalConflict: it has ended already, or cannot be reached from here.
        """

    @abstractmethod
    def watch(self, listener: Callable[[Event], None]) -> None:
        """Call a function with the events of inferences of the runs in this process; where there are none, do nothing."""

    async def run_fork(self, agent: str, execution_id: str) -> None:  # noqa: B027  # not all of them can
        """Run an execution that was forked and is in progress; by default it waits until somebody recovers it."""


class LocalExecutions(CanRunExecutions):
    """Runs executions in this process, and takes over those of servers that have ended.

    Several servers, also on several machines, can share a journal that allows that. Each execution is run by one of them.

    Args:
        agents: a loop, or loops by name; a single one is named `default`.
        journal: records the executions; by default the journal of the loop.
        dependencies: replaces the `dependencies` of the loops: a value, or a function that makes them for each run from a `RunRequest`.

    Raises:
        ConfigurationError: there is no loop or no journal, or the loops have different journals and none is given; or a tool needs
            dependencies that nothing makes.
    """

    def __init__(
        self,
        agents: AgentLoop | Mapping[str, AgentLoop],
        journal: CanJournal | None = None,
        *,
        dependencies: Any = None,
    ) -> None:
        loops = with_dependencies(name_agents(agents), dependencies)
        self._journal = journal or _common_journal(loops)
        self._agents = {name: loop.replace(journal=self._journal) for name, loop in loops.items()}
        first = next(iter(self._agents.values()))
        self._clock, self._ids = first.clock, first.ids
        self._runs: dict[str, asyncio.Task[object]] = {}
        self._tokens: dict[str, CancellationToken] = {}
        # The interrupted executions of other programs, by their cursors, which an id that is used again does not share.
        self._foreign: set[str] = set()
        self._listener = CommandListener(self._journal) if isinstance(self._journal, Journal) else None
        self._subscriptions: list[Subscription] = []
        self._resources = AsyncExitStack()

    @property
    def journal(self) -> CanJournal:
        """The journal of all executions."""
        return self._journal

    @property
    def agents(self) -> Mapping[str, AgentLoop]:
        """The loops by name."""
        return self._agents

    async def __aenter__(self) -> Self:
        for loop in self._agents.values():
            await self._resources.enter_async_context(loop)
        recovery = asyncio.create_task(self._recover_always())
        self._resources.callback(recovery.cancel)
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Interrupt what runs; it stays in progress, and the next server takes it over."""
        for subscription in self._subscriptions:
            subscription.cancel()
        tasks = tuple(self._runs.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resources.aclose()

    def watch(self, listener: Callable[[Event], None]) -> None:
        """Call a function with the events of inferences of the runs in this process, and with their ends."""
        for loop in self._agents.values():
            for kind in _WATCHED:
                self._subscriptions.append(loop.on(kind, listener))

    async def start(
        self, agent: str, state: AgentState, execution_id: str, *, principal: Identity | None = None
    ) -> None:
        """Start an execution; it is recorded when this returns."""

        async def has_begun() -> bool:
            return await self._journal.head(execution_id) is not None

        if (running := self._runs.get(execution_id)) is not None:
            await self._wait_until(has_begun, execution_id, running)
        run = self._run(
            agent, execution_id, lambda loop: loop.execute(state, execution_id=execution_id, principal=principal)
        )
        if not await self._wait_until(has_begun, execution_id, run):
            await run  # raises its error

    async def start_turn(  # of the contract
        self,
        agent: str,
        session: str,
        message: Message,
        execution_id: str,
        extensions: JsonObject,
        *,
        principal: Identity | None = None,
    ) -> None:
        """Accept a message of a session; if no turn is before it, its execution is recorded when this returns."""
        queue, clock = SessionQueue.of(self._journal, session), self._agents[agent].clock
        await queue.add(message, execution_id, clock, agent=agent, principal=principal, extensions=extensions)
        run = self._take_turn(agent, session, message, execution_id)

        async def has_begun_or_waits() -> bool:
            first = next(iter(await queue.waiting()), None)
            return first is None or first.begins != execution_id or await self._journal.head(execution_id) is not None

        if not await self._wait_until(has_begun_or_waits, execution_id, run):
            with suppress(ExecutionClaimed):  # another server has seen the message first
                await run  # raises its error

    def _take_turn(self, agent: str, session: str, message: Message, execution_id: str) -> asyncio.Task[object]:
        if (running := self._runs.get(execution_id)) is not None and not running.done():
            return running
        return self._run(agent, execution_id, lambda loop: loop.get_or_start(message, execution_id, session=session))

    async def unrecorded_state(self, execution_id: str) -> AgentState | None:
        """Return the state of an execution whose message waits in a session."""
        waiting = await find_waiting(self._journal, execution_id)
        return None if waiting is None else waiting_state(waiting)

    async def resume(self, agent: str, execution_id: str, decisions: Mapping[str, Decision]) -> None:
        """Continue a suspended execution; the decisions are recorded when this returns."""
        head = await self._journal.head(execution_id)
        count = 0 if head is None else head.record_count
        has_resumed = asyncio.Event()

        async def has_begun() -> bool:
            newest = await self._journal.head(execution_id)
            return newest is not None and newest.record_count > count

        def note_start(event: AgentExecutionStarted) -> None:
            if event.execution_id == execution_id:
                has_resumed.set()

        if (running := self._runs.get(execution_id)) is not None:  # it has suspended the execution, and is about to end
            await self._wait_until(has_begun, execution_id, running)
        # Others may decide the same at the same time. Only the run of this request can say that its decisions were the ones: it starts
        # when they are recorded.
        listening = self._agents[agent].on(AgentExecutionStarted, note_start)
        resumption = asyncio.ensure_future(has_resumed.wait())
        try:
            run = self._run(agent, execution_id, lambda loop: loop.resume(execution_id, decisions))
            await asyncio.wait({run, resumption}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            resumption.cancel()
        if not has_resumed.is_set():
            await run  # raises its error
            raise JournalConflict("no call can run with these decisions: decide first about those that others wait for")

    async def send(self, agent: str, execution_id: str, message: Message, principal: str) -> None:
        """Send a user message to an execution, whichever process runs it; one that is suspended takes it when it continues."""
        if await post_to_waiting(
            self._journal,
            execution_id,
            CommandKind.MESSAGE,
            message=message,
            principal=principal,
            clock=self._clock,
            ids=self._ids,
        ):
            return
        if self._listener is not None:
            await send_message(
                self._journal, execution_id, message, principal=principal, clock=self._clock, ids=self._ids
            )
        elif execution_id in self._runs:
            self._agents[agent].inbox(execution_id).send(message)
        else:
            raise JournalConflict("no process that can be reached runs this execution now")

    async def stop(self, execution_id: str, reason: str, principal: str) -> None:
        """Stop an execution, whichever process runs it."""
        token = self._tokens.get(execution_id)
        if token is not None:
            token.cancel(reason, principal=principal)
        elif not await post_to_waiting(
            self._journal,
            execution_id,
            CommandKind.STOP,
            reason=reason,
            principal=principal,
            clock=self._clock,
            ids=self._ids,
        ):
            await request_stop(
                self._journal, execution_id, reason, principal=principal, clock=self._clock, ids=self._ids
            )

    async def run_fork(self, agent: str, execution_id: str) -> None:
        """Run an execution that was forked."""
        if execution_id not in self._runs:
            self._run(agent, execution_id, lambda loop: loop.recover(execution_id))

    # --- running ------------------------------------------------------------------------------------------------

    def _run(
        self, agent: str, execution_id: str, drive: Callable[[AgentLoop], Awaitable[object]]
    ) -> asyncio.Task[object]:
        # A run that has ended is still listed until the event loop calls its callback.
        if (running := self._runs.get(execution_id)) is not None and not running.done():
            raise JournalConflict(f"this server runs the execution {execution_id} already")
        task = self._runs[execution_id] = asyncio.create_task(self._drive(agent, execution_id, drive))
        task.add_done_callback(partial(self._end_run, execution_id))
        return task

    async def _drive(self, agent: str, execution_id: str, drive: Callable[[AgentLoop], Awaitable[object]]) -> None:
        loop = self._agents[agent]
        if self._listener is not None:
            async with self._listener.listen(loop, execution_id) as listening_loop:
                await drive(listening_loop)
            return
        token = self._tokens[execution_id] = CancellationToken()
        try:
            await drive(loop.with_interceptors(token))
        finally:
            del self._tokens[execution_id]

    def _end_run(self, execution_id: str, task: asyncio.Task[object]) -> None:
        if self._runs.get(execution_id) is task:
            del self._runs[execution_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Expected where several processes try to run the same execution; the text may quote data of users.
            level = logging.INFO if isinstance(error, JournalError) else logging.WARNING
            logger.log(level, "the run of %s ended with %s", execution_id, type(error).__name__)

    async def _wait_until(
        self, has_begun: Callable[[], Awaitable[bool]], execution_id: str, run: asyncio.Task[object]
    ) -> bool:
        """Wait until a run has written its first records, or has ended; return whether there are records."""
        while not run.done():
            if await has_begun():
                return True
            change = asyncio.ensure_future(wait_for_change(self._journal, execution_id, _CHECK_SECONDS, run))
            await asyncio.wait({run, change}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        return await has_begun()

    # --- recovery -----------------------------------------------------------------------------------------------

    async def _recover_always(self) -> None:
        while True:
            try:
                await self._recover_all()
                await self._continue_sessions()
            except JournalError as error:  # it may be available again soon
                logger.warning("the journal cannot be read now: %s", type(error).__name__)
            await asyncio.sleep(_RECOVERY_SECONDS)

    async def _recover_all(self) -> None:
        """Continue the executions that a server has started and that no process runs any more."""
        heads = await self._journal.list(status=ExecutionStatus.IN_PROGRESS, unclaimed=True)
        self._foreign &= {head.cursor for head in heads}
        for head in heads:
            if not caller_of(head.execution_id) and head.cursor not in self._foreign:
                try:
                    await self._recover(head)
                except JournalError as error:  # one that is damaged, or was deleted meanwhile, must not hold the others
                    logger.warning("%s cannot be continued: %s", head.execution_id, type(error).__name__)
                await asyncio.sleep(0)  # reading many may take long, and a journal in memory waits for nothing

    async def _recover(self, head: ExecutionHead) -> None:
        """Continue an interrupted execution, or remember that it is not of an agent of this server."""
        execution_id = head.execution_id
        records = verify_records(await self._journal.read(execution_id), execution_id)
        # The first record says who has started it; folding all of them would hold the event loop for long.
        agent = agent_of(state_from_records(records[:1], execution_id))
        if agent not in self._agents:
            self._foreign.add(head.cursor)
        elif execution_id not in self._runs:
            self._run(agent, execution_id, lambda loop: loop.recover(execution_id))

    async def _continue_sessions(self) -> None:
        """Take the next turn of each session that no process takes."""
        for agent_id in {command.execution_id for command in await all_waiting(self._journal)}:
            queue = SessionQueue.of(self._journal, session_of(agent_id))
            first = next(iter(await queue.waiting()), None)
            if (
                first is not None
                and first.message is not None
                and first.agent in self._agents
                and await self._journal.head(first.begins) is None
            ):
                self._take_turn(first.agent, queue.session, first.message, first.begins)


class RecordedExecutions(CanRunExecutions):
    """The executions of a journal, without loops: they can be followed, forked, sent to and stopped, and run elsewhere.

    Args:
        journal: the journal, which is not closed.
    """

    def __init__(self, journal: CanJournal) -> None:
        self._journal = journal

    @property
    def journal(self) -> CanJournal:
        """The journal of all executions."""
        return self._journal

    @property
    def agents(self) -> Mapping[str, AgentLoop]:
        """None."""
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Do nothing."""

    async def start(
        self,
        agent: str,  # noqa: ARG002  # of the contract, as the others
        state: AgentState,  # noqa: ARG002
        execution_id: str,  # noqa: ARG002
        *,
        principal: Identity | None = None,  # noqa: ARG002
    ) -> None:
        """Refuse to start an execution.

        Raises:
            JournalConflict: always.
        """
        raise JournalConflict("this server has no agent, and starts no execution")

    async def resume(self, agent: str, execution_id: str, decisions: Mapping[str, Decision]) -> None:  # noqa: ARG002  # of the contract
        """Refuse to continue an execution.

        Raises:
            JournalConflict: always.
        """
        raise JournalConflict(
            "this server has no agent to continue the execution with; name its loop when you start the server"
        )

    async def send(self, agent: str, execution_id: str, message: Message, principal: str) -> None:  # noqa: ARG002  # of the contract
        """Send a user message to an execution, whichever process runs it."""
        await send_message(self._journal, execution_id, message, principal=principal)

    async def stop(self, execution_id: str, reason: str, principal: str) -> None:
        """Stop an execution, whichever process runs it."""
        await request_stop(self._journal, execution_id, reason, principal=principal)

    def watch(self, listener: Callable[[Event], None]) -> None:
        """Do nothing: no execution runs here."""


def name_agents(agents: AgentLoop | Mapping[str, AgentLoop]) -> Mapping[str, AgentLoop]:
    """Return loops by name.

    Raises:
        ConfigurationError: there is none.
    """
    loops = {"default": agents} if isinstance(agents, AgentLoop) else dict(agents)
    if not loops:
        raise ConfigurationError("a server needs at least one AgentLoop")
    return loops


def _common_journal(loops: Mapping[str, AgentLoop]) -> CanJournal:
    journals = [loop.journal for loop in loops.values()]
    journal = journals[0]
    if journal is None or any(other is not journal for other in journals):
        raise ConfigurationError(
            "a server records its executions: give it a journal, or give all its loops the same one: AgentLoop(…, journal=…)"
        )
    return journal


def agent_of(state: AgentState) -> str:
    """Return the name of the agent whose execution a server has started; empty if no server has started it."""
    started = thaw(state.extension(EXTENSION))
    return str(started.get("agent", "")) if isinstance(started, dict) else ""
