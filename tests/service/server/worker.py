"""A server process for the tests: an agent that calls a slow tool, on the database that the command line names."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import open_journal
from agentloop.service.server import serve
from agentloop.values import InferenceRequest, InferenceResponse

FOLDER = Path(sys.argv[1])


@tool(effect="idempotent")
async def wait_for(name: str) -> str:
    """Wait until there is a file."""
    with (FOLDER / "started").open("a") as log:
        log.write(f"{name}\n")
    while not (FOLDER / name).exists():  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)
    return f"found {name}"


def model(request: InferenceRequest) -> InferenceResponse | str:
    if request.messages[-1].exchanges:
        return "It is there."
    return InferenceResponse((ToolCall("1", "wait_for", '{"name": "go"}'),))


async def main() -> None:
    journal = open_journal(sys.argv[2], **json.loads(sys.argv[3]))
    loop = AgentLoop.for_model(ScriptedInference(*[model] * 20), tools=[wait_for], journal=journal)
    try:
        await serve(
            loop,
            port=0,
            on_ready=lambda url: print(url, flush=True),  # noqa: T201  # for the test
        )
    finally:
        await journal.aclose()


if __name__ == "__main__":
    asyncio.run(main())
