"""`--mcp` and `agentloop mcp`: servers that a command line names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, ModelServer
from tests.mcp.running import SMALL


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return a file that names the small server, and one that is disabled."""
    path = tmp_path / "mcp.json"
    servers = {
        "small": {"command": sys.executable, "args": [SMALL]},
        "off": {"command": "no-such-program", "disabled": True},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def test_the_tools_of_servers_are_listed(command_line: CommandLine, config: str) -> None:
    """With their ensemble, effect and parameters."""
    ended = command_line("tools", "list", "--mcp", config, "--json")
    assert ended.code == 0
    rows = {row["name"]: row for row in json.loads(ended.out)}
    assert (rows["add"]["ensemble"], rows["add"]["effect"]) == ("small", "pure")
    assert rows["add"]["parameters"]["required"] == ["a", "b"]


def test_a_server_that_cannot_be_started_is_a_problem(command_line: CommandLine, tmp_path: Path) -> None:
    """It is told with its place in the file, and the command ends with 1."""
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"gone": {"command": "no-such-program"}}}')
    ended = command_line("tools", "list", "--mcp", str(path))
    assert ended.code == 1
    assert f"{path}: mcpServers.gone: " in ended.err
    assert "no program 'no-such-program'" in ended.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("{}", 'there is no object "mcpServers"'),
        ('{"mcpServers": {"a": 1}}', "mcpServers.a is not an object"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a has neither a command nor a url"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a.args is not a list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "args": 3}}}', "mcpServers.a.args is not a list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"B": 1}}}}', "mcpServers.a.env is not an object of texts"),
        ('{"mcpServers": {"a": {"command": "${NO_SUCH_VARIABLE}"}}}', "NO_SUCH_VARIABLE is not set"),
        ('{"mcpServers": {"a": {"url": "localhost:8000"}}}', "mcpServers.a.url: the address of an MCP server is like"),
        ('{"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}', "mcpServers.a.type: 'sse' is not supported"),
    ],
)
def test_mistakes_in_the_file_are_told_with_their_place(
    command_line: CommandLine, tmp_path: Path, text: str, told: str
) -> None:
    """And nothing is started."""
    path = tmp_path / "mcp.json"
    path.write_text(text)
    ended = command_line("tools", "list", "--mcp", str(path))
    assert ended.code == 2
    assert told in ended.err


def test_a_file_that_is_not_there_is_told(command_line: CommandLine) -> None:
    """By its name."""
    ended = command_line("tools", "list", "--mcp", "no-such.json")
    assert (ended.code, ended.err) == (2, "Error: --mcp no-such.json cannot be read: No such file or directory\n")


def test_a_missing_extra_is_told(command_line: CommandLine, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, before anything is started."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    ended = command_line("tools", "list", "--mcp", config)
    assert (ended.code, ended.err) == (2, "Error: MCP needs the extra `mcp`: pip install 'agentloop[mcp]'\n")


def test_one_dead_server_does_not_hide_another(command_line: CommandLine, tmp_path: Path) -> None:
    """The tools of the other are listed, and the dead one is a problem, told with its last words."""
    path = tmp_path / "mcp.json"
    dies = {"command": sys.executable, "args": ["-S", "-c", "import sys; sys.exit('no key')"]}
    servers = {"dies": dies, "small": {"command": sys.executable, "args": [SMALL]}}
    path.write_text(json.dumps({"mcpServers": servers}))
    ended = command_line("tools", "list", "--mcp", str(path), "--json")
    assert ended.code == 1
    assert "add" in [row["name"] for row in json.loads(ended.out)]
    assert "mcpServers.dies: its process has ended with exit code 1; its last output: no key" in ended.err


def test_a_model_calls_the_tools_of_servers(command_line: CommandLine, server: ModelServer, config: str) -> None:
    """They are offered besides others, and the model gets what they return."""
    server.calls(("add", {"a": 2, "b": 40}))
    server.says("42")
    ended = command_line("run", "2+40?", "--model", "ollama:m", "--base-url", server.base_url, "--mcp", config)
    assert (ended.code, ended.out) == (0, "42\n")
    assert "add" in json.dumps(server.requests[0])
    assert "result" in json.dumps(server.requests[-1]["messages"][-1])


def test_nothing_to_offer_is_told(command_line: CommandLine) -> None:
    """`mcp serve` needs tools or an agent."""
    ended = command_line("mcp", "serve")
    assert ended.code == 2
    assert "nothing to offer" in ended.err


def test_a_loop_that_is_not_there_is_told(command_line: CommandLine) -> None:
    """With those that are."""
    ended = command_line("mcp", "serve", "--agent", "tests.mcp.served_tools:lop")
    assert ended.code == 2
    assert "served_tools.py; did you mean 'loop'?" in ended.err


def test_what_is_no_loop_is_told(command_line: CommandLine) -> None:
    """`--agent` takes a loop."""
    ended = command_line("mcp", "serve", "--agent", "tests.mcp.served_tools:add")
    assert ended.code == 2
    assert "not an AgentLoop" in ended.err
