"""A small MCP server on the official SDK, with a tool for each case of the tests; run as a script."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from agentloop.mcp.sdk.names import IS_FIRST_GENERATION, types

if TYPE_CHECKING or not IS_FIRST_GENERATION:
    from mcp.server.mcpserver import Context, Image, MCPServer
else:
    from mcp.server.fastmcp import Context, Image
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("small")
PIXEL = b"\x89PNG\r\n\x1a\n"
READ_ONLY = types.ToolAnnotations.model_validate({"readOnlyHint": True})
IDEMPOTENT = types.ToolAnnotations.model_validate({"idempotentHint": True})


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=READ_ONLY)
def pid() -> str:
    """Return the process id."""
    return str(os.getpid())


@server.tool(annotations=IDEMPOTENT)
def put(path: str, text: str) -> str:
    """Write a file."""
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    return "written"


@server.tool()
def log(path: str, die: bool = False) -> str:  # noqa: FBT001, FBT002
    """Append a line to a file, and kill this process when `die` is set."""
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write("line\n")
    if die:
        os.kill(os.getpid(), 9)
    return "logged"


@server.tool(annotations=READ_ONLY)
def die_once(path: str) -> str:
    """Kill this process at the first call, answer the next."""
    if not os.path.exists(path):  # noqa: PTH110
        with open(path, "w", encoding="utf-8"):  # noqa: PTH123
            pass
        os.kill(os.getpid(), 9)
    return "alive"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it went wrong")


@server.tool()
def picture():  # type: ignore[no-untyped-def]  # noqa: ANN201  # a return type would be structured content
    """Return a text and an image."""
    return ["a dot", Image(data=PIXEL, format="png")]


@server.tool()
async def steps(ctx: Context) -> str:
    """Report progress."""
    for number in range(3):
        await ctx.report_progress(number, 3, f"step {number}")
    return "done"


@server.tool()
async def wait(path: str) -> str:
    """Wait until cancelled, and write notes about it."""
    note(path, "waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(path, "cancelled")
        raise
    return "never"


@server.tool()
async def more(ctx: Context) -> str:
    """Add a tool to the server."""
    server.add_tool(pid, name="another")
    await (ctx.session.send_tool_list_changed() if IS_FIRST_GENERATION else ctx.notify_tools_changed())
    return "more"


@server.tool()
def says(text: str) -> str:
    """Write a text to the standard error."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
    return "said"


@server.resource("note://one", name="one", description="A note.")
def one() -> str:
    return "the note"


@server.prompt(description="Greets.")
def greet(name: str) -> str:
    return f"Say hello to {name}."


def note(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{text}\n")


if __name__ == "__main__":
    if sys.argv[1:] and IS_FIRST_GENERATION:
        setattr(server.settings, "port", int(sys.argv[1]))  # noqa: B010  # generation 2 has no such setting
        server.run("streamable-http")
    elif sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
