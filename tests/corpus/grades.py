"""Prints how the calls of the recorded texts are graded, and how many answers would be asked for again.

Run it as `python -m tests.corpus.grades CORPUS`; every tool counts as one with an effect.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from agentloop.models.text_calls import CallGrade, read_calls
from agentloop.values.tool_calls import ToolSpec


def print_grades(corpus: Path) -> None:
    """Print a table: for each class of answers, how many are plain, embedded and quoted, and are asked for again."""
    lines = (corpus / "textmode" / "questions.jsonl").read_text().splitlines()
    offered = {
        row["id"]: [ToolSpec(tool["name"], tool.get("description") or "", tool["parameters"]) for tool in row["tools"]]
        for row in map(json.loads, lines)
    }
    counts: dict[str, Counter[str]] = {}
    for row in map(json.loads, (corpus / "textmode" / "outputs.jsonl").read_text().splitlines()):
        result = read_calls(row["output"], offered[row["question_id"]])
        grades = set(result.grades)
        kinds: list[str] = [grade for grade in CallGrade if grade in grades] or ["without calls"]
        if grades - {CallGrade.QUOTED} and (result.unread or CallGrade.EMBEDDED in grades):
            kinds.append("asked for again")
        counts.setdefault(row["class"], Counter()).update(kinds)
    columns = [*CallGrade, "without calls", "asked for again"]
    rows = [["grades of calls in text", *columns]]
    rows += [[name, *(str(count[column]) for column in columns)] for name, count in sorted(counts.items())]
    sys.stdout.writelines(f"{row[0]:24}" + "".join(f"{cell:>17}" for cell in row[1:]) + "\n" for row in rows)


if __name__ == "__main__":
    print_grades(Path(sys.argv[1]))
