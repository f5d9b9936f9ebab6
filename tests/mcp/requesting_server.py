"""A server that sends a request before it responds, in the era that its first argument names; run as a script."""

from __future__ import annotations

import json
import sys
from typing import Any

FORM = {
    "mode": "form",
    "message": "Name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
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


def result_with(answer: Any) -> dict[str, Any]:
    """Return a result with the answer of the client."""
    return {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(answer)}]}


def call(era: str, request: dict[str, Any]) -> None:
    method, params = REQUESTS[request["params"]["name"]]
    if era == "2025":
        send(id=f"request {request['id']}", method=method, params=params)
    elif "inputResponses" in request["params"]:
        send(id=request["id"], result=result_with(request["params"]["inputResponses"]["q"]))
    else:
        requests = {"q": {"method": method, "params": params}}
        send(id=request["id"], result={"resultType": "input_required", "inputRequests": requests, "requestState": "s"})


def main(era: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case None:
                answer = message.get("result") or message.get("error")
                send(id=int(message["id"].rpartition(" ")[2]), result=result_with(answer))
            case "server/discover" if era == "2026":
                send(
                    id=message["id"],
                    result={"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **FRESH},
                )
            case "initialize":
                info = {"name": "requesting", "version": "1"}
                result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
                send(id=message["id"], result=result)
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in REQUESTS]
                send(id=message["id"], result={"tools": tools, **FRESH})
            case "tools/call":
                call(era, message)
            case _ if "id" in message:
                send(id=message["id"], error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main(sys.argv[1])
