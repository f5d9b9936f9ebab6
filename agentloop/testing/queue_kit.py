"""The law suite of queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from attrs import define, evolve, field
from hypothesis import strategies as st

from agentloop.contracts.can_queue import CanQueue, CanTakeJobs
from agentloop.errors import ConfigurationError, InvalidParameter
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.values.jobs import Job, JobKind, JobState, RunningJob, WorkerNote
from agentloop.values.json import freeze
from agentloop.values.tool_calls import ErrorInfo

_AGENT = "agent"
_IDS = ("a", "A", "a ", "a%", "a_", "b", "start:a", "start:a/1/0#é", 'it\'s "a"', "x" * 300)
"""Ids that a database might take for one another, or for a pattern."""
_DATA: Sequence[Any] = (None, 0, True, "", 1.5, "it's 'é' \\ \n", [], {}, {"a": [1, {"b": None}]}, "x" * 100_000, 2**60)
_MOVES = ("enqueue", "enqueue", "take", "take", "end", "fail", "put back", "die", "cancel", "forget", "spare")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(_MOVES),
        st.integers(0, 2),
    ),
    max_size=14,
)
_SEQUENCES: Sequence[Sequence[tuple[str, int]]] = (
    [("enqueue", 0), ("take", 0), ("put back", 0), ("take", 0), ("die", 0), ("take", 0), ("end", 0), ("enqueue", 0)],
    [
        ("enqueue", 0),
        ("take", 0),
        ("spare", 0),
        ("die", 0),
        ("take", 0),
        ("spare", 0),
        ("die", 0),
        ("forget", 0),
        ("take", 0),
    ],
    [("enqueue", 0), ("enqueue", 0), ("take", 0), ("enqueue", 0), ("end", 0)],
    [("enqueue", 0), ("enqueue", 1), ("cancel", 1), ("take", 0), ("cancel", 0), ("fail", 0), ("cancel", 0)],
)
_LOST_AFTER = 60.0


@define
class _Expected:
    """What is expected of a job.

    Attributes:
        payload: what it was queued with.
        state: how far it is.
        attempts: the number of its last attempt; a job may start that nobody gets.
        deaths: how many workers have died of it.
        is_spared: whether the death of its worker is not counted.
        running: the job as the worker has it.
    """

    payload: object
    state: JobState = JobState.WAITING
    attempts: int = 0
    deaths: int = 0
    is_spared: bool = False
    running: RunningJob | None = field(default=None, repr=False)


class QueueKit(Kit):
    """Checks queues against the laws of `CanQueue`.

    Args:
        factory: creates new, empty queues, which the kit opens and closes.
        places: how many workers a process may have; with 1, nothing is checked of workers at the same time.
        settle: how long the queues may take to hand out a job that may start, in seconds: the kit waits so long to see that one
            is not handed out.
        patience: how long what must happen may take, in seconds.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 34, 44, 51, 52)

    def __init__(
        self,
        factory: Callable[[], CanQueue],
        *,
        places: int = 2,
        settle: float = 0.05,
        patience: float = 60.0,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanQueue] = checked_factory(factory)
        self.places = places
        self.settle = settle
        self.patience = patience
        self._law = 0

    def check(self, law: int) -> None:
        """Check one law."""
        self._law = law
        super().check(law)

    def law_9(self) -> None:
        """Jobs whose ids are alike, or that differ in their kind, are different jobs."""
        self.for_all(
            st.lists(st.sampled_from(_IDS), min_size=2, max_size=4, unique=True),
            lambda ids: asyncio.run(self._check_ids(ids)),
        )

    def law_34(self) -> None:
        """A call that is cancelled loses no job, and starts none twice."""
        self.for_all(st.integers(0, 6), lambda ticks: asyncio.run(self._check_cancelled(ticks)))

    def law_44(self) -> None:
        """Payloads, results and errors are read as they were written."""
        self.for_all(
            st.lists(st.sampled_from(range(len(_DATA))), min_size=1, max_size=4),
            lambda data: asyncio.run(self._check_data(data)),
        )

    def law_51(self) -> None:
        """A job is queued once, is handed to one worker at a time, ends once, and is lost with no worker."""
        self.for_each(_SEQUENCES, lambda steps: asyncio.run(self._check_steps(steps)))
        self.for_all(_STEPS, lambda steps: asyncio.run(self._check_steps(steps)))
        asyncio.run(self._check_late_words())
        asyncio.run(self._check_ended())
        asyncio.run(self._check_schedules())
        if self.places > 1:
            asyncio.run(self._check_workers_at_once())

    def law_52(self) -> None:
        """The job with the highest priority starts first, then the oldest; none before its time, and no more than a limit lets start."""
        self.for_all(
            st.lists(st.integers(-2, 2), min_size=2, max_size=5),
            lambda priorities: asyncio.run(self._check_order(priorities)),
        )
        asyncio.run(self._check_slots())
        asyncio.run(self._check_limits())
        asyncio.run(self._check_delays())
        asyncio.run(self._check_versions())

    # --- the checks -----------------------------------------------------------------------------------------------------

    async def _check_ids(self, ids: Sequence[str]) -> None:
        async with self._opened() as queues, self._working(queues, slots=2 * len(_IDS)) as place:
            pairs = [(kind, job_id) for kind in JobKind for job_id in ids]
            for kind, job_id in pairs:
                await queues.enqueue(_job(job_id, kind, payload=[kind.value, job_id]))
            for _ in pairs:
                job = await self.take(place)
                await place.end(job, (job.kind.value, job.id))
            for kind, job_id in pairs:
                status = await queues.find(job_id, kind)
                result = None if status is None else status.result
                require(9, result == freeze([kind.value, job_id]), f"the job {job_id!r} has the result {result!r}")
                payload = await queues.payload_of(job_id, kind)
                require(9, freeze(payload) == freeze([kind.value, job_id]), f"the payload of {job_id!r} is {payload!r}")
                wanted = sorted(each for each in ids if each.startswith(job_id))
                found = sorted(each.id for each in await queues.list(kind=kind, prefix=job_id))
                require(9, found == wanted, f"of {list(ids)}, the jobs with the prefix {job_id!r} are {found}")
                ended = sorted(await queues.list_ended(kind, prefix=job_id))
                require(
                    9, ended == wanted, f"of {list(ids)}, those that have ended with the prefix {job_id!r} are {ended}"
                )

    async def _check_cancelled(self, ticks: int) -> None:
        async with self._opened() as queues, self._working(queues) as place:
            for number in range(3):
                await _cancel_after(asyncio.ensure_future(queues.enqueue(_job(f"j{number}"))), ticks)
                await queues.enqueue(_job(f"j{number}"))
            taken = dict[str, RunningJob]()
            for _ in range(3):
                task = asyncio.ensure_future(place.take())
                await _cancel_after(task, ticks)
                if not task.cancelled():
                    taken[task.result().id] = task.result()
            while len(taken) < 3:  # noqa: PLR2004  # as above
                job = await self.take(place)
                require(34, job.id not in taken, f"the job {job.id} was handed out twice")
                taken[job.id] = job
            again = [job.id for job in taken.values() if job.attempt != 1]
            require(34, not again, f"after calls that were cancelled, the jobs {again} have started more than once")
            await self._require_none(34, place, "three jobs were queued")

    async def _check_data(self, indices: Sequence[int]) -> None:
        async with self._opened() as queues, self._working(queues) as place:
            for number, index in enumerate(indices):
                data, kind = _DATA[index], list(JobKind)[number % 2]
                await queues.enqueue(_job(f"j{number}", kind, payload=data))
                job = await self.take(place)
                self._require_same("the payload that a worker gets", job.payload, data)
                self._require_same("the payload that is read", await queues.payload_of(job.id, kind), data)
                await place.end(job, data)
                waited = await asyncio.wait_for(queues.wait(job.id, kind), self.patience)
                self._require_same("the result", waited.result, data)
            await queues.enqueue(_job("failed"))
            error = ErrorInfo("ToolFailed", "it's 'é' \\ \n")
            await place.end(await self.take(place), error=error)
            status = await queues.find("failed", JobKind.EXECUTION)
            found = None if status is None else status.error
            is_same = found is not None and (found.type, found.message) == (error.type, error.message)
            require(44, is_same, f"the error {error} is read as {found}")

    def _require_same(self, what: str, found: object, written: object) -> None:
        same = repr(freeze(found)) == repr(freeze(written))
        require(44, same, lambda: f"{what} is {found!r:.200}, and {written!r:.200} was written")

    async def _check_steps(self, steps: Sequence[tuple[str, int]]) -> None:
        async with self._opened() as queues:
            model = _Model(queues, self)
            try:
                for what, number in steps:
                    await model.step(what, f"j{number}")
                    await model.compare(f"after {what} {number}")
                await model.finish()
            finally:
                await model.leave()

    async def _check_late_words(self) -> None:
        """Check that what a worker says about a job that it has no longer is dropped."""
        async with self._opened() as queues:
            await queues.enqueue(_job("late"))
            first = await queues.join(_note("first"), lost_after=_LOST_AFTER)
            old = await self.take(first)
            await first.leave()
            async with self._working(queues, "second") as place:
                job = await self.take(place)
                require(51, job.attempt == 2, f"a job whose worker has died starts with the attempt {job.attempt}")  # noqa: PLR2004
                await first.end(old, "of the first")
                await self._require_state(queues, "late", JobState.RUNNING, "a worker that has died said how it ended")
                await place.end(job, "of the second")
                await place.end(job, "again")
                await place.put_back([job])
                status = await queues.find("late", JobKind.EXECUTION)
                result = None if status is None else status.result
                require(
                    51,
                    result == "of the second",
                    f"of the ends of a job, {result!r} counts, and not that of its worker",
                )
                await self._require_none(51, place, "the only job has ended")

    async def _check_ended(self) -> None:
        """Check that deletions take jobs that have ended, and that their ids can be queued again."""
        async with self._opened() as queues, self._working(queues, slots=1) as place:
            for name in ("first", "second", "third"):
                await queues.enqueue(_job(name))
            await place.end(await self.take(place), 1)
            await place.end(await self.take(place), error=ErrorInfo("Broken", "it is"))
            ended = list(await queues.list_ended(JobKind.EXECUTION))
            require(51, ended == ["first", "second"], f"the jobs that have ended are {ended}")
            await queues.delete_ended(JobKind.EXECUTION, ["first", "second", "third", "none"], states={JobState.FAILED})
            left = [job.id for job in await queues.list(kind=JobKind.EXECUTION)]
            require(51, left == ["first", "third"], f"after the deletion of those that have failed, {left} are left")
            await queues.delete_ended(JobKind.EXECUTION, ["first", "third"])
            await queues.enqueue(_job("first", payload="anew"))
            await place.end(await self.take(place))
            job = await self.take(place)
            require(
                51, (job.id, job.payload, job.attempt) == ("first", "anew", 1), f"a job that is queued anew is {job}"
            )
            for broken in (_job(""), _job("a\0"), evolve(_job("b"), queue=" "), evolve(_job("c"), delay=-1.0)):
                with suppress(InvalidParameter):
                    await queues.enqueue(broken)
                    require(51, condition=False, reason=f"{broken} was queued")

    async def _check_schedules(self) -> None:
        """Check that a schedule queues one copy at a time of it, with an id of its own."""
        async with self._opened() as queues:
            job = _job("copy:", payload={"a": 1})
            await queues.schedule("often", "* * * * * *", job)
            with suppress(InvalidParameter):
                await queues.schedule("broken", "every day", job)
                require(51, condition=False, reason="`every day` counts as a cron expression")
            known = [(each.name, each.cron, each.job and each.job.payload) for each in await queues.schedules()]
            require(51, known == [("often", "* * * * * *", job.payload)], f"the schedules are {known}")
            async with self._working(queues) as place:
                first, second = await self.take(place), await self.take(place)
                require(51, first.id != second.id, f"a schedule queued the job {first.id!r} twice")
                found = [
                    each for each in (first, second) if not each.id.startswith("copy:") or each.payload != job.payload
                ]
                require(51, not found, f"a schedule of {job} queued {found}")
                require(51, await queues.unschedule("often"), "a schedule that exists was not found")
                require(51, not await queues.unschedule("often"), "a schedule that was removed was found")

    async def _check_workers_at_once(self) -> None:
        """Check that two workers at the same time never have the same job, and that names are taken once."""
        async with self._opened() as queues, self._working(queues, "one", slots=9) as one:
            with suppress(ConfigurationError):
                await queues.join(_note("one"), lost_after=_LOST_AFTER)
                require(51, condition=False, reason="two live workers have the same name")
            async with self._working(queues, "two", slots=9) as two:
                names = [note.name for note in await queues.workers()]
                require(51, names == ["one", "two"], f"of the live workers one and two, {names} are listed")
                waiting = {asyncio.ensure_future(place.take()) for place in (one, two) for _ in range(2)}
                await asyncio.sleep(0)
                for number in range(4):
                    await queues.enqueue(_job(f"j{number}"))
                done, _ = await asyncio.wait(waiting, timeout=self.patience)
                taken = sorted(task.result().id for task in done)
                require(51, taken == ["j0", "j1", "j2", "j3"], f"of the jobs j0 to j3, two workers got {taken}")
                await two.leave()
                again = sorted([(await self.take(one)).deaths, (await self.take(one)).deaths])
                require(51, again == [1, 1], f"the death of a worker with two jobs is counted as {again}")

    async def _check_order(self, priorities: Sequence[int]) -> None:
        async with self._opened() as queues:
            jobs = [evolve(_job(f"j{number}"), priority=priority) for number, priority in enumerate(priorities)]
            for job in jobs:
                await queues.enqueue(job)
            started = []
            async with self._working(queues, slots=1) as place:
                for _ in jobs:
                    job_taken = await self.take(place)
                    started.append(job_taken.id)
                    await place.end(job_taken)
            wanted = [job.id for job in sorted(jobs, key=lambda job: -job.priority)]
            require(52, started == wanted, f"jobs with the priorities {list(priorities)} start in the order {started}")

    async def _check_slots(self) -> None:
        async with self._opened() as queues, self._working(queues, slots=2) as place:
            for kind in JobKind:
                for number in range(3):
                    await queues.enqueue(_job(f"j{number}", kind))
            taken = [await self.take(place) for _ in range(4)]
            kinds = sorted(job.kind.value for job in taken)
            require(52, kinds == ["execution"] * 2 + ["tool"] * 2, f"a worker with two slots of each kind got {kinds}")
            await self._require_none(52, place, "all slots are taken")
            await place.end(taken[0])
            job = await self.take(place)
            require(
                52,
                job.kind is taken[0].kind,
                f"in place of a job of the kind {taken[0].kind}, one of {job.kind} started",
            )

    async def _check_limits(self) -> None:
        async with self._opened() as queues:
            await queues.limit_queue(JobKind.EXECUTION, "one", concurrency=1)
            await queues.limit_queue(JobKind.EXECUTION, "few", rate=(2, 3600.0))
            for number in range(3):
                await queues.enqueue(evolve(_job(f"one{number}"), queue="one"))
            async with self._working(queues, slots=9) as place:
                for number in range(3):
                    job = await self.take(place)
                    await self._require_none(52, place, "the queue lets one job run at a time")
                    require(52, job.id == f"one{number}", f"the job {job.id} started, and one{number} is older")
                    await place.end(job)
                for number in range(3):
                    await queues.enqueue(evolve(_job(f"few{number}"), queue="few"))
                for _ in range(2):
                    await place.end(await self.take(place))
                await self._require_none(52, place, "the queue lets two jobs start in an hour")
                await queues.limit_queue(JobKind.EXECUTION, "few")
                await place.end(await self.take(place))
            await queues.limit_queue(JobKind.EXECUTION, "one", concurrency=0)
            await queues.enqueue(evolve(_job("paused"), queue="one"))
            async with self._working(queues, slots=9) as place:  # another one: a worker obeys new limits after a while
                await self._require_none(52, place, "its queue is paused")
                await queues.limit_queue(JobKind.EXECUTION, "one")
                job = await self.take(place)
                require(52, job.id == "paused", f"the job {job.id} started when a queue went on that has no such job")
                await place.end(job)
            for concurrency, rate in ((-1, None), (None, (0, 1.0)), (None, (1, 0.0))):
                with suppress(InvalidParameter):
                    await queues.limit_queue(JobKind.EXECUTION, "one", concurrency=concurrency, rate=rate)
                    require(52, condition=False, reason=f"a queue has the limits {concurrency} and {rate}")

    async def _check_delays(self) -> None:
        async with self._opened() as queues, self._working(queues) as place:
            await queues.enqueue(evolve(_job("later"), delay=2 * self.settle))
            await self._require_state(queues, "later", JobState.DELAYED, "its delay has just begun")
            await self._require_none(52, place, "its delay has not passed")
            job = await self.take(place)
            require(52, job.id == "later", f"the job {job.id} started")

    async def _check_versions(self) -> None:
        async with self._opened() as queues:
            await queues.enqueue(evolve(_job("old"), version="1"))
            await queues.enqueue(evolve(_job("other"), agent="another", version="2"))
            await queues.enqueue(_job("any"))
            await queues.enqueue(evolve(_job("new"), version="2"))
            async with self._working(queues, version="2") as place:
                taken = sorted([(await self.take(place)).id, (await self.take(place)).id])
                require(52, taken == ["any", "new"], f"a worker of the version 2 with one agent got {taken}")
                await self._require_none(52, place, "the others are of another agent or version")

    # --- what they share ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[CanQueue]:
        queues = self.factory()
        await queues.open()
        try:
            yield queues
        finally:
            await queues.aclose()

    @asynccontextmanager
    async def _working(
        self, queues: CanQueue, name: str = "worker", *, slots: int = 4, version: str = ""
    ) -> AsyncIterator[CanTakeJobs]:
        place = await queues.join(_note(name, slots, version), lost_after=_LOST_AFTER)
        try:
            yield place
        finally:
            await place.leave()

    async def take(self, place: CanTakeJobs) -> RunningJob:
        """Take a job that has to come.

        Raises:
            LawViolation: it does not.
        """
        task = asyncio.ensure_future(place.take())
        await asyncio.wait((task,), timeout=self.patience)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        require(self._law, not task.cancelled(), "a job that may start is handed to no worker")
        return task.result()

    async def _require_none(self, law: int, place: CanTakeJobs, why: str) -> None:
        """Check that no job is handed out."""
        task = asyncio.ensure_future(place.take())
        await asyncio.wait((task,), timeout=self.settle)
        task.cancel()
        await asyncio.wait((task,))
        require(law, task.cancelled(), lambda: f"the job {task.result().id} was handed out, although {why}")

    async def _require_state(self, queues: CanQueue, job_id: str, state: JobState, why: str) -> None:
        status = await queues.find(job_id, JobKind.EXECUTION)
        found = None if status is None else status.state
        require(self._law, found is state, f"the job {job_id} is {found}, although {why}")


class _Model:
    """Jobs of queues beside what is expected of them, and the worker that has them."""

    def __init__(self, queues: CanQueue, kit: QueueKit) -> None:
        self._queues, self._kit = queues, kit
        self._jobs: dict[str, _Expected] = {}
        self._place: CanTakeJobs | None = None

    async def step(self, what: str, job_id: str) -> None:
        """Do something that is possible now."""
        job = self._jobs.get(job_id)
        running = None if job is None else job.running
        match what:
            case "enqueue":
                payload = f"{job_id} anew" if job is not None else job_id
                await self._queues.enqueue(_job(job_id, payload=payload))
                self._jobs.setdefault(job_id, _Expected(payload))
            case "take" if any(each.state is JobState.WAITING for each in self._jobs.values()):
                await self._take()
            case "end" | "fail" if job is not None and running is not None and self._place is not None:
                error = ErrorInfo("Broken", "it is") if what == "fail" else None
                await self._place.end(running, None if error else job_id, error)
                job.state, job.running = JobState.FAILED if error else JobState.FINISHED, None
            case "put back" if job is not None and running is not None and self._place is not None:
                count = await self._place.put_back([running])
                require(51, count == 1, f"of one job that runs, {count} were put back")
                job.state, job.running = JobState.WAITING, None
            case "cancel":
                await self._queues.cancel_waiting([job_id, "none"], JobKind.EXECUTION)
                if job is not None and job.state is JobState.WAITING and not await self._is_early(job_id):
                    job.state = JobState.CANCELLED
            case "forget" if job is not None:
                await self._queues.forget_deaths(job_id)
                job.deaths = 0
            case "spare" if job is not None:
                await self._queues.spare(JobKind.EXECUTION, job_id, not job.is_spared)
                job.is_spared = not job.is_spared
            case "die" if self._place is not None:
                await self.leave()
                await self._join()  # under the same name, so that its jobs are put back at once

    async def _join(self) -> CanTakeJobs:
        self._place = await self._queues.join(_note("worker"), lost_after=_LOST_AFTER)
        return self._place

    async def _take(self) -> None:
        found = await self._kit.take(self._place or await self._join())
        job = self._jobs.get(found.id)
        is_waiting = job is not None and job.state is JobState.WAITING
        require(51, is_waiting, f"the job {found.id} was handed out, and it is {job}")
        if job is not None:
            told, expected = (found.payload, found.deaths), (job.payload, job.deaths)
            require(51, told == expected, f"the job {found.id} has payload and deaths {told}, and not {expected}")
            require(51, found.attempt > job.attempts, f"the attempt {found.attempt} follows the attempt {job.attempts}")
            job.state, job.running, job.attempts = JobState.RUNNING, found, found.attempt

    async def _is_early(self, job_id: str) -> bool:
        """Return whether a job was taken for a `take` that is still to come."""
        status = await self._queues.find(job_id, JobKind.EXECUTION)
        return self._place is not None and status is not None and status.state is JobState.RUNNING

    async def leave(self) -> None:
        """Let the worker die with what it has."""
        place, self._place = self._place, None
        if place is not None:
            await place.stop_taking()
            await place.leave()
            for job in self._jobs.values():
                if job.state is JobState.RUNNING:
                    job.state, job.running, job.deaths = JobState.WAITING, None, job.deaths + (not job.is_spared)

    async def compare(self, when: str) -> None:
        """Check that jobs are as far as is expected."""
        found = {each.id: each for each in await self._queues.find_all(list(self._jobs), JobKind.EXECUTION)}
        for job_id, job in self._jobs.items():
            status = found.get(job_id)
            state = None if status is None else status.state
            is_early = self._place is not None and (state, job.state) == (JobState.RUNNING, JobState.WAITING)
            require(51, state is job.state or is_early, f"{when}, the job {job_id} is {state}, and not {job.state}")
            attempts = 0 if status is None else status.attempts
            require(
                51, attempts >= job.attempts, f"{when}, {attempts} attempts of {job_id} are counted, of {job.attempts}"
            )

    async def finish(self) -> None:
        """Let all jobs end, and check that each does."""
        for job in list(self._jobs.values()):
            if job.running is not None and self._place is not None:
                await self._place.end(job.running)
                job.state, job.running = JobState.FINISHED, None
        while any(job.state is JobState.WAITING for job in self._jobs.values()):
            await self._take()
            await self.finish()


def _job(job_id: str, kind: JobKind = JobKind.EXECUTION, *, payload: object = None) -> Job:
    return Job(id=job_id, kind=kind, agent=_AGENT, payload=payload)


def _note(name: str, slots: int = 4, version: str = "") -> WorkerNote:
    return WorkerNote(name=name, version=version, agents=(_AGENT,), executions=slots, tools=slots)


async def _cancel_after(task: asyncio.Future[Any], ticks: int) -> None:
    """Cancel a task after some turns of the event loop, and wait for it."""
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
