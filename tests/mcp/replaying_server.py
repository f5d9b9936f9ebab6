"""A server that answers like a recorded one; run as a script.

Its arguments are the file of the recordings, the name of a session, and a file for the messages that it receives.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NOT_FOUND = {"code": -32601, "message": "Method not found"}


def key_of(message: dict[str, Any]) -> str:
    """Return a key for a request, without the parts that differ between clients."""
    params = {key: value for key, value in message.get("params", {}).items() if key in {"name", "arguments", "cursor"}}
    return json.dumps([message["method"], params], sort_keys=True)


def answers(messages: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the messages that the server wrote after each request up to its response, by the key of the request."""
    requests = {
        entry["msg"]["id"]: key_of(entry["msg"])
        for entry in messages
        if entry["dir"] == "client_to_server" and "id" in entry["msg"]
    }
    responses: dict[str, list[dict[str, Any]]] = {}
    pending: list[dict[str, Any]] = []
    for entry in messages:
        if entry["dir"] == "server_to_client":
            pending.append(entry["msg"])
            if "method" not in entry["msg"]:
                responses[requests[entry["msg"]["id"]]] = pending
                pending = []
    return responses


def main(path: str, session: str, received: str) -> None:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        recorded = next(recording for recording in map(json.loads, file) if recording["session"] == session)
    known = answers(recorded["messages"])
    for line in sys.stdin:
        with open(received, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line)
        message = json.loads(line)
        if "id" not in message:
            continue
        key = key_of(message)
        written = known.get(key, [{"jsonrpc": "2.0", "id": 0, "error": NOT_FOUND}])
        known[key] = written[-1:]  # what changed then does not change with each request
        for answer in written:
            reply = answer if "method" in answer else {**answer, "id": message["id"]}
            sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
