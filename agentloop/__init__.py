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
    from agentloop.contracts.tool import ToolContext as ToolContext
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
    from agentloop.interception.audit_log import AuditLog as AuditLog
    from agentloop.interception.budgets.budget import Budget as Budget
    from agentloop.interception.budgets.limits import CostLimit as CostLimit
    from agentloop.interception.budgets.limits import StepLimit as StepLimit
    from agentloop.interception.budgets.limits import TimeLimit as TimeLimit
    from agentloop.interception.budgets.limits import TokenLimit as TokenLimit
    from agentloop.interception.budgets.limits import ToolCallLimit as ToolCallLimit
    from agentloop.interception.cancellation import CancellationToken as CancellationToken
    from agentloop.interception.interceptor import Interceptor as Interceptor
    from agentloop.interception.rules import Permissions as Permissions
    from agentloop.interception.rules import RequireApproval as RequireApproval
    from agentloop.interception.stops import StopOnFinishReason as StopOnFinishReason
    from agentloop.journal.sqlite.sqlite_journal import SqliteJournal as SqliteJournal
    from agentloop.loop.agent_loop import AgentLoop as AgentLoop
    from agentloop.loop.handoff import handoff_to as handoff_to
    from agentloop.tools.decorator import tool as tool
    from agentloop.values.inference import ToolChoice as ToolChoice
    from agentloop.values.inference import Usage as Usage
    from agentloop.values.messages import Message as Message
    from agentloop.values.serialization import from_json as from_json
    from agentloop.values.serialization import to_json as to_json
    from agentloop.values.state import AgentState as AgentState
    from agentloop.values.stop import AgentStop as AgentStop
    from agentloop.values.stop import StopReason as StopReason
    from agentloop.values.stop import StopSignal as StopSignal
    from agentloop.values.tool_calls import ToolCall as ToolCall
    from agentloop.values.tool_calls import ToolExecution as ToolExecution
else:
    __getattr__, __dir__, _ = lazy(
        __name__,
        {
            "agentloop.contracts.can_execute_tool_calls": "CanExecuteToolCalls",
            "agentloop.contracts.can_infer": "CanInfer",
            "agentloop.contracts.can_use_tools": "CanUseTools",
            "agentloop.contracts.tool": "Tool ToolContext",
            "agentloop.drivers.driver": "Driver",
            "agentloop.drivers.react": "ReActDriver",
            "agentloop.drivers.scripted": "ScenarioStep ScriptedDriver",
            "agentloop.drivers.tool_calling": "ToolCallingDriver",
            "agentloop.errors": "AgentLoopError",
            "agentloop.executors.tool_executor": "ToolExecutor",
            "agentloop.inference.config": "LLMConfig",
            "agentloop.inference.http_inference": "HttpInference",
            "agentloop.inference.scripted": "ScriptedInference",
            "agentloop.interception.rules": "RequireApproval Permissions",
            "agentloop.interception.audit_log": "AuditLog",
            "agentloop.interception.budgets.budget": "Budget",
            "agentloop.interception.cancellation": "CancellationToken",
            "agentloop.interception.budgets.limits": "CostLimit StepLimit TimeLimit TokenLimit ToolCallLimit",
            "agentloop.interception.stops": "StopOnFinishReason",
            "agentloop.interception.interceptor": "Interceptor",
            "agentloop.journal.sqlite.sqlite_journal": "SqliteJournal",
            "agentloop.loop.agent_loop": "AgentLoop",
            "agentloop.loop.handoff": "handoff_to",
            "agentloop.tools.decorator": "tool",
            "agentloop.values.state": "AgentState",
            "agentloop.values.inference": "ToolChoice Usage",
            "agentloop.values.messages": "Message",
            "agentloop.values.serialization": "from_json to_json",
            "agentloop.values.stop": "AgentStop StopReason StopSignal",
            "agentloop.values.tool_calls": "ToolCall ToolExecution",
        },
    )

__version__ = "0.1.0"
__all__ = [
    "AgentLoop",
    "AgentLoopError",
    "AgentState",
    "AgentStop",
    "AuditLog",
    "Budget",
    "CanExecuteToolCalls",
    "CanInfer",
    "CanUseTools",
    "CancellationToken",
    "CostLimit",
    "Driver",
    "HttpInference",
    "Interceptor",
    "LLMConfig",
    "Message",
    "Permissions",
    "ReActDriver",
    "RequireApproval",
    "ScenarioStep",
    "ScriptedDriver",
    "ScriptedInference",
    "SqliteJournal",
    "StepLimit",
    "StopOnFinishReason",
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
