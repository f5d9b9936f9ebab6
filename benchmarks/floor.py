"""The floor: a loop written by hand with httpx and the json module of the standard library.

The history is a list that is encoded completely in each turn; nothing is validated, and no events are emitted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]


async def add(a: int, b: int) -> int:
    return a + b


async def run(
    client: httpx.AsyncClient, url: str, functions: dict[str, Callable[..., Awaitable[Any]]], question: str
) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a calculator."},
        {"role": "user", "content": question},
    ]
    while True:
        response = await client.post(
            f"{url}/chat/completions",
            json={"model": "loopback", "messages": messages, "tools": TOOLS},
            headers={"authorization": "Bearer key"},
        )
        response.raise_for_status()
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        calls = message.get("tool_calls")
        if not calls:
            return str(message["content"])
        results = await asyncio.gather(
            *[functions[call["function"]["name"]](**json.loads(call["function"]["arguments"])) for call in calls]
        )
        messages.extend(
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
            for call, result in zip(calls, results, strict=True)
        )


async def stream(client: httpx.AsyncClient, url: str, question: str, on_text: Callable[[str], object]) -> str:
    texts: list[str] = []
    body = {"model": "loopback", "messages": [{"role": "user", "content": question}], "stream": True}
    headers = {"authorization": "Bearer key"}
    async with client.stream("POST", f"{url}/chat/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                text = choice["delta"].get("content")
                if text:
                    texts.append(text)
                    on_text(text)
    return "".join(texts)
