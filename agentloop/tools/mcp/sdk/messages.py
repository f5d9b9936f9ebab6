"""The messages that a server writes, read with patience."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter


def message_of(line: bytes) -> JSONRPCMessage | None:
    """Return the message that a line is; None when it is none.

    Half a character of two, as JavaScript writes where it has cut a text, and bytes that are no text become U+FFFD. What is
    an answer but not of the protocol becomes an error under its id, so that nobody waits for it.

    Args:
        line: what was written.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        told = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, Mapping) or told.get("jsonrpc") != "2.0":
        return None
    try:
        return jsonrpc_message_adapter.validate_json(_whole(told), by_name=False)
    except ValueError:
        return _unusable(told)


def _whole(told: Mapping[str, object]) -> bytes:
    halves = json.dumps(told, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return halves.decode("utf-16", "replace").encode()


def _unusable(told: Mapping[str, object]) -> JSONRPCError | None:
    asked = told.get("id")
    if "method" in told or not isinstance(asked, str | int):
        return None
    return JSONRPCError(
        jsonrpc="2.0", id=asked, error=ErrorData(code=PARSE_ERROR, message="its answer is not of the protocol")
    )
