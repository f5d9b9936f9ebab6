"""A run with a budget and a journal: Ctrl-C ends the program, and the next start continues where it was.

Run it, press Ctrl-C while it works, and run it again: no letter is sent twice.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentloop import AgentLoop, Budget, ScriptedInference, SqliteJournal, ToolCall, ToolContext, tool
from agentloop.errors import ExecutionError, UnknownExecution
from agentloop.values import Reconciliation, did_not_happen, happened

FOLDER = Path(sys.argv[1] if sys.argv[1:] else ".")
SECONDS = float(sys.argv[2] if sys.argv[2:] else 2)


def was_sent(context: ToolContext) -> Reconciliation:
    # Asked after an interruption: the key of a call stays the same, so the letter can be looked up.
    letters = FOLDER / "letters.txt"
    is_there = letters.exists() and context.idempotency_key in letters.read_text()
    return happened("sent") if is_there else did_not_happen()


@tool(reconcile=was_sent)
async def send_letter(to: str, context: ToolContext) -> str:
    """Send a letter to a person."""
    await asyncio.sleep(SECONDS)
    with (FOLDER / "letters.txt").open("a") as letters:
        letters.write(f"{to} {context.idempotency_key}\n")
    print(f"sent to {to}", flush=True)
    return "sent"


NAMES = ["Ada", "Bob", "Cleo"]
MODEL = ScriptedInference(*[ToolCall("1", "send_letter", f'{{"to": "{name}"}}') for name in NAMES], "All have letters.")


def main() -> None:
    journal = SqliteJournal(FOLDER / "letters.db")
    loop = AgentLoop.for_model(
        MODEL, tools=[send_letter], journal=journal, interceptors=[Budget(steps=10, seconds=600, tool_calls=5)]
    )
    try:
        try:
            state = loop.recover_sync("letters")
        except UnknownExecution:
            state = loop.execute_sync("Write to Ada, Bob and Cleo.", execution_id="letters")
        print(state.raise_for_status().output)
    except KeyboardInterrupt:
        print("interrupted; start it again to continue")
    except ExecutionError as error:
        print(error)


if __name__ == "__main__":
    main()
