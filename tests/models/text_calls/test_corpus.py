"""Recorded outputs of many models, and the output of real chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentloop.models.text_calls import read_calls
from agentloop.values.tool_calls import ToolSpec
from tests.generated import part_of

from .offered import read_in_pieces

Row = dict[str, Any]


def rows(path: Path) -> list[Row]:
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    return [json.loads(line) for line in path.read_text().splitlines()]


def specs(tools: list[Row]) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec(tool["name"], tool.get("description") or "", tool["parameters"]) for tool in tools)


@pytest.fixture(scope="module")
def outputs(corpus: Path) -> list[tuple[Row, tuple[ToolSpec, ...]]]:
    """Return the recorded outputs with the tools that the models were offered."""
    offered = {row["id"]: specs(row["tools"]) for row in rows(corpus / "textmode" / "questions.jsonl")}
    return [(row, offered[row["question_id"]]) for row in rows(corpus / "textmode" / "outputs.jsonl")]


@pytest.fixture(scope="module")
def templates(corpus: Path) -> list[tuple[Row, tuple[ToolSpec, ...]]]:
    """Return the outputs of chat templates with their tools."""
    offered = specs(json.loads((corpus / "textmode" / "formats.tools.json").read_text()))
    samples = []
    for row in rows(corpus / "textmode" / "formats.jsonl"):
        names = [call["name"] for call in row["expected_calls"] or []]
        named = specs([{"name": name, "parameters": {"type": "object"}} for name in dict.fromkeys(names)])
        samples.append((row, offered if row["id"].startswith("tmpl") else named))
    return samples


def misread(samples: list[tuple[Row, tuple[ToolSpec, ...]]]) -> Iterator[Row]:
    for row, tools in samples:
        result = read_calls(row["text"] if "text" in row else row["output"], tools, coerce=False, only_offered=True)
        expected = [(call["name"], call["arguments"]) for call in row["expected_calls"]]
        # The arguments of some samples are unspecified.
        actual = [(call.name, call.arguments if expected[index : index + 1] and expected[index][1] is not None else None)
                  for index, call in enumerate(result.calls)]  # fmt: skip
        if actual != expected:
            yield row


@pytest.mark.parametrize(
    ("kind", "share"), [("valid", 1.0), ("recoverable", 0.998), ("no_call", 0.995), ("wrong", 0.997)]
)
def test_outputs_of_models_are_parsed(outputs: list[tuple[Row, tuple[ToolSpec, ...]]], kind: str, share: float) -> None:
    """Valid, recoverable and wrong calls are parsed as written, and prose yields no calls."""
    samples = [(row, tools) for row, tools in outputs if row["class"] == kind]
    assert samples
    missed = [row["id"] for row in misread(samples)]
    assert len(missed) <= (1 - share) * len(samples), missed


def test_every_template_is_parsed(templates: list[tuple[Row, tuple[ToolSpec, ...]]]) -> None:
    """The calls of all templates are parsed, including those that another parser misreads."""
    samples = [(row, tools) for row, tools in templates if row["expected_calls"] is not None]
    assert samples
    assert [row["id"] for row in misread(samples)] == []


def test_malformed_samples_do_not_raise(templates: list[tuple[Row, tuple[ToolSpec, ...]]]) -> None:
    """Deliberately malformed text is parsed without an error and yields text or calls."""
    samples = [(row, tools) for row, tools in templates if row["expected_calls"] is None]
    assert samples
    for row, tools in samples:
        result = read_calls(row["text"], tools)
        assert result.text or result.calls or not row["text"].strip()


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("kind", ["outputs", "templates"])
def test_result_does_not_depend_on_pieces(kind: str, size: int, request: pytest.FixtureRequest) -> None:
    """Every sample has the same result when it arrives in pieces."""
    samples: list[tuple[Row, tuple[ToolSpec, ...]]] = request.getfixturevalue(kind)
    for row, tools in part_of(samples):
        text = row["text"] if "text" in row else row["output"]
        assert read_in_pieces(text, size, tools) == read_calls(text, tools), row["id"]
