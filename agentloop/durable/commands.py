"""Obeying the commands that other processes post to the executions of this one, and stopping executions wherever they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from attrs import define

from agentloop.contracts.can_journal import CanCommandExecutions, CanJournal
from agentloop.durable.fold import FoldedExecution
from agentloop.durable.journal import Journal
from agentloop.durable.recovery import stop_execution
from agentloop.errors import (
    ContractViolation,
    InboxClosed,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    SchemaTooNew,
    UnknownExecution,
)
from agentloop.interception.cancellation import CancellationToken
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.inbox import Deliver
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock

_LOG = logging.getLogger("agentloop.loop")

_LOOK_SECONDS = 1.0
"""The time after which commands are looked for without a change of the journal."""
_PAUSE_SECONDS = 0.02
"""The shortest time between two looks: a busy process changes its journal all the time."""


@define(eq=False)
class _Listening:
    """An execution whose commands are obeyed.

    Attributes:
        token: stops it.
        deliver: delivers messages to its run; None before it runs.
    """

    token: CancellationToken
    deliver: Deliver | None = None


class CommandListener:
    """Obeys the commands for the executions of this process, which may come from any process that uses the journal.

        listener = CommandListener(journal)
        async with listener.listen(loop, "order-7") as listening_loop:
            state = await listening_loop.get_or_start("Order a lamp.", "order-7")

    A message is delivered once, also when the process dies while it is delivered: the id of its command is recorded with it. A
    stop ends the execution as stopped, as a `CancellationToken` does, with the reason and the principal in its stop signal.
    Commands that were posted before the execution runs are obeyed before its first step. A message that comes too late, when
    the execution ends, stays in the journal: `undelivered_messages` returns it.

    One listener serves any number of executions at the same time, in one event loop, which is also that of the executions.

    Args:
        journal: carries the commands; the loops record in it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._executions: dict[str, _Listening] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"CommandListener({self._journal!r})"

    @asynccontextmanager
    async def listen(self, loop: AgentLoop, execution_id: str) -> AsyncIterator[AgentLoop]:
        """Obey the commands for an execution while the block runs.

        Args:
            loop: runs the execution.
            execution_id: the execution, which may not have started.

        Yields:
            A copy of the loop: run the execution with it.

        Raises:
            ContractViolation: this listener obeys the commands for this execution already.
        """
        if execution_id in self._executions:
            raise ContractViolation(f"this process obeys the commands for execution {execution_id} already")
        listening = self._executions[execution_id] = _Listening(CancellationToken())

        async def open_inbox(deliver: Deliver) -> None:
            listening.deliver = deliver
            await self._look([execution_id])

        inbox = loop.inbox(execution_id)
        inbox.listen(open_inbox)
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="agentloop commands")
        try:
            yield loop.with_interceptors(listening.token)
        finally:
            inbox.stop_listening()
            del self._executions[execution_id]
            if not self._executions:
                await self._stop_task()
            await self._finish_rest(execution_id)

    async def _listen(self) -> None:
        while True:
            try:
                await self._look_at_all()
                await self._journal.wait_for_change(timeout=_LOOK_SECONDS, caller=self)
            except JournalError as error:
                _LOG.warning("commands cannot be read from %r: %s", self._journal, error)
                await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _look_at_all(self) -> None:
        """Obey the commands for all executions; one that cannot be read keeps no other execution from its own.

        Raises:
            JournalError: commands cannot be read.
        """
        try:
            await self._look(tuple(self._executions))
        except (JournalCorrupt, SchemaTooNew) as error:
            for execution_id in tuple(self._executions):
                with suppress(JournalCorrupt, SchemaTooNew):
                    await self._look([execution_id])
            raise error from None

    async def _stop_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _look(self, execution_ids: Sequence[str]) -> None:
        """Obey the commands for executions that are not finished."""
        done = [command.id for command in await self._journal.commands(execution_ids) if await self._is_obeyed(command)]
        await self._journal.finish(done)

    async def _is_obeyed(self, command: ExecutionCommand) -> bool:
        """Obey a command; return whether it is finished."""
        listening = self._executions.get(command.execution_id)
        if listening is None:
            return False
        if command.kind is CommandKind.STOP:
            listening.token.cancel(command.reason, principal=command.principal)
            return False  # finished when the end of the execution is recorded
        return listening.deliver is not None and await listening.deliver(command)

    async def _finish_rest(self, execution_id: str) -> None:
        """Finish the commands for an execution that has ended; an error must not hide how it ended."""
        try:
            head = await self._journal.head(execution_id)
            if head is None or not head.status.is_terminal:
                return
            late = {command.id for command in await undelivered_messages(self._journal, execution_id)}
            for command_id in sorted(late):
                _LOG.warning("the message %s came too late: execution %s has ended", command_id, execution_id)
            # A message that came too late is not finished, so that it stays readable.
            rest = [command.id for command in await self._journal.commands([execution_id]) if command.id not in late]
            await self._journal.finish(rest)
        except JournalError as error:
            _LOG.warning("the commands for execution %s cannot be finished: %s", execution_id, error)


async def undelivered_messages(journal: CanJournal, execution_id: str) -> Sequence[ExecutionCommand]:
    """Return the messages that were posted to an execution and that it has not received, in order.

    They wait for the next step of the execution. If it has ended, they came too late, and stay until it is deleted.

    Args:
        journal: holds the records; if it carries no commands, there are no messages.
        execution_id: the execution.

    Raises:
        JournalCorrupt: its records are damaged.
    """
    if not isinstance(journal, CanCommandExecutions):
        return ()
    posted = [each for each in await journal.commands([execution_id]) if each.kind is CommandKind.MESSAGE]
    if not posted:
        return ()
    # A process can die after it has recorded a message and before it has finished the command.
    folded = FoldedExecution()
    for record in await journal.read(execution_id):
        folded.apply(record)
    return [command for command in posted if command.id not in folded.commands]


async def check_in_time(journal: CanJournal, command: ExecutionCommand) -> None:
    """Check, after a message was posted, that its execution has not ended without it.

    Raises:
        InboxClosed: it has.
        JournalCorrupt: its records are damaged.
    """
    head = await journal.head(command.execution_id)
    if head is None or not head.status.is_terminal:
        return
    if any(each.id == command.id for each in await undelivered_messages(journal, command.execution_id)):
        raise InboxClosed(
            f"the message came too late: execution {command.execution_id!r} has ended, it is {head.status.value}; "
            "`agentloop runs show` shows the message"
        )


async def send_message(
    journal: CanJournal,
    execution_id: str,
    message: Message,
    *,
    principal: str = "",
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> ExecutionCommand:
    """Send a user message to an execution, whichever process runs it; it is durable when this returns.

    If no process runs the execution, the message waits until one does.

    Args:
        journal: holds the records.
        execution_id: the execution.
        message: the message.
        principal: who sends it, for the record; empty when that is unknown.
        clock: the source of times; the system clock by default.
        ids: the source of ids; random ones by default.

    Returns:
        The command, which is finished when the execution has received the message.

    Raises:
        UnknownExecution: the journal has no execution of this id.
        InboxClosed: the execution has ended; or it ended meanwhile, and the message, which is recorded, came too late.
        JournalConflict: the journal carries no commands.
        ContractViolation: the role of the message is not `user`.
    """
    if not isinstance(journal, CanCommandExecutions):
        raise JournalConflict(f"{journal!r} carries no messages to other processes")
    await _require_unfinished(journal, execution_id)
    command = ExecutionCommand(
        id=(ids or RandomIds()).new_id("command"),
        execution_id=execution_id,
        kind=CommandKind.MESSAGE,
        message=message,
        principal=principal,
        posted_at=(clock or SystemClock()).now(),
    )
    await journal.post(command)
    # The execution may have ended between both: then nobody would take the message.
    await check_in_time(journal, command)
    return command


async def _require_unfinished(journal: CanJournal, execution_id: str) -> None:
    head = await journal.head(execution_id)
    if head is None:
        raise UnknownExecution(f"the journal has no execution {execution_id!r}")
    if head.status.is_terminal:
        raise InboxClosed(f"execution {execution_id!r} has ended and takes no more messages: it is {head.status.value}")


async def request_stop(
    journal: CanJournal,
    execution_id: str,
    reason: str,
    *,
    principal: str = "",
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> AgentState | None:
    """Stop an execution: at once if no process runs it, else by a command to the process that does.

    Args:
        journal: holds the records.
        execution_id: the execution.
        reason: why it is stopped, for the record.
        principal: who stops it, for the record; empty when that is unknown.
        clock: the source of times; the system clock by default.
        ids: the source of ids; random ones by default.

    Returns:
        The final state; None when a process runs the execution, which stops it soon if it obeys commands.

    Raises:
        UnknownExecution: the journal has no execution of this id.
        JournalConflict: the execution has ended; or a process runs it, and the journal carries no commands.
        JournalCorrupt: its records are damaged.
    """
    clock, ids = clock or SystemClock(), ids or RandomIds()
    try:
        return await stop_execution(journal, execution_id, reason, principal=principal, clock=clock, ids=ids)
    except JournalConflict:
        head = await journal.head(execution_id)
        if head is None or head.status.is_terminal or not isinstance(journal, CanCommandExecutions):
            raise
    command = ExecutionCommand(
        id=ids.new_id("command"),
        execution_id=execution_id,
        kind=CommandKind.STOP,
        reason=reason,
        principal=principal,
        posted_at=clock.now(),
    )
    await journal.post(command)
    # The process may have ended between both: then nobody would find the command.
    with suppress(JournalConflict):
        state = await stop_execution(journal, execution_id, reason, principal=principal, clock=clock, ids=ids)
        await journal.finish([command.id])
        return state
    return None
