"""The settings of a model and of a loop, in one place. The endpoint is a server of this file, which shows what it gets."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from agentloop import AgentLoop, Budget, tool

ANSWER = {"choices": [{"message": {"role": "assistant", "content": '{"city": "Lisbon"}'}, "finish_reason": "stop"}]}


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the name is that of the method
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        print({name: value for name, value in body.items() if name not in {"messages", "tools", "response_format"}})
        data = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def population(city: str) -> int:
    """Return the population of a city."""
    return len(city)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    Thread(target=server.serve_forever, daemon=True).start()
    loop = AgentLoop.for_model(
        "openai:gpt-4.1",
        base_url=f"http://127.0.0.1:{server.server_port}/v1",
        api_key=lambda: "sk-fetched-when-needed",
        tools=[tool(effect="pure")(population)],
        options={"temperature": 0.2, "max_tokens": 500, "seed": 7},
        parallel_tool_calls=False,
        tool_choice="auto",
        timeout=30,
        system_prompt="You are a geographer.",
        output_type=dict[str, str],
        interceptors=[Budget(steps=5, tokens=50_000, seconds=120)],
    )
    print(loop.run_sync("Which city has the most trams?"))
    server.shutdown()
    server.server_close()
