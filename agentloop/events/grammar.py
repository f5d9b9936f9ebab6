"""The legal sequences of events, as tables: what may follow in each state of an execution, an inference and a tool call.

A run of one execution begins with `AgentExecutionStarted` and ends with exactly one of the four terminal events. Inside a
step the inferences come one after the other, the calls of a batch side by side, each with its own small grammar. A run that
is left early, as by leaving `iterate`, ends between two steps without a terminal event and may begin again. A step that was cut off before it came to anything is not
completed: the execution is stopped inside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from agentloop.events.context_events import ContextEpochBegan, ContextSummarised
from agentloop.events.decision_events import DecisionExtractionFailed, ValidationFailed
from agentloop.events.execution_events import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStarted,
    AgentExecutionStopped,
    AgentExecutionSuspended,
    ContinuationEvaluated,
    ConversationHandedOver,
    MessageReceived,
    StopSignalReceived,
)
from agentloop.events.inference_events import (
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    TokenUsageReported,
)
from agentloop.events.interceptor_events import InterceptorRan
from agentloop.events.permission_events import PermissionDecided
from agentloop.events.recovery_events import InferenceReused, ToolCallIntentKept, ToolCallRecovered
from agentloop.events.resilience_events import (
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    ToolAttemptTimedOut,
    ToolCallCached,
    ToolCallDeadlineExceeded,
    ToolCallDeduplicated,
    ToolCallRateLimited,
    ToolCallRetried,
    ToolCallShortCircuited,
)
from agentloop.events.step_events import AgentStepCompleted, AgentStepStarted
from agentloop.events.tool_events import (
    ToolCallAbandoned,
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallRejected,
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
        ContextSummarised: BETWEEN_STEPS,
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


def words(grammar: Grammar) -> frozenset[type[Event]]:
    """Return every event class that a grammar speaks of."""
    return frozenset(kind for following in grammar.values() for kind in following)


INFERENCE_EVENTS = words(INFERENCE)
TOOL_CALL_EVENTS = words(TOOL_CALL)
EXECUTION_EVENTS = words(EXECUTION)
