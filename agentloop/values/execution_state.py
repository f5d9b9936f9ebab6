"""One run of the loop, written down."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from attrs import evolve, field, frozen

from agentloop.errors import ContractViolation
from agentloop.values.agent_step import NO_USAGE, AgentStep
from agentloop.values.stop import NO_SIGNALS, Continuation
from agentloop.values.usage import Usage
from agentloop.values.value import Value


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


def _as_steps(steps: Iterable[AgentStep]) -> tuple[AgentStep, ...]:
    return tuple(steps)


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
    steps: tuple[AgentStep, ...] = field(default=(), converter=_as_steps)
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
