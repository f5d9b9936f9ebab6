"""`agentloop chat`: a conversation with an agent on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial, reduce
from pathlib import Path
from typing import Final, TextIO

import click
from attrs import frozen
from rich.text import Text

from agentloop import __version__
from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.events.inference import (
    DecisionExtractionFailed,
    InferenceDelayed,
    InferenceDeltaReceived,
    InferenceResponseReceived,
    InferenceRetried,
    ValidationFailed,
)
from agentloop.events.resilience import ToolCallCached, ToolCallRetried
from agentloop.events.tool_calls import ToolCallProgressed, ToolCallSettled, ToolCallSlow, ToolCallStarted
from agentloop.models.config import LLMConfig
from agentloop.service.cli.agent_options import (
    AgentOptions,
    RunLimits,
    Subject,
    agent_options,
    approvals,
    approve_option,
    decider,
    limit_options,
    models_with,
    print_unasked,
)
from agentloop.service.cli.attachments import compose_message, read_attachments
from agentloop.service.cli.configuration import DEMO_MODEL, load_configuration
from agentloop.service.cli.console import (
    StreamedText,
    as_one_line,
    as_printable,
    create_console,
    describe_problem,
    format_tokens,
)
from agentloop.service.cli.conversation import ChatAgent, ChatSession, TurnNotStarted, save_conversation
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.execution import Decider, SessionGrants, deny_call, tools_within
from agentloop.service.cli.folders import state_folder
from agentloop.service.cli.journals import check_execution_named, recording_journal, session_option
from agentloop.service.cli.markdown import print_answer, renders_markdown, streamed_markdown
from agentloop.service.cli.message_input import QUOTES, InputHistory, MessageInput
from agentloop.service.cli.progress import Progress, no_live_option
from agentloop.service.cli.tables import Column, Fit, print_table
from agentloop.values.event import Event
from agentloop.values.inference import Usage
from agentloop.values.reprs import format_count
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ContentPart

_SHOWN: Final = (
    *(ToolCallStarted, ToolCallSettled, ToolCallProgressed, ToolCallSlow, ToolCallCached, ToolCallRetried),
    *(InferenceDelayed, InferenceRetried, DecisionExtractionFailed, ValidationFailed),
)
"""The events that have a line; the others, such as the number of a step, would interrupt a conversation."""

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
        self._console = create_console(file=out)
        is_rendered = renders_markdown(self._console)
        self.streamed: StreamedText = streamed_markdown(self._console) if is_rendered else StreamedText(self.write)

    def __call__(self, event: Event) -> None:
        """Print an event, if it is shown."""
        if not isinstance(event, _SHOWN):
            self._progress.clear()
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

    def write_answer(self, text: str) -> None:
        """Print a whole answer."""
        if renders_markdown(self._console):
            print_answer(self._console, text)
        else:
            self.write(f"{text}\n")


# --- the terminal ---------------------------------------------------------------------------------------------------


class Chat:
    """Reads messages and commands from stdin until it ends, and prints the answers to stdout.

    Args:
        session: the conversation.
        view: prints the answers; it is a wiretap of the loop.
        out: the stdout of the process.
        history: the history of the input; None for none.
        base_url: the address of the first model, if it is not its provider's own.
    """

    def __init__(
        self, session: ChatSession, view: TurnView, out: TextIO, history: InputHistory | None, base_url: str | None
    ) -> None:
        self.session = session
        self.base_url = base_url
        self.attached: list[ContentPart] = []
        self.files: set[Path] = set()
        self._view = view
        self._console = create_console(stderr=True)
        self._input = MessageInput(self._console, out, history, self._complete)

    def run(self) -> int:
        """Return the exit code: 0, or 1 if the last turn of a chat without a terminal has failed."""
        code = 0
        while (text := self._read()) is not None:
            if text.startswith("/") and "\n" not in text:
                if self._run_command(text):
                    break
            elif text or self.attached:
                code = int(self._has_failed(text))
        # A person has seen the failure.
        return 0 if self._input.is_terminal else code

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line about the chat itself to stderr."""
        self._console.print(Text(as_printable(text), style), soft_wrap=True)

    def print_table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Print a table to stderr."""
        print_table(self._console, columns, rows)

    def show_state(self, state: AgentState) -> None:
        """Print the last answer of a conversation, and why there is none."""
        text = state.final_text or ""
        # A driver or mode that does not stream shows nothing before, and a retried response may have been shown in part.
        if text and self._view.streamed.last != text.strip():
            self._view.write_answer(text)
        problem = describe_problem(state)
        if problem:
            self.note(problem)
            self.note("The conversation goes on with your next message; /undo takes this turn back.")

    def _run_command(self, text: str) -> bool:
        """Run a command, and return whether the chat ends. A mistake is printed, and the chat goes on."""
        name, _, argument = text.partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            self.note(f"there is no command {name}{suggest(name, COMMANDS)}; /help lists the commands")
            return False
        try:
            return bool(command.action(self, argument.strip()))
        except (click.ClickException, ConfigurationError) as error:
            self.note(error.format_message() if isinstance(error, click.ClickException) else str(error), "yellow")
            return False

    def _read(self) -> str | None:
        """Return the next message or command; None at the end of the input."""
        while True:
            try:
                return self._input.read()
            except KeyboardInterrupt:
                if not self._input.is_terminal:
                    raise
                self._console.print()
                self.note("/quit or Ctrl-D ends the chat")

    def _has_failed(self, text: str) -> bool:
        """Answer a message, and return whether its turn has failed."""
        try:
            return self._answer(text).status is ExecutionStatus.FAILED
        except TurnNotStarted as error:
            self.note(error.format_message(), "yellow")
            return True

    def _answer(self, text: str) -> AgentState:
        message = compose_message(text, self.attached)
        with self.streaming():
            state = self.session.take_turn(message)
        # A turn that has not started leaves them for the next message.
        self.attached = []
        self.show_state(state)
        return state

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Print what is streamed inside as one text, which ends with its line."""
        self._view.streamed.forget()
        try:
            yield
        finally:
            self._view.streamed.end()

    def _complete(self, line: str) -> list[str]:
        """Complete a command, or the model after `/model `."""
        name, space, incomplete = line.partition(" ")
        if not space:
            return [f"{command} " for command in COMMANDS if line and command.startswith(line)]
        return [f"{name} {model}" for model in models_with(incomplete)] if name == "/model" else []


# --- commands -------------------------------------------------------------------------------------------------------


@frozen
class ChatCommand:
    """A line that begins with a slash.

    Attributes:
        summary: its line in the help.
        action: runs it with the rest of the line; returns True if the chat ends.
        parameter: the rest of the line, for the help; empty if there is none.
    """

    summary: str
    action: Callable[[Chat, str], bool | None]
    parameter: str = ""


def _quit(_: Chat, __: str) -> bool:
    return True


def _help(chat: Chat, _: str) -> None:
    rows = [(f"{name} {command.parameter}", command.summary) for name, command in COMMANDS.items()]
    rows.append((QUOTES, f"begins and ends a message of several lines; a text that is pasted needs no {QUOTES}"))
    rows.append(("Ctrl-C", "ends the turn; what was done by then stays in the conversation"))
    chat.note("\n".join(f"{name:18} {summary}" for name, summary in rows))


def _tools(chat: Chat, _: str) -> None:
    tools = {tool.name: tool for tool in tools_within(chat.session.loop)}
    rows = list[list[str]]()
    for tool in tools.values():
        approval = "always, in this session" if chat.session.agent.grants.has(tool.spec) else ""
        summary = tool.description.strip().partition("\n")[0]
        rows.append([tool.name, tool.effect.value, approval, summary])
    if tools:
        chat.print_table(
            [Column("tool"), Column("effect"), Column("approval"), Column("description", Fit.WRAPPED)], rows
        )
    else:
        chat.note("the agent has no tools; --tools FILE gives it some")


def _model(chat: Chat, name: str) -> None:
    session = chat.session
    if not name:
        chat.note(f"the model is {session.agent.subject.model_name or 'that of the agent'}")
        return
    if name == DEMO_MODEL:
        raise InvalidUsage("the model demo has its own conversation: agentloop chat -m demo")
    model = load_configuration().resolve_model(name)
    # Another provider has its own address.
    provider = model.partition(":")[0].lower()
    is_same = provider == session.agent.subject.provider
    session.change_model(LLMConfig.parse(model, base_url=chat.base_url if is_same else None))
    chat.note(f"the model is {model} from now on; the conversation stays as it is")


def _undo(chat: Chat, _: str) -> None:
    undone = chat.session.undo()
    if undone is None:
        chat.note("there is no turn to take back")
        return
    chat.note("the last turn is taken back: the model does not see it any more")
    effects = chat.session.effects_of(undone)
    if effects:
        chat.note("what these calls have done is not undone:\n" + "\n".join(f"  {call}" for call in effects), "yellow")


def _save(chat: Chat, name: str) -> None:
    if chat.session.state is None:
        raise InvalidUsage("nothing was said yet")
    if not name:
        raise InvalidUsage("name a file: /save talk.json can be resumed, /save talk.md is for people")
    path = Path(name).expanduser()
    if path.absolute() not in chat.files and path.exists():
        raise InvalidUsage(f"{path} exists and is not of this conversation; name another file")
    save_conversation(chat.session.state, path)
    chat.files.add(path.absolute())
    chat.note(f"saved in {path}")


def resume(chat: Chat, name: str) -> None:
    """Continue a saved or recorded conversation, or list those that are recorded.

    Raises:
        InvalidUsage: there is no such conversation.
        JournalFailure: the journal cannot be used.
    """
    if not name:
        _print_recorded(chat)
        return
    path = Path(name).expanduser()
    chat.session.check_no_session()
    with chat.streaming():
        is_file = path.suffix.lower() == ".json" or path.is_file()
        state = chat.session.resume_saved(path) if is_file else chat.session.resume_recorded(name)
    if is_file:
        chat.files.add(path.absolute())
    _show_resumed(chat, state)


def _show_resumed(chat: Chat, state: AgentState) -> None:
    question = next((message.text for message in reversed(state.messages) if message.role == "user"), "")
    chat.note(
        f"resumed: {format_count(len(state.messages), 'message')}, the last of yours: {as_one_line(question)[:_MAX_QUOTED]}"
    )
    chat.show_state(state)


_MAX_LISTED = 10
_MAX_QUOTED = 200


def _print_recorded(chat: Chat) -> None:
    conversations, names = chat.session.list_recorded(_MAX_LISTED)
    columns = [Column("id"), Column("turns", is_number=True), Column("updated"), Column("last message", Fit.CUT)]
    rows = list[list[str]]()
    for conversation in conversations:
        last = conversation.executions[-1]
        updated = last.updated_at.astimezone().strftime("%Y-%m-%d %H:%M")
        rows.append([names[last.execution_id], str(last.number), updated, last.input])
    chat.print_table(columns, rows)


def _attach(chat: Chat, name: str) -> None:
    if not name:
        raise InvalidUsage("name a file: /attach photo.jpg")
    chat.attached += read_attachments([str(Path(name).expanduser())])
    chat.note(f"{format_count(len(chat.attached), 'file')} for the next message")


def _usage(chat: Chat, _: str) -> None:
    state = chat.session.state
    if state is None:
        chat.note("nothing was said yet")
        return
    usages = chat.session.usages
    parts = [f"{format_count(len(state.messages), 'message')}; the last turn: {format_count(state.step_count, 'step')}"]
    parts.append(format_tokens(state.usage))
    if len(usages) > 1:
        total = format_tokens(reduce(Usage.__add__, usages))
        parts.append(f"all {format_count(len(usages), 'turn')} of this session: {total}")
    chat.note("; ".join(parts))


COMMANDS: Mapping[str, ChatCommand] = {
    "/help": ChatCommand("lists the commands", _help),
    "/tools": ChatCommand("lists the tools, and which of them run without a question", _tools),
    "/model": ChatCommand("uses another model from now on; without a name, shows the model", _model, "[NAME]"),
    "/attach": ChatCommand("adds an image, a document, a recording or a text to the next message", _attach, "FILE"),
    "/undo": ChatCommand("takes back the last turn; what its calls have done is not undone", _undo),
    "/save": ChatCommand("saves the conversation, in .json to resume it or in .md to read it", _save, "FILE"),
    "/resume": ChatCommand(
        "continues a saved or recorded conversation; alone, lists those of the journal", resume, "[ID|FILE]"
    ),
    "/usage": ChatCommand("shows the length of the conversation and its tokens", _usage),
    "/quit": ChatCommand("ends the chat, as Ctrl-D does", _quit),
}
"""The commands by name."""

# --- the command ----------------------------------------------------------------------------------------------------

_EPILOG = """\
\b
Examples:
  agentloop chat -m openai:gpt-5 --tools shop.py
  agentloop chat -m ollama:qwen3 --resume talk.json
  agentloop chat --agent support.md --allow myapp.tools --var shop=Delft
  agentloop chat --agent support:loop --journal runs.db
  echo "Where is order 7?" | agentloop chat --agent support.md --approve none

\b
Exit codes:
  0    ended by /quit, Ctrl-D or the end of the input
  1    without a terminal: the last turn failed; or the journal cannot be used
  2    usage error: options, files, tools, or a missing API key
  130  interrupted by Ctrl-C twice; 143 by SIGTERM
"""


@click.command(epilog=_EPILOG)
@partial(agent_options, streams=True)
@limit_options
@approve_option
@click.option(
    "--journal",
    "--db",
    "journal_file",
    type=click.Path(),
    metavar="FILE|URL",
    help="Record each turn in this SQLite file, which is created if needed, or in this PostgreSQL database; /resume continues a "
    "recorded conversation.",
)
@click.option(
    "--resume",
    "resumed",
    metavar="ID|FILE",
    help="Continue a recorded conversation, or one that /save has written.",
)
@session_option
@no_live_option
@click.pass_context
def chat(
    context: click.Context,
    *,
    agent: AgentOptions,
    limits: RunLimits,
    approve: str | None,
    journal_file: str | None,
    resumed: str | None,
    session: str | None,
    no_live: bool,
) -> None:
    """Talk with a model and your tools, turn by turn, for example `agentloop chat -m ollama:qwen3 --tools shop.py`.

    Each line of stdin is a message; the answers go to stdout while they are generated, everything else to stderr. Lines that
    begin with / are commands; /help lists them. Ctrl-C ends a turn, not the chat. The limits are those of each turn. Without a
    terminal, calls that need approval are denied unless --approve says otherwise. With --journal, a turn that runs obeys
    `agentloop runs send` and `runs stop` from anywhere.
    """
    out = sys.stdout
    with redirect_stdout(sys.stderr), as_usage_errors():
        approve, grants = approve or agent.default_approval, SessionGrants()
        journal_file = recording_journal(journal_file)
        if session is not None and (journal_file is None or resumed is not None):
            raise InvalidUsage("--session needs --journal FILE, in which it is kept, and continues without --resume")
        has_journal = journal_file is not None
        guards = approvals(approve, grants, from_start=agent.has_strangers_words, has_journal=has_journal)
        subject = agent.build(guards)
        chat_agent = ChatAgent(subject, limits.with_cost_asked(subject), grants, journal_file)
        with Progress(create_console(stderr=True), live=not no_live) as progress:
            view = TurnView(out, progress)
            subject.loop.wiretap(view)
            with ChatSession(chat_agent, _always(decider(approve, grants)), session) as conversation:
                terminal = Chat(conversation, view, out, _history(), agent.base_url)
                terminal.note(_greeting(subject))
                print_unasked(conversation.loop, approve)
                if session is not None and (state := conversation.resume_session()) is not None:
                    _show_resumed(terminal, state)
                if resumed is not None:
                    # Without a name, `resume` would only list what can be resumed.
                    check_execution_named(resumed)
                    resume(terminal, resumed)
                code = terminal.run()
    context.exit(code)


def _history() -> InputHistory | None:
    is_kept = load_configuration().values.get("history", True)
    return InputHistory(state_folder() / "chat_history") if is_kept else None


def _always(decide: Decider) -> Decider:
    """Return a decider that denies what nobody decides, so that the conversation can go on."""
    return lambda call: decide(call) or deny_call(call)


def _greeting(subject: Subject) -> str:
    model = f" with {subject.model_name}" if subject.model_name else ""
    line = f"agentloop {__version__}{model}; /help lists the commands, /quit ends the chat"
    return "\n".join(filter(None, [line, subject.notice]))
