"""A server that answers as a recorded one did; run as a script.

Its arguments are the file of the recordings, a session's name, and a file that gets what was heard.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NOT_FOUND = {"code": -32601, "message": "Method not found"}


def asked(message: dict[str, Any]) -> str:
    """Return what a request asks for, without what differs from client to client."""
    params = {key: value for key, value in message.get("params", {}).items() if key in {"name", "arguments", "cursor"}}
    return json.dumps([message["method"], params], sort_keys=True)


def answers(messages: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return what the server wrote after each request up to its answer, by what was asked for."""
    requests = {
        one["msg"]["id"]: asked(one["msg"])
        for one in messages
        if one["dir"] == "client_to_server" and "id" in one["msg"]
    }
    found: dict[str, list[dict[str, Any]]] = {}
    before: list[dict[str, Any]] = []
    for one in messages:
        if one["dir"] == "server_to_client":
            before.append(one["msg"])
            if "method" not in one["msg"]:
                found[requests[one["msg"]["id"]]] = before
                before = []
    return found


def main(path: str, session: str, heard: str) -> None:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        recorded = next(one for one in map(json.loads, file) if one["session"] == session)
    known = answers(recorded["messages"])
    for line in sys.stdin:
        with open(heard, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line)
        message = json.loads(line)
        if "id" not in message:
            continue
        for answer in known.get(asked(message), [{"jsonrpc": "2.0", "id": 0, "error": NOT_FOUND}]):
            told = answer if "method" in answer else {**answer, "id": message["id"]}
            sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
