"""Recorded argument sets, valid and damaged, in batches: valid ones run, and the others are rejected with the path of the error."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from agentloop import Tool, ToolCall, ToolExecutor
from agentloop.testing import ExecutorBench
from agentloop.values import ToolExecution, ToolStatus
from tests.generated import part_of

Row = dict[str, Any]

PLAIN_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")


@frozen
class RecordsArguments(Tool):
    """A tool with any schema that records its arguments.

    Attributes:
        name: the name.
        parameters: the schema.
        received: the arguments of each call that ran.
    """

    name: str
    parameters: Mapping[str, Any]
    received: list[dict[str, Any]] = field(factory=list)

    @property
    def description(self) -> str:
        return "Records its arguments."

    async def use(self, *_: Any, **arguments: Any) -> str:
        self.received.append(arguments)
        return "recorded"


def schema_cases(corpus: Path) -> list[Row]:
    path = corpus / "executor" / "schema_cases.jsonl"
    if not path.exists():
        pytest.skip("the corpus has no schema cases")
    return [json.loads(line) for line in part_of(path.read_text("utf-8").splitlines())]


def argument_sets(case: Row) -> list[tuple[Any, Sequence[Row]]]:
    """Return the argument sets of a case with their recorded errors, the valid set first."""
    return [
        (case["gold"], case["gold_errors"]),
        *[(damaged["arguments"], damaged["errors"]) for damaged in case["damaged"]],
    ]


def json_path(steps: Sequence[str | int]) -> str:
    """Format a path as in RFC 9535: with dots before plain names, and brackets around others."""

    def segment(step: str | int) -> str:
        if isinstance(step, int):
            return f"[{step}]"
        return (
            f".{step}" if PLAIN_NAME.fullmatch(step) else "['" + step.replace("\\", "\\\\").replace("'", "\\'") + "']"
        )

    return "$" + "".join(map(segment, steps))


def nearest(errors: Sequence[Row]) -> set[str]:
    """Return the paths of the errors that are nearest to the root; a validator may report any of them first."""
    depth = min(len(error["path"]) for error in errors)
    return {json_path(error["path"]) for error in errors if len(error["path"]) == depth}


def outcomes(case: Row) -> Iterator[tuple[ToolExecution, Any, Sequence[Row]]]:
    """Run all argument sets of a case as one batch, without coercion."""
    tool = RecordsArguments(case["tool"], case["schema"])
    sets = argument_sets(case)
    calls = [ToolCall(f"call_{index}", tool.name, json.dumps(arguments)) for index, (arguments, _) in enumerate(sets)]
    executions = asyncio.run(ExecutorBench([tool], ToolExecutor(strict=True)).run(*calls)).executions
    assert [execution.call for execution in executions] == calls
    # The tool receives the arguments with the defaults of the schema.
    valid = [arguments for arguments, errors in sets if not errors]
    received = [{name: got[name] for name in wanted} for got, wanted in zip(tool.received, valid, strict=True)]
    assert received == valid, case["id"]
    for execution, (arguments, errors) in zip(executions, sets, strict=True):
        yield execution, arguments, errors


def test_valid_arguments_run_and_others_are_rejected_with_the_path(corpus: Path) -> None:
    """A call runs, with unchanged arguments, if and only if they are valid; rejections have a recorded path."""
    ran = rejected = 0
    for case in schema_cases(corpus):
        for execution, arguments, errors in outcomes(case):
            if not errors:
                ran += 1
                assert execution.status is ToolStatus.SUCCEEDED, (case["id"], arguments, execution.error)
                continue
            rejected += 1
            assert execution.status is ToolStatus.REJECTED, (case["id"], arguments)
            assert execution.error is not None
            if isinstance(arguments, dict):
                assert execution.error.type == "InvalidArguments"
                assert execution.error.path in nearest(errors), (case["id"], arguments, execution.error)
            else:
                assert execution.error.type == "MalformedArguments"
                assert execution.error.path in {"", "$"}
            assert not execution.may_have_run
    assert ran
    assert rejected
