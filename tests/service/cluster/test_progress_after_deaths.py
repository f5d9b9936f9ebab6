"""What counts as progress of an execution whose worker has died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import JournalError, TooManyRecoveries
from agentloop.service.cluster.executions import ExecutionJobs, ProgressWatch, StartRequest
from agentloop.service.cluster.jobs import LastAttempts
from agentloop.testing import CrashableJournal, run_in_virtual_time
from agentloop.values import ExecutionHead, RecordKind
from agentloop.values.jobs import JobKind, RunningJob
from agentloop.values.json import freeze

SECONDS = 10.0
"""How long a test waits for what has to happen at once."""


@asynccontextmanager
async def driven(
    journal: CrashableJournal, *, is_nested: bool
) -> AsyncIterator[tuple[ProgressWatch, asyncio.Task[bool]]]:
    """Drive an execution until the second call of its only step, which never ends; yield its progress and a wait for it."""
    has_begun = asyncio.Event()

    @tool(effect="pure")
    async def quick() -> str:
        """End at once."""
        return "quick"

    @tool(effect="pure", sequential=True)
    async def endless() -> str:
        """Never end."""
        has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    calls = [ToolCall("1", "quick", "{}"), ToolCall("2", "endless", "{}")]
    loop = AgentLoop.for_model(ScriptedInference(calls), tools=[quick, endless])
    if is_nested:
        call = ToolCall("1", "clerk", '{"task": "work"}')
        loop = AgentLoop.for_model(ScriptedInference([call]), tools=[loop.as_tool("clerk", "Works.")])
    progress = ProgressWatch(journal, "run")
    await progress.begin()
    loop = loop.replace(journal=journal)
    driving = asyncio.ensure_future(loop.get_or_start("go", "run"))
    waiting = asyncio.ensure_future(progress.wait(loop, driving))
    try:
        await asyncio.wait_for(has_begun.wait(), SECONDS)
        yield progress, waiting
    finally:
        driving.cancel()
        await asyncio.wait((driving, waiting))


@pytest.mark.parametrize("is_nested", [False, True])
async def test_a_response_or_the_end_of_a_call_is_progress_and_what_is_reused_is_not(*, is_nested: bool) -> None:
    """Also those of an agent below the execution."""
    journal = CrashableJournal()
    async with driven(journal, is_nested=is_nested) as (progress, waiting):
        assert await asyncio.wait_for(waiting, SECONDS)
    kinds = [record.kind for record in journal.appended]
    ended = kinds.index(RecordKind.CALL_OUTCOME)

    async with driven(await journal.after_crash(ended), is_nested=is_nested) as (progress, waiting):
        assert await asyncio.wait_for(waiting, SECONDS)

    async with driven(await journal.after_crash(len(kinds)), is_nested=is_nested) as (progress, waiting):
        assert not await progress.is_made()
        assert not waiting.done()


class Away(MemoryJournal):
    """Cannot be reached at the first look."""

    is_away = True

    async def head(self, execution_id: str) -> ExecutionHead | None:
        if self.is_away:
            self.is_away = False
            raise JournalError("the connection is lost")
        return await super().head(execution_id)


def test_a_job_does_not_fail_because_the_journal_is_away_at_its_first_look() -> None:
    """Whatever a job reads first, it waits for the journal: a failed job would leave its execution to nobody."""
    journal = Away()

    async def nothing(*_: object) -> None:
        """Note nothing."""

    async def run() -> object:
        jobs = ExecutionJobs(
            {"shop": AgentLoop.for_model(ScriptedInference("never asked")).replace(journal=journal)},
            journal,
            max_recoveries=1,
            forget_deaths=nothing,
            last_attempts=LastAttempts(nothing),
        )
        request = StartRequest("order", "Buy a lamp.")
        payload = freeze(request.to_payload())
        return await jobs.run(
            RunningJob(id=request.job_id, kind=JobKind.EXECUTION, agent="shop", payload=payload, attempt=3, deaths=2)
        )

    with pytest.raises(TooManyRecoveries):  # nothing of it is recorded
        run_in_virtual_time(run())
    assert not journal.is_away
