"""Batches that demand too much, each run in its own process: `python -m tests.executors.hostile_cases NAME`."""

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
from agentloop.values import Bounds
from agentloop.values.json import freeze_object
from tests.limits import LONGEST

Case: TypeAlias = tuple[Sequence[Tool], Sequence[ToolCall]]

MILLION = 1_000_000
ANYTHING: Mapping[str, Any] = freeze_object({"type": "object"})


@frozen
class CallbackTool(Tool):
    """A tool with any schema that calls a function."""

    name: str
    callback: Callable[..., Any] = field(default=lambda **_: "ok")
    parameters: Mapping[str, Any] = ANYTHING

    @property
    def description(self) -> str:
        return "Calls a function."

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        return self.callback(**arguments)


@tool(effect="pure")
async def number(value: int) -> int:
    """Return the value."""
    return value


@tool(effect="pure")
def plain_number(value: int) -> int:
    """Return the value, from a thread."""
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


def array_schema(items: Mapping[str, Any], **keywords: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": {"items": {"type": "array", "items": items, **keywords}}}


def calls_of(name: str, *arguments: str) -> list[ToolCall]:
    return [ToolCall(f"call_{index}", name, text) for index, text in enumerate(arguments)]


def many_calls(name: str) -> Case:
    return [number, plain_number], calls_of(name, *[f'{{"value": {value}}}' for value in range(10_000)])


def cyclic_schema() -> Case:
    tree = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "tree": {"$ref": "#/$defs/tree"}}}
    valid: dict[str, Any] = {"tree": 1}
    for _ in range(60):
        valid = {"next": valid, "tree": [[1], 2]}
    texts = (json.dumps(valid), '{"tree": [["text"]]}', '{"next": {"next": 1}}')
    return [CallbackTool("cyclic", parameters={**schema, "$defs": {"tree": tree}})], calls_of("cyclic", *texts)


def large_schema() -> Case:
    properties = {f"p{number}": {"enum": ["a", "b"], "description": "x" * 200} for number in range(3_800)}
    schema = {"type": "object", "properties": properties}
    assert 900_000 < len(json.dumps(schema)) < MILLION  # `Bounds.schema_bytes`
    return [CallbackTool("large", parameters=schema)], calls_of("large", *['{"p1": "a"}', '{"p2": "c"}'] * 5)


def many_tools() -> Case:
    tools = [CallbackTool(f"tool_{number}") for number in range(1_000)]
    return tools, [ToolCall("", name, "{}") for name in ("tool_7", "tool_999", "tool_1000", "other", "x" * 5 * MILLION)]


def deep_arguments() -> Case:
    levels = (10, 150, 500, 100_000, MILLION)
    texts = [f'{{"value": {"[" * depth}{"]" * depth}}}' for depth in levels]
    return [CallbackTool("deep")], calls_of("deep", *texts, '{"value":' * MILLION)


def large_arguments() -> Case:
    text, numbers = json.dumps({"value": "x" * 5 * MILLION}), json.dumps({"value": list(range(90_000))})
    return [CallbackTool("large")], calls_of("large", text, numbers, text[:-2])


def all_items_invalid() -> Case:
    items = json.dumps({"items": list(range(90_000))})
    strings, either = {"type": "string"}, {"anyOf": [array_schema({"type": "string"}), array_schema({"type": "null"})]}
    tools = [
        CallbackTool("listed", parameters=array_schema(strings)),
        CallbackTool("either", parameters={"type": "object", **either}),
        CallbackTool("one", parameters={"type": "object", "oneOf": either["anyOf"]}),
    ]
    return tools, [ToolCall("", tool.name, items) for tool in tools]


def unique_objects() -> Case:
    schema = array_schema({"type": "object"}, uniqueItems=True)
    objects = [{"a": number} for number in range(8_000)]
    return [CallbackTool("unique", parameters=schema)], calls_of(
        "unique", json.dumps({"items": objects}), json.dumps({"items": [*objects, objects[0]]})
    )


CASES: Mapping[str, Callable[[], Case]] = {
    "10,000 calls": lambda: many_calls("number"),
    "10,000 calls in threads": lambda: many_calls("plain_number"),
    "10,000 calls of an unknown tool": lambda: many_calls("nothing"),
    "a schema with cycles": cyclic_schema,
    "a schema of 1 MB": large_schema,
    "1,000 tools": many_tools,
    "threads": lambda: ([starts_threads], calls_of("starts_threads", *["{}"] * 5)),
    "a text of 50 MB": lambda: ([CallbackTool("text", lambda: "x" * 50 * MILLION)], calls_of("text", "{}")),
    "deep arguments": deep_arguments,
    "arguments of 5 MB": large_arguments,
    "90,000 invalid items": all_items_invalid,
    "8,000 unique objects": unique_objects,
}


def peak_mb() -> float:
    """Return the peak memory of this process in megabytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


async def count_outcomes(case: Case) -> dict[str, int]:
    """Run a batch and count its outcomes by status; there is one outcome per call, in call order."""
    tools, calls = case
    executions = (await ExecutorBench(tools, bounds=Bounds(calls_per_answer=len(calls))).run(*calls)).executions
    assert [execution.call for execution in executions] == list(calls)
    assert all(len(execution.error_message) < 20_000 for execution in executions)
    assert all(len(execution.text) < 200_000 for execution in executions)
    return Counter(execution.status.value for execution in executions)


def reference_seconds() -> float:
    """Return the CPU time of a fixed amount of work, by which the speed of this machine is known."""
    started = time.process_time()
    for _ in range(40):
        json.loads(json.dumps(list(range(10_000))))
    total = 0
    for number in range(3 * MILLION):
        total += number
    return time.process_time() - started


def main(name: str) -> None:
    thread_pool._JOIN_SECONDS = LONGEST  # the pool waits for its idle threads, however busy the machine is
    asyncio.run(count_outcomes(many_tools()))  # load everything before measuring
    case = CASES[name]()
    threads, memory, seconds = threading.active_count(), peak_mb(), time.process_time()
    counts = asyncio.run(count_outcomes(case))
    taken = time.process_time() - seconds
    print(  # noqa: T201  # the test reads it
        json.dumps(
            {
                "outcomes": counts,
                "seconds": taken,
                "reference": reference_seconds(),
                "mb": peak_mb() - memory,
                "threads": threading.active_count() - threads,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
