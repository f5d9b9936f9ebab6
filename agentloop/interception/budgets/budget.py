"""What an execution may use up, and everything that it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from attrs import evolve, field, fields, frozen
from attrs.validators import ge, in_, lt, optional

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanObserveReplay
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import CallLog
from agentloop.interception.interceptor import Interceptor
from agentloop.values.inference import InferenceResponse
from agentloop.values.points import (
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
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import ToolExecution

if TYPE_CHECKING:
    from agentloop.interception.budgets.account import BudgetAccount
    from agentloop.interception.budgets.prices import Prices
    from agentloop.interception.budgets.run import BudgetRun


LIMIT_PRIORITY = 1000
"""Limits stand outside of other interceptors, so that nothing is done for a step that is not taken."""


@frozen(kw_only=True, repr=False)
class Budget(Interceptor, CanAcceptExecutionScope):
    """Limits what an execution uses up, together with what it starts under a lease; see `current_budget`.

    Before an inference, the most that it may use is set aside, and afterwards what it did use is written down: an inference
    that does not fit is not made. How many tokens a request has is estimated by its length, rather too high than too low; where
    a provider counts more, that is what can go over. What was used is read from the state, so it is not forgotten when a state is stored and
    gone on with. When what is left falls into the reserve, the model is asked for a last answer without tools, and the
    execution then stops with the reason of the limit and the answer in its state.

    Attributes:
        steps: the most steps; the last of them is for the last answer. The `max_steps` of the loop stands beside it, and
            knows no last answer.
        tool_calls: the most tool calls. Every call that a model makes counts, whatever comes of it; those too many do not run.
        tokens: the most tokens, input and output together.
        cost: the most dollars.
        seconds: the most seconds, from the beginning of the execution. Calls are cut off so that the last answer still has
            its time.
        wrap_up: the share of tokens, money and time that is kept back for the last answer; zero for a stop without one.
        strict: whether tokens and money are set aside before an inference. If not, the inference that crosses the limit is
            finished and kept.
        unknown: what to do about tokens that a provider does not report and models whose price is not known: `refuse` to go
            on, `estimate` them, or `allow` them without counting.
        prices: what models cost; those that providers publish when left out (needs the extra `prices`).
        model: the model that is asked, where requests do not name one, or answers name it so that it has no price; else it
            is known from the first answer on.
        max_output_tokens: the most that a model is taken to write where the request sets no `max_tokens`. Only when less is
            left, the request is given that as its `max_tokens`.
        priority: where it stands among the interceptors.

    Raises:
        ConfigurationError: when money is limited, no prices are given, and the extra `prices` is not installed.
    """

    steps: int | None = field(default=None, validator=optional(ge(0)))
    tool_calls: int | None = field(default=None, validator=optional(ge(0)))
    tokens: int | None = field(default=None, validator=optional(ge(0)))
    cost: float | None = field(default=None, validator=optional(ge(0)))
    seconds: float | None = field(default=None, validator=optional(ge(0)))
    wrap_up: float = field(default=0.1, validator=[ge(0), lt(1)])
    strict: bool = True
    unknown: Literal["refuse", "estimate", "allow"] = field(
        default="estimate", validator=in_(("refuse", "estimate", "allow"))
    )
    prices: Prices | None = None
    model: str = ""
    max_output_tokens: int = field(default=16_384, validator=ge(1))
    priority: int = LIMIT_PRIORITY
    _run: BudgetRun | None = field(default=None, repr=False, eq=False)
    _lent: BudgetAccount | None = field(default=None, repr=False, eq=False)
    lends: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        self._known_prices()

    @property
    def points(self) -> frozenset[str]:
        """The names of the points that these limits need."""
        timed, wraps = self.seconds is not None, self.wrap_up > 0
        needed = {
            "before_step": True,
            "before_inference": self._reserves or wraps,
            "around_inference": self._reserves or timed,
            "after_inference": self._reserves or wraps,
            "before_tool_use": self.tool_calls is not None or timed or wraps,
            "around_tool_use": timed or self.lends,
            "after_tool_use": timed,
            "after_step": wraps or self.lends,
        }
        return frozenset(name for name, is_needed in needed.items() if is_needed)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy with an account of its own, or the one that was lent, and the clock of the loop."""
        return evolve(self, run=self._begun(scope.clock, scope.log))

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop instead of taking one step too many, or find that the last answer is due."""
        return self._running.before_step(point)

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Set aside what the inference may use, and ask for the last answer when that is due.

        Raises:
            AgentStop: when too little is left.
        """
        return self._running.before_inference(point)

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Cut the inference off when its time is up, and give back what was set aside when it fails.

        Raises:
            AgentStop: when it was cut off.
        """
        return await self._running.around_inference(point, proceed)

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Write down what the inference used, and keep the last answer free of calls."""
        return self._running.after_inference(point)

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block a call too many, and one for which no time is left."""
        return self._running.before_tool_use(point)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cut the call off when the time for tools is up; lend to what it starts."""
        return await self._running.around_tool_use(point, proceed)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Stop when a call was cut off at the end, or the end has come meanwhile."""
        return self._running.after_tool_use(point)

    def after_step(self, point: AfterStep) -> AfterStep:
        """Stop after the last answer; keep in the state what leases have used."""
        return self._running.after_step(point)

    def count_ended(self, state: AgentState) -> None:
        """Count, on the account that was lent, what an execution has used, unless it drew on it."""
        self._running.count_ended(state)

    @property
    def _reserves(self) -> bool:
        return self.strict and (self.tokens is not None or self.cost is not None)

    @property
    def _running(self) -> BudgetRun:
        return self._begun(SystemClock()) if self._run is None else self._run

    def _known_prices(self) -> Prices | None:
        if self.cost is None or self.prices is not None:
            return self.prices
        from agentloop.interception.budgets.prices import PublishedPrices

        return PublishedPrices()

    def _begun(self, clock: Clock, log: CallLog | None = None) -> BudgetRun:
        from agentloop.interception.budgets.account import BudgetAccount
        from agentloop.interception.budgets.amounts import Limits, TimeSpan, parts_of_dollar
        from agentloop.interception.budgets.run import BudgetRun, BudgetTerms

        cost = None if self.cost is None else parts_of_dollar(self.cost)
        limits = Limits(self.steps, self.tool_calls, self.tokens, cost)
        terms = BudgetTerms(
            wrap_up=self.wrap_up,
            reserves=self._reserves,
            unknown=self.unknown,
            prices=None if self.cost is None else self._known_prices(),
            model=self.model,
            max_output_tokens=self.max_output_tokens,
        )
        return BudgetRun(
            name=self.name,
            terms=terms,
            account=BudgetAccount(limits) if self._lent is None or isinstance(log, CanObserveReplay) else self._lent,
            time=TimeSpan(self.seconds, self.wrap_up, clock),
            lends=self.lends,
            make=self._leased,
            log=log,
        )

    def _leased(self, lent: BudgetAccount, seconds: float | None) -> CanIntercept:
        from agentloop.interception.budgets.amounts import DOLLAR

        limits = lent.limits
        return evolve(
            self,
            steps=limits.steps,
            tool_calls=limits.tool_calls,
            tokens=limits.tokens,
            cost=None if limits.cost is None else limits.cost / DOLLAR,
            seconds=seconds,
            run=None,
            lent=lent,
        )

    def __repr__(self) -> str:
        given = [(one.name, getattr(self, one.name)) for one in fields(type(self)) if one.eq and one.name != "prices"]
        plain = {one.name: one.default for one in fields(type(self))}
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in given if value != plain[name])})"
