"""`--mcp` and `agentloop mcp`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.mcp.running import small_entry
from tests.service.cli.conftest import CommandLine, ModelServer


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return a configuration file with the small server and a disabled one."""
    path = tmp_path / "mcp.json"
    servers = {
        "small": small_entry(),
        "off": {"command": "no-such-program", "disabled": True},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def test_the_tools_of_servers_are_listed(command_line: CommandLine, config: str) -> None:
    """`tools list --mcp` lists the tools of servers with their ensemble, effect and parameters."""
    result = command_line("tools", "list", "--mcp", config, "--json")
    assert result.code == 0
    rows = {row["name"]: row for row in json.loads(result.out)}
    assert (rows["add"]["ensemble"], rows["add"]["effect"]) == ("small", "effect")
    assert rows["add"]["parameters"]["required"] == ["a", "b"]


def test_a_server_that_cannot_be_started_is_a_problem(command_line: CommandLine, tmp_path: Path) -> None:
    """The problem is reported with its place in the file, and the command exits with 1."""
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"gone": {"command": "no-such-program"}}}')
    result = command_line("tools", "list", "--mcp", str(path))
    assert result.code == 1
    assert f"{path}: mcpServers.gone: " in result.err
    assert "no program 'no-such-program'" in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("{}", 'there is no object "mcpServers"'),
        ('{"mcpServers": {"a": 1}}', "mcpServers.a is not an object"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a has neither a command nor a url"),
        ('{"mcpServers": {"a": {"command": ""}}}', "mcpServers.a.command is empty"),
        ('{"mcpServers": {"a": {"command": 3}}}', "mcpServers.a.command is not a text"),
        (
            '{"mcpServers": {"a": {"command": "${NO_SUCH_VARIABLE:-}"}}}',
            "mcpServers.a.command: the command of an MCP server is",
        ),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a.args is not a list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "args": 3}}}', "mcpServers.a.args is not a list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"B": 1}}}}', "mcpServers.a.env is not an object of texts"),
        ('{"mcpServers": {"a": {"command": "${NO_SUCH_VARIABLE}"}}}', "NO_SUCH_VARIABLE is not set"),
        ('{"mcpServers": {"a": {"url": "localhost:8000"}}}', "mcpServers.a.url: the address of an MCP server is like"),
        ('{"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}', "mcpServers.a.type: 'sse' is not supported"),
    ],
)
def test_mistakes_in_the_file_are_reported_with_their_place(
    command_line: CommandLine, tmp_path: Path, text: str, message: str
) -> None:
    """A mistake in the configuration is a usage error that names its key."""
    path = tmp_path / "mcp.json"
    path.write_text(text)
    result = command_line("tools", "list", "--mcp", str(path))
    assert result.code == 2
    assert message in result.err


def test_a_missing_file_is_reported(command_line: CommandLine) -> None:
    """A missing configuration file is a usage error that names the file."""
    result = command_line("tools", "list", "--mcp", "no-such.json")
    assert (result.code, result.err) == (2, "Error: --mcp no-such.json cannot be read: No such file or directory\n")


def test_a_missing_extra_is_reported(command_line: CommandLine, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the message says how to install it."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    result = command_line("tools", "list", "--mcp", config)
    assert (result.code, result.err) == (2, "Error: MCP needs the extra `mcp`: pip install 'agentloop-kernel[mcp]'\n")


def test_one_dead_server_does_not_hide_another(command_line: CommandLine, tmp_path: Path) -> None:
    """The tools of the other server are listed, and the dead one is a problem with its last error output."""
    path = tmp_path / "mcp.json"
    dies = {"command": sys.executable, "args": ["-S", "-c", "import sys; sys.exit('no key')"]}
    servers = {"dies": dies, "small": small_entry()}
    path.write_text(json.dumps({"mcpServers": servers}))
    result = command_line("tools", "list", "--mcp", str(path), "--json")
    assert result.code == 1
    assert "add" in [row["name"] for row in json.loads(result.out)]
    assert "mcpServers.dies: its process has ended with exit code 1; its last output: no key" in result.err


def test_a_model_calls_the_tools_of_servers(command_line: CommandLine, server: ModelServer, config: str) -> None:
    """The model is offered the tools of servers and receives their results."""
    server.calls(("add", {"a": 2, "b": 40}))
    server.says("42")
    result = command_line(
        "run", "2+40?", "--model", "ollama:m", "--base-url", server.base_url, "--mcp", config, "--approve", "all"
    )
    assert (result.code, result.out) == (0, "42\n")
    assert "add" in json.dumps(server.requests[0])
    assert server.requests[-1]["messages"][-1]["content"] == "42"


def test_nothing_to_serve_is_a_usage_error(command_line: CommandLine) -> None:
    """`mcp serve` requires tools or an agent."""
    result = command_line("mcp", "serve")
    assert result.code == 2
    assert "nothing to serve" in result.err


def test_an_unknown_loop_is_reported(command_line: CommandLine) -> None:
    """The message suggests the closest name."""
    result = command_line("mcp", "serve", "--agent", "tests.mcp.served_tools:lop")
    assert result.code == 2
    assert "served_tools.py; did you mean 'loop'?" in result.err


def test_an_object_that_is_not_a_loop_is_reported(command_line: CommandLine) -> None:
    """`--agent` rejects anything but a loop or a function."""
    result = command_line("mcp", "serve", "--agent", "tests.mcp.served_tools:add")
    assert result.code == 2
    assert "not an AgentLoop" in result.err
