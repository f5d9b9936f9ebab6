"""The floor as a subject: a loop written by hand with httpx and the json module of the standard library.

The history is a list that is encoded completely in each turn; nothing is validated, and no events are emitted. One client serves all
executions. A plain tool runs in a thread of the event loop's default pool.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import cycle
from typing import Any

import httpx
from subject import PROMPT, QUESTION

HEADERS = {"authorization": "Bearer key"}


LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=1000)
CLIENT = httpx.AsyncClient(limits=LIMITS, timeout=60, verify=False)  # only http:// is used


def add(a: int, b: int) -> int:
    return a + b


def wait(a: int, b: int) -> int:
    time.sleep(0.02)
    return a + b


async def add_async(a: int, b: int) -> int:
    return a + b


async def wait_async(a: int, b: int) -> int:
    await asyncio.sleep(0.02)
    return a + b


async def add_in_thread(a: int, b: int) -> int:
    return await asyncio.to_thread(add, a, b)


async def wait_in_thread(a: int, b: int) -> int:
    return await asyncio.to_thread(wait, a, b)


FUNCTIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    "async": add_async,
    "plain": add_in_thread,
    "wait async": wait_async,
    "wait plain": wait_in_thread,
}
TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def agent(url: str, tool: str) -> Callable[[], Awaitable[str]]:
    """Return an execution."""
    function = FUNCTIONS[tool]

    async def run() -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": PROMPT},
            {"role": "user", "content": QUESTION},
        ]
        while True:
            body = {"model": "loopback", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
            response = await CLIENT.post(f"{url}/chat/completions", json=body, headers=HEADERS)
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return str(message["content"])
            results = await asyncio.gather(*[function(**json.loads(call["function"]["arguments"])) for call in calls])
            messages.extend(
                {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
                for call, result in zip(calls, results, strict=True)
            )

    return run


def stream(url: str) -> Callable[[Callable[[str], None]], Awaitable[None]]:
    """Return a streamed answer."""

    async def run(on_text: Callable[[str], None]) -> None:
        body = {"model": "loopback", "messages": [{"role": "user", "content": QUESTION}], "stream": True}
        async with CLIENT.stream("POST", f"{url}/chat/completions", json=body, headers=HEADERS) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    text = choice["delta"].get("content")
                    if text:
                        on_text(text)

    return run


def conversation(texts: Iterable[str]) -> object:
    """Return a list of messages."""
    roles = cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
