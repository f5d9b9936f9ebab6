"""Tools that return recorded results, selected by the idempotency key of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop import Tool, ToolContext
from agentloop.contracts import CanAccessToolContext
from agentloop.values import Effect
from agentloop.values.batches import parse_key


@frozen
class RecordedCall:
    """One call of a recording.

    Attributes:
        name: the tool.
        arguments: the arguments.
        result: the text that the tool returned.
    """

    name: str
    arguments: dict[str, Any]
    result: str

    @property
    def failed(self) -> bool:
        """Whether the recorded result is an error."""
        return self.result.startswith("Error")


class RecordedFailure(Exception):
    """The recorded result of a tool is an error."""


@frozen
class RecordedTool(Tool, CanAccessToolContext):
    """A recorded tool: it returns the recorded result for the step and the index of a call, and remembers the call.

    Attributes:
        definition: the tool in the format of Chat Completions.
        batches: the recorded calls, step by step.
        used: step and index, tool name and arguments of each call that ran.
    """

    definition: Mapping[str, Any]
    batches: Sequence[Sequence[RecordedCall]]
    used: list[tuple[tuple[int, int], str, dict[str, Any]]]
    _key: str = field(default="", kw_only=True)

    @property
    def name(self) -> str:
        return str(self.definition["name"])

    @property
    def effect(self) -> Effect:
        return Effect.PURE  # it only repeats what was recorded

    @property
    def description(self) -> str:
        return str(self.definition["description"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        parameters: Mapping[str, Any] = self.definition["parameters"]
        return parameters

    def with_tool_context(self, context: ToolContext) -> Self:
        return evolve(self, key=context.idempotency_key)

    async def use(self, *_: Any, **arguments: Any) -> str:
        position = parse_key(self._key)
        assert position is not None
        step, index = position
        self.used.append((position, self.name, arguments))
        recorded = self.batches[step - 1][index]
        if recorded.failed:
            raise RecordedFailure(recorded.result)
        return recorded.result
