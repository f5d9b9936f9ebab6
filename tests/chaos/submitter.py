"""A process that submits executions to the engine: `python -m tests.chaos.submitter EXECUTIONS`.

`EXECUTIONS` is JSON, a list of pairs of an id and an input. `CHAOS_DB` names the database, `CHAOS_VERSION` the version of the program,
`CHAOS_KILL_AFTER` after how many submissions the process kills itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from agentloop.service.cluster import Cluster

AGENT = "tests.chaos.agents:loop"


async def main() -> None:
    """Submit one execution after the other."""
    limit = int(os.environ.get("CHAOS_KILL_AFTER", "-1"))
    async with Cluster(os.environ["CHAOS_DB"], version=os.environ.get("CHAOS_VERSION", "")) as cluster:
        for number, (execution_id, text) in enumerate(json.loads(sys.argv[1])):
            if number == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            await cluster.submit(AGENT, text, execution_id=execution_id)


if __name__ == "__main__":
    asyncio.run(main())
