"""Reads executions from a journal as traces, and continues where it has stopped while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import define, field

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.deltas import kept_messages
from agentloop.durable.fold import FoldedExecution, RecordedChange
from agentloop.durable.trees import INTERRUPTED, effective_status, list_below
from agentloop.errors import ConfigurationError, JournalCorrupt, UnknownExecution
from agentloop.policies.budgets.prices import Prices, published_prices
from agentloop.service.trace.document import (
    TRACE_VERSION,
    Range,
    Trace,
    TraceCall,
    TraceChange,
    TraceConversationChange,
    TraceExecution,
    TraceInference,
    TraceMark,
    TraceMessage,
    TraceRendering,
    TraceRequestSettings,
    TraceStep,
)
from agentloop.service.trace.entries import (
    attempt_entry,
    cut_ranges,
    decision_entry,
    error_entry,
    exact,
    extend_ranges,
    milliseconds,
    outcome_entry,
    part_entries,
    pending_entry,
    settings_entry,
    stop_entry,
    usage_entry,
)
from agentloop.values.accounts import COST_UNITS_PER_DOLLAR
from agentloop.values.batches import parse_key
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import Usage
from agentloop.values.json import format_json
from agentloop.values.messages import Message
from agentloop.values.provenance import PROVENANCE, InterceptorWrite, count_writes, read_writes
from agentloop.values.records import (
    ExecutionHead,
    JournalRecord,
    RecordedCall,
    RecordedInference,
    RecordKind,
    call_of,
    caller_of,
    outer_key,
)
from agentloop.values.run_requests import principal_of
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE, AgentStep, ExecutionStatus
from agentloop.values.tool_calls import ToolCall, ToolExecution

_SLICE = 50
"""The records after which a reader lets other tasks run."""
_MAX_DIGITS = 18
"""Those of the number of a record; Python reads no number with thousands of them."""

Entry = TypeVar(
    "Entry",
    TraceStep,
    TraceInference,
    TraceCall,
    TraceMessage,
    TraceConversationChange,
    TraceRequestSettings,
    TraceRendering,
    TraceMark,
    TraceChange,
)


def _newer(entries: Iterable[Entry], after: int) -> list[Entry]:
    return [entry for entry in entries if entry["sequence"] > after]


# --- messages -----------------------------------------------------------------------------------------------------------


@define(eq=False)
class _MessageTable:
    """The messages of an execution, each once; the newest request is ranges of positions in it."""

    entries: list[TraceMessage] = field(factory=list)
    request: list[Range] = field(factory=list)
    _indexes: dict[int, int] = field(factory=dict)
    _messages: list[Message] = field(factory=list)  # keeps the ids in `_indexes` in use
    _unplaced: dict[int, Message] = field(factory=dict)

    def index_of(self, message: Message, sequence: int, calls: Mapping[str, object]) -> int:
        """Return the index of a message, which is added if it is new."""
        index = self._indexes.get(id(message))
        if index is None:
            # A message that a step takes comes with its request first, and then as an equal one with the conversation.
            index = next((index for index, other in self._unplaced.items() if other == message), None)
            if index is None:
                index = len(self.entries)
                parts = part_entries(message.parts, calls)
                self.entries.append({"index": index, "sequence": sequence, "role": message.role, "parts": parts})
            self._indexes[id(message)] = index
            self._messages.append(message)
        return index

    def add_request(
        self, kept: int | None, messages: Sequence[Message], sequence: int, calls: Mapping[str, object]
    ) -> list[Range]:
        """Return the messages of a request, which begin with some of those of the request before it."""
        if kept is not None:
            known, indexes = len(self.entries), []
            for message in messages[kept:]:
                indexes.append(self.index_of(message, sequence, calls))
                if indexes[-1] >= known:
                    self._unplaced[indexes[-1]] = message
            self.request = extend_ranges(cut_ranges(self.request, kept), indexes)
        return self.request

    def change_conversation(
        self, kept: int, messages: Sequence[Message], sequence: int, calls: Mapping[str, object]
    ) -> list[Range]:
        """Continue the conversation after its first messages, and return what follows them."""
        added = [self.index_of(message, sequence, calls) for message in messages[kept:]]
        self._unplaced.clear()
        return extend_ranges((), added)


# --- calls --------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _CallTable:
    """The calls of an execution, by key, and what the tools returned before interceptors saw it."""

    entries: dict[str, TraceCall] = field(factory=dict)
    _outcomes: dict[str, ToolExecution] = field(factory=dict)

    def entry(self, key: str, call: ToolCall, sequence: int) -> TraceCall:
        """Return the entry of a call, which is added if it is new, for a change by this record."""
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = _new_call(key, call)
        entry["sequence"] = sequence
        entry["id"], entry["name"], entry["arguments"] = call.id, call.name, call.arguments_json
        return entry

    def record(self, execution: ToolExecution, sequence: int) -> TraceCall:
        """Add an outcome as a tool returned it, and return the entry of the call."""
        self._outcomes[execution.key] = execution
        return self._fill(execution, sequence)

    def settle(self, execution: ToolExecution, sequence: int) -> TraceCall:
        """Add an outcome as it is in the conversation, and return the entry of the call."""
        recorded = self._outcomes.pop(execution.key, execution)
        entry = self._fill(execution, sequence)
        if recorded is not execution and outcome_entry(recorded) != outcome_entry(execution):
            entry["original"] = outcome_entry(recorded)
        for inner in execution.inner:
            self.settle(inner, sequence)
        return entry

    def wait(self, pending: PendingCall, sequence: int) -> TraceCall:
        """Make a call wait, and return its entry."""
        entry = self.entry(pending.key, pending.call, sequence)
        entry["status"], entry["pending"] = "waiting", pending_entry(pending)
        for exchange in pending.settled:
            self.settle(exchange.execution, sequence)
        return entry

    def _fill(self, execution: ToolExecution, sequence: int) -> TraceCall:
        entry = self.entry(execution.key, execution.call, sequence)
        entry["status"], entry["pending"] = execution.status.value, None
        entry["started_at"], entry["ended_at"] = milliseconds(execution.started_at), milliseconds(execution.ended_at)
        entry["value"], entry["error"] = exact(execution.value), error_entry(execution.error)
        entry["content"] = None if execution.content is None else part_entries(execution.content)
        entry["may_have_run"] = execution.may_have_run
        return entry


def _new_call(key: str, call: ToolCall) -> TraceCall:
    place, parent = parse_key(key), outer_key(key)
    step, index = place or (0, 0)
    return {
        "key": key,
        "sequence": 0,
        "step": step,
        "index": int(key.rpartition("/")[2]) if parent else index,
        "parent": parent or None,
        "id": call.id,
        "name": call.name,
        "arguments": call.arguments_json,
        "requested": None,
        "effect": None,
        "status": "running",
        "starts": [],
        "started_at": None,
        "ended_at": None,
        "value": None,
        "content": None,
        "error": None,
        "may_have_run": False,
        "original": None,
        "answered": "",
        "source": "",
        "traceback": "",
        "stop": None,
        "pending": None,
        "decisions": [],
        "is_masked": False,
    }


# --- one execution ------------------------------------------------------------------------------------------------------


class _ExecutionTrace:
    """The trace of one execution, built from its records in order."""

    def __init__(self, prices: Prices | None, started_at: float) -> None:
        self.sequence: int = 0
        self.started_at = started_at
        self._prices = prices
        self._folded = FoldedExecution()
        self._at = self._previous_at = 0.0
        self._messages = _MessageTable()
        self._calls = _CallTable()
        self._steps: list[TraceStep] = []
        self._inferences: list[TraceInference] = []
        self._settings: list[TraceRequestSettings] = []
        self._renderings: list[TraceRendering] = []
        self._rendering: int | None = None
        self._conversation: list[TraceConversationChange] = []
        self._marks: list[TraceMark] = []
        self._changes: list[TraceChange] = []
        self._step_inferences: list[TraceInference] = []
        self._requested: Sequence[ToolCall] = ()
        self._cost: float | None = None
        self._write_count = 0

    @property
    def status(self) -> ExecutionStatus:
        """The status after the last record."""
        return self._state.status

    @property
    def _state(self) -> AgentState:
        state = self._folded.state
        assert state is not None  # noqa: S101  # the first record holds a state
        return state

    def apply(self, record: JournalRecord) -> None:
        """Add the next record.

        Raises:
            JournalCorrupt: the record cannot be read.
        """
        number = self._folded.step_number
        change = self._folded.apply(record)
        self.sequence, self._at = record.sequence, milliseconds(record.at)
        if record.kind is RecordKind.EXECUTION_STARTED:
            self._advance(None, self._folded.step_number, change.body["state"])
        elif change.has_state:
            self._advance(change.before, number, change.body["delta"])
        self._add(record.kind, change)
        # A message comes at any time, and nothing begins with it.
        if record.kind is not RecordKind.MESSAGES_SENT:
            self._previous_at = self._at

    def _add(self, kind: RecordKind, change: RecordedChange) -> None:
        match kind:
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                self._add_inference(change.body)
            case RecordKind.CALL_INTENT if change.call is not None:
                self._start_call(change.call)
            case RecordKind.CALL_OUTCOME if change.call is not None:
                self._end_call(change.call, change.body)
            case RecordKind.CALL_SUSPENDED if change.call is not None and change.call.pending is not None:
                self._calls.wait(change.call.pending, self.sequence)
            case RecordKind.DECISION_USED:
                self._use_decision(change)
            case _:
                self._mark(kind, change)

    # --- inferences -------------------------------------------------------------------------------------------------

    def _add_inference(self, body: dict[str, Any]) -> None:
        recorded, request, delta = self._folded.inferences[-1], self._folded.request, body["request"]
        assert request is not None  # noqa: S101  # the record holds one
        self._open_step()
        for former in self._step_inferences[body["index"] :]:
            former["is_superseded"], former["sequence"] = True, self.sequence
        if "request" in delta or not self._settings:
            self._settings.append(settings_entry(request, len(self._settings), self.sequence))
        if "offered" in delta:
            self._add_rendering(delta["offered"])
        messages = self._messages.add_request(
            kept_messages(delta), request.messages, self.sequence, self._calls.entries
        )
        entry = self._inference_entry(recorded, messages, request.options.model or "")
        self._inferences.append(entry)
        self._step_inferences[body["index"] :] = [entry]
        if recorded is not None and recorded.response is not None and not recorded.purpose:
            self._requested = recorded.response.tool_calls

    def _add_rendering(self, request: Any) -> None:
        self._rendering = None if request is None else len(self._renderings)
        if request is not None:
            index = len(self._renderings)
            self._renderings.append({"index": index, "sequence": self.sequence, "request": request})

    def _inference_entry(
        self, recorded: RecordedInference | None, messages: list[Range], requested_model: str
    ) -> TraceInference:
        inference = recorded or RecordedInference()
        response = inference.response
        model = (response.model if response is not None else "") or requested_model
        return {
            "index": len(self._inferences),
            "sequence": self.sequence,
            "step": self._folded.step_number,
            "purpose": inference.purpose,
            "started_at": self._previous_at if inference.started_at is None else milliseconds(inference.started_at),
            "ended_at": self._at,
            "requests": inference.requests,
            "attempts": [attempt_entry(attempt) for attempt in inference.failed_attempts],
            "usage": usage_entry(inference.usage),
            "cost": self._charge(model, inference.usage),
            "model": model,
            "finish_reason": None if response is None else response.finish_reason.value,
            "response_id": "" if response is None else response.id,
            "settings": len(self._settings) - 1,
            "rendering": self._rendering,
            "messages": messages,
            "response": None if response is None else part_entries(response.parts),
            "problem": "" if response is None else response.problem,
            "error": error_entry(inference.error),
            "stop": stop_entry(inference.stop),
            "is_superseded": False,
            "is_masked": recorded is None,
        }

    def _charge(self, model: str, usage: Usage) -> float | None:
        price = self._prices.price(model, usage.input_tokens or 0) if self._prices is not None and model else None
        units = None if price is None else price.cost(usage)
        if units is None:
            return None
        dollars = units / COST_UNITS_PER_DOLLAR
        self._cost = (self._cost or 0.0) + dollars
        return dollars

    # --- calls ------------------------------------------------------------------------------------------------------

    def _start_call(self, call: RecordedCall) -> None:
        self._open_step()
        entry = self._calls.entry(call.intent.key, call.intent.call, self.sequence)
        entry["status"], entry["effect"], entry["is_masked"] = "running", call.intent.effect.value, call.redacted
        entry["starts"].append(self._at)
        entry["started_at"], entry["pending"] = entry["starts"][0], None
        if call.intent.grant and len(entry["starts"]) == 1:
            entry["decisions"].append({"at": self._at, "kind": "grant", "principal": "", "detail": call.intent.grant})
        made = call.intent.requested if entry["parent"] else self._requested_call(entry["index"])
        self._note_request(entry, made)

    def _requested_call(self, index: int) -> ToolCall | None:
        return self._requested[index] if index < len(self._requested) else None

    def _note_request(self, entry: TraceCall, made: ToolCall | None) -> None:
        """Note the arguments as the model made them, if they are others than those of the call."""
        if made is None or made.name != entry["name"] or entry["requested"] is not None:
            return
        if made.arguments_json != entry["arguments"]:
            entry["requested"] = made.arguments_json
            self._note_change(
                "arguments", made.arguments_json, entry["arguments"], key=entry["key"], step=entry["step"]
            )

    def _end_call(self, call: RecordedCall, body: dict[str, Any]) -> None:
        self._open_step()
        assert call.execution is not None  # noqa: S101  # the record holds one
        entry = self._calls.record(call.execution, self.sequence)
        entry["stop"], entry["is_masked"] = stop_entry(call.stop), call.redacted
        entry["answered"], entry["source"] = body.get("answered", ""), body.get("source", "")
        entry["traceback"] = call.traceback

    def _use_decision(self, change: RecordedChange) -> None:
        decision, key = change.decision(), change.body["key"]
        used = decision_entry(decision, self._at)
        if key in self._calls.entries:
            entry = self._calls.entries[key]
            entry["sequence"] = self.sequence
            entry["decisions"].append(used)
        self._add_mark("decision", used["kind"], key=key, principal=decision.principal)

    # --- states -----------------------------------------------------------------------------------------------------

    def _advance(self, before: AgentState | None, number: int, delta: dict[str, Any]) -> None:
        """Add what a record with a new state holds.

        Args:
            before: the state before it.
            number: the number of the step that was in progress.
            delta: what it holds.
        """
        state = self._state
        former = () if before is None else before.steps
        unchanged = min(len(former), state.step_count)
        while unchanged and former[unchanged - 1] is not state.steps[unchanged - 1]:
            unchanged -= 1
        steps = state.steps[unchanged:]
        for step in steps:
            self._settle_calls(step)
        self._change_conversation(number, kept_messages(delta))
        for step in steps:
            self._close_step(step)
        self._note_state_changes(before, number)
        self._step_inferences, self._requested = [], ()

    def _settle_calls(self, step: AgentStep) -> None:
        if step.message is not None:
            for exchange in step.message.exchanges:
                self._settle(exchange.execution, exchange.call)
        elif step.open_turn is not None:
            made = [part for part in step.open_turn.parts if isinstance(part, ToolCall)]
            for call, slot in zip(made, step.open_turn.slots, strict=True):
                if isinstance(slot, ToolExecution):
                    self._settle(slot, call)
                else:
                    self._note_request(self._calls.wait(slot, self.sequence), call)

    def _settle(self, execution: ToolExecution, made: ToolCall) -> None:
        entry = self._calls.settle(execution, self.sequence)
        self._note_request(entry, made)
        original = entry["original"]
        if original is not None:
            before, after = (format_json(each).decode() for each in (original, outcome_entry(execution)))
            self._note_change("result", before, after, key=execution.key, step=entry["step"])

    def _change_conversation(self, number: int, kept: int | None) -> None:
        if kept is None:
            return
        added = self._messages.change_conversation(kept, self._state.messages, self.sequence, self._calls.entries)
        self._conversation.append({"sequence": self.sequence, "step": number, "keep": kept, "add": added})

    def _close_step(self, step: AgentStep) -> None:
        entry = self._open_step(step.number)
        entry["sequence"], entry["kind"] = self.sequence, step.kind.value
        entry["status"] = "completed" if step.open_turn is None else "suspended"
        # A step that was interrupted starts again in the process that recovers it.
        entry["started_at"] = min(entry["started_at"], milliseconds(step.started_at))
        entry["ended_at"] = milliseconds(step.ended_at)
        if step.message is not None:
            entry["message"] = self._messages.index_of(step.message, self.sequence, self._calls.entries)
        entry["model"], entry["usage"] = step.model, usage_entry(step.usage)
        entry["finish_reason"] = None if step.finish_reason is None else step.finish_reason.value
        entry["errors"] = [each for error in step.errors if (each := error_entry(error)) is not None]
        entry["discarded_calls"] = [
            {"name": call.name, "arguments": call.arguments_json} for call in step.discarded_calls
        ]

    def _open_step(self, number: int = 0) -> TraceStep:
        """Return the entry of a step, by default of the one in progress; it is added if it is new."""
        number = number or self._folded.step_number
        if number > len(self._steps):
            self._steps.append(_new_step(number, self.sequence, self._previous_at or self._at))
        return self._steps[number - 1]

    # --- changes and marks ------------------------------------------------------------------------------------------

    def _note_state_changes(self, before: AgentState | None, number: int) -> None:
        state = self._state
        account = state.extension(PROVENANCE)
        if account is not None:
            if before is None or account is not before.extension(PROVENANCE):
                writes = read_writes(account, state.execution_id, after=self._write_count)
                self._write_count = count_writes(account, state.execution_id)
                self._changes += [_change_of(write, self.sequence) for write in writes]
        elif before is not None:
            for name in ("system_prompt", "metadata"):
                then, now = getattr(before.context, name), getattr(state.context, name)
                if then is not now and then != now:
                    self._note_change(f"state.context.{name}", _as_text(then), _as_text(now), step=number)

    def _note_change(self, path: str, before: str, after: str, *, key: str = "", step: int | None = None) -> None:
        """Add a change that was found by comparing records; where the loop records provenance, that is more precise."""
        state = self._state
        if state.extension(PROVENANCE) is None:
            number = self._folded.step_number if step is None else step
            self._changes.append(
                {
                    "sequence": self.sequence,
                    "step": number,
                    "by": "",
                    "point": "",
                    "path": path,
                    "key": key,
                    "before": before,
                    "after": after,
                }
            )

    def _mark(self, kind: RecordKind, change: RecordedChange) -> None:
        state, body = self._state, change.body
        match kind:
            case RecordKind.EXECUTION_STARTED:
                self._add_mark("started", state.messages[-1].text if state.messages else "")
            case RecordKind.MESSAGES_SENT | RecordKind.MESSAGES_TAKEN:
                name = "message_sent" if kind is RecordKind.MESSAGES_SENT else "message_taken"
                for message in change.messages:
                    self._add_mark(name, message.text, principal=body.get("principal", ""))
            case RecordKind.EXECUTION_RECOVERED:
                self._add_mark("recovered", "", downtime=1000 * body.get("downtime", 0.0))
            case RecordKind.EXECUTION_SUSPENDED:
                self._add_mark("suspended", "\n".join([call.reason for call in state.pending if call.reason]))
            case RecordKind.EXECUTION_RESUMED:
                self._add_mark("resumed", "")
            case RecordKind.EXECUTION_ENDED:
                signal = state.stop_signal
                self._add_mark("ended", state.status.value if signal is None else signal.message or signal.reason.value)
            case _:
                pass  # the state of a step, and attachments of a call

    def _add_mark(self, kind: str, text: str, *, key: str = "", principal: str = "", downtime: float = 0.0) -> None:
        self._marks.append(
            {
                "sequence": self.sequence,
                "at": self._at,
                "step": self._state.step_count if kind == "ended" else self._folded.step_number,
                "kind": kind,
                "text": text,
                "key": key,
                "principal": principal,
                "downtime": downtime,
            }
        )

    # --- the document -----------------------------------------------------------------------------------------------

    def entry(self, head: ExecutionHead, status: str, after: int) -> TraceExecution:
        """Return the execution with the entries that changed after a record.

        Args:
            head: its head.
            status: its effective status.
            after: the sequence number of the record; 0 for all entries.
        """
        state, call, fork = self._state, call_of(head.execution_id), self._folded.origin.get("fork")
        execution = state.execution
        assert execution is not None  # noqa: S101  # only executions are recorded
        return {
            "id": head.execution_id,
            "sequence": self.sequence,
            "agent_id": state.agent_id,
            "agent_name": state.agent_name,
            "principal": str(principal_of(state) or ""),
            "parent_agent_id": state.parent_agent_id,
            "number": state.execution_count,
            "caller": None
            if call is None
            else {"execution_id": caller_of(head.execution_id), "key": call[0], "attempt": call[1]},
            "forked_from": None
            if fork is None or "of" not in fork
            else {"execution_id": fork["of"], "step": fork["step"], "effects": fork["effects"]},
            "status": status,
            "loop": self._folded.origin.get("loop", {}),
            "input": head.input,
            "output": state.final_text or "",
            "started_at": milliseconds(execution.started_at),
            "updated_at": self._at,
            "ended_at": None if execution.ended_at is None else milliseconds(execution.ended_at),
            "waited": 1000 * execution.waited_seconds,
            "stop": stop_entry(state.stop_signal),
            "errors": [each for error in state.errors if (each := error_entry(error)) is not None],
            "usage": usage_entry(state.usage),
            "cost": self._cost,
            "is_masked": self._folded.redacted,
            "steps": _newer(self._steps, after),
            "inferences": _newer(self._inferences, after),
            "calls": _newer(self._calls.entries.values(), after),
            "messages": _newer(self._messages.entries, after),
            "conversation": _newer(self._conversation, after),
            "settings": _newer(self._settings, after),
            "renderings": _newer(self._renderings, after),
            "marks": _newer(self._marks, after),
            "changes": _newer(self._changes, after),
        }


def _new_step(number: int, sequence: int, started_at: float) -> TraceStep:
    return {
        "number": number,
        "sequence": sequence,
        "status": "open",
        "kind": None,
        "started_at": started_at,
        "ended_at": None,
        "message": None,
        "model": "",
        "finish_reason": None,
        "usage": usage_entry(NO_USAGE),
        "errors": [],
        "discarded_calls": [],
    }


_AFTER_STEP = frozenset({"after_step", "on_stop", "after_execution"})
"""The points at which the state has the step already to which a change belongs."""


def _change_of(write: InterceptorWrite, sequence: int) -> TraceChange:
    return {
        "sequence": sequence,
        "step": write.steps if write.point in _AFTER_STEP else write.steps + 1,
        "by": write.interceptor,
        "point": write.point,
        "path": write.change.path,
        "key": "",
        "before": write.change.before,
        "after": write.change.after,
    }


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else format_json(value).decode()


# --- all executions of a trace ------------------------------------------------------------------------------------------


class TraceReader:
    """Reads an execution, and those of the agents that serve its calls, as a trace; again and again while they run.

        reader = TraceReader(journal, "order-7")
        await reader.update()
        trace = reader.document()
        await reader.update()
        patch = reader.document(after=trace["cursor"])

    Args:
        journal: the journal of the executions.
        execution_id: the execution.
        prices: the prices of models, for costs; by default those that are published with the extra `prices`, if it is installed.
    """

    def __init__(self, journal: CanJournal, execution_id: str, *, prices: Prices | None = None) -> None:
        self._journal = journal
        self._execution_id = execution_id
        self._prices = published_prices() if prices is None else prices
        self._traces: dict[str, _ExecutionTrace] = {}
        self._heads: dict[str, tuple[ExecutionHead, str]] = {}
        self._lock = asyncio.Lock()

    async def update(self) -> None:
        """Read what was recorded since the last update. Several tasks may call it.

        Raises:
            UnknownExecution: the execution is not recorded.
            JournalCorrupt: a record cannot be read.
            JournalError: the journal cannot be read.
        """
        async with self._lock:
            head = await self._journal.head(self._execution_id)
            if head is None:
                raise UnknownExecution(
                    f"no execution {self._execution_id!r} is recorded here; `agentloop runs list` lists the recorded executions"
                )
            below = sorted(await list_below(self._journal, self._execution_id), key=lambda each: each.execution_id)
            for each in (head, *below):
                await self._read(each)
            # Others were of an execution of this id that was deleted.
            for gone in self._traces.keys() - {each.execution_id for each in (head, *below)}:
                del self._traces[gone]
                self._heads.pop(gone, None)

    async def _read(self, head: ExecutionHead) -> None:
        trace = self._traces.get(head.execution_id)
        if trace is None or trace.started_at != milliseconds(head.started_at):  # one of this id was deleted
            trace = self._traces[head.execution_id] = _ExecutionTrace(self._prices, milliseconds(head.started_at))
        if head.record_count > trace.sequence:
            records = await self._journal.read(head.execution_id, after=trace.sequence)
            for number, record in enumerate(records, 1):
                trace.apply(record)
                if not number % _SLICE:
                    await asyncio.sleep(0)
        if not trace.sequence:
            raise JournalCorrupt(
                f"execution {head.execution_id} has no records that can be shown", execution_id=head.execution_id
            )
        self._heads[head.execution_id] = head, await self._status_of(head, trace)

    async def _status_of(self, head: ExecutionHead, trace: _ExecutionTrace) -> str:
        """Return the status after the records that were read, which may be more than the head knows of, or fewer."""
        if trace.status is not ExecutionStatus.IN_PROGRESS:
            return trace.status.value
        is_interrupted = await effective_status(self._journal, head) == INTERRUPTED
        return INTERRUPTED if is_interrupted else trace.status.value

    @property
    def status(self) -> str:
        """The effective status of the execution at the last update."""
        return self._heads[self._execution_id][1]

    @property
    def is_live(self) -> bool:
        """Whether the execution can still change."""
        return not self._traces[self._execution_id].status.is_terminal

    @property
    def sequence(self) -> int:
        """The number of the last record of the execution that was read."""
        return self._traces[self._execution_id].sequence

    @property
    def cursor(self) -> str:
        """The position after all that was read, for `document`."""
        prefix = len(self._execution_id) + 1
        below = [
            f"{execution_id[prefix:]}:{trace.sequence}"
            for execution_id, trace in self._traces.items()
            if execution_id != self._execution_id
        ]
        return ";".join([str(self.sequence), *below])

    def document(self, after: str = "") -> Trace:
        """Return the trace, as far as it was read.

        Args:
            after: the cursor of an earlier document, to return only what has changed since; empty for all.

        Raises:
            ConfigurationError: `after` is not a cursor.
        """
        known = self._parse_cursor(after) if after else {}
        entries = [
            self._traces[execution_id].entry(head, status, known.get(execution_id, 0))
            for execution_id, (head, status) in self._heads.items()
            if execution_id == self._execution_id or self._traces[execution_id].sequence > known.get(execution_id, 0)
        ]
        return {
            "version": TRACE_VERSION,
            "id": self._execution_id,
            "is_patch": bool(after),
            "cursor": self.cursor,
            "is_live": self.is_live,
            "executions": entries,
        }

    def _parse_cursor(self, cursor: str) -> dict[str, int]:
        own, *below = cursor.split(";")
        pairs = [("", own), *[part.rpartition(":")[::2] for part in below]]
        are_numbers = all(number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS for _, number in pairs)
        if not are_numbers or not all(suffix for suffix, _ in pairs[1:]):
            raise ConfigurationError(f"{cursor!r:.100} is not a cursor; pass the cursor of a trace")
        root = self._execution_id
        return {f"{root}/{suffix}" if suffix else root: int(number) for suffix, number in pairs}


async def build_trace(
    journal: CanJournal, execution_id: str, *, after: str = "", prices: Prices | None = None
) -> Trace:
    """Return an execution, with those of the agents that serve its calls, as a JSON document.

    Args:
        journal: the journal of the execution.
        execution_id: the execution, which may be running.
        after: the cursor of an earlier document, to return only what has changed since; empty for all.
        prices: as for `TraceReader`.

    Raises:
        UnknownExecution: the execution is not recorded.
        JournalCorrupt: a record cannot be read.
        ConfigurationError: `after` is not a cursor.
    """
    reader = TraceReader(journal, execution_id, prices=prices)
    await reader.update()
    return reader.document(after)
