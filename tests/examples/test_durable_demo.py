"""The example of a durable run: a killed worker, another one that recovers its execution, and an account of every effect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import durable_demo
import pytest
from durable.office import Office
from durable.worker import ledger_path, respond

from agentloop.service.cli.console import create_console
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from tests.limits import LONGEST
from tests.service.cli import conftest as cli

neutral_environment = cli.neutral_environment
EXAMPLES = Path(durable_demo.__file__).parent


def test_every_effect_happens_once_and_has_an_outcome() -> None:
    """A process is killed in the middle of three effects, another one recovers them, and the table shows each outcome."""
    command = [sys.executable, durable_demo.__file__]
    environment = {**os.environ, "PYTHONUTF8": "1"}  # without the COLUMNS that readline sets behind Python's back
    result = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment, timeout=LONGEST, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    before, _, after = result.stdout.partition("Another worker recovers the execution")
    row = r"(reserve_budget|set_status|pay|send_letter)\(.*?\)  +(\w+)  +(\d)x  +(\d)x  +(.*?) *$"
    assert re.findall(row, before, re.MULTILINE) == [
        ("reserve_budget", "effect", "1", "1", "succeeded: reserved"),
        ("set_status", "idempotent", "1", "1", "no outcome"),
        ("pay", "effect", "1", "1", "no outcome"),
        ("send_letter", "effect", "1", "1", "no outcome"),
    ]
    assert re.findall(row, after, re.MULTILINE) == [
        ("reserve_budget", "effect", "1", "1", "succeeded: reserved"),
        ("set_status", "idempotent", "2", "1", "succeeded: paid"),
        ("pay", "effect", "1", "1", "succeeded: paid"),
        ("send_letter", "effect", "1", "1", "in doubt"),
    ]
    assert re.search(r"Process \d+ got SIGKILL", before)
    assert "the execution is interrupted" in before
    assert "4 effects: each happened once, and each has an outcome." in after
    assert "The records of the journal are intact." in after


def test_the_killed_worker_did_all_effects(tmp_path: Path) -> None:
    """The first worker had every effect, and the second one repeated none of them."""
    assert durable_demo.play(create_console(), tmp_path)
    office = Office(ledger_path(tmp_path))
    tools = ("reserve_budget", "set_status", "pay", "send_letter")
    entries = [entry for name in tools for entry in office.entries(name)]
    assert len(entries) == 4
    assert len({entry.process for entry in entries}) == 1
    assert len({entry.key for entry in entries}) == 4


def test_an_effect_that_happened_twice_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is based on the ledger: a second entry for one call makes the demo fail."""
    entries = Office.entries
    monkeypatch.setattr(
        Office, "entries", lambda office, tool, key="": entries(office, tool, key) * (2 if tool == "pay" else 1)
    )
    assert not durable_demo.play(create_console(), tmp_path)


def test_a_worker_that_fails_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error contains what the worker wrote last, and the demo exits with 1."""
    broken = tmp_path / "agentloop"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit('no worker today')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLES)])}
    monkeypatch.setattr(durable_demo, "_worker_environment", lambda: environment)
    with pytest.raises(SystemExit, match="the worker ended with 1: no worker today") as exit_info:
        durable_demo.main()
    assert isinstance(exit_info.value.code, str)  # which Python writes to stderr before it exits with 1
    assert "A worker begins" in capsys.readouterr().out


def test_the_model_responds_to_the_conversation() -> None:
    """Without a letter in doubt, the model does not look for it."""
    first = respond(InferenceRequest([Message.user("pay")]))
    assert [call.name for call in first.tool_calls] == ["read_invoice"]
