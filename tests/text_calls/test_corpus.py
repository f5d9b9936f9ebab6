"""What many models really wrote, and what real chat templates write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentloop.text_calls import read_calls
from agentloop.values.tool_calls import ToolSpec

from .offered import in_pieces

Row = dict[str, Any]


def rows(path: Path) -> list[Row]:
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return [json.loads(line) for line in path.read_text().splitlines()]


def specs(tools: list[Row]) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec(tool["name"], tool.get("description") or "", tool["parameters"]) for tool in tools)


@pytest.fixture(scope="module")
def outputs(corpus: Path) -> list[tuple[Row, tuple[ToolSpec, ...]]]:
    """Return what models wrote, with the tools that they were offered."""
    offered = {row["id"]: specs(row["tools"]) for row in rows(corpus / "textmode" / "questions.jsonl")}
    return [(row, offered[row["question_id"]]) for row in rows(corpus / "textmode" / "outputs.jsonl")]


@pytest.fixture(scope="module")
def templates(corpus: Path) -> list[tuple[Row, tuple[ToolSpec, ...]]]:
    """Return what templates write, with the tools."""
    offered = specs(json.loads((corpus / "textmode" / "formats.tools.json").read_text()))
    found = []
    for row in rows(corpus / "textmode" / "formats.jsonl"):
        names = [call["name"] for call in row["expected_calls"] or []]
        named = specs([{"name": name, "parameters": {"type": "object"}} for name in dict.fromkeys(names)])
        found.append((row, offered if row["id"].startswith("tmpl") else named))
    return found


def misread(samples: list[tuple[Row, tuple[ToolSpec, ...]]]) -> Iterator[Row]:
    for row, tools in samples:
        reading = read_calls(row["text"] if "text" in row else row["output"], tools, coerce=False, only_offered=True)
        expected = [(call["name"], call["arguments"]) for call in row["expected_calls"]]
        got = [(call.name, call.arguments if expected[at : at + 1] and expected[at][1] is not None else None)
               for at, call in enumerate(reading.calls)]  # fmt: skip
        if got != expected:
            yield row


@pytest.mark.parametrize(
    ("kind", "share"), [("valid", 1.0), ("recoverable", 0.998), ("no_call", 0.995), ("wrong", 0.997)]
)
def test_outputs_of_models_are_read(outputs: list[tuple[Row, tuple[ToolSpec, ...]]], kind: str, share: float) -> None:
    """Right, nearly right and wrong calls are read as they are written, and prose gives none."""
    samples = [(row, tools) for row, tools in outputs if row["class"] == kind]
    assert samples
    missed = [row["id"] for row in misread(samples)]
    assert len(missed) <= (1 - share) * len(samples), missed


def test_every_template_is_read(templates: list[tuple[Row, tuple[ToolSpec, ...]]]) -> None:
    """The calls that templates write are read, also where another parser fails."""
    samples = [(row, tools) for row, tools in templates if row["expected_calls"] is not None]
    assert samples
    assert [row["id"] for row in misread(samples)] == []


def test_malformed_samples_do_not_raise(templates: list[tuple[Row, tuple[ToolSpec, ...]]]) -> None:
    """What is malformed on purpose is read without an error, and what is left of it is text or a call."""
    samples = [(row, tools) for row, tools in templates if row["expected_calls"] is None]
    assert samples
    for row, tools in samples:
        reading = read_calls(row["text"], tools)
        assert reading.text or reading.calls or not row["text"].strip()


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("kind", ["outputs", "templates"])
def test_pieces_do_not_matter(kind: str, size: int, request: pytest.FixtureRequest) -> None:
    """All of it reads the same when it arrives in pieces."""
    samples: list[tuple[Row, tuple[ToolSpec, ...]]] = request.getfixturevalue(kind)
    for row, tools in samples:
        text = row["text"] if "text" in row else row["output"]
        assert in_pieces(text, size, tools) == read_calls(text, tools), row["id"]
