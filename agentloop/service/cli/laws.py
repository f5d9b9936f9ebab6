"""`agentloop laws`: the numbered laws of the contracts, and an implementation that breaks each.

`laws.json` beside this module is written by `python -m tests.testing.laws_page`, from the kits and from the implementations that
the tests find to break their laws; so neither Hypothesis nor a test is loaded here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from attrs import frozen

from agentloop.errors.hints import suggest
from agentloop.service.cli.console import create_console
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.tables import Column, Fit, print_table

DOCUMENT = Path(__file__).with_name("laws.json")


@frozen(kw_only=True)
class _Law:
    """A law, as `laws.json` has it.

    Attributes:
        number: its number.
        title: its name.
        text: what it says.
        why: what goes wrong without it; empty where nobody has written that.
        kits: the kits that check it.
        tests: the tests of the package that check it.
        liar: the name of an implementation that breaks it; empty for a law that no kit checks.
        liar_kit: the kit that notices that.
        source: the source of that implementation.
    """

    number: int
    title: str
    text: str
    why: str
    kits: Sequence[str]
    tests: Sequence[str]
    liar: str
    liar_kit: str
    source: str


def _read() -> list[_Law]:
    return [_Law(**each) for each in json.loads(DOCUMENT.read_text(encoding="utf-8"))]


@click.command()
@click.argument("law", default="", metavar="[NUMBER|WORD]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def laws(*, law: str, as_json: bool) -> None:
    """List the laws that every implementation of a contract keeps, or show one of them.

    Example: `agentloop laws 34`, or `agentloop laws cancelled`.

    For one law: what it says, why, which kit checks it, and an implementation that breaks it. `pytest --agentloop-kit MODULE:NAME` checks an
    implementation of yours.
    """
    found = _find(law.strip())
    if as_json:
        click.echo(DOCUMENT.read_text(encoding="utf-8") if not law else _as_json(found), nl=bool(law))
    elif len(found) == 1:
        _show(found[0])
    else:
        columns = [Column("law", is_number=True), Column("name"), Column("says", Fit.WRAPPED)]
        print_table(create_console(), columns, [[str(each.number), each.title, each.text] for each in found])


def _as_json(found: Sequence[_Law]) -> str:
    numbers = {each.number for each in found}
    return json.dumps(
        [each for each in json.loads(DOCUMENT.read_text(encoding="utf-8")) if each["number"] in numbers], indent=1
    )


def _find(wanted: str) -> list[_Law]:
    known = _read()
    if not wanted:
        return known
    if wanted.isdecimal():
        found = [each for each in known if str(each.number) == wanted]
    else:
        named = [each for each in known if each.title.lower() == wanted.lower()]
        found = named or [each for each in known if wanted.lower() in f"{each.title} {each.text}".lower()]
    if not found:
        hint = suggest(wanted.capitalize(), [each.title for each in known])
        raise InvalidUsage(f"no law has {wanted!r:.60}{hint}; `agentloop laws` lists them")
    return found


def _show(law: _Law) -> None:
    lines = [f"Law {law.number}: {law.title}", "", law.text]
    if law.why:
        lines += ["", f"Without it: {law.why}"]
    places = [*law.kits, *law.tests]
    lines += ["", f"Checked by: {', '.join(places)}"]
    if law.source:
        lines += ["", f"{law.liar} breaks it, and {law.liar_kit} says so:", "", law.source.rstrip()]
    else:
        lines += ["", "No kit checks it, but the tests of the package do, as a whole."]
    click.echo("\n".join(lines))
