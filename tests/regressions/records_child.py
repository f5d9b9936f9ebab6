"""Programs that fork: `records_child.py pool PATH` and `records_child.py prefork PATH`.

pool: run a call that starts a process pool; print the id of the pool's process, and die by `kill -9`.
prefork: use a journal, fork, and use it again in the child; the exit code is the child's.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import SqliteJournal
from agentloop.errors import AgentLoopError

TIMEOUT = 5
"""The seconds after which a forked child counts as blocked; it normally takes milliseconds."""


def pool(path: str) -> None:
    @tool(effect="pure")
    def work() -> str:
        """Work in a pool."""
        executor = ProcessPoolExecutor(1, mp_context=get_context("fork"))
        sys.stdout.write(f"{executor.submit(os.getpid).result()}\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    model = ScriptedInference(ToolCall("1", "work", "{}"), "done")
    AgentLoop.for_model(model, tools=[work], journal=SqliteJournal(path)).execute_sync("go", execution_id="run")


def prefork(path: str) -> None:
    loop = AgentLoop.for_model(ScriptedInference("hello"), journal=SqliteJournal(path))
    loop.execute_sync("go", execution_id="parent")
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT)
        try:
            loop.execute_sync("go", execution_id="child")
        except AgentLoopError:  # an error that a child needs its own journal is correct too
            os._exit(0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os._exit(abs(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    {"pool": pool, "prefork": prefork}[sys.argv[1]](sys.argv[2])
