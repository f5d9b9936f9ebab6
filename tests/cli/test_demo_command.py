"""`agentloop demo`, and the scripted model behind it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentloop.cli.demo import scripted_model, story
from agentloop.cli.demo.shop import Shop
from agentloop.values.event import Event
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.tool_execution import ToolStatus

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.founded(tmp_path / "shop.db")


def _ignore(_: Event) -> None:
    """Take an event."""


def _asked(*turns: tuple[list[tuple[str, dict[str, Any]]], list[str]]) -> bytes:
    """Return the body of a request whose conversation holds these turns: calls and their results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": story.QUESTION}]
    for calls, results in turns:
        spelled = [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(calls)
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": spelled})
        messages += [{"role": "tool", "tool_call_id": f"c{i}", "content": text} for i, text in enumerate(results)]
    return json.dumps({"model": "m", "messages": messages}).encode()


def test_the_demo_answers(command_line: CommandLine) -> None:
    """The demo ends with 0, says that its model is scripted, and shows the answer and the sum."""
    ended = command_line("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "The model is scripted" in ended.out
    assert "Dear Ada Lovelace," in ended.out
    assert "completed in 5 steps · 7 tool calls (5 succeeded, 1 failed, 1 blocked)" in ended.out


def test_the_demo_shows_what_happens(command_line: CommandLine) -> None:
    """The lines show calls side by side, a failure, the recovery from it, and a call that is blocked."""
    shown = command_line("demo").out
    lines = [line.strip() for line in shown.splitlines()]
    begun = lines.index("step 1") + 3
    assert [line[0] for line in lines[begun : begun + 3]] == ["→", "→", "→"]
    assert re.search(r"✗ +1\.3 track_order .*LookupError: there is no order 1051", shown)
    assert re.search(r"✓ +2\.1 track_order .*\"number\":1015", shown)
    assert re.search(r"⛔ 3\.1 refund\(order_number=1009, cents=8900\) +blocked: refunds above 50\.00", shown)


def test_the_demo_runs_as_a_program_and_writes_plain_text() -> None:
    """In a process of its own and piped, the demo ends with 0 and writes no control codes."""
    done = subprocess.run(
        [sys.executable, "-m", "agentloop.cli.main", "demo"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.stderr == b""
    assert b"Dear Ada Lovelace" in done.stdout
    assert b"\x1b" not in done.stdout


def test_the_demo_can_be_read_in_any_encoding() -> None:
    """Where the output cannot carry signs outside of ASCII, the demo still ends with 0 and shows every line."""
    done = subprocess.run(
        [sys.executable, "-m", "agentloop.cli.main", "demo"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"-> 1.1 find_customer" in done.stdout
    assert b"#  3.1 refund" in done.stdout


async def test_the_agent_does_what_it_says(shop: Shop) -> None:
    """The database holds the ticket of the answer, and no refund: the blocked call did not run."""
    state = await story.told(shop, _ignore)
    assert state.status is ExecutionStatus.COMPLETED
    assert "ticket 1 is open" in state.final_text
    assert (shop.refund_count(), shop.ticket_count()) == (0, 1)


async def test_the_story_has_every_outcome_it_is_there_for(shop: Shop) -> None:
    """Calls run side by side in the first step, one fails, and the refund is blocked."""
    state = await story.told(shop, _ignore)
    found = [[execution.status for execution in step.executions] for step in state.steps]
    done = ToolStatus.SUCCEEDED
    assert found == [[done, done, ToolStatus.FAILED], [done, done], [ToolStatus.BLOCKED], [done], []]


def test_the_scripted_model_keeps_nothing_between_requests() -> None:
    """The same request gets the same answer, whatever was asked in between."""
    first = _asked()
    second = _asked(
        (
            [("find_customer", {}), ("track_order", {}), ("track_order", {})],
            [
                '{"id":9,"name":"A","email":"e"}',
                "{}",
                "LookupError: there is no order 1; the number most like it is 77",
            ],
        )
    )
    before = scripted_model.answer(scripted_model.PATH, first)
    scripted_model.answer(scripted_model.PATH, second)
    assert scripted_model.answer(scripted_model.PATH, first) == before


def test_the_scripted_model_works_with_the_results_it_sees() -> None:
    """The corrected number and the customer's id come from the results in the request."""
    seen = _asked(
        (
            [("find_customer", {}), ("track_order", {}), ("track_order", {})],
            [
                '{"id":9,"name":"A","email":"e"}',
                "{}",
                "LookupError: there is no order 1; the number most like it is 77",
            ],
        )
    )
    _, _, body = scripted_model.answer(scripted_model.PATH, seen)
    calls = json.loads(body)["choices"][0]["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"number": 77}, {"customer_id": 9}]


def test_the_scripted_model_knows_one_address() -> None:
    """A request to another path is answered with 404."""
    status, _, _ = scripted_model.answer("/v2/anything", _asked())
    assert status == 404


def test_the_shop_suggests_a_number(shop: Shop) -> None:
    """A wrong order number is answered with the number most like it."""
    with pytest.raises(LookupError, match="there is no order 1051; the number most like it is 1015"):
        shop.order(1051)


def test_the_shop_takes_names_as_data(shop: Shop) -> None:
    """A name that looks like SQL finds nobody."""
    with pytest.raises(LookupError, match="there is no customer named"):
        shop.customer("' OR 1=1 --")
