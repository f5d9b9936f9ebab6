"""`agentloop agents check` and `agentloop run --agent`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.service.cli.conftest import CommandLine, ModelServer

TOOLS = '''
from agentloop import tool


@tool(effect="pure")
def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}"


@tool
def refund(number: int) -> str:
    """Pay an order back."""
    return f"{number} is paid back"
'''
GOOD = """\
---
model: openai:gpt-5
tools: [agents_command_of_test:find_order]
agents:
  helper:
    description: Helps.
    tools: [agents_command_of_test:refund]
---
You work in {{city}} for {{shop}}.
"""
BAD = 'model = "openai:gpt-5"\nsytem = 1\ntools = ["agents_command_of_test:find"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agents_command_of_test.py").write_text(TOOLS)
    (tmp_path / "good.md").write_text(GOOD)
    (tmp_path / "bad.toml").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_check_as_a_process(folder: Path) -> None:
    """Files without problems have a line, the others each problem with its line; keys of models are not needed."""
    command = loaded_agentloop("agents", "check", "good.md", "bad.toml")
    done = subprocess.run(
        [*command, "--allow", "agents_command_of_test"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == "good.md: 1 tool, 1 sub-agent, no problems, variables to pass: city, shop\n"
    assert done.stderr.splitlines() == [
        "tools that run unasked  effect  data can leave  questions  word of",
        "find_order              pure    no              none       code",
        "bad.toml, line 2: sytem: there is no such key; did you mean 'system_prompt'?",
    ]


def test_a_check_prints_json(command_line: CommandLine, folder: Path) -> None:
    """The document has an entry for each file."""
    result = command_line("agents", "check", "good.md", "bad.toml", "--json")
    good, bad = json.loads(result.out)
    assert result.code == 1
    assert [(problem["key"], problem["line"]) for problem in good["problems"]] == [
        ("tools[0]", 3),
        ("agents.helper.tools[0]", 7),
    ]
    assert bad["file"] == "bad.toml"


def test_a_check_needs_no_model(command_line: CommandLine, folder: Path) -> None:
    """A program may pass the model of a file."""
    (folder / "open.toml").write_text('system_prompt = "You help."')
    result = command_line("agents", "check", "open.toml")
    assert (result.code, result.out) == (0, "open.toml: 0 tools, 0 sub-agents, no problems\n")


def test_a_check_names_the_variables_that_a_program_passes(command_line: CommandLine, folder: Path) -> None:
    """Those that the file has itself and the braces that stand for themselves are none of them."""
    text = (
        'model = "ollama:m"\nsystem_prompt = \'{{shop}} in {{city}}: \\{{date}} \\{{\'\n[variables]\nshop = "Lamps"\n'
    )
    (folder / "own.toml").write_text(text)
    result = command_line("agents", "check", "own.toml")
    assert (result.code, result.out) == (0, "own.toml: 0 tools, 0 sub-agents, no problems, variables to pass: city\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["agents", "check", "none.toml"], "there is no file none.toml"),
        (["agents", "check", "good.md", "--var", "x"], "--var x has no value"),
        (["agents", "check", "good.md", "--allow", "a b"], "allow lists modules"),
        (["agents", "check", "good.md", "--var", "1=2"], "the variable '1' cannot be used"),
        (["run", "go"], "Missing option '--model', or '--agent'"),
        (["run", "go", "--model", "ollama:m", "--var", "a=b"], "belong to the file of an agent"),
        (["run", "go", "--agent", "good.md", "--system", "x"], "the file of --agent decides about"),
        (["run", "go", "--agent", "good.md", "--mode", "parsed"], "the file of --agent decides about"),
        (["run", "go", "--agent", "good.md", "--base-url", "http://x"], "omit --base-url"),
        (["run", "--agent", "good.md"], "Missing argument 'QUESTION'"),
        (["run", "go", "--agent", "none.md"], "there is no file none.md"),
        (["run", "go", "--agent", "bad.toml"], "line 2: sytem: there is no such key"),
        (["chat"], "Missing option '--model', or '--agent'"),
    ],
)
def test_a_usage_error_says_what_to_change(
    command_line: CommandLine, folder: Path, arguments: list[str], message: str
) -> None:
    """The exit code is 2, and there is no traceback."""
    result = command_line(*arguments)
    assert result.code == 2
    assert message in result.err


def test_a_question_to_an_agent_of_a_file(command_line: CommandLine, folder: Path, server: ModelServer) -> None:
    """--model replaces the model of the file, for its sub-agents too; its prompt and tools are used, and --tools adds more."""
    server.calls(("find_order", {"number": 7}), ("helper", {"task": "x"}))
    server.says("It helps.")
    server.says("Order 7.")
    (folder / "more.py").write_text(TOOLS.replace("find_order", "other").replace("def refund", "def also"))
    result = command_line(
        *("run", "Where is order 7?", "--agent", "good.md", "--allow", "agents_command_of_test", "--approve", "all"),
        *("--var", "city=Delft", "--var", "shop=Lamps", "--model", "ollama:qwen3", "--base-url", server.base_url),
        *("--tools", "more.py:other"),
    )
    assert (result.code, result.out) == (0, "Order 7.\n"), result.err
    first, helper, last = server.requests
    assert first["messages"][0]["content"] == "You work in Delft for Lamps."
    assert [tool["function"]["name"] for tool in first["tools"]] == ["find_order", "helper", "other"]
    assert [tool["function"]["name"] for tool in helper["tools"]] == ["refund"]
    assert [message["content"] for message in last["messages"] if message["role"] == "tool"] == ["order 7", "It helps."]


def test_calls_of_sub_agents_need_approval_too(command_line: CommandLine, folder: Path, server: ModelServer) -> None:
    """What a file delegates is asked about like what it does itself."""
    server.calls(("helper", {"task": "x"}))
    server.says("Denied.")
    result = command_line(
        *("run", "Refund.", "--agent", "good.md", "--allow", "agents_command_of_test", "--approve", "none"),
        *("--var", "city=Delft", "--var", "shop=Lamps", "--model", "ollama:qwen3", "--base-url", server.base_url),
    )
    assert (result.code, result.out) == (0, "Denied.\n")
    assert "not approved here" in server.requests[-1]["messages"][-1]["content"]


def test_the_tools_of_invokers_are_checked(command_line: CommandLine, folder: Path) -> None:
    """`agentloop tools check` reads both forms of ensembles, and `tools list` lists them."""
    text = '[ensemble]\nname = "io"\n[[invokers]]\nname = "find"\nuse = "agents_command_of_test:find_order"\n'
    (folder / "io.toml").write_text(text)
    good = command_line("tools", "check", "io.toml", "--allow", "agents_command_of_test")
    assert (good.code, good.out.startswith("1 tool, no problems")) == (0, True)
    (folder / "io.toml").write_text(f"{text}timeout = 0\n[[invokers]]\nname = 'b'\n")
    bad = command_line("tools", "check", "io.toml", "--allow", "agents_command_of_test")
    assert bad.code == 1
    assert "io.toml, line 6: invokers[0].timeout: it has to be more than 0, not 0" in bad.err
    assert "io.toml, line 7: invokers[1]: it does not say where the tool comes from" in bad.err


def test_a_check_audits_the_guards(command_line: CommandLine, folder: Path) -> None:
    """The approvals of `run` guard the agent; its sub-agents have guards of their own. Holes are no problems."""
    arguments = ["agents", "check", "good.md", "--allow", "agents_command_of_test", "--audit"]
    result = command_line(*arguments)
    assert result.code == 0
    assert "\nholes:\n" in result.out
    (checked,) = json.loads(command_line(*arguments, "--json").out)
    rows = {row["name"]: row for row in checked["audit"]["tools"]}
    assert {control["by"] for control in rows["helper"]["controls"] if control["kind"] == "asks"} == {
        "UngrantedApproval"
    }
    assert "audit" not in json.loads(command_line(*arguments[:-1], "--json").out)[0]
