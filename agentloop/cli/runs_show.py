"""`agentloop runs show`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import click
from attrs import frozen
from rich.cells import set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentloop.cli.bad_usage import BadUsage
from agentloop.cli.figures import counted, duration
from agentloop.cli.outcome import shortcoming, summary
from agentloop.cli.runs_calls import CallAccount, calls_in
from agentloop.cli.runs_journal import INTERRUPTED, found, journal_option, standing, with_journal
from agentloop.cli.runs_list import STYLES, as_data
from agentloop.cli.runs_timeline import Line, Timeline
from agentloop.cli.symbols import Symbols
from agentloop.cli.terminal import console
from agentloop.cli.terminal_text import call_text, one_line, printable
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalCorrupt
from agentloop.journal.chain import verified
from agentloop.journal.fold import folded
from agentloop.values.agent_state import AgentState
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import ExecutionHead, JournalRecord
from agentloop.values.serialisation import to_plain
from agentloop.values.tool_execution import ToolStatus
from agentloop.values.tool_spec import Effect

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
        verified(records, head.execution_id)
    except JournalCorrupt as error:
        click.echo(f"{one_line(str(error))}; `agentloop runs verify` tells all", err=True)
    known = folded(records, head.execution_id)
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
