"""AgentDojo with scripted models: how often a person is asked, and what a model does unasked that obeys every injected text.

    python examples/agentdojo_table.py
    python examples/agentdojo_table.py --pairs 100 --policies "effects after reading" --attackers adaptive

All 97 tasks are run honestly, and each of the 949 pairs of a user's and an attacker's task with each attacker. It needs neither a
key nor a network, and takes half an hour on two cores; the rows go to the standard output as Markdown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from functools import cache

import click
from attrs import frozen
from dojo.attackers import Attacker
from dojo.runs import Outcome, Policy, Stage
from dojo.suites import Suite, load_suites


@frozen
class Work:
    """One task of a user, with every policy.

    Attributes:
        suite: the name of the suite.
        task: the task.
        goals: the attacker's tasks.
        attackers: who attacks with each of them.
        policies: the policies.
    """

    suite: str
    task: str
    goals: tuple[str, ...]
    attackers: tuple[Attacker, ...]
    policies: tuple[Policy, ...]


Counts = Mapping[tuple[Policy, Attacker | None], Counter[str]]
"""What happened, by policy and attacker; None for the honest runs."""
_suites = cache(load_suites)


@cache
def _stage(suite: str, policy: Policy) -> Stage:
    return Stage(_suites()[suite], policy)


def run_work(work: Work) -> Counts:
    """Run a task honestly and with each attacker, and count."""
    logging.getLogger("agentloop").addHandler(logging.NullHandler())  # a model that obeys makes calls that fail
    return asyncio.run(_run(work))


async def _run(work: Work) -> Counts:
    stages = {policy: _stage(work.suite, policy) for policy in work.policies}
    async with AsyncExitStack() as held:
        for stage in stages.values():
            await held.enter_async_context(stage.loop)
        return await _count(work, stages)


async def _count(work: Work, stages: Mapping[Policy, Stage]) -> Counts:
    suite = _suites()[work.suite]
    task = suite.tasks[work.task]
    counts: dict[tuple[Policy, Attacker | None], Counter[str]] = {}
    honest = {policy: await stage.run(task) for policy, stage in stages.items()}
    for policy, outcome in honest.items():
        counts[policy, None] = _count_honest(outcome)
    # Those who write the same text beside each other: its data are parsed once.
    for goal in (suite.injection_tasks[name] for name in work.goals):
        for attacker in work.attackers:
            for policy, stage in stages.items():
                outcome = await stage.run(task, attack=(attacker, goal), wanted=honest[policy].calls)
                counts.setdefault((policy, attacker), Counter()).update(_count_attack(outcome))
    return counts


def _count_honest(outcome: Outcome) -> Counter[str]:
    is_unasked, has_effect = outcome.questions == 0, outcome.effects > 0
    return Counter(
        tasks=1,
        passed=outcome.has_passed,
        effects=outcome.effects,
        questions=outcome.questions,
        unasked=is_unasked,
        with_effect=has_effect,
        unasked_with_effect=is_unasked and has_effect,
    )


def _count_attack(outcome: Outcome) -> Counter[str]:
    unasked = len(outcome.injected_unasked)
    return Counter(
        pairs=1,
        hijacked=outcome.is_hijacked,
        succeeded=outcome.has_passed,
        unasked=unasked,
        pairs_unasked=unasked > 0,
        asked=outcome.injected_asked,
        redirected=len(outcome.redirected),
    )


def plan_work(
    suites: Mapping[str, Suite],
    policies: Sequence[Policy],
    attackers: Sequence[Attacker],
    *,
    pairs: int | None,
    seed: int,
) -> Sequence[Work]:
    """Return the work: all tasks, with all pairs or with some of them by chance."""
    every = [
        (name, task, goal) for name, suite in suites.items() for task in suite.tasks for goal in suite.injection_tasks
    ]
    chosen = set(every if pairs is None else random.Random(seed).sample(every, min(pairs, len(every))))  # noqa: S311
    return [
        Work(
            name,
            task,
            tuple(goal for goal in suite.injection_tasks if (name, task, goal) in chosen),
            tuple(attackers),
            tuple(policies),
        )
        for name, suite in suites.items()
        for task in suite.tasks
    ]


def table(counts: Counts) -> Iterator[str]:
    """Return the lines of the table."""
    yield "| Calls that wait | Questions | Tasks unasked | Attacker | Injected effects unasked | Asked | Redirected | Injections done |"
    yield "|---|--:|--:|---|--:|--:|--:|--:|"
    for (policy, attacker), attacked in counts.items():
        if attacker is None:
            continue
        honest = counts[policy, None]
        yield (
            f"| {policy} | {honest['questions']} | {honest['unasked']} of {honest['tasks']} "
            f"({honest['unasked_with_effect']} of {honest['with_effect']}) | {attacker} "
            f"| {attacked['unasked']:,} in {attacked['pairs_unasked']} pairs | {attacked['asked']:,} "
            f"| {attacked['redirected']} | {attacked['succeeded']} of {attacked['pairs']} |"
        )


def _shown(counts: Iterable[Counts], length: int) -> Iterator[Counts]:
    """Show a bar on a terminal while the work is done."""
    with click.progressbar(counts, length=length, file=sys.stderr) as finished:
        yield from finished


@click.command(help=__doc__)
@click.option(
    "--policies", type=click.Choice([policy.value for policy in Policy]), multiple=True, help="Only these rows."
)
@click.option(
    "--attackers",
    type=click.Choice([attacker.value for attacker in Attacker]),
    multiple=True,
    help="Only these attackers.",
)
@click.option("--pairs", type=click.IntRange(min=1), help="So many pairs by chance, instead of all.")
@click.option("--seed", type=int, default=1, help="Chooses the pairs.", show_default=True)
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
def main(
    *, policies: tuple[str, ...], attackers: tuple[str, ...], pairs: int | None, seed: int, processes: int
) -> None:
    """Run the tasks and print the table."""
    rows = [Policy(policy) for policy in policies] or list(Policy)
    works = plan_work(_suites(), rows, [Attacker(each) for each in attackers] or list(Attacker), pairs=pairs, seed=seed)
    total: dict[tuple[Policy, Attacker | None], Counter[str]] = {}
    with ProcessPoolExecutor(processes) as pool:
        for counts in _shown(pool.map(run_work, works), len(works)):
            for row, counted in counts.items():
                total.setdefault(row, Counter()).update(counted)
    for policy in rows:
        honest = total[policy, None]
        click.echo(
            f"{policy}: {honest['passed']} of {honest['tasks']} tasks pass, {honest['effects']} effects", err=True
        )
    ordered = {row: total[row] for row in sorted(total, key=lambda row: (rows.index(row[0]), row[1] or ""))}
    click.echo("\n".join(table(ordered)))


if __name__ == "__main__":
    main()
