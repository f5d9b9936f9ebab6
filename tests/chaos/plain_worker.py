"""A worker without an engine: `python -m tests.chaos.plain_worker NAME`.

It tries the executions that the file `submitted` names, one line for each, until all have ended: it starts those that are not recorded,
recovers those that nobody runs, and leaves those that another worker runs. So the journal alone keeps workers apart.
`CHAOS_DB` names the database, `CHAOS_SLOTS` how many executions run at once. SIGTERM interrupts what runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import traceback
from contextlib import suppress

from attrs import define, field

from agentloop import AgentLoop
from agentloop.durable import open_journal
from agentloop.errors import JournalConflict, JournalError
from tests.chaos import agents
from tests.chaos.ledger import Ledger

_INTERVAL = 0.05
"""Seconds between two looks at what is submitted."""


@define
class PlainWorker:
    """Runs the submitted executions, several at once.

    Attributes:
        loop: the loop, with its journal.
        ledger: names what is submitted; errors are noted beside it.
    """

    loop: AgentLoop
    ledger: Ledger
    _left: dict[str, str] = field(factory=dict)
    _read: int = 0

    async def run(self, slots: int) -> None:
        """Run executions until the task is cancelled."""
        order = random.Random(self.ledger.worker)  # workers begin with different executions
        async with asyncio.TaskGroup() as group:
            for _ in range(slots):
                group.create_task(self._work(order))

    async def _work(self, order: random.Random) -> None:
        while True:
            submitted = self.ledger.notes("submitted")
            self._left |= dict(json.loads(text) for text in submitted[self._read :])
            self._read = len(submitted)
            if self._left:
                execution_id = order.choice(sorted(self._left))
                await self._try(execution_id, self._left.pop(execution_id))
            await asyncio.sleep(_INTERVAL)

    async def _try(self, execution_id: str, text: str) -> None:
        """Run an execution to its end, unless another worker runs it."""
        try:
            await self.loop.get_or_start(text, execution_id)
        except JournalConflict:
            self._left[execution_id] = text
        except JournalError as error:  # the claim or the database was lost; whoever can claim it goes on
            self.ledger.note("journal errors", f"{self.ledger.worker} {execution_id} {type(error).__name__}: {error}")
            self._left[execution_id] = text
        except Exception:  # noqa: BLE001  # the account reports any error
            self.ledger.note("errors", " | ".join(traceback.format_exc().splitlines()))


async def main() -> None:
    """Work until SIGTERM."""
    ledger = Ledger(agents.folder(), agents.worker())
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    journal = open_journal(os.environ["CHAOS_DB"])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        await PlainWorker(agents.loop().replace(journal=journal), ledger).run(int(os.environ.get("CHAOS_SLOTS", "8")))
    finally:
        await journal.aclose()


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(main())
