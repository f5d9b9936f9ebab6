"""Cases that may take a processor or the memory for themselves; each is run in a process of its own, within limits.

`python -m tests.regressions.strangers_child CASE ARGUMENT…` prints what came of it. A process that is killed prints nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCallingDriver, tool
from agentloop.errors import AgentLoopError, ToolDefinitionError
from agentloop.executors import ToolExecutor
from agentloop.journal import SqliteJournal
from agentloop.mcp import McpEnsemble
from agentloop.text_calls import read_calls
from agentloop.tools.ensembles.files import files
from agentloop.tools.ensembles.sqlite import sqlite
from agentloop.tools.validation import SchemaValidator
from agentloop.values import Effect, ToolSpec
from tests.inference.loopback import completion, loopback, respond
from tests.inference.loopback_inference import QUESTION, bound, inference_for
from tests.mcp.test_hostile_http import JSON, response, server_with
from tests.regressions.strangers_server import doubling
from tests.tools.ensembles.running import executions, run_call, run_calls

SERVER = str(Path(__file__).with_name("strangers_server.py"))
MEGABYTE = 1 << 20


def limited(cpu_seconds: float = 1.0) -> None:
    """From here on, allow this process these seconds of a processor and two gigabytes; it is killed by SIGPROF after that."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (2048 * MEGABYTE, 2048 * MEGABYTE))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def peak() -> int:
    """Return the most megabytes that this process has used until now.

    `ru_maxrss` would begin with what the process that started this one has used.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def tell(**what: Any) -> None:
    """Print what came of a case."""
    print(json.dumps(what), flush=True)  # noqa: T201


def schema(name: str) -> None:
    """Compile the schema of a stranger, and check arguments against it."""
    text = "a" * 40 + "!"
    schemas: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "references": (doubling(30), {}),
        "pattern": ({"type": "object", "properties": {"q": {"type": "string", "pattern": "^(a+)+$"}}}, {"q": text}),
        "patternProperties": ({"type": "object", "patternProperties": {"^(a+)+$": {}}}, {text: 1}),
    }
    given, arguments = schemas[name]
    limited()
    try:
        SchemaValidator(given).accepts(arguments)
    except ToolDefinitionError:
        tell(refused=True)
    else:
        tell(refused=False)


def connect(manner: str, notes: str) -> None:
    """Connect with a server."""

    async def connected() -> None:
        async with McpEnsemble.stdio(sys.executable, ["-S", SERVER, manner, notes], connect_timeout=30) as server:
            tell(offered=len(server.offered))

    limited(2.0)
    asyncio.run(connected())


@tool(effect="pure")
def look(q: str) -> str:
    """Look something up."""
    return q


def fence(driver: str) -> None:
    """Read the answer of a model that opens a fence, writes empty lines, and does not close it."""
    answers = ScriptedInference(*["```" + "\n" * 4000 + "x"] * 5)
    made = ReActDriver(answers, max_retries=0) if driver == "react" else ToolCallingDriver(answers, mode="structured")
    loop = AgentLoop(made, [look], max_steps=1)
    limited()
    tell(status=loop.execute_sync("go").status.value)


def brackets() -> None:
    """Read a million characters of brackets that no call is in."""
    spec = ToolSpec("search", "Search.", {"type": "object", "properties": {"q": {"type": "string"}}}, Effect.PURE)
    limited(2.0)
    read_calls("[{" * 500_000, [spec])
    tell(read=True)


def spaces(megabytes: int) -> bytes:
    """Compress so many megabytes of spaces, which never stand in memory all at once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(b" " * MEGABYTE) for _ in range(megabytes)]) + packer.flush()


def inflated_answer(codings: str) -> None:
    """Ask a model whose answer is far larger than it looks."""
    body = spaces(100)
    for _ in range(int(codings) - 1):
        body = gzip.compress(body)
    headers = {"content-encoding": ", ".join(["gzip"] * int(codings)), "content-type": "application/json"}

    async def asked() -> None:
        small = respond(200, gzip.compress(completion()), {"content-encoding": "gzip"})
        async with (
            loopback(small, respond(200, body, headers)) as server,
            bound(inference_for(server, max_response_bytes=MEGABYTE)) as (inference,),
        ):
            await inference.infer(QUESTION)
            before, told = peak(), "none"
            try:
                await inference.infer(QUESTION)
            except (AgentLoopError, MemoryError) as error:
                told = type(error).__name__
            tell(error=told, megabytes=peak() - before)

    limited(3.0)
    asyncio.run(asked())


def inflated_result() -> None:
    """Call a tool of a server whose answer is far larger than it looks."""
    body = spaces(60)
    packed = response("200 OK", JSON, body).replace(b"content-type", b"content-encoding: gzip\r\ncontent-type", 1)

    async def asked() -> None:
        async with server_with(packed, calls_only=True) as server:
            async with server:
                before = peak()
                execution = await run_call([server], "act")
            tell(status=execution.status.value, megabytes=peak() - before)

    limited(3.0)
    asyncio.run(asked())


def grow(folder: str) -> None:
    """Replace each of many characters of a file by a long text."""
    (Path(folder) / "grow").write_text("a" * 100_000)
    before = peak()
    limited()
    edit = {"path": "grow", "old": "a", "new": "b" * 1000, "all": True}
    execution = asyncio.run(run_call([files(folder)], "edit_file", **edit))
    error = "" if execution.error is None else execution.error.type
    tell(status=execution.status.value, error=error, megabytes=peak() - before)


def slow_query(path: str) -> None:
    """Run a query each of whose few instructions takes long."""
    limited()
    rows = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000000) SELECT"
    query = {"sql": f"{rows} sum(length(randomblob(9000000))) FROM r"}
    tell(status=asyncio.run(run_call([sqlite(path)], "query_database", **query)).status.value)


def many_calls(count: str) -> None:
    """Run many calls of one answer; none ends before every one that runs at the same time has begun."""
    gate, most = threading.Event(), [0]

    @tool(effect="pure")
    def hold(number: int) -> int:
        """Wait."""
        gate.wait()
        return number

    async def watched() -> int:
        calls = [("hold", {"number": number}) for number in range(int(count))]
        running = asyncio.create_task(run_calls([hold], calls, executor=ToolExecutor()))
        for _ in range(500):
            await asyncio.sleep(0)
            most[0] = max(most[0], threading.active_count())
        gate.set()
        return len(executions(await running))

    tell(done=asyncio.run(watched()), threads=most[0])


def forked(path: str) -> None:
    """Execute with a journal, fork, and execute with it again in the child."""
    loop = AgentLoop.for_model(ScriptedInference("one"), journal=SqliteJournal(path))
    loop.execute_sync("go", execution_id="before")
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 3)  # the child ends by a signal when it hangs
        try:
            told = loop.execute_sync("go", execution_id="after").status.value
        except AgentLoopError as error:
            told = type(error).__name__
        os.write(1, (json.dumps({"child": told}) + "\n").encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    tell(signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


CASES: dict[str, Callable[..., None]] = {
    case.__name__: case
    for case in (
        schema,
        connect,
        fence,
        brackets,
        inflated_answer,
        inflated_result,
        grow,
        slow_query,
        many_calls,
        forked,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[1]](*sys.argv[2:])
