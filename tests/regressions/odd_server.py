"""A server of MCP that answers calls with what it is given: `odd_server.py TOOLS ANSWERS`, both as JSON by the name of the tool.

An answer is the result of the call, or the whole message beside `jsonrpc` and `id` if it has the key `message`.
"""

from __future__ import annotations

import json
import sys

tools, answers = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") is None:
        continue
    method = message["method"]
    body = {"error": {"code": -32601, "message": "there is no such method"}}
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "odd", "version": "1"}
        body = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    elif method == "tools/list":
        body = {"result": {"tools": tools}}
    elif method == "ping":
        body = {"result": {}}
    elif method == "tools/call":
        answer = answers[message["params"]["name"]]
        body = answer["message"] if isinstance(answer, dict) and "message" in answer else {"result": answer}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
    sys.stdout.flush()
