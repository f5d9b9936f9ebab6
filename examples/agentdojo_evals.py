"""AgentDojo's tasks as an eval: a scripted agent that makes all calls of its task, beside one that sometimes leaves out the last.

    python examples/agentdojo_evals.py --suite banking --repeats 3

It needs neither a key nor a network. Each trial has mails, files and accounts of its own in memory, and AgentDojo's own checks score.
"""

from __future__ import annotations

import asyncio

import click
from dojo.evals import DojoCheck, dojo_agent, dojo_cases, dojo_world
from dojo.suites import Call

from agentloop import AgentLoop
from agentloop.evals import EvalResult, EvalSuite, TrialContext, compare


def thorough(trial: TrialContext) -> AgentLoop:
    """Make all calls."""
    return dojo_agent(trial)


def hasty(trial: TrialContext) -> AgentLoop:
    """Leave out the last call in four of ten trials."""
    return dojo_agent(trial, _leave_out)


def _leave_out(trial: TrialContext, calls: list[Call]) -> list[Call]:
    return calls[:-1] if trial.random.random() < 0.4 else calls  # noqa: PLR2004  # as said above


def suite_of(*names: str, repeats: int = 1) -> EvalSuite:
    """Return the eval of some suites of AgentDojo; of all by default."""
    return EvalSuite("agentdojo", dojo_cases(*names), [thorough, hasty], [DojoCheck()], [dojo_world()], repeats=repeats)


@click.command()
@click.option("--suite", "names", multiple=True, help="Run this suite only; repeatable.")
@click.option("--repeats", default=1, show_default=True, help="The trials of each agent and task.")
def main(names: tuple[str, ...], repeats: int) -> None:
    """Run the eval, and print how the agents differ."""
    result: EvalResult = asyncio.run(suite_of(*names, repeats=repeats).run())
    for name in result.candidates:
        passed = [trial.passed for trial in result.of(name)]
        click.echo(f"{name}: {sum(passed)} of {len(passed)} trials pass")
    for difference in compare(result).differences:
        click.echo(str(difference))


if __name__ == "__main__":
    main()
