"""agentloop: the loop of an LLM agent, as a small kernel with strict contracts.

The names here are those that most programs need; each is loaded when it is first used. The rest is imported from its room:
`agentloop.values`, `.contracts`, `.events`, `.interception`, `.tools`, `.inference`, `.compilers`, `.executors`,
`.drivers`, `.journal`, `.replay`, `.testing`, and errors from `agentloop.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls as CanExecuteToolCalls
    from agentloop.contracts.can_infer import CanInfer as CanInfer
    from agentloop.contracts.can_use_tools import CanUseTools as CanUseTools
    from agentloop.contracts.tool import Tool as Tool
    from agentloop.contracts.tool_context import ToolContext as ToolContext
    from agentloop.drivers.driver import Driver as Driver
    from agentloop.drivers.react import ReActDriver as ReActDriver
    from agentloop.drivers.scripted import ScenarioStep as ScenarioStep
    from agentloop.drivers.scripted import ScriptedDriver as ScriptedDriver
    from agentloop.drivers.tool_calling import ToolCallingDriver as ToolCallingDriver
    from agentloop.errors import AgentLoopError as AgentLoopError
    from agentloop.executors.tool_executor import ToolExecutor as ToolExecutor
    from agentloop.inference.config import LLMConfig as LLMConfig
    from agentloop.inference.http_inference import HttpInference as HttpInference
    from agentloop.inference.scripted import ScriptedInference as ScriptedInference
    from agentloop.interception.approval import Approval as Approval
    from agentloop.interception.audit_log import AuditLog as AuditLog
    from agentloop.interception.budget import Budget as Budget
    from agentloop.interception.cancellation import Cancellation as Cancellation
    from agentloop.interception.cost_limit import CostLimit as CostLimit
    from agentloop.interception.finish_reason_stop import FinishReasonStop as FinishReasonStop
    from agentloop.interception.interceptor import Interceptor as Interceptor
    from agentloop.interception.permissions import Permissions as Permissions
    from agentloop.interception.step_limit import StepLimit as StepLimit
    from agentloop.interception.time_limit import TimeLimit as TimeLimit
    from agentloop.interception.token_limit import TokenLimit as TokenLimit
    from agentloop.interception.tool_call_limit import ToolCallLimit as ToolCallLimit
    from agentloop.journal.sqlite.sqlite_journal import SqliteJournal as SqliteJournal
    from agentloop.loop.agent_loop import AgentLoop as AgentLoop
    from agentloop.loop.handoff import handoff_to as handoff_to
    from agentloop.tools.decorator import tool as tool
    from agentloop.values.agent_state import AgentState as AgentState
    from agentloop.values.inference_request import ToolChoice as ToolChoice
    from agentloop.values.message import Message as Message
    from agentloop.values.serialisation import from_json as from_json
    from agentloop.values.serialisation import to_json as to_json
    from agentloop.values.stop import AgentStop as AgentStop
    from agentloop.values.stop import StopReason as StopReason
    from agentloop.values.stop import StopSignal as StopSignal
    from agentloop.values.tool_call import ToolCall as ToolCall
    from agentloop.values.tool_execution import ToolExecution as ToolExecution
    from agentloop.values.usage import Usage as Usage
else:
    __getattr__, __dir__, _ = lazy(
        __name__,
        {
            "agentloop.contracts.can_execute_tool_calls": "CanExecuteToolCalls",
            "agentloop.contracts.can_infer": "CanInfer",
            "agentloop.contracts.can_use_tools": "CanUseTools",
            "agentloop.contracts.tool": "Tool",
            "agentloop.contracts.tool_context": "ToolContext",
            "agentloop.drivers.driver": "Driver",
            "agentloop.drivers.react": "ReActDriver",
            "agentloop.drivers.scripted": "ScenarioStep ScriptedDriver",
            "agentloop.drivers.tool_calling": "ToolCallingDriver",
            "agentloop.errors": "AgentLoopError",
            "agentloop.executors.tool_executor": "ToolExecutor",
            "agentloop.inference.config": "LLMConfig",
            "agentloop.inference.http_inference": "HttpInference",
            "agentloop.inference.scripted": "ScriptedInference",
            "agentloop.interception.approval": "Approval",
            "agentloop.interception.audit_log": "AuditLog",
            "agentloop.interception.budget": "Budget",
            "agentloop.interception.cancellation": "Cancellation",
            "agentloop.interception.cost_limit": "CostLimit",
            "agentloop.interception.finish_reason_stop": "FinishReasonStop",
            "agentloop.interception.interceptor": "Interceptor",
            "agentloop.interception.permissions": "Permissions",
            "agentloop.interception.step_limit": "StepLimit",
            "agentloop.interception.time_limit": "TimeLimit",
            "agentloop.interception.token_limit": "TokenLimit",
            "agentloop.interception.tool_call_limit": "ToolCallLimit",
            "agentloop.journal.sqlite.sqlite_journal": "SqliteJournal",
            "agentloop.loop.agent_loop": "AgentLoop",
            "agentloop.loop.handoff": "handoff_to",
            "agentloop.tools.decorator": "tool",
            "agentloop.values.agent_state": "AgentState",
            "agentloop.values.inference_request": "ToolChoice",
            "agentloop.values.message": "Message",
            "agentloop.values.serialisation": "from_json to_json",
            "agentloop.values.stop": "AgentStop StopReason StopSignal",
            "agentloop.values.tool_call": "ToolCall",
            "agentloop.values.tool_execution": "ToolExecution",
            "agentloop.values.usage": "Usage",
        },
    )

__version__ = "0.1.0"
__all__ = [
    "AgentLoop",
    "AgentLoopError",
    "AgentState",
    "AgentStop",
    "Approval",
    "AuditLog",
    "Budget",
    "CanExecuteToolCalls",
    "CanInfer",
    "CanUseTools",
    "Cancellation",
    "CostLimit",
    "Driver",
    "FinishReasonStop",
    "HttpInference",
    "Interceptor",
    "LLMConfig",
    "Message",
    "Permissions",
    "ReActDriver",
    "ScenarioStep",
    "ScriptedDriver",
    "ScriptedInference",
    "SqliteJournal",
    "StepLimit",
    "StopReason",
    "StopSignal",
    "TimeLimit",
    "TokenLimit",
    "Tool",
    "ToolCall",
    "ToolCallLimit",
    "ToolCallingDriver",
    "ToolChoice",
    "ToolContext",
    "ToolExecution",
    "ToolExecutor",
    "Usage",
    "__version__",
    "from_json",
    "handoff_to",
    "to_json",
    "tool",
]
