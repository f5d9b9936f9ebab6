"""The grammar of events as tables (which events are legal in each state), and a monitor that checks event streams.

A run of an execution starts with `AgentExecutionStarted` and ends with exactly one of the five terminal events. Inside a step
inferences are sequential and the calls of a batch are concurrent, each with its own grammar. A run that is left early, for
example by leaving `iterate`, ends between two steps without a terminal event and may start again. A step that is interrupted
before it is part of the execution is not completed: the run ends inside it with `AgentExecutionInterrupted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import define, field

from agentloop.errors import ContractViolation
from agentloop.events.accounts import BudgetShareUsed
from agentloop.events.execution import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionInterrupted,
    AgentExecutionStarted,
    AgentExecutionStopped,
    AgentExecutionSuspended,
    AgentStepCompleted,
    AgentStepStarted,
    ContextEpochBegan,
    ContextSummarized,
    ContinuationEvaluated,
    ConversationHandedOver,
    EventLoopBlocked,
    ExecutionClaimLost,
    ExecutionEnded,
    GuardrailTripped,
    InterceptorInterrupted,
    InterceptorRan,
    MessageReceived,
    StopSignalReceived,
)
from agentloop.events.inference import (
    DecisionExtractionFailed,
    EagerCallsDiscarded,
    InferenceDelayed,
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    ModeChosen,
    ModelRouted,
    PrefixBroken,
    QuotedCallsIgnored,
    TokenUsageReported,
    ToolLeftOut,
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
    AbandonedToolCallEnded,
    GrantGiven,
    InferenceReused,
    PermissionDecided,
    ToolCallAbandoned,
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallGranted,
    ToolCallIntentKept,
    ToolCallProgressed,
    ToolCallRecovered,
    ToolCallRejected,
    ToolCallReviewed,
    ToolCallSettled,
    ToolCallSlow,
    ToolCallStarted,
    ToolCallSuspended,
    ToolDefinitionChanged,
    ToolsUnavailable,
)
from agentloop.values.event import Event
from agentloop.values.records import outer_key

Grammar: TypeAlias = Mapping[str, Mapping[type[Event], str]]
"""For each state, the legal events and the state to which each leads."""

START = "start"
BETWEEN_STEPS = "between steps"
IN_STEP = "in a step"
DECIDED = "decided about going on"
OVER = "over"

TERMINAL: frozenset[type[Event]] = frozenset(
    {
        AgentExecutionCompleted,
        AgentExecutionStopped,
        AgentExecutionSuspended,
        AgentExecutionFailed,
        AgentExecutionInterrupted,
    }
)

EXECUTION: Grammar = {
    START: {AgentExecutionStarted: BETWEEN_STEPS},
    BETWEEN_STEPS: {
        AgentStepStarted: IN_STEP,
        StopSignalReceived: BETWEEN_STEPS,
        MessageReceived: BETWEEN_STEPS,
        InterceptorRan: BETWEEN_STEPS,
        InterceptorInterrupted: BETWEEN_STEPS,
        ContextSummarized: BETWEEN_STEPS,
        ConversationHandedOver: BETWEEN_STEPS,
        ExecutionClaimLost: BETWEEN_STEPS,
        EventLoopBlocked: BETWEEN_STEPS,
        AgentExecutionStarted: BETWEEN_STEPS,
        **dict.fromkeys(TERMINAL, OVER),
    },
    IN_STEP: {
        StopSignalReceived: IN_STEP,
        ToolsUnavailable: IN_STEP,
        MessageReceived: IN_STEP,
        InterceptorRan: IN_STEP,
        InterceptorInterrupted: IN_STEP,
        ContextEpochBegan: IN_STEP,
        GuardrailTripped: IN_STEP,
        DecisionExtractionFailed: IN_STEP,
        EagerCallsDiscarded: IN_STEP,
        ModeChosen: IN_STEP,
        PrefixBroken: IN_STEP,
        QuotedCallsIgnored: IN_STEP,
        ValidationFailed: IN_STEP,
        ExecutionClaimLost: IN_STEP,
        EventLoopBlocked: IN_STEP,
        ContinuationEvaluated: DECIDED,
        AgentExecutionStopped: OVER,
        AgentExecutionInterrupted: OVER,
    },
    DECIDED: {
        AgentStepCompleted: BETWEEN_STEPS,
        ExecutionClaimLost: DECIDED,
        EventLoopBlocked: DECIDED,
        AgentExecutionInterrupted: OVER,
    },
    OVER: {AgentExecutionStarted: BETWEEN_STEPS},
}
"""The grammar of an execution. The events of inferences and tool calls are legal in the state `in a step`."""

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
        BudgetShareUsed: ASKED,
        InferenceDelayed: ASKED,
        ModelRouted: ASKED,
        ToolLeftOut: ASKED,
        InferenceDeltaReceived: ASKED,
        InferenceRetried: ASKED,
        InferenceResponseReceived: ANSWERED,
        InferenceFailed: IDLE,
    },
    ANSWERED: {TokenUsageReported: IDLE},
}
"""The grammar of the inferences of a step, which are sequential. A response without a request comes from an interceptor or
from the journal."""

RUNNING = "running"
SETTLED = "settled"

TOOL_CALL: Grammar = {
    START: {
        PermissionDecided: START,
        GrantGiven: START,
        ToolCallGranted: START,
        AbandonedToolCallEnded: START,
        ToolCallIntentKept: START,
        ToolCallRecovered: START,
        ToolCallReviewed: START,
        ToolCallSuspended: START,
        ToolDefinitionChanged: START,
        ToolCallStarted: RUNNING,
        ToolCallCompleted: SETTLED,
        ToolCallBlocked: SETTLED,
        ToolCallRejected: SETTLED,
    },
    RUNNING: {
        ToolCallProgressed: RUNNING,
        ToolCallSlow: RUNNING,
        ToolCallAbandoned: RUNNING,
        AbandonedToolCallEnded: RUNNING,
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
    SETTLED: {AbandonedToolCallEnded: SETTLED},
}
"""The grammar of one tool call. A call that completes without a start was answered or cancelled before it ran, or its outcome
was recorded. A call that is suspended without a start had started before an interruption. An abandoned tool may end at any
time, also after its step and its execution. The events of a call that a program makes lie within those of the call that runs
the program."""


def event_classes(grammar: Grammar) -> frozenset[type[Event]]:
    """Return every event class of a grammar."""
    return frozenset(kind for following in grammar.values() for kind in following)


INFERENCE_EVENTS = event_classes(INFERENCE)
TOOL_CALL_EVENTS = event_classes(TOOL_CALL)
EXECUTION_EVENTS = event_classes(EXECUTION)


_MAX_SHOWN_VIOLATIONS = 20


@define
class _Run:
    """The state of one execution in the monitor."""

    state: str = START
    inference: str = IDLE
    calls: dict[str, str] = field(factory=dict)
    sequence: int = 0
    # The last sequence numbers of the runs before, which were suspended or interrupted.
    earlier: list[int] = field(factory=list)


@define
class ProtocolMonitor:
    """Checks the events of any number of executions against the grammar; cheap enough for production.

    Use it as a wiretap, then read `violations` or call `check`:

        monitor = ProtocolMonitor()
        loop.wiretap(monitor)

    Attributes:
        violations: a description of each illegal event.
    """

    violations: list[str] = field(factory=list)
    _runs: dict[str, _Run] = field(factory=dict)

    def __call__(self, event: Event) -> None:
        """Check one event."""
        if isinstance(event, AgentExecutionStarted) and event.resumed:
            # An execution that was interrupted inside a step repeats the step.
            ended = self._runs.pop(event.execution_id, _Run())
            self._runs[event.execution_id] = _Run(earlier=[*ended.earlier, ended.sequence])
        run = self._runs.setdefault(event.execution_id, _Run())
        self._check_sequence(run, event)
        kind = type(event)
        if isinstance(event, _CALL_EVENTS):
            if not isinstance(event, AbandonedToolCallEnded):
                self._require_step(run, event)
                self._check_nesting(run, event, event.key)
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
        """The ids of executions that have started and have no terminal event yet."""
        return [execution for execution, run in self._runs.items() if run.state != OVER]

    def check(self) -> None:
        """Raise if any event so far was illegal.

        Raises:
            ContractViolation: lists the violations, and executions whose last event is inside a step.
        """
        inside = [f"{name} ended {run.state}" for name, run in self._runs.items() if run.state in _INSIDE_STEP]
        problems = [*self.violations, *inside]
        if problems:
            shown = "; ".join(problems[:_MAX_SHOWN_VIOLATIONS])
            raise ContractViolation(f"the events break the grammar (law 7): {shown}")

    def _next(self, table: Grammar, state: str, event: Event, subject: str) -> str:
        following = table[state].get(type(event))
        if following is None:
            legal = ", ".join(sorted(kind.__name__ for kind in table[state])) or "nothing"
            self._report(event, f"{subject} is {state!r}, where {legal} may come")
            return state
        return following

    def _check_sequence(self, run: _Run, event: Event) -> None:
        is_start = isinstance(event, AgentExecutionStarted)
        if isinstance(event, AgentExecutionStarted) and not event.resumed and run.state != START:
            self._report(event, "the execution has started before, but the event is not marked as resumed")
        if isinstance(event, AbandonedToolCallEnded) and event.sequence - 1 in run.earlier:
            # An earlier run has left the tool behind, and this is one more event of that run.
            run.earlier[run.earlier.index(event.sequence - 1)] = event.sequence
            return
        # A run may start in the middle of a sequence, when the monitor was attached late.
        if not is_start and event.sequence != run.sequence + 1 and run.sequence:
            self._report(event, f"its sequence is {event.sequence} after {run.sequence}")
        run.sequence = event.sequence

    def _check_nesting(self, run: _Run, event: Event, key: str) -> None:
        """Check that a call of a program lies within the call that runs the program."""
        outer = outer_key(key)
        if outer and run.calls.get(outer, START) != RUNNING:
            self._report(event, f"the call {outer} that runs the program is {run.calls.get(outer, START)!r}")
        if isinstance(event, ToolCallSettled | ToolCallSuspended):
            running = [inner for inner, state in run.calls.items() if state == RUNNING and outer_key(inner) == key]
            if running:
                self._report(event, f"calls inside the call {key} are still running: {', '.join(running)}")

    def _require_step(self, run: _Run, event: Event) -> None:
        if run.state != IN_STEP:
            self._report(event, f"it came {run.state!r} instead of in a step")

    def _check_step_is_settled(self, run: _Run, event: Event) -> None:
        if run.inference != IDLE:
            self._report(event, f"the inference is still {run.inference!r}")
        running = [key for key, state in run.calls.items() if state == RUNNING]
        if running:
            self._report(event, f"calls are still running: {', '.join(running)}")

    def _report(self, event: Event, why: str) -> None:
        self.violations.append(f"{type(event).__name__} (#{event.sequence} of {event.execution_id}): {why}")


_CALL_EVENTS = (
    PermissionDecided,
    ToolCallStarted,
    ToolCallProgressed,
    ToolCallSlow,
    ToolCallAbandoned,
    AbandonedToolCallEnded,
    ToolCallSuspended,
    ToolCallDecided,
    ToolCallSettled,
)
_INSIDE_STEP = frozenset({IN_STEP, DECIDED})
