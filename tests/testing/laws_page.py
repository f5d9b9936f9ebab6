"""Writes the tables of laws, kits and the zoo into the documentation, and `laws.json`: `python -m tests.testing.laws_page`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentloop import testing
from agentloop.service.cli.laws import DOCUMENT
from agentloop.testing.kit import LAWS, Kit
from agentloop.testing.law_reasons import REASONS
from tests.testing.zoo import MEMBERS
from tests.testing.zoo.zoo import Member

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| (?:<a id=\"law-\d+\"></a>)?(\d+) \| (\*\*.*?) \| (.*?) \|$", re.MULTILINE)
_BEGIN, _END = "<!-- the zoo begins -->\n", "<!-- the zoo ends -->"


def kits() -> list[type[Kit]]:
    """Return the kits that users get, by name."""
    found = [getattr(testing, name) for name in dir(testing)]
    classes = [kit for kit in found if isinstance(kit, type) and issubclass(kit, Kit) and kit is not Kit]
    return sorted(classes, key=lambda kit: kit.__name__)


def zoo_rows() -> Iterator[str]:
    """Yield a row for each law of each kit, with the members of the zoo that break it."""
    for law in LAWS:
        for kit in kits():
            if law in kit.laws:
                members = [member for member in MEMBERS if (member.kit, member.law) == (kit.__name__, law)]
                shown = "<br>".join(map(_shown, members))
                yield f"| {law} | `{kit.__name__}` | {shown} |"


def _shown(member: Member) -> str:
    also = f" (also {', '.join(map(str, member.also))})" if member.also else ""
    return f"`{member.name}`{also if member.works else ' (no law is checked)'}"


def law_row(match: re.Match[str]) -> str:
    """Return the row of a law with its text, and the kits that check it before the other places."""
    number = int(match.group(1))
    title, _, text = LAWS[number].partition(": ")
    others = [place for place in re.findall("`(.*?)`", match.group(3)) if "/" in place]
    names = [kit.__name__ for kit in kits() if number in kit.laws]
    places = ", ".join(f"`{place}`" for place in [*names, *others])
    return f'| <a id="law-{number}"></a>{number} | **{title}.** {text[0].upper()}{text[1:]} | {places} |'


def shown_liar(law: int) -> Member | None:
    """Return the implementation that a reader sees for a law: of those that work, the one with the shortest source."""
    liars = [each for each in MEMBERS if each.law == law and each.works and callable(each.subject)]
    named = [each for each in liars if hasattr(each.subject, "__module__") and hasattr(each.subject, "__name__")]
    said = [each for each in named if f"law {law}:" in inspect.getsource(each.subject)]
    return min(said or named, key=lambda each: (len(inspect.getsource(each.subject)), each.id), default=None)


def law_document() -> list[dict[str, Any]]:
    """Return what `agentloop laws` shows."""
    rows = {int(number): places for number, _, places in ROW.findall((DOCS / "laws.md").read_text())}
    return [_law_entry(number, rows[number]) for number in LAWS]


def _law_entry(number: int, places: str) -> dict[str, Any]:
    title, _, text = LAWS[number].partition(": ")
    liar = shown_liar(number)
    return {
        "number": number,
        "title": title,
        "text": f"{text[0].upper()}{text[1:]}",
        "why": REASONS.get(title, ""),
        "kits": [kit.__name__ for kit in kits() if number in kit.laws],
        "tests": [place for place in re.findall("`(.*?)`", places) if "/" in place],
        "liar": "" if liar is None else liar.name,
        "liar_kit": "" if liar is None else liar.kit,
        "source": "" if liar is None else inspect.getsource(liar.subject),
    }


def write() -> None:
    """Write both tables and the document anew; laws that are missing get a row."""
    path = DOCS / "laws.md"
    page = path.read_text()
    known = {int(number) for number, _, _ in ROW.findall(page)}
    last = list(ROW.finditer(page))[-1]
    missing = "".join(f"\n| {law} | **** |  |" for law in LAWS if law not in known)
    page = ROW.sub(law_row, page[: last.end()] + missing + page[last.end() :])
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    table = "\n".join(["| Law | Kit | Broken implementations |", "|--:|---|---|", *zoo_rows()])
    path.write_text(f"{before}{_BEGIN}\n{table}\n\n{_END}{after}")
    DOCUMENT.write_text(json.dumps(law_document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
