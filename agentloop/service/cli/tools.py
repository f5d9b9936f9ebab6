"""`agentloop tools`: list tools, and check their definitions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import click
from attrs import asdict

from agentloop.contracts.tool import Tool
from agentloop.loop.audit import audit_definitions, format_audit
from agentloop.service.cli.console import create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.inventory import (
    Inventory,
    audit_option,
    format_parameters,
    inspect_servers,
    inspect_source,
    mcp_option,
    print_problems,
    trust_of,
    trust_option,
)
from agentloop.service.cli.tables import Column, Fit, print_table
from agentloop.toolkits.import_path import AllowedModules
from agentloop.toolkits.statements import Trust
from agentloop.values.reprs import format_count

_EPILOG = """\
\b
Exit codes:
  0  no problems; warnings are allowed
  1  definitions have problems
  2  usage error, such as an unknown file or module
"""


@click.group()
def tools() -> None:
    """List tools and ensembles, or check their definitions.

    Example: `agentloop tools list shop.py`.

    PATH is a Python file, the dotted name of a module, or a TOML file that describes ensembles. Python code is imported,
    which executes it; tools are not called.
    """


@tools.command(name="list", epilog=_EPILOG, short_help="List the tools of a file, a module or MCP servers.")
@click.argument("path", required=False)
@mcp_option
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def list_tools(
    context: click.Context,
    *,
    path: str | None,
    mcp: Sequence[str],
    allow: Sequence[str],
    trust: Sequence[str],
    as_json: bool,
) -> None:
    """List the tools of PATH: name, ensemble, effect, whether they are offered, parameters, description.

    Example: `agentloop tools list shop.py`.

    With --mcp, also list the tools of MCP servers, which are started or connected to.
    """
    if path is None and not mcp:
        raise click.UsageError("Missing argument 'PATH', or --mcp")
    trusted = trust_of(trust)
    inventory = Inventory() if path is None else _inspect(path, allow, trusted)
    if mcp:
        with as_usage_errors():
            servers = inspect_servers(mcp, trusted)
        inventory = Inventory([*inventory.rows, *servers.rows], [*inventory.problems, *servers.problems])
    if as_json:
        click.echo(json.dumps([row.as_json() for row in inventory.rows], indent=2))
    elif inventory.rows:
        _print_tools(inventory)
    print_problems(inventory.problems)
    if not inventory.rows and not inventory.problems:
        raise InvalidUsage(f"{path or mcp[0]} has no tools; decorate functions in it with @agentloop.tool")
    context.exit(1 if inventory.problems else 0)


@tools.command(name="check", epilog=_EPILOG, short_help="Check the definitions of tools.")
@click.argument("path")
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@trust_option
@audit_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.pass_context
def check(
    context: click.Context, *, path: str, allow: Sequence[str], trust: Sequence[str], audit: bool, as_json: bool
) -> None:
    """Check the definitions of the tools of PATH, and print each problem with its file, key and line.

    Example: `agentloop tools check shop.py`.

    Descriptions that make it hard to choose between the tools are warnings, which do not affect the exit code. Neither do the holes
    that --audit finds: it prints what the tools declare themselves about limits and repetitions, without the guards of a loop.
    """
    inventory = _inspect(path, allow, trust_of(trust))
    tools_found = [each for each, _ in inventory.valid if isinstance(each, Tool)]
    audited = audit_definitions(tools_found) if audit else None
    warnings = inventory.warnings
    if as_json:
        groups = {"problems": inventory.problems, "warnings": warnings}
        data: dict[str, Any] = {name: [asdict(problem) for problem in group] for name, group in groups.items()}
        data |= {} if audited is None else {"audit": audited.as_json()}
        click.echo(json.dumps({"tools": len(inventory.rows), **data}, indent=2))
    else:
        print_problems(inventory.problems)
        print_problems(warnings, "warning")
        if not inventory.problems:
            counts = [format_count(len(warnings), "warning")] if warnings else []
            click.echo(", ".join([format_count(len(inventory.rows), "tool"), "no problems", *counts]))
        if audited is not None:
            click.echo("\n".join(format_audit(audited)))
    context.exit(1 if inventory.problems else 0)


def _inspect(path: str, allow: Sequence[str], trust: Trust) -> Inventory:
    # A mistake in --allow is reported for Python files too, which do not use it.
    try:
        AllowedModules.of(allow)
    except TypeError as error:
        raise InvalidUsage(str(error)) from error
    # --json must leave a valid document on stdout, whatever modules print while they are imported.
    with redirect_stdout(sys.stderr), as_usage_errors():
        return inspect_source(path, allow, trust)


def _print_tools(inventory: Inventory) -> None:
    whole = ("tool", "ensemble", "effect", "offered")
    columns = [*map(Column, whole), *[Column(name, Fit.WRAPPED) for name in ("parameters", "description")]]
    rows = [
        [
            row.name,
            row.ensemble,
            row.effect,
            "yes" if row.enabled else "no",
            format_parameters(row.parameters),
            row.description.strip().partition("\n")[0],
        ]
        for row in inventory.rows
    ]
    print_table(create_console(), columns, rows)
