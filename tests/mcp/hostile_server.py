"""A server that misbehaves in the manner that its first argument names; run as a script, on the standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

TOOL = {"name": "act", "description": "Act.", "inputSchema": {"type": "object"}}


def send(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


def write_bytes(line: bytes, asked: dict[str, Any]) -> None:
    sys.stdout.buffer.write(line % asked["id"])
    sys.stdout.buffer.flush()


def answer(asked: dict[str, Any], result: Any) -> None:
    send({"id": asked["id"], "result": result})


def refuse(asked: dict[str, Any]) -> None:
    send({"id": asked["id"], "error": {"code": -32601, "message": "Method not found"}})


def requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            yield message


def initialize(asked: dict[str, Any]) -> None:
    info = {"name": "hostile", "version": "1"}
    answer(asked, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})


def tools(asked: dict[str, Any], manner: str) -> None:
    cursor = asked.get("params", {}).get("cursor", "0")
    match manner:
        case "endless pages":
            page = [{**TOOL, "name": f"act{cursor}"}]
            answer(asked, {"tools": page, "nextCursor": str(int(cursor) + 1)})
        case "same page":
            answer(asked, {"tools": [TOOL], "nextCursor": "0"})
        case "invalid schema":
            bad = {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"type": "nothing"}}}}
            answer(asked, {"tools": [bad, TOOL, TOOL]})
        case "hardly any tools":
            answer(
                asked,
                {"tools": [1, {"name": "bad"}, {"name": "bad", "inputSchema": None}, {**TOOL, "inputSchema": {}}]},
            )
        case "changes when listed":
            send({"method": "notifications/tools/list_changed"})
            answer(asked, {"tools": [TOOL]})
        case "tools are numbers":
            answer(asked, {"tools": [1, 2]})
        case "no list":
            refuse(asked)
        case _:
            answer(asked, {"tools": [TOOL]})


def flood(text: str) -> None:
    while True:
        write(text)


def flood_of(message: dict[str, Any]) -> None:
    flood(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def other_ids(text: dict[str, Any]) -> None:
    send({"id": 10_000_000, "result": text})
    send({"id": "no", "result": text})


def twice(asked: dict[str, Any], text: dict[str, Any]) -> None:
    answer(asked, text)
    answer(asked, {"content": [{"type": "text", "text": "again"}]})


def call(asked: dict[str, Any], manner: str) -> None:
    text = {"content": [{"type": "text", "text": "acted"}]}
    log = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}
    ask = {"id": 1, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    manners: dict[str, Callable[[], None]] = {
        "silent": lambda: None,
        "huge result": lambda: answer(asked, {"content": [{"type": "text", "text": "x" * 40_000_000}]}),
        "endless line": lambda: flood("x" * 100_000),
        "flood of noise": lambda: flood("noise\n" * 1000),
        "flood of notifications": lambda: flood_of(log),
        "flood of changes": lambda: flood_of({"method": "notifications/tools/list_changed"}),
        "wrong ids": lambda: other_ids(text),
        "wrong shape": lambda: answer(asked, {"content": "acted"}),
        "result is a number": lambda: send({"id": asked["id"], "result": 7}),
        "bad base64": lambda: answer(asked, {"content": [{"type": "image", "data": "?", "mimeType": "image/png"}]}),
        "error of any kind": lambda: send({"id": asked["id"], "error": {"code": -32000, "message": "no" * 1000}}),
        "half a character": lambda: answer(asked, {"content": [{"type": "text", "text": "cut \ud83d"}]}),
        "latin": lambda: write_bytes(
            b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}\n', asked
        ),
        "dies of calls": lambda: os._exit(1),
        "closes its output": lambda: os.close(1),
        "answers twice": lambda: twice(asked, text),
        "asks for ever": lambda: flood_of(ask),
    }
    manners.get(manner, lambda: answer(asked, text))()


def main(manner: str) -> None:
    if manner == "noisy":
        write("Starting…\n{not json}\n\n[]\n")
    if manner == "dies at once":
        sys.stderr.write("no key\n")
        sys.exit(7)
    for asked in requests():
        if manner == "dies at each message" or (
            manner == "dies when asked for tools" and asked["method"] == "tools/list"
        ):
            os._exit(1)
        if manner == "never answers":
            continue
        match asked["method"]:
            case "initialize":
                initialize(asked)
            case "tools/list":
                tools(asked, manner)
            case "tools/call":
                call(asked, manner)
            case _:
                refuse(asked)


if __name__ == "__main__":
    main(sys.argv[1])
