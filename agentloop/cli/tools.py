"""`agentloop tools`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

import click
from attrs import asdict
from rich.table import Table

from agentloop.cli.console import console, counted, one_line
from agentloop.cli.errors import BadUsage, told_as_bad_usage
from agentloop.cli.inventory import Inventory, Problem, inventory, mcp_inventory, mcp_option, parameters_text
from agentloop.tools.ensembles.import_path import AllowedModules

_EPILOG = """\
\b
Exit codes:
  0  all is well, apart from warnings
  1  definitions have problems
  2  asked for in a wrong way: no such file or module
"""


@click.group()
def tools() -> None:
    """List tools and ensembles, or check how they are defined.

    PATH is a Python file, the dotted name of a module, or a TOML file that describes ensembles. Python code is imported,
    which runs it; no tool is run.
    """


@tools.command(name="list", epilog=_EPILOG)
@click.argument("path", required=False)
@mcp_option
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of a table.")
@click.pass_context
def list_tools(
    context: click.Context, *, path: str | None, mcp: Sequence[str], allow: Sequence[str], as_json: bool
) -> None:
    """List the tools of PATH: name, ensemble, effect, whether they are offered, parameters, description.

    Those of MCP servers are listed with --mcp, for which the servers are started, or connected with.
    """
    if path is None and not mcp:
        raise click.UsageError("Missing argument 'PATH', or --mcp")
    found = Inventory() if path is None else _found(path, allow)
    if mcp:
        with told_as_bad_usage():
            others = mcp_inventory(mcp)
        found = Inventory([*found.rows, *others.rows], [*found.problems, *others.problems])
    if as_json:
        click.echo(json.dumps([row.as_json() for row in found.rows], indent=2))
    elif found.rows:
        console().print(_table(found))
    _tell(found.problems)
    if not found.rows and not found.problems:
        raise BadUsage(f"{path or mcp[0]} has no tools; decorate functions in it with @agentloop.tool")
    context.exit(1 if found.problems else 0)


@tools.command(name="check", epilog=_EPILOG)
@click.argument("path")
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of lines.")
@click.pass_context
def check(context: click.Context, *, path: str, allow: Sequence[str], as_json: bool) -> None:
    """Check how the tools of PATH are defined, and tell each problem with its file, its key and its line.

    Descriptions that make it hard to choose between the tools are told as warnings, which are no problems.
    """
    found = _found(path, allow)
    warnings = found.warnings
    if as_json:
        told = {
            name: [asdict(one) for one in ones] for name, ones in (("problems", found.problems), ("warnings", warnings))
        }
        click.echo(json.dumps({"tools": len(found.rows), **told}, indent=2))
    else:
        _tell(found.problems)
        _tell(warnings, "warning")
        if not found.problems:
            warned = [counted(len(warnings), "warning")] if warnings else []
            click.echo(", ".join([counted(len(found.rows), "tool"), "no problems", *warned]))
    context.exit(1 if found.problems else 0)


def _found(path: str, allow: Sequence[str]) -> Inventory:
    try:
        AllowedModules.of(allow)
    except TypeError as error:
        raise BadUsage(str(error)) from error
    with redirect_stdout(sys.stderr), told_as_bad_usage():
        return inventory(path, allow)


def _table(found: Inventory) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("tool", "ensemble", "effect", "offered", "parameters", "description"):
        table.add_column(column, overflow="fold")
    for row in found.rows:
        offered = "yes" if row.enabled else "no"
        told = [row.name, row.ensemble, row.effect, offered, parameters_text(row.parameters), _first(row.description)]
        table.add_row(*map(one_line, told))
    return table


def _first(description: str) -> str:
    return description.strip().partition("\n")[0]


def _tell(problems: Sequence[Problem], kind: str = "") -> None:
    for problem in problems:
        place = f"{problem.file}, line {problem.line}" if problem.line else problem.file
        click.echo(one_line(": ".join(filter(None, [place, problem.key, kind, problem.message]))), err=True)
