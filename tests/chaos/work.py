"""The work of chaos runs: scripts for the model, and the calls that they lead to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import frozen

from agentloop.values.records import sub_agent_execution_id

HELPER = "helper"
"""The tool that is another agent."""


@frozen
class Work:
    """An execution to be run.

    Attributes:
        execution_id: its id.
        steps: the tools that each step calls.
        helper: the tools that each step of the other agent calls.
    """

    execution_id: str
    steps: Sequence[Sequence[str]]
    helper: Sequence[Sequence[str]] = ()

    @property
    def input(self) -> str:
        """The input of the execution, which is the script of the model."""
        return json.dumps({"steps": self.steps, "helper": self.helper})

    @property
    def calls(self) -> Mapping[str, str]:
        """The tools of all calls, by the key of the call, with those of the other agent."""
        return _calls(self.execution_id, self.steps, self.helper)

    @property
    def line_count(self) -> int:
        """How many lines it has in the ledger when nothing fails, if no call is of another agent."""
        # Before, at and after each effect, and its outcome; the request and the end of each step; the answer and the end.
        return 4 * len(self.calls) + 2 * len(self.steps) + 3


def _calls(execution_id: str, steps: Sequence[Sequence[str]], helper: Sequence[Sequence[str]]) -> dict[str, str]:
    calls: dict[str, str] = {}
    for number, names in enumerate(steps, 1):
        for index, name in enumerate(names):
            key = f"{execution_id}/{number}/{index}"
            calls[key] = name
            if name == HELPER:
                calls |= _calls(sub_agent_execution_id(key), helper, ())
    return calls


_EFFECTS = ("pay", "grind", "seal")
_KINDS = ("pay", "put", "book", "read", "grind", "seal")


def effects(count: int, *, prefix: str = "run") -> Sequence[Work]:
    """Return executions of 15 calls, all of which have an effect that nobody can look up."""
    return [Work(f"{prefix}-{number:02}", (_EFFECTS,) * 5) for number in range(count)]


def mixed(count: int, *, prefix: str = "run") -> Sequence[Work]:
    """Return executions of 15 calls with effects of every kind; some of them are those of another agent."""
    return [_mixed(f"{prefix}-{number:02}", number) for number in range(count)]


def _mixed(execution_id: str, number: int) -> Work:
    if number % 4 == 3:
        helped = ("pay", HELPER, "put")
        return Work(execution_id, (helped, _turn(number), helped, _turn(number + 3)), (("pay", "put"),))
    return Work(execution_id, [_turn(number + step) for step in range(5)])


def _turn(number: int) -> Sequence[str]:
    return [_KINDS[(number + index) % len(_KINDS)] for index in range(3)]
