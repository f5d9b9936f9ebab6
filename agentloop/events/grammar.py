"""The legal sequences of events, as tables: what may follow in each state of an execution, an inference and a tool call.

A run of one execution begins with `AgentExecutionStarted` and ends with exactly one of the four terminal events. Inside a
step the inferences come one after the other, the calls of a batch side by side, each with its own small grammar. A run that
is left early, as by leaving `iterate`, ends between two steps without a terminal event and may begin again. A step that was cut off before it came to anything is not
completed: the execution is stopped inside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import define, field

from agentloop.errors import ContractViolation
from agentloop.events.execution import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStarted,
    AgentExecutionStopped,
    AgentExecutionSuspended,
    AgentStepCompleted,
    AgentStepStarted,
    ContextEpochBegan,
    ContextSummarized,
    ContinuationEvaluated,
    ConversationHandedOver,
    ExecutionEnded,
    InterceptorRan,
    MessageReceived,
    StopSignalReceived,
)
from agentloop.events.inference import (
    DecisionExtractionFailed,
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    TokenUsageReported,
    ValidationFailed,
)
from agentloop.events.resilience import (
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    ToolAttemptTimedOut,
    ToolCallCached,
    ToolCallDeadlineExceeded,
    ToolCallDecided,
    ToolCallDeduplicated,
    ToolCallRateLimited,
    ToolCallRetried,
    ToolCallShortCircuited,
)
from agentloop.events.tool_calls import (
    InferenceReused,
    PermissionDecided,
    ToolCallAbandoned,
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallIntentKept,
    ToolCallProgressed,
    ToolCallRecovered,
    ToolCallRejected,
    ToolCallSettled,
    ToolCallStarted,
    ToolCallSuspended,
)
from agentloop.values.event import Event

Grammar: TypeAlias = Mapping[str, Mapping[type[Event], str]]
"""For each state, the events that may come and the state that each leads to."""

START = "start"
BETWEEN_STEPS = "between steps"
IN_STEP = "in a step"
DECIDED = "decided about going on"
OVER = "over"

TERMINAL: frozenset[type[Event]] = frozenset(
    {AgentExecutionCompleted, AgentExecutionStopped, AgentExecutionSuspended, AgentExecutionFailed}
)

EXECUTION: Grammar = {
    START: {AgentExecutionStarted: BETWEEN_STEPS},
    BETWEEN_STEPS: {
        AgentStepStarted: IN_STEP,
        StopSignalReceived: BETWEEN_STEPS,
        MessageReceived: BETWEEN_STEPS,
        InterceptorRan: BETWEEN_STEPS,
        ContextSummarized: BETWEEN_STEPS,
        ConversationHandedOver: BETWEEN_STEPS,
        AgentExecutionStarted: BETWEEN_STEPS,
        **dict.fromkeys(TERMINAL, OVER),
    },
    IN_STEP: {
        StopSignalReceived: IN_STEP,
        MessageReceived: IN_STEP,
        InterceptorRan: IN_STEP,
        ContextEpochBegan: IN_STEP,
        DecisionExtractionFailed: IN_STEP,
        ValidationFailed: IN_STEP,
        ContinuationEvaluated: DECIDED,
        AgentExecutionStopped: OVER,
    },
    DECIDED: {AgentStepCompleted: BETWEEN_STEPS},
    OVER: {AgentExecutionStarted: BETWEEN_STEPS},
}
"""One execution. The events of inferences and tool calls come in the state `in a step`."""

IDLE = "idle"
ASKED = "asked"
ANSWERED = "answered"

INFERENCE: Grammar = {
    IDLE: {
        InferenceReused: IDLE,
        InferenceRequestStarted: ASKED,
        InferenceResponseReceived: ANSWERED,
        InferenceFailed: IDLE,
    },
    ASKED: {
        InferenceDeltaReceived: ASKED,
        InferenceRetried: ASKED,
        InferenceResponseReceived: ANSWERED,
        InferenceFailed: IDLE,
    },
    ANSWERED: {TokenUsageReported: IDLE},
}
"""The inferences of one step, one after the other. A response without a request was given by an
interceptor, or recorded."""

RUNNING = "running"
SETTLED = "settled"

TOOL_CALL: Grammar = {
    START: {
        PermissionDecided: START,
        ToolCallIntentKept: START,
        ToolCallRecovered: START,
        ToolCallSuspended: START,
        ToolCallStarted: RUNNING,
        ToolCallCompleted: SETTLED,
        ToolCallBlocked: SETTLED,
        ToolCallRejected: SETTLED,
    },
    RUNNING: {
        ToolCallProgressed: RUNNING,
        ToolCallAbandoned: RUNNING,
        ToolCallDeduplicated: RUNNING,
        ToolCallCached: RUNNING,
        ToolCallDeadlineExceeded: RUNNING,
        ToolCallRetried: RUNNING,
        CircuitOpened: RUNNING,
        CircuitHalfOpened: RUNNING,
        CircuitClosed: RUNNING,
        ToolCallShortCircuited: RUNNING,
        ToolCallRateLimited: RUNNING,
        ToolAttemptTimedOut: RUNNING,
        ToolCallSuspended: START,
        ToolCallCompleted: SETTLED,
    },
    SETTLED: {},
}
"""One tool call, by its key. A call completed without a start was answered or cancelled before it ran, or
its outcome was recorded; one suspended without a start had begun before an interruption."""


def event_classes(grammar: Grammar) -> frozenset[type[Event]]:
    """Return every event class that a grammar speaks of."""
    return frozenset(kind for following in grammar.values() for kind in following)


INFERENCE_EVENTS = event_classes(INFERENCE)
TOOL_CALL_EVENTS = event_classes(TOOL_CALL)
EXECUTION_EVENTS = event_classes(EXECUTION)


_SHOWN = 20


@define
class _Run:
    """What is known of one execution."""

    state: str = START
    inference: str = IDLE
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
            before = run.calls.get(event.key, START)
            run.calls[event.key] = self._next(TOOL_CALL, before, event, f"the call {event.key}")
        elif kind in EXECUTION_EVENTS:
            if isinstance(event, AgentStepCompleted | ExecutionEnded):
                self._check_step_is_settled(run, event)
            run.state = self._next(EXECUTION, run.state, event, "the execution")
        else:
            self._require_step(run, event)
            if kind in INFERENCE_EVENTS:
                run.inference = self._next(INFERENCE, run.inference, event, "the inference")

    @property
    def unfinished(self) -> list[str]:
        """The ids of executions that have begun and not come to a terminal event."""
        return [execution for execution, run in self._runs.items() if run.state != OVER]

    def check(self) -> None:
        """Check what was seen so far.

        Raises:
            ContractViolation: listing everything against the grammar, and runs that stand inside a step.
        """
        inside = [f"{name} stands {run.state}" for name, run in self._runs.items() if run.state in _INSIDE]
        found = [*self.violations, *inside]
        if found:
            raise ContractViolation("the events break the grammar (law 7): " + "; ".join(found[:_SHOWN]))

    def _next(self, table: Grammar, state: str, event: Event, subject: str) -> str:
        following = table[state].get(type(event))
        if following is None:
            legal = ", ".join(sorted(kind.__name__ for kind in table[state])) or "nothing"
            self._blame(event, f"{subject} is {state!r}, where {legal} may come")
            return state
        return following

    def _check_sequence(self, run: _Run, event: Event) -> None:
        begins = isinstance(event, AgentExecutionStarted)
        if isinstance(event, AgentExecutionStarted) and not event.resumed and run.state != START:
            self._blame(event, "the execution has begun before, and this does not say that it is resumed")
        if not begins and event.sequence != run.sequence + 1 and run.sequence:
            self._blame(event, f"its sequence is {event.sequence} after {run.sequence}")
        run.sequence = event.sequence

    def _require_step(self, run: _Run, event: Event) -> None:
        if run.state != IN_STEP:
            self._blame(event, f"it came {run.state!r} instead of in a step")

    def _check_step_is_settled(self, run: _Run, event: Event) -> None:
        if run.inference != IDLE:
            self._blame(event, f"the inference is still {run.inference!r}")
        running = [key for key, state in run.calls.items() if state == RUNNING]
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
_INSIDE = frozenset({IN_STEP, DECIDED})
