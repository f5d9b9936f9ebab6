"""What happened, told to whoever listens: event classes, the bus, the grammar and its monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.events.bus import EventBus as EventBus
    from agentloop.events.execution import AgentExecutionCompleted as AgentExecutionCompleted
    from agentloop.events.execution import AgentExecutionFailed as AgentExecutionFailed
    from agentloop.events.execution import AgentExecutionStarted as AgentExecutionStarted
    from agentloop.events.execution import AgentExecutionStopped as AgentExecutionStopped
    from agentloop.events.execution import AgentExecutionSuspended as AgentExecutionSuspended
    from agentloop.events.execution import AgentStepCompleted as AgentStepCompleted
    from agentloop.events.execution import AgentStepStarted as AgentStepStarted
    from agentloop.events.execution import ContextEpochBegan as ContextEpochBegan
    from agentloop.events.execution import ContextSummarized as ContextSummarized
    from agentloop.events.execution import ContinuationEvaluated as ContinuationEvaluated
    from agentloop.events.execution import ConversationHandedOver as ConversationHandedOver
    from agentloop.events.execution import ExecutionEnded as ExecutionEnded
    from agentloop.events.execution import InterceptorRan as InterceptorRan
    from agentloop.events.execution import MessageReceived as MessageReceived
    from agentloop.events.execution import StopSignalReceived as StopSignalReceived
    from agentloop.events.grammar import ProtocolMonitor as ProtocolMonitor
    from agentloop.events.inference import DecisionExtractionFailed as DecisionExtractionFailed
    from agentloop.events.inference import InferenceDeltaReceived as InferenceDeltaReceived
    from agentloop.events.inference import InferenceFailed as InferenceFailed
    from agentloop.events.inference import InferenceRequestStarted as InferenceRequestStarted
    from agentloop.events.inference import InferenceResponseReceived as InferenceResponseReceived
    from agentloop.events.inference import InferenceRetried as InferenceRetried
    from agentloop.events.inference import TokenUsageReported as TokenUsageReported
    from agentloop.events.inference import ValidationFailed as ValidationFailed
    from agentloop.events.resilience import CircuitClosed as CircuitClosed
    from agentloop.events.resilience import CircuitDecided as CircuitDecided
    from agentloop.events.resilience import CircuitHalfOpened as CircuitHalfOpened
    from agentloop.events.resilience import CircuitOpened as CircuitOpened
    from agentloop.events.resilience import ToolAttemptTimedOut as ToolAttemptTimedOut
    from agentloop.events.resilience import ToolCallCached as ToolCallCached
    from agentloop.events.resilience import ToolCallDeadlineExceeded as ToolCallDeadlineExceeded
    from agentloop.events.resilience import ToolCallDecided as ToolCallDecided
    from agentloop.events.resilience import ToolCallDeduplicated as ToolCallDeduplicated
    from agentloop.events.resilience import ToolCallRateLimited as ToolCallRateLimited
    from agentloop.events.resilience import ToolCallRetried as ToolCallRetried
    from agentloop.events.resilience import ToolCallShortCircuited as ToolCallShortCircuited
    from agentloop.events.tool_calls import InferenceReused as InferenceReused
    from agentloop.events.tool_calls import PermissionDecided as PermissionDecided
    from agentloop.events.tool_calls import Recovery as Recovery
    from agentloop.events.tool_calls import ToolCallAbandoned as ToolCallAbandoned
    from agentloop.events.tool_calls import ToolCallBlocked as ToolCallBlocked
    from agentloop.events.tool_calls import ToolCallCompleted as ToolCallCompleted
    from agentloop.events.tool_calls import ToolCallIntentKept as ToolCallIntentKept
    from agentloop.events.tool_calls import ToolCallProgressed as ToolCallProgressed
    from agentloop.events.tool_calls import ToolCallRecovered as ToolCallRecovered
    from agentloop.events.tool_calls import ToolCallRejected as ToolCallRejected
    from agentloop.events.tool_calls import ToolCallSettled as ToolCallSettled
    from agentloop.events.tool_calls import ToolCallStarted as ToolCallStarted
    from agentloop.events.tool_calls import ToolCallSuspended as ToolCallSuspended
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.events.bus": "EventBus",
            "agentloop.events.execution": "ContextEpochBegan ContextSummarized AgentExecutionCompleted AgentExecutionFailed AgentExecutionStarted AgentExecutionStopped AgentExecutionSuspended ContinuationEvaluated ConversationHandedOver ExecutionEnded MessageReceived StopSignalReceived InterceptorRan AgentStepCompleted AgentStepStarted",
            "agentloop.events.inference": "DecisionExtractionFailed ValidationFailed InferenceDeltaReceived InferenceFailed InferenceRequestStarted InferenceResponseReceived InferenceRetried TokenUsageReported",
            "agentloop.events.grammar": "ProtocolMonitor",
            "agentloop.events.tool_calls": "PermissionDecided InferenceReused Recovery ToolCallIntentKept ToolCallRecovered ToolCallAbandoned ToolCallBlocked ToolCallCompleted ToolCallProgressed ToolCallRejected ToolCallSettled ToolCallStarted ToolCallSuspended",
            "agentloop.events.resilience": "CircuitClosed CircuitDecided CircuitHalfOpened CircuitOpened ToolAttemptTimedOut ToolCallCached ToolCallDeadlineExceeded ToolCallDecided ToolCallDeduplicated ToolCallRateLimited ToolCallRetried ToolCallShortCircuited",
        },
    )
