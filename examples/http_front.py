"""An agent over HTTP: a client starts it, follows its events, and approves a payment; another one may only watch.

Needs starlette and uvicorn. Run it with `python examples/http_front.py`; `agentloop serve http_front:loop` serves the same agent.
"""

from __future__ import annotations

import asyncio
import json

import httpx

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.service.server import Principal, Scope, serve


@tool
def pay(to: str, euros: float) -> str:
    """Pay somebody."""
    return f"{to} has {euros} euros"


MODEL = ScriptedInference(ToolCall("1", "pay", '{"to": "Ada", "euros": 20}'), "Ada is paid.")
loop = AgentLoop.for_model(MODEL, tools=[pay], interceptors=[RequireApproval("pay")], journal=MemoryJournal())
PRINCIPALS = {
    "token-of-the-shop": Principal(name="shop", scopes=frozenset({Scope.START, Scope.READ, Scope.DECIDE})),
    "token-of-the-auditor": Principal(name="auditor", scopes=frozenset({Scope.READ, Scope.ALL})),
}


async def follow(client: httpx.AsyncClient, path: str) -> None:
    async with client.stream("GET", f"{path}/events") as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                print(event.get("sequence", "-"), event["type"])
                for call in event["pending"] if event["type"] == "execution_suspended" else ():
                    decision = {call["key"]: {"kind": "approve", "digest": call["digest"]}}
                    await client.post(f"{path}/decisions", json={"decisions": decision})


async def main() -> None:
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(loop, port=0, authenticate=PRINCIPALS.get, on_ready=url.set_result))
    shop, auditor = ({"Authorization": f"Bearer {token}"} for token in PRINCIPALS)
    async with httpx.AsyncClient(base_url=await url, headers=shop) as client:
        started = await client.post("/executions", json={"input": "Pay Ada.", "id": "bill-7"})
        path = started.headers["location"]
        await follow(client, path)
        print((await client.get(path, headers=auditor)).json()["text"])
        print((await client.post(f"{path}/stop", headers=auditor)).json()["detail"])
    server.cancel()
    await asyncio.wait([server])


if __name__ == "__main__":
    asyncio.run(main())
