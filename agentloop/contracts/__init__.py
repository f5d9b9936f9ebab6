"""The abstract contracts: what a driver, an executor, a tool and the others promise each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.contracts.can_accept import CanAcceptExecutionScope as CanAcceptExecutionScope
    from agentloop.contracts.can_accept import CanAcceptLifecycle as CanAcceptLifecycle
    from agentloop.contracts.can_accept import CanAcceptMessageCompiler as CanAcceptMessageCompiler
    from agentloop.contracts.can_accept import CanAcceptOutputCheck as CanAcceptOutputCheck
    from agentloop.contracts.can_accept import CanAcceptToolRuntime as CanAcceptToolRuntime
    from agentloop.contracts.can_accept import CanAcceptTools as CanAcceptTools
    from agentloop.contracts.can_accept import CanObserveReplay as CanObserveReplay
    from agentloop.contracts.can_accept import OutputCheck as OutputCheck
    from agentloop.contracts.can_compile_messages import CanCompileMessages as CanCompileMessages
    from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls as CanExecuteToolCalls
    from agentloop.contracts.can_handle_events import CanHandleEvents as CanHandleEvents
    from agentloop.contracts.can_handle_events import Listener as Listener
    from agentloop.contracts.can_handle_events import Subscription as Subscription
    from agentloop.contracts.can_infer import CanInfer as CanInfer
    from agentloop.contracts.can_infer import CanNameModel as CanNameModel
    from agentloop.contracts.can_infer import CanReportRetries as CanReportRetries
    from agentloop.contracts.can_infer import FailedAttempt as FailedAttempt
    from agentloop.contracts.can_infer import RetryReport as RetryReport
    from agentloop.contracts.can_intercept import CanIntercept as CanIntercept
    from agentloop.contracts.can_intercept import Plain as Plain
    from agentloop.contracts.can_journal import CanJournal as CanJournal
    from agentloop.contracts.can_journal import CanRedactRecords as CanRedactRecords
    from agentloop.contracts.can_journal import Claim as Claim
    from agentloop.contracts.can_keep_state import CanKeepState as CanKeepState
    from agentloop.contracts.can_keep_state import Namespace as Namespace
    from agentloop.contracts.can_keep_state import Update as Update
    from agentloop.contracts.can_use_mode import CanRenderRequest as CanRenderRequest
    from agentloop.contracts.can_use_mode import CanUseMode as CanUseMode
    from agentloop.contracts.can_use_mode import ModeStream as ModeStream
    from agentloop.contracts.can_use_mode import ToolCallValidation as ToolCallValidation
    from agentloop.contracts.can_use_tools import CanUseTools as CanUseTools
    from agentloop.contracts.execution_scope import ExecutionScope as ExecutionScope
    from agentloop.contracts.execution_scope import Resources as Resources
    from agentloop.contracts.run_log import CallAnswer as CallAnswer
    from agentloop.contracts.run_log import CanAnswerCalls as CanAnswerCalls
    from agentloop.contracts.run_log import ExecutionLog as ExecutionLog
    from agentloop.contracts.run_log import Offer as Offer
    from agentloop.contracts.run_log import RunLog as RunLog
    from agentloop.contracts.tool import CanAccessAgentState as CanAccessAgentState
    from agentloop.contracts.tool import CanAccessToolCall as CanAccessToolCall
    from agentloop.contracts.tool import CanAccessToolContext as CanAccessToolContext
    from agentloop.contracts.tool import CanContinueCall as CanContinueCall
    from agentloop.contracts.tool import CanDiscoverTools as CanDiscoverTools
    from agentloop.contracts.tool import CanPrepareArguments as CanPrepareArguments
    from agentloop.contracts.tool import CanPresentResult as CanPresentResult
    from agentloop.contracts.tool import CanReconcileCall as CanReconcileCall
    from agentloop.contracts.tool import CanUseThread as CanUseThread
    from agentloop.contracts.tool import OrderingKey as OrderingKey
    from agentloop.contracts.tool import Tool as Tool
    from agentloop.contracts.tool import ToolContext as ToolContext
    from agentloop.contracts.tool import ToolGroup as ToolGroup
    from agentloop.contracts.tool import ToolPolicy as ToolPolicy
    from agentloop.contracts.tools import Tools as Tools
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.contracts.can_accept": "CanAcceptExecutionScope CanAcceptLifecycle CanAcceptMessageCompiler CanAcceptOutputCheck CanAcceptToolRuntime CanAcceptTools OutputCheck CanObserveReplay",
            "agentloop.contracts.run_log": "CallAnswer CanAnswerCalls ExecutionLog Offer RunLog",
            "agentloop.contracts.can_compile_messages": "CanCompileMessages",
            "agentloop.contracts.can_execute_tool_calls": "CanExecuteToolCalls",
            "agentloop.contracts.can_handle_events": "CanHandleEvents Listener Subscription",
            "agentloop.contracts.can_infer": "CanInfer CanReportRetries FailedAttempt RetryReport CanNameModel",
            "agentloop.contracts.can_intercept": "CanIntercept Plain",
            "agentloop.contracts.can_journal": "CanJournal Claim CanRedactRecords",
            "agentloop.contracts.can_keep_state": "CanKeepState Update Namespace",
            "agentloop.contracts.can_use_mode": "CanRenderRequest CanUseMode ModeStream ToolCallValidation",
            "agentloop.contracts.can_use_tools": "CanUseTools",
            "agentloop.contracts.execution_scope": "ExecutionScope Resources",
            "agentloop.contracts.tool": "CanAccessAgentState CanAccessToolCall CanAccessToolContext CanContinueCall CanPrepareArguments CanPresentResult CanReconcileCall CanUseThread Tool ToolContext CanDiscoverTools ToolGroup OrderingKey ToolPolicy",
            "agentloop.contracts.tools": "Tools",
        },
    )
