"""Argument sets, good and damaged, given to the executor in batches: what fits runs, and the rest is told where it is wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from agentloop import Tool, ToolCall
from agentloop.testing import ExecutorBench
from agentloop.values import ToolExecution, ToolStatus

Row = dict[str, Any]

PLAIN_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")


@frozen
class Noting(Tool):
    """A tool of a schema that notes what it is given.

    Attributes:
        name: its name.
        parameters: the schema.
        given: the arguments of each call that ran.
    """

    name: str
    parameters: Mapping[str, Any]
    given: list[dict[str, Any]] = field(factory=list)

    @property
    def description(self) -> str:
        return "Notes what it is given."

    async def use(self, *_: Any, **arguments: Any) -> str:
        self.given.append(arguments)
        return "noted"


def schema_cases(corpus: Path) -> list[Row]:
    path = corpus / "executor" / "schema_cases.jsonl"
    if not path.exists():
        pytest.skip("the corpus has no schema cases")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def argument_sets(case: Row) -> list[tuple[Any, Sequence[Row]]]:
    """Return the arguments of a case with the errors that were recorded for them, the good ones first."""
    return [
        (case["gold"], case["gold_errors"]),
        *[(damaged["arguments"], damaged["errors"]) for damaged in case["damaged"]],
    ]


def json_path(steps: Sequence[str | int]) -> str:
    """Spell a path as RFC 9535 has it: members by dot where their name is plain, else in brackets."""

    def spelled(step: str | int) -> str:
        if isinstance(step, int):
            return f"[{step}]"
        return (
            f".{step}" if PLAIN_NAME.fullmatch(step) else "['" + step.replace("\\", "\\\\").replace("'", "\\'") + "']"
        )

    return "$" + "".join(map(spelled, steps))


def nearest(errors: Sequence[Row]) -> set[str]:
    """Return the paths of the errors that are nearest to the root; any of them may be told first."""
    least = min(len(error["path"]) for error in errors)
    return {json_path(error["path"]) for error in errors if len(error["path"]) == least}


def outcomes(case: Row) -> Iterator[tuple[ToolExecution, Any, Sequence[Row]]]:
    """Run all argument sets of a case as one batch."""
    tool = Noting(case["tool"], case["schema"])
    sets = argument_sets(case)
    calls = [ToolCall(f"call_{place}", tool.name, json.dumps(arguments)) for place, (arguments, _) in enumerate(sets)]
    executions = asyncio.run(ExecutorBench([tool]).run(*calls)).executions
    assert [one.call for one in executions] == calls
    assert tool.given == [arguments for arguments, errors in sets if not errors], case["id"]
    for execution, (arguments, errors) in zip(executions, sets, strict=True):
        yield execution, arguments, errors


def test_arguments_that_fit_run_and_others_are_rejected_with_the_place(corpus: Path) -> None:
    """A set runs if and only if it fits, unchanged; the path of a rejection is the recorded one."""
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
