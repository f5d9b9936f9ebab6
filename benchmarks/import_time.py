"""Measures the import time of agentloop against `import asyncio, attrs`.

python benchmarks/import_time.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Row, show

DEFINITION = """
from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

loop = AgentLoop(ToolCallingDriver(HttpInference(LLMConfig.parse("openai:any", api_key="key"))), [add])
"""
LOADED = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
THIRD_PARTY = {"attrs", "attr", "cattrs", "jsonschema", "httpx", "blinker", "tenacity", "docstring_parser", "orjson"}
LATE = {"httpx", "jsonschema", "tenacity", "cattrs"}


def seconds(program: str, environment: dict[str, str], rounds: int = 15) -> float:
    best = float("inf")
    for _ in range(rounds):
        before = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        best = min(best, time.perf_counter() - before)
    return best


def loaded(program: str, environment: dict[str, str]) -> set[str]:
    command = [sys.executable, "-c", f"{program}\n{LOADED}"]
    return set(subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout.split())


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONPATH": str(Path(__file__).parents[1])}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        base = seconds("import asyncio, attrs", environment)
        facade = seconds("import agentloop", environment)
        definition = seconds(DEFINITION, environment)
        foreign = loaded("import agentloop", environment) & THIRD_PARTY
        early = loaded(DEFINITION, environment) & LATE
    ratio = definition / base
    return [
        Row(
            "third-party modules that `import agentloop` loads",
            f"{', '.join(sorted(foreign)) or 'none'} ({facade * 1000:.0f} ms)",
            "none",
            not foreign,
        ),
        Row(
            "httpx, jsonschema, tenacity, cattrs loaded by defining an agent",
            ", ".join(sorted(early)) or "none",
            "none",
            not early,
        ),
        Row(
            "defining an agent",
            f"{definition * 1000:.0f} ms = {ratio:.2f} x `import asyncio, attrs` ({base * 1000:.0f} ms)",
            "<= 1.60 x",
            ratio <= 1.6,
        ),
    ]


if __name__ == "__main__":
    show("imports", rows())
