"""The example of the shop: the command, its two agents, the scripted person and the database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import shop_demo
from shop.database import Shop
from shop.scripts import COMPLAINT, STATUS_LETTERS
from shop_demo import APPROVED_VOUCHER_CENTS, LETTERS_MAX_STEPS, Person, complaint_loop, letters_loop

from agentloop import AgentState, StopReason
from agentloop.events import ToolCallCached, ToolCallRetried
from agentloop.service.cli.agent_options import MODES, DriverOptions
from agentloop.service.cli.console import create_console
from agentloop.service.cli.execution import run_to_end
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolStatus
from tests.service.cli import conftest as cli

neutral_environment = cli.neutral_environment
DRIVERS_AND_MODES = [(driver, mode) for driver, modes in MODES.items() for mode in modes if mode != "program"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.create(tmp_path / "shop.db")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> cli.CommandLine:
    """Return the command of the example."""
    return cli.CommandLine(capsys, monkeypatch, shop_demo.main)


@pytest.fixture
def command_at_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> cli.TerminalCommandLine:
    """Return the command of the example, with a person at a terminal."""
    return cli.TerminalCommandLine(capsys, monkeypatch, shop_demo.main)


def test_the_example_answers(command: cli.CommandLine) -> None:
    """The example exits with 0, states that its model is scripted, and prints the answers and the summaries."""
    result = command()
    assert (result.code, result.err) == (0, "")
    assert "The model is scripted" in result.out
    assert "Dear Ada Lovelace," in result.out
    assert "completed in 6 steps · 9 tool calls (7 succeeded, 1 failed, 1 blocked)" in result.out
    assert "in the database: 0 refunds, 1 ticket, 1 voucher over 15.00" in result.out
    assert "I did not get to Grace Hopper and Ada Lovelace." in result.out
    assert "stopped in 3 steps" in result.out


def test_the_progress_shows_what_happens(command: cli.CommandLine) -> None:
    """The lines show parallel calls, a failure, the recovery from it, and a blocked call."""
    shown = command().out
    lines = [line.strip() for line in shown.splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("→"))
    assert [line[0] for line in lines[first : first + 3]] == ["→", "→", "→"]
    assert re.search(r"✗ +1\.3 track_order .*LookupError: there is no order 1051", shown)
    assert re.search(r"✓ +2\.1 track_order .*\"number\":1015", shown)
    assert re.search(r"⛔ 3\.1 refund\(order_number=1009, cents=8900\) +blocked: refunds above 50\.00", shown)


def test_the_progress_shows_retry_approval_and_cache(command: cli.CommandLine) -> None:
    """One call is retried, one is approved and one is edited before they run, and one is served from the cache."""
    shown = command().out
    assert re.search(r"↻ +2\.1 track_order +attempt 1 failed, .*\d+ ms +ConnectionError", shown)
    assert re.search(r"open_ticket\(.*waits: [\s\S]*scripted\): yes\n", shown)
    assert re.search(r"give_voucher\(customer_id=1, cents=2500\) +waits: [\s\S]*scripted\): yes, but cents=1500", shown)
    assert re.search(r"→ +4\.2 give_voucher\(customer_id=1, cents=1500\)", shown)
    assert re.search(r"5\.1 track_order +from the cache", shown)


def test_each_caption_is_shown_once(command: cli.CommandLine) -> None:
    """A caption explains each feature where it first appears."""
    captions = re.findall(r"^ +\((.+)\)$", command().out, re.MULTILINE)
    assert len(captions) == len(set(captions)) == 7


@pytest.mark.parametrize(("driver", "mode"), DRIVERS_AND_MODES)
def test_the_example_runs_in_every_driver_and_mode(command: cli.CommandLine, driver: str, mode: str) -> None:
    """Whatever the driver and the mode, the example exits with 0, the same answers and the same database."""
    result = command("--driver", driver, "--mode", mode)
    assert result.code == 0
    assert "whom I have asked: ticket 1 is open. For the" in result.out
    assert "7 succeeded, 1 failed, 1 blocked" in result.out
    assert "in the database: 0 refunds, 1 ticket, 1 voucher over 15.00" in result.out
    assert "I did not get to Grace Hopper and Ada Lovelace." in result.out


def test_text_is_shown_as_it_arrives(command: cli.CommandLine) -> None:
    """With --stream, the text of the model precedes the line of its response."""
    shown = command("--stream").out
    assert re.search(r"·  I look up the customer and both orders\.\n  ·  model", shown)


def test_a_person_can_be_asked(command_at_terminal: cli.TerminalCommandLine) -> None:
    """With --ask, the person at the terminal decides: the ticket is denied, the voucher is approved unchanged."""
    result = command_at_terminal("--ask", typed="n\ny\n")
    assert result.code == 0
    assert "Run it?" in result.err
    assert "in the database: 0 refunds, 0 tickets, 1 voucher over 25.00" in result.out
    assert "whom I could not ask" in result.out


def test_a_person_who_does_not_answer_leaves_the_calls_waiting(command_at_terminal: cli.TerminalCommandLine) -> None:
    """At the end of the input the example continues with its second question, and exits with 3."""
    result = command_at_terminal("--ask", typed="")
    assert result.code == 3
    assert "2 calls wait" in result.out
    assert "in the database: 0 refunds, 0 tickets, 0 vouchers" in result.out


def test_asking_needs_a_terminal(command: cli.CommandLine) -> None:
    """--ask without a terminal is a usage error."""
    result = command("--ask")
    assert (result.code, result.out) == (2, "")
    assert "--ask needs a terminal" in result.err


def test_a_mode_of_another_driver_is_refused(command: cli.CommandLine) -> None:
    """The example has the same drivers and modes as `agentloop run`, but its scripted model writes no programs."""
    result = command("--driver", "react", "--mode", "native")
    assert (result.code, result.out) == (2, "")
    assert "only auto, json, text" in result.err
    result = command("--mode", "program")
    assert (result.code, result.out) == (2, "")
    assert "writes no programs" in result.err


@pytest.mark.parametrize(
    ("encoding", "calls"),
    [("utf-8", [b"Dear Ada Lovelace"]), ("ascii", [b"-> 1.1 find_customer", b"#  3.1 refund"])],
)
def test_the_example_runs_as_a_script_and_writes_plain_text(encoding: str, calls: list[bytes]) -> None:
    """In a process of its own and piped, the script exits with 0 and writes no control codes, in any encoding."""
    done = subprocess.run(
        [sys.executable, shop_demo.__file__],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.stderr == b""
    assert [call for call in calls if call not in done.stdout] == []
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize(("driver", "mode"), DRIVERS_AND_MODES)
@pytest.mark.parametrize("streaming", [False, True])
def test_the_agent_does_what_it_says(shop: Shop, driver: str, mode: str, *, streaming: bool) -> None:
    """The database contains the ticket and the voucher of the answer, and no refund: the blocked call did not run."""
    state = _answer_complaint(shop, DriverOptions(driver, mode, streaming))
    assert state.status is ExecutionStatus.COMPLETED
    assert "ticket 1 is open" in (state.final_text or "")
    assert "voucher 1 over 15.00 is yours" in (state.final_text or "")
    assert shop.refunds() == []
    assert shop.vouchers() == [(1, APPROVED_VOUCHER_CENTS)]
    assert shop.tickets() == [(1, "Refund 89.00 for order 1009: the desk lamp arrived broken")]


@pytest.mark.parametrize(("driver", "mode"), DRIVERS_AND_MODES)
def test_the_complaint_has_every_outcome(shop: Shop, driver: str, mode: str) -> None:
    """Calls run in parallel in the first step, one fails, the refund is blocked, two have waited."""
    state = _answer_complaint(shop, DriverOptions(driver, mode))
    statuses = [[execution.status for execution in step.executions] for step in state.steps]
    done = ToolStatus.SUCCEEDED
    assert statuses == [[done, done, ToolStatus.FAILED], [done, done], [ToolStatus.BLOCKED], [done, done], [done], []]


def test_a_lookup_is_retried_and_then_cached(shop: Shop) -> None:
    """The failed attempt is repeated once; the second look at an order does not run the tool."""
    loop = complaint_loop(DriverOptions())
    retried, cached = list[ToolCallRetried](), list[ToolCallCached]()
    loop.on(ToolCallRetried, retried.append)
    loop.on(ToolCallCached, cached.append)
    run_to_end(loop, COMPLAINT.question, Person(create_console()), shop)
    assert [(event.name, event.attempt, event.error.type) for event in retried] == [
        ("track_order", 1, "ConnectionError")
    ]
    assert [event.name for event in cached] == ["track_order"]


@pytest.mark.parametrize(("driver", "mode"), DRIVERS_AND_MODES)
async def test_the_budget_ends_with_an_answer(shop: Shop, driver: str, mode: str) -> None:
    """The second question stops at its last step, and its answer names what is missing."""
    state = await letters_loop(DriverOptions(driver, mode)).execute(STATUS_LETTERS.question, dependencies=shop)
    assert state.status is ExecutionStatus.STOPPED
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.STEP_LIMIT
    assert state.step_count == LETTERS_MAX_STEPS
    assert (
        state.final_text
        == "Charles Babbage: set of gears (delivered).\nI did not get to Grace Hopper and Ada Lovelace."
    )


def test_the_first_tracking_request_of_an_order_fails(shop: Shop) -> None:
    """The carrier has to be asked twice about one order."""
    with pytest.raises(ConnectionError):
        shop.track(1015)
    assert shop.track(1015).item == "box of punched cards"


def test_the_shop_suggests_a_number(shop: Shop) -> None:
    """The error for an unknown order number names the closest number."""
    with pytest.raises(LookupError, match="there is no order 1051; the closest number is 1015"):
        shop.order(1051)


def test_the_shop_treats_names_as_data(shop: Shop) -> None:
    """A name that looks like SQL matches no customer."""
    with pytest.raises(LookupError, match="there is no customer named"):
        shop.customer("' OR 1=1 --")


def _answer_complaint(shop: Shop, driver: DriverOptions) -> AgentState:
    return run_to_end(complaint_loop(driver), COMPLAINT.question, Person(create_console()), shop)
