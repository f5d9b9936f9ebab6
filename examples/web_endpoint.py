"""A web endpoint that streams the answer as it is written, and asks its caller before money moves.

Needs starlette and uvicorn: `uvicorn --app-dir examples web_endpoint:app`, then `curl -N localhost:8000/ask -d '{"question": "…"}'`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import DecisionError, ExecutionError, UnknownExecution
from agentloop.values import approve, deny


@tool
def refund(order: int, amount: float) -> str:
    """Pay the amount of an order back."""
    return f"{amount} for order {order} is paid back"


MODEL = ScriptedInference(["I refund it. ", ToolCall("1", "refund", '{"order": 7, "amount": 20}')], "It is done.")
loop = AgentLoop.for_model(MODEL, tools=[refund], interceptors=[RequireApproval("refund")], journal=MemoryJournal())


def event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def ask(request: Request) -> StreamingResponse:
    body = await request.json()

    async def events() -> AsyncIterator[str]:
        try:
            async for text in loop.stream_text(body["question"]):
                yield event("text", text)
        except ExecutionError as error:
            calls = {call.key: {"text": call.rendering, "digest": call.digest} for call in error.state.pending}
            yield event("approve" if calls else "error", {"id": error.state.execution_id, "calls": calls})

    return StreamingResponse(events(), media_type="text/event-stream")


async def decide(request: Request) -> JSONResponse:
    decisions = {k: approve(d) if yes else deny("refused", d) for k, (yes, d) in (await request.json()).items()}
    try:
        state = await loop.resume(request.path_params["id"], decisions)
    except (DecisionError, UnknownExecution) as error:
        return JSONResponse({"error": str(error)}, 409)
    return JSONResponse({"answer": state.final_text})


app = Starlette(routes=[Route("/ask", ask, methods=["POST"]), Route("/decide/{id}", decide, methods=["POST"])])
