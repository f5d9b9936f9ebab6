from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls as CanExecuteToolCalls
from agentloop.contracts.can_infer import CanInfer as CanInfer
from agentloop.contracts.can_use_tools import CanUseTools as CanUseTools
from agentloop.contracts.tool import Tool as Tool
from agentloop.contracts.tool import ToolContext as ToolContext
from agentloop.drivers.driver import Driver as Driver
from agentloop.drivers.scripted import ScriptedDriver as ScriptedDriver
from agentloop.drivers.tool_calling import ToolCallingDriver as ToolCallingDriver
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal as SqliteJournal
from agentloop.errors.kinds import AgentLoopError as AgentLoopError
from agentloop.executors.tool_executor import ToolExecutor as ToolExecutor
from agentloop.interception.cancellation import CancellationToken as CancellationToken
from agentloop.interception.interceptor import Interceptor as Interceptor
from agentloop.interception.rules import Permissions as Permissions
from agentloop.interception.rules import RequireApproval as RequireApproval
from agentloop.interception.stops import StepLimit as StepLimit
from agentloop.loop.agent_loop import AgentLoop as AgentLoop
from agentloop.loop.handoff import handoff_to as handoff_to
from agentloop.mcp.ensemble import McpEnsemble as McpEnsemble
from agentloop.models.config import LLMConfig as LLMConfig
from agentloop.models.http_inference import HttpInference as HttpInference
from agentloop.models.modes.react import ReActDriver as ReActDriver
from agentloop.models.scripted import FunctionInference as FunctionInference
from agentloop.models.scripted import ScriptedInference as ScriptedInference
from agentloop.policies.budgets.budget import Budget as Budget
from agentloop.policies.budgets.budget import CostLimit as CostLimit
from agentloop.policies.budgets.budget import TimeLimit as TimeLimit
from agentloop.policies.budgets.budget import TokenLimit as TokenLimit
from agentloop.policies.budgets.budget import ToolCallLimit as ToolCallLimit
from agentloop.tools.decorator import tool as tool
from agentloop.values.bounds import Bounds as Bounds
from agentloop.values.decisions import approve as approve
from agentloop.values.decisions import deny as deny
from agentloop.values.inference import ToolChoice as ToolChoice
from agentloop.values.inference import Usage as Usage
from agentloop.values.messages import Message as Message
from agentloop.values.parts import Image as Image
from agentloop.values.serialization import from_json as from_json
from agentloop.values.serialization import to_json as to_json
from agentloop.values.state import AgentState as AgentState
from agentloop.values.stop import AgentStop as AgentStop
from agentloop.values.stop import StopReason as StopReason
from agentloop.values.tool_calls import ToolCall as ToolCall
from agentloop.values.tool_calls import ToolExecution as ToolExecution

__version__: str

__all__ = [
    "AgentLoop",
    "AgentLoopError",
    "AgentState",
    "AgentStop",
    "Bounds",
    "Budget",
    "CanExecuteToolCalls",
    "CanInfer",
    "CanUseTools",
    "CancellationToken",
    "CostLimit",
    "Driver",
    "FunctionInference",
    "HttpInference",
    "Image",
    "Interceptor",
    "LLMConfig",
    "McpEnsemble",
    "Message",
    "Permissions",
    "ReActDriver",
    "RequireApproval",
    "ScriptedDriver",
    "ScriptedInference",
    "SqliteJournal",
    "StepLimit",
    "StopReason",
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
    "approve",
    "deny",
    "from_json",
    "handoff_to",
    "to_json",
    "tool",
]
