"""Tools that give recorded results: which one, the key of the call says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop import Tool, ToolContext
from agentloop.contracts import CanAccessToolContext
from agentloop.values.batches import parse_key


@frozen
class RecordedCall:
    """One call of a recording.

    Attributes:
        name: the tool.
        arguments: what it was called with.
        result: the text that it gave.
    """

    name: str
    arguments: dict[str, Any]
    result: str

    @property
    def failed(self) -> bool:
        """Whether the recorded tool told an error."""
        return self.result.startswith("Error")


class RecordedFailure(Exception):
    """What a recorded tool told as an error."""


@frozen
class RecordedTool(Tool, CanAccessToolContext):
    """A tool of a recording, offered as it was. It gives the result of the call at its step and place, and notes the call.

    Attributes:
        described: the tool in the form of Chat Completions.
        batches: the recorded calls, step by step.
        used: the step, the place and the arguments of each call that ran.
    """

    described: Mapping[str, Any]
    batches: Sequence[Sequence[RecordedCall]]
    used: list[tuple[tuple[int, int], str, dict[str, Any]]]
    _key: str = field(default="", kw_only=True)

    @property
    def name(self) -> str:
        return str(self.described["name"])

    @property
    def description(self) -> str:
        return str(self.described["description"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        parameters: Mapping[str, Any] = self.described["parameters"]
        return parameters

    def with_tool_context(self, context: ToolContext) -> Self:
        return evolve(self, key=context.idempotency_key)

    async def use(self, *_: Any, **arguments: Any) -> str:
        place = parse_key(self._key)
        assert place is not None
        step, index = place
        self.used.append((place, self.name, arguments))
        recorded = self.batches[step - 1][index]
        if recorded.failed:
            raise RecordedFailure(recorded.result)
        return recorded.result
