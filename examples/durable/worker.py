"""The worker of the durable demo, a process of its own: `python -m durable.worker FOLDER begin|recover`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from durable.office import INVOICE, TOOLS, Office

from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.events.tool_calls import ToolCallSettled
from agentloop.loop.agent_loop import AgentLoop
from agentloop.models.scripted import ScriptedInference
from agentloop.service.cli.console import as_printable, create_console
from agentloop.service.cli.progress import Progress
from agentloop.values.event import Event
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall

EXECUTION_ID = "invoice-71"
QUESTION = "Pay invoice 71: reserve the money, set its status, pay it, and write to the supplier."
SETTLED_MARK = "@settled"
"""Printed before the name of a tool whose outcome is in the journal."""
ANSWER_MARK = "@answer"
"""Printed before the final answer."""
_LETTER: Mapping[str, object] = {"to": INVOICE["supplier"], "text": "We have paid your invoice."}
_NUMBER: Mapping[str, object] = {"number": INVOICE["number"]}
_AMOUNT: Mapping[str, object] = {**_NUMBER, "cents": INVOICE["cents"]}


def journal_path(folder: Path) -> Path:
    """Return the file of the journal."""
    return folder / "agentloop.db"


def ledger_path(folder: Path) -> Path:
    """Return the file of the ledger."""
    return folder / "ledger.jsonl"


def respond(request: InferenceRequest) -> InferenceResponse:
    """Respond from the conversation alone, so that any process can continue it."""
    executions = [exchange.execution for message in request.messages for exchange in message.exchanges]
    names = [execution.name for execution in executions]
    is_in_doubt = any(execution.status.value == "in_doubt" for execution in executions)
    if "read_invoice" not in names:
        return _calls(("read_invoice", _NUMBER))
    if "pay" not in names:
        return _calls(
            ("reserve_budget", _AMOUNT),
            ("set_status", {**_NUMBER, "status": "paid"}),
            ("pay", _AMOUNT),
            ("send_letter", _LETTER),
        )
    if is_in_doubt and "list_letters" not in names:
        return _calls(("list_letters", {}))
    sent = executions[-1].text if is_in_doubt else ""
    letter = (
        f"I could not know whether the letter was sent, so I looked: {sent}." if is_in_doubt else "The letter is sent."
    )
    return InferenceResponse((Text(f"Invoice 71 is paid. {letter}"),), model="scripted")


async def work(folder: Path, *, recovers: bool) -> None:
    """Begin the execution, or recover it from the journal, and print the progress.

    Args:
        folder: the folder of the journal and the ledger.
        recovers: whether the execution is in the journal already.
    """
    journal = SqliteJournal(journal_path(folder))
    loop = AgentLoop.for_model(ScriptedInference(*[respond] * 6), tools=TOOLS, journal=journal)
    office = Office(ledger_path(folder), holds_calls=not recovers)
    with Progress(create_console()) as progress:
        loop.wiretap(progress)
        loop.wiretap(_print_settled)
        if recovers:
            state = await loop.recover(EXECUTION_ID, dependencies=office)
        else:
            state = await loop.execute(QUESTION, execution_id=EXECUTION_ID, dependencies=office)
    await journal.aclose()
    print(f"{ANSWER_MARK} {as_printable(state.output)}", flush=True)


def _print_settled(event: Event) -> None:
    if isinstance(event, ToolCallSettled):
        print(f"{SETTLED_MARK} {event.execution.name}", flush=True)


def _calls(*calls: tuple[str, Mapping[str, object]]) -> InferenceResponse:
    parts = [ToolCall(f"call_{name}", name).with_arguments(arguments) for name, arguments in calls]
    return InferenceResponse(tuple(parts), FinishReason.TOOL_CALLS, model="scripted")


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), recovers=sys.argv[2] == "recover"))
