"""`agentloop models`: providers, models, and the lists of servers on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from agentloop.models.presets import PRESETS

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine


@contextmanager
def list_server(status: int, body: str, headers: Mapping[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve one response to each GET; yield the address and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('authorization', '')}".strip())
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


OPENAI_LIST = json.dumps({"object": "list", "data": [{"id": "qwen3:8b"}, {"id": "gemma\x1b[2J"}]})


def test_every_provider_has_a_row(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names each provider and whether a key is set, and shows no key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1")
    table = command_line("models")
    accounts = json.loads(command_line("models", "--json").out)
    assert (table.code, [account["provider"] for account in accounts]) == (0, list(PRESETS))
    assert "OPENAI_API_KEY is set" in table.out
    assert "MISTRAL_API_KEY is not set" in table.out
    assert accounts[0]["variables"] == {"OPENAI_API_KEY": True}
    assert "sk-secret-1" not in table.out + json.dumps(accounts)


def test_a_provider_is_shown_alone(command_line: CommandLine) -> None:
    """The name of a provider selects its row."""
    result = command_line("models", "ollama")
    assert (result.code, len(result.out.splitlines())) == (0, 2)
    assert "http://localhost:11434/v1" in result.out


@pytest.mark.parametrize(
    ("model", "mode", "can_run_in_parallel"),
    [
        ("openai:gpt-5", "native", True),
        ("ollama:llava", "validated", False),
        ("anthropic:claude-sonnet-5", "native", True),
    ],
)
def test_a_model_has_a_mode_and_a_reason(
    command_line: CommandLine,
    model: str,
    mode: str,
    can_run_in_parallel: bool,  # noqa: FBT001
) -> None:
    """What is known of a model is what `auto` uses."""
    (account,) = json.loads(command_line("models", model, "--json").out)
    assert (account["mode"], account["parallel_tool_calls"]) == (mode, can_run_in_parallel)
    assert account["reason"]
    assert f"{mode}: {account['reason']}"[:40] in command_line("models", model).out


def test_an_alias_is_its_model(command_line: CommandLine) -> None:
    """An alias of the configuration is resolved."""
    command_line("config", "set", "aliases.fast", "openai:gpt-5-mini")
    (account,) = json.loads(command_line("models", "fast", "--json").out)
    assert account["model"] == "openai:gpt-5-mini"


def test_a_server_lists_its_models(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model is a line that --model takes; a name cannot control the terminal, and an optional key is sent."""
    monkeypatch.setenv("OLLAMA_API_KEY", "key-of-mine")
    with list_server(200, OPENAI_LIST) as (url, asked):
        result = command_line("models", "ollama", "--list", "--base-url", f"{url}/v1")
    assert (result.code, asked) == (0, ["/v1/models Bearer key-of-mine"])
    assert result.out.splitlines() == ["ollama:gemma\\u001b[2J", "ollama:qwen3:8b"]
    assert "key-of-mine" not in result.out + result.err


def test_another_wire_format_has_another_list(command_line: CommandLine) -> None:
    """Ollama's own API lists models under another path."""
    with list_server(200, json.dumps({"models": [{"name": "qwen3:8b"}]})) as (url, asked):
        result = command_line("models", "ollama-native", "--list", "--base-url", url, "--json")
    assert asked == ["/api/tags"]
    (answer,) = json.loads(result.out)
    assert (answer["models"], answer["problem"]) == (["ollama-native:qwen3:8b"], "")


@pytest.mark.parametrize(
    ("status", "body", "headers", "problem"),
    [
        (404, "", {}, "HTTP 404"),
        (500, "oops", {}, "HTTP 500"),
        (200, "<html>", {}, "has not answered with a list of models"),
        (200, '{"data": 7}', {}, "has not answered with a list of models"),
        (200, '{"data": [{"name": "x"}]}', {}, "has not answered with a list of models"),
        (200, '{"data": []}', {}, "the server has no models"),
        (302, "", {"location": "http://127.0.0.1:9/"}, "HTTP 302"),
    ],
)
def test_what_is_no_list_is_said(
    command_line: CommandLine, status: int, body: str, headers: Mapping[str, str], problem: str
) -> None:
    """Any other answer is a line on stderr; a redirect is not followed."""
    with list_server(status, body, headers) as (url, asked):
        result = command_line("models", "vllm", "--list", "--base-url", url)
    assert (result.code, result.out, len(asked)) == (int("no models" not in problem), "", 1)
    assert problem in result.err
    assert "Traceback" not in result.err


def test_a_server_that_does_not_run_is_named(command_line: CommandLine) -> None:
    """Without a server the exit code is 1, and the address is in the message."""
    result = command_line("models", "vllm", "--list", "--base-url", "http://127.0.0.1:9/v1")
    assert (result.code, result.out) == (1, "")
    assert "vllm at http://127.0.0.1:9/v1: no server answers" in result.err


@pytest.mark.parametrize(
    ("caps", "mode", "reason"),
    [
        ({"supports_tools": False}, "structured", "llama.cpp says that the template of the model has no tools"),
        ({"supports_tools": True}, "native", "llama.cpp says that the template of the model has tools"),
    ],
)
def test_a_server_is_asked_what_it_can_do(
    command_line: CommandLine, caps: Mapping[str, bool], mode: str, reason: str
) -> None:
    """What was found and why a mode follows, for people and as JSON."""
    document = {"chat_template": "x", "chat_template_caps": caps, "data": [{"id": "smol"}]}
    with list_server(200, json.dumps(document)) as (url, asked):
        result = command_line("models", "--ask", url)
        (summary,) = json.loads(command_line("models", "llamacpp:smol", "--ask", url, "--json").out)
    assert (result.code, asked) == (0, ["/v1/models", "/props", "/props"])
    assert f"{mode}: {reason}" in result.out
    assert (summary["model"], summary["server"], summary["mode"]) == ("smol", "llama.cpp", mode)


def test_a_server_that_says_nothing_has_the_exit_code_1(command_line: CommandLine) -> None:
    """What happens without an answer is said nevertheless."""
    with list_server(404, "") as (url, _):
        result = command_line("models", "--ask", url)
    assert (result.code, "its tool API is tried first" in result.out) == (1, True)
    assert command_line("models", "--ask", "nonsense").code == 2
    assert command_line("models", "--ask", "http://x", "--list").code == 2
