"""`agentloop run --model demo`, and the options that say in which manner a model is asked and what it may use up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentState, from_json
from agentloop.cli.options import MODES

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine, ModelServer

MANNERS = [(driver, mode) for driver, modes in MODES.items() for mode in modes]
ADD = '''
from agentloop import tool

@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
'''


@pytest.mark.parametrize(("driver", "mode"), MANNERS)
@pytest.mark.parametrize("more", [(), ("--stream",)])
def test_the_scripted_model_does_its_job(
    command_line: CommandLine, driver: str, mode: str, more: tuple[str, ...]
) -> None:
    """Without a question, tools and a key, the whole job is done in every driver and mode, and the model is called scripted."""
    ended = command_line("run", "--model", "demo", "--driver", driver, "--mode", mode, *more)
    assert ended.code == 0
    assert ended.out.startswith("Dear Ada Lovelace,\n")
    assert ended.out.count("Dear Ada Lovelace,") == 1
    assert "The model is scripted" in ended.err
    assert "in the database: 0 refunds, 1 ticket, 1 voucher over 25.00" in ended.err


@pytest.mark.parametrize(("driver", "mode"), MANNERS)
def test_a_stream_shows_the_text_and_then_the_answer(command_line: CommandLine, driver: str, mode: str) -> None:
    """With --stream, the answer's text is shown on stderr before the line that ends it; stdout holds it once."""
    ended = command_line("run", "--model", "demo", "--driver", driver, "--mode", mode, "--stream")
    shown = ended.err.index("  ·  Dear Ada Lovelace,")
    assert "You will hear from us" in ended.err[shown : ended.err.index("  ·  model", shown)]


def test_without_stream_the_answer_is_on_stdout_only(command_line: CommandLine) -> None:
    """Progress does not hold the text of the answer."""
    assert "Dear Ada" not in command_line("run", "--model", "demo").err


@pytest.mark.parametrize(("approve", "account"), [("all", "1 ticket, 1 voucher"), ("none", "0 tickets, 0 vouchers")])
def test_the_demo_can_be_approved(command_line: CommandLine, approve: str, account: str) -> None:
    """--approve holds back the demo's tools like any other's."""
    ended = command_line("run", "--model", "demo", "--approve", approve)
    assert ended.code == 0
    assert f"in the database: 0 refunds, {account}" in ended.err


def test_quiet_and_json_show_nothing_else(command_line: CommandLine) -> None:
    """--quiet leaves stderr empty, --json writes the state."""
    ended = command_line("run", "--model", "demo", "--quiet", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert from_json(ended.out, AgentState).step_count == 6


def test_another_question_is_answered_honestly(command_line: CommandLine, tmp_path: Path) -> None:
    """The scripted model does not pretend to answer other questions, nor to know other tools."""
    path = tmp_path / "sums.py"
    path.write_text(ADD, encoding="utf-8")
    for arguments in (("What is 2+2?",), ("--tools", str(path))):
        ended = command_line("run", *arguments, "--model", "demo", "--quiet")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith("I am a scripted model")


def test_a_token_limit_ends_with_an_answer_of_what_is_there(command_line: CommandLine) -> None:
    """--max-tokens stops the run with 3; the answer that it was asked for at last is on stdout."""
    ended = command_line("run", "--model", "demo", "--max-tokens", "4000", "--quiet")
    assert ended.code == 3
    assert "the limit of 4000 tokens is nearly reached" in ended.err
    assert ended.out.startswith("Dear Ada Lovelace,")


def test_a_cost_limit_counts_by_price(command_line: CommandLine) -> None:
    """--max-cost stops the run with 3 when its money is used up."""
    ended = command_line("run", "--model", "demo", "--max-cost", "0.02", "--quiet")
    assert ended.code == 3
    assert "the limit of 0.02 dollars is nearly reached" in ended.err


def test_the_mode_is_that_of_the_requests(command_line: CommandLine, server: ModelServer) -> None:
    """A real model is asked as --mode and --stream say."""
    server.says(json.dumps({"next": [{"answer": "4"}]}))
    base = ("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url)
    assert command_line(*base, "--mode", "parsed").out == '{"next": [{"answer": "4"}]}\n'
    command_line(*base, "--stream")
    assert [request.get("stream", False) for request in server.requests] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "demo", "--mode", "json"], "--driver tools has no mode 'json', only auto, native"),
        (["--model", "demo", "--mode", "json"], "'json' is a mode of --driver react"),
        (["--model", "demo", "--driver", "react", "--mode", "parsed"], "'parsed' is a mode of --driver tools"),
        (["--model", "demo", "--mode", "telepathy"], "'telepathy' is not one of 'auto'"),
        (["--model", "demo", "--driver", "car"], "'car' is not one of 'tools', 'react'"),
        (["--model", "demo", "--stream", "--quiet"], "leave one of them out"),
        (["--model", "demo", "--base-url", "http://localhost"], "has no address"),
        (["--model", "demo", "--max-tokens", "0"], "Invalid value for '--max-tokens'"),
        (["--model", "demo", "--max-cost", "0"], "Invalid value for '--max-cost'"),
        (["", "--model", "demo"], "the question is empty"),
        (["--model", "demo", "--tools", "absent.py"], "there is no file"),
    ],
)
def test_wrong_combinations_end_with_2(command_line: CommandLine, arguments: list[str], told: str) -> None:
    """What cannot be combined is told with what to do instead, and exit code 2."""
    ended = command_line("run", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


def test_the_demo_refuses_the_same_combinations(command_line: CommandLine) -> None:
    """`demo` knows the same drivers and modes."""
    ended = command_line("demo", "--driver", "react", "--mode", "native")
    assert (ended.code, ended.out) == (2, "")
    assert "only auto, json, text" in ended.err
