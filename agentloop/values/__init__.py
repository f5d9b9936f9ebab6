"""The frozen values that every contract speaks in, and their JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.values.batches import BatchFailed as BatchFailed
    from agentloop.values.batches import ToolCalls as ToolCalls
    from agentloop.values.batches import ToolExecutions as ToolExecutions
    from agentloop.values.decisions import Answer as Answer
    from agentloop.values.decisions import Approve as Approve
    from agentloop.values.decisions import Block as Block
    from agentloop.values.decisions import CallSuspended as CallSuspended
    from agentloop.values.decisions import Decision as Decision
    from agentloop.values.decisions import Deny as Deny
    from agentloop.values.decisions import Edit as Edit
    from agentloop.values.decisions import PendingCall as PendingCall
    from agentloop.values.decisions import Suspend as Suspend
    from agentloop.values.decisions import Verdict as Verdict
    from agentloop.values.decisions import answer as answer
    from agentloop.values.decisions import approve as approve
    from agentloop.values.decisions import deny as deny
    from agentloop.values.decisions import edit as edit
    from agentloop.values.event import Event as Event
    from agentloop.values.event import EventHead as EventHead
    from agentloop.values.inference import FinishReason as FinishReason
    from agentloop.values.inference import InferenceDelta as InferenceDelta
    from agentloop.values.inference import InferenceOptions as InferenceOptions
    from agentloop.values.inference import InferenceRequest as InferenceRequest
    from agentloop.values.inference import InferenceResponse as InferenceResponse
    from agentloop.values.inference import ReasoningEffort as ReasoningEffort
    from agentloop.values.inference import ResponseFormat as ResponseFormat
    from agentloop.values.inference import ToolChoice as ToolChoice
    from agentloop.values.inference import Usage as Usage
    from agentloop.values.json import JsonObject as JsonObject
    from agentloop.values.json import JsonValue as JsonValue
    from agentloop.values.json import freeze as freeze
    from agentloop.values.json import freeze_object as freeze_object
    from agentloop.values.json import thaw as thaw
    from agentloop.values.messages import Message as Message
    from agentloop.values.messages import Part as Part
    from agentloop.values.messages import ResponsePart as ResponsePart
    from agentloop.values.messages import Role as Role
    from agentloop.values.parts import Audio as Audio
    from agentloop.values.parts import Document as Document
    from agentloop.values.parts import Image as Image
    from agentloop.values.parts import Media as Media
    from agentloop.values.parts import ProviderPart as ProviderPart
    from agentloop.values.parts import Reasoning as Reasoning
    from agentloop.values.parts import Text as Text
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
    from agentloop.values.policies import CachePolicy as CachePolicy
    from agentloop.values.policies import CallPolicy as CallPolicy
    from agentloop.values.policies import CircuitPolicy as CircuitPolicy
    from agentloop.values.policies import DeduplicatePolicy as DeduplicatePolicy
    from agentloop.values.policies import RateLimit as RateLimit
    from agentloop.values.policies import RetryPolicy as RetryPolicy
    from agentloop.values.records import CallIntent as CallIntent
    from agentloop.values.records import CannotTell as CannotTell
    from agentloop.values.records import DidNotHappen as DidNotHappen
    from agentloop.values.records import ExecutionHead as ExecutionHead
    from agentloop.values.records import Happened as Happened
    from agentloop.values.records import InDoubt as InDoubt
    from agentloop.values.records import JournalRecord as JournalRecord
    from agentloop.values.records import RecordedCall as RecordedCall
    from agentloop.values.records import RecordedInference as RecordedInference
    from agentloop.values.records import RecordKind as RecordKind
    from agentloop.values.records import cannot_tell as cannot_tell
    from agentloop.values.records import did_not_happen as did_not_happen
    from agentloop.values.records import happened as happened
    from agentloop.values.serialization import SCHEMA_VERSION as SCHEMA_VERSION
    from agentloop.values.serialization import from_json as from_json
    from agentloop.values.serialization import from_plain as from_plain
    from agentloop.values.serialization import make_converter as make_converter
    from agentloop.values.serialization import to_json as to_json
    from agentloop.values.serialization import to_plain as to_plain
    from agentloop.values.state import AgentContext as AgentContext
    from agentloop.values.state import AgentState as AgentState
    from agentloop.values.state import ExecutionFailed as ExecutionFailed
    from agentloop.values.steps import AgentStep as AgentStep
    from agentloop.values.steps import ExecutionState as ExecutionState
    from agentloop.values.steps import ExecutionStatus as ExecutionStatus
    from agentloop.values.steps import StepKind as StepKind
    from agentloop.values.steps import SuspendedTurn as SuspendedTurn
    from agentloop.values.steps import Totals as Totals
    from agentloop.values.stop import AgentStop as AgentStop
    from agentloop.values.stop import Continuation as Continuation
    from agentloop.values.stop import StopReason as StopReason
    from agentloop.values.stop import StopSignal as StopSignal
    from agentloop.values.time_and_ids import Clock as Clock
    from agentloop.values.time_and_ids import DerivedIds as DerivedIds
    from agentloop.values.time_and_ids import IdSource as IdSource
    from agentloop.values.time_and_ids import RandomIds as RandomIds
    from agentloop.values.time_and_ids import SystemClock as SystemClock
    from agentloop.values.tool_calls import ContentPart as ContentPart
    from agentloop.values.tool_calls import Effect as Effect
    from agentloop.values.tool_calls import ErrorInfo as ErrorInfo
    from agentloop.values.tool_calls import ToolCall as ToolCall
    from agentloop.values.tool_calls import ToolExchange as ToolExchange
    from agentloop.values.tool_calls import ToolExecution as ToolExecution
    from agentloop.values.tool_calls import ToolResult as ToolResult
    from agentloop.values.tool_calls import ToolSpec as ToolSpec
    from agentloop.values.tool_calls import ToolStatus as ToolStatus
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.values.state": "AgentContext AgentState ExecutionFailed",
            "agentloop.values.steps": "AgentStep SuspendedTurn StepKind ExecutionState ExecutionStatus Totals",
            "agentloop.values.policies": "CachePolicy CallPolicy CircuitPolicy DeduplicatePolicy RateLimit RetryPolicy",
            "agentloop.values.time_and_ids": "Clock SystemClock DerivedIds IdSource RandomIds",
            "agentloop.values.decisions": "Answer Approve Decision Deny Edit answer approve deny edit CallSuspended PendingCall Block Suspend Verdict",
            "agentloop.values.event": "Event EventHead",
            "agentloop.values.records": "CannotTell DidNotHappen Happened InDoubt cannot_tell did_not_happen happened ExecutionHead JournalRecord RecordKind CallIntent RecordedCall RecordedInference",
            "agentloop.values.inference": "InferenceDelta InferenceOptions InferenceRequest ReasoningEffort ResponseFormat ToolChoice FinishReason InferenceResponse Usage",
            "agentloop.values.json": "JsonObject JsonValue freeze freeze_object thaw",
            "agentloop.values.messages": "Message Part ResponsePart Role",
            "agentloop.values.parts": "Audio Document Image Media ProviderPart Reasoning Text",
            "agentloop.values.points": "AfterExecution AfterInference AfterStep AfterToolUse AroundInference AroundToolUse BeforeExecution BeforeInference BeforeStep BeforeToolUse OnError OnStop Point ProceedInference ProceedToolUse StatePoint",
            "agentloop.values.serialization": "SCHEMA_VERSION from_json from_plain make_converter to_json to_plain",
            "agentloop.values.stop": "AgentStop Continuation StopReason StopSignal",
            "agentloop.values.tool_calls": "ToolCall ContentPart ErrorInfo ToolExchange ToolExecution ToolStatus ToolResult Effect ToolSpec",
            "agentloop.values.batches": "BatchFailed ToolCalls ToolExecutions",
        },
    )
