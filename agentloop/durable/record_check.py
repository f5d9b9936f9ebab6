"""Checks the records of a journal against the model of `record_rules`: `agentloop runs verify --model`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.chain import JournalFinding
from agentloop.durable.fold import FoldedExecution
from agentloop.durable.record_rules import ExecutionModel, Move, Stage, WaitingCall, advance
from agentloop.errors import JournalCorrupt
from agentloop.values.decisions import Approve, Edit, PendingCall
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind, call_of, caller_of
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolExecution


async def check_journal(journal: CanJournal, execution_id: str | None = None) -> Sequence[JournalFinding]:
    """Check what the records of a journal say against a model of what they may say; empty when nothing is wrong.

    Where `verify` proves that records are as they were written, this one looks for a process that wrote what it must
    not have written: a call that starts twice, an outcome that no step tells of, a decision that is used twice, a
    message that is taken twice, an agent without its caller.

    Args:
        journal: the journal; executions that are driven meanwhile may grow between two reads.
        execution_id: check only this execution, and not how it fits to others.

    Raises:
        JournalError: the journal cannot be read.
    """
    return [finding async for finding in check_each(journal, execution_id)]


async def check_each(journal: CanJournal, execution_id: str | None = None) -> AsyncIterator[JournalFinding]:
    """Check one execution after the other, and yield each finding as soon as it is known; see `check_journal`."""
    if execution_id is not None:
        head = await journal.head(execution_id)
        heads = [] if head is None else [head]
    else:
        heads = list(await journal.list())
    histories = dict[str, RecordHistory]()
    for head in heads:
        # The head is read again: a running execution has grown since the list was read.
        newest, records = await journal.head(head.execution_id), await journal.read(head.execution_id)
        if newest is None:
            continue  # deleted meanwhile
        history = histories[head.execution_id] = RecordHistory(newest)
        for finding in history.check(records[: newest.record_count]):
            yield finding
    if execution_id is None:
        for finding in check_trees(histories):
            yield finding


@define
class RecordHistory:
    """The records of one execution in the words of the model.

    Attributes:
        head: its head.
        model: the state after the records so far.
        starts: how many intents each call has, by key.
        permissions: how many of them a decision has permitted, by key.
        effects: the declared effect of each call that has started, by key.
        names: the name of the tool of each of these calls, by key.
        decided: the keys of the calls about which a decision was used.
        sources: the keys of the calls of a source that this fork has reused.
        found: what was found in it, for those who keep it here.
    """

    head: ExecutionHead
    model: ExecutionModel = field(factory=ExecutionModel)
    starts: Counter[str] = field(factory=Counter)
    permissions: Counter[str] = field(factory=Counter)
    effects: dict[str, str] = field(factory=dict)
    names: dict[str, str] = field(factory=dict)
    decided: set[str] = field(factory=set)
    sources: list[str] = field(factory=list)
    found: list[str] = field(factory=list)
    _fold: FoldedExecution = field(factory=FoldedExecution)

    @property
    def state(self) -> AgentState | None:
        """The newest state; None without records."""
        return self._fold.state

    def check(self, records: Sequence[JournalRecord]) -> Iterator[JournalFinding]:
        """Yield what is wrong with the records of the execution, from its first one, and with its head."""
        for record in records:
            for problem in self.apply(record):
                yield self._finding(record.sequence, f"record {record.sequence}: {problem}")
        if records and _STATUSES.get(self.head.status) is not self.model.stage:
            status, stage = self.head.status.value, self.model.stage.value
            yield self._finding(0, f"its head says {status}, and its records say {stage}")

    def apply(self, record: JournalRecord) -> Sequence[str]:
        """Apply the next record; return the rules that it breaks."""
        try:
            move = self._read(record)
        except (JournalCorrupt, KeyError, TypeError, ValueError) as error:
            return [f"it cannot be read: {error}"]
        if move.kind is RecordKind.CALL_INTENT:
            waiting = self.model.waiting_call(move.key)
            self.starts[move.key] += 1
            self.permissions[move.key] += waiting is not None and waiting.permitted
            self.effects[move.key], self.names[move.key] = move.effect, move.name
        self.model, problems = advance(self.model, move)
        return problems

    def _finding(self, sequence: int, problem: str) -> JournalFinding:
        return JournalFinding(self.head.execution_id, sequence, problem)

    def _read(self, record: JournalRecord) -> Move:  # noqa: PLR0911  # one for each kind of record
        body, kind = parse_json(record.body), record.kind
        self._fold.apply(record)
        match kind:
            case RecordKind.CALL_INTENT:
                intent = body["intent"]
                return Move(kind=kind, key=intent["key"], name=intent["call"]["name"], effect=intent["effect"])
            case RecordKind.CALL_OUTCOME:
                self.sources += [body["source"]] if body.get("source") else []
                return Move(kind=kind, key=body["execution"]["key"], answered="answered" in body)
            case RecordKind.CALL_SUSPENDED:
                return Move(kind=kind, key=body["pending"]["key"])
            case RecordKind.CALL_ATTACHED:
                return Move(kind=kind, key=body["key"])
            case RecordKind.DECISION_USED:
                self.decided.add(body["key"])
                permits = body["decision"]["type"] in _PERMITTING
                return Move(kind=kind, key=body["key"], digest=body["digest"], permits=permits)
            case RecordKind.MESSAGES_SENT | RecordKind.MESSAGES_TAKEN:
                messages = tuple([format_json(message).decode() for message in body["messages"]])
                return Move(kind=kind, messages=messages, command=body.get("command", ""))
        return self._read_state(kind, self._fold.state)

    def _read_state(self, kind: RecordKind, state: AgentState | None) -> Move:
        assert state is not None  # noqa: S101  # the first record holds a state
        settled = [execution for step in state.steps[-2:] for execution in step.executions]
        inside = [key for call in state.pending for key in _settled_inside(call)]
        return Move(
            kind=kind,
            step=state.step_count,
            settled=frozenset([*_keys_of(settled), *inside]),
            waiting=tuple(map(_waiting, state.pending)),
            is_complete=kind is RecordKind.EXECUTION_ENDED and state.status is ExecutionStatus.COMPLETED,
        )


_PERMITTING = frozenset({"approve", "edit"})
_STATUSES: Mapping[ExecutionStatus, Stage] = {
    ExecutionStatus.IN_PROGRESS: Stage.RUNNING,
    ExecutionStatus.SUSPENDED: Stage.SUSPENDED,
    **{status: Stage.ENDED for status in ExecutionStatus if status.is_terminal},
}


def _waiting(call: PendingCall) -> WaitingCall:
    decision = call.decision
    permitted = isinstance(decision, (Approve, Edit))
    inner = tuple(map(_waiting, call.inner))
    return WaitingCall(call.key, call.digest, call.waits_for, inner, decision is not None, permitted)


def _keys_of(executions: Sequence[ToolExecution]) -> Iterator[str]:
    for execution in executions:
        yield execution.key
        yield from _keys_of(execution.inner)


def _settled_inside(call: PendingCall) -> Iterator[str]:
    for exchange in call.settled:
        yield exchange.execution.key
    for inner in call.inner:
        yield from _settled_inside(inner)


# --- how executions fit together --------------------------------------------------------------------------------------


def check_trees(histories: Mapping[str, RecordHistory]) -> Iterator[JournalFinding]:
    """Yield what is wrong between executions: agents without the call that started them, and outcomes that two calls reuse.

    Args:
        histories: all executions of a journal, by id.
    """
    for execution_id, history in histories.items():
        caller, served = caller_of(execution_id), call_of(execution_id)
        # Agents of a fork are recorded before it, and wait for it.
        if not caller or served is None or history.head.forked_from:
            continue
        if caller not in histories:
            yield JournalFinding(execution_id, 0, f"it serves a call of {caller}, which is not recorded")
        elif not histories[caller].starts[served[0]]:
            yield JournalFinding(execution_id, 0, f"it serves the call {served[0]}, which has not started")
    reused = dict[tuple[str, str], str]()
    for execution_id, history in histories.items():
        root = _root_of_fork(execution_id, histories)
        for source in history.sources:
            if reused.setdefault((root, source), execution_id) != execution_id or history.sources.count(source) > 1:
                yield JournalFinding(execution_id, 0, f"the outcome of {source} is reused twice")


def _root_of_fork(execution_id: str, histories: Mapping[str, Any]) -> str:
    caller = caller_of(execution_id)
    return _root_of_fork(caller, histories) if caller in histories else execution_id
