"""A server with the behavior that its first argument names; run as a script, on the standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

TOOL = {"name": "act", "description": "Act.", "inputSchema": {"type": "object"}}
INFINITE = {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"maximum": float("inf")}}}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": schema}}}


def send(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


def write_bytes(line: bytes, request: dict[str, Any]) -> None:
    sys.stdout.buffer.write(line % request["id"])
    sys.stdout.buffer.flush()


def answer(request: dict[str, Any], result: Any) -> None:
    send({"id": request["id"], "result": result})


def reject(request: dict[str, Any]) -> None:
    send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


def requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            yield message


def initialize(request: dict[str, Any]) -> None:
    info = {"name": "hostile", "version": "1"}
    answer(request, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})


TOOL_LISTS: dict[str, list[Any]] = {
    "invalid schema": [
        {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"type": "nothing"}}}},
        TOOL,
        TOOL,
    ],
    "infinite schema": [INFINITE, TOOL],
    "schema of 195 levels": [deep(195), TOOL],  # the message can be parsed
    "schema of 250 levels": [deep(250), TOOL],
    "mostly invalid tools": [
        1,
        {"name": "bad", "inputSchema": "none"},
        {"name": "bad", "inputSchema": {"type": "object", "required": 5}},
        {**TOOL, "inputSchema": {}},
    ],
    "tools are numbers": [1, 2],
}
"""The tools of servers that list invalid ones."""
FIRST_LISTS = iter([[TOOL], [TOOL, INFINITE]])
"""The tools of a server that lists another one later, and an invalid one in between."""


def tools(request: dict[str, Any], behavior: str) -> None:
    cursor = request.get("params", {}).get("cursor", "0")
    match behavior:
        case "endless pages":
            page = [{**TOOL, "name": f"act{cursor}"}]
            answer(request, {"tools": page, "nextCursor": str(int(cursor) + 1)})
        case "same page":
            answer(request, {"tools": [TOOL], "nextCursor": "0"})
        case "changes when listed":
            send({"method": "notifications/tools/list_changed"})
            answer(request, {"tools": [TOOL]})
        case "odd tool for a while":
            answer(request, {"tools": next(FIRST_LISTS, [TOOL, {**TOOL, "name": "new"}])})
        case "no list":
            reject(request)
        case _:
            answer(request, {"tools": TOOL_LISTS.get(behavior, [TOOL])})


def flood(text: str) -> None:
    while True:
        write(text)


def flood_of(message: dict[str, Any]) -> None:
    flood(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def other_ids(text: dict[str, Any]) -> None:
    send({"id": 10_000_000, "result": text})
    send({"id": "no", "result": text})


def twice(request: dict[str, Any], text: dict[str, Any]) -> None:
    answer(request, text)
    answer(request, {"content": [{"type": "text", "text": "again"}]})


def change_tools(request: dict[str, Any], text: dict[str, Any]) -> None:
    send({"method": "notifications/tools/list_changed"})
    answer(request, text)


def call(request: dict[str, Any], behavior: str) -> None:
    text = {"content": [{"type": "text", "text": "acted"}]}
    log = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}
    sampling = {"id": 1, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    behaviors: dict[str, Callable[[], None]] = {
        "silent": lambda: None,
        "huge result": lambda: answer(request, {"content": [{"type": "text", "text": "x" * 40_000_000}]}),
        "endless line": lambda: flood("x" * 100_000),
        "flood of invalid lines": lambda: flood(
            "noise\
"
            * 1000
        ),
        "flood of notifications": lambda: flood_of(log),
        "flood of changes": lambda: flood_of({"method": "notifications/tools/list_changed"}),
        "wrong ids": lambda: other_ids(text),
        "wrong shape": lambda: answer(request, {"content": "acted"}),
        "result is a number": lambda: send({"id": request["id"], "result": 7}),
        "bad base64": lambda: answer(request, {"content": [{"type": "image", "data": "?", "mimeType": "image/png"}]}),
        "long error": lambda: send({"id": request["id"], "error": {"code": -32000, "message": "no" * 1000}}),
        "half a character": lambda: answer(request, {"content": [{"type": "text", "text": "cut \ud83d"}]}),
        "latin": lambda: write_bytes(
            b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}\n', request
        ),
        "dies of calls": lambda: os._exit(1),
        "closes its output": lambda: os.close(1),
        "answers twice": lambda: twice(request, text),
        "odd tool for a while": lambda: change_tools(request, text),
        "requests without end": lambda: flood_of(sampling),
    }
    behaviors.get(behavior, lambda: answer(request, text))()


def main(behavior: str) -> None:
    if behavior == "noisy":
        write("Starting…\n{not json}\n\n[]\n")
    if behavior == "dies at once":
        sys.stderr.write("no key\n")
        sys.exit(7)
    for request in requests():
        if behavior == "dies at each message" or (
            behavior == "dies at tools/list" and request["method"] == "tools/list"
        ):
            os._exit(1)
        if behavior == "never answers":
            continue
        match request["method"]:
            case "initialize":
                initialize(request)
            case "tools/list":
                tools(request, behavior)
            case "tools/call":
                call(request, behavior)
            case _:
                reject(request)


if __name__ == "__main__":
    main(sys.argv[1])
