"""The commands of `agentloop chat`, and its messages of several lines, against a model server on this machine."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from agentloop import AgentState, from_json
from agentloop.contracts.can_journal import Claim
from agentloop.durable import SqliteJournal
from agentloop.errors import JournalBusy, JournalFull
from agentloop.service.cli.message_input import InputHistory
from agentloop.values.records import ExecutionHead, JournalRecord
from tests.service.cli.test_chat import TOOLS, Screen, chat, echo, screens, streamed

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

__all__ = ["screens"]  # a fixture


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "bank.py"
    path.write_text(TOOLS, encoding="utf-8")
    return path


@pytest.fixture
def base(server: ModelServer) -> list[str]:
    server.respond = echo
    return ["chat", "-m", "ollama:qwen3", "--base-url", server.base_url]


def texts(server: ModelServer, request: int = -1) -> list[Any]:
    """Return the contents of the messages of a request."""
    return [message["content"] for message in server.requests[request]["messages"]]


# --- messages of several lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ('"""\none\n\n  two\n"""\n', "one\n\n  two"),
        ('"""one\ntwo"""\n', "one\ntwo"),
        ('"""one"""\n', "one"),
        ('"""one\n/quit', "one\n/quit"),
        ('"""/quit\nis a command"""\n', "/quit\nis a command"),
    ],
)
def test_quotes_hold_a_message_of_several_lines(
    command_line: CommandLine, server: ModelServer, base: list[str], typed: str, message: str
) -> None:
    """Everything between three quotes is one message, also without closing ones and with lines that look like commands."""
    result = command_line(*base, stdin=typed)
    assert (result.code, len(server.requests)) == (0, 1)
    assert texts(server) == [message]


def test_empty_quotes_are_no_message(command_line: CommandLine, server: ModelServer, base: list[str]) -> None:
    """Nothing between the quotes is nothing to send."""
    assert command_line(*base, stdin='""""""\n"""\n"""\n').code == 0
    assert not server.requests


# --- /model ---------------------------------------------------------------------------------------------------------


def test_the_model_changes_and_the_conversation_stays(
    command_line: CommandLine, server: ModelServer, base: list[str]
) -> None:
    """The next turn asks another model, which sees what was said before; a provider that stays keeps its address."""
    result = command_line(*base, stdin="one\n/model\n/model ollama:other\n/model\ntwo\n")
    assert (result.code, result.out) == (0, "1 messages, last: one\n3 messages, last: two\n")
    assert [request["model"] for request in server.requests] == ["qwen3", "other"]
    assert "the model is qwen3\n" in result.err
    assert "the model is ollama:other from now on" in result.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3", "'qwen3' does not have the form provider:model"),
        ("olama:x", "there is no provider 'olama'"),
        ("openai:gpt-5", "set the environment variable OPENAI_API_KEY"),
        ("demo", "agentloop chat -m demo"),
        ("ollama:", "does not have the form provider:model"),
    ],
)
def test_a_model_that_cannot_be_used_changes_nothing(
    command_line: CommandLine, server: ModelServer, base: list[str], name: str, message: str
) -> None:
    """The mistake is one line, and the present model answers the next message."""
    result = command_line(*base, stdin=f"/model {name}\nhi\n")
    assert (result.code, [request["model"] for request in server.requests]) == (0, ["qwen3"])
    assert message in result.err
    assert "Traceback" not in result.err


def test_an_alias_names_a_model(command_line: CommandLine, server: ModelServer, base: list[str]) -> None:
    """Aliases of the configuration work in the chat as on the command line."""
    assert command_line("config", "set", "aliases.big", "ollama:big").code == 0
    command_line(*base, stdin="/model big\nhi\n")
    assert server.requests[-1]["model"] == "big"


# --- /undo ----------------------------------------------------------------------------------------------------------


def test_a_turn_is_taken_back_with_its_calls_named(
    command_line: CommandLine, server: ModelServer, base: list[str], tools: Path
) -> None:
    """The model does not see the turn any more; what its calls have done is named, and stays done."""
    typed = "one\npay Ada\n/undo\ntwo\n/undo\n/undo\n/undo\nthree\n"
    result = command_line(*base, "--tools", str(tools), "--approve", "all", stdin=typed)
    assert texts(server, -2) == ["one", "1 messages, last: one", "two"]
    assert texts(server, -1) == ["three"]
    assert result.err.count("the last turn is taken back") == 3
    assert result.err.count('not undone:\n  pay(to="Ada", amount=5)') == 1
    assert result.err.count("there is no turn to take back") == 1
    assert tools.with_suffix(".paid").read_text() == "Ada 5\n"


def test_calls_that_did_not_run_are_not_named(command_line: CommandLine, base: list[str], tools: Path) -> None:
    """A denied call has no effect that could stay."""
    result = command_line(*base, "--tools", str(tools), "--approve", "none", stdin="pay Ada\n/undo\n")
    assert "the last turn is taken back" in result.err
    assert "is not undone" not in result.err


# --- /save and /resume ----------------------------------------------------------------------------------------------


def test_a_saved_conversation_is_resumed(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path
) -> None:
    """/save and --resume, or /resume, keep the whole conversation; the file of a conversation may be saved again."""
    file = tmp_path / "talk.json"
    assert command_line(*base, stdin=f"one\n/save {file}\ntwo\n/save {file}\n").code == 0
    assert len(from_json(file.read_bytes(), AgentState).messages) == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    resumed = command_line(*base, "--resume", str(file), stdin=f"three\n/save {file}\n")
    assert resumed.out == "3 messages, last: two\n5 messages, last: three\n"
    assert "resumed: 4 messages, the last of yours: two" in resumed.err
    assert texts(server)[0::2] == ["one", "two", "three"]
    command_line(*base, stdin=f"/resume {file}\nfour\n")
    assert len(texts(server)) == 7


def test_markdown_is_for_people(command_line: CommandLine, server: ModelServer, base: list[str], tools: Path) -> None:
    """The file has a heading per message and a block per call; backticks in a result do not end its block."""
    server.respond = lambda path, body: streamed("Look: ```") if b"```" in body else echo(path, body)
    tools.write_text(TOOLS.replace("paid {amount}", "```paid``` {amount}"))
    file = tools.with_name("talk.md")
    options = ["--tools", str(tools), "--approve", "all", "-s", "Be brief."]
    assert command_line(*base, *options, stdin=f"pay Ada\n/save {file}\n").code == 0
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text.startswith("## System\n\n```\nBe brief.\n```\n\n## User\n\npay Ada\n\n## Assistant\n")
    assert '````\npay(to="Ada", amount=5)\n```paid``` 5 to Ada\n````' in text
    assert text.endswith("Look: ```\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/save", "name a file"),
        ("/save talk.txt", "the name ends in .json"),
        ("/save absent/talk.json", "No such file or directory"),
        ("/save taken.json", "exists and is not of this conversation"),
        ("/resume absent.json", "No such file or directory"),
        ("/resume taken.json", "taken.json is not a saved conversation"),
        ("/resume .", "no conversations are recorded"),
        ("/resume", "no conversations are recorded"),
        ("/resume abc", "no conversations are recorded"),
        ("/attach", "name a file"),
        ("/attach absent.png", "there is no such file"),
        ("/attach .", "this is not a file"),
        ("/sav x", "there is no command /sav, did you mean '/save'?"),
    ],
)
def test_a_mistake_in_a_command_is_one_line(  # noqa: PLR0917  # fixtures
    command_line: CommandLine,
    server: ModelServer,
    base: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    message: str,
) -> None:
    """The chat goes on after it, and nothing is overwritten."""
    monkeypatch.chdir(tmp_path)
    Path("taken.json").write_text("[1]")
    result = command_line(*base, stdin=f"one\n{command}\ntwo\n")
    assert (result.code, len(server.requests)) == (0, 2)
    assert message in result.err
    assert "Traceback" not in result.err
    assert Path("taken.json").read_text() == "[1]"
    assert len(texts(server)) == 3


def test_nothing_can_be_saved_before_the_first_message(
    command_line: CommandLine, base: list[str], tmp_path: Path
) -> None:
    """An empty conversation is no file."""
    file = tmp_path / "talk.json"
    assert "nothing was said yet" in command_line(*base, stdin=f"/save {file}\n").err
    assert not file.exists()


def test_a_recorded_conversation_is_listed_and_resumed(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path
) -> None:
    """With a journal, each turn is recorded under an id; /resume lists the conversations, and goes on with one by its id."""
    journal = ["--journal", str(tmp_path / "runs.db")]
    command_line(*base, *journal, stdin="one\ntwo\n")
    listed = command_line(*base, *journal, stdin="/resume\n").err
    line = next(line for line in listed.splitlines() if line.startswith("execution_"))
    execution_id, turns = line.split()[:2]
    assert (turns, "two" in line) == ("2", True)
    resumed = command_line(*base, *journal, stdin=f"/resume {execution_id[:14]}\nthree\n/resume nothing\n")
    assert texts(server) == ["one", "1 messages, last: one", "two", "3 messages, last: two", "three"]
    assert "resumed: 4 messages" in resumed.err
    assert "there is no execution nothing" in resumed.err
    rows = json.loads(command_line("runs", "list", *journal, "--json").out)
    assert [row["status"] for row in rows] == ["completed"] * 3


def recorded(command_line: CommandLine, journal: Sequence[str]) -> list[Any]:
    """Return the heads of the recorded executions, the oldest first."""
    rows: list[Any] = json.loads(command_line("runs", "list", *journal, "--json").out)
    return rows[::-1]


@pytest.mark.parametrize(
    "typed",
    [
        ["one", "two", "/undo", "three", "four"],
        ["one", "two", "/undo", "three", "/undo", "four", "five"],
        ["one", "two", "three", "/undo", "/undo", "four", "/undo", "five"],
        ["one", "/undo", "two", "three", "/undo", "/undo", "four"],
    ],
    ids=" ".join,
)
def test_turns_that_are_taken_back_stay_recorded(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path, typed: list[str]
) -> None:
    """The model sees what it sees without a journal; each turn is recorded, and what follows an earlier one is a branch."""
    journal, stdin = ["--journal", str(tmp_path / "runs.db")], "\n".join(typed)
    assert command_line(*base, stdin=stdin).code == 0
    expected, server.requests[:] = server.requests[:], []
    assert command_line(*base, *journal, stdin=stdin).code == 0
    assert [request["messages"] for request in server.requests] == [request["messages"] for request in expected]
    rows = recorded(command_line, journal)
    assert [row["input"] for row in rows] == [text for text in typed if text != "/undo"]
    agents = {row["agent_id"]: row for row in reversed(rows)}
    branches = [row for row in agents.values() if "/" in row["agent_id"]]
    for first in branches:
        source, _, execution_id = first["agent_id"].rpartition("/")
        assert (execution_id, source in agents) == (first["execution_id"], True)


def test_an_earlier_turn_is_resumed_as_a_branch(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path
) -> None:
    """The turns after it stay as they are, also when the state comes from a file, and the branch is listed and goes on."""
    journal, file = ["--journal", str(tmp_path / "runs.db")], tmp_path / "talk.json"
    command_line(*base, *journal, stdin=f"one\n/save {file}\ntwo\n")
    first = recorded(command_line, journal)[0]
    for place, text in ((first["execution_id"], "again"), (str(file), "once more")):
        result = command_line(*base, *journal, "--resume", place, stdin=f"{text}\nthen\n")
        assert (result.code, texts(server)[::2]) == (0, ["one", text, "then"])
    rows = recorded(command_line, journal)
    branches = [f"{first['agent_id']}/{rows[index]['execution_id']}" for index in (2, 4)]
    assert [(row["agent_id"], row["number"]) for row in rows[2:]] == [(name, n) for name in branches for n in (2, 3)]
    listed = command_line(*base, *journal, stdin="/resume\n").err
    assert [line.split()[1] for line in listed.splitlines() if line.startswith("execution_")] == ["3", "3", "2"]


def test_a_turn_that_the_journal_refuses_does_not_end_the_chat(
    command_line: CommandLine,
    server: ModelServer,
    base: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it was done: its error is shown, the conversation goes on, and the file is for the next message."""
    claim, calls = SqliteJournal.claim, 0

    async def fail_once(journal: SqliteJournal, execution_id: str) -> Claim:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise JournalBusy("another writer holds the lock")
        return await claim(journal, execution_id)

    monkeypatch.setattr(SqliteJournal, "claim", fail_once)
    (tmp_path / "note.txt").write_text("a note", encoding="utf-8")
    typed = f"one\n/attach {tmp_path / 'note.txt'}\ntwo\nthree\n"
    result = command_line(*base, "--journal", str(tmp_path / "runs.db"), stdin=typed)
    assert (result.code, len(server.requests)) == (0, 2)
    assert "another writer holds the lock" in result.err
    assert texts(server)[0] == "one"
    assert "three" in str(texts(server)[-1])
    assert "a note" in str(texts(server)[-1])


@pytest.mark.parametrize("typed", ["one\n", "one\ntwo\n"])
def test_a_chat_whose_journal_refuses_the_last_turn_has_failed(
    command_line: CommandLine, base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    """The exit code is that of a failed turn."""

    async def fail(_: SqliteJournal, execution_id: str) -> Claim:
        raise JournalBusy(f"another writer holds the lock of {execution_id[:9]}")

    monkeypatch.setattr(SqliteJournal, "claim", fail)
    result = command_line(*base, "--journal", str(tmp_path / "runs.db"), stdin=typed)
    assert (result.code, result.err.count("holds the lock of execution")) == (1, typed.count("\n"))


def test_a_journal_that_fails_in_a_turn_ends_the_chat(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the turn has done may be unknown to the state before it, so no further message is answered from there."""
    append, calls = SqliteJournal.append, 0

    async def fail_later(
        journal: SqliteJournal, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim
    ) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise JournalFull("no space is left")
        await append(journal, head, records, claim)

    monkeypatch.setattr(SqliteJournal, "append", fail_later)
    result = command_line(*base, "--journal", str(tmp_path / "runs.db"), stdin="one\ntwo\n")
    assert (result.code, len(server.requests)) == (1, 1)
    assert "no space is left" in result.err
    assert "Traceback" not in result.err


def test_calls_that_wait_in_a_saved_state_are_decided(
    command_line: CommandLine, server: ModelServer, base: list[str], tools: Path
) -> None:
    """The state that `run --json` has printed for a program goes on in a chat, after a decision."""
    run = ["run", "pay Ada", *base[1:], "--tools", str(tools), "--approve", "ask", "--stream", "--json"]
    file = tools.with_name("state.json")
    file.write_text(command_line(*run).out)
    assert not tools.with_suffix(".paid").exists()
    result = command_line(*base, "--tools", str(tools), "--approve", "all", "--resume", str(file), stdin="then\n")
    assert tools.with_suffix(".paid").read_text() == "Ada 5\n"
    assert result.out == "3 messages, last: paid 5 to Ada\n5 messages, last: then\n"


# --- /tools, /attach, /usage ----------------------------------------------------------------------------------------


def test_tools_are_listed(command_line: CommandLine, base: list[str], tools: Path) -> None:
    """/tools shows names and effects; an agent without tools says so."""
    assert "pay   effect" in command_line(*base, "--tools", str(tools), stdin="/tools\n").err
    assert "the agent has no tools" in command_line(*base, stdin="/tools\n").err


def test_a_file_is_attached_to_the_next_message_only(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path
) -> None:
    """The text of the file precedes that of the message, and is not sent again with the next one."""
    server.respond = lambda *_: streamed("fine")
    file = tmp_path / "notes.txt"
    file.write_text("remember")
    command_line(*base, stdin=f"/attach {file}\nwhat?\nand?\n")
    first, last = str(server.requests[0]["messages"][0]["content"]), server.requests[1]["messages"][-1]["content"]
    assert "notes.txt" in first
    assert first.index("remember") < first.index("what?")
    assert last == "and?"


def test_the_tokens_of_all_turns_are_added(command_line: CommandLine, base: list[str]) -> None:
    """/usage shows the last turn and the session."""
    err = command_line(*base, stdin="/usage\none\n/usage\ntwo\n/usage\n").err
    assert "nothing was said yet" in err
    assert "2 messages; the last turn: 1 step; tokens unknown\n" in err
    assert "4 messages; the last turn: 1 step; tokens unknown; all 2 turns of this session: tokens unknown" in err


# --- on a terminal --------------------------------------------------------------------------------------------------


class Start(Protocol):
    def __call__(self, command: Sequence[str], term: str = ...) -> Screen: ...


def leave(screen: Screen) -> None:
    screen.wait_for("> ")
    screen.type("/quit")
    assert screen.process.wait(120) == 0


def test_all_calls_of_a_tool_are_approved_for_the_session(server: ModelServer, tools: Path, screens: Start) -> None:
    """After the answer "always", further calls of the tool run without a question, and /tools says so."""
    server.respond = echo
    screen = screens(chat(server, "--tools", str(tools), "--approve", "ask"))
    screen.wait_for("> ")
    screen.type("pay Ada")
    screen.wait_for("(a)lways in this session")
    screen.type("a")
    screen.wait_for("last: paid 5 to Ada")
    screen.wait_for("> ")
    screen.type("pay again")
    assert "Run it?" not in screen.wait_for("7 messages, last: paid 5 to Ada")
    screen.wait_for("> ")
    screen.type("/tools")
    screen.wait_for("always, in this session")
    leave(screen)
    assert tools.with_suffix(".paid").read_text() == "Ada 5\nAda 5\n"


def test_tools_that_run_code_are_asked_about_each_time(server: ModelServer, tools: Path, screens: Start) -> None:
    """The answer "always" is neither offered nor accepted for them."""
    server.respond = echo
    tools.write_text(TOOLS.replace("@tool\n", "@tool(runs_code=True)\n"))
    screen = screens(chat(server, "--tools", str(tools), "--approve", "ask"))
    screen.wait_for("> ")
    screen.type("pay Ada")
    assert "always" not in screen.wait_for("Run it? (y)es, (n)o, (e)dit")
    screen.type("a")
    screen.wait_for("Each call of this tool has to be looked at")
    screen.wait_for("Run it?")
    assert not tools.with_suffix(".paid").exists()
    screen.type("n")
    screen.wait_for("the user has denied this call")
    leave(screen)


def test_the_history_is_kept_and_private(server: ModelServer, screens: Start) -> None:
    """Messages are in a file of the user alone, in its order; the next chat reaches them with the arrow key."""
    server.respond = echo
    screen = screens(chat(server))
    screen.wait_for("> ")
    screen.type("first message")
    screen.wait_for("last: first message")
    leave(screen)
    file = Path(os.environ["XDG_STATE_HOME"]) / "agentloop" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert InputHistory(file).read() == ["first message", "/quit"]
    screen = screens(chat(server))
    screen.wait_for("> ")
    os.write(screen.terminal, b"\x1b[A\x1b[A\n")
    screen.wait_for("1 messages, last: first message")
    leave(screen)


def test_answers_to_questions_are_not_in_the_history(server: ModelServer, tools: Path, screens: Start) -> None:
    """Only messages and commands are."""
    server.respond = echo
    screen = screens(chat(server, "--tools", str(tools), "--approve", "ask"))
    screen.wait_for("> ")
    screen.type("pay Ada")
    screen.wait_for("Run it?")
    screen.type("y")
    screen.wait_for("last: paid 5 to Ada")
    leave(screen)
    file = Path(os.environ["XDG_STATE_HOME"]) / "agentloop" / "chat_history"
    assert InputHistory(file).read() == ["pay Ada", "/quit"]


def test_a_history_can_be_switched_off(server: ModelServer, command_line: CommandLine, screens: Start) -> None:
    """With `history = false` there is no file."""
    assert command_line("config", "set", "history", "false").code == 0
    server.respond = echo
    screen = screens(chat(server))
    screen.wait_for("> ")
    screen.type("secret")
    screen.wait_for("last: secret")
    leave(screen)
    assert not (Path(os.environ["XDG_STATE_HOME"]) / "agentloop").exists()


def test_a_pasted_text_is_one_message(server: ModelServer, monkeypatch: pytest.MonkeyPatch, screens: Start) -> None:
    """A terminal marks what is pasted, so that its lines are not sent one by one."""
    server.respond = echo
    screen = screens(chat(server), term="xterm")
    screen.wait_for("> ")
    os.write(screen.terminal, b"\x1b[200~one\ntwo\x1b[201~\r")
    screen.wait_for("1 messages, last: one")
    screen.wait_for("> ")
    screen.type("/quit")
    assert screen.process.wait(120) == 0
    assert texts(server) == ["one\ntwo"]


def test_commands_and_models_are_completed(server: ModelServer, screens: Start) -> None:
    """The tab key completes a command and the provider of a model."""
    server.respond = echo
    screen = screens(chat(server))
    screen.wait_for("> ")
    os.write(screen.terminal, b"/mod\tllamac\tx\n")
    screen.wait_for("the model is llamacpp:x from now on")
    leave(screen)


def test_the_history_survives_what_is_not_history(tmp_path: Path) -> None:
    """Lines that are damaged are left out, a folder that cannot be made is no error, and old messages are dropped."""
    file = tmp_path / "history"
    file.write_bytes(b'"one"\n{"two"\n[3]\n\xff\n"four\\nlines"\n')
    assert InputHistory(file).read() == ["one", "four\nlines"]
    blocked = InputHistory(file / "below" / "a-file")
    blocked.add("x")
    assert blocked.read() == []
    file.write_text('"x"\n' * 2_001)
    InputHistory(file).shorten()
    assert len(file.read_text().splitlines()) == 1_000
