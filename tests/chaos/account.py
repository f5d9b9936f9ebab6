"""The account of a chaos run: journal, ledger and events compared, from outside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field, frozen

from agentloop import ToolExecution
from agentloop.durable import verify_records
from agentloop.durable.fold import fold_records
from agentloop.durable.journal import Journal
from agentloop.values import AgentState, JournalRecord, RecordKind
from agentloop.values.json import parse_json
from agentloop.values.tool_calls import ToolStatus
from tests.chaos.ledger import BEFORE, EFFECT, Ledger
from tests.chaos.work import HELPER, Work

_REPEATABLE = frozenset({"read", "put", "tick", "crash"})
"""The tools whose calls may have their effect again after a crash."""
_UNKNOWABLE = frozenset({"pay", "grind", "seal", "linger"})
"""The tools whose calls are in doubt after a crash."""
_DEATHS = 40
"""More calls of one key than this say that something repeats without end."""


@frozen
class Evidence:
    """What a chaos run leaves.

    Attributes:
        ledger: the ledger.
        works: what was submitted.
        states: the states of all executions in the journal.
        records: their records.
        findings: the findings of the verification of the journal.
    """

    ledger: Ledger
    works: Sequence[Work]
    states: Mapping[str, AgentState]
    records: Mapping[str, Sequence[JournalRecord]]
    findings: Sequence[object]

    @property
    def outcomes(self) -> Mapping[str, ToolExecution]:
        """The outcomes of all calls, by key."""
        steps = [step for state in self.states.values() for step in state.steps]
        calls = [call for step in steps for execution in step.executions for call in execution.flat]
        return {call.key: call for call in calls}

    @property
    def plan(self) -> Mapping[str, str]:
        """The tools of all calls that the scripts lead to, by key."""
        return {key: name for work in self.works for key, name in work.calls.items()}


async def gather_evidence(journal: Journal, ledger: Ledger, works: Sequence[Work]) -> Evidence:
    """Read what a chaos run has left."""
    records = {head.execution_id: await journal.read(head.execution_id) for head in await journal.list()}
    states = {}
    for execution_id, chain in records.items():
        state = fold_records(verify_records(chain, execution_id), execution_id).state
        if state is not None:
            states[execution_id] = state
    return Evidence(ledger, works, states, records, await journal.verify())


@define
class Account:
    """The figures of a chaos run, and all that is wrong.

    Attributes:
        executions: the number of executions, without those of the other agent.
        calls: the number of calls that the scripts lead to, without those that only call the other agent.
        once: the calls with one effect.
        in_doubt: the calls that are reported as in doubt.
        repeated: the calls that may be repeated, and were.
        lost: what is lost, in words.
        doubled: what happened twice, in words.
        unreported: doubts that not everything reports, in words.
        wrong: other violations, in words.
        notes: what was measured besides.
    """

    executions: int = 0
    calls: int = 0
    once: int = 0
    in_doubt: int = 0
    repeated: int = 0
    lost: list[str] = field(factory=list)
    doubled: list[str] = field(factory=list)
    unreported: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)
    notes: dict[str, str] = field(factory=dict)

    @property
    def problems(self) -> Sequence[str]:
        """Everything that is wrong."""
        return [*self.lost, *self.doubled, *self.unreported, *self.wrong]

    def add(self, other: Account) -> None:
        """Add the figures and the findings of another run."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notes |= other.notes


_SUMMED = ("executions", "calls", "once", "in_doubt", "repeated", "lost", "doubled", "unreported", "wrong")


def make_account(evidence: Evidence, *, ends_as: Mapping[str, str] | None = None) -> Account:
    """Compare what a chaos run has left.

    Args:
        evidence: what it has left.
        ends_as: the statuses of the executions that do not complete, by id.
    """
    plan, outcomes, effects = evidence.plan, evidence.outcomes, evidence.ledger.effects()
    calls = [key for key, name in plan.items() if name != HELPER]
    return Account(
        executions=len(evidence.works),
        calls=len(calls),
        once=sum(effects[key] == 1 for key in calls),
        in_doubt=sum(outcome.status is ToolStatus.IN_DOUBT for outcome in outcomes.values()),
        repeated=sum(effects[key] > 1 for key in calls if plan[key] in _REPEATABLE),
        lost=list(_find_lost(evidence, ends_as or {})),
        doubled=list(_find_doubled(evidence)),
        unreported=list(_find_unreported(evidence)),
        wrong=list(_find_wrong(evidence, ends_as or {})),
    )


def _find_lost(evidence: Evidence, ends_as: Mapping[str, str]) -> Iterator[str]:
    """Find executions that have not ended, calls without outcome, effects that the journal denies, and missing effects."""
    outcomes, effects = evidence.outcomes, evidence.ledger.effects()
    for work in evidence.works:
        state, expected = evidence.states.get(work.execution_id), ends_as.get(work.execution_id, "completed")
        if state is None:
            yield f"the execution {work.execution_id} is not recorded"
        elif state.status.value != expected:
            yield f"the execution {work.execution_id} is {state.status.value}, not {expected}: {state.errors}"
        elif expected == "completed":
            yield from [f"the call {key} has no outcome" for key in work.calls if key not in outcomes]
    for key, name in evidence.plan.items():
        outcome = outcomes.get(key)
        if outcome is None or name == HELPER:
            continue
        if outcome.succeeded and not effects[key]:
            yield f"the call {key} succeeded without an effect"
        if effects[key] and not outcome.succeeded and not outcome.may_have_run:
            yield f"the effect {key} is denied: its call ended as {outcome.status.value}"


def _find_doubled(evidence: Evidence) -> Iterator[str]:
    """Find effects that happened twice, calls that nobody made, and outcomes that are recorded twice."""
    plan, lines = evidence.plan, evidence.ledger.lines()
    begun = Counter(line.key for line in lines if line.phase == BEFORE)
    for key, count in Counter(line.key for line in lines if line.phase == EFFECT).items():
        name = plan.get(key)
        if name is None:
            yield f"the effect {key} belongs to no call of a script"
        elif count > 1 and name not in _REPEATABLE:
            yield f"the effect {key} of {name} happened {count} times"
    for key, count in begun.items():
        if count > (_DEATHS if plan.get(key) in _REPEATABLE else 1) and plan.get(key) != "book":
            yield f"the tool {plan.get(key)} began {count} times for {key}"
    for execution_id, records in evidence.records.items():
        bodies = [parse_json(record.body) for record in records if record.kind is RecordKind.CALL_OUTCOME]
        counts = Counter(body["execution"]["key"] for body in bodies)
        yield from [f"{execution_id}: {count} outcomes of {key}" for key, count in counts.items() if count > 1]


def _find_unreported(evidence: Evidence) -> Iterator[str]:
    """Find doubts without an event, without a word to the model, or without a reason."""
    outcomes, reported = evidence.outcomes, set(evidence.ledger.notes("recovered"))
    # The outcome of a call that another worker ran is reported like any other.
    reported |= {" ".join(json.loads(text)[:2]) for text in evidence.ledger.notes("outcomes")}
    for key, outcome in outcomes.items():
        if outcome.status is not ToolStatus.IN_DOUBT:
            continue
        if f"in_doubt {key}" not in reported:
            yield f"no event reported that the call {key} is in doubt"
        if outcome.name not in _UNKNOWABLE:
            yield f"the call {key} of {outcome.name} is in doubt, although it can be looked up or repeated"
    for work in evidence.works:
        state = evidence.states.get(work.execution_id)
        if state is None or state.status.value != "completed":
            continue
        executions = [execution for step in state.steps for execution in step.executions]
        doubts = sum(execution.status is ToolStatus.IN_DOUBT for execution in executions)
        if not str(state.final_text).endswith(f"with {doubts} doubts"):
            yield f"{work.execution_id} has {doubts} doubts, and its model says: {state.final_text!r}"


def _find_wrong(evidence: Evidence, ends_as: Mapping[str, str]) -> Iterator[str]:
    """Find broken chains, grammars and laws, errors of workers, and outcomes that differ from what was reported."""
    yield from [f"journal: {finding}" for finding in evidence.findings]
    yield from [f"grammar: {violation}" for violation in evidence.ledger.notes("violations")]
    yield from [f"error: {error}" for error in evidence.ledger.notes("errors")]
    outcomes = evidence.outcomes
    for status, key, worker, error in [json.loads(text) for text in evidence.ledger.notes("outcomes")]:
        now = outcomes[key].status.value if key in outcomes else "missing"
        if status not in {now, "cancelled"}:
            yield f"{worker} reported that the call {key} {status}, and it is {now} (law 10): {error}"
    for key, outcome in outcomes.items():
        is_ended_early = key.split("/")[0] in ends_as and outcome.may_have_run
        if not outcome.succeeded and outcome.status is not ToolStatus.IN_DOUBT and not is_ended_early:
            yield f"the call {key} of {outcome.name} ended as {outcome.status.value}: {outcome.error_message}"
