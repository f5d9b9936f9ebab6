"""Sessions on the command line: `run` and `chat` continue them, and `runs list` shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop import AgentLoop, ScriptedInference
from agentloop.durable import MemoryJournal
from agentloop.errors import ToolFailed
from agentloop.service.cli.mcp import open_agent
from agentloop.values import InferenceRequest
from tests.service.cli.conftest import CommandLine, ModelServer
from tests.service.cli.test_chat import chat, echo, talk


def sent(server: ModelServer, number: int) -> list[str]:
    """Return the texts of the messages of a request."""
    return [message["content"] for message in server.requests[number]["messages"]]


def test_run_continues_a_session(command_line: CommandLine, server: ModelServer, tmp_path: Path) -> None:
    """Each `run` with the session has the conversation so far; `runs list` shows the session, and can select it."""
    journal = str(tmp_path / "runs.db")
    model = ["--model", "ollama:m", "--base-url", server.base_url, "--journal", journal]
    server.says("Hello, Ada.")
    assert command_line("run", "I am Ada.", *model, "--session", "user/7").code == 0
    assert command_line("run", "Who am I?", *model, "--session", "user/7").code == 0
    assert sent(server, 1) == ["I am Ada.", "Hello, Ada.", "Who am I?"]
    assert command_line("run", "Who am I?", *model).code == 0
    assert sent(server, 2) == ["Who am I?"]
    listed = command_line("runs", "list", "--journal", journal)
    assert "session" in listed.out.splitlines()[0]
    assert listed.out.count("user/7") == 2
    own = json.loads(command_line("runs", "list", "--journal", journal, "--session", "user/7", "--json").out)
    assert [head["session"] for head in own] == ["user/7", "user/7"]
    assert command_line("runs", "list", "--journal", journal, "--session", "x" * 300).code == 2
    deleted = command_line("runs", "delete", "--session", "user/7", "--journal", journal)
    assert (deleted.code, deleted.out) == (0, "deleted the session user/7: 2 turns\n")
    assert command_line("runs", "delete", "--session", "user/7", "--journal", journal).code == 2
    assert command_line("runs", "delete", "--journal", journal).code == 2
    both = command_line("runs", "list", "--journal", journal, "--session", "s", "--agent", "a")
    assert both.code == 2


def test_lists_without_sessions_have_no_column_for_them(
    command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """The table of executions of which none is a turn of a session is as narrow as before."""
    journal = str(tmp_path / "runs.db")
    server.says("Hello.")
    command_line("run", "Hi.", "--model", "ollama:m", "--base-url", server.base_url, "--journal", journal)
    assert "session" not in command_line("runs", "list", "--journal", journal).out


def test_a_session_needs_a_journal(command_line: CommandLine, server: ModelServer) -> None:
    """Without a journal, and together with an execution to resume, a session is refused with what to do."""
    model = ["--model", "ollama:m", "--base-url", server.base_url]
    for command in (["run", "Hi."], ["chat"]):
        refused = command_line(*command, *model, "--session", "s")
        assert refused.code == 2
        assert "--session needs --journal FILE" in refused.err


def test_chat_continues_a_session(server: ModelServer, command_line: CommandLine, tmp_path: Path) -> None:
    """A chat in a session begins where the session stands, and takes no turn back, which others may have seen."""
    journal = str(tmp_path / "runs.db")
    server.respond = echo
    options = ["--journal", journal, "--session", "user-7"]
    first = talk(chat(server, *options), "one\ntwo\n")
    assert first.returncode == 0, first.stderr
    second = talk(chat(server, *options), "/undo\n/resume other\nthree\n")
    assert "resumed: 4 messages" in second.stderr
    assert "the turns of a session stay in it" in second.stderr
    assert "this chat continues the session user-7" in second.stderr
    assert [text for text in sent(server, 2) if text in {"one", "two", "three"}] == ["one", "two", "three"]
    listed = json.loads(command_line("runs", "list", "--journal", journal, "--session", "user-7", "--json").out)
    assert [head["number"] for head in listed] == [3, 2, 1]


async def test_the_tool_of_a_served_agent_takes_a_session() -> None:
    """Over MCP, an agent with a journal continues the conversation that a client names; one without a journal has no sessions."""

    def count(request: InferenceRequest) -> str:
        return str(len(request.messages))

    loop = AgentLoop.for_model(ScriptedInference(count))
    async with open_agent(loop, "bot", "Does it.") as served:
        assert list(served.parameters["properties"]) == ["task"]
    async with open_agent(loop.replace(journal=MemoryJournal()), "bot", "Does it.") as served:
        assert list(served.parameters["properties"]) == ["task", "session"]
        asked = [{"task": "a", "session": "s"}, {"task": "b", "session": "s"}, {"task": "c"}]
        answers = [(await served.call(arguments, lambda _: None)).value for arguments in asked]
        assert answers == ["1", "3", "1"]
        with pytest.raises(ToolFailed, match="session"):
            await served.call({"task": "a", "session": 7}, lambda _: None)
