"""The turns of one conversation: answering, taking back, changing the model, saving and resuming."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Final, Self

import click
from attrs import evolve, frozen

from agentloop._event_loops import new_runner
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.durable.journal import Conversation, Journal
from agentloop.durable.sessions import SessionQueue
from agentloop.errors import AgentLoopError
from agentloop.events.execution import AgentExecutionStarted
from agentloop.interception.cancellation import CancellationToken
from agentloop.loop.agent_loop import AgentLoop, Input
from agentloop.models.config import LLMConfig
from agentloop.models.http_inference import HttpInference
from agentloop.service.cli.agent_options import RunLimits, Subject, with_streaming
from agentloop.service.cli.console import as_one_line, format_call, format_outcome
from agentloop.service.cli.errors import InvalidUsage, describe_file_error
from agentloop.service.cli.execution import (
    Decider,
    SessionGrants,
    collect_decisions,
    obey_commands,
    run_interruptibly,
    tools_within,
)
from agentloop.service.cli.journals import JournalFailure, as_journal_errors, find_execution, open_journal, short_ids
from agentloop.values.decisions import Decision, deny
from agentloop.values.inference import Usage
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.secrets import open_private
from agentloop.values.serialization import from_json, to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import RandomIds
from agentloop.values.tool_calls import Effect, ToolExchange, ToolExecution, ToolStatus

ENDED_BY_USER: Final = "the user ended the turn"
"""The reason that a model is given for calls that nobody has decided about."""


# --- the agent of a conversation ------------------------------------------------------------------------------------


@frozen
class ChatAgent:
    """The agent that a conversation is with: its parts, and the loop that is made of them.

    Attributes:
        subject: the agent without limits.
        limits: the limits of each turn.
        grants: the tools whose calls were approved for the session.
        journal_file: the journal in which turns are recorded; None to record nothing.
    """

    subject: Subject
    limits: RunLimits
    grants: SessionGrants
    journal_file: str | None = None

    def build_loop(self) -> AgentLoop:
        """Return the loop, which streams.

        Raises:
            JournalFailure: the journal cannot be used.
        """
        loop = with_streaming(self.limits.apply(self.subject.loop, self.subject.model_name))
        if self.journal_file is not None:
            loop = loop.replace(journal=open_journal(self.journal_file, self.subject.secrets))
        self.grants.watch(loop)
        return loop

    def with_model(self, config: LLMConfig) -> ChatAgent:
        """Return the same agent with another model.

        Raises:
            InvalidUsage: its driver calls no model.
        """
        driver = self.subject.loop.driver
        if not isinstance(driver, InferringDriver):
            raise InvalidUsage(f"the driver {type(driver).__name__} of this agent calls no model")
        loop = self.subject.loop.replace(driver=evolve(driver, inference=HttpInference(config)))
        secrets = (*self.subject.secrets, *config.secrets)
        return evolve(
            self,
            subject=evolve(self.subject, loop=loop, model_name=config.model, provider=config.provider, secrets=secrets),
        )


# --- turns ----------------------------------------------------------------------------------------------------------


class TurnNotStarted(click.ClickException):
    """The journal has refused the start of a turn, of which nothing was done. The exit code is 1."""

    exit_code = 1


class ChatSession:
    """The turns of one conversation, in one event loop; a context manager that keeps connections and servers open in between.

    Args:
        agent: the agent.
        decide: decides about calls that need approval.
        name: the session in the journal that the turns continue; None for a conversation of this process.

    Attributes:
        state: the conversation so far; None before the first message.
        usages: the tokens of each turn of the session.
    """

    def __init__(self, agent: ChatAgent, decide: Decider, name: str | None = None) -> None:
        self.agent: ChatAgent = agent
        self.loop: AgentLoop = agent.build_loop()
        self.state: AgentState | None = None
        self.usages: list[Usage] = []
        self._before: list[AgentState | None] = []
        self._decide = decide
        self._name = name
        self._runner = new_runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._runner.run(self.loop.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self.loop.__aexit__(None, None, None))
        finally:
            self._runner.close()

    def take_turn(self, message: str | Message) -> AgentState:
        """Answer a message of the user.

        Ctrl-C stops the turn: what was done by then stays in the conversation. A second Ctrl-C does not wait for it.

        Raises:
            CommandInterrupted: SIGTERM was received.
            KeyboardInterrupt: Ctrl-C was pressed twice.
            TurnNotStarted: the journal cannot be used; nothing was done, and the conversation can go on.
            JournalFailure: the journal cannot be written.
        """
        before = self.state
        dependencies = self.agent.subject.dependencies
        # The id is chosen here, so that commands of other processes can be obeyed from the beginning.
        execution_id = RandomIds().new_id("execution")
        with self._noticing_failed_starts():
            # A session has the turns of others, too.
            own = before if self._name is None else None
            turn: Input = message if own is None else self._continued(own, execution_id).with_message(message)
            execute = partial(AgentLoop.execute, input=turn, execution_id=execution_id, session=self._name)
            asked = partial(execute, dependencies=dependencies, principal=self.agent.subject.principal)
            state = self._finish(asked, execution_id)
        self._before.append(before)
        self.usages.append(state.usage)
        return state

    def _continued(self, state: AgentState, execution_id: str) -> AgentState:
        """Return a state to continue with an execution: that of a branch if its agent has had a later turn.

        The journal has one execution of each number of an agent, and keeps those of turns that were taken back.
        """
        journal = self.loop.journal
        if journal is None:
            return state
        with as_journal_errors():
            heads = self._runner.run(journal.list(agent_id=state.agent_id))
        if all(head.number <= state.execution_count for head in heads):
            return state
        # Named as the agents of forks are.
        return evolve(state, agent_id=f"{state.agent_id}/{execution_id}")

    @contextmanager
    def _noticing_failed_starts(self) -> Iterator[None]:
        """Convert failures of the journal from before the start of an execution was recorded, when nothing has been done."""
        started: list[AgentExecutionStarted] = []
        subscription = self.loop.on(AgentExecutionStarted, started.append)
        try:
            yield
        except JournalFailure as failure:
            if started:
                raise
            raise TurnNotStarted(failure.message) from failure
        finally:
            subscription.cancel()

    def undo(self) -> AgentState | None:
        """Take back the last turn; return the state that it had, None if there is none to take back."""
        if self._name is not None:
            raise InvalidUsage("the turns of a session stay in it, where others may have continued it")
        if not self._before:
            return None
        undone, self.state = self.state, self._before.pop()
        return undone

    def effects_of(self, state: AgentState) -> list[str]:
        """Return the calls of the last turn of a state that may have changed something, formatted."""
        pure = {tool.name for tool in tools_within(self.loop) if tool.effect is Effect.PURE}
        executions = [execution for step in state.steps for execution in _with_inner(step.executions)]
        return [
            format_call(execution.call)
            for execution in executions
            if execution.name not in pure and (execution.succeeded or execution.may_have_run or _has_failed(execution))
        ]

    def change_model(self, config: LLMConfig) -> None:
        """Use another model from the next turn on; the conversation stays as it is.

        Raises:
            InvalidUsage: the agent calls no model, or the limits do not apply to this one.
            ConfigurationError: the model cannot be reached with this configuration.
        """
        agent = self.agent.with_model(config)
        self.loop, self.agent = agent.build_loop(), agent

    # --- resuming ---------------------------------------------------------------------------------------------------

    def resume_session(self) -> AgentState | None:
        """Return the conversation of the session so far, after completing its last turn; None if it begins here.

        Raises:
            InvalidUsage: the id is invalid, or nothing is recorded.
            JournalFailure: the journal cannot be used.
        """
        with as_journal_errors():
            newest = self._runner.run(SessionQueue.of(self._journal(), self._name or "").newest())
        return None if newest is None else self.resume_recorded(newest.execution_id)

    def resume_saved(self, path: Path) -> AgentState:
        """Continue a conversation that was saved as JSON; calls that wait in it are decided first.

        Raises:
            InvalidUsage: the file cannot be read, or holds no conversation.
        """
        try:
            saved = from_json(path.read_bytes(), AgentState)
        except OSError as error:
            raise InvalidUsage(f"{as_one_line(str(path))} cannot be read: {describe_file_error(error)}") from error
        except AgentLoopError as error:
            raise InvalidUsage(f"{as_one_line(str(path))} is not a saved conversation: {error}") from error
        self._begin_with(saved)
        # The turn of another journal, or of none, cannot be recorded in this one.
        loop = self.loop.replace(journal=None)
        if saved.pending:
            return self._finish(lambda _: _as_it_is(saved), None, loop)
        return saved

    def resume_recorded(self, prefix: str) -> AgentState:
        """Continue a recorded conversation after the turn with this id; an interrupted turn is completed first.

        Raises:
            InvalidUsage: nothing is recorded, or there is no such execution.
            JournalFailure: the journal cannot be used.
        """
        journal = self._journal()
        with as_journal_errors():
            head = self._runner.run(find_execution(journal, prefix))
        if head.parent_agent_id is not None:
            raise InvalidUsage(
                f"{as_one_line(head.execution_id)} is the execution of a sub-agent, not a turn of a conversation"
            )
        dependencies = self.agent.subject.dependencies
        before = self.state, self._before
        self._begin_with(None)
        try:
            return self._finish(
                lambda loop: loop.recover(head.execution_id, dependencies=dependencies), head.execution_id
            )
        except BaseException:
            self.state, self._before = before
            raise

    def check_no_session(self) -> None:
        """Check that the chat may go to another conversation.

        Raises:
            InvalidUsage: it continues a session.
        """
        if self._name is not None:
            raise InvalidUsage(f"this chat continues the session {as_one_line(self._name)}, and no other conversation")

    def list_recorded(self, limit: int) -> tuple[Sequence[Conversation], Mapping[str, str]]:
        """Return the last recorded conversations, the newest first, and the short ids of their last executions.

        Raises:
            InvalidUsage: nothing is recorded.
            JournalFailure: the journal cannot be read.
        """
        with as_journal_errors():
            journal = self._journal()
            found = self._runner.run(journal.conversations())
            listed = [conversation for conversation in found if conversation.parent_agent_id is None][:limit]
            last = [conversation.executions[-1].execution_id for conversation in listed]
            return listed, self._runner.run(short_ids(journal, last))

    def _journal(self) -> Journal:
        if not isinstance(self.loop.journal, Journal):
            raise InvalidUsage(
                "no conversations are recorded; start the chat with --journal FILE, or `agentloop config set journal`"
            )
        return self.loop.journal

    def _begin_with(self, state: AgentState | None) -> None:
        self.state = state
        self._before = []

    # --- running ----------------------------------------------------------------------------------------------------

    def _finish(
        self,
        start: Callable[[AgentLoop], Coroutine[object, object, AgentState]],
        execution_id: str | None,
        loop: AgentLoop | None = None,
    ) -> AgentState:
        """Run what a function starts, with all decisions that it needs, and keep its state.

        Args:
            start: starts the execution with a loop.
            execution_id: the execution; None if the journal does not have it.
            loop: the loop; that of the session by default.
        """
        token = CancellationToken()
        running = (loop or self.loop).with_interceptors(token)
        dependencies = self.agent.subject.dependencies
        with as_journal_errors():
            state = self._run(obey_commands(running, execution_id, start), token)
            # Without a decision, the next message could not be added to the conversation.
            while state.pending:
                decisions = self._decisions_about(state, token)
                resume = partial(AgentLoop.resume, state=state, decisions=decisions, dependencies=dependencies)
                state = self._run(obey_commands(running, execution_id, resume), token)
        self.state = state
        return state

    def _decisions_about(self, state: AgentState, token: CancellationToken) -> Mapping[str, Decision]:
        """Return a decision about each call that waits for one; those that nobody decides are denied."""
        decisions: Mapping[str, Decision] = {}
        try:
            decisions = {} if token.cancelled else collect_decisions(state, self._decide)
        # No event loop runs while a person is asked, so Ctrl-C arrives here as it is.
        except KeyboardInterrupt:
            token.cancel(ENDED_BY_USER)
        undecided = [call for call in state.pending if not call.waits_for and call.key not in decisions]
        return {**decisions, **{call.key: deny(ENDED_BY_USER, call.digest) for call in undecided}}

    def _run(self, execution: Coroutine[object, object, AgentState], token: CancellationToken) -> AgentState:
        with self._stopping_on_interrupt(token):
            return run_interruptibly(execution, self._runner)

    @contextmanager
    def _stopping_on_interrupt(self, token: CancellationToken) -> Iterator[None]:
        if current_thread() is not main_thread():
            yield
            return
        is_pressed = False

        def stop(_signal: int, _frame: FrameType | None) -> None:
            nonlocal is_pressed
            if is_pressed:
                raise KeyboardInterrupt
            is_pressed = True
            # Not called here: the handler may interrupt the token while it holds its lock.
            self._runner.get_loop().call_soon_threadsafe(token.cancel, ENDED_BY_USER)

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


async def _as_it_is(state: AgentState) -> AgentState:
    return state


def _with_inner(executions: Sequence[ToolExecution]) -> Iterator[ToolExecution]:
    for execution in executions:
        yield execution
        yield from _with_inner(execution.inner)


def _has_failed(execution: ToolExecution) -> bool:
    return execution.status in {ToolStatus.FAILED, ToolStatus.TIMED_OUT, ToolStatus.IN_DOUBT}


# --- files ----------------------------------------------------------------------------------------------------------

SAVED_SUFFIXES: Final = (".json", ".md")
"""The endings of files that a conversation can be saved in: as JSON, which can be resumed, or as Markdown, for people."""


def save_conversation(state: AgentState, path: Path) -> None:
    """Save a conversation as JSON or Markdown, by the ending of the name, for its owner only; a file that exists keeps its mode.

    Raises:
        InvalidUsage: the name has another ending, or the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in SAVED_SUFFIXES:
        raise InvalidUsage(
            f"{as_one_line(str(path))}: the name ends in .json, which can be resumed, or in .md, which people read"
        )
    data = to_json(state) if suffix == ".json" else as_markdown(state).encode("utf-8", "replace")
    try:
        with open(path, "wb", opener=open_private) as file:  # Path.open has no opener
            file.write(data)
    except (OSError, ValueError) as error:
        raise InvalidUsage(f"{as_one_line(str(path))} cannot be written: {describe_file_error(error)}") from error


def as_markdown(state: AgentState) -> str:
    """Write a conversation as Markdown: a heading per message, and a block per tool call with its outcome."""
    sections = [_section("System", _fenced(state.context.system_prompt))] if state.context.system_prompt else []
    sections += [_section(message.role.capitalize(), _body(message)) for message in state.messages]
    if state.status is not ExecutionStatus.COMPLETED and state.stop_signal is not None:
        sections.append(f"*The last turn was stopped: {as_one_line(state.stop_signal.message)}*\n")
    return "\n".join(sections)


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}\n"


def _body(message: Message) -> str:
    return "\n\n".join(filter(None, [_as_block(part) for part in message.parts]))


def _as_block(part: object) -> str:
    if isinstance(part, Text):
        return part.text.strip()
    if isinstance(part, ToolExchange):
        return _fenced(f"{format_call(part.call)}\n{format_outcome(part.execution)}")
    if isinstance(part, Image | Audio | Document):
        return f"*{type(part).__name__}: {as_one_line(part.name or part.url or part.file_id or part.media_type)}*"
    return ""


def _fenced(text: str) -> str:
    # Longer than any run of backticks in the text, which would end the block.
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
