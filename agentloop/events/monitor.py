"""A listener that checks every run against the grammar."""

from __future__ import annotations

from attrs import define, field

from agentloop.errors import ContractViolation
from agentloop.events import grammar
from agentloop.events.execution_events import AgentExecutionStarted, ExecutionEnded
from agentloop.events.permission_events import PermissionDecided
from agentloop.events.resilience_events import ToolCallDecided
from agentloop.events.step_events import AgentStepCompleted
from agentloop.events.tool_events import (
    ToolCallAbandoned,
    ToolCallProgressed,
    ToolCallSettled,
    ToolCallStarted,
    ToolCallSuspended,
)
from agentloop.values.event import Event

_SHOWN = 20


@define
class _Run:
    """What is known of one execution."""

    state: str = grammar.START
    inference: str = grammar.IDLE
    calls: dict[str, str] = field(factory=dict)
    sequence: int = 0


@define
class ProtocolMonitor:
    """Checks the events of every execution against the grammar; for tests and for production.

    Use it as a wiretap, then ask for `violations` or call `check`:

        monitor = ProtocolMonitor()
        loop.wiretap(monitor)

    Attributes:
        violations: what was against the grammar, in words.
    """

    violations: list[str] = field(factory=list)
    _runs: dict[str, _Run] = field(factory=dict)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, AgentExecutionStarted) and event.resumed:
            self._runs.pop(event.execution_id, None)  # what was interrupted in the middle of a step begins it again
        run = self._runs.setdefault(event.execution_id, _Run())
        self._check_sequence(run, event)
        kind = type(event)
        if isinstance(event, _OF_A_CALL):
            self._require_step(run, event)
            before = run.calls.get(event.key, grammar.START)
            run.calls[event.key] = self._next(grammar.TOOL_CALL, before, event, f"the call {event.key}")
        elif kind in grammar.EXECUTION_EVENTS:
            if isinstance(event, AgentStepCompleted | ExecutionEnded):
                self._check_step_is_settled(run, event)
            run.state = self._next(grammar.EXECUTION, run.state, event, "the execution")
        else:
            self._require_step(run, event)
            if kind in grammar.INFERENCE_EVENTS:
                run.inference = self._next(grammar.INFERENCE, run.inference, event, "the inference")

    @property
    def unfinished(self) -> list[str]:
        """The ids of executions that have begun and not come to a terminal event."""
        return [execution for execution, run in self._runs.items() if run.state != grammar.OVER]

    def check(self) -> None:
        """Check what was seen so far.

        Raises:
            ContractViolation: listing everything against the grammar, and runs that stand inside a step.
        """
        inside = [f"{name} stands {run.state}" for name, run in self._runs.items() if run.state in _INSIDE]
        found = [*self.violations, *inside]
        if found:
            raise ContractViolation("the events break the grammar (law 7): " + "; ".join(found[:_SHOWN]))

    def _next(self, table: grammar.Grammar, state: str, event: Event, subject: str) -> str:
        following = table[state].get(type(event))
        if following is None:
            legal = ", ".join(sorted(kind.__name__ for kind in table[state])) or "nothing"
            self._blame(event, f"{subject} is {state!r}, where {legal} may come")
            return state
        return following

    def _check_sequence(self, run: _Run, event: Event) -> None:
        begins = isinstance(event, AgentExecutionStarted)
        if isinstance(event, AgentExecutionStarted) and not event.resumed and run.state != grammar.START:
            self._blame(event, "the execution has begun before, and this does not say that it is resumed")
        if not begins and event.sequence != run.sequence + 1 and run.sequence:
            self._blame(event, f"its sequence is {event.sequence} after {run.sequence}")
        run.sequence = event.sequence

    def _require_step(self, run: _Run, event: Event) -> None:
        if run.state != grammar.IN_STEP:
            self._blame(event, f"it came {run.state!r} instead of in a step")

    def _check_step_is_settled(self, run: _Run, event: Event) -> None:
        if run.inference != grammar.IDLE:
            self._blame(event, f"the inference is still {run.inference!r}")
        running = [key for key, state in run.calls.items() if state == grammar.RUNNING]
        if running:
            self._blame(event, f"calls are still running: {', '.join(running)}")

    def _blame(self, event: Event, why: str) -> None:
        self.violations.append(f"{type(event).__name__} (#{event.sequence} of {event.execution_id}): {why}")


_OF_A_CALL = (
    PermissionDecided,
    ToolCallStarted,
    ToolCallProgressed,
    ToolCallAbandoned,
    ToolCallSuspended,
    ToolCallDecided,
    ToolCallSettled,
)
_INSIDE = frozenset({grammar.IN_STEP, grammar.DECIDED})
