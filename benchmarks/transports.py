"""Measures what carries the requests to a model: a client of httpx, a connection of httpcore, or one of httptools (extra `fast`).

    python benchmarks/transports.py [ROUNDS]

Each figure is CPU time, beside that of httpcore in the same round: the median, with the lowest and the highest. The rest of the loop is
the same in all of them, and the rows are those of `table.py`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from functools import partial
from typing import Any

import agentloop_subject
import httpx
from measuring import loopback
from subject import Cases
from table import ROWS

from agentloop import HttpInference, LLMConfig, ToolCallingDriver

BASE = "httpcore"
TRANSPORTS = {"client of httpx": None, BASE: "httpx", "httptools": "httptools"}
NAMES = (
    "a turn of 10, async tool",
    "a turn at 200 turns",
    "200 executions at once",
    "a chunk, burst",
    "a chunk, paced",
)


def driver(transport: str | None, url: str, *, streaming: bool = False) -> ToolCallingDriver:
    """Return a driver whose requests are carried so; None for a client of httpx."""
    config = LLMConfig.parse("openai:loopback", base_url=url, api_key="key", transport=transport)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(limits=limits) if transport is None else None
    return ToolCallingDriver(HttpInference(config, client=client), streaming=streaming)


def measure(runner: asyncio.Runner, case: dict[str, Any], rounds: int) -> dict[str, str]:
    """Return the ratios of each transport."""
    cases = {name: Cases(agentloop_subject) for name in TRANSPORTS}
    costs: dict[str, list[float]] = {name: [] for name in TRANSPORTS}
    for number in range(rounds + 1):
        for name, transport in TRANSPORTS.items():
            agentloop_subject.driver = partial(driver, transport)  # what the cases call
            cost = runner.run(getattr(cases[name], case["case"])(case))["cpu"]
            costs[name] += [cost] if number else []  # in the first round, connections are opened
    return {name: _ratios(costs[name], costs[BASE]) for name in TRANSPORTS}


def _ratios(costs: list[float], base: list[float]) -> str:
    ratios = [cost / of for cost, of in zip(costs, base, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main(rounds: int) -> None:
    """Print the table."""
    print(f"| CPU, beside {BASE} | {' | '.join(TRANSPORTS)} |")
    print(f"| --- | {' | '.join('---:' for _ in TRANSPORTS)} |")
    with tempfile.TemporaryDirectory() as folder, loopback() as url, asyncio.Runner() as runner:
        os.environ["BENCHMARK_FOLDER"] = folder
        for row in ROWS:
            if row.name in NAMES:
                case = {**row.case, "url": row.case["url"].format(url=url)}
                print(f"| {row.name} | {' | '.join(measure(runner, case, rounds).values())} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
