"""`agentloop demo --durable`: a killed worker, another one, and an account of every effect."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop.cli.console import console
from agentloop.cli.demo import durable_story
from agentloop.cli.demo.durable_worker import ledger_of, says
from agentloop.cli.demo.office import Office
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine


def test_every_effect_happens_once_and_is_told(command_line: CommandLine) -> None:
    """A process is killed in the middle of three effects, another goes on, and the table says what became of each."""
    ended = command_line("demo", "--durable")
    assert (ended.code, ended.err) == (0, "")
    before, _, after = ended.out.partition("Another worker goes on")
    told = r"(reserve_budget|set_status|pay|send_letter)\(.*?\)  +(\w+)  +(\d)x  +(\d)x  +(.*?) *$"
    assert re.findall(told, before, re.MULTILINE) == [
        ("reserve_budget", "effect", "1", "1", "succeeded: reserved"),
        ("set_status", "idempotent", "1", "1", "no outcome"),
        ("pay", "effect", "1", "1", "no outcome"),
        ("send_letter", "effect", "1", "1", "no outcome"),
    ]
    assert re.findall(told, after, re.MULTILINE) == [
        ("reserve_budget", "effect", "1", "1", "succeeded: reserved"),
        ("set_status", "idempotent", "2", "1", "succeeded: paid"),
        ("pay", "effect", "1", "1", "succeeded: paid"),
        ("send_letter", "effect", "1", "1", "in doubt"),
    ]
    assert re.search(r"Process \d+ got SIGKILL", before)
    assert "the execution is interrupted" in before
    assert "4 effects: each happened once, and each has an outcome." in after
    assert "The records of the journal are as they were written." in after


def test_the_ledger_is_of_two_processes(tmp_path: Path) -> None:
    """What was done before the kill was done by the first worker, and nothing of it again by the second."""
    assert durable_story.play(console(), tmp_path)
    office = Office(ledger_of(tmp_path))
    done = [one for name in ("reserve_budget", "set_status", "pay", "send_letter") for one in office.done(name)]
    assert len(done) == 4
    assert len({one.process for one in done}) == 1
    assert len({one.key for one in done}) == 4


def test_an_effect_that_happened_twice_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is made of the ledger: an effect that stands there twice is not called once."""
    done = Office.done
    monkeypatch.setattr(
        Office, "done", lambda office, tool, key="": done(office, tool, key) * (2 if tool == "pay" else 1)
    )
    assert not durable_story.play(console(), tmp_path)


def test_a_worker_that_fails_is_told(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it said last is told, and the command ends with 1."""
    broken = tmp_path / "agentloop"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit('no worker today')")
    monkeypatch.setattr(durable_story, "_environment", lambda: {**os.environ, "PYTHONPATH": str(tmp_path)})
    ended = command_line("demo", "--durable")
    assert (ended.code, "the worker ended with 1: no worker today" in ended.err) == (1, True), ended.err


@pytest.mark.parametrize("option", [["--ask"], ["--driver", "react"], ["--stream"]])
def test_other_options_do_not_belong_to_it(command_line: CommandLine, option: list[str]) -> None:
    """They are refused."""
    ended = command_line("demo", "--durable", *option)
    assert ended.code == 2


def test_the_model_answers_by_what_it_sees() -> None:
    """Without a letter in doubt, it does not look for one."""
    first = says(InferenceRequest([Message.user("pay")]))
    assert [call.name for call in first.tool_calls] == ["read_invoice"]
