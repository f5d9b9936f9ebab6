"""`agentloop run` and calls that wait for approval."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, ScriptedInference, Tool, ToolCall, from_json
from agentloop.models.programs.run_program import RunProgram
from agentloop.service.cli.execution import SessionGrants
from agentloop.toolkits.sandboxes.bubblewrap import BubblewrapSandbox
from agentloop.toolkits.shell import shell_in
from agentloop.values import ExecutionStatus, PendingCall
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_calls import Effect, ToolSpec
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop, loaded_python
from tests.service.cli.conftest import CommandResult, Terminal

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

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


def payment_run(server: ModelServer, tools: Path, *more: str) -> list[str]:
    """Return the arguments of a run whose model pays Ada 5 and Bob 7 and reads the balance, in one response."""
    server.calls(("pay", {"to": "Ada", "amount": 5}), ("balance", {}), ("pay", {"to": "Bob", "amount": 7}))
    server.says("Done.")
    return ["run", "Pay.", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", str(tools), *more]


def paid(tools: Path) -> list[str]:
    """Return the payments, sorted: the calls of a batch run in parallel."""
    path = tools.with_suffix(".paid")
    return sorted(path.read_text().splitlines()) if path.exists() else []


def tool_messages(server: ModelServer) -> list[str]:
    """Return the results in the last request to the model."""
    return [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]


def test_without_a_terminal_the_calls_stay_pending(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """Without a terminal to ask on, the exit code is 3, nothing has changed, and the message says what to do."""
    result = command_line(*payment_run(server, tools, "--approve", "ask", "--quiet"))
    assert (result.code, result.out, len(server.requests)) == (3, "", 1)
    assert result.err.splitlines() == [
        "Suspended after 1 step: 2 calls wait.",
        "pay(to=\"Ada\", amount=5) waits for a decision: a call of 'pay' needs approval",
        "pay(to=\"Bob\", amount=7) waits for a decision: a call of 'pay' needs approval",
        "Run the command on a terminal to be asked, or with --approve all or --approve none.",
    ]
    assert not paid(tools)


def test_a_suspended_state_can_be_printed(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """With --json, a program can resume from the printed state; calls that need no approval have run."""
    result = command_line(*payment_run(server, tools, "--approve", "ask", "--json", "--quiet"))
    state = from_json(result.out, AgentState)
    assert state.status is ExecutionStatus.SUSPENDED
    assert [call.call.arguments["to"] for call in state.pending] == ["Ada", "Bob"]
    assert [execution.value for execution in state.steps[0].executions] == [100]


def test_all_calls_can_be_approved(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """With --approve all, every call runs once."""
    result = command_line(*payment_run(server, tools, "--approve", "all"))
    assert (result.code, result.out) == (0, "Done.\n")
    assert paid(tools) == ["Ada 5", "Bob 7"]
    assert tool_messages(server) == ["paid 5 to Ada", "100", "paid 7 to Bob"]


def test_all_calls_can_be_denied(command_line: CommandLine, server: ModelServer, tools: Path) -> None:
    """With --approve none, the model sees that its calls were denied, and the other calls run."""
    result = command_line(*payment_run(server, tools, "--approve", "none"))
    assert (result.code, result.out) == (0, "Done.\n")
    assert not paid(tools)
    denied = "ToolBlocked: calls that need approval are not approved here"
    assert tool_messages(server) == [denied, "100", denied]


def test_calls_wait_once_the_model_has_read_the_text_of_others(
    command_line: CommandLine, server: ModelServer, tools: Path
) -> None:
    """With --approve untrusted, what only the user can have asked for runs, and the next calls say who may have decided."""
    server.calls(("pay", {"to": "Ada", "amount": 5}), ("balance", {}))
    server.calls(("pay", {"to": "Bob", "amount": 7}))
    arguments = ["run", "Pay.", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", str(tools)]
    result = command_line(*arguments, "--approve", "untrusted", "--json")

    (waiting,) = from_json(result.out, AgentState).pending
    assert (result.code, paid(tools)) == (3, ["Ada 5"])
    assert waiting.reason == "decided after reading the result of balance, the result of pay"


def test_by_default_calls_wait_once_the_model_has_read_the_text_of_others(
    command_line: CommandLine, server: ModelServer, tools: Path
) -> None:
    """Without --approve and without a terminal, what only the user can have asked for runs, and the next calls stay pending."""
    tools.write_text(TOOLS.replace("@tool\n", '@tool(effect="idempotent")\n', 1), encoding="utf-8")
    server.calls(("pay", {"to": "Eve", "amount": 1}))
    result = command_line(*payment_run(server, tools, "--json"))
    assert (result.code, paid(tools)) == (3, ["Eve 1"])
    assert [call.call.name for call in from_json(result.out, AgentState).pending] == ["pay", "pay"]


@pytest.mark.parametrize("is_trusted", [False, True])
def test_by_default_all_calls_of_a_strangers_agent_need_approval(
    command_line: CommandLine, server: ModelServer, tools: Path, *, is_trusted: bool
) -> None:
    """A file that nobody trusts is the text of others, which the model reads first; --trust makes it the user's own."""
    file = tools.with_name("payer.md")
    file.write_text("---\nmodel: ollama:m\n---\nYou pay.", encoding="utf-8")
    more = ["--trust", str(file)] if is_trusted else []
    result = command_line(*payment_run(server, tools, "--agent", str(file), "--json", *more))
    assert (result.code, paid(tools)) == ((0, ["Ada 5", "Bob 7"]) if is_trusted else (3, []))


@pytest.mark.parametrize(
    "case",
    [
        ("y\ny\n", ["Ada 5", "Bob 7"], ["paid 5 to Ada", "100", "paid 7 to Bob"]),
        ("YES\nno\n", ["Ada 5"], ["paid 5 to Ada", "100", "ToolBlocked: the user has denied this call"]),
        ("r\ntoo much\ny\n", ["Bob 7"], ["ToolBlocked: too much", "100", "paid 7 to Bob"]),
        (
            'e\n{"to": "Eve", "amount": 1}\ny\ny\n',
            ["Bob 7", "Eve 1"],
            ["paid 1 to Eve", "100", "paid 7 to Bob"],
        ),
        (
            "edit\nnot JSON\n[1]\n\ny\nn\n",
            ["Ada 5"],
            ["paid 5 to Ada", "100", "ToolBlocked: the user has denied this call"],
        ),
        ("perhaps\n\ny\nr\n\n", ["Ada 5"], ["paid 5 to Ada", "100", "ToolBlocked: the user has denied this call"]),
    ],
)
def test_a_person_is_asked_about_each_call(
    at_terminal: Callable[..., CommandResult],
    server: ModelServer,
    tools: Path,
    case: tuple[str, list[str], list[str]],
) -> None:
    """Yes runs it, no and a reason deny it, edited arguments replace its own, after another question; an unknown answer repeats the question."""
    typed, expected, answers = case
    result = at_terminal(*payment_run(server, tools, "--approve", "ask", "--quiet"), typed=typed)
    assert (result.code, result.out) == (0, "Done.\n")
    assert paid(tools) == expected
    assert tool_messages(server) == answers
    plain = re.sub(r"\x1b\[\d*m", "", result.err)
    assert "pay waits: a call of 'pay' needs approval\n  to = \"Ada\"\n  amount = 5\n" in plain
    assert "Traceback" not in result.err


def test_edited_arguments_are_validated(
    at_terminal: Callable[..., CommandResult], server: ModelServer, tools: Path
) -> None:
    """A call with invalid arguments does not run, and the model sees the error."""
    result = at_terminal(
        *payment_run(server, tools, "--approve", "ask"), typed='e\n{"to": "Ada", "amount": "much"}\ny\nn\n'
    )
    assert result.code == 0
    assert not paid(tools)
    assert tool_messages(server)[0].startswith("InvalidArguments: ")


def test_the_end_of_the_input_leaves_the_rest_pending(
    at_terminal: Callable[..., CommandResult], server: ModelServer, tools: Path
) -> None:
    """Decisions before the end of the input take effect; the other calls stay pending, and the exit code is 3."""
    result = at_terminal(*payment_run(server, tools, "--approve", "ask", "--quiet", "--json"), typed="y\n")
    assert result.code == 3
    assert paid(tools) == ["Ada 5"]
    assert [call.call.arguments["to"] for call in from_json(result.out, AgentState).pending] == ["Bob"]
    assert "Suspended after 1 step: 1 call waits." in result.err


def test_ctrl_c_while_asking_ends_with_130(
    at_terminal: Callable[..., CommandResult], server: ModelServer, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the prompt prints the account of the run and exits with 130."""

    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Terminal, "readline", interrupt)
    result = at_terminal(*payment_run(server, tools, "--approve", "ask", "--quiet"), typed="")
    assert (result.code, result.out, paid(tools)) == (130, "", [])
    assert "Interrupted.\nexecution " in result.err
    assert 'pay(to="Ada", amount=5) waits' in result.err


def test_arguments_cannot_control_the_terminal(
    at_terminal: Callable[..., CommandResult], server: ModelServer, tools: Path
) -> None:
    """The prompt escapes control characters in the arguments of a call."""
    server.calls(("pay", {"to": "Ada\x1b[2K\r\u202ebob", "amount": 5}))
    server.says("Done.")
    base = ["run", "Pay.", "--model", "ollama:qwen3", "--base-url", server.base_url, "--tools", str(tools)]
    result = at_terminal(*base, "--approve", "ask", "--quiet", typed="e\n\ny\n")
    assert result.code == 0
    assert [unsafe for unsafe in ("\x1b[2K", "\r", "\u202e") if unsafe in result.err] == []
    assert "\\u202ebob" in result.err


FAILING = """
from agentloop import tool

@tool(effect="pure")
def balance() -> int:
    \"\"\"Look.\"\"\"
    raise ValueError("\\x1b[2J\\u202e\\U000e0041")
"""


@pytest.mark.parametrize("name", ["balance", "b\u202e\x1b[2J\u200b"])
def test_errors_of_tools_cannot_control_the_terminal(server: ModelServer, tmp_path: Path, name: str) -> None:
    """Errors of tools, their tracebacks in the log and unknown names are escaped wherever they are printed."""
    path = tmp_path / "failing.py"
    path.write_text(FAILING, encoding="utf-8")
    server.calls((name, {}))
    server.says("Done.")
    base = ["run", "Look.", "--model", "ollama:m", "--base-url", server.base_url, "--tools", str(path)]
    command = loaded_agentloop(*base)
    ended = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
        timeout=LONGEST,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "Done.\n")
    assert [ascii(char) for char in "\x1b\u202e\u200b\U000e0041" if char in ended.stderr] == []
    assert "\\u202e" in ended.stderr


SIGNALS = [
    pytest.param(number, code, marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals"))
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143))
]


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_at_the_prompt_ends_the_command(
    server: ModelServer, tools: Path, number: signal.Signals, code: int, *, journaled: bool
) -> None:
    """Nothing is paid, there is no traceback, and with a journal the command to resume is printed."""
    options = ["--journal", str(tools.with_name("runs.db"))] if journaled else []
    outer, inner = pty.openpty()
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from agentloop.service.cli.main import main; main()"
    command = loaded_python("-c", start, *payment_run(server, tools, "--approve", "ask", "--quiet", *options))
    env = {**os.environ, "TERM": "dumb", "PYTHONUTF8": "1"}
    shown = b""
    with subprocess.Popen(command, stdin=inner, stdout=subprocess.DEVNULL, stderr=inner, env=env) as process:
        while b"Run it?" not in shown:
            shown += os.read(outer, 65536)
        # Python notices a signal that comes just before it begins to read only when the read ends: a person presses again.
        process.send_signal(number)
        while not select.select([outer], [], [], 5.0)[0]:
            process.send_signal(number)
        while (b"to resume it: " if journaled else b"balance() succeeded") not in shown:
            shown += os.read(outer, 65536)
        process.wait(LONGEST)
    os.write(inner, b"\nEND")
    while b"END" not in shown:
        shown += os.read(outer, 65536)
    os.close(inner)
    os.close(outer)
    assert (process.returncode, paid(tools), b"Traceback" in shown) == (code, [], False)
    assert (b"--resume execution_" in shown) is journaled


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_real_terminal_is_recognized(server: ModelServer, tools: Path) -> None:
    """On a pseudo-terminal, the prompt is shown and the answer is read; stdout gets the final answer alone."""
    arguments = payment_run(server, tools, "--approve", "ask", "--quiet")
    outer, inner = pty.openpty()
    command = loaded_agentloop(*arguments)
    env = {**os.environ, "TERM": "dumb", "PYTHONUTF8": "1"}
    shown = b""
    with subprocess.Popen(command, stdin=inner, stdout=subprocess.PIPE, stderr=inner, env=env) as process:
        for count, answer in enumerate((b"y\n", b"n\n"), start=1):
            while shown.count(b"(v)iew again: ") < count:
                shown += os.read(outer, 65536)
            os.write(outer, answer)
        out, _ = process.communicate(timeout=LONGEST)
    os.close(inner)
    os.close(outer)
    assert (process.returncode, out) == (0, b"Done.\n")
    assert paid(tools) == ["Ada 5"]


def test_another_value_of_approve_is_a_usage_error(command_line: CommandLine) -> None:
    """The message lists the values of --approve."""
    result = command_line("run", "go", "--model", "ollama:qwen3", "--approve", "some")
    assert result.code == 2
    assert "'some' is not one of 'untrusted', 'ask', 'all', 'none'" in result.err


def test_calls_that_an_ensemble_suspends_are_asked_about(
    at_terminal: Callable[..., CommandResult], server: ModelServer, tools: Path
) -> None:
    """Without --approve, a person is asked about calls that an ensemble suspends."""
    ensemble = """
from agentloop.interception import RequireApproval
from agentloop.toolkits import Ensemble
BANK = Ensemble("bank", [pay, balance], interceptors=[RequireApproval(["pay"], reason="the bank asks")])
"""
    tools.write_text(TOOLS + ensemble, encoding="utf-8")
    arguments: list[Any] = payment_run(server, tools)
    arguments[arguments.index("--tools") + 1] += ":BANK"
    result = at_terminal(*arguments, typed="y\nn\n")
    assert (result.code, paid(tools)) == (0, ["Ada 5"])
    assert "waits: the bank asks" in result.err
    assert tool_messages(server)[1] == "100"


# --- all calls of a tool ----------------------------------------------------------------------------------------------


def test_a_grant_is_for_one_definition() -> None:
    """Whatever changes in the definition of a tool, its calls are asked about again."""
    spec = ToolSpec("pay", "Pay.", {"type": "object"}, Effect.EFFECT)
    changes: list[dict[str, Any]] = [
        {"description": "Pay twice."},
        {"parameters": {"type": "object", "properties": {}}},
        {"effect": Effect.IDEMPOTENT},
        {"definition": "another"},
        {"name": "refund"},
    ]
    grants = SessionGrants()
    assert not grants.covers(point_of(spec))
    grants.grant(PendingCall("e/1/0", ToolCall("1", "pay")))
    assert grants.covers(point_of(spec))
    assert [change for change in changes if grants.covers(point_of(evolve(spec, **change)))] == []


def point_of(spec: ToolSpec) -> BeforeToolUse:
    return BeforeToolUse(AgentState.start(), ToolCall("1", spec.name), spec, "e/1/0")


def test_calls_that_others_suspend_cannot_be_granted() -> None:
    """An ensemble or a server that asks for reasons of its own is answered each time."""
    grants = SessionGrants()
    grants.watch(AgentLoop.for_model(ScriptedInference("x"), tools=[]))
    assert not grants.can_grant(PendingCall("e/1/0", ToolCall("1", "pay")))
    assert not grants.covers_pending(PendingCall("e/1/0", ToolCall("1", "pay")))


def test_a_grant_settles_the_other_calls_of_the_batch(
    at_terminal: Callable[..., CommandResult], server: ModelServer, tools: Path
) -> None:
    """The answer "always" to the first of two calls of one tool runs the second without a question, also in `run`."""
    result = at_terminal(*payment_run(server, tools, "--approve", "ask"), typed="a\n")
    assert (result.code, result.out) == (0, "Done.\n")
    assert paid(tools) == ["Ada 5", "Bob 7"]
    assert result.err.count("Run it?") == 1


def shell_tool() -> Tool:
    return next(iter(shell_in(BubblewrapSandbox(readable=()), ".").tools))


@pytest.mark.parametrize("make", [shell_tool, RunProgram])
def test_shells_and_programs_cannot_be_granted(make: Callable[[], Tool]) -> None:
    """What runs code is asked about each time."""
    tool = make()
    grants = SessionGrants()
    grants.watch(AgentLoop.for_model(ScriptedInference("x"), tools=[tool]))
    assert not grants.covers(point_of(tool.spec))
    assert not grants.can_grant(PendingCall("e/1/0", ToolCall("1", tool.name)))
