"""The recorded clock, ids, inbox and tools that a replayed run works with."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from attrs import frozen

from agentloop.contracts.tool import CanDiscoverTools, Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import ContractViolation
from agentloop.loop.inbox import Inboxes
from agentloop.replay.timeline import RecordedStep
from agentloop.values.json import JsonObject
from agentloop.values.messages import Message
from agentloop.values.time_and_ids import Clock, IdSource
from agentloop.values.tool_calls import Effect, ToolSpec


class ReplayClock(Clock):
    """A clock that shows the recorded time.

    Attributes:
        at: the time of the record that the replay has reached.
    """

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        """Return the recorded time."""
        return self.at

    def monotonic(self) -> float:
        """Return the recorded time, in seconds since the epoch."""
        return self.at.timestamp()


class ReplayIds(IdSource):
    """Returns the recorded ids of a step in the order in which they were drawn, and counts up where none is recorded."""

    def __init__(self) -> None:
        self._recorded: dict[str, deque[str]] = {}
        self._counts: Counter[str] = Counter()

    def expect(self, step: Iterable[str], executions: Iterable[str]) -> None:
        """Set the ids of the next step."""
        self._recorded = {"step": deque(step), "tool_execution": deque(executions)}

    def new_id(self, kind: str) -> str:
        """Return the next recorded id of this kind, or a new one."""
        recorded = self._recorded.get(kind)
        if recorded:
            return recorded.popleft()
        self._counts[kind] += 1
        return f"replayed_{kind}_{self._counts[kind]}"


class ReplayInboxes(Inboxes):
    """Delivers the recorded messages in the steps that took them."""

    __slots__ = ("_execution_id", "_next", "_step", "_untaken")

    def __init__(self, execution_id: str) -> None:
        super().__init__()
        self._execution_id = execution_id
        self._step: RecordedStep | None = None
        self._next: RecordedStep | None = None
        self._untaken: list[Message] = []

    def move_to(self, step: RecordedStep, following: RecordedStep | None) -> None:
        """Go to a step.

        Args:
            step: the step.
            following: the next one; None after the last.
        """
        self._step, self._next = step, following
        self._untaken = list(step.messages)
        self._update_waiting()

    def take(self, execution_id: str) -> list[Message]:  # noqa: ARG002  # a replay has one execution
        """Return the messages that the recorded step took."""
        taken, self._untaken = self._untaken, []
        self._update_waiting()
        return taken

    def close_if_empty(self, execution_id: str) -> bool:  # noqa: ARG002  # a replay has one execution
        """Return whether the recorded step took no further message."""
        return not self._untaken

    def close(self, execution_id: str) -> list[Message]:
        """Return the messages that were taken when the execution ended."""
        late = self._step.late_messages if self._step is not None else []
        return [*self.take(execution_id), *late]

    def _update_waiting(self) -> None:
        """Show a waiting message where the recorded run continued because of one."""
        state = self._step.state if self._step is not None else None
        continued = state is not None and state.execution is not None and state.execution.continuation.requested
        ahead = self._next.messages if self._next is not None and continued else []
        waiting = [*self._untaken, *ahead]
        self.waiting.clear()
        if waiting:
            self.waiting[self._execution_id] = waiting


@frozen(kw_only=True)
class RecordedTool(Tool):
    """A tool of a group that a replay does not start: it is offered as recorded, and never runs.

    Attributes:
        name: the name by which the model calls it.
        description: its description.
        parameters: the JSON Schema of its parameters.
        effect: its effect.
    """

    name: str = ""
    description: str = ""
    parameters: JsonObject
    effect: Effect

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Raise: a replay runs no tools.

        Raises:
            ContractViolation: always.
        """
        raise ContractViolation(f"a replay runs no tools, and {self.name!r} was to run: {dict(arguments)!r:.100}")


def with_recorded_tools(tools: Tools, step: RecordedStep) -> Tools:
    """Return the tools of a loop together with those that its groups had discovered in the recorded step."""
    group = next((group for group in tools.groups if isinstance(group, CanDiscoverTools)), None)
    if group is None:
        return tools
    missing: Mapping[str, ToolSpec] = {
        spec.name: spec for recorded in step.requests for spec in recorded.request.tools if spec.name not in tools
    }
    discovered = [
        RecordedTool(name=spec.name, description=spec.description, parameters=spec.parameters, effect=spec.effect)
        for spec in missing.values()
    ]
    return tools.with_discovered([(group, discovered)])
