"""`agentloop runs show`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

import click
from attrs import define, field, frozen
from rich.cells import set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentloop.cli.console import (
    Symbols,
    call_text,
    console,
    counted,
    duration,
    one_line,
    printable,
    shortcoming,
    summary,
    tokens,
)
from agentloop.cli.errors import BadUsage
from agentloop.cli.journals import (
    INTERRUPTED,
    STYLES,
    CallAccount,
    as_data,
    calls_in,
    found,
    journal_option,
    standing,
    with_journal,
)
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalCorrupt
from agentloop.journal.chain import verify_records
from agentloop.journal.fold import FoldedExecution, fold_records
from agentloop.values.batches import parse_key
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit
from agentloop.values.json import format_json, parse_json
from agentloop.values.parts import Reasoning
from agentloop.values.records import ExecutionHead, JournalRecord, RecordedCall, RecordKind
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolExecution, ToolStatus


@frozen(kw_only=True)
class Line:
    """One line.

    Attributes:
        step: the number of the step that it is of; 0 for what is beside the steps.
        symbol: the sign before it; empty for a heading.
        style: its color.
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
    _known: FoldedExecution = field(factory=FoldedExecution)
    _settled: set[str] = field(factory=set)
    _begun_at: dict[str, datetime] = field(factory=dict)
    _step: int = 0
    _since: datetime | None = None

    def lines(self, record: JournalRecord) -> Iterator[Line]:
        """Take the next record and tell what it tells.

        Raises:
            JournalCorrupt: when it cannot be read.
        """
        self._known.apply(record)
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
    place = parse_key(key)
    return "" if place is None else f"{place[0]}.{place[1] + 1}"


def _step_of(key: str) -> int:
    place = parse_key(key)
    return 0 if place is None else place[0]


def _when(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


_INDENT = "    "


@frozen(kw_only=True)
class Shown:
    """An execution as it is shown.

    Attributes:
        head: what is known of it.
        standing: how it stands.
        state: its newest state.
        records: all its records.
        lines: what happened, with the depth of the agent that did it; 0 for the execution itself.
        calls: its calls.
    """

    head: ExecutionHead
    standing: str
    state: AgentState
    records: Sequence[JournalRecord]
    lines: Sequence[tuple[int, Line]]
    calls: Sequence[CallAccount]


@click.command()
@click.argument("execution", metavar="ID")
@journal_option
@click.option("--step", type=click.IntRange(min=1), help="Only this step, with all that was said and returned, uncut.")
@click.option("--records", is_flag=True, help="The records themselves, one after the other.")
@click.option(
    "--json", "as_json", is_flag=True, help="Write JSON: what is known of the execution, its calls and its state."
)
def show(execution: str, *, journal_file: str | None, step: int | None, records: bool, as_json: bool) -> None:
    """Tell what an execution did: steps, calls and what came of them, decisions, tokens and times.

    What sub-agents did stands within the calls that they serve. ID is the id of an execution, or its beginning.
    """
    shown = with_journal(journal_file, lambda journal: _read(journal, execution))
    if step is not None and step > max([line.step for depth, line in shown.lines if not depth], default=0):
        raise BadUsage(f"there is no step {step}; the execution has {counted(shown.state.step_count, 'step')}")
    if as_json:
        click.echo(json.dumps(_data(shown), indent=2))
    elif records:
        for record in shown.records:
            _tell_record(record)
    else:
        _tell(console(), shown, step)


async def _read(journal: CanJournal, beginning: str) -> Shown:
    head = await found(journal, beginning)
    records = await journal.read(head.execution_id)
    try:
        verify_records(records, head.execution_id)
    except JournalCorrupt as error:
        click.echo(f"{one_line(str(error))}; `agentloop runs verify` tells all", err=True)
    known = fold_records(records, head.execution_id)
    assert known.state is not None  # noqa: S101  # or there would have been an error
    symbols = Symbols.of(console().encoding)
    return Shown(
        head=head,
        standing=await standing(journal, head),
        state=known.state,
        records=records,
        lines=[line async for line in _lines(journal, records, symbols, 0)],
        calls=calls_in(records),
    )


async def _lines(
    journal: CanJournal, records: Sequence[JournalRecord], symbols: Symbols, depth: int
) -> AsyncIterator[tuple[int, Line]]:
    """Give the lines of an execution, and after the beginning of each call those of the agents that served it."""
    timeline = Timeline(symbols)
    for record in records:
        for line in timeline.lines(record):
            yield depth, line
            async for inner in _served(journal, line, symbols, depth + 1):
                yield inner
    for call in timeline.open_calls():
        what = f"{call_text(call.intent.call)} has begun, and nothing is known of its end"
        yield depth, Line(step=0, symbol=symbols.failure, style="yellow", what=what)


async def _served(journal: CanJournal, line: Line, symbols: Symbols, depth: int) -> AsyncIterator[tuple[int, Line]]:
    attempt = 1
    while line.key:
        name = f"{line.key}/agent" if attempt == 1 else f"{line.key}/agent-{attempt}"
        head = await journal.head(name)
        if head is None:
            return
        yield depth, Line(step=line.step, style="bold", what=f"agent {one_line(name)}: {await standing(journal, head)}")
        async for inner in _lines(journal, await journal.read(name), symbols, depth):
            yield inner
        attempt += 1


# --- as text ----------------------------------------------------------------------------------------------------


def _tell(out: Console, shown: Shown, step: int | None) -> None:
    if step is None:
        _tell_head(out, shown)
    within = step is None
    for depth, line in shown.lines:
        if step is not None and not depth:
            within = line.step == step
        if within:
            _tell_line(out, line, depth, whole=step is not None)
    if step is None:
        _tell_end(out, shown)


def _tell_head(out: Console, shown: Shown) -> None:
    head = shown.head
    out.print(
        Text.assemble(f"execution {one_line(head.execution_id)}  ", (shown.standing, STYLES.get(shown.standing, "")))
    )
    of = f", for {one_line(head.parent_agent_id)}" if head.parent_agent_id else ""
    out.print(f"agent     {one_line(head.agent_id)}, its execution {head.number}{of}")
    if head.forked_from:
        out.print(f"fork of   {one_line(head.forked_from)}")
    out.print(Text(f"asked     {one_line(head.input)}"), no_wrap=True, overflow="ellipsis")
    began = head.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    took = duration((head.updated_at - head.started_at).total_seconds())
    out.print(f"began     {began}, last change {took} later, {counted(head.record_count, 'record')}")


def _tell_line(out: Console, line: Line, depth: int, *, whole: bool) -> None:
    indent = _INDENT * depth
    if not line.symbol:
        out.print(Text(f"{indent}{line.what}", line.style), soft_wrap=True)
        return
    text = Text(f"{indent}  ").append(f"{set_cell_size(line.symbol, 2)} ", line.style)
    text.append(line.what, "dim" if line.style == "dim" else "")
    if line.told and not whole:
        text.append(f"  {one_line(line.told)}", "dim")
    if not whole:
        out.print(text, no_wrap=True, overflow="ellipsis", crop=True)
        return
    out.print(text, soft_wrap=True)
    for part in printable(line.told).splitlines():
        out.print(Text(f"{indent}       {part}", "dim"), soft_wrap=True)


def _tell_end(out: Console, shown: Shown) -> None:
    effects = [call for call in shown.calls if call.effect is Effect.EFFECT]
    if effects:
        out.print(Text("\neffects", "bold"))
        out.print(effects_table(effects))
    state = shown.state
    if state.final_text:
        out.print(Text("\nanswer", "bold"))
        out.print(Text(printable(state.final_text)))
    out.print()
    if state.status.is_terminal or state.status is ExecutionStatus.SUSPENDED:
        short = shortcoming(state)
        if short:
            out.print(Text(short))
        out.print(Text(summary(state)))
    if shown.standing == INTERRUPTED:
        out.print(f"Go on with it: agentloop runs resume {one_line(shown.head.execution_id)} module:loop")


def effects_table(calls: Sequence[CallAccount]) -> Table:
    """Return a table of calls with effects: how often each began, and what is told of its end."""
    table = Table(box=None, pad_edge=False)
    for column in ("  key", "call", "began", "told as"):
        table.add_column(column, overflow="fold")
    for call in calls:
        doubtful = call.execution is None or call.execution.may_have_run or call.execution.status is ToolStatus.IN_DOUBT
        told = Text(call.told, "yellow" if doubtful else "")
        table.add_row(f"  {one_line(call.key)}", call_text(call.call), _times(call.begun), told)
    return table


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _tell_record(record: JournalRecord) -> None:
    click.echo(f"{record.sequence}  {record.kind.value}  {record.at.isoformat()}  {record.hash[:12]}")
    click.echo(printable(json.dumps(json.loads(record.body), indent=2, ensure_ascii=False)))


# --- as data ----------------------------------------------------------------------------------------------------


def _data(shown: Shown) -> dict[str, object]:
    return {
        "execution": as_data(shown.head, shown.standing),
        "calls": [_call_data(call) for call in shown.calls],
        "state": to_plain(shown.state),
    }


def _call_data(call: CallAccount) -> dict[str, object]:
    return {
        "key": call.key,
        "name": call.call.name,
        "arguments": call.call.arguments_json,
        "effect": None if call.effect is None else call.effect.value,
        "begun": call.begun,
        "told": call.told,
    }
