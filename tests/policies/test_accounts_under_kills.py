"""Accounts of money that processes share while they are killed: nothing is spent beyond a sum, or reserved for ever."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from attrs import define, field, frozen

from agentloop.contracts import CanKeepAccounts
from agentloop.durable import open_journal
from agentloop.values import AccountBalance, AccountKey, Spending
from agentloop.values.time_and_ids import SystemClock
from tests.limits import LONGEST
from tests.loaded import loaded_python
from tests.policies.account_process import (
    EXCESS,
    RESERVED,
    SLOTS,
    TENANTS,
    cost_of,
    tenant_of,
)

MEAN_COST = 14_400_000_000
"""What a ticket costs: nine of ten as much as usual, and one more than was reserved for it."""


@frozen
class Load:
    """How much is done.

    Attributes:
        processes: the number of processes.
        tickets: the number of tickets of each.
        kills: how often each is killed.
        seconds: after so many the processes are taken to hang.
    """

    processes: int
    tickets: int
    kills: int
    seconds: float = LONGEST


@define
class Course:
    """What the processes have reported.

    Attributes:
        outcomes: the status with which each ticket ended.
        shares: how often each part of a tenant's sum was announced.
        kills: the number of processes that were killed.
    """

    outcomes: dict[int, str] = field(factory=dict)
    shares: Counter[tuple[str, int]] = field(factory=Counter)
    kills: int = 0

    def note(self, line: str) -> None:
        """Note a line of a process."""
        kind, first, second = line.split()
        if kind == "share":
            self.shares[first, int(second)] += 1
        else:
            assert self.outcomes.setdefault(int(first), second) == second


@pytest.mark.parametrize(
    "load",
    [Load(3, 40, 1), pytest.param(Load(8, 250, 2, 10 * LONGEST), marks=pytest.mark.heavy)],
    ids=["small", "full"],
)
def test_processes_with_kills_keep_the_sums(load: Load, db: str, tmp_path: Path) -> None:
    """Processes that are killed, and replaced, use the sums of five tenants: what the provider charges stays within them."""
    ledger = tmp_path / "ledger"
    limit = round(load.processes * load.tickets / len(TENANTS) * MEAN_COST * 0.6)  # for three of five tickets
    course = asyncio.run(_run_all(load, [db, str(ledger), str(limit / 10**12)]))
    balances = asyncio.run(_read_balances(db))
    charged = Counter[str]()
    for line in ledger.read_text().splitlines():
        charged[tenant_of(int(line))] += cost_of(int(line))
    assert len(course.outcomes) == load.processes * load.tickets
    assert course.kills == load.processes * load.kills
    answers = Counter(tenant_of(ticket) for ticket, status in course.outcomes.items() if status == "completed")
    for tenant in TENANTS:
        _check(balances[tenant], charged[tenant], answers[tenant], load)
    # Each part of each sum is announced once, unless the process that reached it was killed before.
    assert set(course.shares.values()) == {1}
    assert len(course.shares) >= 3 * len(TENANTS) - course.kills
    beyond = {tenant: (charged[tenant] - limit) / 10**12 for tenant in TENANTS}
    unsettled = sum(balance.unsettled.dollars for balance in balances.values())
    logging.getLogger(__name__).info(
        "%s: %s of %s tickets answered; sums of $%s; charged beyond them %s; unsettled $%s",
        *(load, sum(answers.values()), len(course.outcomes), limit / 10**12, beyond, unsettled),
    )


def _check(balance: AccountBalance, charged: int, answers: int, load: Load) -> None:
    """Check the account of a tenant against what the provider has charged."""
    limit, spent, unsettled = balance.limit.cost or 0, balance.spent.cost, balance.unsettled.cost
    in_flight = load.processes * SLOTS
    lapsed = in_flight * load.kills  # at most: the requests that were in flight when their process was killed
    # Nothing is reserved for ever: those who continue the executions of the killed have ended their reservations.
    assert balance.reserved == Spending()
    assert unsettled <= lapsed * RESERVED
    # The account knows what was charged, but for the answers that never came.
    assert spent <= charged <= spent + unsettled + lapsed * EXCESS
    assert answers <= balance.requests
    # The sum is exceeded by no more than answers in flight exceed their reservations.
    assert spent + unsettled <= limit + in_flight * EXCESS
    assert charged <= limit + (in_flight + lapsed) * EXCESS
    # Nothing that would fit was refused.
    assert limit - spent - unsettled < RESERVED


async def _run_all(load: Load, options: Sequence[str]) -> Course:
    course, choice = Course(), random.Random(load.tickets)
    async with asyncio.timeout(load.seconds), asyncio.TaskGroup() as group:
        for number in range(load.processes):
            kills = sorted(choice.sample(range(1, load.tickets // 2), load.kills))
            group.create_task(_run_and_kill([*options, str(number * load.tickets), str(load.tickets)], kills, course))
    return course


async def _run_and_kill(options: Sequence[str], kills: Sequence[int], course: Course) -> None:
    """Run a process, kill it when so many of its tickets have ended, and let another one continue."""
    ended = set[str]()
    for kill_at in (*kills, None):
        command = loaded_python("-m", "tests.policies.account_process", *options)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        async for line in process.stdout:
            course.note(line.decode())
            ended.add(line.decode())
            if kill_at is not None and len([each for each in ended if each.startswith("ticket")]) >= kill_at:
                process.kill()
                course.kills += 1
                break
        await process.wait()
    assert process.returncode == 0


async def _read_balances(db: str) -> Mapping[str, AccountBalance]:
    """Return the balances of all tenants."""
    journal = open_journal(db)
    assert isinstance(journal, CanKeepAccounts)
    try:
        found = await journal.accounts()
    finally:
        await journal.aclose()
    assert {key for key, _ in found} == {AccountKey("tickets", tenant) for tenant in TENANTS}
    return {key.owner: AccountBalance.of(key, state, SystemClock().now()) for key, state in found}
