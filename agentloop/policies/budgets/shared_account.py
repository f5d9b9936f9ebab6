"""`BudgetAccount`: one sum for many executions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from attrs import Attribute, Factory, define, evolve, field, frozen
from attrs.validators import ge, gt, optional

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate, CanKeepAccounts
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, InvalidResponse
from agentloop.events.accounts import BudgetShareUsed
from agentloop.events.bus import emit
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.lending import CanLend, Lease, current_lenders, set_current_lender
from agentloop.interception.stops import LIMIT_PRIORITY
from agentloop.policies.budgets.account import AccountEntry, UnknownUsage, UsageMeter, quote_inference
from agentloop.policies.budgets.amounts import Limits, cost_units
from agentloop.policies.budgets.budget import on_unknown_usage, or_published
from agentloop.policies.budgets.memory_accounts import MemoryAccounts
from agentloop.policies.budgets.prices import Prices
from agentloop.policies.budgets.run import DEFAULT_MAX_OUTPUT_TOKENS
from agentloop.values.accounts import (
    NO_SPENDING,
    WARNING_PERCENTS,
    AccountBalance,
    AccountHold,
    AccountKey,
    AccountState,
    Spending,
    SpendingLimit,
)
from agentloop.values.estimates import BYTES_PER_TOKEN, parts_length
from agentloop.values.inference import InferenceResponse
from agentloop.values.json import JsonObject
from agentloop.values.owners import Owner, check_owner, find_owner
from agentloop.values.points import (
    AfterExecution,
    AroundInference,
    AroundToolUse,
    BeforeExecution,
    BeforeStep,
    ProceedInference,
    ProceedToolUse,
)
from agentloop.values.policies import CallPolicy
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, StopReason
from agentloop.values.time_and_ids import SystemClock, to_microseconds
from agentloop.values.tool_calls import ToolExecution, ToolSpec
from agentloop.values.value import instance_of, one_of

_MIN_PAUSE, _MAX_PAUSE = 0.02, 1.0
"""How long a request waits until it looks again whether others have returned what they reserved, in seconds."""
_HOLD_SECONDS = 600.0
_MAX_NAME = 100


def _check_name(_: object, __: Attribute[str], name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        raise ConfigurationError(f"a budget account has a name of up to {_MAX_NAME} characters, not {name!r:.80}")


def _find_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigurationError(f"there is no time zone {name!r}; write it as Europe/Berlin or UTC") from error


@define(eq=False)
class _Home:
    """Where accounts without a store of their own are kept.

    Attributes:
        memory: those of executions without a journal.
        last: those of the execution that began last.
    """

    memory: CanKeepAccounts = field(factory=MemoryAccounts)
    last: CanKeepAccounts = field(default=Factory(lambda home: home.memory, takes_self=True))


@frozen(repr=False)
class BudgetAccount(Interceptor, Lease, CanAcceptExecutionScope, CanAcceptLifecycle, CanTellControls):
    """Limits what many executions use together: a batch, a day, a tenant; a `Budget` limits one execution with its sub-agents.

        tickets = BudgetAccount("tickets", cost=5.0)
        loop = AgentLoop.for_model("…", interceptors=[tickets], journal=journal)

    All executions of all loops with an account of this name, in one store, share one sum, sub-agents included. Before each
    request, the most that it may use is reserved; its usage then replaces the reservation. A request that does not fit is not
    sent: the execution stops with the limit as its reason. A request that does not fit only because of what others have
    reserved waits for them. So the sum is exceeded only by as much as answers are larger than what was reserved for them.

    The reservation of a request whose answer never comes, because its process died or its task was cancelled, ends after
    `hold_seconds`, or when another process takes over its execution. It then counts as spent: the provider may have charged it.
    Summaries and judges, which interceptors request themselves, are counted after their answers.

    Attributes:
        account: the name of the account.
        tokens: the maximum number of tokens, input and output together.
        cost: the maximum cost in dollars.
        per: `day` or `month` for a new sum in each; None for one sum.
        zone: the time zone in which days and months begin, such as `Europe/Berlin`.
        by: `principal` or `tenant` for a sum of its own for each who asks or for each tenant, or a function that returns the name
            of the owner from the state; None for one sum for all.
        store: where accounts are kept, such as in the database of a `SqliteJournal` or `PostgresJournal`, for many processes. By
            default in the journal of the execution, and without a journal in the memory of this object.
        prices: the prices of models; by default the published prices (needs the extra `prices`).
        unknown: what to do about unknown usage and prices; as for `Budget`.
        model: the model to assume where requests do not name one; as for `Budget`.
        max_output_tokens: how many output tokens to reserve where a request sets no `max_tokens`.
        hold_seconds: after how many seconds the answer to a request is no longer expected.
        priority: the position among other interceptors.

    Raises:
        ConfigurationError: neither tokens nor cost are limited, an option is invalid, or cost is limited without prices, and the
            extra `prices` is not installed.
    """

    account: str = field(validator=_check_name)
    tokens: int | None = field(default=None, validator=optional(ge(0)), kw_only=True)
    cost: float | None = field(default=None, validator=optional(ge(0)), kw_only=True)
    per: Literal["day", "month"] | None = field(
        default=None, validator=optional(one_of(("day", "month"))), kw_only=True
    )
    zone: str = field(default="UTC", kw_only=True)
    by: Owner | None = field(default=None, kw_only=True)
    store: CanKeepAccounts | None = field(default=None, validator=optional(instance_of(CanKeepAccounts)), kw_only=True)
    prices: Prices | None = field(default=None, kw_only=True)
    unknown: UnknownUsage = field(default="estimate", validator=on_unknown_usage, kw_only=True)
    model: str = field(default="", kw_only=True)
    max_output_tokens: int = field(default=DEFAULT_MAX_OUTPUT_TOKENS, validator=ge(1), kw_only=True)
    hold_seconds: float = field(default=_HOLD_SECONDS, validator=gt(0), kw_only=True)
    priority: int = field(default=LIMIT_PRIORITY, kw_only=True)
    has_side_effects: bool = field(default=True, init=False, eq=False)
    writes: Collection[str] | None = field(default=frozenset[str](), init=False, eq=False)
    _owner: str | None = field(default=None, kw_only=True, eq=False)
    _events: CanHandleEvents | None = field(default=None, kw_only=True, eq=False)
    _home: _Home = field(factory=_Home, kw_only=True, eq=False)
    _run: _AccountRun | None = field(default=None, kw_only=True, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.tokens is None and self.cost is None:
            raise ConfigurationError("a BudgetAccount limits something: give cost= in dollars, or tokens=")
        if self.by is not None:
            check_owner(self.by)
        _find_zone(self.zone)
        if self.cost is not None:  # at once, so that missing prices are an error of the construction
            object.__setattr__(self, "prices", or_published(self.prices))

    def __repr__(self) -> str:
        shown = {"tokens": self.tokens, "cost": self.cost, "per": self.per, "by": self.by}
        given = "".join([f", {name}={value!r}" for name, value in shown.items() if value is not None])
        return f"BudgetAccount({self.account!r}{given})"

    @property
    def limit(self) -> SpendingLimit:
        """How much the account allows."""
        return SpendingLimit(self.tokens, None if self.cost is None else cost_units(self.cost))

    def key(self, at: datetime, owner: str = "") -> AccountKey:
        """Return the key of the account at a time.

        Args:
            at: the time.
            owner: for whom it is kept; empty for everybody.
        """
        forms = {"day": "%Y-%m-%d", "month": "%Y-%m"}
        period = at.astimezone(_find_zone(self.zone)).strftime(forms[self.per]) if self.per is not None else ""
        return AccountKey(self.account, owner, period)

    async def balance(self, owner: str = "", *, at: datetime | None = None) -> AccountBalance:
        """Return what was spent, and what is left, in the store of the account.

        An account without a store of its own is read where the execution that began last keeps it.

        Args:
            owner: for whom: a principal, such as `ada` or, in a tenant, `acme/ada`; a tenant; or what the function `by` returns;
                empty for everybody.
            at: a time in the day or month; by default now.

        Raises:
            JournalError: the store cannot be read.
        """
        at = SystemClock().now() if at is None else at
        key = self.key(at, owner)
        state = dict(await (self.store or self._home.last).accounts()).get(key, AccountState())
        return AccountBalance.of(key, evolve(state, limit=self.limit), at)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy for one execution.

        Raises:
            ConfigurationError: the account has no store of its own, and the journal of the execution keeps no accounts.
        """
        return evolve(self, run=self._start(scope))

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that tells this bus which part of the sum is used."""
        return evolve(self, events=events)

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # it is for every tool
        """Return what it limits in all executions."""
        place = f"in the account {self.account!r}{f' per {self.per}' if self.per else ''}"
        amounts = {"tokens": (self.tokens, "tokens"), "cost": (self.cost, "dollars")}
        return [
            Control("limits", f"at most {amount} {unit} {place}", of=of, reaches_agents=True)
            for of, (amount, unit) in amounts.items()
            if amount is not None
        ]

    def count_ended(self, state: AgentState) -> None:
        """Do nothing: each request of a sub-agent was counted when it was sent."""

    # --- points ---------------------------------------------------------------------------------------------------

    async def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        """Note what was used before."""
        self._current_run.count_from(point.state)
        return point

    async def before_step(self, point: BeforeStep) -> BeforeStep:
        """Count the inferences that interceptors have made."""
        await self._count_others(point.state)
        return point

    async def after_execution(self, point: AfterExecution) -> AfterExecution:
        """Count the inferences that interceptors have made."""
        await self._count_others(point.state)
        return point

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Reserve what the request may use, and replace that by what it has used.

        Raises:
            AgentStop: too little is left; the request is not sent.
            ConfigurationError: the owner of the account is not known.
            JournalError: the store cannot be used.
        """
        key, hold = await self._reserve(point)
        if hold is None:
            return await proceed()
        try:
            with _charging(key, hold):
                response = await proceed()
        except BaseException as error:
            await self._end(key, hold, error)
            raise
        output = parts_length(response.parts) // BYTES_PER_TOKEN
        entry = self._current_run.entry
        spending = Spending(*entry.meter.measure(response.usage, response.model, entry.input_estimate, output))
        await self._update(key, lambda state: state.settle(hold.id, spending), point.state)
        return response

    async def _end(self, key: AccountKey, hold: AccountHold, error: BaseException) -> None:
        # A provider may have charged the request of a task that was cancelled, and an answer that nobody can read.
        may_be_charged, now = not isinstance(error, Exception) or isinstance(error, InvalidResponse), self._now
        await self._current_run.store.update_account(
            key, lambda state: state.lapse(hold.id, now) if may_be_charged else state.release(hold.id)
        )

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Let agents that serve the call use the account."""
        lender = _AccountLender(evolve(self, store=self._current_run.store), self._owner_of(point.state))
        with set_current_lender(lender, self._kind):
            return await proceed()

    # --- shared ---------------------------------------------------------------------------------------------------

    @property
    def _kind(self) -> str:
        return f"account {self.account}"

    @property
    def _current_run(self) -> _AccountRun:
        return self._start(ExecutionScope()) if self._run is None else self._run

    def _start(self, scope: ExecutionScope) -> _AccountRun:
        self._home.last = store = self.store or self._store_of(scope)
        return _AccountRun(scope, store, AccountEntry(self._create_meter()))

    def _store_of(self, scope: ExecutionScope) -> CanKeepAccounts:
        journal: object = None if scope.log is None else scope.log.settings.journal
        if journal is None:
            return self._home.memory
        if isinstance(journal, CanKeepAccounts):
            return journal
        raise ConfigurationError(
            f"the budget account {self.account!r} has no store=, and {journal!r:.200}, the journal of the execution, keeps no "
            "accounts; give store=, such as a SqliteJournal, or a MemoryJournal for one process"
        )

    @property
    def _now(self) -> int:
        return to_microseconds(self._current_run.scope.clock.now())

    def _create_meter(self) -> UsageMeter:
        return UsageMeter(self.unknown, None if self.cost is None else self.prices, self.model)

    def _owner_of(self, state: AgentState) -> str:
        if self._owner is not None:
            return self._owner
        # A sub-agent that has the account itself works for whom its caller works, also with a store object of its own.
        lender = current_lenders().get(self._kind)
        if isinstance(lender, _AccountLender):
            return lender.owner
        return find_owner(self.by, state, f"the budget account {self.account!r}")

    async def _reserve(self, point: AroundInference) -> tuple[AccountKey, AccountHold | None]:
        """Reserve what a request may use; None if another layer of the same account has reserved it, such as that of a lease."""
        run, state = self._current_run, point.state
        limits = Limits(tokens=self.tokens, cost=self.limit.cost)
        quote = quote_inference(limits, run.entry, point, max_output_tokens=self.max_output_tokens)
        spending, owner = Spending(quote.amounts.tokens, quote.amounts.cost), self._owner_of(state)
        hold_id, pause = run.next_id(state), _MIN_PAUSE
        while True:
            at = run.scope.clock.now()
            key, now = self.key(at, owner), to_microseconds(at)
            until = now + round(self.hold_seconds * 1e6)
            hold = AccountHold(hold_id, spending, until, state.execution_id, run.scope.claim_token or 0)
            charging = [each for account, each in _CHARGING.get() if account == key]
            after = await self._update(key, _reserving(hold, charging, self.limit, now), state)
            if after.holds_for(hold_id):
                return key, hold
            if _holds_any(after, charging):
                return key, None
            if not after.can_wait_for(spending, now):
                raise self._refusal(key, after, spending)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _update(self, key: AccountKey, change: AccountChange, state: AgentState) -> AccountState:
        update: AccountUpdate = await self._current_run.store.update_account(key, change)
        if self._events is not None and update.after.announced > update.before.announced:
            left = update.after.remaining
            for percent in WARNING_PERCENTS:
                if update.before.announced < percent <= update.after.announced:
                    await emit(self._events, BudgetShareUsed, state, key, percent, left)
        return update.after

    def _refusal(self, key: AccountKey, state: AccountState, needed: Spending) -> AgentStop:
        left, limit = state.remaining, state.limit
        is_cost = left.cost is not None and needed.cost > left.cost
        if is_cost:
            words = (
                f"${left.dollars:.4f} of ${limit.dollars:,.2f} left, and this request may cost ${needed.dollars:.4f}"
            )
            amounts: tuple[float, float, float] = (limit.dollars or 0.0, left.dollars or 0.0, needed.dollars)
        else:
            words = f"{left.tokens:,} of {limit.tokens:,} tokens left, and this request may use {needed.tokens:,}"
            amounts = (limit.tokens or 0, left.tokens or 0, needed.tokens)
        of = f" of {key.owner!r}" if key.owner else ""
        during = f" for {key.period}" if key.period else ""
        return AgentStop(
            f"the budget account {key.name!r}{of}{during} has {words}",
            reason=StopReason.COST_LIMIT if is_cost else StopReason.TOKEN_LIMIT,
            context=JsonObject(
                account=key.name,
                owner=key.owner,
                period=key.period,
                limit=amounts[0],
                remaining=amounts[1],
                needed=amounts[2],
            ),
        )

    async def _count_others(self, state: AgentState) -> None:
        """Count what the interceptors of the execution have used since the last count, such as for summaries."""
        run = self._current_run
        spending = run.take_others(state)
        if spending == NO_SPENDING:
            return
        now, hold_id = self._now, run.next_id(state)
        key = self.key(run.scope.clock.now(), self._owner_of(state))
        hold = AccountHold(hold_id, spending, now, state.execution_id)
        # In two changes, each of which can be repeated.
        await self._current_run.store.update_account(key, lambda account: account.note(hold))
        await self._current_run.store.update_account(
            key, lambda account: account.settle(hold_id, spending, announces=False)
        )


_CHARGING: ContextVar[frozenset[tuple[AccountKey, str]]] = ContextVar("agentloop accounts", default=frozenset())
"""The reservations for the request that is being sent: the key of each account, and the id of the reservation."""


@contextmanager
def _charging(key: AccountKey, hold: AccountHold) -> Iterator[None]:
    token = _CHARGING.set(_CHARGING.get() | {(key, hold.id)})
    try:
        yield
    finally:
        _CHARGING.reset(token)


def _holds_any(state: AccountState, hold_ids: Collection[str]) -> bool:
    # Only the stored state tells accounts apart: two store objects may use one database, and two databases have one key.
    return any(state.holds_for(hold_id) for hold_id in hold_ids)


def _reserving(hold: AccountHold, charging: Collection[str], limit: SpendingLimit, now: int) -> AccountChange:
    return lambda state: state if _holds_any(state, charging) else state.reserve(hold, limit, now)


@define(eq=False)
class _AccountRun:
    """What an account knows of one execution.

    Attributes:
        scope: the scope of the execution.
        store: where the account is kept.
        entry: measures its requests and its usage.
        others: what its interceptors have used, as far as it was counted; None before the start.
        count: the number of reservations.
    """

    scope: ExecutionScope
    store: CanKeepAccounts
    entry: AccountEntry
    others: Spending | None = None
    count: int = 0

    def next_id(self, state: AgentState) -> str:
        """Return the id of a reservation; another run of the same execution has others."""
        self.count += 1
        token, now = self.scope.claim_token or 0, to_microseconds(self.scope.clock.now())
        return f"{state.execution_id}/{token}/{now}/{self.count}"

    def count_from(self, state: AgentState) -> None:
        """Note what the interceptors of the execution had used when this run of it began."""
        if self.others is None:
            self.others = self._others_of(state)

    def take_others(self, state: AgentState) -> Spending:
        """Return what the interceptors of the execution have used since the last time."""
        self.count_from(state)
        before, self.others = self.others or NO_SPENDING, self._others_of(state)
        return Spending(max(self.others.tokens - before.tokens, 0), max(self.others.cost - before.cost, 0))

    def _others_of(self, state: AgentState) -> Spending:
        usage = state.execution.totals.beside if state.execution is not None else None
        if usage is None or not usage.requests:
            return NO_SPENDING
        last = state.last_step
        return Spending(*self.entry.meter.measure(usage, last.model if last is not None else "", 0, 0))


@frozen
class _AccountLender(CanLend):
    """Lets sub-agents use an account.

    Attributes:
        budget: the account.
        owner: for whom the caller works.
    """

    budget: BudgetAccount
    owner: str

    @contextmanager
    def lease(self, share: float = 1.0, *, resuming: AgentState | None = None) -> Iterator[Lease]:  # noqa: ARG002  # the sum is one for all
        """Lend the account, until the block ends; each request of the sub-agent reserves in it what it may use."""
        yield evolve(self.budget, owner=self.owner, run=None)
