"""A subject of `table.py` in a process of its own: `subject.py NAME` reads a case as JSON per line, and answers with what it took.

A subject has `agent(url, tool)`, which returns a coroutine function that runs one execution, `stream(url)`, whose coroutine function
takes a function that gets each text, and `conversation(texts)`, which returns what it holds a conversation in, the user's texts and the
model's by turns. The tool is `async` or `plain`; a plain one runs in a thread. `floor`, `agentloop` and the names in `peers.py` are
subjects.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import resource
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

Run = Callable[[], Awaitable[object]]
OnText = Callable[[str], None]
QUESTION = "What is 17 + 25?"
PROMPT = "You are a calculator."


class Subject(Protocol):
    """What is measured."""

    def agent(self, url: str, tool: str) -> Run: ...

    def stream(self, url: str) -> Callable[[OnText], Awaitable[object]]: ...

    def conversation(self, texts: Iterable[str]) -> object: ...


def subject(name: str) -> Subject:
    """Return a subject by its name."""
    modules = {"floor": "floor_subject", "agentloop": "agentloop_subject"}
    if name in modules:
        found: Subject = importlib.import_module(modules[name])
    else:
        found = importlib.import_module("peers").PEERS[name]()
    return found


def peak() -> int:
    """Return the highest resident memory so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Cases:
    """Runs the cases of a subject; what they need is made before the clock starts, once."""

    def __init__(self, measured: Subject) -> None:
        self._subject = measured
        self._made: dict[tuple[str, ...], Any] = {}

    def _once(self, make: Callable[..., Any], *arguments: str) -> Any:
        key = (make.__name__, *arguments)
        if key not in self._made:
            self._made[key] = make(*arguments)
        return self._made[key]

    async def turns(self, case: dict[str, Any]) -> dict[str, float]:
        """Run executions one after the other, or so many at once."""
        run: Run = self._once(self._subject.agent, case["url"], case.get("tool", "async"))
        at_once, repeat = case.get("at_once", 1), case.get("repeat", 1)

        async def work() -> None:
            for _ in range(repeat):
                await asyncio.gather(*[run() for _ in range(at_once)])

        return await timed(work)

    async def stream(self, case: dict[str, Any]) -> dict[str, float]:
        """Stream texts; `first` is the time to the first token, in seconds."""
        run: Callable[[OnText], Awaitable[object]] = self._once(self._subject.stream, case["url"])
        firsts: list[float] = []

        async def work() -> None:
            for _ in range(case.get("repeat", 1)):
                begun, texts = time.perf_counter(), list[str]()

                def on_text(text: str, begun: float = begun, texts: list[str] = texts) -> None:
                    if not texts:
                        firsts.append(time.perf_counter() - begun)
                    texts.append(text)

                await run(on_text)
                assert len("".join(texts).split()) == case["chunks"], "a chunk is missing"

        result = await timed(work)
        return {**result, "first": sorted(firsts)[len(firsts) // 2]}

    async def first(self, case: dict[str, Any]) -> dict[str, float]:
        """Create an agent and run it once; in a process that has run nothing yet."""

        async def work() -> None:
            await self._subject.agent(case["url"], case.get("tool", "async"))()

        return await timed(work)

    async def memory(self, case: dict[str, Any]) -> dict[str, float]:
        """Run executions at once; `bytes` is the memory that they added at their peak."""
        run: Run = self._subject.agent(case["url"], "async")
        await self._subject.agent(case["warm"], "async")()
        gc.collect()
        before = peak()
        await asyncio.gather(*[run() for _ in range(case["at_once"])])
        return {"bytes": peak() - before}

    async def conversation(self, case: dict[str, Any]) -> dict[str, float]:
        """Hold a conversation of so many messages; `bytes` is the memory of it."""
        texts = [f"This is message number {number} of a conversation." for number in range(case["messages"])]
        self._subject.conversation(texts[:2])
        with traced() as size:
            held = self._subject.conversation(texts)
        del held
        return {"bytes": size()}

    async def own(self, case: dict[str, Any]) -> dict[str, float]:
        """Run a case that only some subjects have."""
        measure = getattr(self._subject, case["name"])
        result: dict[str, float] = await measure(case)
        return result


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Return a function that says how many bytes the body has added, once it has ended."""
    added = 0
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: added
    gc.collect()
    added = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


async def bytes_of(make: Callable[[], Awaitable[object]], count: int) -> dict[str, float]:
    """Make so many things and hold them; `bytes` is the memory of one."""
    await make()  # what is made once is not measured
    with traced() as size:
        held = [await make() for _ in range(count)]
    del held
    return {"bytes": size() / count}


async def timed(work: Callable[[], Awaitable[None]]) -> dict[str, float]:
    """Return the CPU and wall seconds of some work."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def main(name: str) -> None:
    """Answer cases until the input ends."""
    logging.disable(logging.WARNING)
    cases = Cases(subject(name))
    print("ready", flush=True)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            case = json.loads(line)
            result = runner.run(getattr(cases, case["case"])(case))
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
