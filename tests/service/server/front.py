"""A real server on loopback with real clients, for the tests of the HTTP front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from attrs import define, field

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanInfer, CanJournal
from agentloop.durable import Journal, open_journal
from agentloop.interception import RequireApproval
from agentloop.service.server import Principal, Scope, serve
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Text
from tests.limits import LONGEST

DEADLINE = LONGEST

TOKENS = {
    "ada-token": Principal(name="ada", scopes=frozenset({Scope.START, Scope.READ, Scope.DECIDE, Scope.STOP})),
    "bob-token": Principal(name="bob", scopes=frozenset({Scope.START, Scope.READ, Scope.DECIDE, Scope.STOP})),
    "viewer-token": Principal(name="viewer", scopes=frozenset({Scope.READ})),
    "boss-token": Principal(name="boss", scopes=frozenset(Scope)),
    "judge-token": Principal(name="judge", scopes=frozenset({Scope.READ, Scope.DECIDE, Scope.ALL})),
}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-token"}


@asynccontextmanager
async def serving(agents: Any, *, authenticate: Any = TOKENS.get, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server, and yield a client of it."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(agents, port=0, authenticate=authenticate, on_ready=ready.set_result, **options))
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        async with httpx.AsyncClient(base_url=await ready, timeout=DEADLINE, headers=bearer("ada")) as client:
            yield client
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def opened(db: str) -> AsyncIterator[Journal]:
    """Open a journal of its own at a place, as another process has."""
    journal = open_journal(db) if db.endswith(".db") else open_journal(db, session_timeout=2)
    try:
        yield journal
    finally:
        await journal.aclose()


@tool
def pay(cents: int) -> str:
    """Pay an amount."""
    return f"paid {cents}"


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def calling(name: str, arguments: str, answer: str) -> Callable[[InferenceRequest], InferenceResponse | str]:
    """Return a model that calls a tool once, and answers when it has the outcome, also if a message came meanwhile."""

    def respond(request: InferenceRequest) -> InferenceResponse | str:
        has_outcome = any(message.exchanges for message in request.messages[-2:])
        return answer if has_outcome else InferenceResponse((ToolCall("1", name, arguments),))

    return respond


def adder(journal: CanJournal, **options: Any) -> AgentLoop:
    """Return a loop that adds two numbers for every question."""
    model = calling("add", '{"a": 1, "b": 2}', "It is 3.")
    return AgentLoop.for_model(ScriptedInference(*[model] * 50), tools=[add], journal=journal, **options)


def payer(journal: CanJournal, tools: Sequence[Any] = (pay,)) -> AgentLoop:
    """Return a loop whose payments need an approval."""
    model = ScriptedInference(*[calling("pay", '{"cents": 500}', "Done.")] * 50)
    return AgentLoop.for_model(model, tools=tools, journal=journal, interceptors=[RequireApproval("pay")])


class GatedInference(CanInfer):
    """Calls `add` once if it is offered, and writes an answer in two pieces, the second one when it may.

    Attributes:
        has_begun: whether the first piece is written.
        gate: opens for the second piece.
        requests: the number of requests so far.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.has_begun = asyncio.Event()
        self.gate = asyncio.Event()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        raise NotImplementedError  # the loops of these tests stream

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        self.requests += 1
        if request.tools and not request.messages[-1].exchanges:
            yield InferenceResponse((ToolCall("1", "add", '{"a": 1, "b": 2}'),))
            return
        yield InferenceDelta("text", "Three lamps ")
        self.has_begun.set()
        await self.gate.wait()
        yield InferenceDelta("text", "are left.")
        yield InferenceResponse((Text("Three lamps are left."),))


@define
class Received:
    """An event of a stream."""

    id: str = ""
    event: str = ""
    data: Any = None
    lines: list[str] = field(factory=list)


async def read_events(response: httpx.Response) -> AsyncIterator[Received]:
    """Yield the events of a stream, without comments."""
    current = Received()
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if not line:
            if current.data is not None:
                yield current
            current = Received()
        elif name == "data":
            current.data = json.loads(value)
        elif name in {"id", "event"}:
            setattr(current, name, value)


async def all_events(client: httpx.AsyncClient, path: str, **options: Any) -> list[Received]:
    """Return the events of a stream that ends."""
    async with asyncio.timeout(DEADLINE), client.stream("GET", path, **options) as response:
        assert response.status_code == 200, await response.aread()
        return [event async for event in read_events(response)]


async def start(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Start an execution, and return it."""
    response = await client.post("/executions", json={"input": "Go.", **body})
    assert response.status_code == 201, response.text
    execution: dict[str, Any] = response.json()
    return execution


async def settled(client: httpx.AsyncClient, execution_id: str) -> dict[str, Any]:
    """Return an execution after its end or suspension."""
    execution: dict[str, Any] = {"status": "in_progress"}
    async with asyncio.timeout(DEADLINE):
        while execution["status"] == "in_progress":
            response = await client.get(f"/executions/{execution_id}", params={"wait": 20})
            assert response.status_code == 200, response.text
            execution = response.json()
    return execution
