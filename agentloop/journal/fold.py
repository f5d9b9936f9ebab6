"""The state of an execution as the fold of its records, and what is known of the step that is not complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from attrs import define, evolve, field

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalCorrupt, JournalError, UnknownExecution
from agentloop.journal import bodies
from agentloop.journal.chain import verify_records
from agentloop.journal.deltas import request_with, with_delta
from agentloop.journal.record_writer import REDACTED
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.records import JournalRecord, RecordedCall, RecordedInference, RecordKind
from agentloop.values.serialization import from_plain
from agentloop.values.state import AgentState


def downtime(last: datetime, now: datetime) -> float:
    """Return the seconds from the last record to now; none when a clock went back."""
    return max((now - last).total_seconds(), 0.0)


def with_downtime(state: AgentState, seconds: float) -> AgentState:
    """Return the state with this time noted as waited."""
    execution = state.execution
    if execution is None or not seconds:
        return state
    return evolve(state, execution=evolve(execution, waited_seconds=execution.waited_seconds + seconds))


@define(eq=False)
class FoldedExecution:
    """An execution as its records tell it, up to the last one that was fed.

    Attributes:
        state: the state after the last record that changed it.
        origin: what the first record tells besides the state: of a fork, where it comes from and what becomes of effects.
        request: the newest request.
        rendering: what was told of how the model gets it; None when it gets requests as they are.
        inferences: those of the step that is not complete, in order; None for one that was not written down whole.
        calls: those that have begun and that no step has settled, by key.
        taken: the messages that the step took which is not complete.
        waiting: the messages that were sent and not taken.
        redacted: whether something secret was masked in any record.
    """

    state: AgentState | None = None
    origin: dict[str, Any] = field(factory=dict)
    request: InferenceRequest | None = None
    rendering: dict[str, Any] | None = None
    inferences: list[RecordedInference | None] = field(factory=list)
    calls: dict[str, RecordedCall] = field(factory=dict)
    taken: list[Message] = field(factory=list)
    waiting: list[Message] = field(factory=list)
    redacted: bool = False

    def apply(self, record: JournalRecord) -> None:
        """Take the next record.

        Raises:
            JournalCorrupt: when it cannot be read.
        """
        try:
            self._apply(record.kind, parse_json(record.body))
        except (KeyError, TypeError, ValueError, IndexError, AssertionError) as error:
            raise JournalCorrupt(
                f"record {record.sequence} of execution {record.execution_id} cannot be read: {error}",
                execution_id=record.execution_id,
                sequence=record.sequence,
            ) from error

    def _apply(self, kind: RecordKind, body: dict[str, Any]) -> None:
        self.redacted = self.redacted or REDACTED in body
        match kind:
            case RecordKind.EXECUTION_STARTED:
                self.state = with_delta(None, body.pop("state"))
                self.origin = body
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                self._infer(body)
            case RecordKind.CALL_INTENT:
                begun = bodies.read_intent(body)
                self.calls[begun.intent.key] = begun
            case RecordKind.CALL_OUTCOME:
                key = body["execution"]["key"]
                self.calls[key] = bodies.read_outcome(body, self.calls.get(key))
            case RecordKind.CALL_SUSPENDED:
                key = body["pending"]["key"]
                self.calls[key] = bodies.read_suspension(body, self.calls[key])
            case RecordKind.MESSAGES_SENT:
                self.waiting += [from_plain(data, Message) for data in body["messages"]]
            case RecordKind.MESSAGES_TAKEN:
                self._take([from_plain(data, Message) for data in body["messages"]])
            case RecordKind.EXECUTION_RECOVERED if self.state is not None:
                self.state = with_downtime(self.state, body.get("downtime", 0.0))
            case _ if "delta" in body:
                self._complete(body["delta"])
            case _:
                pass  # that a decision was used changes nothing in the state

    def _infer(self, body: dict[str, Any]) -> None:
        conversation = () if self.state is None else self.state.messages
        self.request = request_with(self.request, body["request"], conversation)
        self.rendering = body["request"].get("offered", self.rendering)
        del self.inferences[body["index"] :]
        self.inferences.append(None if REDACTED in body else bodies.read_inference(body))

    def _take(self, messages: list[Message]) -> None:
        self.taken += messages
        for message in messages:
            if message in self.waiting:
                self.waiting.remove(message)

    def _complete(self, delta: dict[str, Any]) -> None:
        self.state = with_delta(self.state, delta)
        self.settle(self.state)

    def settle(self, state: AgentState) -> None:
        """Take the state that a step has come to: what was known of the step is of no use any more, but calls it has not come to."""
        self.inferences, self.taken = [], []
        if self.calls and (step := state.last_step) is not None:
            settled = {one.key for one in step.executions} | {one.key for one in step.pending}
            self.calls = {key: call for key, call in self.calls.items() if key not in settled}


def fold_records(records: Iterable[JournalRecord], execution_id: str) -> FoldedExecution:
    """Return an execution as its records tell it.

    Args:
        records: all of them, or those up to a moment.
        execution_id: the execution, for the error.

    Raises:
        UnknownExecution: when there is no record.
        JournalCorrupt: when one cannot be read.
    """
    execution = FoldedExecution()
    for record in records:
        execution.apply(record)
    if execution.state is None:
        raise UnknownExecution(
            f"no execution {execution_id!r} is recorded here; `agentloop runs list` shows those that are"
        )
    return execution


async def state_at(journal: CanJournal, execution_id: str, at_step: int | None = None) -> AgentState:
    """Return the state of an execution after a step, as it was then.

    Args:
        journal: where it is recorded.
        execution_id: the execution.
        at_step: the step; 0 for the state that it began with, None for the newest that is recorded. Of a step whose calls
            waited for a decision, the state after they were settled, if they are.

    Raises:
        UnknownExecution: when no execution of this id is recorded.
        JournalError: when it has no such step.
        JournalCorrupt: when its records are not as they were written.
    """
    records = verify_records(await journal.read(execution_id), execution_id)
    return state_in(records, execution_id, at_step)


def state_in(records: Sequence[JournalRecord], execution_id: str, at_step: int | None = None) -> AgentState:
    """Return the state after a step, of the records of an execution.

    Raises:
        UnknownExecution: when there are none.
        JournalError: when there is no such step.
        JournalCorrupt: when one cannot be read.
    """
    execution, found, steps = FoldedExecution(), None, 0
    for record in records:
        execution.apply(record)
        state = execution.state
        assert state is not None  # noqa: S101  # the first record tells one
        steps = max(steps, state.step_count)
        begins = record.kind is RecordKind.EXECUTION_STARTED and at_step == 0
        ends = record.kind is RecordKind.STEP_COMPLETED and state.step_count == at_step
        inherited = record.kind is RecordKind.EXECUTION_STARTED and state.step_count == at_step
        if begins or ends or inherited or at_step is None or _ended_in(record, state, at_step, found):
            found = state
    if not records:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded here")
    if found is None:
        raise JournalError(f"execution {execution_id!r} has no step {at_step}: {steps} are complete")
    return found


def _ended_in(record: JournalRecord, state: AgentState, at_step: int | None, found: AgentState | None) -> bool:
    """Say whether an execution ended in the middle of this step, so that no other record tells the state after it."""
    return found is None and record.kind is RecordKind.EXECUTION_ENDED and state.step_count == at_step
