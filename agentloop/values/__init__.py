"""The frozen values that every contract speaks in, and their JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.values.agent_context import AgentContext as AgentContext
    from agentloop.values.agent_state import AgentState as AgentState
    from agentloop.values.agent_state import ExecutionFailed as ExecutionFailed
    from agentloop.values.agent_step import AgentStep as AgentStep
    from agentloop.values.agent_step import OpenTurn as OpenTurn
    from agentloop.values.agent_step import StepKind as StepKind
    from agentloop.values.call_policy import CachePolicy as CachePolicy
    from agentloop.values.call_policy import CallPolicy as CallPolicy
    from agentloop.values.call_policy import CircuitPolicy as CircuitPolicy
    from agentloop.values.call_policy import DeduplicatePolicy as DeduplicatePolicy
    from agentloop.values.call_policy import RateLimit as RateLimit
    from agentloop.values.call_policy import RetryPolicy as RetryPolicy
    from agentloop.values.clock import Clock as Clock
    from agentloop.values.clock import SystemClock as SystemClock
    from agentloop.values.decision import Answer as Answer
    from agentloop.values.decision import Approve as Approve
    from agentloop.values.decision import Decision as Decision
    from agentloop.values.decision import Deny as Deny
    from agentloop.values.decision import Edit as Edit
    from agentloop.values.decision import answer as answer
    from agentloop.values.decision import approve as approve
    from agentloop.values.decision import deny as deny
    from agentloop.values.decision import edit as edit
    from agentloop.values.event import Event as Event
    from agentloop.values.event import EventHead as EventHead
    from agentloop.values.execution_state import ExecutionState as ExecutionState
    from agentloop.values.execution_state import ExecutionStatus as ExecutionStatus
    from agentloop.values.execution_state import Totals as Totals
    from agentloop.values.id_source import DerivedIds as DerivedIds
    from agentloop.values.id_source import IdSource as IdSource
    from agentloop.values.id_source import RandomIds as RandomIds
    from agentloop.values.in_doubt import CannotTell as CannotTell
    from agentloop.values.in_doubt import DidNotHappen as DidNotHappen
    from agentloop.values.in_doubt import Happened as Happened
    from agentloop.values.in_doubt import InDoubt as InDoubt
    from agentloop.values.in_doubt import cannot_tell as cannot_tell
    from agentloop.values.in_doubt import did_not_happen as did_not_happen
    from agentloop.values.in_doubt import happened as happened
    from agentloop.values.inference_delta import InferenceDelta as InferenceDelta
    from agentloop.values.inference_request import InferenceOptions as InferenceOptions
    from agentloop.values.inference_request import InferenceRequest as InferenceRequest
    from agentloop.values.inference_request import ReasoningEffort as ReasoningEffort
    from agentloop.values.inference_request import ResponseFormat as ResponseFormat
    from agentloop.values.inference_request import ToolChoice as ToolChoice
    from agentloop.values.inference_response import FinishReason as FinishReason
    from agentloop.values.inference_response import InferenceResponse as InferenceResponse
    from agentloop.values.journal_record import ExecutionHead as ExecutionHead
    from agentloop.values.journal_record import JournalRecord as JournalRecord
    from agentloop.values.journal_record import RecordKind as RecordKind
    from agentloop.values.json_value import JsonObject as JsonObject
    from agentloop.values.json_value import JsonValue as JsonValue
    from agentloop.values.json_value import freeze as freeze
    from agentloop.values.json_value import freeze_object as freeze_object
    from agentloop.values.json_value import thaw as thaw
    from agentloop.values.message import Message as Message
    from agentloop.values.message import Part as Part
    from agentloop.values.message import ResponsePart as ResponsePart
    from agentloop.values.message import Role as Role
    from agentloop.values.parts import Audio as Audio
    from agentloop.values.parts import Document as Document
    from agentloop.values.parts import Image as Image
    from agentloop.values.parts import Media as Media
    from agentloop.values.parts import ProviderPart as ProviderPart
    from agentloop.values.parts import Reasoning as Reasoning
    from agentloop.values.parts import Text as Text
    from agentloop.values.pending_call import CallSuspended as CallSuspended
    from agentloop.values.pending_call import PendingCall as PendingCall
    from agentloop.values.points import AfterExecution as AfterExecution
    from agentloop.values.points import AfterInference as AfterInference
    from agentloop.values.points import AfterStep as AfterStep
    from agentloop.values.points import AfterToolUse as AfterToolUse
    from agentloop.values.points import AroundInference as AroundInference
    from agentloop.values.points import AroundToolUse as AroundToolUse
    from agentloop.values.points import BeforeExecution as BeforeExecution
    from agentloop.values.points import BeforeInference as BeforeInference
    from agentloop.values.points import BeforeStep as BeforeStep
    from agentloop.values.points import BeforeToolUse as BeforeToolUse
    from agentloop.values.points import OnError as OnError
    from agentloop.values.points import OnStop as OnStop
    from agentloop.values.points import Point as Point
    from agentloop.values.points import ProceedInference as ProceedInference
    from agentloop.values.points import ProceedToolUse as ProceedToolUse
    from agentloop.values.points import StatePoint as StatePoint
    from agentloop.values.recorded import CallIntent as CallIntent
    from agentloop.values.recorded import RecordedCall as RecordedCall
    from agentloop.values.recorded import RecordedInference as RecordedInference
    from agentloop.values.serialisation import SCHEMA_VERSION as SCHEMA_VERSION
    from agentloop.values.serialisation import from_json as from_json
    from agentloop.values.serialisation import from_plain as from_plain
    from agentloop.values.serialisation import make_converter as make_converter
    from agentloop.values.serialisation import to_json as to_json
    from agentloop.values.serialisation import to_plain as to_plain
    from agentloop.values.stop import AgentStop as AgentStop
    from agentloop.values.stop import Continuation as Continuation
    from agentloop.values.stop import StopReason as StopReason
    from agentloop.values.stop import StopSignal as StopSignal
    from agentloop.values.tool_call import ToolCall as ToolCall
    from agentloop.values.tool_execution import ContentPart as ContentPart
    from agentloop.values.tool_execution import ErrorInfo as ErrorInfo
    from agentloop.values.tool_execution import ToolExchange as ToolExchange
    from agentloop.values.tool_execution import ToolExecution as ToolExecution
    from agentloop.values.tool_execution import ToolStatus as ToolStatus
    from agentloop.values.tool_executions import BatchFailed as BatchFailed
    from agentloop.values.tool_executions import ToolCalls as ToolCalls
    from agentloop.values.tool_executions import ToolExecutions as ToolExecutions
    from agentloop.values.tool_result import ToolResult as ToolResult
    from agentloop.values.tool_spec import Effect as Effect
    from agentloop.values.tool_spec import ToolSpec as ToolSpec
    from agentloop.values.usage import Usage as Usage
    from agentloop.values.verdict import Block as Block
    from agentloop.values.verdict import Suspend as Suspend
    from agentloop.values.verdict import Verdict as Verdict
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.values.agent_context": "AgentContext",
            "agentloop.values.agent_state": "AgentState ExecutionFailed",
            "agentloop.values.agent_step": "AgentStep OpenTurn StepKind",
            "agentloop.values.call_policy": "CachePolicy CallPolicy CircuitPolicy DeduplicatePolicy RateLimit RetryPolicy",
            "agentloop.values.clock": "Clock SystemClock",
            "agentloop.values.decision": "Answer Approve Decision Deny Edit answer approve deny edit",
            "agentloop.values.event": "Event EventHead",
            "agentloop.values.execution_state": "ExecutionState ExecutionStatus Totals",
            "agentloop.values.id_source": "DerivedIds IdSource RandomIds",
            "agentloop.values.in_doubt": (
                "CannotTell DidNotHappen Happened InDoubt cannot_tell did_not_happen happened"
            ),
            "agentloop.values.inference_delta": "InferenceDelta",
            "agentloop.values.inference_request": "InferenceOptions InferenceRequest ReasoningEffort ResponseFormat ToolChoice",
            "agentloop.values.inference_response": "FinishReason InferenceResponse",
            "agentloop.values.journal_record": "ExecutionHead JournalRecord RecordKind",
            "agentloop.values.json_value": "JsonObject JsonValue freeze freeze_object thaw",
            "agentloop.values.message": "Message Part ResponsePart Role",
            "agentloop.values.parts": "Audio Document Image Media ProviderPart Reasoning Text",
            "agentloop.values.pending_call": "CallSuspended PendingCall",
            "agentloop.values.points": "AfterExecution AfterInference AfterStep AfterToolUse AroundInference AroundToolUse BeforeExecution BeforeInference BeforeStep BeforeToolUse OnError OnStop Point ProceedInference ProceedToolUse StatePoint",
            "agentloop.values.recorded": "CallIntent RecordedCall RecordedInference",
            "agentloop.values.serialisation": "SCHEMA_VERSION from_json from_plain make_converter to_json to_plain",
            "agentloop.values.stop": "AgentStop Continuation StopReason StopSignal",
            "agentloop.values.tool_call": "ToolCall",
            "agentloop.values.tool_execution": "ContentPart ErrorInfo ToolExchange ToolExecution ToolStatus",
            "agentloop.values.tool_executions": "BatchFailed ToolCalls ToolExecutions",
            "agentloop.values.tool_result": "ToolResult",
            "agentloop.values.tool_spec": "Effect ToolSpec",
            "agentloop.values.usage": "Usage",
            "agentloop.values.verdict": "Block Suspend Verdict",
        },
    )
