"""The scenario of a cluster: shipped workers on simulated machines, and clients that submit, send, stop, decide and ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from attrs import define, field

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_journal import CanJournal
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.durable.commands import undelivered_messages
from agentloop.errors import (
    ConfigurationError,
    DatabaseLost,
    DatabaseUnavailable,
    DecisionError,
    InboxClosed,
    JournalError,
    WorkFailed,
)
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.rules import RequireApproval
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cluster.cluster import Cluster
from agentloop.service.cluster.executions import execution_of_job
from agentloop.service.cluster.queued_tools import QueuedToolExecutor
from agentloop.service.cluster.worker import Worker
from agentloop.testing.simulation.event_loop import MachineClock
from agentloop.testing.simulation.memory_queue import WatchedQueue
from agentloop.testing.simulation.scenarios import (
    Script,
    ScriptedModel,
    SimulatedScenario,
    WorkerTools,
    decide_at_random,
)
from agentloop.testing.simulation.storage import MachineQueue
from agentloop.testing.simulation.world import SimulatedWorker, SimulatedWorld
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.jobs import JobKind, JobState
from agentloop.values.records import InDoubt
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus

_TOOLS = ("pay", "note", "look", "book", "hurry", "print_label", "ask")
_OBEYED = 100.0
"""After how many seconds an execution that was told to stop must have stopped asking its model."""
_SOON = 0.4
"""How likely a client sends a message, or stops an execution, when it looks after it."""
LONG = 40
"""The steps of an execution that is told to stop."""


@define(eq=False)
class Order:
    """An execution that clients want.

    Attributes:
        id: its id.
        agent: the agent that runs it.
        script: the tools that its model calls.
        queue: its queue.
        priority: its priority.
        delay: how long it waits, in seconds.
        is_stopped: whether it is told to stop.
        unsent: the messages that are still to be sent to it.
        sent: the messages that were sent, with what became of it: `sent`, `late` or `unknown`.
        is_submitted: whether its submission was answered.
        stopped_at: when the command to stop was answered; None before that.
        told: how clients were told that it ended.
        asked: when its model was asked.
    """

    id: str
    agent: str
    script: Script
    queue: str
    priority: int
    delay: float
    is_stopped: bool
    unsent: list[str]
    sent: dict[str, str] = field(factory=dict)
    is_submitted: bool = False
    stopped_at: float | None = None
    told: list[tuple[str, str]] = field(factory=list)
    asked: list[float] = field(factory=list)

    def disobeyed(self) -> Sequence[str]:
        """Return what is wrong if the execution went on for long after it was told to stop."""
        late = [at - self.stopped_at for at in self.asked if self.stopped_at is not None]
        return [f"{self.id} goes on {late[-1]:.0f} s after it was told to stop"] if late and late[-1] > _OBEYED else []


async def texts_too_late(store: CanJournal, execution_id: str) -> Sequence[str]:
    """Return the messages that came when their execution was about to end: it has not received them, and the journal shows them."""
    waiting = await undelivered_messages(store, execution_id)
    return [command.message.text for command in waiting if command.message is not None]


class OrderModel(CanInfer):
    """Follows the script of the order that the first message names.

    Args:
        worker: the process that asks.
        orders: the orders, by their ids.
    """

    def __init__(self, worker: SimulatedWorker, orders: dict[str, Order]) -> None:
        self._worker, self._orders = worker, orders

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next calls of the script."""
        order = self._orders[request.messages[0].text]
        order.asked.append(self._worker.world.loop.time())
        return await ScriptedModel(self._worker, order.script).infer(request)


class ClusterScenario(SimulatedScenario):
    """A cluster: each machine runs a shipped `Worker`, and clients use the shipped `Cluster`.

    Some agents run their tools in the queue, one queue has a limit, workers are drained now and then. What the queues do is compared with
    rules of their own.

    Attributes:
        orders: the executions, by their ids.
        queue: the queues on the server.
    """

    machines = 3
    fault_gap = 300
    clients: int = 2
    """How many machines are those of clients."""
    repeatable: frozenset[str] = frozenset({"note", "look"})

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.queue: WatchedQueue = WatchedQueue(MachineClock(world.loop))
        self.orders: dict[str, Order] = {
            f"x{number}": self._order(number) for number in range(self.random.randint(2, 4))
        }
        self._wrong: list[str] = []
        self._workers = 0
        self._store: Any = None

    def _order(self, number: int) -> Order:
        random = self.random
        is_stopped = random.random() < 0.25  # noqa: PLR2004  # one in four
        length = LONG if is_stopped else random.randint(1, 4)
        names = ("look", "note") if is_stopped else _TOOLS
        return Order(
            id=f"x{number}",
            agent=random.choice(("plain", "plain", "queued")),
            script=[[random.choice(names) for _ in range(random.randint(1, 2))] for _ in range(length)],
            queue=random.choice(("default", "narrow")),
            priority=random.randint(-1, 1),
            delay=random.choice((0.0, 0.0, 0.0, 2.0)),
            is_stopped=is_stopped,
            unsent=[f"message {each} to x{number}" for each in range(random.choice((0, 0, 1, 2)))],
        )

    async def main(self) -> None:
        """Start the machines of workers and of clients, and wait until everything has ended and is told."""
        await self.prepare()
        self.world.start_workers(self.clients, self.attend)
        await super().main()

    async def prepare(self) -> None:
        """Open the storage, to look at it from outside, and limit a queue."""
        if self._store is None:
            self._store = self.world.open_store()
            await self.queue.limit_queue(JobKind.EXECUTION, "narrow", concurrency=1)

    # --- machines of workers --------------------------------------------------------------------------------------------

    async def work(self, worker: SimulatedWorker) -> None:
        """Run a worker until it is drained, or loses its database."""
        self._workers += 1
        running = Worker(
            self._agents(worker),
            journal=worker.journal,
            queues=MachineQueue(self.queue, worker),
            name=f"{worker.machine.name}-{self._workers}",
            executions=2,
            tools=2,
            max_recoveries=6,
            drain_grace=5.0,
            clock=worker.clock,
            ids=worker.ids,
        )
        draining = asyncio.create_task(self._drain(running))
        try:
            await running.run()
            if kept := self.queue.rules.kept.get(running.name):
                self._wrong.append(f"{running.name} was drained, and kept the jobs {kept}")
        except (DatabaseLost, DatabaseUnavailable):
            return  # its supervisor starts it again
        except ConfigurationError as error:
            if "is running" not in str(error):  # the server does not know yet that the answer to `join` was lost
                raise
        finally:
            draining.cancel()

    async def _drain(self, worker: Worker) -> None:
        await asyncio.sleep(self.random.choice((1.0, 5.0, 20.0, 100.0)))
        await worker.drain()

    def _agents(self, worker: SimulatedWorker) -> dict[str, AgentLoop]:
        tools = WorkerTools(worker).all()
        executors = {"plain": ToolExecutor(), "queued": QueuedToolExecutor()}
        return {
            name: AgentLoop(
                ToolCallingDriver(OrderModel(worker, self.orders)),
                tools,
                executor=executor,
                in_doubt=InDoubt.TELL,
                interceptors=[RequireApproval(["ask"])],
                clock=worker.clock,
                ids=worker.ids,
            )
            for name, executor in executors.items()
        }

    # --- machines of clients --------------------------------------------------------------------------------------------

    async def attend(self, client: SimulatedWorker) -> None:
        """Look after the orders once, as a client."""
        with suppress(DatabaseUnavailable):
            queues = MachineQueue(self.queue, client)
            async with Cluster(journal=client.journal, queues=queues, clock=client.clock, ids=client.ids) as cluster:
                orders = [order for order in self.orders.values() if len(order.told) < self.clients]
                self.random.shuffle(orders)
                for order in orders:
                    with suppress(DatabaseUnavailable, JournalError):
                        await self._look_after(cluster, order)

    async def _look_after(self, cluster: Cluster, order: Order) -> None:
        if not order.is_submitted:
            await self._submit(cluster, order)
        elif order.unsent and not order.told and self.random.random() < _SOON:
            await self._send(cluster, order)
        elif order.is_stopped and order.stopped_at is None and not order.told and self.random.random() < _SOON:
            await cluster.stop(order.id, "it was enough")
            order.stopped_at = self.world.loop.time()
        else:
            await self._ask(cluster, order)

    async def _submit(self, cluster: Cluster, order: Order) -> None:
        await cluster.submit(
            order.agent,
            order.id,
            execution_id=order.id,
            queue=order.queue,
            priority=order.priority,
            delay=order.delay,
        )
        order.is_submitted = True

    async def _send(self, cluster: Cluster, order: Order) -> None:
        text = order.unsent.pop()
        order.sent[text] = "unknown"  # until there is an answer
        try:
            await cluster.send(order.id, text)
        except InboxClosed:
            order.sent[text] = "late"
        else:
            order.sent[text] = "sent"

    async def _ask(self, cluster: Cluster, order: Order) -> None:
        try:
            state = await cluster.result(order.id, timeout=self.random.choice((0.5, 5.0, 30.0)))
        except TimeoutError:
            return
        except WorkFailed as error:
            if "DecisionError" not in str(error):
                raise
            # Somebody else's decisions were used; there may be others to make.
            state = await cluster.journal.state(order.id)
        if state.status is ExecutionStatus.SUSPENDED:
            await self._decide(cluster, order, state)
        elif state.status.is_terminal:
            order.told.append((state.status.value, state.final_text or ""))

    async def _decide(self, cluster: Cluster, order: Order, state: AgentState) -> None:
        decisions = decide_at_random(state.pending, self.random)
        if decisions:
            with suppress(DecisionError):  # somebody else has decided
                await cluster.resume(order.id, decisions)

    # --- the end --------------------------------------------------------------------------------------------------------

    async def is_done(self) -> bool:
        """Return whether all executions have ended and are told, and no job is left; then look at what became of them."""
        if any(len(order.told) < self.clients for order in self.orders.values()) or self.queue.rules.open_jobs():
            return False
        self._wrong += [problem for order in self.orders.values() for problem in await self._problems_of(order)]
        failed = await self.queue.list(kind=JobKind.EXECUTION, states={JobState.FAILED})
        self._wrong += [
            f"the job {job.id} has failed: {job.error}"
            for job in failed
            if job.error is None or job.error.type != DecisionError.__name__
        ]
        lost = {execution_of_job(job.id) for job in await self.queue.list(kind=JobKind.EXECUTION)} - self.orders.keys()
        self._wrong += [f"the queues have jobs of {execution_id}, which nobody wants" for execution_id in sorted(lost)]
        return True

    async def _problems_of(self, order: Order) -> Sequence[str]:
        head = await self._store.head(order.id)
        if head is None:
            is_stopped = all(status == ExecutionStatus.STOPPED.value for status, _ in order.told)
            return (
                []
                if is_stopped and order.is_stopped
                else [f"{order.id} is told as {order.told}, and was never recorded"]
            )
        state = await self._store.state(order.id)
        expected = (state.status.value, state.final_text or "")
        found = [f"{order.id} is {expected}, and told as {told}" for told in order.told if told != expected]
        texts = [message.text for message in state.messages if message.role == "user"]
        late = await texts_too_late(self._store, order.id)
        for text, answer in order.sent.items():
            count = texts.count(text)
            if not count and text in late:
                continue
            allowed = {"sent": {1}, "late": {0}, "unknown": {0, 1}}[answer]
            if state.status is not ExecutionStatus.COMPLETED:  # an execution that is stopped or fails takes no more
                allowed = allowed | {0}
            if count not in allowed:
                found.append(f"{text!r} was {answer}, and is in the conversation {count} times")
        return [*found, *order.disobeyed()]

    def further_starts(self, key: str) -> int:
        """Return how often the worker that ran a call in the queue has lost its place: another one runs the call then."""
        losses = self.queue.rules.losses
        return sum(count for job_id, count in losses.items() if job_id.startswith(f"{key}#"))

    def problems(self) -> Sequence[str]:
        """Return what the queues did against their rules, and what was told wrongly."""
        return (*self.queue.rules.problems, *self._wrong)
