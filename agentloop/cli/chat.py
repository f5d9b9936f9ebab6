"""`agentloop chat`: a conversation with an agent on the terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from threading import current_thread, main_thread
from types import FrameType
from typing import Final, Self, TextIO

import click
from attrs import frozen
from rich.text import Text

from agentloop import __version__
from agentloop.cli.agent_options import (
    AgentOptions,
    RunLimits,
    agent_options,
    approvals,
    approve_option,
    decider,
    limit_options,
    with_streaming,
)
from agentloop.cli.console import (
    StreamedText,
    as_printable,
    create_console,
    describe_problem,
    format_count,
    format_tokens,
)
from agentloop.cli.errors import InvalidUsage, as_usage_errors
from agentloop.cli.execution import Decider, SessionGrants, collect_decisions, deny_call, run_interruptibly
from agentloop.cli.progress import Progress
from agentloop.events.inference import (
    DecisionExtractionFailed,
    InferenceDeltaReceived,
    InferenceResponseReceived,
    InferenceRetried,
    ValidationFailed,
)
from agentloop.events.resilience import ToolCallCached, ToolCallRetried
from agentloop.events.tool_calls import ToolCallProgressed, ToolCallSettled, ToolCallSlow, ToolCallStarted
from agentloop.interception.cancellation import CancellationToken
from agentloop.loop.agent_loop import AgentLoop, Input
from agentloop.values.decisions import Decision, deny
from agentloop.values.event import Event
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus

_SHOWN: Final = (
    *(ToolCallStarted, ToolCallSettled, ToolCallProgressed, ToolCallSlow, ToolCallCached, ToolCallRetried),
    *(InferenceRetried, DecisionExtractionFailed, ValidationFailed),
)
"""The events that have a line; the others, such as the number of a step, would interrupt a conversation."""
ENDED_BY_USER: Final = "the user ended the turn"

# --- one turn -------------------------------------------------------------------------------------------------------


class TurnView:
    """A wiretap that prints the text of the model to one stream, and the tool calls to another.

    Args:
        out: where the text is printed.
        progress: prints the tool calls.
    """

    def __init__(self, out: TextIO, progress: Progress) -> None:
        self._out = out
        self._progress = progress
        self.streamed = StreamedText(self.write)

    def __call__(self, event: Event) -> None:
        """Print an event, if it is shown."""
        if isinstance(event, InferenceDeltaReceived):
            # Texts of sub-agents are left out: their streams would interleave.
            if event.delta.kind == "text" and event.parent_agent_id is None:
                self.streamed.add(event.delta.text)
        elif isinstance(event, InferenceResponseReceived) and event.parent_agent_id is None:
            self.streamed.end()
        elif isinstance(event, _SHOWN):
            self.streamed.end()
            self._progress(event)

    def write(self, text: str) -> None:
        """Print a text; a terminal interprets nothing in it."""
        self._out.write(as_printable(text) if self._out.isatty() else text)
        self._out.flush()


class ChatSession:
    """The turns of one conversation, in one event loop; a context manager that keeps connections and servers open in between.

    Args:
        loop: the loop of the agent.
        decide: decides about calls that need approval.
        dependencies: what the tools receive as `ToolContext.dependencies`.
    """

    def __init__(self, loop: AgentLoop, decide: Decider, dependencies: object = None) -> None:
        self.state: AgentState | None = None
        self._loop = loop
        self._decide = decide
        self._dependencies = dependencies
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._runner.run(self._loop.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._loop.__aexit__(None, None, None))
        finally:
            self._runner.close()

    def take_turn(self, text: str) -> AgentState:
        """Answer a message of the user.

        Ctrl-C stops the turn: what was done by then stays in the conversation. A second Ctrl-C does not wait for it.

        Raises:
            CommandInterrupted: SIGTERM was received.
            KeyboardInterrupt: Ctrl-C was pressed twice.
        """
        token = CancellationToken()
        loop = self._loop.with_interceptors(token)
        turn: Input = text if self.state is None else self.state.with_message(text)
        state = self._run(loop.execute(turn, dependencies=self._dependencies), token)
        # Without a decision, the next message could not be added to the conversation.
        while state.pending:
            decisions = self._decisions_about(state, token)
            state = self._run(loop.resume(state, decisions, dependencies=self._dependencies), token)
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


# --- the terminal ---------------------------------------------------------------------------------------------------


class Chat:
    """Reads messages and commands from stdin until it ends, and prints the answers to stdout.

    Args:
        conversation: the conversation.
        view: prints the answers; it is a wiretap of the loop.
    """

    def __init__(self, conversation: ChatSession, view: TurnView) -> None:
        self._conversation = conversation
        self._view = view
        self._console = create_console(stderr=True)
        self._is_terminal = sys.stdin.isatty() and sys.stderr.isatty()

    def run(self) -> int:
        """Return the exit code: 0, or 1 if the last turn of a chat without a terminal has failed."""
        code = 0
        while (line := self._read_line()) is not None:
            text = line.strip()
            if text.startswith("/"):
                command = COMMANDS.get(text.split()[0])
                if command is None:
                    self.note(f"there is no command {text.split()[0]}; /help lists the commands")
                elif command.action(self):
                    break
            elif text:
                code = int(self._answer(text).status is ExecutionStatus.FAILED)
        # A person has seen the failure.
        return 0 if self._is_terminal else code

    def note(self, text: str) -> None:
        """Print a line about the chat itself to stderr."""
        self._console.print(Text(as_printable(text), "dim"), soft_wrap=True)

    def describe_usage(self) -> str:
        """Describe the last turn in a line."""
        state = self._conversation.state
        if state is None:
            return "nothing was said yet"
        messages = format_count(len(state.messages), "message")
        return f"{messages}; the last turn: {format_count(state.step_count, 'step')}, {format_tokens(state.usage)}"

    def _read_line(self) -> str | None:
        """Return the next line; None at the end of the input."""
        while True:
            try:
                if self._is_terminal:
                    return self._console.input(Text("> ", "bold cyan"))
                line = sys.stdin.readline()
            except EOFError:
                self._console.print()
                return None
            except UnicodeDecodeError as error:
                raise InvalidUsage(f"the input is not text: {error}") from error
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                self._console.print()
                self.note("/quit or Ctrl-D ends the chat")
            else:
                return line or None

    def _answer(self, text: str) -> AgentState:
        self._view.streamed.forget()
        try:
            state = self._conversation.take_turn(text)
        finally:
            self._view.streamed.end()
        answer = state.final_text or ""
        # A driver or mode that does not stream shows nothing before, and a retried response may have been shown in part.
        if answer and self._view.streamed.last != answer.strip():
            self._view.write(f"{answer}\n")
        problem = describe_problem(state)
        if problem:
            self.note(problem)
        return state


@frozen
class ChatCommand:
    """A line that begins with a slash.

    Attributes:
        summary: its line in the help.
        action: runs it; returns whether the chat ends.
    """

    summary: str
    action: Callable[[Chat], bool]


def _quit(_: Chat) -> bool:
    return True


def _help(chat: Chat) -> bool:
    lines = [f"{name:8} {command.summary}" for name, command in COMMANDS.items()]
    chat.note("\n".join([*lines, "Ctrl-C   ends the turn; what was done by then stays in the conversation"]))
    return False


def _usage(chat: Chat) -> bool:
    chat.note(chat.describe_usage())
    return False


COMMANDS: Mapping[str, ChatCommand] = {
    "/help": ChatCommand("lists the commands", _help),
    "/usage": ChatCommand("shows the length of the conversation and the tokens of the last turn", _usage),
    "/quit": ChatCommand("ends the chat, as Ctrl-D does", _quit),
}
"""The commands by name."""

# --- the command ----------------------------------------------------------------------------------------------------

_EPILOG = """\
\b
Examples:
  agentloop chat --model openai:gpt-5 --tools shop.py
  agentloop chat --agent support.md --allow myapp.tools --var shop=Delft
  echo "Where is order 7?" | agentloop chat --agent support.md --approve none

\b
Exit codes:
  0    ended by /quit, Ctrl-D or the end of the input
  1    without a terminal: the last turn failed
  2    usage error: options, files, tools, or a missing API key
  130  interrupted by Ctrl-C twice; 143 by SIGTERM
"""


@click.command(epilog=_EPILOG)
@partial(agent_options, streams=True)
@limit_options
@approve_option
@click.pass_context
def chat(context: click.Context, *, agent: AgentOptions, limits: RunLimits, approve: str | None) -> None:
    """Talk with a model and your tools, turn by turn.

    Each line of stdin is a message; the answers go to stdout while they are generated, everything else to stderr. Lines that
    begin with / are commands; /help lists them. Ctrl-C ends a turn, not the chat. The limits are those of each turn. Without a
    terminal, calls that need approval are denied unless --approve says otherwise.
    """
    out = sys.stdout
    with redirect_stdout(sys.stderr), as_usage_errors():
        approve = approve or agent.default_approval
        grants = SessionGrants()
        subject = agent.build(approvals(approve, agent.servers, grants))
        loop = limits.apply(subject.loop, subject.model_name)
        loop = with_streaming(loop)
        grants.watch(loop)
        decide = decider(approve, grants)
        with Progress(create_console(stderr=True)) as progress:
            view = TurnView(out, progress)
            loop.wiretap(view)
            with ChatSession(loop, _always(decide), subject.dependencies) as conversation:
                session = Chat(conversation, view)
                session.note(_greeting(subject.notice))
                code = session.run()
    context.exit(code)


def _always(decide: Decider) -> Decider:
    """Return a decider that denies what nobody decides, so that the conversation can go on."""
    return lambda call: decide(call) or deny_call(call)


def _greeting(notice: str) -> str:
    return "\n".join(filter(None, [f"agentloop {__version__}; /help lists the commands, /quit ends the chat", notice]))
