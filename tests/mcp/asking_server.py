"""A server that asks before it answers, in the era that its first argument names; run as a script."""

from __future__ import annotations

import json
import sys
from typing import Any

FORM = {
    "mode": "form",
    "message": "Name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ask": ("elicitation/create", FORM),
    "sample": (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10},
    ),
}
FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def told(answer: Any) -> dict[str, Any]:
    """Return a result that shows what was answered."""
    return {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(answer)}]}


def call(era: str, asked: dict[str, Any]) -> None:
    method, params = QUESTIONS[asked["params"]["name"]]
    if era == "2025":
        send(id=f"asked for {asked['id']}", method=method, params=params)
    elif "inputResponses" in asked["params"]:
        send(id=asked["id"], result=told(asked["params"]["inputResponses"]["q"]))
    else:
        requests = {"q": {"method": method, "params": params}}
        send(id=asked["id"], result={"resultType": "input_required", "inputRequests": requests, "requestState": "s"})


def main(era: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case None:
                answer = message.get("result") or message.get("error")
                send(id=int(message["id"].rpartition(" ")[2]), result=told(answer))
            case "server/discover" if era == "2026":
                send(
                    id=message["id"],
                    result={"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **FRESH},
                )
            case "initialize":
                info = {"name": "asking", "version": "1"}
                result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
                send(id=message["id"], result=result)
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in QUESTIONS]
                send(id=message["id"], result={"tools": tools, **FRESH})
            case "tools/call":
                call(era, message)
            case _ if "id" in message:
                send(id=message["id"], error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main(sys.argv[1])
