"""`agentloop runs show`: the account of one execution."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

import click
from attrs import define, field, frozen
from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.commands import undelivered_messages
from agentloop.durable.fold import FoldedExecution, RecordedChange, fold_records
from agentloop.durable.trees import INTERRUPTED, effective_status
from agentloop.service.cli.console import (
    Symbols,
    as_one_line,
    as_printable,
    create_console,
    describe_problem,
    format_call,
    format_call_number,
    format_duration,
    format_outcome,
    format_pending_call,
    format_settled_call,
    format_tokens,
    indent_call,
    is_debugging,
    summarize,
)
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.journals import (
    STATUS_STYLES,
    CallAccount,
    account_for_calls,
    complete_execution,
    find_execution,
    head_as_json,
    journal_option,
    report_damage,
    with_journal,
)
from agentloop.values.batches import parse_key
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.parts import Reasoning
from agentloop.values.records import (
    ExecutionHead,
    JournalRecord,
    RecordedCall,
    RecordKind,
    sub_agent_execution_id,
)
from agentloop.values.rendering import render_arguments, render_tool_name, render_value
from agentloop.values.reprs import format_count
from agentloop.values.run_requests import principal_of
from agentloop.values.serialization import to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus
from agentloop.values.visible_text import escape_invisible


@frozen(kw_only=True)
class ReportLine:
    """One line of a report.

    Attributes:
        step: the number of its step; 0 for a line outside of the steps.
        symbol: the sign before it; empty for a heading.
        style: its color.
        text: what happened.
        detail: a text, a result or an error that belongs to it; may be long.
        key: the idempotency key of the call that starts with this line; empty for other lines.
        traceback: the traceback of the tool whose call failed; empty without one. It is shown in full, or to a person who debugs.
    """

    step: int
    symbol: str = ""
    style: str = ""
    text: str
    detail: str = ""
    key: str = ""
    traceback: str = ""


@frozen(kw_only=True)
class ExecutionReport:
    """What `runs show` prints about an execution.

    Attributes:
        head: the head of the execution.
        status: its effective status.
        state: its newest state.
        records: all its records.
        lines: what happened, each line with the depth of its agent; 0 for the execution itself.
        calls: its calls.
        undelivered: the messages that were sent to it and that it has not received.
    """

    head: ExecutionHead
    status: str
    state: AgentState
    records: Sequence[JournalRecord]
    lines: Sequence[tuple[int, ReportLine]]
    calls: Sequence[CallAccount]
    undelivered: Sequence[ExecutionCommand]


@click.command(short_help="Show what an execution did.")
@click.argument("execution", metavar="ID", shell_complete=complete_execution)
@journal_option
@click.option(
    "--step",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only this step, with all texts, results and tracebacks of tools in full.",
)
@click.option("--records", is_flag=True, help="Show the records themselves.")
@click.option("--json", "as_json", is_flag=True, help="Print the execution, its calls and its state as JSON.")
def show(execution: str, *, journal_file: str | None, step: int | None, records: bool, as_json: bool) -> None:
    """Show what an execution did: steps, calls and their outcomes, decisions, tokens and times.

    Example: `agentloop runs show execution_6f1d`.

    Executions of sub-agents are shown inside the calls that started them. ID is the id of an execution, or a prefix of it.
    """
    report = with_journal(journal_file, lambda journal: _read_report(journal, execution, in_full=step is not None))
    # Steps of sub-agents do not count: --step names a step of the execution itself.
    if step is not None and step > max([line.step for depth, line in report.lines if not depth], default=0):
        raise InvalidUsage(
            f"there is no step {step}; the execution has {format_count(report.state.step_count, 'step')}"
        )
    if as_json:
        click.echo(json.dumps(_report_as_json(report), indent=2))
    elif records:
        for record in report.records:
            _print_record(record)
    else:
        _print_report(create_console(), report, step)


async def _read_report(journal: CanJournal, prefix: str, *, in_full: bool) -> ExecutionReport:
    head = await find_execution(journal, prefix)
    records = await journal.read(head.execution_id)
    report_damage(records, head.execution_id)
    folded = fold_records(records, head.execution_id)
    assert folded.state is not None  # noqa: S101  # a fold without a state raises
    symbols = Symbols.for_encoding(create_console().encoding)
    reporter = RecordReporter(symbols, in_full)
    status = await effective_status(journal, head)
    return ExecutionReport(
        head=head,
        status=status,
        state=folded.state,
        records=records,
        lines=[line async for line in _report_lines(journal, records, reporter, 0)],
        calls=account_for_calls(records, is_interrupted=status == INTERRUPTED),
        undelivered=await undelivered_messages(journal, head.execution_id),
    )


async def _report_lines(
    journal: CanJournal, records: Sequence[JournalRecord], reporter: RecordReporter, depth: int
) -> AsyncIterator[tuple[int, ReportLine]]:
    """Yield the lines of an execution; the lines of a sub-agent follow the start of the call that it served."""
    for record in records:
        for line in reporter.apply(record):
            yield depth, line
            async for inner in _sub_agent_lines(journal, line, reporter, depth + 1):
                yield inner
    for call in reporter.open_calls():
        text = f"{format_call(call.intent.call, in_full=reporter.in_full)} started, and its outcome is unknown"
        yield depth, ReportLine(step=0, symbol=reporter.symbols.failure, style="yellow", text=text)


async def _sub_agent_lines(
    journal: CanJournal, line: ReportLine, caller: RecordReporter, depth: int
) -> AsyncIterator[tuple[int, ReportLine]]:
    attempt = 1
    while line.key:
        execution_id = sub_agent_execution_id(line.key, attempt)
        head = await journal.head(execution_id)
        if head is None:
            return
        title = f"agent {as_one_line(execution_id)}: {await effective_status(journal, head)}"
        yield depth, ReportLine(step=line.step, style="bold", text=title)
        reporter = RecordReporter(caller.symbols, caller.in_full)
        async for inner in _report_lines(journal, await journal.read(execution_id), reporter, depth):
            yield inner
        attempt += 1


# --- from records to lines ------------------------------------------------------------------------------------------


@define(eq=False)
class RecordReporter:
    """Turns the records of an execution into lines; apply them in order.

    Attributes:
        symbols: the signs.
        in_full: whether long calls are shown whole.
    """

    symbols: Symbols
    in_full: bool
    _folded: FoldedExecution = field(factory=FoldedExecution)
    _settled: set[str] = field(factory=set)
    _started: set[str] = field(factory=set)
    _step: int = 0
    _previous_at: datetime | None = None

    def apply(self, record: JournalRecord) -> Iterator[ReportLine]:
        """Apply the next record, and yield its lines.

        Raises:
            JournalCorrupt: the record cannot be read.
        """
        lines = list(self._lines(record, self._folded.apply(record)))
        step = max([self._step, *[line.step for line in lines]])
        if step > self._step:
            self._step = step
            yield ReportLine(step=step, style="bold", text=f"step {step}")
        yield from lines
        # An inference is recorded when it ends; the record before it marks its beginning.
        self._previous_at = record.at

    def open_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that started and have neither an outcome nor a pending decision."""
        return [call for call in self._folded.calls.values() if call.execution is None and call.pending is None]

    def _lines(self, record: JournalRecord, change: RecordedChange) -> Iterator[ReportLine]:
        call, body = change.call, change.body
        match record.kind:
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                yield from self._inference_lines(body, record.at)
            case RecordKind.CALL_INTENT if call is not None:
                yield self._start_line(call.intent.key)
            case RecordKind.CALL_OUTCOME if call is not None:
                yield from self._outcome_lines([call.execution], call.traceback)
            case RecordKind.CALL_SUSPENDED if call is not None and call.pending is not None:
                text = f"{format_call_number(call.pending.key)} {as_one_line(call.pending.call.name)} waits"
                yield self._note(call.pending.key, text, call.pending.reason)
            case RecordKind.DECISION_USED:
                decision = change.decision()
                text = f"{format_call_number(body['key'])} decision: {_format_decision(decision)}"
                if decision.principal:
                    text += f" by {as_one_line(decision.principal)}"
                yield self._note(body["key"], text)
            case RecordKind.MESSAGES_SENT | RecordKind.MESSAGES_TAKEN:
                yield from self._message_lines(record.kind, change)
            case RecordKind.EXECUTION_RECOVERED:
                yield self._heading(f"recovered {_format_time(record.at)}")
            case _:
                yield from self._state_lines(record, change)

    def _state_lines(self, record: JournalRecord, change: RecordedChange) -> Iterator[ReportLine]:
        """Yield what a record with a state adds: calls that were settled without a start, errors, and suspensions."""
        state = self._folded.state
        if not change.has_state or state is None:
            return
        step = state.last_step
        if step is not None and step.number >= self._step:
            yield from self._outcome_lines(step.executions)
            if record.kind is RecordKind.STEP_COMPLETED:
                for error in step.errors:
                    yield self._failure(step.number, as_one_line(error.type), error.message)
        if record.kind is RecordKind.EXECUTION_SUSPENDED:
            for call in state.pending:
                yield self._waiting_line(call)
            yield self._heading(f"suspended {_format_time(record.at)}")
        elif record.kind is RecordKind.EXECUTION_RESUMED:
            yield self._heading(f"resumed {_format_time(record.at)}")

    def _waiting_line(self, call: PendingCall) -> ReportLine:
        if not self.in_full:
            text = f"{format_call_number(call.key)} {format_pending_call(call)} waits"
            return self._note(call.key, text, call.reason)
        # As whoever decides about it sees it.
        tool, *arguments = call.rendering.split("\n")
        text = f"{format_call_number(call.key)} {tool} waits: {as_one_line(call.reason)}"
        return self._note(call.key, text, "\n".join(arguments))

    def _inference_lines(self, body: dict[str, Any], at: datetime) -> Iterator[ReportLine]:
        inference, step = self._folded.inferences[-1], int(body["step"])
        elapsed = "" if self._previous_at is None else f"  {format_duration((at - self._previous_at).total_seconds())}"
        text = f"{(inference and inference.purpose) or 'model'}{elapsed}"
        if inference is None:
            yield self._dim(step, text, "contains a secret: masked")
        elif inference.response is None:
            error = inference.error
            yield self._failure(step, text, "" if error is None else f"{error.type}: {error.message}")
        else:
            yield self._dim(step, text, format_tokens(inference.usage))
            reasoning = " ".join([part.text for part in inference.response.parts if isinstance(part, Reasoning)])
            for label, content in (("thinks", reasoning), ("says", inference.response.text)):
                if content.strip():
                    yield self._dim(step, label, content)

    def _start_line(self, key: str) -> ReportLine:
        intent, is_repeated = self._folded.calls[key].intent, key in self._started
        self._started.add(key)
        # In full, each argument has a line of its own.
        call = render_tool_name(intent.call) if self.in_full else format_call(intent.call)
        text = f"{indent_call(key)}{format_call_number(key)} {call}  {intent.effect.value}"
        text += f", by {intent.grant}" if intent.grant else ""
        return ReportLine(
            step=_step_of(key),
            symbol=self.symbols.call,
            style="cyan",
            text=f"{text}, repeated" if is_repeated else text,
            detail=_format_arguments(intent.call) if self.in_full else "",
            # Sub-agents are shown below the first start only; later attempts are among them.
            key="" if is_repeated else key,
        )

    def _outcome_lines(self, executions: Sequence[ToolExecution | None], traceback: str = "") -> Iterator[ReportLine]:
        for execution in executions:
            # An outcome is recorded with its call and again with its step.
            if execution is None or execution.key in self._settled:
                continue
            self._settled.add(execution.key)
            symbol, style = self.symbols.sign_of(execution.status)
            call = format_settled_call(execution, has_run=execution.key in self._started, in_full=self.in_full)
            yield ReportLine(
                step=_step_of(execution.key),
                symbol=symbol,
                style=style,
                text=f"{indent_call(execution.key)}{format_call_number(execution.key)} {call}",
                detail=format_outcome(execution),
                traceback=traceback,
            )

    def _message_lines(self, kind: RecordKind, change: RecordedChange) -> Iterator[ReportLine]:
        label = "message sent" if kind is RecordKind.MESSAGES_SENT else "message received"
        for message in change.messages:
            yield self._dim(int(change.body.get("step", self._step)), label, message.text)

    def _heading(self, text: str) -> ReportLine:
        return ReportLine(step=self._step, style="yellow", text=text)

    def _note(self, key: str, text: str, detail: str = "") -> ReportLine:
        return ReportLine(step=_step_of(key), symbol=self.symbols.note, style="yellow", text=text, detail=detail)

    def _dim(self, step: int, text: str, detail: str) -> ReportLine:
        return ReportLine(step=step, symbol=self.symbols.note, style="dim", text=text, detail=detail)

    def _failure(self, step: int, text: str, detail: str) -> ReportLine:
        return ReportLine(step=step, symbol=self.symbols.failure, style="red", text=text, detail=detail)


def _format_arguments(call: ToolCall) -> str:
    return "\n".join([f"{name} = {value}" if name else value for name, value in render_arguments(call)])


def _format_decision(decision: Decision) -> str:
    match decision:
        case Approve(grant=None):
            return "approved"
        case Approve(grant=grant):
            return f"approved, and from now on: {as_one_line(str(grant))}"
        case Deny(reason):
            return f"denied{f': {as_one_line(reason)}' if reason else ''}"
        case Answer(value):
            return f"answered with {render_value(value)}"
        case Edit(arguments):
            return f"runs with {render_value(arguments)}"


def _format_time(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _step_of(key: str) -> int:
    place = parse_key(key)
    return 0 if place is None else place[0]


# --- as text --------------------------------------------------------------------------------------------------------

_INDENT = "    "


def _print_report(out: Console, report: ExecutionReport, step: int | None) -> None:
    if step is None:
        _print_head(out, report)
    is_included = step is None
    for depth, line in report.lines:
        # Lines of sub-agents have steps of their own; they belong to the step of the line above them.
        if step is not None and not depth:
            is_included = line.step == step
        if is_included:
            _print_line(out, line, depth, in_full=step is not None)
    if step is None:
        _print_end(out, report)


def _print_head(out: Console, report: ExecutionReport) -> None:
    head = report.head
    status = (report.status, STATUS_STYLES.get(report.status, ""))
    out.print(Text.assemble(f"execution {as_one_line(head.execution_id)}  ", status))
    caller = f", called by {as_one_line(head.parent_agent_id)}" if head.parent_agent_id else ""
    name = f"{as_one_line(head.agent_name)}, " if head.agent_name else ""
    out.print(f"agent     {name}{as_one_line(head.agent_id)}, execution {head.number}{caller}")
    if head.forked_from:
        out.print(f"fork of   {as_one_line(head.forked_from)}")
    if (principal := principal_of(report.state)) is not None:
        out.print(f"asked by  {as_one_line(str(principal))}", markup=False)
    out.print(Text(f"input     {as_one_line(head.input)}"), no_wrap=True, overflow="ellipsis")
    elapsed = format_duration((head.updated_at - head.started_at).total_seconds())
    records = format_count(head.record_count, "record")
    out.print(f"started   {_format_time(head.started_at)}, updated {elapsed} later, {records}")


def _print_line(out: Console, line: ReportLine, depth: int, *, in_full: bool) -> None:
    indent = _INDENT * depth
    if not line.symbol:
        out.print(Text(f"{indent}{line.text}", line.style), soft_wrap=True)
        return
    text = Text(f"{indent}  ").append(f"{set_cell_size(line.symbol, 2)} ", line.style)
    text.append(line.text, "dim" if line.style == "dim" else "")
    if line.detail and not in_full:
        text.append(f"  {as_one_line(line.detail)}", "dim")
    if in_full:
        out.print(text, soft_wrap=True)
    else:
        out.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    below = [line.detail] if in_full else []
    below += [line.traceback] if in_full or is_debugging() else []
    for part in [part for each in below for part in _visible_lines(each)]:
        out.print(Text(f"{indent}       {part}", "dim"), soft_wrap=True)


def _visible_lines(text: str) -> list[str]:
    return escape_invisible(text.replace("\r\n", "\n")).split("\n") if text else []


def _print_end(out: Console, report: ExecutionReport) -> None:
    effects = [call for call in report.calls if call.effect is Effect.EFFECT]
    if effects:
        out.print(Text("\neffects", "bold"))
        out.print("  key  call  started  outcome")
        for call in effects:
            out.print(_format_effect(call), soft_wrap=True)
    state = report.state
    _print_undelivered(out, report)
    if text := state.final_text:
        out.print(Text("\nanswer", "bold"))
        out.print(Text(as_printable(text)))
    out.print()
    # A running or interrupted execution has no outcome to summarize yet.
    if state.status.is_terminal or state.status is ExecutionStatus.SUSPENDED:
        problem = describe_problem(state)
        if problem:
            out.print(Text(problem), soft_wrap=True)
        out.print(Text(summarize(state)))
    if report.status == INTERRUPTED:
        out.print(f"to resume it: agentloop runs resume {as_one_line(report.head.execution_id)} module:loop")


def _print_undelivered(out: Console, report: ExecutionReport) -> None:
    if not report.undelivered:
        return
    is_late = report.state.status.is_terminal
    title = "messages that came too late, after the end" if is_late else "messages that wait for the next step"
    out.print(Text(f"\n{title}", "bold"))
    for command in report.undelivered:
        sender = f" by {as_one_line(command.principal)}" if command.principal else ""
        out.print(Text(f"  sent {_format_time(command.posted_at)}{sender}"), soft_wrap=True)
        for line in _visible_lines(_text_of(command)):
            out.print(Text(f"    {line}", "yellow"), soft_wrap=True)


def _text_of(command: ExecutionCommand) -> str:
    return "" if command.message is None else command.message.text


def _format_effect(call: CallAccount) -> Text:
    """Format a call with an effect: its key, the call in full, how often it started, and its outcome."""
    # Marked, because a person may have to look whether the effect happened.
    is_doubtful = call.execution is None or call.execution.may_have_run or call.execution.status is ToolStatus.IN_DOUBT
    starts = "once" if call.start_count == 1 else f"{call.start_count} times"
    text = Text(f"  {as_one_line(call.key)}  {format_call(call.call, in_full=True)}  {starts:<7}  ")
    return text.append(call.outcome, "yellow" if is_doubtful else "")


def _print_record(record: JournalRecord) -> None:
    click.echo(f"{record.sequence}  {record.kind.value}  {record.at.isoformat()}  {record.hash[:12]}")
    click.echo(escape_invisible(json.dumps(json.loads(record.body), indent=2, ensure_ascii=False)))


# --- as JSON --------------------------------------------------------------------------------------------------------


def _report_as_json(report: ExecutionReport) -> dict[str, object]:
    return {
        "execution": head_as_json(report.head, report.status),
        "principal": str(principal_of(report.state) or ""),
        "calls": [_call_as_json(call) for call in report.calls],
        "state": to_plain(report.state),
        "pending": [
            {"key": call.key, "rendering": call.rendering, "digest": call.digest} for call in report.state.pending
        ],
        "undelivered": [to_plain(command.message) for command in report.undelivered],
    }


def _call_as_json(call: CallAccount) -> dict[str, object]:
    return {
        "key": call.key,
        "name": call.call.name,
        "arguments": call.call.arguments_json,
        "effect": None if call.effect is None else call.effect.value,
        "begun": call.start_count,
        "told": call.outcome,
    }
