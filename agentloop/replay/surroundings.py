"""Times, ids and messages of a replay, as they are recorded."""

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
    """Shows the time of the record that the replay has come to.

    Attributes:
        at: that time.
    """

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        """Return the recorded time."""
        return self.at

    def monotonic(self) -> float:
        """Return the recorded time in seconds."""
        return self.at.timestamp()


class ReplayIds(IdSource):
    """Gives the recorded ids of a turn in the order in which they were drawn, and others of its own."""

    def __init__(self) -> None:
        self._recorded: dict[str, deque[str]] = {}
        self._counts: Counter[str] = Counter()

    def expect(self, step: Iterable[str], executions: Iterable[str]) -> None:
        """Take the ids of the next turn."""
        self._recorded = {"step": deque(step), "tool_execution": deque(executions)}

    def new_id(self, kind: str) -> str:
        """Return the next recorded id of a kind; one that counts up where none is recorded."""
        recorded = self._recorded.get(kind)
        if recorded:
            return recorded.popleft()
        self._counts[kind] += 1
        return f"replayed_{kind}_{self._counts[kind]}"


class ReplayInboxes(Inboxes):
    """Gives an execution the messages that it took, when it took them."""

    __slots__ = ("_execution_id", "_next", "_turn", "_untaken")

    def __init__(self, execution_id: str) -> None:
        super().__init__()
        self._execution_id = execution_id
        self._turn: RecordedStep | None = None
        self._next: RecordedStep | None = None
        self._untaken: list[Message] = []

    def move(self, turn: RecordedStep, following: RecordedStep | None) -> None:
        """Come to the next turn.

        Args:
            turn: the turn.
            following: the one after it, if there is one.
        """
        self._turn, self._next = turn, following
        self._untaken = list(turn.taken)
        self._show()

    def take(self, execution_id: str) -> list[Message]:  # noqa: ARG002  # there is one execution
        """Return what the turn took."""
        taken, self._untaken = self._untaken, []
        self._show()
        return taken

    def close_if_empty(self, execution_id: str) -> bool:  # noqa: ARG002  # there is one execution
        """Say whether no message waits that is taken next."""
        return not self._untaken

    def close(self, execution_id: str) -> list[Message]:
        """Return what was taken when the execution ended."""
        late = self._turn.taken_late if self._turn is not None else []
        return [*self.take(execution_id), *late]

    def _show(self) -> None:
        """Let a message be seen to wait where the recorded run saw one at the end of its step."""
        state = self._turn.state if self._turn is not None else None
        saw = state is not None and state.execution is not None and state.execution.continuation.requested
        ahead = self._next.taken if self._next is not None and saw else []
        waits = [*self._untaken, *ahead]
        self.waiting.clear()
        if waits:
            self.waiting[self._execution_id] = waits


@frozen(kw_only=True)
class StandIn(Tool):
    """Stands for a tool of a group that is not started; it is offered and never run.

    Attributes:
        name: the name by which a model calls it.
        description: what it does.
        parameters: its parameters.
        effect: what it does to the world.
    """

    name: str = ""
    description: str = ""
    parameters: JsonObject
    effect: Effect

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Refuse to run.

        Raises:
            ContractViolation: always.
        """
        raise ContractViolation(
            f"the tool {self.name!r} stands in a replay and was to be run: {dict(arguments)!r:.100}"
        )


def with_stand_ins(tools: Tools, turn: RecordedStep) -> Tools:
    """Return tools with those that were discovered when the turn was recorded.

    Args:
        tools: the tools of a loop.
        turn: the turn that is to be replayed.
    """
    group = next((one for one in tools.groups if isinstance(one, CanDiscoverTools)), None)
    if group is None:
        return tools
    known: Mapping[str, ToolSpec] = {
        spec.name: spec for asked in turn.inferences for spec in asked.request.tools if spec.name not in tools
    }
    stand_ins = [
        StandIn(name=spec.name, description=spec.description, parameters=spec.parameters, effect=spec.effect)
        for spec in known.values()
    ]
    return tools.with_discovered([(group, stand_ins)])
