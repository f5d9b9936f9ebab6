"""`agentloop chat` as a process: turns, commands, approvals, and Ctrl-C, against a model server on this machine."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from agentloop.service.cli.chat import COMMANDS
from tests.limits import LONGEST
from tests.loaded import loaded_python
from tests.mcp.running import small_entry
from tests.service.cli.conftest import ModelServer

TOOLS = '''
from pathlib import Path
from agentloop import tool

@tool
def pay(to: str, amount: int) -> str:
    """Pay."""
    with Path(__file__).with_suffix(".paid").open("a") as file:
        file.write(f"{to} {amount}\\n")
    return f"paid {amount} to {to}"
'''
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from agentloop.service.cli.main import main; main()"


def streamed(*chunks: str | tuple[str, Mapping[str, object]]) -> tuple[int, Mapping[str, str], bytes]:
    """Return a response of Chat Completions as a stream, with a text in chunks or with calls."""
    deltas: list[dict[str, Any]] = []
    for number, chunk in enumerate(chunks):
        if isinstance(chunk, str):
            deltas.append({"content": chunk})
        else:
            function = {"name": chunk[0], "arguments": json.dumps(chunk[1])}
            deltas.append(
                {"tool_calls": [{"index": number, "id": f"c{number}", "type": "function", "function": function}]}
            )
    finish = "stop" if isinstance(chunks[-1], str) else "tool_calls"
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    lines = [
        json.dumps({"id": "r", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})
        for choice in choices
    ]
    body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
    return 200, {"content-type": "text/event-stream"}, body.encode()


def echo(_: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Answer with the number of the messages and the last one; pay for messages that say so."""
    messages = json.loads(body)["messages"]
    last = messages[-1]
    if last["role"] == "user" and last["content"].startswith("pay"):
        return streamed(("pay", {"to": "Ada", "amount": 5}))
    if last["role"] == "user" and last["content"] == "pid":
        return streamed(("pid", {}))
    return streamed(f"{len(messages)} ", "messages, ", f"last: {last['content']}")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "bank.py"
    path.write_text(TOOLS, encoding="utf-8")
    return path


def chat(server: ModelServer, *more: str) -> list[str]:
    return loaded_python("-c", START, "chat", "--model", "ollama:qwen3", "--base-url", server.base_url, *more)


def talk(command: Sequence[str], typed: str) -> subprocess.CompletedProcess[str]:
    """Run a chat without a terminal."""
    env = {**os.environ, "PYTHONUTF8": "1"}
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=LONGEST, check=False, env=env)


# --- without a terminal ---------------------------------------------------------------------------------------------


def test_the_conversation_is_kept_over_turns(server: ModelServer) -> None:
    """Each line is a turn, stdout has the answers alone, and the model sees what was said before."""
    server.respond = echo
    done = talk(chat(server), "one\n\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "1 messages, last: one\n3 messages, last: two\n")
    assert [message["content"] for message in server.requests[-1]["messages"]] == [
        "one",
        "1 messages, last: one",
        "two",
    ]


def test_an_answer_that_is_not_streamed_is_printed(server: ModelServer, tools: Path) -> None:
    """A notation that is read as a whole shows its answer at the end, once."""
    server.respond = lambda *_: streamed('{"thought": "I greet.", ', '"type": "final_answer", "answer": "Hello."}')
    done = talk([*chat(server, "--tools", str(tools)), "--driver", "react", "--mode", "json"], "hi\n")
    assert (done.returncode, done.stdout) == (0, "Hello.\n")


def test_calls_that_nobody_approves_are_denied_and_the_chat_goes_on(server: ModelServer, tools: Path) -> None:
    """Without a terminal, --approve all pays, and with ask nothing is paid; the next turn works either way."""
    server.respond = echo
    command = chat(server, "--tools", str(tools))
    denied = talk([*command, "--approve", "ask"], "pay Ada\nthen\n")
    assert "not approved here" in denied.stdout
    assert denied.stdout.endswith("5 messages, last: then\n")
    assert not tools.with_suffix(".paid").exists()
    approved = talk([*command, "--approve", "all"], "pay Ada\n/quit\nnever read\n")
    assert approved.stdout == "3 messages, last: paid 5 to Ada\n"
    assert "pay(" in approved.stderr
    assert tools.with_suffix(".paid").read_text() == "Ada 5\n"


def test_a_turn_that_fails_is_reported_and_the_chat_goes_on(server: ModelServer) -> None:
    """The exit code is that of the last turn."""
    replies = iter([(400, {}, b"{}"), streamed("fine"), (400, {}, b"{}")])
    server.respond = lambda *_: next(replies)
    done = talk(chat(server), "one\ntwo\nthree\n")
    assert (done.returncode, done.stdout) == (1, "fine\n")
    assert done.stderr.count("Failed after") == 2


def test_commands_begin_with_a_slash(server: ModelServer) -> None:
    """/help lists every command, an unknown one says so, and none is sent to the model."""
    server.respond = echo
    done = talk(chat(server), "/help\n/usage\n/hlp\nhi\n/usage\n")
    for name in COMMANDS:
        assert f"\n{name} " in done.stderr
    assert "there is no command /hlp" in done.stderr
    assert "nothing was said yet" in done.stderr
    assert "2 messages; the last turn: 1 step" in done.stderr
    assert len(server.requests) == 1


def test_an_agent_of_a_file(server: ModelServer, tools: Path) -> None:
    """The file says model, prompt and tools; the command line what it may use."""
    server.respond = echo
    file = tools.with_name("agent.toml")
    text = f'model = "ollama:qwen3"\nbase_url = "{server.base_url}"\nsystem_prompt = "In {{{{city}}}}."\ntools = ["bank:pay"]\n'
    file.write_text(text)
    command = loaded_python("-c", START, "chat", "--agent", str(file), "--allow", "bank", "--var", "city=Delft")
    env = {**os.environ, "PYTHONPATH": f"{tools.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    refused = subprocess.run(command, input="", capture_output=True, text=True, timeout=LONGEST, check=False, env=env)
    assert (refused.returncode, "line 2: base_url: the host '127.0.0.1" in refused.stderr) == (2, True)
    command += ["--allow-server", "127.0.0.1"]
    done = subprocess.run(command, input="hi\n", capture_output=True, text=True, timeout=LONGEST, check=False, env=env)
    assert (done.returncode, done.stdout) == (0, "2 messages, last: hi\n")
    assert server.requests[-1]["messages"][0] == {"role": "system", "content": "In Delft."}


def test_servers_stay_started_over_turns(server: ModelServer, tmp_path: Path) -> None:
    """An MCP server is started once, and stopped when the chat ends."""
    server.respond = echo
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"small": small_entry()}}))
    done = talk(chat(server, "--mcp", str(config), "--approve", "all"), "pid\npid\n")
    first, second = done.stdout.splitlines()
    assert (first.partition(",")[0], second.partition(",")[0]) == ("3 messages", "7 messages"), done.stderr
    result = first.partition("last: ")[2]
    assert second.endswith(result)
    pid = int(result)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- on a terminal --------------------------------------------------------------------------------------------------

pty = pytest.importorskip("pty", reason="pseudo-terminals exist on POSIX only")


@define
class Screen:
    """A pseudo-terminal with a chat on it."""

    process: subprocess.Popen[bytes]
    terminal: int
    shown: str = ""

    def wait_for(self, text: str) -> str:
        """Return what was shown since the last call, up to this text."""
        while text not in self.shown:
            assert select.select([self.terminal], [], [], LONGEST)[0], self.shown
            self.shown += os.read(self.terminal, 65536).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.terminal, f"{text}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until something is shown: Python misses one that comes just before it begins to read."""
        self.process.send_signal(signal.SIGINT)
        while not select.select([self.terminal], [], [], 5.0)[0]:
            self.process.send_signal(signal.SIGINT)


@pytest.fixture
def screens() -> Iterator[Callable[[Sequence[str]], Screen]]:
    """Return a function that starts a command on a pseudo-terminal, which is all that it prints to."""
    opened: list[Screen] = []

    def start(command: Sequence[str], term: str = "dumb", *, utf8: bool = True) -> Screen:
        with terminal() as (outer, inner):
            env = {**os.environ, "TERM": term, "PYTHONUTF8": str(int(utf8))}
            process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=env)
        opened.append(Screen(process, outer))
        return opened[-1]

    yield start
    for screen in opened:
        screen.process.kill()
        screen.process.wait(LONGEST)
        os.close(screen.terminal)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    outer, inner = pty.openpty()
    try:
        yield outer, inner
    finally:
        os.close(inner)


def test_a_person_is_asked_and_leaves_with_quit(
    server: ModelServer, tools: Path, screens: Callable[[Sequence[str]], Screen]
) -> None:
    """Tool calls are shown as they run, approvals are asked on the terminal, and the answer follows."""
    server.respond = echo
    screen = screens(chat(server, "--tools", str(tools), "--approve", "ask"))
    screen.wait_for("> ")
    screen.type("pay Ada")
    screen.wait_for("Run it?")
    screen.type("y")
    screen.wait_for("3 messages, last: paid 5 to Ada")
    screen.wait_for("> ")
    screen.type("/quit")
    assert screen.process.wait(LONGEST) == 0
    assert tools.with_suffix(".paid").read_text() == "Ada 5\n"


def test_ctrl_c_ends_the_turn_and_not_the_chat(server: ModelServer, screens: Callable[[Sequence[str]], Screen]) -> None:
    """The turn ends as stopped by the user, and the conversation goes on; at the prompt, Ctrl-C leaves nothing."""
    screen = screens(chat(server))
    server.holds()
    screen.wait_for("> ")
    screen.type("slow")
    assert server.request_received.acquire(timeout=LONGEST)
    screen.interrupt()
    screen.wait_for("the user ended the turn")
    server.respond = echo
    screen.wait_for("> ")
    screen.interrupt()
    screen.wait_for("/quit or Ctrl-D ends the chat")
    screen.wait_for("> ")
    screen.type("again")
    screen.wait_for("last: again")
    screen.wait_for("> ")
    os.write(screen.terminal, b"\x04")
    assert screen.process.wait(LONGEST) == 0


def test_bytes_that_are_no_text_end_no_chat_on_a_terminal(
    server: ModelServer, screens: Callable[[Sequence[str]], Screen]
) -> None:
    """What was pasted in another encoding is named, and the conversation goes on."""
    server.respond = echo
    screen = screens(chat(server))
    screen.wait_for("> ")
    os.write(screen.terminal, b"\xff\xfe\n")
    screen.wait_for("the input is not text")
    screen.wait_for("> ")
    screen.type("again")
    screen.wait_for("last: again")
    screen.wait_for("> ")
    screen.type("/quit")
    assert screen.process.wait(LONGEST) == 0


def test_a_history_with_characters_that_a_terminal_lacks_ends_no_chat(
    server: ModelServer, screens: Callable[..., Screen], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a terminal in ASCII, an older message in Chinese is not offered again, and the chat begins."""
    history = tmp_path / "agentloop" / "chat_history"
    history.parent.mkdir()
    history.write_text('"\\u6f22\\u5b57"\n"hello"\n')
    for name, value in {"XDG_STATE_HOME": str(tmp_path), "LC_ALL": "POSIX"}.items():
        monkeypatch.setenv(name, value)
    server.respond = echo
    # In an interpreter of its own, which sets its locale when it starts.
    command = [sys.executable, "-c", START, "chat", "--model", "ollama:qwen3", "--base-url", server.base_url]
    screen = screens(command, "xterm", utf8=False)
    screen.wait_for("> ")
    screen.type("again")
    screen.wait_for("last: again")


def test_ctrl_c_at_an_approval_ends_the_turn(
    server: ModelServer, tools: Path, screens: Callable[[Sequence[str]], Screen]
) -> None:
    """The call is denied, the turn is over, and the next message is answered."""
    server.respond = echo
    screen = screens(chat(server, "--tools", str(tools), "--approve", "ask"))
    screen.wait_for("> ")
    screen.type("pay Ada")
    screen.wait_for("Run it?")
    screen.interrupt()
    screen.wait_for("the user ended the turn")
    screen.wait_for("> ")
    screen.type("then")
    screen.wait_for("last: then")
    assert not tools.with_suffix(".paid").exists()


def test_sigterm_ends_the_chat(server: ModelServer, screens: Callable[[Sequence[str]], Screen]) -> None:
    """Also in the middle of a turn, without a traceback."""
    screen = screens(chat(server))
    server.holds()
    screen.wait_for("> ")
    screen.type("slow")
    assert server.request_received.acquire(timeout=LONGEST)
    screen.process.send_signal(signal.SIGTERM)
    assert "Traceback" not in screen.wait_for("Interrupted.")
    assert screen.process.wait(LONGEST) == 143
