"""What a journal holds of every call of an execution: how often it began, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field, frozen

from agentloop.journal.fold import RecordedExecution
from agentloop.values.agent_state import AgentState
from agentloop.values.journal_record import JournalRecord, RecordKind
from agentloop.values.json_text import parse_json
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExecution
from agentloop.values.tool_spec import Effect


@frozen(kw_only=True)
class CallAccount:
    """One call.

    Attributes:
        key: its idempotency key.
        call: the call.
        effect: what it does to the world, as its tool said; None for a call that never began.
        begun: how often it was written down that it begins.
        execution: its outcome; None when there is none.
        pending: how it waits; None when it does not.
    """

    key: str
    call: ToolCall
    effect: Effect | None = None
    begun: int = 0
    execution: ToolExecution | None = None
    pending: PendingCall | None = None

    @property
    def told(self) -> str:
        """What the journal says of its end, in a word or two."""
        if self.execution is not None:
            doubt = (
                ", may have run" if self.execution.may_have_run and self.execution.status.value != "in_doubt" else ""
            )
            return self.execution.status.value.replace("_", " ") + doubt
        return "waits" if self.pending is not None else "no outcome"


@define(eq=False)
class _Begun:
    effects: dict[str, Effect] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)
    calls: dict[str, ToolCall] = field(factory=dict)


def calls_in(records: Iterable[JournalRecord]) -> Sequence[CallAccount]:
    """Return the calls of an execution in the order of their steps.

    Raises:
        JournalCorrupt: when a record cannot be read.
    """
    known, begun = RecordedExecution(), _Begun()
    for record in records:
        known.feed(record)
        if record.kind is RecordKind.CALL_INTENT:
            key = parse_json(record.body)["intent"]["key"]
            intent = known.calls[key].intent
            begun.effects[key], begun.calls[key] = intent.effect, intent.call
            begun.counts[key] = begun.counts.get(key, 0) + 1
    settled = {key: call.execution for key, call in known.calls.items() if call.execution is not None}
    waiting: dict[str, PendingCall] = {}
    if known.state is not None:
        settled = {**_settled(known.state), **settled}
        waiting = {call.key: call for step in known.state.steps for call in step.pending if call.key not in settled}
    accounts = []
    for key in dict.fromkeys([*settled, *waiting, *begun.calls]):
        execution, pending = settled.get(key), waiting.get(key)
        call = execution.call if execution is not None else pending.call if pending is not None else begun.calls[key]
        accounts.append(
            CallAccount(
                key=key,
                call=call,
                effect=begun.effects.get(key),
                begun=begun.counts.get(key, 0),
                execution=execution,
                pending=pending,
            )
        )
    return accounts


def _settled(state: AgentState) -> dict[str, ToolExecution]:
    return {execution.key: execution for step in state.steps for execution in step.executions}
