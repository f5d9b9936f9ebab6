"""One iteration of the loop, written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentloop.errors import ContractViolation
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import FinishReason, Usage
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.stop import NO_SIGNALS, Continuation
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution
from agentloop.values.value import Value

NO_USAGE = Usage.none()

Slot: TypeAlias = ToolExecution | PendingCall
"""The place of one call in an open turn: settled, or waiting."""


class StepKind(StrEnum):
    """What a step led to."""

    TOOL_EXECUTION = "tool_execution"
    FINAL_RESPONSE = "final_response"
    ERROR = "error"


@frozen(eq=False, repr=False)
class SuspendedTurn(Value):
    """A response some of whose calls still wait; it becomes a message when all are settled.

    Attributes:
        parts: the response's parts, in order.
        slots: one for each call among the parts, in call order.
    """

    parts: tuple[ResponsePart, ...] = field(converter=tuple[ResponsePart, ...])
    slots: tuple[Slot, ...] = field(converter=tuple[Slot, ...])

    def __attrs_post_init__(self) -> None:
        calls = sum(type(part) is ToolCall for part in self.parts)
        if calls != len(self.slots):
            raise ContractViolation(
                f"an open turn with {calls} calls needs {calls} slots, not {len(self.slots)} (law 1)"
            )

    @classmethod
    def of(
        cls,
        parts: Sequence[ResponsePart],
        keys: Sequence[str],
        executions: Sequence[ToolExecution],
        pending: Sequence[PendingCall],
    ) -> SuspendedTurn:
        """Put each outcome and each waiting call in the place of its call, which `keys` lists in order.

        Raises:
            ContractViolation: when a call has neither an outcome nor waits, or has both (law 1).
        """
        by_key: dict[str, Slot] = {call.key: call for call in pending}
        by_key.update({execution.key: execution for execution in executions})
        if len(by_key) != len(executions) + len(pending) or by_key.keys() != set(keys):
            raise ContractViolation(
                f"{len(keys)} calls need as many executions and pending calls, each with the key of its call; "
                f"there are {len(executions)} and {len(pending)}, with keys {sorted(by_key)} (law 1)"
            )
        return cls(tuple(parts), tuple([by_key[key] for key in keys]))

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait, in call order."""
        return tuple([slot for slot in self.slots if isinstance(slot, PendingCall)])

    @property
    def executions(self) -> tuple[ToolExecution, ...]:
        """The outcomes of the settled calls, in call order."""
        return tuple([slot for slot in self.slots if isinstance(slot, ToolExecution)])

    def with_settled(
        self, executions: Mapping[str, ToolExecution], pending: Mapping[str, PendingCall]
    ) -> SuspendedTurn:
        """Return the turn with these outcomes, and these calls still waiting, in the places of their keys."""
        return SuspendedTurn(self.parts, tuple([executions.get(s.key) or pending.get(s.key) or s for s in self.slots]))

    def message(self) -> Message:
        """Return the finished turn as a message.

        Raises:
            ContractViolation: while calls wait (law 2).
        """
        return Message.of_response(self.parts, self.executions)


@frozen(eq=False, repr=False, kw_only=True)
class AgentStep(Value):
    """One iteration: the inference, with its re-asks, and the tool executions it led to.

    It does not hold its input: that is compiled from the state again when it is needed.

    Attributes:
        id: the id of the step.
        number: its place in the execution, from 1.
        message: the assistant's message that came of it; None while calls wait, and when an error came first.
        open_turn: the response while some of its calls wait for a decision; else None.
        response_id: the provider's id of the response.
        model: the model that answered.
        finish_reason: why the model stopped writing; None when there was no response.
        usage: tokens of all inferences of this step.
        errors: what went wrong in the step itself; failures of tools stand in their executions.
        started_at: when the step began.
        ended_at: when it ended.
    """

    id: str
    number: int
    message: Message | None = None
    open_turn: SuspendedTurn | None = None
    response_id: str = ""
    model: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage = NO_USAGE
    errors: tuple[ErrorInfo, ...] = field(default=(), converter=tuple[ErrorInfo, ...])
    started_at: datetime
    ended_at: datetime

    @property
    def kind(self) -> StepKind:
        """What the step led to."""
        if self.errors:
            return StepKind.ERROR
        if self.open_turn is not None or (self.message is not None and self.message.exchanges):
            return StepKind.TOOL_EXECUTION
        return StepKind.FINAL_RESPONSE

    @property
    def executions(self) -> tuple[ToolExecution, ...]:
        """The outcomes of its tool calls, in call order."""
        if self.message is not None:
            return tuple([exchange.execution for exchange in self.message.exchanges])
        return self.open_turn.executions if self.open_turn is not None else ()

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a decision."""
        return self.open_turn.pending if self.open_turn is not None else ()

    def with_error(self, error: ErrorInfo) -> AgentStep:
        """Return the step with one more error."""
        return evolve(self, errors=(*self.errors, error))


class ExecutionStatus(StrEnum):
    """Where an execution stands. The last three are terminal."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the execution is over."""
        return self in _TERMINAL


_TERMINAL = frozenset({ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED, ExecutionStatus.FAILED})


@frozen(eq=False, repr=False)
class Totals(Value):
    """Running sums over the steps of an execution, so that nobody has to add up the history.

    Attributes:
        usage: tokens of all inferences.
        tool_calls: calls that the model made, whatever came of them.
        beside: those of the tokens that no step used: of inferences between the steps, such as for a summary.
    """

    usage: Usage = NO_USAGE
    tool_calls: int = 0
    beside: Usage = NO_USAGE


NO_TOTALS = Totals()


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionState(Value):
    """One run of the loop, from a new input to a terminal status.

    Attributes:
        id: the id of the execution.
        status: where it stands.
        steps: the steps so far.
        continuation: what speaks for stopping and for going on.
        totals: running sums.
        history_length: how many messages the conversation held when the execution began, its input included.
        started_at: when it began.
        ended_at: when it reached a terminal status; None before.
        waited_seconds: how long it was suspended in all.
    """

    id: str
    status: ExecutionStatus = ExecutionStatus.PENDING
    steps: tuple[AgentStep, ...] = field(default=(), converter=tuple[AgentStep, ...])
    continuation: Continuation = NO_SIGNALS
    totals: Totals = NO_TOTALS
    history_length: int = 0
    started_at: datetime
    ended_at: datetime | None = None
    waited_seconds: float = 0.0

    def with_step(self, step: AgentStep) -> ExecutionState:
        """Return it with one more step, counted in the totals."""
        calls = len(step.executions) + len(step.pending)
        return ExecutionState(
            id=self.id,
            status=self.status,
            steps=(*self.steps, step),
            continuation=self.continuation,
            totals=Totals(self.totals.usage + step.usage, self.totals.tool_calls + calls, self.totals.beside),
            history_length=self.history_length,
            started_at=self.started_at,
            ended_at=self.ended_at,
            waited_seconds=self.waited_seconds,
        )

    def with_last_step(self, step: AgentStep) -> ExecutionState:
        """Return it with the last step replaced, as when calls that waited are settled; its calls stay counted.

        Raises:
            ContractViolation: when it has no step yet.
        """
        if not self.steps:
            raise ContractViolation("this execution has no step yet: add one with with_step")
        usage = self.totals.usage if step.usage == self.steps[-1].usage else self._usage_with(step)
        return evolve(self, steps=(*self.steps[:-1], step), totals=evolve(self.totals, usage=usage))

    def with_usage(self, usage: Usage) -> ExecutionState:
        """Return it with the tokens of an inference between the steps counted in the totals."""
        totals = self.totals
        return evolve(self, totals=evolve(totals, usage=totals.usage + usage, beside=totals.beside + usage))

    def with_continuation(self, continuation: Continuation) -> ExecutionState:
        """Return it with another verdict about going on."""
        return evolve(self, continuation=continuation)

    def with_resumed(self, waited: float) -> ExecutionState:
        """Return it in progress again, after so many seconds of waiting, with nothing said yet about stopping."""
        total = self.waited_seconds + waited
        return evolve(self, status=ExecutionStatus.IN_PROGRESS, continuation=NO_SIGNALS, waited_seconds=total)

    def with_status(self, status: ExecutionStatus, at: datetime) -> ExecutionState:
        """Return it with another status, ended at this time if the status is terminal."""
        return evolve(self, status=status, ended_at=at if status.is_terminal else None)

    def _usage_with(self, step: AgentStep) -> Usage:
        usage = self.totals.beside
        for earlier in self.steps[:-1]:
            usage += earlier.usage
        return usage + step.usage
