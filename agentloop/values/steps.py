"""Executions and their steps: what happened in each iteration of the loop, the status, and running totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentloop.errors.kinds import ContractViolation
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import FinishReason, Usage
from agentloop.values.labels import Label
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.reprs import Summarized
from agentloop.values.stop import NO_SIGNALS, Continuation, StopReason
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution
from agentloop.values.value import UNCHECKED, Value, check_types, copier, starts_with

NO_USAGE = Usage.none()

Slot: TypeAlias = ToolExecution | PendingCall
"""The state of one call of a suspended turn: settled or pending."""


class StepKind(StrEnum):
    """The result of a step."""

    TOOL_EXECUTION = "tool_execution"
    FINAL_RESPONSE = "final_response"
    ERROR = "error"


@frozen(eq=False, repr=False)
class SuspendedTurn(Value):
    """A response with pending calls; it becomes a message when all calls are settled.

    Attributes:
        parts: the parts of the response, in order.
        slots: the execution or pending call of each call among the parts, in call order.
        label: who had a part in what the model had read; None where that is not known.

    Raises:
        ContractViolation: if the number of slots differs from the number of calls (law 1).
    """

    parts: tuple[ResponsePart, ...] = field(converter=tuple[ResponsePart, ...])
    slots: tuple[Slot, ...] = field(converter=tuple[Slot, ...])
    label: Label | None = field(default=None, repr=False)

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
        label: Label | None = None,
    ) -> SuspendedTurn:
        """Create the turn of a response whose calls are settled or pending.

        Args:
            parts: the parts of the response.
            keys: the idempotency keys of its calls, in call order.
            executions: the outcomes of the settled calls.
            pending: the pending calls.
            label: who had a part in what the model had read.

        Raises:
            ContractViolation: if a call is neither settled nor pending, or both (law 1).
        """
        by_key: dict[str, Slot] = {call.key: call for call in pending}
        by_key.update({execution.key: execution for execution in executions})
        if len(by_key) != len(executions) + len(pending) or by_key.keys() != set(keys):
            raise ContractViolation(
                f"{len(keys)} calls need as many executions and pending calls, each with the key of its call; "
                f"there are {len(executions)} and {len(pending)}, with keys {sorted(by_key)} (law 1)"
            )
        return cls(tuple(parts), tuple([by_key[key] for key in keys]), label)

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The pending calls, in call order."""
        return tuple([slot for slot in self.slots if isinstance(slot, PendingCall)])

    @property
    def executions(self) -> tuple[ToolExecution, ...]:
        """The outcomes of the settled calls, in call order."""
        return tuple([slot for slot in self.slots if isinstance(slot, ToolExecution)])

    def with_settled(
        self, executions: Mapping[str, ToolExecution], pending: Mapping[str, PendingCall]
    ) -> SuspendedTurn:
        """Return the turn with these outcomes and these pending calls in the slots of their keys."""
        return self.with_slots([executions.get(s.key) or pending.get(s.key) or s for s in self.slots])

    def with_slots(self, slots: Sequence[Slot]) -> SuspendedTurn:
        """Return the turn with these slots instead."""
        return SuspendedTurn(self.parts, tuple(slots), self.label)

    def message(self) -> Message:
        """Return the completed turn as a message.

        Raises:
            ContractViolation: if calls are still pending (law 2).
        """
        return Message.of_response(self.parts, self.executions, self.label)


@frozen(eq=False, repr=False, kw_only=True)
class AgentStep(Value, Summarized):
    """One iteration of the loop: the inference, including repeated ones, and the tool executions that followed.

    The input of the inference is not stored; compile it from the state when needed.

    Attributes:
        id: the id of the step.
        number: the 1-based position in the execution.
        message: the assistant message of the step; None while calls are pending, or if an error came first.
        open_turn: the response while some of its calls are pending; else None.
        response_id: the provider's id of the response.
        model: the model that responded.
        finish_reason: why the model stopped generating; None if there was no response.
        usage: the tokens of all inferences of this step.
        inferences: the number of requests that were sent to models in this step, with failed ones; None if unknown.
        other_inferences: how many of these were sent to models other than the driver's own, such as a planner.
        errors: the errors of the step itself; the errors of tools are in their executions.
        discarded_calls: the calls that ran before the answer was complete and whose outcomes were not used, as when the answer
            failed; all of pure tools.
        started_at: when the step started.
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
    inferences: int | None = None
    other_inferences: int = 0
    errors: tuple[ErrorInfo, ...] = field(default=(), converter=tuple[ErrorInfo, ...])
    discarded_calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])
    started_at: datetime
    ended_at: datetime

    __attrs_post_init__ = check_types

    @property
    def kind(self) -> StepKind:
        """The result of the step."""
        if self.errors:
            return StepKind.ERROR
        if self.open_turn is not None or (self.message is not None and self.message.exchanges):
            return StepKind.TOOL_EXECUTION
        return StepKind.FINAL_RESPONSE

    @cached_property
    def executions(self) -> tuple[ToolExecution, ...]:
        """The outcomes of its tool calls, in call order."""
        if self.message is not None:
            return tuple([exchange.execution for exchange in self.message.exchanges])
        return self.open_turn.executions if self.open_turn is not None else ()

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The pending calls."""
        return self.open_turn.pending if self.open_turn is not None else ()

    @property
    def call_count(self) -> int:
        """The number of its calls, with those that settled programs made."""
        executions = self.executions
        return len(executions) + len(self.pending) + sum([len(execution.inner) for execution in executions])

    def _summary(self) -> Mapping[str, str]:
        message = self.message
        calls = [f"{execution.name}: {execution.status.value}" for execution in self.executions]
        calls += [f"{waiting.call.name}: pending" for waiting in self.pending]
        tokens = self.usage.total_tokens
        return {
            "step": str(self.number),
            "kind": self.kind.value,
            "model": self.model,
            "finish reason": self.finish_reason.value if self.finish_reason is not None else "",
            "tokens": "" if tokens is None else f"{tokens:,}",
            "text": message.text if message is not None else "",
            "tool calls": "\n".join(calls),
            "errors": "\n".join(f"{error.type}: {error.message}" for error in self.errors),
        }

    def with_error(self, error: ErrorInfo) -> AgentStep:
        """Return a copy with one more error."""
        return evolve(self, errors=(*self.errors, error))


class ExecutionStatus(StrEnum):
    """The status of an execution. The last three are terminal."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the execution has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED, ExecutionStatus.FAILED})


@frozen(eq=False, repr=False)
class Totals(Value):
    """Running totals of an execution; reading them does not take longer as the history grows.

    Attributes:
        usage: the tokens of all inferences.
        tool_calls: the number of calls that the model and its programs made, whatever their outcome.
        beside: the part of `usage` that belongs to no step: inferences between steps, such as for a summary.
    """

    usage: Usage = NO_USAGE
    tool_calls: int = 0
    beside: Usage = NO_USAGE

    __attrs_post_init__ = check_types


NO_TOTALS = Totals()
_copy_totals = copier(Totals, "usage", "tool_calls")


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionState(Value):
    """One execution of the loop, from an input to a terminal status.

    Attributes:
        id: the id of the execution.
        status: the status.
        steps: the steps so far.
        continuation: the stop signals and continuation request of the current step.
        totals: running totals.
        history_length: the number of messages in the conversation at the start, including the input.
        started_at: when it started.
        ended_at: when it reached a terminal status; None before.
        waited_seconds: the total seconds for which it was suspended.
    """

    id: str
    status: ExecutionStatus = ExecutionStatus.PENDING
    steps: tuple[AgentStep, ...] = field(default=(), converter=tuple[AgentStep, ...], metadata=UNCHECKED)
    continuation: Continuation = NO_SIGNALS
    totals: Totals = NO_TOTALS
    history_length: int = 0
    started_at: datetime
    ended_at: datetime | None = None
    waited_seconds: float = 0.0
    _grown_from: tuple[AgentStep, ...] | None = field(default=None, init=False, eq=False, repr=False)

    __attrs_post_init__ = check_types

    def with_step(self, step: AgentStep) -> ExecutionState:
        """Return a copy with one more step, counted in the totals."""
        calls = step.call_count
        totals = _copy_totals(self.totals, self.totals.usage + step.usage, self.totals.tool_calls + calls)
        copy = _copy_grown(self, self.steps + (step,), totals)  # noqa: RUF005  # a fifth of the time
        object.__setattr__(copy, "_grown_from", self.steps)
        return copy

    def continues(self, steps: tuple[AgentStep, ...]) -> bool:
        """Return whether the steps begin with these ones, which takes no time while an execution only grows."""
        return starts_with(self.steps, steps, self._grown_from)

    def with_last_step(self, step: AgentStep) -> ExecutionState:
        """Return a copy with the last step replaced, as when pending calls are settled.

        Its calls are not counted again; only calls that programs have made meanwhile are added.

        Raises:
            ContractViolation: if it has no step yet.
        """
        if not self.steps:
            raise ContractViolation("this execution has no step yet: add one with with_step")
        last = self.steps[-1]
        usage = self.totals.usage if step.usage == last.usage else self._usage_with(step)
        calls = self.totals.tool_calls + step.call_count - last.call_count
        return evolve(self, steps=(*self.steps[:-1], step), totals=evolve(self.totals, usage=usage, tool_calls=calls))

    def with_usage(self, usage: Usage) -> ExecutionState:
        """Return a copy with the tokens of an inference between steps counted in the totals."""
        totals = self.totals
        return evolve(self, totals=evolve(totals, usage=totals.usage + usage, beside=totals.beside + usage))

    def with_continuation(self, continuation: Continuation) -> ExecutionState:
        """Return a copy with these stop signals and this continuation request instead."""
        return evolve(self, continuation=continuation)

    def with_resumed(self, waited: float) -> ExecutionState:
        """Return a copy in progress again, after this many seconds of waiting, without the signal that suspended it."""
        total = self.waited_seconds + waited
        # What else has stopped it, beside the calls that waited, stops it when they are settled.
        continuation = self.continuation.without(StopReason.SUSPENDED)
        return evolve(self, status=ExecutionStatus.IN_PROGRESS, continuation=continuation, waited_seconds=total)

    def with_status(self, status: ExecutionStatus, at: datetime) -> ExecutionState:
        """Return a copy with another status; a terminal status ends it at this time."""
        return evolve(self, status=status, ended_at=at if status.is_terminal else None)

    def _usage_with(self, step: AgentStep) -> Usage:
        # Subtracting the replaced step is not possible: unknown usage (None) absorbs the rest of the sum.
        usage = self.totals.beside
        for earlier in self.steps[:-1]:
            usage += earlier.usage
        return usage + step.usage


_copy_grown = copier(ExecutionState, "steps", "totals")
