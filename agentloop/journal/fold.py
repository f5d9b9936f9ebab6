"""The state of an execution as the fold of its records, and what is known of the step that is not complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from agentloop.errors import JournalCorrupt, UnknownExecution
from agentloop.journal import bodies
from agentloop.journal.downtime import with_downtime
from agentloop.journal.record_writer import REDACTED
from agentloop.journal.request_delta import request_with
from agentloop.journal.state_delta import with_delta
from agentloop.values.agent_state import AgentState
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.journal_record import JournalRecord, RecordKind
from agentloop.values.json_text import parse_json
from agentloop.values.message import Message
from agentloop.values.recorded import RecordedCall, RecordedInference
from agentloop.values.serialisation import from_plain


@define(eq=False)
class RecordedExecution:
    """An execution as its records tell it, up to the last one that was fed.

    Attributes:
        state: the state after the last record that changed it.
        origin: what the first record tells besides the state: of a fork, where it comes from and what becomes of effects.
        request: the newest request.
        offered: what was told of how the model gets it; None when it gets requests as they are.
        inferences: those of the step that is not complete, in order; None for one that was not written down whole.
        calls: those that have begun and that no step has settled, by key.
        taken: the messages that the step took which is not complete.
        waiting: the messages that were sent and not taken.
        redacted: whether something secret was masked in any record.
    """

    state: AgentState | None = None
    origin: dict[str, Any] = field(factory=dict)
    request: InferenceRequest | None = None
    offered: dict[str, Any] | None = None
    inferences: list[RecordedInference | None] = field(factory=list)
    calls: dict[str, RecordedCall] = field(factory=dict)
    taken: list[Message] = field(factory=list)
    waiting: list[Message] = field(factory=list)
    redacted: bool = False

    def feed(self, record: JournalRecord) -> None:
        """Take the next record.

        Raises:
            JournalCorrupt: when it cannot be read.
        """
        try:
            self._feed(record.kind, parse_json(record.body))
        except (KeyError, TypeError, ValueError, IndexError, AssertionError) as error:
            raise JournalCorrupt(
                f"record {record.sequence} of execution {record.execution_id} cannot be read: {error}",
                execution_id=record.execution_id,
                sequence=record.sequence,
            ) from error

    def _feed(self, kind: RecordKind, body: dict[str, Any]) -> None:
        self.redacted = self.redacted or REDACTED in body
        match kind:
            case RecordKind.EXECUTION_STARTED:
                self.state = with_delta(None, body.pop("state"))
                self.origin = body
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                self._infer(body)
            case RecordKind.CALL_INTENT:
                begun = bodies.call_begun(body)
                self.calls[begun.intent.key] = begun
            case RecordKind.CALL_OUTCOME:
                key = body["execution"]["key"]
                self.calls[key] = bodies.call_ended(body, self.calls.get(key))
            case RecordKind.CALL_SUSPENDED:
                key = body["pending"]["key"]
                self.calls[key] = bodies.call_suspended(body, self.calls[key])
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
        self.offered = body["request"].get("offered", self.offered)
        del self.inferences[body["index"] :]
        self.inferences.append(None if REDACTED in body else bodies.inference_of(body))

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


def folded(records: Iterable[JournalRecord], execution_id: str) -> RecordedExecution:
    """Return an execution as its records tell it.

    Args:
        records: all of them, or those up to a moment.
        execution_id: the execution, for the error.

    Raises:
        UnknownExecution: when there is no record.
        JournalCorrupt: when one cannot be read.
    """
    execution = RecordedExecution()
    for record in records:
        execution.feed(record)
    if execution.state is None:
        raise UnknownExecution(
            f"no execution {execution_id!r} is recorded here; `agentloop runs list` shows those that are"
        )
    return execution
