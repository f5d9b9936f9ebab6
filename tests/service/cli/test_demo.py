"""`agentloop demo`, and its scripted model behind `agentloop run --model demo`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentState, from_json
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.service.cli import demo
from agentloop.service.cli.demo import DemoCluster

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, TerminalCommandLine

ANSWER = (
    "The payments service was down: out of memory, no responses for 7 minutes. I restarted payments. Now payments is up"
)
ADD = '''
from agentloop import tool

@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
'''


def test_the_demo_answers(command_line: CommandLine) -> None:
    """The demo exits with 0, states that its model is scripted, and prints the answer and the account of the run."""
    result = command_line("demo", "--yes")
    assert (result.code, result.err) == (0, "")
    assert "Its model is scripted" in result.out
    assert ANSWER in result.out
    assert "completed in 5 steps · 6 tool calls (5 succeeded, 1 failed)" in result.out
    assert re.search(r"Account of the run\nexecution execution_\w+: completed", result.out)


def test_the_demo_shows_a_failure_among_parallel_calls(command_line: CommandLine) -> None:
    """Three calls start before the first one ends; one fails, its siblings succeed, and the model corrects itself."""
    shown = command_line("demo", "--yes").out
    lines = [line.strip() for line in shown.splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("→"))
    assert [line[0] for line in lines[first : first + 3]] == ["→", "→", "→"]
    assert re.search(r"✗ +1\.3 check_service .*LookupError: there is no service 'database'", shown)
    assert re.search(r"✓ +1\.1 check_service .*\"status\":\"up\"", shown)
    assert re.search(r"✓ +2\.1 check_service .*\"name\":\"orders-db\"", shown)


def test_each_caption_is_shown_once(command_line: CommandLine) -> None:
    """A caption explains each feature where it first appears."""
    captions = re.findall(r"^ +\((.+)\)$", command_line("demo", "--yes").out, re.MULTILINE)
    assert len(captions) == len(set(captions)) == 3


@pytest.mark.parametrize(("options", "source"), [(["--yes"], "--yes"), ([], "no terminal to ask on")])
def test_the_call_is_approved_without_a_question(command_line: CommandLine, options: list[str], source: str) -> None:
    """With --yes, or without a terminal, the call is approved and the source of the approval is printed."""
    shown = command_line("demo", *options).out
    assert re.search(r'restart_service\(name="payments"\) +waits: it interrupts a running service', shown)
    assert f"approved ({source})" in shown
    assert re.search(r"✓ +3\.1 restart_service", shown)


def test_a_person_at_a_terminal_approves(at_terminal: TerminalCommandLine) -> None:
    """At a terminal the demo asks, and the call runs after a yes."""
    result = at_terminal("demo", typed="y\n")
    assert result.code == 0
    assert "Run it?" in result.err
    assert ANSWER in result.out


def test_a_person_at_a_terminal_denies(at_terminal: TerminalCommandLine) -> None:
    """A denied call does not run, and the answer says so."""
    result = at_terminal("demo", typed="n\n")
    assert result.code == 0
    assert "I could not restart it (ToolBlocked: " in result.out
    assert "4 succeeded, 1 failed" not in result.out
    assert "3 succeeded, 1 failed, 1 blocked" in result.out


def test_a_person_at_a_terminal_edits(at_terminal: TerminalCommandLine) -> None:
    """A restart that was edited to another service leaves the cause as it is, and the answer says so."""
    result = at_terminal("demo", typed='e\n{"name": "web"}\ny\n')
    assert result.code == 0
    assert "I restarted web. Now payments is down: out of memory" in " ".join(result.out.split())


def test_a_person_who_does_not_answer_leaves_the_call_waiting(at_terminal: TerminalCommandLine) -> None:
    """At the end of the input the call stays pending, and the demo exits with 3."""
    result = at_terminal("demo", typed="")
    assert result.code == 3
    assert "1 call waits" in result.out


@pytest.mark.parametrize(("encoding", "call"), [("utf-8", "→  1.1 check_service"), ("ascii", "-> 1.1 check_service")])
def test_the_demo_runs_as_a_program_and_writes_plain_text(tmp_path: Path, encoding: str, call: str) -> None:
    """In a process of its own and piped, the demo exits with 0 and writes no control codes, in any encoding."""
    done = subprocess.run(
        [sys.executable, "-m", "agentloop.service.cli.main", "demo"],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.stderr == b""
    assert call in done.stdout.decode(encoding)
    assert b"\x1b" not in done.stdout
    assert not [*tmp_path.iterdir()]


# --- with a journal ---------------------------------------------------------------------------------------------------


def test_a_recorded_demo_is_shown_by_the_command_that_it_prints(command_line: CommandLine, tmp_path: Path) -> None:
    """With --journal the demo prints the command that shows its run, and that command finds all of it."""
    result = command_line("demo", "--yes", "--journal", str(tmp_path / "a journal.db"))
    assert (result.code, result.err) == (0, "")
    printed = re.search(r"See the run in the browser:\n  .*agentloop (trace view .+)\n", result.out)
    assert printed is not None
    shown = command_line(*shlex.split(printed[1]), "--json")
    assert shown.code == 0
    execution = json.loads(shown.out)["executions"][0]
    assert (execution["status"], len(execution["steps"]), len(execution["calls"])) == ("completed", 5, 6)
    # The approved call was suspended and resumed, in one execution.
    assert [mark["kind"] for mark in execution["marks"]].count("suspended") == 1


def test_a_demo_whose_call_waits_is_continued_from_its_journal(
    at_terminal: TerminalCommandLine, command_line: CommandLine, tmp_path: Path
) -> None:
    """A demo without an answer is suspended in the journal; `runs show` names the call, and `run --resume` ends the execution."""
    journal = str(tmp_path / "runs.db")
    result = at_terminal("demo", "--journal", journal, typed="")
    assert result.code == 3
    printed = re.search(r"trace view (\w+)", result.out)
    assert printed is not None
    assert 'restart_service(name="payments") waits' in command_line("runs", "show", printed[1], "--db", journal).out
    ended = command_line("run", "-m", "demo", "--journal", journal, "--resume", printed[1], "--approve", "all")
    assert ended.code == 0
    assert ended.out.startswith(ANSWER)


def test_a_journal_that_cannot_be_written_is_reported_before_the_run(command_line: CommandLine, tmp_path: Path) -> None:
    """A file that is no journal, a missing folder and an empty name end the demo before anything is shown."""
    other = tmp_path / "notes.txt"
    other.write_text("not a journal\n" * 100, encoding="utf-8")
    for name, code in ((str(other), 1), (str(tmp_path / "missing" / "runs.db"), 2), ("", 2)):
        result = command_line("demo", "--yes", "--journal", name)
        assert (result.code, result.out) == (code, "")
        assert result.err


# --- agentloop run --model demo ---------------------------------------------------------------------------------------


def test_the_scripted_model_answers_a_run(command_line: CommandLine) -> None:
    """Without a question, tools and a key, `run --model demo` answers the demo's question and names the model scripted."""
    result = command_line("run", "--model", "demo")
    assert result.code == 0
    assert result.out.startswith(ANSWER)
    assert result.out.count("The payments service") == 1
    assert "The model is scripted" in result.err


def test_without_stream_the_answer_is_on_stdout_only(command_line: CommandLine) -> None:
    """The progress does not contain the text of the answer."""
    assert "The payments service was down" not in command_line("run", "--model", "demo").err


@pytest.mark.parametrize("mode", ["auto", "native"])
def test_a_stream_shows_the_text_and_then_the_answer(command_line: CommandLine, mode: str) -> None:
    """With --stream, stderr shows the answer before the line that ends it; stdout contains it once."""
    result = command_line("run", "--model", "demo", "--mode", mode, "--stream")
    shown = result.err.index("  ·  The payments service was down")
    assert "No problems were found" in result.err[shown : result.err.index("  ·  model", shown)]
    assert result.out.count("The payments service was down") == 1


@pytest.mark.parametrize(("approve", "outcome"), [("all", "I restarted payments"), ("none", "I could not restart it")])
def test_calls_of_the_demo_can_wait_for_approval(command_line: CommandLine, approve: str, outcome: str) -> None:
    """--approve applies to the demo's tools as to any others."""
    result = command_line("run", "--model", "demo", "--approve", approve)
    assert result.code == 0
    assert outcome in result.out


def test_quiet_and_json_show_nothing_else(command_line: CommandLine) -> None:
    """--quiet leaves stderr empty, --json writes the state."""
    result = command_line("run", "--model", "demo", "--quiet", "--json")
    assert (result.code, result.err) == (0, "")
    assert from_json(result.out, AgentState).step_count == 5


def test_an_unknown_question_is_answered_honestly(command_line: CommandLine, tmp_path: Path) -> None:
    """The scripted model does not pretend to know other questions or other tools."""
    path = tmp_path / "sums.py"
    path.write_text(ADD, encoding="utf-8")
    for arguments in (("What is 2+2?",), ("--tools", str(path))):
        result = command_line("run", *arguments, "--model", "demo", "--quiet")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("I am a scripted model")


def test_a_token_limit_ends_with_an_answer_from_the_results_so_far(command_line: CommandLine) -> None:
    """--max-tokens stops the run with 3; the last answer, without tools, is on stdout."""
    result = command_line("run", "--model", "demo", "--max-tokens", "2500", "--quiet")
    assert result.code == 3
    assert "the limit of 2,500 tokens is nearly reached" in result.err
    assert result.out.startswith("The payments service was down")


def test_a_cost_limit_counts_by_price(command_line: CommandLine) -> None:
    """--max-cost stops the run with 3 when its money is used up."""
    result = command_line("run", "--model", "demo", "--max-cost", "0.02", "--quiet")
    assert result.code == 3
    assert "the limit of 0.02 dollars is nearly reached" in result.err


@pytest.mark.parametrize("options", [["--driver", "react"], ["--mode", "structured"], ["--mode", "parsed"]])
def test_the_scripted_model_calls_tools_natively_only(command_line: CommandLine, options: list[str]) -> None:
    """A driver or a mode that the scripted model does not know is a usage error."""
    result = command_line("run", "--model", "demo", *options)
    assert (result.code, result.out) == (2, "")
    assert "the model demo calls tools natively" in result.err


# --- the scripted model behind Chat Completions -----------------------------------------------------------------------


def test_a_streamed_response_equals_the_whole_one() -> None:
    """The chunks of a stream add up to the same message and the same tokens."""
    tools = [{"type": "function", "function": {"name": tool.name}} for tool in demo.TOOLS]
    request = {"messages": [{"role": "user", "content": demo.QUESTION}], "tools": tools}
    chat = wire_format("openai-chat")
    path = "/v1/chat/completions"
    whole = chat.decode_response(*demo.respond(path, json.dumps(request).encode()))
    status, headers, body = demo.respond(path, json.dumps({**request, "stream": True}).encode())
    decoder = chat.stream_decoder(headers)
    deltas = decoder.feed(body)
    streamed = decoder.close()
    assert (status, streamed.parts, streamed.finish_reason) == (200, whole.parts, whole.finish_reason)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert len(deltas) > len(whole.parts)


def test_the_scripted_model_has_one_address() -> None:
    """A request to another path gets 404."""
    status, _, _ = demo.respond("/v2/anything", b"{}")
    assert status == 404


def test_an_unknown_service_is_an_error_that_lists_the_services() -> None:
    """The error tells a model what to correct, and nothing is restarted."""
    cluster = DemoCluster()
    with pytest.raises(LookupError, match="there is no service 'database'; the services are web, payments, orders-db"):
        cluster.restart("database")
    assert cluster.reports == DemoCluster().reports
