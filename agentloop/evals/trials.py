"""One trial: a candidate on a case, run in its worlds, recorded, and gone on with if it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.fold import state_at
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.durable.forking import ForkPoint
from agentloop.durable.trees import list_below
from agentloop.errors.kinds import ConfigurationError
from agentloop.evals.answering import Known, TrialWorlds, known_outcomes
from agentloop.evals.cases import Case
from agentloop.evals.worlds import LedgerEntry, World
from agentloop.loop.agent_loop import AgentLoop, answered_by
from agentloop.loop.in_charge import begin_execution, find_loop_in_charge
from agentloop.policies.budgets.prices import Prices
from agentloop.values.accounts import COST_UNITS_PER_DOLLAR
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.inference import Usage
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE, AgentStep, ExecutionStatus
from agentloop.values.system_prompts import initial_prompt
from agentloop.values.tool_calls import ToolExecution
from agentloop.values.value import Value

Decide: TypeAlias = Callable[[PendingCall, Case], Any]
"""Decides about a call that waits for a person: a plain or async function that returns a `Decision`, such as `approve(call.digest)`."""

_MAX_DECISIONS = 100
"""How often a trial is decided about; a candidate that waits for ever is not worth more."""


@define(eq=False)
class Account:
    """What a trial has cost.

    Attributes:
        prices: the prices of models; None where none is known.
        dollars: US dollars so far; None while no price was known.
        unpriced: the models whose prices are not known.
    """

    prices: Prices | None
    dollars: float | None = None
    unpriced: set[str] = field(factory=set)

    @property
    def cost(self) -> float | None:
        """US dollars; None where the price of a model that was used is not known."""
        return None if self.unpriced else self.dollars

    def charge(self, model: str, usage: Usage) -> None:
        """Add the tokens of a model."""
        if usage == NO_USAGE:
            return
        price = self.prices.price(model, usage.input_tokens or 0) if self.prices is not None else None
        units = None if price is None else price.cost(usage)
        if units is None:
            self.unpriced.add(model)
        else:
            self.dollars = (self.dollars or 0.0) + units / COST_UNITS_PER_DOLLAR


@frozen(eq=False, repr=False, kw_only=True)
class TrialRun(Value):
    """A trial that has run, as scorers see it.

    Attributes:
        candidate: the name of the candidate.
        case: the case.
        repeat: which repeat, from 0.
        seed: the seed of the trial.
        state: the state at the end.
        steps: the steps that the candidate took; without those of the recorded past.
        calls: the outcomes of its calls in order, with those of programs, without those of sub-agents.
        ledger: all calls that the worlds have answered, with those of sub-agents.
        answered: for each world, the number of calls that it has answered.
        tokens: the tokens of all requests; None where a model reported none.
        seconds: the time that the steps took.
        account: what the trial has cost; judges add to it.
        journal: where it is recorded.
    """

    candidate: str
    case: Case
    repeat: int
    seed: int
    state: AgentState
    steps: tuple[AgentStep, ...]
    calls: tuple[ToolExecution, ...]
    ledger: tuple[LedgerEntry, ...]
    answered: Mapping[str, int]
    tokens: int | None
    seconds: float
    account: Account = field(eq=False)
    journal: CanJournal = field(eq=False)

    @property
    def answer(self) -> str:
        """The final answer as text; empty without one."""
        return self.state.final_text or ""

    @property
    def effects(self) -> tuple[LedgerEntry, ...]:
        """The entries of the ledger that have changed the world of the trial, in order."""
        return tuple([entry for entry in self.ledger if entry.happened])


@define(eq=False)
class CaseStart:
    """What all trials of a case start from, read once.

    Attributes:
        case: the case.
        known: what is known about calls.
        point: the step from which forks start; None for a case that is not made from an execution.
    """

    case: Case
    known: Known
    point: ForkPoint | None

    @classmethod
    async def read(cls, case: Case, recordings: CanJournal) -> CaseStart:
        """Read what a case was made from.

        Raises:
            UnknownExecution: the execution is not recorded in this journal.
            JournalError: it has no such step, or its records are damaged.
            ConfigurationError: another execution is recorded under its id than when the case was made.
        """
        origin = case.origin
        if origin is None:
            return cls(case, await known_outcomes(case, None), None)
        point = await ForkPoint.read(recordings, origin.execution_id, origin.at_step)
        hashes = {record.hash for record in await recordings.read(origin.execution_id)}
        if origin.last_hash and origin.last_hash not in hashes:
            raise ConfigurationError(
                f"the case {case.name!r} was made from another execution than the one that is recorded as {origin.execution_id!r} now; "
                "make the case again with Cases.from_journal"
            )
        return cls(case, await known_outcomes(case, recordings), point)


async def run_trial(
    loop: AgentLoop[Any],
    start: CaseStart,
    execution_id: str,
    *,
    worlds: Sequence[World],
    seed: int,
    journal: CanJournal,
    decide: Decide | None,
) -> tuple[AgentState, TrialWorlds]:
    """Run a trial to its end; one that has been recorded goes on where its record ends, and one that has ended is read.

    Args:
        loop: the loop of the candidate.
        start: what the trial starts from.
        execution_id: the id of its execution.
        worlds: what answers its calls.
        seed: its seed.
        journal: where it is recorded.
        decide: decides about calls that wait; None where they go on waiting.

    Returns:
        The state at the end, and the worlds with what they have answered.

    Raises:
        JournalError: it cannot be recorded.
        ConfigurationError: the loop cannot run.
    """
    answering = TrialWorlds(worlds, start.case, seed, start.known)
    if await journal.head(execution_id) is not None:
        await answering.restore(journal, execution_id)
    elif start.point is not None:
        adapt = partial(_adapt, loop)
        await start.point.record(journal, execution_id, ForkPolicy.FORBID, clock=loop.clock, change=adapt)
    answered = answered_by(loop, answering, journal)
    if start.point is not None:
        state = await answered.recover(execution_id)
    else:
        state = await answered.get_or_start(start.case.input, execution_id)
    if decide is not None:
        state = await _decide(answered, state, decide, start.case)
    return state, answering


def _adapt(loop: AgentLoop[Any], state: AgentState) -> AgentState:
    """Return a recorded state with the instructions and the type of answers of a candidate, which may have changed."""
    current = find_loop_in_charge(loop, state) or loop
    return begin_execution(loop, state.with_system_prompt(initial_prompt(current.system_prompt)))


async def _decide(loop: AgentLoop[Any], state: AgentState, decide: Decide, case: Case) -> AgentState:
    for _ in range(_MAX_DECISIONS):
        if state.status is not ExecutionStatus.SUSPENDED:
            break
        decisions: dict[str, Decision] = {}
        for call in state.pending:
            made = decide(call, case)
            decisions[call.key] = await made if isawaitable(made) else made
        state = await loop.resume(state.execution_id, decisions)
    return state


async def finish_trial(
    state: AgentState,
    worlds: TrialWorlds,
    start: CaseStart,
    *,
    candidate: str,
    repeat: int,
    prices: Prices | None,
    journal: CanJournal,
) -> TrialRun:
    """Return a trial as scorers see it, with the costs of the candidate, of its sub-agents and of played tools.

    Args:
        state: the state at the end.
        worlds: its worlds.
        start: what it started from.
        candidate: the name of the candidate.
        repeat: which repeat.
        prices: the prices of models.
        journal: where it is recorded.

    Raises:
        JournalError: the record of a sub-agent cannot be read.
    """
    past = 0 if start.point is None else start.point.state.step_count
    steps, account = state.steps[past:], Account(prices)
    usages = [(step.model, step.usage) for step in steps]
    usages.append((_model_of(state), _beside(state, start.point)))
    if worlds.has_agents:
        below = [await state_at(journal, head.execution_id) for head in await list_below(journal, state.execution_id)]
        usages += [(step.model, step.usage) for agent in below for step in agent.steps]
    else:
        below = []
    usages += worlds.played
    for model, usage in usages:
        account.charge(model, usage)
    calls = tuple(_calls_of(steps))
    worlds.settle_runs({call.key: call for agent in (state, *below) for call in _calls_of(agent.steps)})
    total = sum((usage for _, usage in usages), NO_USAGE)
    return TrialRun(
        candidate=candidate,
        case=start.case,
        repeat=repeat,
        seed=worlds.seed,
        state=state,
        steps=steps,
        calls=calls,
        ledger=tuple(worlds.ledger),
        answered=dict(sorted(worlds.counts.items())),
        tokens=total.total_tokens,
        seconds=sum((step.ended_at - step.started_at).total_seconds() for step in steps),
        account=account,
        journal=journal,
    )


def _calls_of(steps: Iterable[AgentStep]) -> list[ToolExecution]:
    return [each for step in steps for execution in step.executions for each in (*execution.inner, execution)]


def _model_of(state: AgentState) -> str:
    return next((step.model for step in reversed(state.steps) if step.model), "")


def _beside(state: AgentState, point: ForkPoint | None) -> Usage:
    """Return the tokens of inferences between steps, such as for summaries, without those of the recorded past."""
    assert state.execution is not None  # noqa: S101  # it has run
    beside = state.execution.totals.beside
    if point is None or point.state.execution is None:
        return beside
    before = point.state.execution.totals.beside
    known = {
        name: max(value - (getattr(before, name) or 0), 0)
        for name in ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_tokens", "requests")
        if (value := getattr(beside, name)) is not None
    }
    return evolve(beside, **known)
