"""`agentloop run` against a Chat Completions server on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentState, from_json
from agentloop.values.steps import ExecutionStatus
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop, loaded_python

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

TOOLS = '''
from agentloop import tool

@tool
def add(a: int, b: int) -> int:
    """Add."""
    print("adding", a, b)
    return a + b

@tool
def fail() -> int:
    """Fail."""
    raise ValueError("no luck")
'''
COMPLETION = '{"choices": [{"message": {"content": "Hi."}}]}'


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "sums.py"
    path.write_text(TOOLS, encoding="utf-8")
    return str(path)


def test_stdout_has_the_answer_alone(command_line: CommandLine, server: ModelServer) -> None:
    """The answer goes to stdout, the progress and the summary to stderr, and the exit code is 0."""
    server.says("It is 4.\nReally.")
    result = command_line("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url)
    assert (result.code, result.out) == (0, "It is 4.\nReally.\n")
    assert result.err.startswith("step 1\n")
    assert "completed in 1 step · 0 tool calls · 20 tokens in, 5 out" in result.err


def test_tools_from_a_file_are_called(command_line: CommandLine, server: ModelServer, tools: str) -> None:
    """The model is offered the tools of the file and receives their results; what they print goes to stderr."""
    server.calls(("add", {"a": 2, "b": 40}), ("fail", {}))
    server.says("42")
    result = command_line(
        "run", "2+40?", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", tools, "--approve", "all"
    )
    assert (result.code, result.out) == (0, "42\n")
    assert "adding 2 40" in result.err
    assert "ValueError: no luck" in result.err
    assert [entry["function"]["name"] for entry in server.requests[0]["tools"]] == ["add", "fail"]
    added, failed = [message["content"] for message in server.requests[1]["messages"][-2:]]
    assert added == "42"
    assert failed.startswith("ValueError: no luck [The call may have taken effect")


def test_tools_that_need_dependencies_are_a_usage_error(command_line: CommandLine, tmp_path: Path) -> None:
    """The command has no dependencies to pass, and says so before a model is called."""
    path = tmp_path / "shop.py"
    path.write_text(
        "from agentloop import ToolContext, tool\n\nclass Shop: ...\n\n"
        '@tool\ndef sell(context: ToolContext[Shop]) -> str:\n    """Sell."""\n    return \'sold\'\n',
        encoding="utf-8",
    )
    result = command_line("run", "Sell.", "--model", "ollama:m", "--tools", str(path))
    assert (result.code, result.out) == (2, "")
    assert "the tool 'sell' needs dependencies of type Shop, and there are none" in result.err


def test_ensembles_of_a_toml_file_are_called(
    command_line: CommandLine, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--tools accepts a TOML file, which may name the modules of --allow only."""
    (tmp_path / "sums_of_test.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "x.toml").write_text('[tools.plus]\nuse = "sums_of_test:add"\ndefaults = {b = 40}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    server.calls(("plus", {"a": 2}))
    server.says("42")
    arguments = (
        "run",
        "2+40?",
        "--model",
        "ollama:m",
        "--base-url",
        server.base_url,
        "--tools",
        "x.toml",
        "--approve",
        "all",
    )
    result = command_line(*arguments, "--allow", "sums_of_test")
    assert (result.code, result.out) == (0, "42\n")
    assert "adding 2 40" in result.err
    refused = command_line(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "tools.plus.use: the module 'sums_of_test' is not among those that the program allows" in refused.err


def test_quiet_shows_the_answer_only(command_line: CommandLine, server: ModelServer) -> None:
    """With --quiet, stderr stays empty."""
    server.says("4")
    result = command_line("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url, "--quiet")
    assert (result.code, result.out, result.err) == (0, "4\n", "")


def test_json_writes_the_final_state(command_line: CommandLine, server: ModelServer) -> None:
    """With --json, stdout is the JSON document of the final state, also after a failure."""
    server.says("4")
    server.answers(400, '{"error": {"message": "no"}}')
    arguments = ("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url, "--json")
    state = from_json(command_line(*arguments).out, AgentState)
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "4")
    assert from_json(command_line(*arguments).out, AgentState).status is ExecutionStatus.FAILED


def test_a_dash_reads_the_question_from_stdin(command_line: CommandLine, server: ModelServer) -> None:
    """With -, the text on stdin is the user message after the system prompt of --system."""
    server.says("4")
    arguments = ("run", "-", "--model", "ollama:m", "--base-url", server.base_url, "--system", "Be brief.")
    assert command_line(*arguments, stdin="2+2?\n").code == 0
    assert [(message["role"], message["content"]) for message in server.requests[0]["messages"]] == [
        ("system", "Be brief."),
        ("user", "2+2?\n"),
    ]


def run_with_tools(server: ModelServer, tools: str) -> list[str]:
    """Return the arguments of a run that may call all tools of a file."""
    model = ["--model", "ollama:m", "--base-url", server.base_url]
    return ["run", "go", *model, "--tools", tools, "--approve", "all"]


def test_the_step_limit_exits_with_3(command_line: CommandLine, server: ModelServer, tools: str) -> None:
    """An execution that --max-steps stops exits with 3 and names the limit."""
    server.calls(("add", {"a": 1, "b": 1}))
    result = command_line(*run_with_tools(server, tools), "--max-steps", "2", "--quiet")
    assert (result.code, result.out, len(server.requests)) == (3, "", 2)
    assert "Stopped after 2 steps: the limit of 2 steps is reached." in result.err


def test_the_time_limit_exits_with_3(command_line: CommandLine, server: ModelServer) -> None:
    """An execution that --timeout stops exits with 3 and names the limit."""
    server.holds()
    result = command_line("run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--timeout", "0.2")
    assert (result.code, result.out) == (3, "")
    assert "the limit of 0.2 seconds is reached" in result.err


def test_the_key_comes_from_the_environment_and_is_never_shown(
    command_line: CommandLine, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is sent to the provider, and is masked when the provider repeats it in an error."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-123")
    server.answers(401, '{"error": {"message": "Incorrect API key provided: sk-very-secret-123"}}')
    result = command_line("run", "go", "--model", "openai:m", "--base-url", server.base_url, "--json")
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret-123"
    assert result.code == 1
    assert "AuthenticationError" in result.err
    assert "sk-very-secret-123" not in result.err + result.out


def test_a_retry_is_shown_and_can_succeed(command_line: CommandLine, server: ModelServer) -> None:
    """A rate-limited request is retried after the delay that the provider names, and each attempt is shown."""
    server.answers(429, '{"error": {"message": "slow down"}}', retry_after="0")
    server.says("4")
    result = command_line("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url)
    assert (result.code, result.out, len(server.requests)) == (0, "4\n", 2)
    assert "attempt 1 failed, retrying in <1 ms  RateLimited: " in result.err


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            401,
            '{"error": {"message": "bad key"}}',
            "AuthenticationError: the provider responded with HTTP 401: bad key",
        ),
        (404, '{"error": {"message": "no model m"}}', "BadRequest: the provider responded with HTTP 404: no model m"),
        (429, '{"error": {"message": "slow down"}}', "RateLimited: the provider responded with HTTP 429: slow down"),
        (500, "<html><title>Oops</title></html>", "ProviderUnavailable: the provider responded with HTTP 500"),
        (200, "not JSON at all", "InvalidResponse: the response is not JSON"),
        (200, '{"choices": "none"}', "InvalidResponse: the response does not have the structure of a chat completion"),
        (200, "[]", "InvalidResponse: the response does not have the structure of a chat completion"),
    ],
)
def test_a_failing_provider_exits_with_1(
    command_line: CommandLine, server: ModelServer, status: int, body: str, message: str
) -> None:
    """Every kind of bad response is reported in a line or two, and the exit code is 1."""
    server.answers(status, body, retry_after="0")
    result = command_line("run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--quiet")
    assert (result.code, result.out) == (1, "")
    assert f"Failed after 1 step: {message}" in result.err
    assert len(result.err.splitlines()) <= 2


def test_an_unreachable_provider_exits_with_1(command_line: CommandLine) -> None:
    """An address without a server is reported after all attempts, each of which is shown."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = command_line("run", "go", "--model", "ollama:m", "--base-url", f"http://127.0.0.1:{port}/v1")
    assert (result.code, result.out) == (1, "")
    assert result.err.count("retrying in") == 2
    assert f"ProviderUnavailable: no connection to http://127.0.0.1:{port}/v1" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "ollama:m"], "Missing argument 'QUESTION'"),
        (["go"], "Missing option '--model'"),
        (["", "--model", "ollama:m"], "the question is empty"),
        (["-", "--model", "ollama:m"], "the question is empty"),
        (["go", "--model", "gpt-5"], "'gpt-5' does not have the form provider:model"),
        (["go", "--model", "opnai:gpt-5"], "there is no provider 'opnai', did you mean 'openai'?"),
        (["go", "--model", "openai:gpt-5"], "set the environment variable OPENAI_API_KEY"),
        (["go", "--model", "ollama:m", "--base-url", "localhost:8000"], "is not an http or https URL"),
        (["go", "--model", "ollama:m", "--max-steps", "0"], "Invalid value for '--max-steps'"),
        (["go", "--model", "ollama:m", "--timeout", "0"], "--timeout must be a number of seconds above 0, not 0"),
        (["go", "--model", "ollama:m", "--timeout", "nan"], "--timeout must be a number of seconds above 0, not nan"),
        (["go", "--model", "ollama:m", "--tools", "absent.py"], "there is no file"),
        (["go", "--model", "ollama:m", "--api-key", "k"], "No such option"),
    ],
)
def test_usage_errors_exit_with_2(command_line: CommandLine, arguments: list[str], message: str) -> None:
    """A usage error is printed to stderr, with exit code 2 and nothing on stdout."""
    result = command_line("run", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("raise RuntimeError('not today')", "", "RuntimeError: not today"),
        (TOOLS, ":nothing", "there is no 'nothing'"),
        (TOOLS + "def plain(): ...", ":plain", "is the plain function plain, not a tool"),
        (
            TOOLS + "@tool(name='add')\ndef plus(a: int) -> int:\n    'Add.'\n    return a\n",
            "",
            "two tools are named 'add'",
        ),
        (
            TOOLS
            + "@tool(schema={'type': 'object', 'properties': {'a': {'type': 7}}})\ndef g(a: int) -> int:\n    'G.'\n    return a\n",
            ":g",
            "the parameter schema of the tool 'g' is not a valid JSON Schema",
        ),
    ],
)
def test_unusable_tools_exit_with_2(
    command_line: CommandLine, tmp_path: Path, source: str, name: str, message: str
) -> None:
    """A problem of the tools file is reported on one line, with exit code 2, before the model is called."""
    path = tmp_path / "bad.py"
    path.write_text(source, encoding="utf-8")
    address = "http://127.0.0.1:9/v1"
    result = command_line(
        "run", "go", "--model", "ollama:m", "--base-url", address, "--tools", f"{path}{name}", "--quiet"
    )
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.skipif(find_spec("socksio") is not None, reason="with socksio, httpx can use the proxy")
def test_an_unusable_proxy_exits_with_2(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that httpx cannot use is named in the message, with exit code 2."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    result = command_line("run", "go", "--model", "ollama:m")
    assert result.code == 2
    assert "SOCKS proxy" in result.err
    assert "Traceback" not in result.err


def test_unreadable_certificates_exit_with_2() -> None:
    """A missing file in SSL_CERT_FILE exits with 2 and without a traceback."""
    done = subprocess.run(
        loaded_agentloop("run", "go", "--model", "openai:m"),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENAI_API_KEY": "k", "SSL_CERT_FILE": str(Path(__file__).parent / "absent.pem")},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert "SSL_CERT_FILE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
def test_ctrl_c_exits_with_130_and_the_account_so_far(server: ModelServer, tools: str) -> None:
    """Ctrl-C during the second step exits with 130 and prints what the first step did."""
    server.calls(("add", {"a": 2, "b": 40}))
    server.holds()
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from agentloop.service.cli.main import main; main()"
    )
    command = loaded_python("-c", code, *run_with_tools(server, tools))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUTF8": "1"}
    ) as process:
        for _ in range(2):
            assert server.request_received.acquire(timeout=LONGEST)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, out) == (130, "")
    assert "Interrupted.\nexecution " in err
    assert "add(a=2, b=40) succeeded" in err
    assert "Traceback" not in err
