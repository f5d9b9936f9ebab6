"""The worker of the durable demo, a process of its own: `python -m agentloop.cli.demo.durable_worker FOLDER begin|recover`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from agentloop.cli.console import console, printable
from agentloop.cli.demo.office import Office
from agentloop.cli.demo.office_tools import INVOICE, TOOLS
from agentloop.cli.progress import Progress
from agentloop.events.tool_calls import ToolCallSettled
from agentloop.inference.scripted import ScriptedInference
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.event import Event
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall

EXECUTION = "invoice-71"
SETTLED = "@settled"
"""What the worker says when the outcome of a call is written down, with the name of the tool."""
ANSWER = "@answer"
QUESTION = "Pay invoice 71: reserve the money, set its status, pay it, and write to the supplier."
_LETTER: Mapping[str, object] = {"to": INVOICE["supplier"], "text": "We have paid your invoice."}
_NUMBER: Mapping[str, object] = {"number": INVOICE["number"]}
_SUM: Mapping[str, object] = {**_NUMBER, "cents": INVOICE["cents"]}


def journal_of(folder: Path) -> Path:
    """Return the file of the journal."""
    return folder / "agentloop.db"


def ledger_of(folder: Path) -> Path:
    """Return the file of the ledger."""
    return folder / "ledger.jsonl"


def says(request: InferenceRequest) -> InferenceResponse:
    """Answer as a model does: by what stands in the conversation, whoever has written it."""
    executions = [exchange.execution for message in request.messages for exchange in message.exchanges]
    names = [execution.name for execution in executions]
    doubtful = any(execution.status.value == "in_doubt" for execution in executions)
    if "read_invoice" not in names:
        return _calls(("read_invoice", _NUMBER))
    if "pay" not in names:
        return _calls(
            ("reserve_budget", _SUM),
            ("set_status", {**_NUMBER, "status": "paid"}),
            ("pay", _SUM),
            ("send_letter", _LETTER),
        )
    if doubtful and "list_letters" not in names:
        return _calls(("list_letters", {}))
    sent = executions[-1].text if doubtful else ""
    told = f"I was not told whether the letter had left, so I looked: {sent}." if doubtful else "The letter is sent."
    return InferenceResponse((Text(f"Invoice 71 is paid. {told}"),), model="scripted")


async def work(folder: Path, *, begins: bool) -> None:
    """Begin the execution, or go on with it, and tell what happens on standard output."""
    journal = SqliteJournal(journal_of(folder))
    loop = AgentLoop.for_model(ScriptedInference(*[says] * 6), tools=TOOLS, journal=journal)
    office = Office(ledger_of(folder), holds=begins)
    with Progress(console()) as progress:
        loop.wiretap(progress)
        loop.wiretap(_tell_settled)
        if begins:
            state = await loop.execute(QUESTION, execution_id=EXECUTION, dependencies=office)
        else:
            state = await loop.recover(EXECUTION, dependencies=office)
    await journal.aclose()
    print(f"{ANSWER} {printable(state.final_text)}", flush=True)  # noqa: T201  # to the process that has started this one


def _tell_settled(event: Event) -> None:
    if isinstance(event, ToolCallSettled):
        print(f"{SETTLED} {event.execution.name}", flush=True)  # noqa: T201  # to the process that has started this one


def _calls(*calls: tuple[str, Mapping[str, object]]) -> InferenceResponse:
    made = [ToolCall(f"call_{name}", name).with_arguments(arguments) for name, arguments in calls]
    return InferenceResponse(tuple(made), FinishReason.TOOL_CALLS, model="scripted")


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), begins=sys.argv[2] == "begin"))
