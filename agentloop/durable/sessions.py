"""Sessions: conversations in a journal that any process continues, one message after the other.

The turns of a session are the executions of one agent, whose id is made of that of the session. A message that is accepted waits
as a command in the journal, under the id of that agent, and names the execution that it begins. The first message that waits is
the next turn. A process that is to run a turn holds the claim on its execution from before the message is accepted, so that
others see whether it lives: the message of a process that has died is answered by the next one that waits behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TypeAlias

from attrs import define, field, frozen

from agentloop.contracts.can_journal import CanCommandExecutions, CanJournal
from agentloop.contracts.run_log import ExecutionLog
from agentloop.durable.chain import claim_conflict
from agentloop.durable.commands import CommandListener
from agentloop.durable.fold import state_at
from agentloop.durable.journal import Journal
from agentloop.durable.recovery import fail_execution, open_or_reopen
from agentloop.errors import (
    ConfigurationError,
    DecisionError,
    ExecutionClaimed,
    InvalidParameter,
    JournalConflict,
    JournalError,
    TooManyRecoveries,
)
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.json import EMPTY_OBJECT, JsonObject
from agentloop.values.messages import Message
from agentloop.values.records import ExecutionHead, RecordKind, check_execution_id
from agentloop.values.run_requests import Identity, principal_of, request_extensions
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.system_prompts import initial_prompt
from agentloop.values.time_and_ids import Clock, IdSource

_LOG = logging.getLogger("agentloop.loop")

SESSIONS = "session/"
"""With what the ids of the agents of sessions begin."""
MAX_SESSION_CHARACTERS = 200
"""The maximum length of the id of a session."""

_LOOK_SECONDS = 0.5
"""The time after which those who wait look whether the process in front of them lives, without a change of the journal."""
_POLL_SECONDS = 0.02
_NEWEST = 20
"""The executions among which the newest turn is looked for: clocks of different machines may disagree about their order."""
_MAX_RECOVERIES = 3
"""How often a turn is recovered without progress by those who wait behind it, before it ends as failed."""
_PROGRESS = frozenset({RecordKind.INFERENCE_RECORDED, RecordKind.CALL_OUTCOME, RecordKind.STEP_COMPLETED})

RunTurn: TypeAlias = Callable[[AgentLoop, AgentState, str, ExecutionLog], Awaitable[AgentState]]
"""Runs an execution, which is claimed by its log, from a state to its end, and returns the final state."""


# --- ids --------------------------------------------------------------------------------------------------------------


def agent_of_session(session: str) -> str:
    """Return the id of the agent whose executions are the turns of a session.

    Raises:
        InvalidParameter: it is not a text of 1 to 200 characters that can be stored.
    """
    if not isinstance(session, str):
        raise InvalidParameter(f"a session is named by a text, such as 'user-7', not by {session!r:.100}")
    if not session.strip() or len(session) > MAX_SESSION_CHARACTERS or "\0" in session or not _is_storable(session):
        raise InvalidParameter(
            f"the id of a session has 1 to {MAX_SESSION_CHARACTERS} characters that UTF-8 can encode, not {session!r:.100}"
        )
    # The agents of forks have ids that go on after a slash.
    return SESSIONS + session.replace("%", "%25").replace("/", "%2F")


def session_of(agent_id: str) -> str:
    """Return the session whose turns are the executions of an agent; empty for the agent of no session."""
    name = agent_id.removeprefix(SESSIONS)
    return "" if name == agent_id or "/" in name else name.replace("%2F", "/").replace("%25", "%")


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- the messages that wait -------------------------------------------------------------------------------------------


@frozen(eq=False)
class SessionQueue:
    """The turns of one session, and the messages that wait for theirs.

    Attributes:
        journal: holds both.
        session: the id of the session.
        agent_id: the id of its agent.
    """

    journal: Journal
    session: str
    agent_id: str

    @classmethod
    def of(cls, journal: CanJournal | None, session: str) -> SessionQueue:
        """Return the queue of a session.

        Raises:
            ConfigurationError: there is no journal, or one of another class than `Journal`; or the id is invalid.
        """
        agent_id = agent_of_session(session)
        if journal is None:
            raise ConfigurationError(
                f"the session {session!r} is kept in a journal: AgentLoop(…, journal=SqliteJournal('runs.db')), or "
                "journal=MemoryJournal() for a session that ends with the program"
            )
        if not isinstance(journal, Journal):
            raise ConfigurationError(
                f"a session needs a journal of the class agentloop.durable.Journal, not {journal!r}"
            )
        return cls(journal, session, agent_id)

    async def add(
        self,
        message: Message,
        execution_id: str,
        clock: Clock,
        *,
        agent: str = "",
        principal: Identity | None = None,
        extensions: JsonObject = EMPTY_OBJECT,
    ) -> None:
        """Accept a message; it is durable when this returns, and waits behind those that were accepted before.

        Args:
            message: the message of the user.
            execution_id: the execution that it begins; the same id again is the same message.
            clock: the source of the time.
            agent: the name of the agent that is to run the execution; empty for any.
            principal: who asks for the execution; None for who does so in the extensions, or for nobody.
            extensions: what the state of the execution holds besides its conversation.

        Raises:
            ContractViolation: the role of the message is not `user`.
            JournalError: the journal cannot be written.
        """
        command = ExecutionCommand(
            # The journal takes the first of this id.
            id=f"begin:{execution_id}",
            execution_id=self.agent_id,
            kind=CommandKind.MESSAGE,
            message=message,
            principal="" if principal is None else principal.name,
            posted_at=clock.now(),
            begins=execution_id,
            agent=agent,
            extensions=extensions
            if principal is None
            else {**extensions, **request_extensions(execution_id, principal)},
        )
        await self.journal.post(command)

    async def find(self, execution_id: str) -> ExecutionCommand | None:
        """Return the message that waits to begin an execution; None if none does."""
        return next((command for command in await self.waiting() if command.begins == execution_id), None)

    async def waiting(self) -> Sequence[ExecutionCommand]:
        """Return the messages of which no turn has ended, in the order in which they were accepted."""
        commands = await self.journal.commands([self.agent_id])
        for index, command in enumerate(commands):
            head = await self.journal.head(command.begins)
            if head is None or not head.status.is_terminal:
                return commands[index:]
            await self.forget(command.begins)
        return ()

    async def forget(self, execution_id: str) -> None:
        """Let the message of an execution wait no longer: its turn has ended, or it is taken back."""
        await self.journal.finish([f"begin:{execution_id}"], forget=True)

    async def newest(self) -> ExecutionHead | None:
        """Return the newest turn that has begun; None before the first."""
        heads = await self.journal.list(agent_id=self.agent_id, limit=_NEWEST)
        return max(heads, key=lambda head: head.number, default=None)

    async def first_state(self, command: ExecutionCommand, loop: AgentLoop) -> AgentState:
        """Return the state with which the turn of a message begins, when no other turn is in progress.

        Raises:
            JournalConflict: this turn has begun, or one after it: another process has taken the message over.
        """
        newest, message = await self.newest(), command.message
        assert message is not None  # noqa: S101  # it begins a turn
        if newest is not None and (newest.execution_id == command.begins or not newest.status.is_terminal):
            raise claim_conflict(command.begins)
        if newest is None:
            prompt = initial_prompt(loop.system_prompt)
            state = AgentState.start(
                message, system_prompt=prompt, agent_id=self.agent_id, clock=loop.clock, ids=loop.ids
            )
        else:
            before = await state_at(self.journal, newest.execution_id, agent_id=self.agent_id)
            state = before.with_message(message)
        return _as_asked(state, command)


async def find_waiting(journal: CanJournal, execution_id: str) -> ExecutionCommand | None:
    """Return the message that waits in a session to begin an execution; None if none does."""
    commands = await all_waiting(journal)
    return next((command for command in commands if command.begins == execution_id), None)


async def all_waiting(journal: CanJournal) -> Sequence[ExecutionCommand]:
    """Return the messages that wait in all sessions of a journal, in the order in which they were accepted."""
    return await journal.unfinished(SESSIONS) if isinstance(journal, CanCommandExecutions) else ()


async def post_to_waiting(
    journal: CanJournal,
    execution_id: str,
    kind: CommandKind,
    *,
    message: Message | None = None,
    reason: str = "",
    principal: str = "",
    clock: Clock,
    ids: IdSource,
) -> bool:
    """Post a command to an execution whose message waits in a session; it is obeyed when the turn begins.

    Args:
        journal: carries the commands.
        execution_id: the execution.
        kind: what the command asks for.
        message: the message to deliver.
        reason: why to stop.
        principal: who posts it.
        clock: the source of the time at which it is posted.
        ids: the source of its id.

    Returns:
        Whether the execution waits; else nothing is posted.
    """
    if await journal.head(execution_id) is not None or await find_waiting(journal, execution_id) is None:
        return False
    assert isinstance(journal, CanCommandExecutions)  # noqa: S101  # a message waits in it
    command = ExecutionCommand(
        id=ids.new_id("command"),
        execution_id=execution_id,
        kind=kind,
        message=message,
        reason=reason,
        principal=principal,
        posted_at=clock.now(),
    )
    await journal.post(command)
    return True


def waiting_state(command: ExecutionCommand) -> AgentState:
    """Return the state of an execution of which nothing is recorded, because its message waits in a session."""
    state = _as_asked(AgentState.start(command.message, agent_id=command.execution_id), command)
    return state.with_execution_started(command.begins, command.posted_at)


def _as_asked(state: AgentState, command: ExecutionCommand) -> AgentState:
    """Return a state with what is stored beside the message that begins its execution, such as who asks."""
    for owner, value in command.extensions.items():
        state = state.with_extension(owner, value)
    return state


async def delete_session(journal: CanJournal, session: str) -> int:
    """Delete a session: its turns, and the messages that wait in it.

    Args:
        journal: holds it.
        session: its id.

    Returns:
        The number of turns and waiting messages; 0 if there is no such session.

    Raises:
        JournalConflict: a live process runs one of its turns, or waits to; or an unfinished fork needs one. What was deleted before
            is deleted.
        ConfigurationError: the journal keeps no sessions, or the id is invalid.
    """
    queue, count = SessionQueue.of(journal, session), 0
    for command in reversed(await queue.waiting()):
        if await queue.journal.head(command.begins) is None:
            claim = await queue.journal.claim(command.begins)
            try:
                await queue.forget(command.begins)
            finally:
                await claim.release()
            count += 1
    # The newest last: until then, the conversation can go on.
    for head in sorted(await queue.journal.list(agent_id=queue.agent_id), key=lambda head: head.number):
        count += await queue.journal.delete(head.execution_id)
    await queue.waiting()
    return count


# --- turns ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_turn(
    loop: AgentLoop,
    session: str,
    given: object,
    execution_id: str | None,
    run: RunTurn,
    *,
    dependencies: object = None,
    principal: Identity | None = None,
    log: ExecutionLog | None = None,
) -> AsyncIterator[tuple[AgentState, str, ExecutionLog]]:
    """Accept a message of a session, unless it was accepted before, and wait for its turn.

    A turn in front of it whose process has died is run to its end first. A message that this call has accepted is taken back if
    the block does not begin its execution; one that was accepted before waits on.

    Args:
        loop: runs the turn, and those of processes that have died.
        session: the id of the session.
        given: the message, or its text.
        execution_id: the execution that the message begins; a new id by default.
        run: runs an execution to its end.
        dependencies: objects for tools, for a turn that is recovered.
        principal: who asks; None for who asked when the message was accepted, or for nobody.
        log: the log of the execution, which has claimed it; None if it is not claimed.

    Yields:
        The state with which the turn begins, the id of its execution, and the log that has claimed it: run the execution with it.

    Raises:
        ConfigurationError: the loop has no journal for sessions, or an id is invalid.
        InvalidParameter: the input is neither a text nor a message.
        JournalConflict: there is an execution of this id.
        DecisionError: the turn in front of a new message waits for a decision.
        JournalError: the journal cannot be used.
    """
    turn: _Turn | None = None
    try:
        queue, message = SessionQueue.of(loop.journal, session), _message_of(given)
        execution_id = execution_id or loop.ids.new_id("execution")
        if log is None:
            log = await _claim(queue, execution_id, loop)
        turn = _Turn(queue, loop, execution_id, run, dependencies, principal)
        await turn.accept(message)
        yield await turn.wait(), execution_id, log
        await turn.leave()
    except BaseException as error:
        if turn is not None:
            await turn.leave(error)
        raise
    finally:
        if log is not None:
            await log.aclose()


async def _claim(queue: SessionQueue, execution_id: str, loop: AgentLoop) -> ExecutionLog:
    """Claim a new execution, and return its log."""
    check_execution_id(execution_id)
    state, log = await open_or_reopen(queue.journal, execution_id, loop.in_doubt, loop.clock, check=lambda: None)
    if state is None and log is not None:
        return log
    if log is not None:
        await log.aclose()
    raise JournalConflict(
        f"there is an execution {execution_id!r} already; each turn of a session needs an id of its own"
    )


def _message_of(given: object) -> Message:
    if isinstance(given, str):
        return Message.user(given)
    if isinstance(given, Message):
        return given
    raise InvalidParameter(
        f"a session has a conversation of its own, to which a text or a Message is added, not {type(given).__name__}"
    )


@define(eq=False)
class _Turn:
    """A message of a session that waits for its turn in this process, which has claimed its execution.

    Attributes:
        queue: the session.
        loop: runs the turn.
        execution_id: the execution that the message begins.
        run: runs an execution to its end.
        dependencies: objects for tools.
        principal: who asks; None for who asked when the message was accepted, or for nobody.
        is_new: whether this process has accepted the message, and may take it back.
    """

    queue: SessionQueue
    loop: AgentLoop
    execution_id: str
    run: RunTurn
    dependencies: object
    principal: Identity | None
    is_new: bool = field(default=False, init=False)

    async def accept(self, message: Message) -> None:
        """Let the message wait, unless it was accepted before."""
        accepted = await self.queue.find(self.execution_id)
        # Noted first: it is taken back, too, if the caller leaves while the journal takes it.
        self.is_new = accepted is None
        if accepted is None:
            await self.queue.add(message, self.execution_id, self.loop.clock, principal=self.principal)
        elif accepted.message != message or self.principal not in {
            None,
            principal_of(waiting_state(accepted)),
        }:
            raise JournalConflict(f"another message of the session waits to begin execution {self.execution_id!r}")

    async def wait(self) -> AgentState:
        """Wait for the turn of the message, and return the state with which it begins."""
        while True:
            waiting = await self.queue.waiting()
            own = next((command for command in waiting if command.begins == self.execution_id), None)
            if own is None:
                raise JournalConflict(
                    f"the message of execution {self.execution_id!r} waits in another session, or another process has answered it"
                )
            obstacle = await self._obstacle(waiting[0])
            if obstacle is None:
                return await self.queue.first_state(own, self.loop)
            if not await self._help(obstacle, waiting[0], own):
                await self.queue.journal.wait_for_change(obstacle, timeout=_LOOK_SECONDS, caller=self)

    async def leave(self, error: BaseException | None = None) -> None:
        """Let the message wait no longer if its turn has ended, or if nothing of it has begun and it is taken back."""
        # What was accepted for somebody else is not lost with this process.
        is_theirs = not self.is_new and isinstance(error, JournalError | asyncio.CancelledError | KeyboardInterrupt)
        try:
            head = await self.queue.journal.head(self.execution_id)
            if head.status.is_terminal if head is not None else not is_theirs:
                await self.queue.forget(self.execution_id)
        except JournalError as failure:  # the error of the turn, or its answer, counts
            _LOG.warning("the message of execution %s is not taken from its session: %s", self.execution_id, failure)

    async def _obstacle(self, first: ExecutionCommand) -> str | None:
        """Return the execution that has to end before the turn; None if it can begin.

        Raises:
            DecisionError: it waits for a decision, and the message can be taken back.
        """
        newest = await self.queue.newest()
        if newest is None or newest.status.is_terminal:
            return None if first.begins == self.execution_id else first.begins
        if newest.status is ExecutionStatus.SUSPENDED and self.is_new:
            raise DecisionError(
                f"the session {self.queue.session!r} waits for a decision about a call of its last turn: pass it to "
                f"AgentLoop.resume({newest.execution_id!r}, …), and send the message then"
            )
        return newest.execution_id

    async def _help(self, obstacle: str, first: ExecutionCommand, own: ExecutionCommand) -> bool:
        """Run an execution that is in front, if its process has died; return whether it has ended by that."""
        if first.begins == obstacle and first.agent and own.agent and first.agent != own.agent:
            return False  # those who have that agent look for it
        head = await self.queue.journal.head(obstacle)
        if head is not None and head.status is not ExecutionStatus.IN_PROGRESS:
            return False
        work = self._answer(first) if head is None else self._recover(obstacle)
        # Nothing that is current here, such as a stream of this turn, has to do with that one.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        try:
            await task
        except ExecutionClaimed:  # it lives
            return False
        return True

    async def _answer(self, first: ExecutionCommand) -> None:
        """Run the turn of the first message, whose process has died before it began."""
        _, log = await open_or_reopen(
            self.queue.journal, first.begins, self.loop.in_doubt, self.loop.clock, check=lambda: None
        )
        if log is None:  # it has begun and ended meanwhile
            return
        try:
            # It may have been taken back, or have begun, before it was claimed.
            waiting = await self.queue.waiting()
            if await self.queue.journal.head(first.begins) is None and [first.id] == [each.id for each in waiting[:1]]:
                state = await self.queue.first_state(first, self.loop)
                async with CommandListener(self.queue.journal).listen(self.loop, first.begins) as loop:
                    await self.run(loop, state, first.begins, log)
        finally:
            await log.aclose()

    async def _recover(self, execution_id: str) -> None:
        """Run a turn to its end whose process has died while it ran, or end it as failed if that has killed too many."""
        journal = self.queue.journal
        if _recoveries([record.kind for record in await journal.read(execution_id)]) >= _MAX_RECOVERIES:
            error = TooManyRecoveries(f"{execution_id} was recovered {_MAX_RECOVERIES} times without any progress")
            await fail_execution(
                journal, execution_id, error, events=self.loop.events, clock=self.loop.clock, ids=self.loop.ids
            )
            return
        async with CommandListener(journal).listen(self.loop, execution_id) as loop:
            await loop.recover(execution_id, dependencies=self.dependencies)


def _recoveries(kinds: Sequence[RecordKind]) -> int:
    """Return how often an execution was recovered since the last record that a recovery need not repeat."""
    count = 0
    for kind in reversed(kinds):
        if kind in _PROGRESS:
            break
        count += kind is RecordKind.EXECUTION_RECOVERED
    return count
