"""`agentloop run` and calls that wait for a decision."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentloop import AgentState, from_json
from agentloop.values import ExecutionStatus
from tests.cli.conftest import Ended, Terminal
from tests.limits import LONGEST

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine, ModelServer

TOOLS = '''
from pathlib import Path
from agentloop import tool

@tool
def pay(to: str, amount: int) -> str:
    """Pay."""
    with Path(__file__).with_suffix(".paid").open("a") as file:
        file.write(f"{to} {amount}\\n")
    return f"paid {amount} to {to}"

@tool(effect="pure")
def balance() -> int:
    """Look."""
    return 100
'''


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "bank.py"
    path.write_text(TOOLS, encoding="utf-8")
    return path


def asked(server: ModelServer, tools: Path, *more: str) -> list[str]:
    """Return the arguments of a run whose model pays Ada 5 and Bob 7 and looks at the balance, all at once."""
    server.calls(("pay", {"to": "Ada", "amount": 5}), ("balance", {}), ("pay", {"to": "Bob", "amount": 7}))
    server.says("Done.")
    return ["run", "Pay.", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", str(tools), *more]


def paid(tools: Path) -> list[str]:
    """Return what was paid, sorted: calls of one batch run side by side."""
    path = tools.with_suffix(".paid")
    return sorted(path.read_text().splitlines()) if path.exists() else []


def told(server: ModelServer) -> list[str]:
    """Return what the model was told about its calls."""
    return [one["content"] for one in server.requests[-1]["messages"] if one["role"] == "tool"]


def test_without_a_terminal_it_says_how_many_calls_wait(
    command_line: CommandLine, server: ModelServer, tools: Path
) -> None:
    """Nobody can be asked: the exit code is 3, nothing was changed, and what can be done about it is told."""
    ended = command_line(*asked(server, tools, "--approve", "ask", "--quiet"))
    assert (ended.code, ended.out, len(server.requests)) == (3, "", 1)
    assert ended.err.splitlines() == [
        "Suspended after 1 step: 2 calls wait.",
        "pay(to=\"Ada\", amount=5) waits for a decision: a call of 'pay' needs approval",
        "pay(to=\"Bob\", amount=7) waits for a decision: a call of 'pay' needs approval",
        "Run it on a terminal to be asked about each, or with --approve all or --approve none.",
    ]
    assert not paid(tools)


def test_the_state_that_waits_can_be_written(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """With --json, a program can take the state over and resume it; calls that need no decision have run."""
    ended = command_line(*asked(server, tools, "--approve", "ask", "--json", "--quiet"))
    state = from_json(ended.out, AgentState)
    assert state.status is ExecutionStatus.SUSPENDED
    assert [call.call.arguments["to"] for call in state.pending] == ["Ada", "Bob"]
    assert [one.value for one in state.steps[0].executions] == [100]


def test_all_calls_can_be_approved(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """With --approve all, every call runs, once."""
    ended = command_line(*asked(server, tools, "--approve", "all"))
    assert (ended.code, ended.out) == (0, "Done.\n")
    assert paid(tools) == ["Ada 5", "Bob 7"]
    assert told(server) == ["paid 5 to Ada", "100", "paid 7 to Bob"]


def test_all_calls_can_be_denied(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """With --approve none, the model is told that its calls were denied, and others have run."""
    ended = command_line(*asked(server, tools, "--approve", "none"))
    assert (ended.code, ended.out) == (0, "Done.\n")
    assert not paid(tools)
    denied = "ToolBlocked: calls that need approval are not approved here"
    assert told(server) == [denied, "100", denied]


def test_without_the_option_tools_just_run(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """Nothing is held back that no one asked to hold back."""
    ended = command_line(*asked(server, tools))
    assert (ended.code, paid(tools)) == (0, ["Ada 5", "Bob 7"])


@pytest.mark.parametrize(
    "case",
    [
        ("y\ny\n", ["Ada 5", "Bob 7"], ["paid 5 to Ada", "100", "paid 7 to Bob"]),
        ("YES\nno\n", ["Ada 5"], ["paid 5 to Ada", "100", "ToolBlocked: the user has denied this call"]),
        ("r\ntoo much\ny\n", ["Bob 7"], ["ToolBlocked: too much", "100", "paid 7 to Bob"]),
        (
            'e\n{"to": "Eve", "amount": 1}\ny\n',
            ["Bob 7", "Eve 1"],
            ["paid 1 to Eve", "100", "paid 7 to Bob"],
        ),
        (
            "edit\nnot JSON\n[1]\n\nn\n",
            ["Ada 5"],
            ["paid 5 to Ada", "100", "ToolBlocked: the user has denied this call"],
        ),
        ("perhaps\n\ny\nr\n\n", ["Ada 5"], ["paid 5 to Ada", "100", "ToolBlocked: the user has denied this call"]),
    ],
)
def test_a_person_is_asked_about_each_call(
    at_terminal: Callable[..., Ended],
    server: ModelServer,
    tools: Path,
    case: tuple[str, list[str], list[str]],
) -> None:
    """Yes runs it, no and a reason deny it, edited arguments run instead; what is not understood is asked again."""
    typed, expected, answers = case
    ended = at_terminal(*asked(server, tools, "--approve", "ask", "--quiet"), typed=typed)
    assert (ended.code, ended.out) == (0, "Done.\n")
    assert paid(tools) == expected
    assert told(server) == answers
    assert "pay(to=\"Ada\", amount=5)  waits: a call of 'pay' needs approval" in ended.err
    assert "Traceback" not in ended.err


def test_edited_arguments_are_held_against_the_schema(
    at_terminal: Callable[..., Ended], server: ModelServer, tools: Path
) -> None:
    """Arguments that do not fit do not run; the model is told why."""
    ended = at_terminal(*asked(server, tools, "--approve", "ask"), typed='e\n{"to": "Ada", "amount": "much"}\nn\n')
    assert ended.code == 0
    assert not paid(tools)
    assert told(server)[0].startswith("InvalidArguments: ")


def test_the_end_of_the_input_leaves_the_rest_undecided(
    at_terminal: Callable[..., Ended], server: ModelServer, tools: Path
) -> None:
    """What was decided before is carried out; the rest waits, and the exit code says so."""
    ended = at_terminal(*asked(server, tools, "--approve", "ask", "--quiet", "--json"), typed="y\n")
    assert ended.code == 3
    assert paid(tools) == ["Ada 5"]
    assert [call.call.arguments["to"] for call in from_json(ended.out, AgentState).pending] == ["Bob"]
    assert "Suspended after 1 step: 1 call waits." in ended.err


def test_ctrl_c_while_asking_ends_with_130(
    at_terminal: Callable[..., Ended], server: ModelServer, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account of what was done until then is told."""

    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Terminal, "readline", interrupt)
    ended = at_terminal(*asked(server, tools, "--approve", "ask", "--quiet"), typed="")
    assert (ended.code, ended.out, paid(tools)) == (130, "", [])
    assert "Interrupted.\nexecution " in ended.err
    assert 'pay({"to": "Ada", "amount": 5}) waits' in ended.err


def test_what_a_model_writes_cannot_move_the_cursor(
    at_terminal: Callable[..., Ended], server: ModelServer, tools: Path
) -> None:
    """The arguments that a person is asked about are shown as data."""
    server.calls(("pay", {"to": "Ada\x1b[2K\r\u202ebob", "amount": 5}))
    server.says("Done.")
    base = ["run", "Pay.", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", str(tools)]
    ended = at_terminal(*base, "--approve", "ask", "--quiet", typed="e\n\n")
    assert ended.code == 0
    assert [bad for bad in ("\x1b[2K", "\r", "\u202e") if bad in ended.err] == []
    assert "\\u202ebob" in ended.err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_real_terminal_is_recognised(server: ModelServer, tools: Path) -> None:
    """On a pseudo-terminal, the question is shown and the answer is read; the final answer alone goes to stdout."""
    arguments = asked(server, tools, "--approve", "ask", "--quiet")
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "agentloop.cli.main", *arguments]
    env = {**os.environ, "TERM": "dumb", "PYTHONUTF8": "1"}
    os.write(outer, b"y\nn\n")
    with subprocess.Popen(command, stdin=inner, stdout=subprocess.PIPE, stderr=inner, env=env) as process:
        out, _ = process.communicate(timeout=LONGEST)
    os.close(inner)
    shown = b""
    while b"Run it?" not in shown:
        shown += os.read(outer, 65536)
    os.close(outer)
    assert (process.returncode, out) == (0, b"Done.\n")
    assert paid(tools) == ["Ada 5"]


def test_another_word_than_the_three_is_bad_usage(command_line: CommandLine) -> None:
    """What --approve takes is told."""
    ended = command_line("run", "go", "--model", "ollama:qwen3", "--approve", "some")
    assert ended.code == 2
    assert "'some' is not one of 'ask', 'all', 'none'" in ended.err


def test_an_ensemble_that_holds_calls_back_is_asked_about(
    at_terminal: Callable[..., Ended], server: ModelServer, tools: Path
) -> None:
    """Without the option, a person is asked about what an ensemble itself lets wait."""
    grouped = """
from agentloop.interception import Approval
from agentloop.tools.ensembles import Ensemble
BANK = Ensemble("bank", [pay, balance], interceptors=[Approval(["pay"], reason="the bank asks")])
"""
    tools.write_text(TOOLS + grouped, encoding="utf-8")
    arguments: list[Any] = asked(server, tools)
    arguments[arguments.index("--tools") + 1] += ":BANK"
    ended = at_terminal(*arguments, typed="y\nn\n")
    assert (ended.code, paid(tools)) == (0, ["Ada 5"])
    assert "waits: the bank asks" in ended.err
    assert told(server)[1] == "100"
