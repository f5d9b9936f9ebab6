"""What happened in an execution, line by line, as its records tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from attrs import define, field, frozen

from agentloop.cli.figures import duration, tokens
from agentloop.cli.symbols import Symbols
from agentloop.cli.terminal_text import call_text, one_line
from agentloop.journal.fold import RecordedExecution
from agentloop.values.decision import Answer, Approve, Decision, Deny, Edit
from agentloop.values.journal_record import JournalRecord, RecordKind
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.parts import Reasoning
from agentloop.values.recorded import RecordedCall
from agentloop.values.serialisation import from_plain
from agentloop.values.tool_execution import ToolExecution, ToolStatus
from agentloop.values.tool_executions import key_place


@frozen(kw_only=True)
class Line:
    """One line.

    Attributes:
        step: the number of the step that it is of; 0 for what is beside the steps.
        symbol: the sign before it; empty for a heading.
        style: its colour.
        what: what happened.
        told: what was said or returned with it; may be long.
        key: the idempotency key of the call that begins with it; empty for other lines.
    """

    step: int
    symbol: str = ""
    style: str = ""
    what: str
    told: str = ""
    key: str = ""


@define(eq=False)
class Timeline:
    """Turns the records of an execution into lines; feed them in order.

    Attributes:
        symbols: the signs.
    """

    symbols: Symbols
    _known: RecordedExecution = field(factory=RecordedExecution)
    _settled: set[str] = field(factory=set)
    _begun_at: dict[str, datetime] = field(factory=dict)
    _step: int = 0
    _since: datetime | None = None

    def lines(self, record: JournalRecord) -> Iterator[Line]:
        """Take the next record and tell what it tells.

        Raises:
            JournalCorrupt: when it cannot be read.
        """
        self._known.feed(record)
        body = parse_json(record.body)
        told = list(self._told(record, body))
        step = max([self._step, *[line.step for line in told]])
        if step > self._step:
            self._step = step
            yield Line(step=step, style="bold", what=f"step {step}")
        yield from told
        self._since = record.at

    def open_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that have begun and of whose end nothing is known."""
        return [call for call in self._known.calls.values() if call.execution is None and call.pending is None]

    def _told(self, record: JournalRecord, body: dict[str, Any]) -> Iterator[Line]:
        match record.kind:
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                yield from self._inference(body, record.at)
            case RecordKind.CALL_INTENT:
                yield self._intent(body["intent"]["key"], record.at)
            case RecordKind.CALL_OUTCOME:
                yield from self._outcomes([self._known.calls[body["execution"]["key"]].execution])
            case RecordKind.CALL_SUSPENDED:
                pending = self._known.calls[body["pending"]["key"]].pending
                assert pending is not None  # noqa: S101  # the record was just fed
                yield self._note(
                    pending.key, f"{_place(pending.key)} {one_line(pending.call.name)} waits", pending.reason
                )
            case RecordKind.DECISION_USED:
                decision: Decision = from_plain(body["decision"], Decision)  # type: ignore[arg-type]  # a union
                yield self._note(body["key"], f"{_place(body['key'])} decided: {_said(decision)}")
            case RecordKind.MESSAGES_SENT | RecordKind.MESSAGES_TAKEN:
                yield from self._messages(record.kind, body)
            case RecordKind.EXECUTION_RECOVERED:
                yield Line(step=self._step, style="yellow", what=f"recovered {_when(record.at)}")
            case _:
                yield from self._standing(record, body)

    def _standing(self, record: JournalRecord, body: dict[str, Any]) -> Iterator[Line]:
        """Tell what a record says of where the execution stands, and the calls that were settled without beginning."""
        state = self._known.state
        if "delta" not in body or state is None:
            return
        step = state.last_step
        if step is not None and step.number >= self._step:
            yield from self._outcomes(step.executions)
            yield from [
                Line(
                    step=step.number,
                    symbol=self.symbols.failure,
                    style="red",
                    what=one_line(error.type),
                    told=error.message,
                )
                for error in (step.errors if record.kind is RecordKind.STEP_COMPLETED else ())
            ]
        if record.kind is RecordKind.EXECUTION_SUSPENDED:
            for call in state.pending:
                yield self._note(call.key, f"{_place(call.key)} {call_text(call.call)} waits", call.reason)
            yield Line(step=self._step, style="yellow", what=f"suspended {_when(record.at)}")
        elif record.kind is RecordKind.EXECUTION_RESUMED:
            yield Line(step=self._step, style="yellow", what=f"resumed {_when(record.at)}")

    def _inference(self, body: dict[str, Any], at: datetime) -> Iterator[Line]:
        recorded, step = self._known.inferences[-1], int(body["step"])
        took = "" if self._since is None else f"  {duration((at - self._since).total_seconds())}"
        if recorded is None:
            yield Line(
                step=step, symbol=self.symbols.note, style="dim", what=f"model{took}", told="holds a secret: masked"
            )
        elif recorded.response is None:
            error = recorded.error
            told = "" if error is None else f"{error.type}: {error.message}"
            yield Line(step=step, symbol=self.symbols.failure, style="red", what=f"model{took}", told=told)
        else:
            yield Line(
                step=step, symbol=self.symbols.note, style="dim", what=f"model{took}", told=tokens(recorded.usage)
            )
            thoughts = " ".join([part.text for part in recorded.response.parts if isinstance(part, Reasoning)])
            for name, text in (("thinks", thoughts), ("says", recorded.response.text)):
                if text.strip():
                    yield Line(step=step, symbol=self.symbols.note, style="dim", what=name, told=text)

    def _intent(self, key: str, at: datetime) -> Line:
        intent, again = self._known.calls[key].intent, key in self._begun_at
        self._begun_at[key] = at
        what = f"{_place(key)} {call_text(intent.call)}  {intent.effect.value}{', again' if again else ''}"
        return Line(step=_step_of(key), symbol=self.symbols.call, style="cyan", what=what, key="" if again else key)

    def _outcomes(self, executions: Sequence[ToolExecution | None]) -> Iterator[Line]:
        for execution in executions:
            if execution is None or execution.key in self._settled:
                continue
            self._settled.add(execution.key)
            begun = execution.key in self._begun_at
            name = (
                f"{one_line(execution.name)}  {duration(execution.duration_ms / 1000)}"
                if begun
                else call_text(execution.call)
            )
            symbol, style = self._sign(execution.status)
            what = f"{_place(execution.key)} {name}"
            yield Line(step=_step_of(execution.key), symbol=symbol, style=style, what=what, told=_outcome(execution))

    def _messages(self, kind: RecordKind, body: dict[str, Any]) -> Iterator[Line]:
        what = "a message was sent" if kind is RecordKind.MESSAGES_SENT else "takes a message"
        for message in body["messages"]:
            text = "".join([str(part.get("text", "")) for part in message.get("parts", []) if isinstance(part, dict)])
            step = int(body.get("step", self._step))
            yield Line(step=step, symbol=self.symbols.note, style="dim", what=what, told=text)

    def _note(self, key: str, what: str, told: str = "") -> Line:
        return Line(step=_step_of(key), symbol=self.symbols.note, style="yellow", what=what, told=told)

    def _sign(self, status: ToolStatus) -> tuple[str, str]:
        if status is ToolStatus.SUCCEEDED:
            return self.symbols.success, "green"
        return (self.symbols.block, "yellow") if status is ToolStatus.BLOCKED else (self.symbols.failure, "red")


def _outcome(execution: ToolExecution) -> str:
    if execution.status in {ToolStatus.SUCCEEDED, ToolStatus.FAILED}:
        return execution.text
    return f"{execution.status.value.replace('_', ' ')}: {execution.error_message}"


def _said(decision: Decision) -> str:
    match decision:
        case Approve():
            return "approved"
        case Deny(reason):
            return f"denied{f': {one_line(reason)}' if reason else ''}"
        case Answer(value):
            return one_line(f"answered with {format_json(value).decode()}")
        case Edit(arguments):
            return one_line(f"runs with {format_json(arguments).decode()}")


def _place(key: str) -> str:
    place = key_place(key)
    return "" if place is None else f"{place[0]}.{place[1] + 1}"


def _step_of(key: str) -> int:
    place = key_place(key)
    return 0 if place is None else place[0]


def _when(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
