"""The state of an execution as the fold of its records, with what is recorded of the incomplete step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from attrs import define, evolve, field, frozen

from agentloop._shielding import compute_in_thread
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable import bodies
from agentloop.durable.chain import verify_records
from agentloop.durable.conversation_texts import KeptText, texts_of
from agentloop.durable.deltas import StepParts, apply_request_delta, apply_state_delta
from agentloop.durable.record_writer import REDACTED
from agentloop.errors import JournalCorrupt, JournalError, UnknownExecution
from agentloop.values.decisions import Decision
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.records import JournalRecord, RecordedCall, RecordedInference, RecordKind, outer_key
from agentloop.values.reprs import format_count
from agentloop.values.serialization import from_plain, upgrade_extensions
from agentloop.values.state import AgentState


@frozen(eq=False)
class RecordedChange:
    """What one record has added to an execution, for those who show or play its records one by one.

    Attributes:
        body: the body of the record, as plain JSON data.
        before: the state before the record; None for the first one.
        call: the call that the record is about, as it is now; None for a record of another kind.
        messages: the messages that were sent to the execution, or that a step took.
    """

    body: dict[str, Any]
    before: AgentState | None
    call: RecordedCall | None = None
    messages: Sequence[Message] = ()

    @property
    def has_state(self) -> bool:
        """Whether the record changes the state as a whole, as that of a step does."""
        return "delta" in self.body

    def decision(self) -> Decision:
        """Return the decision that a record of its use holds."""
        decision: Decision = from_plain(self.body["decision"], Decision)  # type: ignore[arg-type]  # a union
        return decision

    def inference(self) -> RecordedInference:
        """Return the inference of its record, also one with a masked part."""
        return bodies.read_inference(self.body)


@define(eq=False)
class FoldedExecution:
    """An execution as its records describe it, up to the last record that was applied.

    Attributes:
        state: the state after the last record that changed it.
        origin: the body of the first record without the state: how the loop was composed, and the source and policy of a fork.
        request: the newest request.
        rendering: how the model receives the newest request; None when it receives requests unchanged.
        inferences: the inferences of the incomplete step, in order; None for one with a masked part.
        calls: the calls that started and that no step has settled, by key.
        taken_messages: the messages that the incomplete step took.
        waiting_messages: the messages that were sent and that no step took.
        commands: the ids of the commands that brought messages.
        inference_count: the number of requests that were sent to models, with failed and repeated ones.
        other_inference_count: how many of these were sent to models other than the driver's own.
        redacted: whether a secret was masked in any record.
        parts: what the records of the incomplete step hold, to which that of the step refers.
        kept: messages with which the conversation may begin; the first record is not read as far as it holds these.
    """

    state: AgentState | None = None
    origin: dict[str, Any] = field(factory=dict)
    request: InferenceRequest | None = None
    rendering: dict[str, Any] | None = None
    inferences: list[RecordedInference | None] = field(factory=list)
    calls: dict[str, RecordedCall] = field(factory=dict)
    taken_messages: list[Message] = field(factory=list)
    waiting_messages: list[Message] = field(factory=list)
    commands: set[str] = field(factory=set)
    inference_count: int = 0
    other_inference_count: int = 0
    redacted: bool = False
    parts: StepParts = field(factory=StepParts)
    kept: KeptText = field(factory=KeptText)

    @property
    def step_number(self) -> int:
        """The number of the step that is in progress, or comes next."""
        return 1 if self.state is None else self.state.step_count + (self.state.open_turn is None)

    def apply(self, record: JournalRecord) -> RecordedChange:
        """Apply the next record, and return what it has added.

        Raises:
            JournalCorrupt: the record cannot be read.
        """
        try:
            added = self.kept.without(record.body) if record.kind is RecordKind.EXECUTION_STARTED else None
            body = parse_json(record.body if added is None else added)
            if added is None:
                self.kept = KeptText()
            return self._apply(record.kind, upgrade_extensions(body) if record.schema_version == 1 else body)
        except (KeyError, TypeError, ValueError, IndexError, AssertionError) as error:
            raise JournalCorrupt(
                f"record {record.sequence} of execution {record.execution_id} cannot be read: {error}",
                execution_id=record.execution_id,
                sequence=record.sequence,
            ) from error

    def _apply(self, kind: RecordKind, body: dict[str, Any]) -> RecordedChange:
        self.redacted = self.redacted or REDACTED in body
        before, messages = self.state, list[Message]()
        call: RecordedCall | None = None
        match kind:
            case RecordKind.EXECUTION_STARTED:
                self.state = apply_state_delta(None, body["state"], beginning=self.kept.messages)
                self.inference_count = self.state.inference_count
                self.other_inference_count = self.state.other_inference_count
                self.origin = {name: value for name, value in body.items() if name != "state"}
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                self._apply_inference(body)
            case (
                RecordKind.CALL_INTENT | RecordKind.CALL_ATTACHED | RecordKind.CALL_OUTCOME | RecordKind.CALL_SUSPENDED
            ):
                call = self._read_call(kind, body)
                self.calls[call.intent.key] = call
                if call.execution is not None and not call.redacted:
                    self.parts.executions[call.intent.key] = call.execution
            case RecordKind.MESSAGES_SENT:
                messages = [from_plain(data, Message) for data in body["messages"]]
                self.waiting_messages += messages
                self.commands |= {body["command"]} if "command" in body else set()
            case RecordKind.MESSAGES_TAKEN:
                messages = [from_plain(data, Message) for data in body["messages"]]
                self._take_messages(messages)
            case RecordKind.EXECUTION_RECOVERED if self.state is not None:
                self.state = add_downtime(self.state, body.get("downtime", 0.0))
            case _ if "delta" in body:
                self.state = apply_state_delta(self.state, body["delta"], self.parts)
                self.settle(self.state)
            case _:
                pass  # DECISION_USED changes no state
        return RecordedChange(body, before, call, messages)

    def _read_call(self, kind: RecordKind, body: dict[str, Any]) -> RecordedCall:
        """Return a call as it is after a record about it."""
        match kind:
            case RecordKind.CALL_INTENT:
                return bodies.read_intent(body)
            case RecordKind.CALL_ATTACHED:
                return bodies.read_attachments(body, self.calls[body["key"]])
            case RecordKind.CALL_SUSPENDED:
                return bodies.read_suspension(body, self.calls[body["pending"]["key"]])
            case _:
                return bodies.read_outcome(body, self.calls.get(body["execution"]["key"]))

    def _apply_inference(self, body: dict[str, Any]) -> None:
        conversation = () if self.state is None else self.state.messages
        self.request = apply_request_delta(self.request, body["request"], conversation)
        self.rendering = body["request"].get("offered", self.rendering)
        self.inference_count += body.get("requests", 1)
        self.other_inference_count += body.get("requests", 1) if body.get("is_other") else 0
        # An inference that was repeated after an interruption replaces the earlier one and all that followed it.
        del self.inferences[body["index"] :]
        inference = None if REDACTED in body else bodies.read_inference(body)
        self.inferences.append(inference)
        self.parts.add_response(body["index"], None if inference is None else inference.response)

    def _take_messages(self, messages: list[Message]) -> None:
        self.taken_messages += messages
        # Compared by value: the record of taken messages does not refer to those of sent ones.
        for message in messages:
            if message in self.waiting_messages:
                self.waiting_messages.remove(message)

    def settle(self, state: AgentState) -> None:
        """Forget what is recorded of a step that is part of this state now; calls that the step did not settle remain."""
        self.inferences, self.taken_messages = [], []
        self.parts.clear()
        if self.calls and (step := state.last_step) is not None:
            settled = {execution.key for execution in step.executions} | {call.key for call in step.pending}
            self.calls = {key: call for key, call in self.calls.items() if not {key, outer_key(key)} & settled}


def fold_records(records: Iterable[JournalRecord], execution_id: str) -> FoldedExecution:
    """Return an execution as its records describe it.

    Args:
        records: all records of the execution, or those up to some moment.
        execution_id: the execution, for the error.

    Raises:
        UnknownExecution: there are no records.
        JournalCorrupt: a record cannot be read.
    """
    execution = FoldedExecution()
    for record in records:
        execution.apply(record)
    if execution.state is None:
        raise UnknownExecution(
            f"no execution {execution_id!r} is recorded here; `agentloop runs list` lists the recorded executions"
        )
    return execution


# --- states at a step -------------------------------------------------------------------------------------------------


async def state_at(
    journal: CanJournal, execution_id: str, at_step: int | None = None, *, agent_id: str = ""
) -> AgentState:
    """Return the state of an execution as it was after a step.

    Args:
        journal: the journal of the execution.
        execution_id: the execution.
        at_step: the number of the step; 0 for the initial state, None for the newest one. For a step whose calls waited for
            decisions, the state after they were settled, if they are.
        agent_id: the agent of the execution, if it is known: messages that this process has recorded for it are not read again.

    Raises:
        UnknownExecution: no execution of this id is recorded.
        JournalError: the execution has no such step.
        JournalCorrupt: its records are damaged.
    """
    records = await journal.read(execution_id)

    kept = texts_of(journal).last(agent_id)

    def fold() -> AgentState:
        return state_from_records(verify_records(records, execution_id), execution_id, at_step, kept)

    return await compute_in_thread(fold) if len(records) > MANY_RECORDS else fold()


MANY_RECORDS = 300
"""The records from which on an execution is read in a thread: each takes about 50 µs."""


def state_from_records(
    records: Sequence[JournalRecord], execution_id: str, at_step: int | None = None, kept: KeptText | None = None
) -> AgentState:
    """Return the state after a step, from the records of an execution; see `state_at`.

    Args:
        records: the records.
        execution_id: the execution, for the error.
        at_step: the number of the step.
        kept: messages with which the conversation may begin.

    Raises:
        UnknownExecution: there are no records.
        JournalError: the execution has no such step.
        JournalCorrupt: a record cannot be read.
    """
    execution, match, step_count = FoldedExecution(kept=kept or KeptText()), None, 0
    for record in records:
        execution.apply(record)
        state = execution.state
        assert state is not None  # noqa: S101  # the first record holds a state
        step_count = max(step_count, state.step_count)
        if at_step is None or _is_state_after(at_step, record, state, is_first=match is None):
            match = state
    if not records:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded here")
    if match is None:
        raise JournalError(
            f"execution {execution_id!r} has no step {at_step}: {format_count(step_count, 'step')} {'is' if step_count == 1 else 'are'} complete"
        )
    return match


def _is_state_after(at_step: int, record: JournalRecord, state: AgentState, *, is_first: bool) -> bool:
    """Return whether a record completes the state after a step.

    Args:
        at_step: the number of the step.
        record: the record.
        state: the state after the record.
        is_first: whether no earlier record matches.
    """
    match record.kind:
        case RecordKind.EXECUTION_STARTED:  # a fork starts with the steps of its source
            return at_step in {0, state.step_count}
        case RecordKind.STEP_COMPLETED:
            return state.step_count == at_step
        case RecordKind.EXECUTION_ENDED:  # an execution that ended within the step has no record of its completion
            return is_first and state.step_count == at_step
        case _:
            return False


# --- time between processes -------------------------------------------------------------------------------------------


def downtime(last: datetime, now: datetime) -> float:
    """Return the seconds between the last record and now; 0 when the clock went backward."""
    return max((now - last).total_seconds(), 0.0)


def add_downtime(state: AgentState, seconds: float) -> AgentState:
    """Return the state with more waiting time, which counts against no limit."""
    execution = state.execution
    if execution is None or not seconds:
        return state
    return evolve(state, execution=evolve(execution, waited_seconds=execution.waited_seconds + seconds))
