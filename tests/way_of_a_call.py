"""Prints the files of the package that a run enters between an answer with a call and the next request, in order, as JSON.

The files of the thread in which a tool runs come last, so that the order does not depend on which thread is faster.

It runs in a process of its own, since the tests watch every event, and what is watched takes a longer way.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import agentloop
from agentloop import AgentLoop, ScriptedInference, SqliteJournal, ToolCall, ToolCallingDriver, tool
from agentloop.events import ToolCallStarted

ROOT = Path(agentloop.__file__).parent
GENERATED = "<attrs generated methods agentloop.events."


@tool(effect="pure")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def file_of(code: CodeType) -> str:
    """Return the file of a function in the package, also of one that attrs has generated for an event; empty for others."""
    name = code.co_filename
    if name.startswith(GENERATED):
        return f"events/{name.removeprefix(GENERATED).partition('.')[0]}.py"
    return str(Path(name).relative_to(ROOT)) if Path(name).is_relative_to(ROOT) else ""


async def main(journal_path: str = "", listeners: str = "") -> None:
    """Run a loop whose model calls a tool once, with a journal if there is a path for it, and with a listener if a word asks for it."""
    journal = SqliteJournal(journal_path) if journal_path else None
    inference = ScriptedInference(ToolCall("c1", "double", '{"number": 2}'), "four")
    loop = AgentLoop(ToolCallingDriver(inference), [double], journal=journal)
    if listeners:
        loop.on(ToolCallStarted, lambda _: None)
    await loop.execute("warm")  # everything is loaded: imports are no part of the way
    visits: list[tuple[str, str]] = []
    in_threads: list[str] = []
    thread = threading.get_ident()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = file_of(frame.f_code) if event == "call" else ""
        if file and threading.get_ident() == thread:
            visits.append((file, frame.f_code.co_name))
        elif file:
            in_threads.append(file)

    threading.setprofile(note)
    sys.setprofile(note)
    await loop.execute("again")
    sys.setprofile(None)
    threading.setprofile(None)
    if journal is not None:
        await journal.aclose()
    first, second = [place for place, visit in enumerate(visits) if visit == ("models/scripted.py", "infer")][:2]
    files = [*(file for file, _ in visits[first : second + 1]), *in_threads]
    way = [file for place, file in enumerate(files) if place == 0 or file != files[place - 1]]
    sys.stdout.write(json.dumps(way))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
