"""Interceptors: the base class, the compiled stack, and those that come with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.interception.approval import Approval as Approval
    from agentloop.interception.audit_log import AuditLog as AuditLog
    from agentloop.interception.budget import Budget as Budget
    from agentloop.interception.budgeting.account import BudgetAccount as BudgetAccount
    from agentloop.interception.budgeting.amounts import Amounts as Amounts
    from agentloop.interception.budgeting.amounts import Limits as Limits
    from agentloop.interception.budgeting.leasing import RunningBudget as RunningBudget
    from agentloop.interception.budgeting.leasing import current_budget as current_budget
    from agentloop.interception.budgeting.prices import Price as Price
    from agentloop.interception.budgeting.prices import Prices as Prices
    from agentloop.interception.budgeting.prices import PriceTable as PriceTable
    from agentloop.interception.budgeting.published_prices import PublishedPrices as PublishedPrices
    from agentloop.interception.budgeting.token_account import TokenAccount as TokenAccount
    from agentloop.interception.budgeting.token_account import token_account as token_account
    from agentloop.interception.cancellation import Cancellation as Cancellation
    from agentloop.interception.cost_limit import CostLimit as CostLimit
    from agentloop.interception.finish_reason_stop import FinishReasonStop as FinishReasonStop
    from agentloop.interception.function_form import after_execution as after_execution
    from agentloop.interception.function_form import after_inference as after_inference
    from agentloop.interception.function_form import after_step as after_step
    from agentloop.interception.function_form import after_tool_use as after_tool_use
    from agentloop.interception.function_form import around_inference as around_inference
    from agentloop.interception.function_form import around_tool_use as around_tool_use
    from agentloop.interception.function_form import before_execution as before_execution
    from agentloop.interception.function_form import before_inference as before_inference
    from agentloop.interception.function_form import before_step as before_step
    from agentloop.interception.function_form import before_tool_use as before_tool_use
    from agentloop.interception.function_form import on_error as on_error
    from agentloop.interception.function_form import on_stop as on_stop
    from agentloop.interception.interceptor import POINTS as POINTS
    from agentloop.interception.interceptor import Interceptor as Interceptor
    from agentloop.interception.no_progress import NoProgress as NoProgress
    from agentloop.interception.no_progress import Repeats as Repeats
    from agentloop.interception.permissions import Permissions as Permissions
    from agentloop.interception.resilience.resilience import Resilience as Resilience
    from agentloop.interception.rule import Rule as Rule
    from agentloop.interception.stack import InterceptorStack as InterceptorStack
    from agentloop.interception.step_limit import StepLimit as StepLimit
    from agentloop.interception.summarise import Summarise as Summarise
    from agentloop.interception.time_limit import TimeLimit as TimeLimit
    from agentloop.interception.token_limit import TokenLimit as TokenLimit
    from agentloop.interception.tool_call_limit import ToolCallLimit as ToolCallLimit
    from agentloop.interception.tool_search import ToolSearch as ToolSearch
    from agentloop.interception.tool_selection import ToolCriterion as ToolCriterion
    from agentloop.interception.tool_selection import ToolSelection as ToolSelection
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.interception.approval": "Approval",
            "agentloop.interception.audit_log": "AuditLog",
            "agentloop.interception.budget": "Budget",
            "agentloop.interception.budgeting.account": "BudgetAccount",
            "agentloop.interception.budgeting.amounts": "Amounts Limits",
            "agentloop.interception.budgeting.leasing": "RunningBudget current_budget",
            "agentloop.interception.budgeting.prices": "Price PriceTable Prices",
            "agentloop.interception.budgeting.published_prices": "PublishedPrices",
            "agentloop.interception.budgeting.token_account": "TokenAccount token_account",
            "agentloop.interception.cancellation": "Cancellation",
            "agentloop.interception.cost_limit": "CostLimit",
            "agentloop.interception.finish_reason_stop": "FinishReasonStop",
            "agentloop.interception.function_form": "after_execution after_inference after_step after_tool_use around_inference around_tool_use before_execution before_inference before_step before_tool_use on_error on_stop",
            "agentloop.interception.interceptor": "Interceptor POINTS",
            "agentloop.interception.no_progress": "NoProgress Repeats",
            "agentloop.interception.permissions": "Permissions",
            "agentloop.interception.resilience.resilience": "Resilience",
            "agentloop.interception.rule": "Rule",
            "agentloop.interception.stack": "InterceptorStack",
            "agentloop.interception.step_limit": "StepLimit",
            "agentloop.interception.summarise": "Summarise",
            "agentloop.interception.time_limit": "TimeLimit",
            "agentloop.interception.token_limit": "TokenLimit",
            "agentloop.interception.tool_call_limit": "ToolCallLimit",
            "agentloop.interception.tool_search": "ToolSearch",
            "agentloop.interception.tool_selection": "ToolCriterion ToolSelection",
        },
    )
