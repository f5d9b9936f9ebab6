"""`agentloop simulate`: run agents on simulated machines, with faults from seeds, and check what comes of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time

import click
from attrs import define, frozen

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
_SAVE_SECONDS = 20
"""How often results are written, in seconds of processor time."""


ALL = "all"


@click.command(epilog=_EPILOG, short_help="Run agents on simulated machines that fail.")
@click.option(
    "--seeds", metavar="A:B", default="0:100", show_default=True, help="The seeds from A up to B, without B; or one."
)
@click.option(
    "--scenario", type=click.Choice((*SCENARIO_NAMES, ALL)), default="recovery", show_default=True, help="What runs."
)
@click.option(
    "--app", "loop_path", metavar="MODULE:LOOP", help="Run this loop, with its tools, in place of a scenario."
)
@click.option("--storage", type=click.Choice(STORAGES), default="memory", show_default=True, help="Where records are.")
@click.option("--faults", "faults", metavar="PLAN", help="Let these faults happen, as a failing seed prints them.")
@click.option(
    "--results", metavar="FILE", help="Add the results to this file, and run the seeds that it does not have."
)
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
    if faults is not None and results is not None:
        raise InvalidUsage("--results adds up what seeds stand for; leave it out where --faults says what goes wrong")
    with as_usage_errors():
        plan = None if faults is None else [PlannedFault.parse(text) for text in faults.split(",") if text.strip()]
        subjects = _subjects(scenario, loop_path, storage)
    known = _read_results(results)
    summaries = {subject.name: known.setdefault(subject.name, SimulationSummary()) for subject in subjects}
    runs = _Runs(subjects, plan, known, results)
    failed = runs.run(range(first, end))
    if len(subjects) > 1:
        _print_scenarios(summaries)
    _print_faults(SimulationSummary.total(summaries.values()))
    for subject, run in failed[:_MOST_SHOWN]:
        _print_failure(shrink_run(run, subject.kind, storage=storage), subject, context)
    _print_conclusion(summaries)
    context.exit(1 if failed else 0)


@frozen
class _Subject:
    """What runs.

    Attributes:
        kind: the scenario.
        option: how the command line names it.
        storage: where records are.
    """

    kind: type[SimulatedScenario]
    option: tuple[str, str]
    storage: str

    @property
    def name(self) -> str:
        """The name in the results."""
        return f"{self.option[1]}/{self.storage}"


def _subjects(scenario: str, loop_path: str | None, storage: str) -> Sequence[_Subject]:
    if loop_path is not None:
        return [_Subject(scenario_of(load_loop(loop_path)), ("--app", loop_path), storage)]
    names = SCENARIO_NAMES if scenario == ALL else [scenario]
    return [_Subject(scenario_named(name), ("--scenario", name), storage) for name in names]


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


@define
class _Runs:
    """Runs seeds, and adds them up.

    Attributes:
        subjects: what runs with each seed.
        plan: what goes wrong, if not the seed says it.
        known: the summary of each subject, and of others that the file has.
        results: the file; None if the results are not kept.
    """

    subjects: Sequence[_Subject]
    plan: Sequence[PlannedFault] | None
    known: dict[str, SimulationSummary]
    results: str | None

    def run(self, seeds: range) -> list[tuple[_Subject, SimulatedRun]]:
        """Run the seeds that the summaries do not have, and return the runs that failed."""
        spinner, failed = Spinner(create_console(stderr=True)), list[tuple[_Subject, SimulatedRun]]()
        saved = process_time()
        left = {each.name: set(self.known[each.name].left(seeds)) for each in self.subjects}
        total, done, executions, began = sum(map(len, left.values())), 0, 0, process_time()
        try:
            for seed in seeds:
                for subject in self.subjects:
                    if seed not in left[subject.name]:
                        continue
                    before = process_time()
                    run = run_seed(seed, subject.kind, storage=subject.storage, plan=self.plan)
                    self.known[subject.name].add(run, process_time() - before)
                    done, executions = done + 1, executions + run.executions
                    failed += [(subject, run)] if run.problems else []
                    rate = executions / max(process_time() - began, 0.001)
                    spinner.show(
                        f"{done:,} of {format_count(total, 'run')}, {rate:.0f} executions/s, {len(failed)} failed"
                    )
                if process_time() - saved > _SAVE_SECONDS:
                    self._save()
                    saved = process_time()
        finally:
            spinner.hide()
            self._save()
        return failed

    def _save(self) -> None:
        if self.results is not None:
            _write_results(self.results, self.known)


def _print_scenarios(summaries: Mapping[str, SimulationSummary]) -> None:
    names = ("scenario", "runs", "executions", "faults", "failing seeds", "executions/s")
    rows = [
        [
            name,
            *(f"{each.runs:,}", f"{each.executions:,}", f"{each.hits.total():,}"),
            f"{len(each.failures)}",
            f"{each.rate:.0f}",
        ]
        for name, each in summaries.items()
    ]
    print_table(create_console(), [Column(name, is_number=name != names[0]) for name in names], rows)
    click.echo()


def _print_faults(summary: SimulationSummary) -> None:
    head, *rows = summary.table()
    print_table(create_console(), [Column(name or "fault", is_number=bool(name)) for name in head], rows)
    if missing := summary.never_hit():
        click.echo(f"never: {', '.join(missing)}")


def _print_conclusion(summaries: Mapping[str, SimulationSummary]) -> None:
    total = SimulationSummary.total(summaries.values())
    parts = [format_count(total.runs, "run"), format_count(total.executions, "execution")]
    parts += [format_count(total.hits.total(), "fault"), f"{total.rate:.1f} executions per second of processor time"]
    count = sum(len(each.failures) for each in summaries.values())
    click.echo(f"{', '.join(parts)}: {format_count(count, 'failing seed') if count else 'nothing is wrong'}")


def _print_failure(run: SimulatedRun, subject: _Subject, context: click.Context) -> None:
    for problem in run.problems:
        click.echo(f"seed {run.seed}: {escape_invisible(problem)}")
    plan = ",".join(map(str, run.plan))
    program = context.find_root().info_name or "agentloop"
    command = [program, "simulate", *subject.option, "--storage", subject.storage]
    command += ["--seeds", str(run.seed), "--faults", plan]
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
        # A process that is killed while it writes leaves the file as it was.
        with open(f"{path}.new", "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)
        Path(f"{path}.new").replace(path)
    except OSError as error:
        raise InvalidUsage(f"the results cannot be written into {path}: {error.strerror or error}") from error
