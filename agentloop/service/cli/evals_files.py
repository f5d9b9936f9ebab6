"""`agentloop evals import` and `agentloop evals export`: cases from files of others, from journals, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from agentloop._event_loops import run_in_event_loop
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors, describe_file_error, write_new
from agentloop.service.cli.journals import as_journal_errors, closed_at_end, journal_place, make_journal
from agentloop.values.reprs import format_count
from agentloop.values.steps import ExecutionStatus

if TYPE_CHECKING:
    from agentloop.evals.cases import Cases
    from agentloop.evals.datasets import DatasetFormat
    from agentloop.values.records import ExecutionHead

# Names of `agentloop.evals.datasets`, which is not loaded for a list of options.
_FORMATS = ("pydantic-evals", "openai", "langsmith")
_STATUSES = [status.value for status in ExecutionStatus if status is not ExecutionStatus.PENDING]

_IMPORT_EPILOG = """\
\b
Examples:
  agentloop evals import questions.yaml -o cases.jsonl
  agentloop evals import examples.csv --input question --output answer -o cases.jsonl
  agentloop evals import --journal runs.db --status failed -o cases.jsonl
"""


@click.command(name="import", epilog=_IMPORT_EPILOG, short_help="Make cases from others' data, or from a journal.")
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--format", "kind", type=click.Choice(_FORMATS), help="The format of the file; by default by its name.")
@click.option("--input", "inputs", metavar="COLUMN", multiple=True, help="An input column of a table; repeatable.")
@click.option("--output", "outputs", metavar="COLUMN", multiple=True, help="An output column of a table; repeatable.")
@click.option(
    "--journal", "--db", "journal_file", metavar="FILE|URL", help="Make cases from the executions of a journal."
)
@click.option(
    "--status",
    "statuses",
    type=click.Choice(_STATUSES),
    multiple=True,
    help="Take executions with this status; repeatable.",
)
@click.option("--agent", metavar="NAME", help="Take executions of the agent with this name.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), metavar="N", help="Take the newest N executions.")
@click.option("--each-decision", is_flag=True, help="Make a case of each decision of the model, not of each execution.")
@click.option("-o", "--cases", "cases_file", metavar="FILE", help="Write the cases to a new file instead of stdout.")
def import_cases(
    *,
    file: str | None,
    kind: DatasetFormat | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    journal_file: str | None,
    statuses: Sequence[str],
    agent: str | None,
    limit: int | None,
    each_decision: bool,
    cases_file: str | None,
) -> None:
    """Make a file of cases, one JSON object a line, that people review and `Cases.from_jsonl` reads.

    FILE is a dataset of pydantic-evals (.yaml, .json), samples of OpenAI's evals (.jsonl), or a table of LangSmith (.csv).
    """
    if (file is None) == (journal_file is None):
        raise click.UsageError("name a FILE, or a journal with --journal")
    if file is not None:
        if statuses or agent or limit or each_decision:
            raise InvalidUsage("--status, --agent, --limit and --each-decision are about executions of a --journal")
        found = _read_file(file, kind, inputs, outputs)
    else:
        if inputs or outputs or kind:
            raise InvalidUsage("--input, --output and --format are about a FILE")
        found = _read_journal(journal_file, _where(statuses, agent), limit=limit, each_decision=each_decision)
    if not found:
        raise InvalidUsage("there is nothing to make cases of")
    write_new(found.to_jsonl(), cases_file)
    click.echo(format_count(len(found), "case"), err=True)


def _read_file(file: str, kind: DatasetFormat | None, inputs: Sequence[str], outputs: Sequence[str]) -> Cases:
    from agentloop.evals.datasets import read_dataset

    with as_usage_errors():
        try:
            return read_dataset(file, kind, inputs=inputs, outputs=outputs)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidUsage(f"{file} cannot be read: {describe_file_error(error)}") from error


def _where(statuses: Sequence[str], agent: str | None) -> Callable[[ExecutionHead], bool]:
    return lambda head: (not statuses or head.status.value in statuses) and (agent is None or head.agent_name == agent)


def _read_journal(
    place: str | None, where: Callable[[ExecutionHead], bool], *, limit: int | None, each_decision: bool
) -> Cases:
    from agentloop.evals.cases import Cases

    journal = closed_at_end(make_journal(journal_place(place)))
    with as_journal_errors():
        return run_in_event_loop(Cases.from_journal(journal, where=where, each_decision=each_decision, limit=limit))


_EXPORT_EPILOG = """\
\b
Examples:
  agentloop evals export cases.jsonl cases.yaml
  agentloop evals export cases.jsonl samples.jsonl --format openai
"""


@click.command(epilog=_EXPORT_EPILOG, short_help="Write cases as others' data.")
@click.argument("cases", metavar="CASES")
@click.argument("file", metavar="FILE")
@click.option("--format", "kind", type=click.Choice(_FORMATS), help="The format of the file; by default by its name.")
def export(*, cases: str, file: str, kind: str | None) -> None:
    """Write the cases of a file as a dataset of pydantic-evals, as samples of OpenAI's evals, or as a table of LangSmith.

    CASES is a file of `Cases.to_jsonl`, or a table with the columns name, input, tags and expected.….
    """
    from agentloop.evals.cases import Cases
    from agentloop.evals.datasets import write_dataset

    if Path(file).exists():
        raise InvalidUsage(f"the file {file} exists already; choose another name")
    read = Cases.from_csv if cases.lower().endswith(".csv") else Cases.from_jsonl
    with as_usage_errors():
        try:
            found = read(cases)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidUsage(f"{cases} cannot be read: {describe_file_error(error)}") from error
        try:
            write_dataset(found, file, cast("DatasetFormat | None", kind))
        except OSError as error:
            raise InvalidUsage(f"{file} cannot be written: {describe_file_error(error)}") from error
    click.echo(format_count(len(found), "case"), err=True)
