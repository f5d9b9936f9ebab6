"""A journal without space: what is known in memory is kept, and written when there is space again."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import SqliteJournal
from agentloop.durable.sqlite.claims import ClaimFile, OpenFileLocks
from agentloop.durable.sqlite.statements import translate_error
from agentloop.errors import JournalError, JournalFull
from agentloop.values import ExecutionStatus
from agentloop.values.tool_calls import ToolStatus
from tests.durable.records import append_records
from tests.limits import LONGEST


def limit_pages(change: Callable[[int], int]) -> Callable[[sqlite3.Connection], None]:
    """Return an action that lets SQLite refuse what needs more pages than a function of their present number returns."""

    def limit(connection: sqlite3.Connection) -> None:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {change(count)}").fetchall()

    return limit


async def test_an_outcome_waits_in_memory_until_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tool has run, and the disk is full: the execution waits, says so once, and knows the outcome when it goes on."""
    journal, paid = SqliteJournal(tmp_path / "a.db"), list[str]()

    @tool
    async def pay() -> str:
        """Pay."""
        await journal._writer.run(limit_pages(lambda count: count))
        paid.append("paid")
        return "x" * 200_000

    script = ScriptedInference([ToolCall("1", "pay", "{}")], "done")
    loop = AgentLoop.for_model(script, tools=[pay], journal=journal)
    waits = asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waits for its journal" in record.getMessage():
                waits.set()

    logger, handler = logging.getLogger("agentloop.journal"), Heard()
    logger.addHandler(handler)
    try:
        running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
        await asyncio.wait_for(waits.wait(), LONGEST)
        with pytest.raises(JournalFull, match="no space is left"):
            await append_records(journal, "other", '{"a":"%s"}' % ("y" * 200_000))
        assert not running.done()
        await journal._writer.run(limit_pages(lambda _: 2**30))
        state = await asyncio.wait_for(running, LONGEST)
    finally:
        logger.removeHandler(handler)
    (execution,) = state.steps[0].executions
    assert (state.status, execution.status, paid) == (ExecutionStatus.COMPLETED, ToolStatus.SUCCEEDED, ["paid"])
    assert await journal.state("run") == state
    assert await journal.verify() == ()
    assert sum("waits for its journal" in record.getMessage() for record in caplog.records) == 1
    await journal.aclose()


@pytest.mark.parametrize(("number", "kind"), [(28, JournalFull), (5, JournalError)])  # ENOSPC, EIO
async def test_a_claim_on_a_full_disk_says_so(tmp_path: Path, number: int, kind: type[JournalError]) -> None:
    """The lock file cannot be written: the error is that of a full journal, and the lock is not left behind."""
    failures = [OSError(number, "of the system")]

    class Failing(OpenFileLocks):
        def write(self, offset: int, data: bytes) -> None:
            if failures:
                raise failures.pop()
            super().write(offset, data)

    claims = ClaimFile(tmp_path / "a.db", Failing)
    with pytest.raises(JournalError) as caught:
        claims.claim("e")
    assert type(caught.value) is kind
    await claims.claim("e").release()
    claims.close()
    assert type(translate_error(OSError(number, "of the system"), "a.db")) is kind
