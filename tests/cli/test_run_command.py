"""`agentloop run` against a server of Chat Completions on this machine."""

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

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine, ModelServer

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


def test_the_answer_stands_alone_on_stdout(command_line: CommandLine, server: ModelServer) -> None:
    """The answer goes to stdout, steps and sum to stderr, and the exit code is 0."""
    server.says("It is 4.\nReally.")
    ended = command_line("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url)
    assert (ended.code, ended.out) == (0, "It is 4.\nReally.\n")
    assert ended.err.startswith("step 1\n")
    assert "completed in 1 step · 0 tool calls · 20 tokens in, 5 out" in ended.err


def test_tools_from_a_file_are_called(command_line: CommandLine, server: ModelServer, tools: str) -> None:
    """The model is offered the tools of the file and gets what they return; what they print goes to stderr."""
    server.calls(("add", {"a": 2, "b": 40}), ("fail", {}))
    server.says("42")
    ended = command_line("run", "2+40?", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", tools)
    assert (ended.code, ended.out) == (0, "42\n")
    assert "adding 2 40" in ended.err
    assert "ValueError: no luck" in ended.err
    assert [one["function"]["name"] for one in server.requests[0]["tools"]] == ["add", "fail"]
    assert [one["content"] for one in server.requests[1]["messages"][-2:]] == ["42", "ValueError: no luck"]


def test_ensembles_of_a_toml_file_are_called(
    command_line: CommandLine, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--tools takes a descriptor as `agentloop tools list` does, with the modules that --allow lets it name."""
    (tmp_path / "sums_of_test.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "x.toml").write_text('[tools.plus]\nuse = "sums_of_test:add"\ndefaults = {b = 40}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    server.calls(("plus", {"a": 2}))
    server.says("42")
    asked = ("run", "2+40?", "--model", "ollama:m", "--base-url", server.base_url, "--tools", "x.toml")
    ended = command_line(*asked, "--allow", "sums_of_test")
    assert (ended.code, ended.out) == (0, "42\n")
    assert "adding 2 40" in ended.err
    refused = command_line(*asked)
    assert (refused.code, refused.out) == (2, "")
    assert "tools.plus.use: the module 'sums_of_test' is not among those that the program allows" in refused.err


def test_quiet_shows_the_answer_only(command_line: CommandLine, server: ModelServer) -> None:
    """With --quiet, stderr stays empty."""
    server.says("4")
    ended = command_line("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url, "--quiet")
    assert (ended.code, ended.out, ended.err) == (0, "4\n", "")


def test_json_writes_the_final_state(command_line: CommandLine, server: ModelServer) -> None:
    """With --json, stdout is the document of the final state, which can be read again; so it is after a failure."""
    server.says("4")
    server.answers(400, '{"error": {"message": "no"}}')
    asked = ("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url, "--json")
    state = from_json(command_line(*asked).out, AgentState)
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "4")
    assert from_json(command_line(*asked).out, AgentState).status is ExecutionStatus.FAILED


def test_a_dash_reads_the_question_from_stdin(command_line: CommandLine, server: ModelServer) -> None:
    """With - the model is asked what stands on stdin, after the instructions of --system."""
    server.says("4")
    asked = ("run", "-", "--model", "ollama:m", "--base-url", server.base_url, "--system", "Be brief.")
    assert command_line(*asked, stdin="2+2?\n").code == 0
    assert [(one["role"], one["content"]) for one in server.requests[0]["messages"]] == [
        ("system", "Be brief."),
        ("user", "2+2?\n"),
    ]


def test_the_step_limit_ends_with_3(command_line: CommandLine, server: ModelServer, tools: str) -> None:
    """An execution that --max-steps cuts short ends with 3 and says so."""
    server.calls(("add", {"a": 1, "b": 1}))
    asked = ("run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--tools", tools)
    ended = command_line(*asked, "--max-steps", "2", "--quiet")
    assert (ended.code, ended.out, len(server.requests)) == (3, "", 2)
    assert "Stopped after 2 steps: the limit of 2 steps is reached." in ended.err


def test_the_time_limit_ends_with_3(command_line: CommandLine, server: ModelServer) -> None:
    """A model that does not answer within --timeout is given up, and the exit code is 3."""
    server.holds()
    ended = command_line("run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--timeout", "0.2")
    assert (ended.code, ended.out) == (3, "")
    assert "the limit of 0.2 seconds is reached" in ended.err


def test_the_key_comes_from_the_environment_and_is_never_shown(
    command_line: CommandLine, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is sent to the provider; a provider that repeats it in its answer does not get it onto the screen."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-123")
    server.answers(401, '{"error": {"message": "Incorrect API key provided: sk-very-secret-123"}}')
    ended = command_line("run", "go", "--model", "openai:m", "--base-url", server.base_url, "--json")
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret-123"
    assert ended.code == 1
    assert "AuthenticationError" in ended.err
    assert "sk-very-secret-123" not in ended.err + ended.out


def test_a_retry_is_shown_and_can_succeed(command_line: CommandLine, server: ModelServer) -> None:
    """A provider that asks to slow down is asked again after the time it names, and each attempt is shown."""
    server.answers(429, '{"error": {"message": "slow down"}}', retry_after="0")
    server.says("4")
    ended = command_line("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url)
    assert (ended.code, ended.out, len(server.requests)) == (0, "4\n", 2)
    assert "attempt 1 failed, again in <1 ms  RateLimited: " in ended.err


@pytest.mark.parametrize(
    ("status", "body", "told"),
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
def test_a_provider_that_fails_ends_with_1(
    command_line: CommandLine, server: ModelServer, status: int, body: str, told: str
) -> None:
    """Whatever a provider answers instead of an answer is told in a line or two, and the exit code is 1."""
    server.answers(status, body, retry_after="0")
    ended = command_line("run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--quiet")
    assert (ended.code, ended.out) == (1, "")
    assert f"Failed after 1 step: {told}" in ended.err
    assert len(ended.err.splitlines()) <= 2


def test_an_unreachable_provider_ends_with_1(command_line: CommandLine) -> None:
    """An address where nobody listens is told after the attempts, which are shown."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = command_line("run", "go", "--model", "ollama:m", "--base-url", f"http://127.0.0.1:{port}/v1")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("again in") == 2
    assert f"ProviderUnavailable: no connection to http://127.0.0.1:{port}/v1" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
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
        (["go", "--model", "ollama:m", "--timeout", "0"], "--timeout is a number of seconds above 0, not 0"),
        (["go", "--model", "ollama:m", "--timeout", "nan"], "--timeout is a number of seconds above 0, not nan"),
        (["go", "--model", "ollama:m", "--tools", "absent.py"], "there is no file"),
        (["go", "--model", "ollama:m", "--api-key", "k"], "No such option"),
    ],
)
def test_bad_usage_ends_with_2(command_line: CommandLine, arguments: list[str], told: str) -> None:
    """What is asked for in a wrong way is told on stderr, with exit code 2 and nothing on stdout."""
    ended = command_line("run", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("source", "name", "told"),
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
def test_tools_that_cannot_be_used_end_with_2(
    command_line: CommandLine, tmp_path: Path, source: str, name: str, told: str
) -> None:
    """A tools file that is wrong in any way is told in one line, with exit code 2, before anything is asked."""
    path = tmp_path / "bad.py"
    path.write_text(source, encoding="utf-8")
    ended = command_line(
        "run", "go", "--model", "ollama:m", "--base-url", "http://127.0.0.1:9/v1", "--tools", f"{path}{name}"
    )
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.skipif(find_spec("socksio") is not None, reason="with socksio, httpx can use the proxy")
def test_a_way_to_the_model_that_cannot_be_set_up_ends_with_2(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that httpx cannot use is told as what it is, with exit code 2."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    ended = command_line("run", "go", "--model", "ollama:m")
    assert ended.code == 2
    assert "SOCKS proxy" in ended.err
    assert "Traceback" not in ended.err


def test_certificates_that_cannot_be_read_end_with_2() -> None:
    """A file of certificates that the environment names and that is not there ends with 2, without a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "agentloop.cli.main", "run", "go", "--model", "openai:m"],
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
def test_ctrl_c_ends_with_130_and_the_work_so_far(server: ModelServer, tools: str) -> None:
    """Ctrl-C in the middle of the second step ends with 130 and tells what the first one did."""
    server.calls(("add", {"a": 2, "b": 40}))
    server.holds()
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from agentloop.cli.main import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "run",
        "go",
        "--model",
        "ollama:m",
        "--base-url",
        server.base_url,
        "--tools",
        tools,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUTF8": "1"}
    ) as process:
        for _ in range(2):
            assert server.asked.acquire(timeout=LONGEST)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, out) == (130, "")
    assert "Interrupted.\nexecution " in err
    assert 'add({"a": 2, "b": 40}) succeeded' in err
    assert "Traceback" not in err
