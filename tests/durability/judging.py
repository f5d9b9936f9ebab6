"""Judging from outside what has become of a run: the journal, the ledger and the final state against each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from agentloop import ToolExecution
from agentloop.journal import SqliteJournal, verify_records
from agentloop.journal.fold import fold_records
from agentloop.values import AgentState, JournalRecord, RecordKind, Usage, from_json, to_json
from agentloop.values.json import parse_json
from agentloop.values.tool_calls import ToolStatus
from tests.durability.place import Place
from tests.durability.workloads import RUN, WORKLOADS


@frozen
class Reference:
    """What becomes of a workload that nobody kills.

    Attributes:
        moments: the moments at which it could have been killed, in order.
        values: what each call returns, by key.
        usage: the tokens of all inferences.
    """

    moments: Sequence[str]
    values: Mapping[str, object]
    usage: Usage


@frozen
class Found:
    """What is there after a trial.

    Attributes:
        place: the folder.
        final: the state that the last process ended with.
        states: the state of each execution, as the journal tells it.
        records: the records of each execution.
        findings: what the journal finds wrong with itself.
    """

    place: Place
    final: AgentState
    states: Mapping[str, AgentState]
    records: Mapping[str, Sequence[JournalRecord]]
    findings: Sequence[object]

    @property
    def outcomes(self) -> Mapping[str, ToolExecution]:
        """The outcomes of all calls, by key."""
        steps = [step for state in self.states.values() for step in state.steps]
        return {one.key: one for step in steps for one in step.executions}

    def bodies(self, execution_id: str, kind: RecordKind) -> list[dict[str, Any]]:
        """Return the bodies of an execution's records of a kind."""
        return [parse_json(record.body) for record in self.records[execution_id] if record.kind is kind]

    def keys(self, execution_id: str, kind: RecordKind, entry: str = "") -> list[str]:
        """Return the keys that stand in the records of a kind, in an entry of their bodies or at the top."""
        return [(body[entry] if entry else body)["key"] for body in self.bodies(execution_id, kind)]


def found_in(folder: Path) -> Found:
    """Read what is there after a trial."""
    place = Place(folder)
    records, findings = asyncio.run(_read(place))
    states = {one: fold_records(verify_records(some, one), one).state for one, some in records.items()}
    final = from_json((folder / "final.json").read_bytes(), AgentState)
    return Found(place, final, {one: state for one, state in states.items() if state is not None}, records, findings)


async def _read(place: Place) -> tuple[Mapping[str, Sequence[JournalRecord]], Sequence[object]]:
    journal = SqliteJournal(place.journal)
    try:
        records = {head.execution_id: await journal.read(head.execution_id) for head in await journal.list()}
        return records, await journal.verify()
    finally:
        await journal.aclose()


def reference_of(found: Found) -> Reference:
    """Return what a run that nobody killed has come to."""
    values = {key: one.value for key, one in found.outcomes.items()}
    return Reference(found.place.lines("moments"), values, found.final.usage)


def problems_of(found: Found, workload: str, reference: Reference, kills: int) -> Iterator[str]:
    """Say what must not be."""
    yield from found.place.lines("errors")
    yield from [str(finding) for finding in found.findings]
    state = found.states[RUN]
    if state != found.final or to_json(state) != to_json(found.final):
        yield "the fold of the records is not the final state (law 15)"
    if state.status.value not in WORKLOADS[workload].ends_as:
        yield f"the run is {state.status.value}: {state.errors}"
    yield from _wrong_effects(found)
    yield from _wrong_outcomes(found, reference)
    yield from _unreported(found)
    yield from _changed(found)
    yield from _wrong_records(found, workload, kills)
    yield from _wrong_messages(found)


def _wrong_effects(found: Found) -> Iterator[str]:
    """Compare the ledger with what the states know."""
    effects = found.place.effects()
    counts = Counter(one["key"] for one in effects)
    known = found.outcomes
    for one in {each["key"]: each for each in effects}.values():
        outcome = known.get(one["key"])
        if outcome is None:
            yield f"the effect {one['key']} is lost: no state knows of it"
        elif not outcome.succeeded and not outcome.may_have_run and one["effect"] != "pure":
            yield f"the effect {one['key']} is lost: its call ended as {outcome.status.value}, as if it had not run"
        if one["effect"] == "effect" and counts[one["key"]] > 1:
            yield f"the effect {one['key']} was doubled: {counts[one['key']]} times in the ledger (law 14)"
    for key, outcome in known.items():
        if outcome.succeeded and outcome.name != "agent" and not counts[key]:
            yield f"the call {key} is said to have succeeded and has had no effect"


def _wrong_outcomes(found: Found, reference: Reference) -> Iterator[str]:
    """Compare the outcomes with those of the run that nobody killed."""
    known, over = found.outcomes, found.final.status.value == "completed"
    if over and known.keys() != reference.values.keys():
        yield f"other calls than without a kill: {sorted(known.keys() ^ reference.values.keys())}"
    if over and found.final.usage != reference.usage and not found.place.lines("sent"):
        yield f"usage is {found.final.usage} and not {reference.usage} (law 6)"
    for key, outcome in known.items():
        settled = outcome.value in {"found 1", "it had happened"}
        if outcome.succeeded and not settled and outcome.value != reference.values[key]:
            yield f"the call {key} returned {outcome.value!r} and not {reference.values[key]!r}"
        if not outcome.succeeded and (outcome.status is not ToolStatus.IN_DOUBT or not _may_be_in_doubt(outcome)):
            yield f"the call {key} of {outcome.name} ended as {outcome.status.value}: {outcome.error_message}"


def _may_be_in_doubt(outcome: ToolExecution) -> bool:
    return outcome.name.endswith("_effect") and outcome.may_have_run


def _unreported(found: Found) -> Iterator[str]:
    """Find doubts that were not told by an event, or not to the model."""
    told, asked = found.place.lines("recovered"), found.place.lines("doubts told to the model")
    for key, outcome in found.outcomes.items():
        if outcome.status is not ToolStatus.IN_DOUBT:
            continue
        if f"in_doubt {key}" not in told:
            yield f"no event told that the call {key} is in doubt"
        if key not in asked and found.final.status.value == "completed":
            yield f"the model was not told that the call {key} is in doubt"


def _changed(found: Found) -> Iterator[str]:
    """Find outcomes that were told as final, and are others now (law 10)."""
    for line in found.place.lines("completed"):
        status, key = line.split(" ", 1)
        outcome = found.outcomes.get(key)
        if outcome is None or outcome.status.value != status:
            now = outcome.status.value if outcome is not None else "not there"
            yield f"the call {key} was told to be {status}, and is {now} (law 10)"


def _wrong_records(found: Found, workload: str, kills: int) -> Iterator[str]:
    """Look for calls with too many intents, outcomes or uses of a decision."""
    for execution_id in found.records:
        suspended = Counter(found.keys(execution_id, RecordKind.CALL_SUSPENDED, "pending"))
        for key, count in Counter(found.keys(execution_id, RecordKind.CALL_INTENT, "intent")).items():
            if count > 1 + kills + suspended[key]:
                yield f"the call {key} has {count} intents"
        for key, count in Counter(found.keys(execution_id, RecordKind.CALL_OUTCOME, "execution")).items():
            if count > 1:
                yield f"the call {key} has {count} outcomes"
        for key, count in Counter(found.keys(execution_id, RecordKind.DECISION_USED)).items():
            if count > 1 and workload != "suspend":  # there, each doubt about a call is decided
                yield f"the decision about {key} was used {count} times (law 16)"


def _wrong_messages(found: Found) -> Iterator[str]:
    """Look for messages that were recorded, and are lost or doubled."""
    kinds = (RecordKind.MESSAGES_SENT, RecordKind.MESSAGES_TAKEN)
    bodies = [body for kind in kinds for body in found.bodies(RUN, kind)]
    texts = {part["text"] for body in bodies for one in body["messages"] for part in one["parts"]}
    conversation = Counter(message.text for message in found.final.messages)
    for text in texts:
        if conversation[text] != 1:
            yield f"the message {text!r} stands {conversation[text]} times in the conversation"
    yield from [f"the message {text!r} was never sent" for text in texts - set(found.place.lines("sent"))]
