"""Cases that may exhaust CPU time or memory; each runs in a separate process with limits.

`python -m tests.regressions.strangers_child CASE ARGUMENT…` prints its results. A process that is killed prints nothing.
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
from agentloop.durable import SqliteJournal
from agentloop.errors import AgentLoopError, ToolDefinitionError
from agentloop.executors import ToolExecutor
from agentloop.mcp import McpEnsemble
from agentloop.models.text_calls import read_calls
from agentloop.toolkits.files import files
from agentloop.toolkits.sqlite import sqlite
from agentloop.tools.validation import SchemaValidator
from agentloop.values import Bounds, Effect, ToolSpec
from tests.mcp.test_hostile_http import JSON, response, server_with
from tests.models.loopback import completion, loopback, respond
from tests.models.loopback_inference import QUESTION, bound, inference_for
from tests.regressions.strangers_server import doubling
from tests.toolkits.running import executions, run_call, run_calls

SERVER = str(Path(__file__).with_name("strangers_server.py"))
MEGABYTE = 1 << 20


def limited(cpu_seconds: float = 4.0) -> None:
    """Limit this process to this CPU time, after which SIGPROF kills it, and to two gigabytes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (2048 * MEGABYTE, 2048 * MEGABYTE))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def peak() -> int:
    """Return the peak memory of this process in megabytes.

    `ru_maxrss` would include the memory of the parent process.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def report(**results: Any) -> None:
    """Print the results of a case."""
    print(json.dumps(results), flush=True)  # noqa: T201


def schema(name: str) -> None:
    """Compile an untrusted schema, and check arguments against it."""
    text = "a" * 40 + "!"
    schemas: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "references": (doubling(30), {}),
        "pattern": ({"type": "object", "properties": {"q": {"type": "string", "pattern": "^(a+)+$"}}}, {"q": text}),
        "patternProperties": ({"type": "object", "patternProperties": {"^(a+)+$": {}}}, {text: 1}),
    }
    untrusted, arguments = schemas[name]
    limited()
    try:
        SchemaValidator(untrusted).accepts(arguments)
    except ToolDefinitionError:
        report(refused=True)
    else:
        report(refused=False)


def connect(manner: str, notes: str) -> None:
    """Connect to an untrusted server."""

    async def connected() -> None:
        async with McpEnsemble.stdio(sys.executable, ["-S", SERVER, manner, notes], connect_timeout=30) as server:
            report(offered=len(server.offered))

    limited(6.0)
    asyncio.run(connected())


@tool(effect="pure")
def look(q: str) -> str:
    """Look something up."""
    return q


def fence(driver: str) -> None:
    """Parse an answer that opens a fence, has many empty lines, and does not close the fence."""
    answers = ScriptedInference(*["```" + "\n" * 4000 + "x"] * 5)
    chosen = ReActDriver(answers, max_retries=0) if driver == "react" else ToolCallingDriver(answers, mode="structured")
    loop = AgentLoop(chosen, [look], max_steps=1)
    limited()
    report(status=loop.execute_sync("go").status.value)


def brackets() -> None:
    """Parse a million brackets that contain no call."""
    spec = ToolSpec("search", "Search.", {"type": "object", "properties": {"q": {"type": "string"}}}, Effect.PURE)
    limited(6.0)
    read_calls("[{" * 500_000, [spec])
    report(read=True)


def spaces(megabytes: int) -> bytes:
    """Compress megabytes of spaces without holding them all in memory."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(b" " * MEGABYTE) for _ in range(megabytes)]) + packer.flush()


def inflated_answer(codings: str) -> None:
    """Request an answer that is far larger after decompression."""
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
            before, error_type = peak(), "none"
            try:
                await inference.infer(QUESTION)
            except (AgentLoopError, MemoryError) as error:
                error_type = type(error).__name__
            report(error=error_type, megabytes=peak() - before)

    limited(10.0)
    asyncio.run(asked())


def inflated_result() -> None:
    """Call a tool whose result is far larger after decompression."""
    body = spaces(60)
    packed = response("200 OK", JSON, body).replace(b"content-type", b"content-encoding: gzip\r\ncontent-type", 1)

    async def asked() -> None:
        async with server_with(packed, calls_only=True) as server:
            async with server:
                before = peak()
                execution = await run_call([server], "act")
            report(status=execution.status.value, megabytes=peak() - before)

    limited(10.0)
    asyncio.run(asked())


def grow(folder: str) -> None:
    """Replace every character of a file by a long text."""
    (Path(folder) / "grow").write_text("a" * 100_000)
    before = peak()
    limited()
    edit = {"path": "grow", "old": "a", "new": "b" * 1000, "all": True}
    execution = asyncio.run(run_call([files(folder)], "edit_file", **edit))
    error = "" if execution.error is None else execution.error.type
    report(status=execution.status.value, error=error, megabytes=peak() - before)


def slow_query(path: str) -> None:
    """Run a query of a few slow instructions."""
    limited()
    rows = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000000) SELECT"
    query = {"sql": f"{rows} sum(length(randomblob(9000000))) FROM r"}
    report(status=asyncio.run(run_call([sqlite(path)], "query_database", **query)).status.value)


def many_calls(count: str) -> None:
    """Run many calls of one answer, and count the threads; calls end only after all concurrent calls have started."""
    gate, most_threads = threading.Event(), [0]

    @tool(effect="pure")
    def hold(number: int) -> int:
        """Wait."""
        gate.wait()
        return number

    async def watched() -> int:
        calls = [("hold", {"number": number}) for number in range(int(count))]
        bounds = Bounds(calls_per_answer=len(calls))
        running = asyncio.create_task(run_calls([hold], calls, executor=ToolExecutor(), bounds=bounds))
        for _ in range(500):
            await asyncio.sleep(0)
            most_threads[0] = max(most_threads[0], threading.active_count())
        gate.set()
        return sum(execution.succeeded for execution in executions(await running))

    report(done=asyncio.run(watched()), threads=most_threads[0])


def forked(path: str) -> None:
    """Execute with a journal, fork, and execute with it again in the child."""
    loop = AgentLoop.for_model(ScriptedInference("one"), journal=SqliteJournal(path))
    loop.execute_sync("go", execution_id="before")
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 3)  # a signal ends a child that blocks
        try:
            outcome = loop.execute_sync("go", execution_id="after").status.value
        except AgentLoopError as error:
            outcome = type(error).__name__
        os.write(1, (json.dumps({"child": outcome}) + "\n").encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    report(signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


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
