"""One chaos run: a database, a model, workers, what they run, and the account afterwards."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

from agentloop.durable import open_journal, replay
from agentloop.durable.journal import Journal
from agentloop.values import ExecutionHead
from tests.chaos import agents
from tests.chaos.account import Account, gather_evidence, make_account
from tests.chaos.fleet import SLOWLY, Fleet, describe_outputs, start_model, wait_until
from tests.chaos.ledger import Ledger, Plan
from tests.chaos.stored import find_foreign_values
from tests.chaos.work import Work

_REPLAYED = 4
"""How many executions of a chaos run are replayed."""
_OVER = frozenset({"completed", "failed", "stopped", "suspended"})


@define
class Trial:
    """A chaos run.

    Attributes:
        folder: its folder.
        database: the database, as the workers name it.
        fleet: its workers.
        works: what they run.
        seed: chooses the lines of the ledger at which faults happen.
        ledger: its ledger.
        inspected: the database, as the inspection names it.
        ends_as: the statuses of executions that do not complete, by id.
    """

    folder: Path
    database: str
    fleet: Fleet
    works: Sequence[Work]
    seed: int
    ledger: Ledger
    inspected: str
    ends_as: dict[str, str] = field(factory=dict)
    started: float = field(factory=time.monotonic)

    @property
    def random(self) -> random.Random:
        """A source of numbers of the seed."""
        return random.Random(self.seed)

    @property
    def expected_lines(self) -> int:
        """About how many lines the ledger has at the end."""
        return sum(work.line_count for work in self.works)

    def choose_lines(self, count: int, *, first: float = 0.1, last: float = 0.75) -> Sequence[int]:
        """Return some numbers of the ledger's lines, in order.

        Args:
            count: how many.
            first: the first possible one, as a share of all lines.
            last: the last possible one.
        """
        lines = range(int(self.expected_lines * first), int(self.expected_lines * last))
        return sorted(self.random.sample(lines, count))

    def plan(self, plan: Plan) -> None:
        """Let workers that start later send themselves signals."""
        self.ledger.plan(plan)

    def begin(self, workers: int = 3) -> None:
        """Start workers, and submit the work."""
        for _ in range(workers):
            self.fleet.start()
        self.fleet.submit(self.works)

    def heads(self) -> Mapping[str, ExecutionHead]:
        """Return the heads of all executions in the journal."""
        return asyncio.run(_read_heads(self.inspected))

    def is_over(self) -> bool:
        """Whether all executions have ended or are suspended; replaces workers that have died."""
        self.fleet.tend()
        heads = self.heads()
        return all(work.execution_id in heads and heads[work.execution_id].status.value in _OVER for work in self.works)

    def wait_for_line(self, number: int) -> None:
        """Wait until the ledger has a line."""

        def is_reached() -> bool:
            self.fleet.tend()
            return self.ledger.count >= number

        wait_until(is_reached, f"the ledger has {self.ledger.count} lines, not {number}")

    def finish(self) -> Account:
        """Wait for the end of all executions, stop the workers, and return the account."""
        try:
            wait_until(self.is_over, "not all executions have ended", interval=SLOWLY)
        except Exception as error:
            error.add_note(str(describe_outputs(self.fleet.processes)))
            raise
        finally:
            self.fleet.kill()
        return self.account()

    def account(self) -> Account:
        """Return the account."""
        return asyncio.run(self._account())

    async def _account(self) -> Account:
        journal = open_journal(self.inspected)
        try:
            evidence = await gather_evidence(journal, self.ledger, self.works)
            account = make_account(evidence, ends_as=self.ends_as)
            account.wrong += [problem async for problem in self._find_differences(journal)]
        finally:
            await journal.aclose()
        account.wrong += find_foreign_values(self.inspected)
        return account

    async def _find_differences(self, journal: Journal) -> AsyncIterator[str]:
        """Replay some executions: today's code asks for what is recorded, calls no tool and sends no request."""
        loop = agents.build_unobserved(self.ledger, self.fleet.model)
        lines, requests = self.ledger.count, len(self.ledger.notes("requests"))
        for work in [work for work in self.works if work.execution_id not in self.ends_as][:_REPLAYED]:
            replayed = await replay(journal, work.execution_id, loop)
            if not replayed.is_equal:
                yield f"a replay of {work.execution_id} differs: {replayed.explain()}"
        if (lines, requests) != (self.ledger.count, len(self.ledger.notes("requests"))):
            yield "a replay called tools or the model"


async def _read_heads(database: str) -> Mapping[str, ExecutionHead]:
    journal: Journal = open_journal(database)
    try:
        return {head.execution_id: head for head in await journal.list()}
    finally:
        await journal.aclose()


@contextmanager
def open_trial(
    folder: Path, database: str, works: Sequence[Work], *, kind: str, seed: int, inspected: str = ""
) -> Iterator[Trial]:
    """Start the model of a chaos run; kill its processes at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with start_model(folder) as model:
        fleet = Fleet(folder, database, model, kind)
        try:
            yield Trial(folder, database, fleet, works, seed, Ledger(folder), inspected or database)
        finally:
            fleet.kill()
