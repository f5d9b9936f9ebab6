"""`--agent MODULE:LOOP`: `run` and `chat` take the loop that servers and workers take, as its code has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop.values import AgentState, from_json
from tests.service.cli.conftest import CommandLine

AGENT = '''
from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool

@tool
def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount}"

@tool
def note(text: str) -> str:
    """Note."""
    return "noted"

def create():
    calls = [ToolCall("1", "note", '{"text": "pay"}'), ToolCall("2", "pay", '{"amount": 20}')]
    return AgentLoop.for_model(
        ScriptedInference(*[calls, "It is paid."] * 5), name="desk", tools=[pay, note], interceptors=[RequireApproval("pay")]
    )

loop = create()
'''


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """The path of an agent without its name."""
    path = tmp_path / "desk.py"
    path.write_text(AGENT)
    return str(path)


@pytest.mark.parametrize("name", ["loop", "create"])
def test_run_takes_a_loop_of_a_module(name: str, agent: str, command_line: CommandLine, tmp_path: Path) -> None:
    """The code decides which calls wait, and `--approve` about those; the journal has the name and the calls."""
    journal = str(tmp_path / "runs.db")
    options = ["--agent", f"{agent}:{name}", "--journal", journal]
    waits = command_line("run", "Pay.", *options)
    assert waits.code == 3, waits
    assert "note" in waits.err  # among the tools that run without a question
    (head,) = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)
    assert head["agent_name"] == "desk"
    resumed = command_line("run", "--resume", head["execution_id"], *options, "--approve", "all", "--json")
    state = from_json(resumed.out, AgentState)
    assert [execution.value for step in state.steps for execution in step.executions] == ["noted", "paid 20.0"]


def test_chat_takes_a_loop_of_a_module(agent: str, command_line: CommandLine) -> None:
    """Without a terminal, the calls that wait are denied, and the others run."""
    result = command_line("chat", "--agent", f"{agent}:loop", stdin="Pay.\n")
    assert (result.code, result.out) == (0, "It is paid.\n")
    assert "note  " in result.err
    assert "paid 20" not in result.err


def test_run_keeps_the_limits_of_the_code(agent: str, command_line: CommandLine) -> None:
    """`--max-steps` limits the loop where it is given, and only there."""
    options = ["--agent", f"{agent}:loop", "--approve", "all", "--quiet"]
    assert command_line("run", "Pay.", *options).out == "It is paid.\n"
    assert command_line("run", "Pay.", *options, "--max-steps", "1").code == 3
