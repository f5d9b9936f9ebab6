"""The MCP server of `McpSessionKit`: a program on the standard library alone, which notes in a file what it receives.

Its arguments are the file and the names of its tools. Each call is answered by its argument `text` after its argument `seconds`, in the
way that the name of the tool says.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

_PAGE = 3
_NO_METHOD, _REFUSED = -32601, -32050
_PIXEL = "iVBORw0KGgo="
_CAPABILITIES = {"tools": {"listChanged": True}}


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"It serves to {name}.", "inputSchema": {"type": "object"}}


class _Server:
    """Answers requests; several threads write.

    Args:
        log: the descriptor of the file of the notes.
        names: the names of the tools.
    """

    def __init__(self, log: int, names: list[str]) -> None:
        self._log = log
        self._tools = [_tool(name) for name in names]
        self._lock = threading.Lock()

    def note(self, **what: object) -> None:
        """Add a line to the file."""
        with self._lock:
            os.write(self._log, json.dumps(what).encode() + b"\n")

    def receive(self, message: dict[str, Any]) -> None:
        """Answer a request, or note a notification."""
        method, params, request = message.get("method"), message.get("params") or {}, message.get("id")
        if method == "notifications/cancelled":
            self.note(cancelled=params.get("requestId"))
        if request is None:
            return
        if method == "tools/call":
            self._call(request, params)
        elif method == "tools/list":
            self._send(id=request, result=self._page(int(params.get("cursor") or 0)))
        elif method == "initialize":
            about = {"capabilities": _CAPABILITIES, "serverInfo": {"name": "kit", "version": "1"}}
            self._send(id=request, result={"protocolVersion": "2025-11-25", **about})
        elif method == "ping":
            self._send(id=request, result={})
        else:
            self._send(id=request, error={"code": _NO_METHOD, "message": "Method not found"})

    def _send(self, **message: object) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def _page(self, first: int) -> dict[str, Any]:
        rest = {"nextCursor": str(first + _PAGE)} if first + _PAGE < len(self._tools) else {}
        return {"tools": self._tools[first : first + _PAGE], **rest}

    def _call(self, request: object, params: dict[str, Any]) -> None:
        name, arguments = params["name"], params.get("arguments") or {}
        text, token = arguments.get("text", ""), (params.get("_meta") or {}).get("progressToken")
        self.note(call=name, id=request, arguments=arguments)
        for number in range(0 if token is None else 2):
            progress = {"progressToken": token, "progress": number, "message": text}
            self._send(method="notifications/progress", params=progress)
        said: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
        answer: dict[str, Any] = {"result": said}
        match name:
            case "die":
                os._exit(3)
            case "hang":
                return
            case "fail":
                said["isError"] = True
            case "refuse":
                answer = {"error": {"code": _REFUSED, "message": text}}
            case "picture":
                said["content"].append({"type": "image", "data": _PIXEL, "mimeType": "image/png"})
            case "change":
                self._tools.append(_tool("new"))
                self._send(method="notifications/tools/list_changed")
        threading.Timer(arguments.get("seconds", 0), self._send, kwargs={"id": request, **answer}).start()


def _serve(path: str, *names: str) -> None:
    """Answer the requests on standard input until it ends."""
    server = _Server(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), [*names])
    server.note(pid=os.getpid())
    for line in sys.stdin:
        server.receive(json.loads(line))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
