"""What happened, told to whoever listens: event classes, the bus, the grammar and its monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.events.bus import EventBus as EventBus
    from agentloop.events.context_events import ContextEpochBegan as ContextEpochBegan
    from agentloop.events.context_events import ContextSummarised as ContextSummarised
    from agentloop.events.decision_events import DecisionExtractionFailed as DecisionExtractionFailed
    from agentloop.events.decision_events import ValidationFailed as ValidationFailed
    from agentloop.events.execution_events import AgentExecutionCompleted as AgentExecutionCompleted
    from agentloop.events.execution_events import AgentExecutionFailed as AgentExecutionFailed
    from agentloop.events.execution_events import AgentExecutionStarted as AgentExecutionStarted
    from agentloop.events.execution_events import AgentExecutionStopped as AgentExecutionStopped
    from agentloop.events.execution_events import AgentExecutionSuspended as AgentExecutionSuspended
    from agentloop.events.execution_events import ContinuationEvaluated as ContinuationEvaluated
    from agentloop.events.execution_events import ConversationHandedOver as ConversationHandedOver
    from agentloop.events.execution_events import ExecutionEnded as ExecutionEnded
    from agentloop.events.execution_events import MessageReceived as MessageReceived
    from agentloop.events.execution_events import StopSignalReceived as StopSignalReceived
    from agentloop.events.inference_events import InferenceDeltaReceived as InferenceDeltaReceived
    from agentloop.events.inference_events import InferenceFailed as InferenceFailed
    from agentloop.events.inference_events import InferenceRequestStarted as InferenceRequestStarted
    from agentloop.events.inference_events import InferenceResponseReceived as InferenceResponseReceived
    from agentloop.events.inference_events import InferenceRetried as InferenceRetried
    from agentloop.events.inference_events import TokenUsageReported as TokenUsageReported
    from agentloop.events.interceptor_events import InterceptorRan as InterceptorRan
    from agentloop.events.monitor import ProtocolMonitor as ProtocolMonitor
    from agentloop.events.permission_events import PermissionDecided as PermissionDecided
    from agentloop.events.recovery_events import InferenceReused as InferenceReused
    from agentloop.events.recovery_events import Recovery as Recovery
    from agentloop.events.recovery_events import ToolCallIntentKept as ToolCallIntentKept
    from agentloop.events.recovery_events import ToolCallRecovered as ToolCallRecovered
    from agentloop.events.resilience_events import CircuitClosed as CircuitClosed
    from agentloop.events.resilience_events import CircuitDecided as CircuitDecided
    from agentloop.events.resilience_events import CircuitHalfOpened as CircuitHalfOpened
    from agentloop.events.resilience_events import CircuitOpened as CircuitOpened
    from agentloop.events.resilience_events import ToolAttemptTimedOut as ToolAttemptTimedOut
    from agentloop.events.resilience_events import ToolCallCached as ToolCallCached
    from agentloop.events.resilience_events import ToolCallDeadlineExceeded as ToolCallDeadlineExceeded
    from agentloop.events.resilience_events import ToolCallDecided as ToolCallDecided
    from agentloop.events.resilience_events import ToolCallDeduplicated as ToolCallDeduplicated
    from agentloop.events.resilience_events import ToolCallRateLimited as ToolCallRateLimited
    from agentloop.events.resilience_events import ToolCallRetried as ToolCallRetried
    from agentloop.events.resilience_events import ToolCallShortCircuited as ToolCallShortCircuited
    from agentloop.events.step_events import AgentStepCompleted as AgentStepCompleted
    from agentloop.events.step_events import AgentStepStarted as AgentStepStarted
    from agentloop.events.tool_events import ToolCallAbandoned as ToolCallAbandoned
    from agentloop.events.tool_events import ToolCallBlocked as ToolCallBlocked
    from agentloop.events.tool_events import ToolCallCompleted as ToolCallCompleted
    from agentloop.events.tool_events import ToolCallProgressed as ToolCallProgressed
    from agentloop.events.tool_events import ToolCallRejected as ToolCallRejected
    from agentloop.events.tool_events import ToolCallSettled as ToolCallSettled
    from agentloop.events.tool_events import ToolCallStarted as ToolCallStarted
    from agentloop.events.tool_events import ToolCallSuspended as ToolCallSuspended
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.events.bus": "EventBus",
            "agentloop.events.context_events": "ContextEpochBegan ContextSummarised",
            "agentloop.events.decision_events": "DecisionExtractionFailed ValidationFailed",
            "agentloop.events.execution_events": "AgentExecutionCompleted AgentExecutionFailed AgentExecutionStarted AgentExecutionStopped AgentExecutionSuspended ContinuationEvaluated ConversationHandedOver ExecutionEnded MessageReceived StopSignalReceived",
            "agentloop.events.inference_events": "InferenceDeltaReceived InferenceFailed InferenceRequestStarted InferenceResponseReceived InferenceRetried TokenUsageReported",
            "agentloop.events.interceptor_events": "InterceptorRan",
            "agentloop.events.monitor": "ProtocolMonitor",
            "agentloop.events.permission_events": "PermissionDecided",
            "agentloop.events.recovery_events": "InferenceReused Recovery ToolCallIntentKept ToolCallRecovered",
            "agentloop.events.resilience_events": "CircuitClosed CircuitDecided CircuitHalfOpened CircuitOpened ToolAttemptTimedOut ToolCallCached ToolCallDeadlineExceeded ToolCallDecided ToolCallDeduplicated ToolCallRateLimited ToolCallRetried ToolCallShortCircuited",
            "agentloop.events.step_events": "AgentStepCompleted AgentStepStarted",
            "agentloop.events.tool_events": "ToolCallAbandoned ToolCallBlocked ToolCallCompleted ToolCallProgressed ToolCallRejected ToolCallSettled ToolCallStarted ToolCallSuspended",
        },
    )
