"""What a cluster knows of executions whose records were deleted: nothing, whoever deleted them and through which journal."""

from __future__ import annotations

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_queue import CanQueue
from agentloop.service.cluster.executions import execution_of_job, forget_execution, keep_sweeping, start_job_id
from agentloop.values.jobs import JobKind, JobState, JobStatus

_SWEEP_SECONDS = 60.0
"""How often jobs of deleted executions are looked for, in seconds."""
_SWEPT_JOBS = 100
"""How many jobs are looked at each time."""


async def forget_if_deleted(queues: CanQueue, journal: CanJournal, execution_id: str, job: JobStatus | None) -> bool:
    """Delete the jobs of an execution if its records were deleted; return whether they were.

    A job that has finished has recorded its execution: one without records was deleted. The execution of a job that waits, runs, failed
    or was cancelled may never have been recorded.

    Args:
        queues: the queues.
        journal: the journal.
        execution_id: the execution.
        job: the job that started it, as it was before; None if there is none.
    """
    if job is None or job.state is not JobState.FINISHED or await journal.head(execution_id) is not None:
        return False
    await forget_execution(queues, execution_id)
    return True


class DeletionSweep:
    """Deletes the jobs of deleted executions for which nobody asks any more, with the inputs in them.

    Args:
        queues: the queues.
        journal: the journal.
    """

    def __init__(self, queues: CanQueue, journal: CanJournal) -> None:
        self._queues = queues
        self._journal = journal
        self._waiting: list[str] = []  # executions that are still to be looked at in this round

    async def run(self) -> None:
        """Look for such jobs again and again, until the task is cancelled."""
        await keep_sweeping(self.apply, _SWEEP_SECONDS, "jobs of deleted executions")

    async def apply(self) -> None:
        """Look at some of the jobs that have ended."""
        if not self._waiting:
            ended = map(execution_of_job, await self._queues.list_ended(JobKind.EXECUTION))
            self._waiting = list(dict.fromkeys(ended))
        some, self._waiting = self._waiting[:_SWEPT_JOBS], self._waiting[_SWEPT_JOBS:]
        jobs = await self._queues.find_all([start_job_id(each) for each in some], JobKind.EXECUTION) if some else ()
        for job in jobs:
            await forget_if_deleted(self._queues, self._journal, execution_of_job(job.id), job)
