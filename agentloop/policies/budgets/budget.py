"""Limits on what an execution may use: `Budget` for several at once, and a class for each limit alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Self

from attrs import evolve, field, fields, frozen
from attrs.validators import ge, gt, lt, optional

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanObserveReplay
from agentloop.contracts.can_intercept import CanLimitTime, MaybeAwaitable
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError
from agentloop.interception.interceptor import Interceptor, overridden_points
from agentloop.interception.lending import Lease
from agentloop.interception.stops import LIMIT_PRIORITY
from agentloop.policies.budgets.account import TreeAccount, UnknownUsage
from agentloop.policies.budgets.leases import DELEGATED
from agentloop.policies.budgets.prices import Prices, PublishedPrices
from agentloop.policies.budgets.run import DEFAULT_MAX_OUTPUT_TOKENS, BudgetRun, BudgetTerms
from agentloop.values.accounts import COST_UNITS_PER_DOLLAR
from agentloop.values.inference import InferenceResponse
from agentloop.values.points import (
    POINTS,
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    ProceedInference,
    ProceedToolUse,
)
from agentloop.values.policies import CallPolicy
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolExecution, ToolSpec
from agentloop.values.value import instance_of, one_of

on_unknown_usage: Callable[[Any, Any, Any], None] = one_of(("refuse", "estimate", "allow"))
"""Validates what to do about unknown usage."""


def or_published(prices: Prices | None) -> Prices:
    """Return the prices; the published ones for None.

    Raises:
        ConfigurationError: there are no published prices, because the extra `prices` is not installed.
    """
    return PublishedPrices() if prices is None else prices


@frozen(kw_only=True, repr=False)
class BudgetInterceptor(Interceptor, CanAcceptExecutionScope, CanLimitTime, CanTellControls):
    """The base class of the budget and of the limits: enforces its terms in each execution by itself.

    Attributes:
        priority: the position among other interceptors.
    """

    priority: int = LIMIT_PRIORITY
    _run: BudgetRun | None = field(default=None, eq=False)
    _terms: BudgetTerms = field(init=False, eq=False)
    writes: Collection[str] | None = field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        # Built at once, so that missing prices are an error of the construction and not of the first run.
        object.__setattr__(self, "_terms", self._build_terms())
        object.__setattr__(self, "writes", self._written_paths())

    @abstractmethod
    def _build_terms(self) -> BudgetTerms:
        """Return what is limited, and how."""

    def _written_paths(self) -> frozenset[str]:
        """Return the paths that enforcing the terms may change."""
        return self._terms.writes

    @property
    def points(self) -> frozenset[str]:
        """The names of the points at which the terms are enforced, or that a subclass overrides."""
        return self._terms.points | overridden_points(self, _METHODS)

    @property
    def allows_eager_start(self) -> bool:
        """Whether it limits neither calls nor the time that they take; a call must not begin before it is counted."""
        return not self.points & {"before_tool_use", "around_tool_use"}

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy with an account of its own and the clock of the loop."""
        return evolve(self, run=self._start(scope))

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # it is for every tool
        """Return what it limits in an execution."""
        return self._terms.controls()

    def remaining_seconds(self, state: AgentState) -> float | None:
        """Return the seconds that are left of the execution; None for no limit of time."""
        return None if self._terms.seconds is None else self._current_run.time.remaining(state)

    def time_signal(self) -> StopSignal:
        """Return the signal of the limit of time."""
        return evolve(self._current_run.time.signal, source=self.name)

    def before_step(self, point: BeforeStep) -> MaybeAwaitable[BeforeStep]:
        """Stop in place of a step that exceeds a limit."""
        return self._current_run.before_step(point)

    def before_inference(self, point: BeforeInference) -> MaybeAwaitable[BeforeInference]:
        """Reserve what an inference may use."""
        return self._current_run.before_inference(point)

    def around_inference(self, point: AroundInference, proceed: ProceedInference) -> Awaitable[InferenceResponse]:
        """Cancel an inference when its time is up."""
        return self._current_run.around_inference(point, proceed)

    def after_inference(self, point: AfterInference) -> MaybeAwaitable[AfterInference]:
        """Count what an inference has used."""
        return self._current_run.after_inference(point)

    def before_tool_use(self, point: BeforeToolUse) -> MaybeAwaitable[BeforeToolUse]:
        """Block a call that exceeds a limit."""
        return self._current_run.before_tool_use(point)

    def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> Awaitable[ToolExecution]:
        """Cancel a call when its time is up."""
        return self._current_run.around_tool_use(point, proceed)

    def after_tool_use(self, point: AfterToolUse) -> MaybeAwaitable[AfterToolUse]:
        """Stop when the time is up."""
        return self._current_run.after_tool_use(point)

    def after_step(self, point: AfterStep) -> MaybeAwaitable[AfterStep]:
        """Stop after the last answer."""
        return self._current_run.after_step(point)

    @property
    def _current_run(self) -> BudgetRun:
        return self._start(ExecutionScope()) if self._run is None else self._run

    def _start(self, scope: ExecutionScope) -> BudgetRun:
        account = TreeAccount(self._terms.limits)
        return BudgetRun(name=self.name, terms=self._terms, account=account, clock=scope.clock)

    def __repr__(self) -> str:
        shown = [(item, getattr(self, item.name)) for item in fields(type(self)) if item.eq and item.name != "prices"]
        arguments = [f"{item.name}={value!r}" for item, value in shown if value != item.default]
        return f"{self.name}({', '.join(arguments)})"


# A subclass may override a point and call `super()`; these methods alone are called only where the terms need them.
_METHODS = {name: getattr(BudgetInterceptor, name) for name in POINTS}


@frozen(kw_only=True, repr=False)
class Budget(BudgetInterceptor, Lease):
    """Limits what one execution uses, with the sub-agents that it starts; a `BudgetAccount` limits many executions together.

    A tool can lend a part to an execution that it starts itself; see `current_budget`.

    Before an inference, the maximum that it may use is reserved, and afterwards replaced by its usage: an inference that
    does not fit is not made. The input tokens of a request are estimated by its length, rather too high than too low; only
    where a provider counts more can the limit be exceeded. Usage is read from the state, so it is kept when a state is stored
    and resumed. When what remains falls below the reserve, the model is asked for a last answer without tools, and the
    execution then stops with the limit as the reason and the answer in its state.

    Attributes:
        steps: the maximum number of steps; the last of them is for the last answer. The `max_steps` of the loop is a separate limit
            without a last answer.
        tool_calls: the maximum number of tool calls. Every call of the model counts, whatever its outcome; those that exceed the limit
            do not run.
        tokens: the maximum number of tokens, input and output together.
        cost: the maximum cost in dollars.
        seconds: the maximum duration in seconds, from the start of the execution. Calls are cancelled early enough to leave time for
            the last answer.
        wrap_up: the share of tokens, money and time that is reserved for the last answer; zero for a stop without one.
        strict: whether tokens and money are reserved before an inference. If not, the inference that crosses the limit is
            finished, and its answer used.
        unknown: what to do about tokens that a provider does not report and models without a known price: `refuse` to
            continue, `estimate` them, or `allow` them without counting.
        prices: the prices of models; by default the published prices (needs the extra `prices`).
        model: the model to assume where requests do not name one, or where a response names it in a form that has no price;
            otherwise it is known from the first response on.
        max_output_tokens: the maximum number of output tokens to assume where the request sets no `max_tokens`. The request is given
            a `max_tokens` only if less remains.

    Raises:
        ConfigurationError: when nothing is limited, when prices are given and cost is not limited, or when cost is limited without
            prices, and the extra `prices` is not installed.
    """

    steps: int | None = field(default=None, validator=optional(ge(0)))
    tool_calls: int | None = field(default=None, validator=optional(ge(0)))
    tokens: int | None = field(default=None, validator=optional(ge(0)))
    cost: float | None = field(default=None, validator=optional(ge(0)))
    seconds: float | None = field(default=None, validator=optional(ge(0)))
    wrap_up: float = field(default=0.1, validator=[ge(0), lt(1)])
    strict: bool = field(default=True, validator=instance_of(bool))
    unknown: UnknownUsage = field(default="estimate", validator=on_unknown_usage)
    prices: Prices | None = None
    model: str = ""
    max_output_tokens: int = field(default=DEFAULT_MAX_OUTPUT_TOKENS, validator=ge(1))
    _lent: TreeAccount | None = field(default=None, eq=False)

    def __attrs_post_init__(self) -> None:
        limits = (self.steps, self.tool_calls, self.tokens, self.cost, self.seconds)
        if self._lent is None and limits == (None,) * len(limits):
            raise ConfigurationError("a Budget limits something: give steps=, tool_calls=, tokens=, cost= or seconds=")
        super().__attrs_post_init__()

    @property
    def points(self) -> frozenset[str]:
        """The names of the points at which the terms are enforced, or leases are given and recorded."""
        return super().points | {"around_tool_use", "after_step"}

    def _written_paths(self) -> frozenset[str]:
        return super()._written_paths() | {f"state.extensions.{DELEGATED}"}

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # it is for every tool
        """Return what it limits in an execution, and in the executions of agents, which use a part of it."""
        return [evolve(control, reaches_agents=True) for control in self._terms.controls()]

    def count_ended(self, state: AgentState) -> None:
        """Count what an ended execution has used on the account of a lease, unless it used the account itself."""
        self._current_run.count_ended(state)

    def _build_terms(self) -> BudgetTerms:
        return BudgetTerms(
            steps=self.steps,
            tool_calls=self.tool_calls,
            tokens=self.tokens,
            cost=self.cost,
            seconds=self.seconds,
            wrap_up=self.wrap_up,
            reserves=self.strict and (self.tokens is not None or self.cost is not None),
            unknown=self.unknown,
            prices=None if self.cost is None else or_published(self.prices),
            model=self.model,
            max_output_tokens=self.max_output_tokens,
        )

    def _start(self, scope: ExecutionScope) -> BudgetRun:
        # A replayed execution uses nothing, so it must not be counted on the account that was lent.
        is_replay = isinstance(scope.log, CanObserveReplay)
        account = TreeAccount(self._terms.limits) if self._lent is None or is_replay else self._lent
        return BudgetRun(
            name=self.name,
            terms=self._terms,
            account=account,
            clock=scope.clock,
            create_lease=self._create_lease,
            log=scope.log,
        )

    def _create_lease(self, lent: TreeAccount, seconds: float | None) -> Lease:
        # A copy of this budget, so that the nested execution has the same prices, reserve and name.
        limits = lent.limits
        return evolve(
            self,
            steps=limits.steps,
            tool_calls=limits.tool_calls,
            tokens=limits.tokens,
            cost=None if limits.cost is None else limits.cost / COST_UNITS_PER_DOLLAR,
            seconds=seconds,
            run=None,
            lent=lent,
        )


@frozen(repr=False)
class TimeLimit(BudgetInterceptor):
    """Stops an execution that takes too long, also during an inference or a tool call.

    A cancelled inference is not in the state. Cancelled calls end as timed out, and the other calls of their batch keep their
    outcomes.

    Attributes:
        seconds: the maximum duration of one execution in seconds, from its start.
    """

    seconds: float = field(validator=gt(0))

    def _build_terms(self) -> BudgetTerms:
        return BudgetTerms(seconds=self.seconds)


@frozen(repr=False)
class TokenLimit(BudgetInterceptor):
    """Stops an execution that has used this many tokens, input and output together.

    The inference that crosses the limit is finished, and its answer used; a `Budget` would not make it. If a provider reports
    no usage, the tokens are estimated by the length of the conversation.

    Attributes:
        tokens: the maximum number of tokens of one execution.
    """

    tokens: int = field(validator=ge(1))

    def _build_terms(self) -> BudgetTerms:
        return BudgetTerms(tokens=self.tokens)


@frozen(repr=False)
class CostLimit(BudgetInterceptor):
    """Stops an execution before an inference that may cost more than what remains of this many dollars.

    Attributes:
        cost: the maximum cost of one execution in dollars.
        prices: the prices of models; by default the published prices (needs the extra `prices`).
        unknown: what to do about unknown usage and prices; as for `Budget`.
        model: the model to assume where requests do not name one; as for `Budget`.
        max_output_tokens: the maximum number of output tokens to assume where the request sets no `max_tokens`.

    Raises:
        ConfigurationError: when there are no prices, and the extra `prices` is not installed.
    """

    cost: float = field(validator=gt(0))
    prices: Prices | None = field(default=None, kw_only=True)
    unknown: UnknownUsage = field(default="estimate", validator=on_unknown_usage, kw_only=True)
    model: str = field(default="", kw_only=True)
    max_output_tokens: int = field(default=DEFAULT_MAX_OUTPUT_TOKENS, validator=ge(1), kw_only=True)

    def _build_terms(self) -> BudgetTerms:
        return BudgetTerms(
            cost=self.cost,
            reserves=True,
            unknown=self.unknown,
            prices=or_published(self.prices),
            model=self.model,
            max_output_tokens=self.max_output_tokens,
        )


@frozen(repr=False)
class ToolCallLimit(BudgetInterceptor):
    """Stops an execution whose model makes too many tool calls; calls beyond the limit do not run.

    Every call of the model counts, whatever its outcome. A batch that exceeds the limit runs up to it.

    Attributes:
        tool_calls: the maximum number of calls of one execution.
    """

    tool_calls: int = field(validator=ge(0))

    def _build_terms(self) -> BudgetTerms:
        return BudgetTerms(tool_calls=self.tool_calls)
