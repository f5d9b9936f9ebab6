"""A model for chaos runs, at a loopback address: `python -m tests.chaos.model FOLDER`.

It answers in the form of OpenAI's chat completions, and computes each answer from the conversation alone: the first message of the user
is a script, the number of answered turns is the step. So every worker gets the same answer to the same conversation, and the
model can be asked again after any crash. It appends a line to `requests` for each request, and prints its port when it is ready.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tests.chaos.ledger import Ledger

DOUBT = "it is not known "
"""What the result of a call in doubt says to a model."""


def answer(messages: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the text and the tool calls with which the model answers a conversation.

    Args:
        messages: the conversation, in the form of the wire.
    """
    script = json.loads(next(message for message in messages if message["role"] == "user")["content"])
    steps: Sequence[Sequence[str]] = script["steps"]
    done = sum(bool(message.get("tool_calls")) for message in messages)
    if done >= len(steps):
        doubts = sum(message["role"] == "tool" and DOUBT in message["content"] for message in messages)
        return f"done after {done} steps with {doubts} doubts", ()
    calls = [
        {"id": f"call_{done}_{index}", "type": "function", "function": _function(name, script, done * 10 + index)}
        for index, name in enumerate(steps[done])
    ]
    return "", calls


def _function(name: str, script: Mapping[str, Any], number: int) -> Mapping[str, str]:
    arguments = {"task": json.dumps({"steps": script["helper"]})} if name == "helper" else {"number": number}
    return {"name": name, "arguments": json.dumps(arguments)}


class ModelHandler(BaseHTTPRequestHandler):
    """Answers requests to `/v1/chat/completions`."""

    protocol_version = "HTTP/1.1"
    ledger: ClassVar[Ledger]

    def do_POST(self) -> None:
        """Answer a request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.ledger.note("requests", str(len(request["messages"])))
        text, calls = answer(request["messages"])
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        reason = "tool_calls" if calls else "stop"
        self._send(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": request["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
            }
        )

    def _send(self, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # of the base class
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that were killed."""


def main() -> None:
    """Serve until the process that started this one ends."""
    ModelHandler.ledger = Ledger(Path(sys.argv[1]), "model")
    server = _Server(("127.0.0.1", 0), ModelHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()  # ends with the process that started this one


if __name__ == "__main__":
    main()
