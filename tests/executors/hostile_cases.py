"""Batches that ask too much, each run in a process of its own: `python -m tests.executors.hostile_cases NAME`."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop import Tool, ToolCall, tool
from agentloop.executors import thread_pool
from agentloop.testing import ExecutorBench
from agentloop.values import freeze_object
from tests.limits import LONGEST

Case: TypeAlias = tuple[Sequence[Tool], Sequence[ToolCall]]

MILLION = 1_000_000
ANYTHING: Mapping[str, Any] = freeze_object({"type": "object"})


@frozen
class Doing(Tool):
    """A tool of any schema that calls a function."""

    name: str
    does: Callable[..., Any] = field(default=lambda **_: "ok")
    parameters: Mapping[str, Any] = ANYTHING

    @property
    def description(self) -> str:
        return "Does something."

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        return self.does(**arguments)


@tool(effect="pure")
async def number(value: int) -> int:
    """Return it."""
    return value


@tool(effect="pure")
def plain_number(value: int) -> int:
    """Return it, from a thread."""
    return value


@tool
def starts_threads() -> int:
    """Start threads and wait for them."""
    threads = [threading.Thread(target=int) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(threads)


def array_of(items: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": {"items": {"type": "array", "items": items, **more}}}


def given(name: str, *texts: str) -> list[ToolCall]:
    return [ToolCall(f"call_{place}", name, text) for place, text in enumerate(texts)]


def many(name: str) -> Case:
    return [number, plain_number], given(name, *[f'{{"value": {value}}}' for value in range(10_000)])


def cyclic_schema() -> Case:
    tree = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "tree": {"$ref": "#/$defs/tree"}}}
    good: dict[str, Any] = {"tree": 1}
    for _ in range(60):
        good = {"next": good, "tree": [[1], 2]}
    texts = (json.dumps(good), '{"tree": [["text"]]}', '{"next": {"next": 1}}')
    return [Doing("cyclic", parameters={**schema, "$defs": {"tree": tree}})], given("cyclic", *texts)


def large_schema() -> Case:
    properties = {f"p{place}": {"enum": ["a", "b"], "description": "x" * 200} for place in range(4_500)}
    schema = {"type": "object", "properties": properties}
    assert len(json.dumps(schema)) > MILLION
    return [Doing("large", parameters=schema)], given("large", *['{"p1": "a"}', '{"p2": "c"}'] * 5)


def many_tools() -> Case:
    tools = [Doing(f"tool_{place}") for place in range(1_000)]
    return tools, [ToolCall("", name, "{}") for name in ("tool_7", "tool_999", "tool_1000", "other", "x" * 5 * MILLION)]


def deep_arguments() -> Case:
    levels = (10, 150, 500, 100_000, MILLION)
    texts = [f'{{"value": {"[" * depth}{"]" * depth}}}' for depth in levels]
    return [Doing("deep")], given("deep", *texts, '{"value":' * MILLION)


def large_arguments() -> Case:
    text, numbers = json.dumps({"value": "x" * 5 * MILLION}), json.dumps({"value": list(range(500_000))})
    return [Doing("large")], given("large", text, numbers, text[:-2])


def all_items_wrong() -> Case:
    items = json.dumps({"items": list(range(500_000))})
    strings, either = {"type": "string"}, {"anyOf": [array_of({"type": "string"}), array_of({"type": "null"})]}
    tools = [
        Doing("listed", parameters=array_of(strings)),
        Doing("either", parameters={"type": "object", **either}),
        Doing("one", parameters={"type": "object", "oneOf": either["anyOf"]}),
    ]
    return tools, [ToolCall("", one.name, items) for one in tools]


def unique_objects() -> Case:
    schema = array_of({"type": "object"}, uniqueItems=True)
    objects = [{"a": place} for place in range(30_000)]
    return [Doing("unique", parameters=schema)], given(
        "unique", json.dumps({"items": objects}), json.dumps({"items": [*objects, objects[0]]})
    )


CASES: Mapping[str, Callable[[], Case]] = {
    "10,000 calls": lambda: many("number"),
    "10,000 calls in threads": lambda: many("plain_number"),
    "10,000 calls of no tool": lambda: many("nothing"),
    "a schema with cycles": cyclic_schema,
    "a schema of 1 MB": large_schema,
    "1,000 tools": many_tools,
    "threads": lambda: ([starts_threads], given("starts_threads", *["{}"] * 5)),
    "a text of 50 MB": lambda: ([Doing("text", lambda: "x" * 50 * MILLION)], given("text", "{}")),
    "deep arguments": deep_arguments,
    "arguments of 5 MB": large_arguments,
    "500,000 wrong items": all_items_wrong,
    "30,000 unique objects": unique_objects,
}


def peak_mb() -> float:
    """Return the most memory this process has had, in megabytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


async def outcomes(case: Case) -> dict[str, int]:
    """Run a batch, and count how its calls ended; each has one outcome, in order."""
    tools, calls = case
    executions = (await ExecutorBench(tools).run(*calls)).executions
    assert [one.call for one in executions] == list(calls)
    assert all(len(one.error_message) < 20_000 for one in executions)
    assert all(len(one.text) < 200_000 for one in executions)
    return Counter(one.status.value for one in executions)


def main(name: str) -> None:
    thread_pool._JOIN_SECONDS = LONGEST  # idle threads are waited for, however busy the machine is
    asyncio.run(outcomes(many_tools()))  # everything is loaded
    case = CASES[name]()
    threads, memory, seconds = threading.active_count(), peak_mb(), time.process_time()
    counted = asyncio.run(outcomes(case))
    print(  # noqa: T201  # what the test reads
        json.dumps(
            {
                "outcomes": counted,
                "seconds": time.process_time() - seconds,
                "mb": peak_mb() - memory,
                "threads": threading.active_count() - threads,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
