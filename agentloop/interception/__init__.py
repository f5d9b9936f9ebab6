"""Interceptors: the base class, the compiled stack, and those that come with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.interception.audit_log import AuditLog as AuditLog
    from agentloop.interception.budgets.account import BudgetAccount as BudgetAccount
    from agentloop.interception.budgets.amounts import Amounts as Amounts
    from agentloop.interception.budgets.amounts import Limits as Limits
    from agentloop.interception.budgets.budget import Budget as Budget
    from agentloop.interception.budgets.leases import RunningBudget as RunningBudget
    from agentloop.interception.budgets.leases import current_budget as current_budget
    from agentloop.interception.budgets.limits import CostLimit as CostLimit
    from agentloop.interception.budgets.limits import StepLimit as StepLimit
    from agentloop.interception.budgets.limits import TimeLimit as TimeLimit
    from agentloop.interception.budgets.limits import TokenLimit as TokenLimit
    from agentloop.interception.budgets.limits import ToolCallLimit as ToolCallLimit
    from agentloop.interception.budgets.prices import Price as Price
    from agentloop.interception.budgets.prices import Prices as Prices
    from agentloop.interception.budgets.prices import PriceTable as PriceTable
    from agentloop.interception.budgets.prices import PublishedPrices as PublishedPrices
    from agentloop.interception.budgets.token_account import TokenAccount as TokenAccount
    from agentloop.interception.budgets.token_account import token_account as token_account
    from agentloop.interception.cancellation import CancellationToken as CancellationToken
    from agentloop.interception.interceptor import POINTS as POINTS
    from agentloop.interception.interceptor import Interceptor as Interceptor
    from agentloop.interception.interceptor import after_execution as after_execution
    from agentloop.interception.interceptor import after_inference as after_inference
    from agentloop.interception.interceptor import after_step as after_step
    from agentloop.interception.interceptor import after_tool_use as after_tool_use
    from agentloop.interception.interceptor import around_inference as around_inference
    from agentloop.interception.interceptor import around_tool_use as around_tool_use
    from agentloop.interception.interceptor import before_execution as before_execution
    from agentloop.interception.interceptor import before_inference as before_inference
    from agentloop.interception.interceptor import before_step as before_step
    from agentloop.interception.interceptor import before_tool_use as before_tool_use
    from agentloop.interception.interceptor import on_error as on_error
    from agentloop.interception.interceptor import on_stop as on_stop
    from agentloop.interception.resilience.resilience import Resilience as Resilience
    from agentloop.interception.rules import Permissions as Permissions
    from agentloop.interception.rules import RequireApproval as RequireApproval
    from agentloop.interception.rules import Rule as Rule
    from agentloop.interception.stack import InterceptorStack as InterceptorStack
    from agentloop.interception.stops import Repeats as Repeats
    from agentloop.interception.stops import StopOnFinishReason as StopOnFinishReason
    from agentloop.interception.stops import StopOnRepeatedCalls as StopOnRepeatedCalls
    from agentloop.interception.summarize import SummarizeHistory as SummarizeHistory
    from agentloop.interception.tool_search import ToolSearch as ToolSearch
    from agentloop.interception.tool_selection import ToolCriterion as ToolCriterion
    from agentloop.interception.tool_selection import ToolSelection as ToolSelection
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.interception.rules": "RequireApproval Permissions Rule",
            "agentloop.interception.audit_log": "AuditLog",
            "agentloop.interception.budgets.budget": "Budget",
            "agentloop.interception.budgets.account": "BudgetAccount",
            "agentloop.interception.budgets.amounts": "Amounts Limits",
            "agentloop.interception.budgets.leases": "RunningBudget current_budget",
            "agentloop.interception.budgets.prices": "Price PriceTable Prices PublishedPrices",
            "agentloop.interception.budgets.token_account": "TokenAccount token_account",
            "agentloop.interception.cancellation": "CancellationToken",
            "agentloop.interception.budgets.limits": "CostLimit StepLimit TimeLimit TokenLimit ToolCallLimit",
            "agentloop.interception.stops": "StopOnFinishReason StopOnRepeatedCalls Repeats",
            "agentloop.interception.interceptor": "after_execution after_inference after_step after_tool_use around_inference around_tool_use before_execution before_inference before_step before_tool_use on_error on_stop Interceptor POINTS",
            "agentloop.interception.resilience.resilience": "Resilience",
            "agentloop.interception.stack": "InterceptorStack",
            "agentloop.interception.summarize": "SummarizeHistory",
            "agentloop.interception.tool_search": "ToolSearch",
            "agentloop.interception.tool_selection": "ToolCriterion ToolSelection",
        },
    )
