"""An async tool with httpx, against a server on this machine; a timeout and a failing server are outcomes."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool


class Weather(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.path == "/lisbon"
        body = json.dumps({"degrees": 24} if is_known else {"error": "no such city"}).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as in the base class
        """Keep the output of the example readable."""


logging.disable()  # failed tools are logged with their tracebacks
server = ThreadingHTTPServer(("127.0.0.1", 0), Weather)
threading.Thread(target=server.serve_forever, daemon=True).start()


@tool(effect="pure", timeout=5)
async def weather(city: str) -> dict[str, int]:
    """Return the weather of a city."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False) as client:
        response = await client.get(f"/{city.lower()}")
        response.raise_for_status()
        found: dict[str, int] = response.json()
        return found


calls = [ToolCall("1", "weather", '{"city": "Lisbon"}'), ToolCall("2", "weather", '{"city": "Atlantis"}')]
loop = AgentLoop.for_model(ScriptedInference(calls, "24 degrees in Lisbon; I know no Atlantis."), tools=[weather])
state = loop.execute_sync("How warm is it in Lisbon and in Atlantis?")
for execution in state.steps[0].executions:
    print(execution.arguments["city"], execution.status, execution.text.splitlines()[0].split(" for url")[0])
print(state.final_text)
server.shutdown()
server.server_close()
