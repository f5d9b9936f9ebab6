"""`agentloop demo`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentState, StopReason
from agentloop.cli.console import console
from agentloop.cli.demo import story
from agentloop.cli.demo.person import VOUCHER_CENTS, Person
from agentloop.cli.demo.shop import Shop
from agentloop.cli.execution import concluded
from agentloop.cli.options import MODES, Manner
from agentloop.events import ToolCallCached, ToolCallRetried
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import CommandLine, Ended

MANNERS = [(driver, mode) for driver, modes in MODES.items() for mode in modes]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.founded(tmp_path / "shop.db")


def test_the_demo_answers(command_line: CommandLine) -> None:
    """The demo ends with 0, says that its model is scripted, and shows the answers and the sums."""
    ended = command_line("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "The model is scripted" in ended.out
    assert "Dear Ada Lovelace," in ended.out
    assert "completed in 6 steps · 9 tool calls (7 succeeded, 1 failed, 1 blocked)" in ended.out
    assert "in the database: 0 refunds, 1 ticket, 1 voucher over 15.00" in ended.out
    assert "I have not come to Grace Hopper and Ada Lovelace." in ended.out
    assert "stopped in 3 steps" in ended.out


def test_the_demo_shows_what_happens(command_line: CommandLine) -> None:
    """The lines show calls side by side, a failure, the recovery from it, and a call that is blocked."""
    shown = command_line("demo").out
    lines = [line.strip() for line in shown.splitlines()]
    begun = next(number for number, line in enumerate(lines) if line.startswith("→"))
    assert [line[0] for line in lines[begun : begun + 3]] == ["→", "→", "→"]
    assert re.search(r"✗ +1\.3 track_order .*LookupError: there is no order 1051", shown)
    assert re.search(r"✓ +2\.1 track_order .*\"number\":1015", shown)
    assert re.search(r"⛔ 3\.1 refund\(order_number=1009, cents=8900\) +blocked: refunds above 50\.00", shown)


def test_the_demo_shows_retry_approval_and_cache(command_line: CommandLine) -> None:
    """A call is tried again, one is approved and one is edited before they run, and one is served from the cache."""
    shown = command_line("demo").out
    assert re.search(r"↻ +2\.1 track_order +attempt 1 failed, again in \d+ ms +ConnectionError", shown)
    assert re.search(r"open_ticket\(.*waits: [\s\S]*scripted\): yes\n", shown)
    assert re.search(r"give_voucher\(customer_id=1, cents=2500\) +waits: [\s\S]*scripted\): yes, but cents=1500", shown)
    assert re.search(r"→ +4\.2 give_voucher\(customer_id=1, cents=1500\)", shown)
    assert re.search(r"5\.1 track_order +from the cache", shown)


def test_each_caption_is_shown_once(command_line: CommandLine) -> None:
    """What is being shown is explained where it first happens, and not again."""
    captions = re.findall(r"^ +\((.+)\)$", command_line("demo").out, re.MULTILINE)
    assert len(captions) == len(set(captions)) == 7


@pytest.mark.parametrize(("driver", "mode"), MANNERS)
def test_the_demo_runs_in_every_driver_and_mode(command_line: CommandLine, driver: str, mode: str) -> None:
    """Whatever the driver and the mode, the demo ends with 0, the same answers and the same database."""
    ended = command_line("demo", "--driver", driver, "--mode", mode)
    assert ended.code == 0
    assert "whom I have asked: ticket 1 is open. For the" in ended.out
    assert "7 succeeded, 1 failed, 1 blocked" in ended.out
    assert "in the database: 0 refunds, 1 ticket, 1 voucher over 15.00" in ended.out
    assert "I have not come to Grace Hopper and Ada Lovelace." in ended.out


def test_the_demo_shows_text_as_it_comes(command_line: CommandLine) -> None:
    """With --stream, what the model writes stands before the line of its answer."""
    shown = command_line("demo", "--stream").out
    assert re.search(r"·  I look up the customer and both orders\.\n  ·  model", shown)


def test_a_person_can_be_asked(at_terminal: Callable[..., Ended]) -> None:
    """With --ask, the person at the terminal decides: the ticket is denied, the voucher is let through as it is."""
    ended = at_terminal("demo", "--ask", typed="n\ny\n")
    assert ended.code == 0
    assert "Run it?" in ended.err
    assert "in the database: 0 refunds, 0 tickets, 1 voucher over 25.00" in ended.out
    assert "whom I could not ask" in ended.out


def test_a_person_who_does_not_answer_leaves_the_calls_waiting(at_terminal: Callable[..., Ended]) -> None:
    """At the end of the input the demo goes on with its second question, and ends with 3."""
    ended = at_terminal("demo", "--ask", typed="")
    assert ended.code == 3
    assert "2 calls wait" in ended.out
    assert "in the database: 0 refunds, 0 tickets, 0 vouchers" in ended.out


def test_there_is_nobody_to_ask(command_line: CommandLine) -> None:
    """--ask without a terminal is bad usage."""
    ended = command_line("demo", "--ask")
    assert (ended.code, ended.out) == (2, "")
    assert "--ask needs a terminal" in ended.err


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


@pytest.mark.parametrize(("driver", "mode"), MANNERS)
@pytest.mark.parametrize("streaming", [False, True])
def test_the_agent_does_what_it_says(shop: Shop, driver: str, mode: str, *, streaming: bool) -> None:
    """The database holds the ticket and the voucher of the answer, and no refund: the blocked call did not run."""
    state = _complaint(shop, Manner(driver, mode, streaming))
    assert state.status is ExecutionStatus.COMPLETED
    assert "ticket 1 is open" in state.final_text
    assert "voucher 1 over 15.00 is yours" in state.final_text
    assert shop.refunds() == []
    assert shop.vouchers() == [(1, VOUCHER_CENTS)]
    assert shop.tickets() == [(1, "Refund 89.00 for order 1009: the desk lamp arrived broken")]


@pytest.mark.parametrize(("driver", "mode"), MANNERS)
def test_the_story_has_every_outcome_it_is_there_for(shop: Shop, driver: str, mode: str) -> None:
    """Calls run side by side in the first step, one fails, the refund is blocked, two have waited."""
    state = _complaint(shop, Manner(driver, mode))
    found = [[execution.status for execution in step.executions] for step in state.steps]
    done = ToolStatus.SUCCEEDED
    assert found == [[done, done, ToolStatus.FAILED], [done, done], [ToolStatus.BLOCKED], [done, done], [done], []]


def test_the_carrier_is_asked_again_and_then_not_at_all(shop: Shop) -> None:
    """The failed attempt is repeated once; the second look at an order does not run."""
    loop = story.complaint_loop(Manner())
    retried, cached = list[ToolCallRetried](), list[ToolCallCached]()
    loop.on(ToolCallRetried, retried.append)
    loop.on(ToolCallCached, cached.append)
    concluded(loop, story.COMPLAINT, Person(console()), shop)
    assert [(event.name, event.attempt, event.error.type) for event in retried] == [
        ("track_order", 1, "ConnectionError")
    ]
    assert [event.name for event in cached] == ["track_order"]


@pytest.mark.parametrize(("driver", "mode"), MANNERS)
async def test_the_budget_ends_with_an_answer(shop: Shop, driver: str, mode: str) -> None:
    """The second question stops at its last step, with what was found and what was not."""
    state = await story.rounds_loop(Manner(driver, mode)).execute(story.ROUNDS, dependencies=shop)
    assert state.status is ExecutionStatus.STOPPED
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.STEP_LIMIT
    assert state.step_count == story.STEPS_OF_THE_ROUNDS
    assert (
        state.final_text
        == "Charles Babbage: set of gears (delivered).\nI have not come to Grace Hopper and Ada Lovelace."
    )


def test_the_carrier_does_not_answer_at_first(shop: Shop) -> None:
    """About one order the carrier has to be asked twice."""
    with pytest.raises(ConnectionError):
        shop.tracked(1015)
    assert shop.tracked(1015).item == "box of punched cards"


def test_the_shop_suggests_a_number(shop: Shop) -> None:
    """A wrong order number is answered with the number most like it."""
    with pytest.raises(LookupError, match="there is no order 1051; the number most like it is 1015"):
        shop.order(1051)


def test_the_shop_takes_names_as_data(shop: Shop) -> None:
    """A name that looks like SQL finds nobody."""
    with pytest.raises(LookupError, match="there is no customer named"):
        shop.customer("' OR 1=1 --")


def _complaint(shop: Shop, manner: Manner) -> AgentState:
    return concluded(story.complaint_loop(manner), story.COMPLAINT, Person(console()), shop)
