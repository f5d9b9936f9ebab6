"""`agentloop simulate`: run agents on simulated machines, with faults from seeds, and check what comes of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import click

from agentloop.errors import ConfigurationError
from agentloop.service.cli.console import Spinner, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.sources import load_loop
from agentloop.service.cli.tables import Column, print_table
from agentloop.service.simulation import SCENARIO_NAMES, scenario_named
from agentloop.testing.simulation.faults import PlannedFault
from agentloop.testing.simulation.runs import STORAGES, SimulatedRun, shrink_run
from agentloop.testing.simulation.runs import simulate as run_seed
from agentloop.testing.simulation.scenarios import SimulatedScenario, scenario_of
from agentloop.testing.simulation.summary import SimulationSummary
from agentloop.values.reprs import format_count
from agentloop.values.secrets import open_private
from agentloop.values.visible_text import escape_invisible

_EPILOG = """\
\b
Examples:
  agentloop simulate --seeds 0:200
  agentloop simulate --scenario agents --seeds 17 --faults crash@62:40
  agentloop simulate --app support:loop --seeds 0:100

\b
Exit codes:
  0  nothing is wrong
  1  a seed has shown a problem
  2  usage error
"""
_MOST_SHOWN = 5


@click.command(epilog=_EPILOG, short_help="Run agents on simulated machines that fail.")
@click.option(
    "--seeds", metavar="A:B", default="0:100", show_default=True, help="The seeds from A up to B, without B; or one."
)
@click.option("--scenario", type=click.Choice(SCENARIO_NAMES), default="recovery", show_default=True, help="What runs.")
@click.option(
    "--app", "loop_path", metavar="MODULE:LOOP", help="Run this loop, with its tools, in place of a scenario."
)
@click.option("--storage", type=click.Choice(STORAGES), default="memory", show_default=True, help="Where records are.")
@click.option("--faults", "faults", metavar="PLAN", help="Let these faults happen, as a failing seed prints them.")
@click.option("--results", metavar="FILE", help="Add the results to this file, and go on behind the seeds that it has.")
@click.pass_context
def simulate(
    context: click.Context,
    *,
    seeds: str,
    scenario: str,
    loop_path: str | None,
    storage: str,
    faults: str | None,
    results: str | None,
) -> None:
    """Run agents on machines that crash, pause, lose their claims and their network, in virtual time, as seeds decide.

    Example: `agentloop simulate --seeds 0:200`.

    Each run is checked against a model of what records may say, and against what the tools really did. A seed that fails is run again
    with fewer faults, down to those that are needed.
    """
    first, end = _parse_seeds(seeds)
    with as_usage_errors():
        plan = None if faults is None else [PlannedFault.parse(text) for text in faults.split(",") if text.strip()]
        kind = scenario_named(scenario) if loop_path is None else scenario_of(load_loop(loop_path))
    name = f"{loop_path or scenario}/{storage}"
    known = _read_results(results)
    summary = known.get(name, SimulationSummary())
    start = max(first, summary.next_seed) if results is not None else first
    failed = _run(kind, range(start, end), storage, plan, summary)
    known[name] = summary
    if results is not None:
        _write_results(results, known)
    _print_summary(summary)
    for run in failed[:_MOST_SHOWN]:
        _print_failure(shrink_run(run, kind, storage=storage), context, loop_path, scenario, storage)
    context.exit(1 if failed else 0)


def _parse_seeds(text: str) -> tuple[int, int]:
    first, separator, end = text.partition(":")
    try:
        start = int(first or 0)
        seeds = (start, int(end)) if separator else (start, start + 1)
    except ValueError as error:
        raise InvalidUsage(f"--seeds takes A:B, such as 0:100, or one number, not {text!r:.50}") from error
    if seeds[0] < 0 or seeds[1] <= seeds[0]:
        raise InvalidUsage(f"--seeds takes A:B, where B is larger than A, not {text!r:.50}")
    return seeds


def _run(
    kind: type[SimulatedScenario],
    seeds: range,
    storage: str,
    plan: Sequence[PlannedFault] | None,
    summary: SimulationSummary,
) -> list[SimulatedRun]:
    """Run the seeds, add them to the summary, and return those that failed."""
    spinner, failed = Spinner(create_console(stderr=True)), list[SimulatedRun]()
    try:
        for number, seed in enumerate(seeds, 1):
            before = process_time()
            run = run_seed(seed, kind, storage=storage, plan=plan)
            summary.add(run, process_time() - before)
            failed += [run] if run.problems else []
            spinner.show(
                f"{number:,} of {format_count(len(seeds), 'run')}, {summary.rate:.0f} executions/s, {len(failed)} failed"
            )
    finally:
        spinner.hide()
    return failed


def _print_summary(summary: SimulationSummary) -> None:
    head, *rows = summary.table()
    print_table(create_console(), [Column(name or "fault", is_number=bool(name)) for name in head], rows)
    if missing := summary.never_hit():
        click.echo(f"never: {', '.join(missing)}")
    parts = [format_count(summary.runs, "run"), format_count(summary.executions, "execution")]
    parts += [
        format_count(summary.hits.total(), "fault"),
        f"{summary.rate:.1f} executions per second of processor time",
    ]
    failures = format_count(len(summary.failures), "failing seed") if summary.failures else "nothing is wrong"
    click.echo(f"{', '.join(parts)}: {failures}")


def _print_failure(
    run: SimulatedRun, context: click.Context, loop_path: str | None, scenario: str, storage: str
) -> None:
    for problem in run.problems:
        click.echo(f"seed {run.seed}: {escape_invisible(problem)}")
    what = ["--scenario", scenario] if loop_path is None else ["--app", loop_path]
    plan = ",".join(map(str, run.plan))
    program = context.find_root().info_name or "agentloop"
    command = [program, "simulate", *what, "--storage", storage, "--seeds", str(run.seed), "--faults", plan]
    click.echo(f"again: {shlex.join(command)}")


# --- results ----------------------------------------------------------------------------------------------------------


def _read_results(path: str | None) -> dict[str, SimulationSummary]:
    if path is None or not Path(path).exists():
        return {}
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: SimulationSummary.from_plain(each) for name, each in data.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidUsage(f"the results in {path} cannot be read: {error}") from ConfigurationError(str(error))


def _write_results(path: str, known: dict[str, SimulationSummary]) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({name: each.to_plain() for name, each in known.items()}, indent=2)
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)
    except OSError as error:
        raise InvalidUsage(f"the results cannot be written into {path}: {error.strerror or error}") from error
