"""Inspecting a trial from outside: comparing the journal, the ledger and the final state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from agentloop import ToolExecution
from agentloop.durable import SqliteJournal, verify_records
from agentloop.durable.fold import fold_records
from agentloop.values import AgentState, JournalRecord, RecordKind, Usage, from_json, to_json
from agentloop.values.json import parse_json
from agentloop.values.records import outer_key
from agentloop.values.tool_calls import ToolStatus
from tests.durability.trial_folder import TrialFolder
from tests.durability.workloads import OLD, RUN, WORKLOADS


@frozen
class ReferenceRun:
    """A workload without kills.

    Attributes:
        points: the points at which its process can be killed, in order.
        values: the result of each call, by key.
        usage: the tokens of all inferences.
    """

    points: Sequence[str]
    values: Mapping[str, object]
    usage: Usage


@frozen
class TrialResult:
    """The files of a trial, read after its last process.

    Attributes:
        folder: the folder of the trial.
        final: the final state in the last process.
        states: the state of each execution in the journal.
        records: the records of each execution.
        findings: the findings of the verification of the journal.
    """

    folder: TrialFolder
    final: AgentState
    states: Mapping[str, AgentState]
    records: Mapping[str, Sequence[JournalRecord]]
    findings: Sequence[object]

    @property
    def outcomes(self) -> Mapping[str, ToolExecution]:
        """The outcomes of all calls, by key."""
        steps = [step for name, state in self.states.items() if not name.startswith(OLD) for step in state.steps]
        executions = [execution for step in steps for execution in step.executions]
        return {call.key: call for execution in executions for call in execution.flat}

    @property
    def reused(self) -> Mapping[str, str]:
        """The keys of the calls of a fork that have the outcome of a call of its source, with the key of that call."""
        outcomes = [body for name in self.records for body in self.bodies(name, RecordKind.CALL_OUTCOME)]
        return {body["execution"]["key"]: body["source"] for body in outcomes if body.get("source")}

    def bodies(self, execution_id: str, kind: RecordKind) -> list[dict[str, Any]]:
        """Return the bodies of an execution's records of a kind."""
        return [parse_json(record.body) for record in self.records[execution_id] if record.kind is kind]

    def keys(self, execution_id: str, kind: RecordKind, entry: str = "") -> list[str]:
        """Return the keys in the records of a kind, in an entry of their bodies or at the top level."""
        return [(body[entry] if entry else body)["key"] for body in self.bodies(execution_id, kind)]


def read_result(path: Path) -> TrialResult:
    """Read the files of a trial."""
    folder = TrialFolder(path)
    records, findings = asyncio.run(_read_journal(folder))
    states = {}
    for execution_id, chain in records.items():
        state = fold_records(verify_records(chain, execution_id), execution_id).state
        if state is not None:
            states[execution_id] = state
    final = from_json((path / "final.json").read_bytes(), AgentState)
    return TrialResult(folder, final, states, records, findings)


async def _read_journal(folder: TrialFolder) -> tuple[Mapping[str, Sequence[JournalRecord]], Sequence[object]]:
    journal = SqliteJournal(folder.journal)
    try:
        records = {head.execution_id: await journal.read(head.execution_id) for head in await journal.list()}
        return records, await journal.verify()
    finally:
        await journal.aclose()


def reference_of(result: TrialResult) -> ReferenceRun:
    """Return what other trials of the workload are compared with."""
    values = {key: outcome.value for key, outcome in result.outcomes.items()}
    return ReferenceRun(result.folder.lines("points"), values, result.final.usage)


def find_problems(result: TrialResult, workload: str, reference: ReferenceRun, kills: int) -> Iterator[str]:
    """Yield every violation of the durability guarantees, in words."""
    yield from result.folder.lines("errors")
    yield from [str(finding) for finding in result.findings]
    state = result.states[RUN]
    if state != result.final or to_json(state) != to_json(result.final):
        yield "the fold of the records is not the final state (law 15)"
    if state.status.value not in WORKLOADS[workload].ends_as:
        yield f"the run is {state.status.value}: {state.errors}"
    yield from _find_wrong_effects(result)
    yield from _find_wrong_outcomes(result, reference)
    yield from _find_unreported_doubts(result)
    yield from _find_changed_outcomes(result)
    yield from _find_repeated_records(result, kills)
    yield from _find_wrong_messages(result)
    yield from _find_partial_trees(result)


def _find_wrong_effects(result: TrialResult) -> Iterator[str]:
    """Compare the ledger with the outcomes in the states."""
    effects = result.folder.effects()
    counts = Counter(effect["key"] for effect in effects)
    outcomes = result.outcomes
    for key, effect in {effect["key"]: effect for effect in effects}.items():
        outcome = outcomes.get(key)
        if outcome is None:
            yield f"the effect {key} is lost: it is in no state"
        elif not outcome.succeeded and not outcome.may_have_run and effect["effect"] != "pure":
            yield f"the effect {key} is lost: its call ended as {outcome.status.value}, as if it had not run"
        if effect["effect"] == "effect" and counts[key] > 1:
            yield f"the effect {key} was repeated: it is {counts[key]} times in the ledger (law 14)"
    for key, outcome in outcomes.items():
        if (
            outcome.succeeded
            and outcome.name not in {"agent", "run_program"}
            and not counts[result.reused.get(key, key)]
        ):
            yield f"the call {key} succeeded without an effect"
        if key in result.reused and counts[key]:
            yield f"the effect {key} was repeated: it was that of {result.reused[key]}"


def _find_wrong_outcomes(result: TrialResult, reference: ReferenceRun) -> Iterator[str]:
    """Compare the outcomes with those of the reference run."""
    outcomes, is_completed = result.outcomes, result.final.status.value == "completed"
    if is_completed and outcomes.keys() != reference.values.keys():
        yield f"the calls differ from the reference run: {sorted(outcomes.keys() ^ reference.values.keys())}"
    if is_completed and result.final.usage != reference.usage and not result.folder.lines("sent"):
        yield f"usage is {result.final.usage} and not {reference.usage} (law 6)"
    for key, outcome in outcomes.items():
        is_reconciled = outcome.value in {"found 1", "it had happened"}
        if outcome.succeeded and not is_reconciled and outcome.value != reference.values[key]:
            yield f"the call {key} returned {outcome.value!r} and not {reference.values[key]!r}"
        if not outcome.succeeded and (outcome.status is not ToolStatus.IN_DOUBT or not _may_be_in_doubt(outcome)):
            yield f"the call {key} of {outcome.name} ended as {outcome.status.value}: {outcome.error_message}"


def _may_be_in_doubt(outcome: ToolExecution) -> bool:
    return outcome.name.endswith("_effect") and outcome.may_have_run


def _find_unreported_doubts(result: TrialResult) -> Iterator[str]:
    """Find calls in doubt without an event, or without a message to the model."""
    events, requests = result.folder.lines("recovered"), result.folder.lines("doubts in requests")
    for key, outcome in result.outcomes.items():
        if outcome.status is not ToolStatus.IN_DOUBT:
            continue
        if f"in_doubt {result.reused.get(key, key)}" not in events:
            yield f"no event reported that the call {key} is in doubt"
        # What a program does about a call in doubt is its own affair.
        if key not in requests and not outer_key(key) and result.final.status.value == "completed":
            yield f"the model was not told that the call {key} is in doubt"


def _find_changed_outcomes(result: TrialResult) -> Iterator[str]:
    """Find outcomes that differ from those that events reported (law 10)."""
    for line in result.folder.lines("completed"):
        status, key = line.split(" ", 1)
        outcome = result.outcomes.get(key)
        if outcome is None or outcome.status.value != status:
            now = outcome.status.value if outcome is not None else "missing"
            yield f"the call {key} was reported as {status}, and is {now} (law 10)"


def _find_repeated_records(result: TrialResult, kills: int) -> Iterator[str]:
    """Find calls with too many intents, outcomes or uses of a decision."""
    for execution_id in result.records:
        suspended = Counter(result.keys(execution_id, RecordKind.CALL_SUSPENDED, "pending"))
        for key, count in Counter(result.keys(execution_id, RecordKind.CALL_INTENT, "intent")).items():
            if count > 1 + kills + suspended[key]:
                yield f"the call {key} has {count} intents"
        for key, count in Counter(result.keys(execution_id, RecordKind.CALL_OUTCOME, "execution")).items():
            if count > 1:
                yield f"the call {key} has {count} outcomes"
        decisions = result.bodies(execution_id, RecordKind.DECISION_USED)
        # Each suspension of a call has a digest of its own.
        for (key, _), count in Counter([(body["key"], body["digest"]) for body in decisions]).items():
            if count > 1:
                yield f"the decision about {key} was used {count} times (law 16)"


def _find_wrong_messages(result: TrialResult) -> Iterator[str]:
    """Find recorded messages that are lost or duplicated."""
    kinds = (RecordKind.MESSAGES_SENT, RecordKind.MESSAGES_TAKEN)
    bodies = [body for kind in kinds for body in result.bodies(RUN, kind)]
    texts = {part["text"] for body in bodies for message in body["messages"] for part in message["parts"]}
    conversation = Counter(message.text for message in result.final.messages)
    for text in texts:
        if conversation[text] != 1:
            yield f"the message {text!r} is {conversation[text]} times in the conversation"
    yield from [f"the message {text!r} was never sent" for text in texts - set(result.folder.lines("sent"))]


def _find_partial_trees(result: TrialResult) -> Iterator[str]:
    """Find deleted executions of which records remain."""
    for execution_id in OLD:
        remaining = [recorded for recorded in result.records if recorded.startswith(execution_id)]
        if len(remaining) == 1:
            yield f"of the execution {execution_id}, only {remaining[0]} remains"
