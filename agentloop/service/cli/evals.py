"""`agentloop evals`: run a suite, compare results, judge them by a gate; the group of all commands about evals.

What computes is imported by the commands that need it: numbers come from scipy and statsmodels, which take a second to load.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve, frozen
from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentloop._event_loops import run_in_event_loop
from agentloop.durable.exits import secrets_of
from agentloop.errors import AgentLoopError, ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors, describe_file_error
from agentloop.service.cli.evals_files import export, import_cases
from agentloop.service.cli.journals import (
    as_journal_errors,
    closed_at_end,
    journal_option,
    journal_place,
    make_journal,
    open_journal,
)
from agentloop.service.cli.sources import dependencies_option, load_dependencies, load_loop, load_named
from agentloop.service.cli.tables import Column, Fit, lay_out, print_table
from agentloop.values.reprs import format_count
from agentloop.values.secrets import open_private
from agentloop.values.visible_text import escape_invisible

if TYPE_CHECKING:
    from agentloop.contracts.can_journal import CanJournal
    from agentloop.evals.comparison import EvalComparison
    from agentloop.evals.gates import Gate, GateReport
    from agentloop.evals.results import EvalResult
    from agentloop.evals.runner import EvalProgress, EvalSuite, StopEval
    from agentloop.evals.upgrade import UpgradeCheck
    from agentloop.values.records import ExecutionHead

DEFAULT_JOURNAL = "evals.db"
"""The journal of evals, where no other one is named."""
_MARGIN = 0.05


@click.group()
def evals() -> None:
    """Compare agents on the same cases, with intervals, and refuse changes that made them worse.

    Example: `agentloop evals run suite.py --baseline main.json --fail-if "pass^3 < 0.9 or cost > +10 %"`.
    """


# --- what both commands print and write -------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Outputs:
    """What a command compares, and where it writes.

    Attributes:
        baseline: the file of a result, or the name of a candidate; None for the first candidate.
        fail_if: the conditions of the gate.
        strict: whether an open gate fails, too.
        k: the number of trials of pass@k and pass^k; None for the default.
        as_json: whether to print the report as JSON.
        result_file: where the result is written; None for nowhere.
        html_file: where the page is written.
        junit_file: where the JUnit XML is written.
    """

    baseline: str | None
    fail_if: Sequence[str]
    strict: bool
    k: int | None
    as_json: bool
    result_file: str | None
    html_file: str | None
    junit_file: str | None


_OPTIONS = (
    click.option(
        "--baseline",
        metavar="FILE|NAME",
        help="Compare with the result in this file, such as that of the main branch, or with this candidate; by default with the first.",
    ),
    click.option(
        "--fail-if",
        "fail_if",
        metavar="CONDITION",
        multiple=True,
        help='Exit with 1 if this certainly holds, such as "pass^3 < 0.9 or cost > +10 %"; repeatable.',
    ),
    click.option("--strict", is_flag=True, help="Exit with 1, too, where there are not enough repeats to decide."),
    click.option(
        "-k", type=click.IntRange(1, 1_000), metavar="N", help="Report pass@N and pass^N; by default up to 3."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of tables."),
    click.option(
        "--result", "result_file", metavar="FILE", help="Write the result, which is a later eval's --baseline."
    ),
    click.option("--html", "html_file", metavar="FILE", help="Write the report as one page for a browser."),
    click.option("--junit", "junit_file", metavar="FILE", help="Write the report as JUnit XML."),
)


def _output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _finish(
    context: click.Context, result: EvalResult, outputs: _Outputs, gate: Gate | None, journal: CanJournal | None
) -> None:
    """Print and write the report of a result, and exit as the gate says."""
    from agentloop.evals.comparison import compare
    from agentloop.evals.report import junit_xml, report_text

    baseline = _baseline_of(outputs.baseline)
    with as_usage_errors():
        comparison = compare(result, baseline, k=outputs.k)
        report = gate.check(result, baseline) if gate is not None else None
    _write(outputs.result_file, lambda: result.to_json().decode())
    _write(outputs.html_file, lambda: _page(result, comparison, report, journal))
    _write(outputs.junit_file, lambda: junit_xml(result, report))
    if outputs.as_json:
        click.echo(escape_invisible(report_text(result, comparison, report)), nl=False)
    else:
        _print(result, comparison, report)
    failed = report is not None and (report.outcome == "fails" or (outputs.strict and report.outcome == "open"))
    context.exit(1 if failed else 0)


def _gate_of(conditions: Sequence[str]) -> Gate | None:
    """Read the conditions before anything runs, so that a mistake costs nothing."""
    if not conditions:
        return None
    from agentloop.evals.gates import gate_of

    try:
        return gate_of(conditions)
    except ConfigurationError as error:
        raise InvalidUsage(f"--fail-if: {error}") from error


def _baseline_of(named: str | None) -> EvalResult | str | None:
    return named if named is None or not _is_file(named) else read_result(named)


def _is_file(named: str) -> bool:
    return Path(named).is_file() or named.endswith(".json") or "/" in named


def read_result(path: str) -> EvalResult:
    """Read the result in a file.

    Raises:
        InvalidUsage: it cannot be read, or is not a result.
    """
    from agentloop.evals.results import EvalResult

    try:
        return EvalResult.from_json(Path(path).read_bytes())
    except AgentLoopError as error:
        raise InvalidUsage(f"{path} is not the result of an eval: {error}") from error
    except (OSError, ValueError) as error:
        raise InvalidUsage(f"{path} cannot be read: {describe_file_error(error)}") from error


def _page(result: EvalResult, comparison: EvalComparison, report: GateReport | None, journal: CanJournal | None) -> str:
    from agentloop.evals.report_page import html_report, read_paths

    paths = None
    if journal is not None:
        with as_journal_errors():
            paths = run_in_event_loop(read_paths(journal, comparison))
    return html_report(result, comparison, gate=report, paths=paths)


def _write(path: str | None, text: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            file.write(text())
    except OSError as error:
        raise InvalidUsage(f"{path} cannot be written: {describe_file_error(error)}") from error


def _print(result: EvalResult, comparison: EvalComparison, report: GateReport | None) -> None:
    from agentloop.evals.quantities import format_cost
    from agentloop.evals.report import notes, tables

    console = create_console()
    cost = "" if result.cost is None else f", {format_cost(result.cost)}"
    click.echo(f"{as_one_line(result.suite)}: {len(result.cases):,} cases, {len(result.trials):,} trials{cost}")
    for table in tables(comparison):
        click.echo()
        columns = [Column(name, Fit.WHOLE if number == 0 else Fit.WRAPPED) for number, name in enumerate(table.head)]
        print_table(console, columns, table.rows)
    lines = [as_one_line(note) for note in notes(result, comparison)]
    lines += [""] if lines and report is not None else []
    lines += [escape_invisible(line) for line in str(report).splitlines()] if report is not None else []
    if lines:
        click.echo("\n".join(["", *lines]))


# --- run --------------------------------------------------------------------------------------------------------------

_RUN_EPILOG = """\
\b
Examples:
  agentloop evals run suite.py --result main.json
  agentloop evals run suite.py --baseline main.json --fail-if "pass^3 < 0.9 or cost > +10 %"
  agentloop evals run suite.py:small --repeats 5 --budget 2 --html report.html

\b
Exit codes:
  0  the eval has run, and no condition certainly holds
  1  a condition of --fail-if holds; with --strict, also where it cannot be decided
  2  usage error
"""


@evals.command(epilog=_RUN_EPILOG, short_help="Run a suite, and report it.")
@click.argument("suite", metavar="SUITE")
@click.option(
    "--journal",
    "--db",
    "journal_file",
    metavar="FILE|URL",
    default=DEFAULT_JOURNAL,
    show_default=True,
    help="Record the trials in this journal, and go on with what it has: a SQLite file, or the URL of a PostgreSQL database.",
)
@click.option(
    "--recordings", metavar="FILE|URL", help="The journal that cases were made from; by default that of the eval."
)
@click.option("--repeats", type=click.IntRange(1, 10_000), metavar="N", help="The trials of each candidate and case.")
@click.option(
    "--budget", type=click.FloatRange(0, min_open=True), metavar="USD", help="Start no trial above this cost."
)
@click.option("--seed", type=int, metavar="N", help="Where the seeds of the trials come from.")
@click.option("--case", "cases", metavar="NAME", multiple=True, help="Run this case only; repeatable.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Run the cases with this tag only; repeatable.")
@click.option("--candidate", "candidates", metavar="NAME", multiple=True, help="Run this candidate only; repeatable.")
@click.option(
    "--stop-when-sure",
    is_flag=True,
    help="Of two candidates, stop as soon as it is sure which one is better, or that they differ by less than 5 points.",
)
@_output_options
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    suite: str,
    journal_file: str,
    recordings: str | None,
    repeats: int | None,
    budget: float | None,
    seed: int | None,
    cases: Sequence[str],
    tags: Sequence[str],
    candidates: Sequence[str],
    stop_when_sure: bool,
    **outputs: Any,
) -> None:
    """Run the candidates of a suite on its cases, and report how they compare.

    SUITE is `file.py` with an EvalSuite named `suite`, or `file.py:name`, or `module:name`. An eval that was interrupted
    goes on, and nothing is paid twice. Effects are refused, unless the suite names their tools.
    """
    chosen, gate = _Outputs(**outputs), _gate_of(outputs["fail_if"])
    with as_usage_errors():
        found = _load_suite(suite)
        given: dict[str, Any] = {"repeats": repeats, "budget": budget, "seed": seed}
        found = evolve(found, **{name: value for name, value in given.items() if value is not None})
        found = _selected(found, cases, tags, candidates)
        stop = _stop_of(found) if stop_when_sure else None
    if chosen.baseline is not None and not _is_file(chosen.baseline):
        _check_candidate(chosen.baseline, found)
    journal = open_journal(journal_file, ())
    source = journal if recordings is None else closed_at_end(make_journal(recordings))
    with as_usage_errors(), as_journal_errors():
        result = _run(found, journal, source, stop)
    _finish(context, result, chosen, gate, journal)


def _load_suite(path: str) -> EvalSuite:
    from agentloop.evals.runner import EvalSuite

    return load_named(path, EvalSuite, name="suite", what="an EvalSuite")


def _selected(suite: EvalSuite, cases: Sequence[str], tags: Sequence[str], candidates: Sequence[str]) -> EvalSuite:
    """Return the suite with the cases and candidates that were chosen."""
    for name in cases:
        suite.cases.named(name)
    chosen = [case for case in suite.cases.tagged(*tags) if not cases or case.name in cases]
    if not chosen:
        raise ConfigurationError(f"no case of {suite.name!r} has {'these names and tags' if cases else 'these tags'}")
    for name in candidates:
        _check_candidate(name, suite)
    kept = [each for each in suite.candidates if not candidates or each.name in candidates]
    return evolve(suite.with_cases(chosen), candidates=kept)


def _check_candidate(name: str, suite: EvalSuite) -> None:
    from agentloop.errors.hints import suggest

    names = [each.name for each in suite.candidates]
    if name not in names:
        raise InvalidUsage(f"{suite.name!r} has no candidate {name!r}{suggest(name, names)}; it has {', '.join(names)}")


def _stop_of(suite: EvalSuite) -> StopEval:
    from agentloop.evals.early_stops import StopWhenSure

    names = [each.name for each in suite.candidates]
    if len(names) != 2:  # noqa: PLR2004  # one beside the other
        raise InvalidUsage(
            f"--stop-when-sure compares two candidates, and {suite.name!r} has {len(names)}; choose with --candidate"
        )
    return StopWhenSure([case.name for case in suite.cases], *names, margin=_MARGIN)


def _run(suite: EvalSuite, journal: CanJournal, recordings: CanJournal, stop: StopEval | None) -> EvalResult:
    console = create_console(stderr=True)
    board = _Board(console, [each.name for each in suite.candidates])
    work = suite.run(journal=journal, recordings=recordings, on_progress=board.note, stop=stop)
    if not console.is_interactive:
        return run_in_event_loop(work)
    with Live(console=console, transient=True, get_renderable=board.lines, refresh_per_second=4):
        return run_in_event_loop(work)


class _Board:
    """The table that a person sees while an eval runs.

    Args:
        console: where it is shown.
        candidates: the names of the candidates.
    """

    def __init__(self, console: Console, candidates: Sequence[str]) -> None:
        self._console = console
        self._counts = {name: [0, 0, 0] for name in candidates}
        self._costs = dict[str, float | None](dict.fromkeys(candidates))
        self._progress: EvalProgress | None = None

    def note(self, progress: EvalProgress) -> None:
        """Count a trial that has ended."""
        trial = progress.trial
        counts = self._counts[trial.candidate]
        counts[0] += 1
        counts[1] += trial.passed
        counts[2] += bool(trial.error)
        if trial.cost is not None:
            self._costs[trial.candidate] = (self._costs[trial.candidate] or 0.0) + trial.cost
        self._progress = progress

    def lines(self) -> Text:
        """Return the table as it is now, and a line about the whole eval."""
        from agentloop.evals.quantities import format_cost

        progress = self._progress
        caption = "starting"
        if progress is not None:
            cost = "an unknown cost" if progress.cost is None else format_cost(progress.cost)
            caption = f"{progress.done:,} of {progress.planned:,} trials, {cost} so far"
        columns = [
            Column(name, is_number=name != "candidate") for name in ("candidate", "trials", "pass", "errors", "cost")
        ]
        rows = list[tuple[str, ...]]()
        for name, (done, passed, errors) in self._counts.items():
            share, spent = f"{100 * passed / done:.0f} %" if done else "", self._costs[name]
            rows.append((name, f"{done:,}", share, f"{errors:,}", "unknown" if spent is None else format_cost(spent)))
        return Text("\n").join([*lay_out(self._console, columns, rows), Text(caption, "italic dim")])


# --- compare ----------------------------------------------------------------------------------------------------------

_COMPARE_EPILOG = """\
\b
Examples:
  agentloop evals compare result.json --baseline main.json
  agentloop evals compare part-1.json part-2.json --html report.html
"""


@evals.command(epilog=_COMPARE_EPILOG, short_help="Report results that have been written.")
@click.argument("results", metavar="RESULT...", nargs=-1, required=True)
@click.option(
    "--journal", "--db", "journal_file", metavar="FILE|URL", help="Show from this journal where executions part."
)
@_output_options
@click.pass_context
def compare(context: click.Context, /, *, results: Sequence[str], journal_file: str | None, **outputs: Any) -> None:
    """Report the results of `evals run --result` again: compare them with a baseline, write a page, judge them by a gate.

    Several files are parts of one eval, such as one per machine or per candidate.
    """
    chosen, gate = _Outputs(**outputs), _gate_of(outputs["fail_if"])
    first, *others = [read_result(path) for path in results]
    with as_usage_errors():
        result = first.merge(*others)
    journal = None if journal_file is None else closed_at_end(make_journal(journal_file))
    _finish(context, result, chosen, gate, journal)


# --- upgrade ----------------------------------------------------------------------------------------------------

_UPGRADE_EPILOG = """\
\b
Examples:
  agentloop evals upgrade support:loop --journal runs.db
  agentloop evals upgrade support.py:loop --agent support --json

\b
Exit codes:
  0  every unfinished execution goes on as recorded
  1  one differs, or cannot go on
  2  usage error
"""


@click.command(epilog=_UPGRADE_EPILOG, short_help="Check unfinished executions against new code.")
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@click.option(
    "--agent", "agents", metavar="NAME", multiple=True, help="Check the executions of this agent only; repeatable."
)
@dependencies_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def upgrade(
    context: click.Context,
    *,
    loop_path: str,
    journal_file: str | None,
    agents: Sequence[str],
    dependencies: str | None,
    as_json: bool,
) -> None:
    """Replay each execution that waits or runs against the code of MODULE:LOOP, without side effects, before a deploy.

    Each one continues equal, diverges at a step, or cannot continue, such as one that waits with a call of a tool that is gone.
    """
    from agentloop.evals.upgrade import Outlook, check_upgrade

    def concerns(head: ExecutionHead) -> bool:
        return not agents or head.agent_name in agents

    # Output of tools and modules must not mix with the report.
    with as_usage_errors(), as_journal_errors(), redirect_stdout(sys.stderr):
        loop: AgentLoop = load_loop(loop_path)
        given = load_dependencies(dependencies)
        journal = closed_at_end(make_journal(journal_place(journal_file), secrets_of(loop)))
        report = run_in_event_loop(check_upgrade(loop, journal, where=concerns, dependencies=given))
    if as_json:
        click.echo(json.dumps([_plain(check) for check in report.checks], indent=2))
    else:
        _print_checks(report.checks)
        counts = ", ".join([f"{len(report.of(outlook)):,} {outlook.value}" for outlook in Outlook])
        click.echo(f"{format_count(len(report.checks), 'unfinished execution')}: {counts}")
    context.exit(0 if report.is_safe else 1)


def _plain(check: UpgradeCheck) -> dict[str, object]:
    return {
        "execution": check.execution_id,
        "status": check.status.value,
        "outlook": check.outlook.value,
        "step": check.step,
        "place": check.place,
        "why": check.why,
    }


def _print_checks(checks: Sequence[UpgradeCheck]) -> None:
    rows = [
        [check.execution_id, check.status.value, check.outlook.value, str(check.step or ""), check.why]
        for check in checks
        if check.outlook.value != "continues equal"
    ]
    if rows:
        columns = [Column("id"), Column("status"), Column("outlook"), Column("step", is_number=True)]
        print_table(create_console(), [*columns, Column("why", Fit.WRAPPED)], rows)


for _command in (upgrade, import_cases, export):
    evals.add_command(_command)
