"""The fixture `no_blocking` and the option `--no-blocking` fail the tests in which an event loop is blocked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.test_pytest_plugin import session

PROGRAM = """
import asyncio
import logging
import threading


class Warned(logging.Handler):
    def __init__(self):
        super().__init__()
        self.event = threading.Event()

    def emit(self, record):
        self.event.set()


async def block_the_loop():
    handler = Warned()
    logging.getLogger("agentloop.loop").addHandler(handler)
    handler.event.wait(SECONDS)


async def wait_for_a_thread():
    await asyncio.to_thread(threading.Event().wait, SHORT)


def test_blocks(no_blocking):
    asyncio.run(block_the_loop())


def test_blocks_without_fixture():
    asyncio.run(block_the_loop())


def test_waits(no_blocking):
    asyncio.run(wait_for_a_thread())


def test_has_no_event_loop(no_blocking):
    threading.Event().wait(SHORT)
"""


@pytest.mark.parametrize(("options", "failed"), [((), 1), (("--no-blocking", "0.05"), 2)])
def test_a_test_that_blocks_its_event_loop_fails(tmp_path: Path, options: tuple[str, ...], failed: int) -> None:
    """The failure names the code; tests that wait without blocking pass."""
    (tmp_path / "test_program.py").write_text(PROGRAM.replace("SECONDS", "1.7").replace("SHORT", "0.2"))
    ended = session(tmp_path, *options)
    assert f"{failed} failed, {4 - failed} passed" in ended.stdout
    assert "the event loop was blocked for" in ended.stdout
    assert "in block_the_loop" in ended.stdout
