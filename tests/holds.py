"""How long the event loop's thread is held: the longest processor time that it spends in one callback."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self


class Holds:
    """Measures the callbacks of all event loops of asyncio in the block, each by the processor time of its thread.

    Other processes and threads of a busy machine do not count, as they do in the time that passes.

    Attributes:
        longest: the longest time, in seconds.
        callback: the callback that took it.
    """

    def __init__(self) -> None:
        self.longest: float = 0.0
        self.callback: str = ""
        self._run: Any = asyncio.Handle._run

    def __enter__(self) -> Self:
        run = self._run

        def measured(handle: asyncio.Handle) -> None:
            started = time.thread_time()
            try:
                run(handle)
            finally:
                taken = time.thread_time() - started
                if taken > self.longest:
                    self.longest, self.callback = taken, f"{handle!r:.200}"

        handles: Any = asyncio.Handle
        handles._run = measured
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handles: Any = asyncio.Handle
        handles._run = self._run
