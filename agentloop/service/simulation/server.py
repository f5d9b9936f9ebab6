"""The scenario of the HTTP front: shipped applications on simulated machines, and clients that start, follow, decide and stop over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from attrs import define, field, frozen

from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.interception.rules import RequireApproval
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.server.application import ServerApplication
from agentloop.service.server.operations import ServerLimits
from agentloop.service.server.record_events import RecordReader
from agentloop.service.simulation.cluster import LONG, Order, OrderModel, texts_too_late
from agentloop.testing.simulation.faults import SimulatedFault
from agentloop.testing.simulation.scenarios import SimulatedScenario, WorkerTools
from agentloop.testing.simulation.world import SimulatedWorker, SimulatedWorld
from agentloop.values.records import InDoubt
from agentloop.values.steps import ExecutionStatus

AsgiMessage: TypeAlias = MutableMapping[str, Any]
AsgiApplication: TypeAlias = Callable[
    [AsgiMessage, Callable[[], Awaitable[AsgiMessage]], Callable[[AsgiMessage], Awaitable[None]]], Awaitable[None]
]

_TWICE = 0.1
"""How likely a request arrives twice, the second time from a proxy that has not seen the answer to the first."""
_TIMEOUT = 90.0
"""How long a client waits for the next part of an answer, in seconds."""
_TOOLS = ("pay", "note", "look", "book", "hurry", "print_label", "ask")
_SOON = 0.4
_BUSY = frozenset({409, 429, 500, 503})
"""The statuses after which a client asks again: somebody was faster, or the server cannot do it now."""


# --- HTTP between machines: it takes time, is lost, and comes twice ----------------------------------------------------


class RequestLost(Exception):  # named for what went wrong
    """A request has failed on its way, and it is unknown whether it was carried out."""


@frozen
class SimulatedAnswer:
    """An answer.

    Attributes:
        status: its status.
        body: its body, of JSON; None for an empty one.
    """

    status: int
    body: Any = None


@define(eq=False)
class Site:
    """An application that a machine serves, while it does.

    Attributes:
        worker: the process that serves it.
        application: the application.
        open: the requests that it works on.
    """

    worker: SimulatedWorker
    application: AsgiApplication
    open: set[asyncio.Task[None]] = field(factory=set)

    @property
    def is_live(self) -> bool:
        """Whether its machine runs and can be reached."""
        return not self.worker.machine.is_dead and not self.worker.is_cut

    async def drained(self, seconds: float) -> None:
        """Wait until no request is open, or for some seconds."""
        tasks = [task for task in self.open if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


@asynccontextmanager
async def lifespan(application: AsgiApplication) -> AsyncIterator[None]:
    """Run the lifespan of an application around the block.

    Raises:
        RuntimeError: it could not start.
    """
    asked, told = asyncio.Queue[AsgiMessage](), asyncio.Queue[AsgiMessage]()
    task = asyncio.ensure_future(application({"type": "lifespan", "asgi": {"version": "3.0"}}, asked.get, told.put))
    try:
        await asked.put({"type": "lifespan.startup"})
        answer = await told.get()
        if answer["type"] != "lifespan.startup.complete":
            raise RuntimeError(f"the application could not start: {answer}")
        yield
        await asked.put({"type": "lifespan.shutdown"})
        await told.get()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class SimulatedClient:
    """Sends requests from one machine to the sites of others, each to one that lives.

    Args:
        client: the process that asks.
        sites: the sites, of which each request takes one.
    """

    def __init__(self, client: SimulatedWorker, sites: list[Site]) -> None:
        self._client, self._sites = client, sites
        self._random = client.world.random

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> SimulatedAnswer:
        """Send a request, and return the whole answer.

        Raises:
            RequestLost: the request, or its answer, was lost.
        """
        status, chunks = 0, list[bytes]()
        async for message in self._messages(method, path, body, headers or {}):
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                chunks.append(message.get("body", b""))
        text = b"".join(chunks)
        return SimulatedAnswer(status, json.loads(text) if text else None)

    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[Mapping[str, str]]:
        """Yield the events of a stream, each with its fields, until it ends.

        Raises:
            RequestLost: the stream has ended before its end.
        """
        rest = b""
        async for message in self._messages("GET", path, None, headers):
            rest += message.get("body", b"")
            *events, rest = rest.split(b"\n\n")
            for event in events:
                lines = [line.partition(b": ") for line in event.split(b"\n") if not line.startswith(b":")]
                fields = {name.decode(): value.decode() for name, _, value in lines}
                if "data" in fields:
                    yield fields

    async def _messages(
        self, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> AsyncIterator[AsgiMessage]:
        """Yield the messages of an answer as they arrive."""
        site, world = self._site(), self._client.world
        data = b"" if body is None else json.dumps(body).encode()
        try:
            await self._client.way("http.request")
        except Exception as error:
            raise RequestLost(str(error)) from error
        if world.take(SimulatedFault.REFUSE, "http.request") is not None or not site.is_live:
            raise RequestLost("the connection is refused")
        if method == "POST" and self._random.random() < _TWICE:
            _Exchange(site, method, path, data, headers).start()
        exchange = _Exchange(site, method, path, data, headers)
        exchange.start()
        is_lost = world.take(SimulatedFault.UNANSWERED, "http.answer") is not None
        try:
            while True:
                message = await exchange.next()
                if is_lost or self._client.is_cut:
                    raise RequestLost("the connection was lost before the answer came")
                yield message
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    return
        finally:
            exchange.hang_up()

    def _site(self) -> Site:
        live = [site for site in self._sites if site.is_live]
        if not live:
            raise RequestLost("no server runs")
        return self._random.choice(live)


class _Exchange:
    """A request to a site, and what comes back."""

    def __init__(self, site: Site, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        self._site = site
        path, _, query = path.partition("?")
        self._scope: AsgiMessage = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"content-type", b"application/json"),
                *[(name.lower().encode(), value.encode()) for name, value in headers.items()],
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self._requests: list[AsgiMessage] = [{"type": "http.request", "body": data, "more_body": False}]
        self._answers: asyncio.Queue[AsgiMessage | None] = asyncio.Queue()
        self._gone = asyncio.Event()

    def start(self) -> None:
        """Let the site work on the request, as a task of its machine."""
        worker = self._site.worker
        task = worker.world.loop.run_outside(lambda: worker.machine.start(self._serve()))
        self._site.open.add(task)
        task.add_done_callback(self._site.open.discard)

    async def _serve(self) -> None:
        try:
            await self._site.application(self._scope, self._receive, self._answers.put)
        except Exception:  # noqa: BLE001  # the server closes the connection
            self._answers.put_nowait(None)
        else:
            self._answers.put_nowait(None)

    async def _receive(self) -> AsgiMessage:
        if self._requests:
            return self._requests.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def next(self) -> AsgiMessage:
        """Return the next message of the answer.

        Raises:
            RequestLost: none comes.
        """
        waited = 0.0
        while waited < _TIMEOUT:
            try:
                async with asyncio.timeout(1.0):
                    message = await self._answers.get()
            except TimeoutError:
                waited += 1.0
                if not self._site.is_live:
                    raise RequestLost("the server has died, or cannot be reached") from None
            else:
                if message is None:
                    raise RequestLost("the server has closed the connection")
                return message
        raise RequestLost("no answer comes")

    def hang_up(self) -> None:
        """Tell the server that nobody waits any more."""
        self._gone.set()


# --- the scenario -----------------------------------------------------------------------------------------------------


@define(eq=False)
class Follower:
    """A client's view of an execution.

    Attributes:
        order: what it wants.
        id: the id that the server has given; empty before the first answer.
        last: the number of the last event that it has got.
        events: the events, by their numbers.
        problems: what was wrong with them.
        has_ended: whether a stream has come to its end.
        final: the status and the text that the server tells at the end.
    """

    order: Order
    id: str = ""
    last: int = 0
    events: list[tuple[int, str]] = field(factory=list)
    problems: list[str] = field(factory=list)
    has_ended: bool = False
    final: tuple[str, str] | None = None


class ServerScenario(SimulatedScenario):
    """Two servers with the shipped ASGI application on one journal, and clients that reach either of them.

    Requests are lost, answers are lost, requests come twice, streams break and go on; servers are restarted now and then.

    Attributes:
        orders: the executions, by their ids.
        sites: the servers that run.
    """

    machines = 2
    fault_gap = 200
    clients: int = 2
    """How many machines are those of clients."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        random = self.random
        self.orders: dict[str, Order] = {}
        for number in range(random.randint(1, 3)):
            is_stopped = random.random() < 0.2  # noqa: PLR2004  # one in five
            names = ("look", "note") if is_stopped else _TOOLS
            self.orders[f"x{number}"] = Order(
                id=f"x{number}",
                agent="shop",
                script=[
                    [random.choice(names) for _ in range(random.randint(1, 2))]
                    for _ in range(LONG if is_stopped else random.randint(1, 4))
                ],
                queue="",
                priority=0,
                delay=0.0,
                is_stopped=is_stopped,
                unsent=[f"message {each} to x{number}" for each in range(random.choice((0, 0, 1)))],
            )
        self.sites: list[Site] = []
        self._followers = [Follower(order) for _ in range(self.clients) for order in self.orders.values()]
        self._wrong: list[str] = []
        self._store: Any = None

    async def main(self) -> None:
        """Start the machines of servers and of clients, and wait until everything has ended and is told."""
        await self.prepare()
        count = len(self.orders)
        for number in range(self.clients):
            mine = self._followers[number * count : (number + 1) * count]
            self.world.start_workers(1, lambda client, mine=mine: self.attend(client, mine))  # type: ignore[misc]
        await super().main()

    async def prepare(self) -> None:
        """Open the storage, to look at it from outside."""
        self._store = self._store or self.world.open_store()

    # --- servers --------------------------------------------------------------------------------------------------------

    async def work(self, worker: SimulatedWorker) -> None:
        """Serve for a while, shut down, and serve again."""
        loop = AgentLoop(
            ToolCallingDriver(OrderModel(worker, self.orders)),
            WorkerTools(worker).all(),
            journal=worker.journal,
            in_doubt=InDoubt.TELL,
            interceptors=[RequireApproval(["ask"])],
            clock=worker.clock,
            ids=worker.ids,
        )
        application = ServerApplication({"shop": loop}, limits=ServerLimits(heartbeat_seconds=5.0, wait_seconds=20.0))
        site = Site(worker, application)
        async with lifespan(application):
            self.sites.append(site)
            try:
                await asyncio.sleep(self.random.choice((3.0, 20.0, 100.0)))
            finally:
                self.sites.remove(site)
            application.begin_shutdown()
            await site.drained(10.0)

    # --- clients --------------------------------------------------------------------------------------------------------

    async def attend(self, client: SimulatedWorker, followers: Sequence[Follower]) -> None:
        """Look after the orders of one client, one after the other."""
        http = SimulatedClient(client, self.sites)
        for follower in self.random.sample(followers, len(followers)):
            if follower.final is None:
                with suppress(RequestLost):
                    await self._look_after(http, follower)

    async def _look_after(self, http: SimulatedClient, follower: Follower) -> None:
        order = follower.order
        if not follower.id:
            await self._start(http, follower)
        elif order.unsent and self.random.random() < _SOON:
            await self._send(http, follower)
        elif order.is_stopped and order.stopped_at is None and self.random.random() < _SOON:
            answer = await http.request("POST", f"/executions/{follower.id}/stop", {"reason": "it was enough"})
            if self._expect(answer, {202}):
                order.stopped_at = self.world.loop.time()
        else:
            await self._follow(http, follower)

    def _expect(self, answer: SimulatedAnswer, wanted: set[int]) -> bool:
        """Return whether an answer is one of these; another one is wrong, unless the client has to ask again."""
        if answer.status not in wanted | _BUSY:
            self._wrong.append(f"the status {answer.status} was not expected: {answer.body}")
        return answer.status in wanted

    async def _start(self, http: SimulatedClient, follower: Follower) -> None:
        order = follower.order
        body = {"input": order.id, "agent": order.agent}
        answer = await http.request("POST", "/executions", body, {"Idempotency-Key": order.id})
        if self._expect(answer, {200, 201}):
            follower.id = answer.body["id"]

    async def _send(self, http: SimulatedClient, follower: Follower) -> None:
        order = follower.order
        text = order.unsent.pop()
        order.sent[text] = "unknown"  # until there is an answer; a request that comes twice sends the message twice
        answer = await http.request("POST", f"/executions/{follower.id}/messages", {"message": text})
        if self._expect(answer, {202}):
            order.sent[text] = "sent"

    async def _follow(self, http: SimulatedClient, follower: Follower) -> None:
        path = f"/executions/{follower.id}"
        answer = await http.request("GET", f"{path}?wait={self.random.choice((0, 1, 5))}")
        if not self._expect(answer, {200}):
            return
        status = answer.body["status"]
        if status == ExecutionStatus.SUSPENDED.value:
            await self._decide(http, path, answer.body)
        if not follower.has_ended:
            await self._read_events(http, follower, path)
        elif ExecutionStatus(status).is_terminal:
            follower.final = (status, answer.body.get("text") or "")

    async def _decide(self, http: SimulatedClient, path: str, execution: Mapping[str, Any]) -> None:
        offered = [each for call in execution.get("pending", ()) for each in (call.get("inner") or [call])]
        calls = [call for call in offered if not call.get("waits_for")]
        if calls:
            call = self.random.choice(calls)
            kind = self.random.choice(({"kind": "approve"}, {"kind": "deny", "reason": "no"}))
            decisions = {call["key"]: {**kind, "digest": call["digest"]}}
            self._expect(await http.request("POST", f"{path}/decisions", {"decisions": decisions}), {200, 202})

    async def _read_events(self, http: SimulatedClient, follower: Follower, path: str) -> None:
        """Follow the events from the last one that has come, until the stream ends or breaks, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.random.choice((1.0, 10.0, 40.0))):
                async for event in http.stream(f"{path}/events", {"Last-Event-ID": str(follower.last)}):
                    self._note(follower, event)
                if follower.events and follower.events[-1][1] == "execution_ended":
                    follower.has_ended = True

    def _note(self, follower: Follower, event: Mapping[str, str]) -> None:
        if "id" not in event:
            return  # a piece of what a model writes
        number, kind = int(event["id"]), event["event"]
        if number <= follower.last:
            follower.problems.append(f"the event {number} of {follower.id} came behind {follower.last}")
        if json.loads(event["data"])["type"] != kind:
            follower.problems.append(f"the event {number} of {follower.id} is {kind}, and its data is not")
        follower.events.append((number, kind))
        follower.last = max(follower.last, number)

    # --- the end --------------------------------------------------------------------------------------------------------

    async def is_done(self) -> bool:
        """Return whether all clients know how everything has ended; then look at what they know."""
        if any(follower.final is None for follower in self._followers):
            return False
        for order in self.orders.values():
            ids = {each.id for each in self._followers if each.order is order}
            if len(ids) != 1:
                self._wrong.append(f"one request has started {sorted(ids)}")
        self._wrong += [problem for order in self.orders.values() for problem in order.disobeyed()]
        for follower in self._followers:
            self._wrong += await self._problems_of(follower)
        known = {follower.id for follower in self._followers}
        others = [head.execution_id for head in await self._store.list() if head.execution_id not in known]
        self._wrong += [f"nobody has asked for the execution {each}" for each in others]
        return True

    async def _problems_of(self, follower: Follower) -> Sequence[str]:
        state = await self._store.state(follower.id)
        expected = (state.status.value, state.final_text or "")
        found = list(follower.problems)
        if follower.final != expected:
            found.append(f"{follower.id} is {expected}, and told as {follower.final}")
        reader = RecordReader()
        events = [reader.read(record) for record in await self._store.read(follower.id)]
        recorded = [(event.sequence, event.type) for event in events if event is not None]
        if follower.events != recorded:
            missing = [each for each in recorded if each not in follower.events]
            more = [each for each in follower.events if each not in recorded]
            found.append(f"of the events of {follower.id}, {missing} never came, and {more} never happened")
        texts = [message.text for message in state.messages if message.role == "user"]
        late = await texts_too_late(self._store, follower.id)
        for text, answer in follower.order.sent.items():
            if answer == "sent" and text not in {*texts, *late} and state.status is ExecutionStatus.COMPLETED:
                found.append(f"{text!r} was accepted, and is not in the conversation")
        return found

    def problems(self) -> Sequence[str]:
        """Return what was told wrongly."""
        return tuple(self._wrong)
