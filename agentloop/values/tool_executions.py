"""What an executor is given and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from agentloop.errors import ContractViolation, ToolFailed
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision
from agentloop.values.frozen_dict import FrozenDict
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExecution
from agentloop.values.value import Value


def _as_calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


def _as_keys(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(keys)


def _as_decisions(decisions: Mapping[str, Decision]) -> Mapping[str, Decision]:
    return FrozenDict(decisions)


def _as_begun(begun: Mapping[str, PendingCall]) -> Mapping[str, PendingCall]:
    return FrozenDict(begun)


def _as_executions(executions: Iterable[ToolExecution]) -> tuple[ToolExecution, ...]:
    return tuple(executions)


def _as_pending(pending: Iterable[PendingCall]) -> tuple[PendingCall, ...]:
    return tuple(pending)


@frozen(eq=False, repr=False)
class ToolCalls(Value):
    """A batch of calls to execute, in the order in which the model made them.

    Attributes:
        calls: the calls.
        keys: the idempotency key of each call, `<execution id>/<step number>/<call index>`.
        decisions: what was decided about calls that waited for it, by key.
        begun: those of the calls whose tools have begun and suspended them, as they waited, by key.
    """

    calls: tuple[ToolCall, ...] = field(converter=_as_calls)
    keys: tuple[str, ...] = field(converter=_as_keys)
    decisions: Mapping[str, Decision] = field(factory=dict, converter=_as_decisions)
    begun: Mapping[str, PendingCall] = field(factory=dict, converter=_as_begun)

    def __attrs_post_init__(self) -> None:
        if len(self.calls) != len(self.keys):
            raise ContractViolation(f"{len(self.calls)} calls need as many keys, there are {len(self.keys)}")

    @classmethod
    def of(cls, calls: Sequence[ToolCall], state: AgentState) -> ToolCalls:
        """Make the batch of the step that this state is about to take, its keys made by position."""
        prefix = f"{state.execution_id}/{state.step_count + 1}"
        return cls(tuple(calls), tuple([f"{prefix}/{index}" for index in range(len(calls))]))

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[ToolCall]:
        return iter(self.calls)


def key_place(key: str) -> tuple[int, int] | None:
    """Return the step number and the call index that an idempotency key names, or None for a key of another form."""
    match key.rsplit("/", 2):
        case [_, step, index] if step.isdecimal() and index.isdecimal():
            return int(step), int(index)
    return None


@frozen(eq=False, repr=False)
class ToolExecutions(Value):
    """What came of a batch: every call is either settled or pending, none is both or missing (law 1).

    Attributes:
        executions: the outcome of each settled call, in call order.
        pending: the calls that wait for a decision, in call order.
        state: the state after the batch's interceptors, from which a driver goes on.
    """

    executions: tuple[ToolExecution, ...] = field(converter=_as_executions)
    pending: tuple[PendingCall, ...] = field(converter=_as_pending)
    state: AgentState

    def __len__(self) -> int:
        return len(self.executions)

    def __iter__(self) -> Iterator[ToolExecution]:
        return iter(self.executions)

    @property
    def failures(self) -> tuple[ToolExecution, ...]:
        """The executions that did not succeed."""
        return tuple([execution for execution in self.executions if execution.has_error])

    def with_state(self, state: AgentState) -> ToolExecutions:
        """Return the same outcomes with another state."""
        return evolve(self, state=state)


class BatchFailed(ToolFailed):
    """A tool failed under an executor that raises on failure; the whole batch was settled before.

    Attributes:
        tool_executions: the outcome of every call of the batch.
    """

    def __init__(self, tool_executions: ToolExecutions, failed: ToolExecution) -> None:
        super().__init__(f"the tool {failed.name!r} {failed.status.value}: {failed.error_message}")
        self.tool_executions = tool_executions
