"""`agentloop skills`: list skills, check them, and pin their content in a lock file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from agentloop.errors import ToolFailed
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.tables import Column, Fit, print_table
from agentloop.toolkits.skill_files import Mistake, Skill, SkillLock, find_skills
from agentloop.values.reprs import format_count

_EPILOG = """\
\b
Exit codes:
  0  no mistakes; warnings are allowed
  1  skills have mistakes, or their content is not the locked one
  2  usage error, such as an unknown folder
"""
_folders = click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")


@click.group()
def skills() -> None:
    """List skills, check them, or lock their content.

    Example: `agentloop skills check skills`.

    FOLDER is the folder of a skill, which has a file SKILL.md, or a folder with such folders.
    """


@skills.command(name="list", epilog=_EPILOG, short_help="List skills with their descriptions.")
@_folders
@click.option(
    "--lock", type=click.Path(path_type=Path), metavar="FILE", help="Show which skills this file has approved."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def list_skills(context: click.Context, *, folders: Sequence[str], lock: Path | None, as_json: bool) -> None:
    """List the skills of FOLDER: name, description, number of scripts, and with --lock whether they are approved.

    Example: `agentloop skills list skills`.
    """
    found, mistakes = _find(folders)
    states = _states(found, lock)
    if as_json:
        click.echo(json.dumps([_as_json(skill, states.get(skill.name)) for skill in found], indent=2))
    elif found:
        _print_skills(found, states)
    _print(mistakes)
    context.exit(1 if mistakes else 0)


@skills.command(epilog=_EPILOG, short_help="Check skills, and with --lock also their content.")
@_folders
@click.option(
    "--lock", type=click.Path(path_type=Path), metavar="FILE", help="Compare the content with this lock file."
)
@click.pass_context
def check(context: click.Context, *, folders: Sequence[str], lock: Path | None) -> None:
    """Check the skills of FOLDER, and print each mistake with its file, line and key.

    Example: `agentloop skills check skills`.
    """
    found, mistakes = _find(folders)
    _print(mistakes)
    _print([warning for skill in found for warning in skill.warnings], "warning")
    changed = {name: state for name, state in _states(found, lock).items() if state != "approved"}
    for name, state in changed.items():
        click.echo(f"{name}: {state}; review it, then run agentloop skills lock", err=True)
    if not mistakes and not changed:
        click.echo(f"{format_count(len(found), 'skill')}, no mistakes")
    context.exit(1 if mistakes or changed else 0)


@skills.command(epilog=_EPILOG, short_help="Approve the content of skills in a lock file.")
@_folders
@click.option(
    "--lock",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=Path("skills.lock"),
    show_default=True,
    help="The file to write.",
)
@click.pass_context
def lock(context: click.Context, *, folders: Sequence[str], lock: Path) -> None:
    """Approve the skills of FOLDER as they are now: write their hashes to a lock file, besides those that it has.

    Example: `agentloop skills lock skills`.

    Nothing is written when a skill has mistakes.
    """
    found, mistakes = _find(folders)
    if not mistakes:
        states = _states(found, lock)
        try:
            with as_usage_errors():
                SkillLock(lock).approve(found)
        except ToolFailed as error:
            raise InvalidUsage(str(error)) from error
        for skill in found:
            click.echo(as_one_line(f"{skill.name}: {states[skill.name]}, now {skill.digest}"))
    _print(mistakes)
    context.exit(1 if mistakes else 0)


def _find(folders: Sequence[str]) -> tuple[Sequence[Skill], list[Mistake]]:
    with as_usage_errors():
        return find_skills(folders)


def _states(found: Sequence[Skill], lock: Path | None) -> dict[str, str]:
    """Return by the name of each skill whether a lock file has approved it; nothing without a file."""
    if lock is None:
        return {}
    with as_usage_errors():
        approved = SkillLock(lock).read()
    states = {None: "new", True: "approved", False: "changed"}
    return {
        skill.name: states[None if skill.name not in approved else approved[skill.name] == skill.digest]
        for skill in found
    }


def _as_json(skill: Skill, state: str | None) -> dict[str, object]:
    return {
        "name": skill.name,
        "description": skill.description,
        "folder": str(skill.folder),
        "digest": skill.digest,
        "scripts": skill.scripts,
        **({} if state is None else {"state": state}),
    }


def _print_skills(found: Sequence[Skill], states: dict[str, str]) -> None:
    names = ["skill", *(["state"] if states else [])]
    columns = [*map(Column, names), Column("scripts", is_number=True), Column("description", Fit.WRAPPED)]
    rows = [
        [skill.name, *([states[skill.name]] if states else []), str(len(skill.scripts)), skill.description]
        for skill in found
    ]
    print_table(create_console(), columns, rows)


def _print(mistakes: Sequence[Mistake], kind: str = "") -> None:
    for file, key, line, message in mistakes:
        place = f"{file}, line {line}" if line else file
        click.echo(as_one_line(": ".join(filter(None, [place, key, kind, message]))), err=True)
