"""The scenarios of the package: agents whose executions are interrupted, recovered, decided, continued, forked and deleted."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tool import CanReconcileCall, Tool, ToolContext
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.durable.chain import verify_records
from agentloop.durable.fold import fold_records
from agentloop.durable.forking import fork
from agentloop.errors import ConfigurationError, DecisionError, JournalConflict
from agentloop.interception.rules import RequireApproval
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.random_inference import RandomInference
from agentloop.testing.simulation.world import SimulatedWorker, SimulatedWorld
from agentloop.tools.decorator import tool
from agentloop.values.decisions import Decision, PendingCall, answer, approve, deny, edit
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.json import parse_json
from agentloop.values.parts import Text
from agentloop.values.records import DidNotHappen, Happened, InDoubt, Reconciliation
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolCall

Script = Sequence[Sequence[str]]
"""The tools that a model calls, step by step."""

_PATIENCE = 600
"""How many seconds a simulation may take until everything has ended."""


class SimulatedScenario(ABC):
    """What runs in a simulation. One object serves one run.

    Args:
        world: the world of the run.

    Attributes:
        world: the world.
        random: makes the choices of the scenario.
    """

    machines: int = 2
    """How many machines look for work."""
    fault_gap: int = 60
    """The maximum number of steps between two faults."""
    unrepeatable: frozenset[str] = frozenset({"pay", "ask", "hurry", "print_label"})
    """The tools that are never repeated unasked: they have an effect, and nothing can tell whether they had it."""
    repeatable: frozenset[str] = frozenset()
    """The tools that may be run again where no record says so: those of calls in a queue that have no effect, or the same again."""
    has_ledger: bool = True
    """Whether its tools note their effects in the ledger."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world: SimulatedWorld = world
        self.random: Random = Random(f"scenario of {world.seed}")  # noqa: S311  # not for secrets

    async def prepare(self) -> None:
        """Do what comes before the machines start and before anything goes wrong."""
        return

    @abstractmethod
    async def work(self, worker: SimulatedWorker) -> None:
        """Look for work once, on one machine, and do it."""

    @abstractmethod
    async def is_done(self) -> bool:
        """Return whether everything has ended."""

    def further_starts(self, key: str) -> int:  # noqa: ARG002  # of the call of this key
        """Return how often a call may have had its effect besides, after starts of which its execution has no record."""
        return 0

    def problems(self) -> Sequence[str]:
        """Return what is wrong at the end, besides what the model of records and the ledger of effects find."""
        return ()

    async def main(self) -> None:
        """Run the scenario until everything has ended."""
        await self.prepare()
        self.world.start_workers(self.machines, self.work)
        for _ in range(_PATIENCE):
            await asyncio.sleep(1.0)
            if await self.is_done() and not self.world.waits_for_cancelled:
                return
        self.world.problems.append("something does not end")


# --- models and tools ---------------------------------------------------------------------------------------------------


class SimulatedModel(CanInfer):
    """Another model, which takes some time and may not answer.

    Args:
        worker: the process that asks.
        inference: the model.
    """

    def __init__(self, worker: SimulatedWorker, inference: CanInfer) -> None:
        self._worker, self._inference = worker, inference

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the answer of the model."""
        with self._worker.inference():
            await asyncio.sleep(self._worker.world.random.choice((0.0, 0.0, 0.1, 3.0)))
        return await self._inference.infer(request)


class ScriptedModel(CanInfer):
    """Follows a script by the number of answers in the request, so that it goes on in any process.

    Args:
        worker: the process that asks.
        script: the tools that it calls, step by step.
    """

    def __init__(self, worker: SimulatedWorker, script: Script) -> None:
        self._worker, self._script = worker, script

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next calls of the script; behind its end, an answer."""
        worker = self._worker
        with worker.inference():
            await asyncio.sleep(worker.world.random.choice((0.0, 0.0, 0.1, 3.0)))
        number = sum(bool(message.exchanges) for message in request.messages)
        if number >= len(self._script):
            return InferenceResponse((Text("done"),), usage=Usage(1, 1))
        names = self._script[number]
        calls = [ToolCall(f"c{number}_{place}", name, _arguments(name, place)) for place, name in enumerate(names)]
        return InferenceResponse(tuple(calls), usage=Usage(1, 1))


def _arguments(name: str, place: int) -> str:
    """Return the arguments of a call; two neighbors of one tool are equal, as forks may reuse their outcomes for each other."""
    return '{"task": "go"}' if name == "helper" else f'{{"text": "{place // 2}"}}'


@frozen(eq=False)
class WorkerTools:
    """The tools of the scenarios, as one process has them; each notes its effects in the ledger.

    Attributes:
        worker: the process.
    """

    worker: SimulatedWorker

    def all(self) -> list[Tool]:
        """Return the tools: with an effect, repeatable, pure, with a memory, with a time limit, in a thread."""
        return [
            tool(self.pay),
            tool(self.ask),
            tool(effect="idempotent")(self.note),
            tool(effect="pure")(self.look),
            tool(reconcile=self._find_booking)(self.book),
            tool(timeout=1.0)(self.hurry),
            tool(self.print_label),
        ]

    async def pay(self, text: str, context: ToolContext) -> str:
        """Pay."""
        return await self._act("pay", text, context)

    async def ask(self, text: str, context: ToolContext) -> str:
        """Do what somebody has to approve."""
        return await self._act("ask", text, context)

    async def note(self, text: str, context: ToolContext) -> str:
        """Note a text."""
        return await self._act("note", text, context)

    async def look(self, text: str, context: ToolContext) -> str:
        """Look something up."""
        return await self._act("look", text, context)

    async def book(self, text: str, context: ToolContext) -> str:
        """Book, at a service that can be asked afterwards."""
        return await self._act("book", text, context)

    async def hurry(self, text: str, context: ToolContext) -> str:
        """Work against a time limit."""
        await asyncio.sleep(self.worker.world.random.choice((0.0, 0.5, 3.0)))
        return await self._act("hurry", text, context)

    def print_label(self, text: str, context: ToolContext) -> str:
        """Print, in a thread."""
        self.worker.effect("print_label", context)
        self.worker.fail_tool("print_label")
        return f"printed {text}"

    async def _act(self, name: str, text: str, context: ToolContext) -> str:
        worker = self.worker
        with worker.machine.at(f"tool.{name}"):
            await _take_time(worker)
            worker.effect(name, context)
            await _take_time(worker)
            worker.fail_tool(name)
        return f"did {name} {text}"

    async def _find_booking(self, context: ToolContext) -> Reconciliation:
        worker = self.worker
        with worker.machine.at("reconcile"):
            await _take_time(worker)
            return Happened("booked") if worker.world.ledger.effects[context.idempotency_key] else DidNotHappen()


async def _take_time(worker: SimulatedWorker) -> None:
    await asyncio.sleep(worker.world.random.choice((0.0, 0.0, 0.05, 2.0)))


_POLICIES = (InDoubt.TELL, InDoubt.SUSPEND)
PURE = frozenset({"look"})
"""The tools without an effect: what they did need not be told."""
_NAMES = ("pay", "pay", "note", "look", "book", "hurry", "print_label")


# --- people -------------------------------------------------------------------------------------------------------------


def decide_at_random(calls: Sequence[PendingCall], random: Random) -> dict[str, Decision]:
    """Return decisions about some of the calls that wait, as a person makes them.

    Args:
        calls: the pending calls of a state.
        random: makes the choices.
    """
    pending = [call for call in calls if not call.waits_for]
    offered = [each for call in pending for each in (call.inner or (call,)) if not each.waits_for]
    chosen = random.sample(offered, random.randint(1, len(offered))) if offered else []
    return {call.key: _decision(call, random) for call in chosen}


def _decision(call: PendingCall, random: Random) -> Decision:
    return random.choice((approve(), approve(call.digest), deny("no"), answer("it is done"), edit({"text": "e"})))


# --- executions -------------------------------------------------------------------------------------------------------


class RecoveryScenario(SimulatedScenario):
    """Executions whose calls have effects: any machine starts them, and any machine recovers them.

    Attributes:
        scripts: what the model does, by execution.
        inner: what the model of the sub-agent does.
        policy: what happens to calls in doubt.
    """

    names: Sequence[str] = _NAMES

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        random = self.random
        count = random.randint(1, 3)
        self.scripts: dict[str, Script] = {f"x{number}": self.script(3) for number in range(count)}
        self.inner: Script = self.script(2, [name for name in self.names if name != "helper"])
        self.policy: InDoubt = InDoubt.TELL
        self._loops: dict[tuple[SimulatedWorker, str], AgentLoop] = {}
        self._tools: dict[SimulatedWorker, list[Tool]] = {}

    def script(self, most: int, names: Sequence[str] = ()) -> Script:
        """Return a random script of at most so many steps."""
        random, names = self.random, names or self.names
        return [[random.choice(names) for _ in range(random.randint(1, 3))] for _ in range(random.randint(1, most))]

    def loop_of(self, worker: SimulatedWorker, execution_id: str) -> AgentLoop:
        """Return the loop of an execution, as one machine has it."""
        known = self._loops.get((worker, execution_id))
        if known is None:
            known = self._loops[worker, execution_id] = self._make_loop(worker, self.scripts[execution_id])
        return known

    def _make_loop(self, worker: SimulatedWorker, script: Script) -> AgentLoop:
        tools = self._tools[worker] = self._tools.get(worker) or WorkerTools(worker).all()
        guards = [RequireApproval(["ask"])]
        if "helper" in self.names:
            helper = AgentLoop(
                ToolCallingDriver(ScriptedModel(worker, self.inner)),
                tools,
                interceptors=guards,
                clock=worker.clock,
                ids=worker.ids,
            )
            tools = [*tools, helper.as_tool("helper", "Helps.")]
        return AgentLoop(
            ToolCallingDriver(ScriptedModel(worker, script)),
            tools,
            journal=worker.journal,
            in_doubt=self.policy,
            interceptors=guards,
            clock=worker.clock,
            ids=worker.ids,
        )

    async def work(self, worker: SimulatedWorker) -> None:
        """Start what has not started, recover what was interrupted, and decide what waits."""
        heads = {head.execution_id: head for head in await worker.journal.list()}
        ids = sorted(self.scripts)
        self.random.shuffle(ids)
        for execution_id in ids:
            head = heads.get(execution_id)
            try:
                if head is None:
                    await self.loop_of(worker, execution_id).get_or_start("go", execution_id)
                elif head.status is ExecutionStatus.IN_PROGRESS:
                    await self.loop_of(worker, execution_id).recover(execution_id)
                elif head.status is ExecutionStatus.SUSPENDED:
                    await self.decide(worker, self.loop_of(worker, execution_id), execution_id)
            except JournalConflict:
                continue  # another machine has it

    async def decide(self, worker: SimulatedWorker, loop: AgentLoop, execution_id: str) -> None:
        """Decide about some of the calls that wait, as a person does."""
        records = verify_records(await worker.journal.read(execution_id), execution_id)
        state = fold_records(records, execution_id).state
        decisions = {} if state is None else decide_at_random(state.pending, self.random)
        if not decisions:
            return
        try:
            await loop.resume(execution_id, decisions)
        except DecisionError:
            return  # somebody else has decided

    async def is_done(self) -> bool:
        """Return whether all executions have ended."""
        heads = {head.execution_id: head.status for head in await self._store.list()}
        return all(execution_id in heads and heads[execution_id].is_terminal for execution_id in self.scripts)

    async def prepare(self) -> None:
        """Open the storage, to look at it from outside."""
        self._store = self.world.open_store()


class ApprovalScenario(RecoveryScenario):
    """As `RecoveryScenario`, with calls that somebody has to approve, and calls in doubt that wait for a decision."""

    names: Sequence[str] = (*_NAMES, "ask", "ask", "ask")

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.policy = InDoubt.SUSPEND


class AgentScenario(RecoveryScenario):
    """As `ApprovalScenario`, with calls that agents serve, whose own calls have effects and wait for decisions."""

    names: Sequence[str] = (*_NAMES, "ask", "helper", "helper", "helper")

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.policy = self.random.choice(_POLICIES)


class DeletionScenario(RecoveryScenario):
    """As `AgentScenario`, while somebody deletes executions, which then start anew: nothing of the former one may be left."""

    names: Sequence[str] = AgentScenario.names

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.policy = self.random.choice(_POLICIES)
        self.left: int = self.random.randint(1, 4)

    async def work(self, worker: SimulatedWorker) -> None:
        """Delete an execution now and then; do the work of the others."""
        roots = [head.execution_id for head in await worker.journal.list() if head.execution_id in self.scripts]
        if self.left and roots and self.random.random() < 0.3:  # noqa: PLR2004  # now and then
            try:
                self.left -= await worker.journal.delete(self.random.choice(sorted(roots)))
            except JournalConflict:
                return  # a machine drives it
        await super().work(worker)


class ForkScenario(RecoveryScenario):
    """Forks of an execution that has ended: they reuse its effects, and machines recover them."""

    names: Sequence[str] = ("pay", "note", "look", "pay")

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._before: dict[str, int] = {}
        self._reused: set[tuple[str, str]] = set()

    async def prepare(self) -> None:
        """Run the source to its end, and fork it."""
        await super().prepare()
        script = self.scripts["x0"]
        self.scripts.clear()
        self.scripts["x0"] = script
        worker = SimulatedWorker(self.world, "origin")
        await self.loop_of(worker, "x0").execute("go", execution_id="x0")
        self._before = dict(self.world.ledger.effects)
        for number in range(self.random.randint(1, 2)):
            step = self.random.randint(0, len(script) - 1)
            await fork(worker.journal, "x0", at_step=step, fork_id=f"f{number}", clock=worker.clock)
            self.scripts[f"f{number}"] = script

    async def is_done(self) -> bool:
        """Return whether all forks have ended; then note whose outcomes they have reused."""
        if not await super().is_done():
            return False
        for execution_id in self.scripts:
            bodies = [parse_json(record.body) for record in await self._store.read(execution_id)]
            self._reused |= {(execution_id, body["source"]) for body in bodies if body.get("source")}
        return True

    def problems(self) -> Sequence[str]:
        """Return the effects that a fork has repeated although its source had them, and no other call has reused them."""
        repeated = [
            key
            for key in self.world.ledger.effects
            if self.world.ledger.names[key] == "pay"
            and (source := key.replace(key.partition("/")[0], "x0", 1)) != key
            and source in self._before
            and (key.partition("/")[0], source) not in self._reused
        ]
        return [f"a fork repeats an effect of its source: {key}" for key in repeated]


class SessionScenario(RecoveryScenario):
    """One session, to which several machines bring messages: each is in the conversation once."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.scripts.clear()
        self._wrong: list[str] = []
        self.scripts.update({f"x{number}": () for number in range(self.random.randint(2, 4))})

    async def work(self, worker: SimulatedWorker) -> None:
        """Bring one of the messages that were not answered, again and again until it is."""
        heads = {head.execution_id: head for head in await worker.journal.list()}
        ids = [each for each in sorted(self.scripts) if each not in heads or not heads[each].status.is_terminal]
        if not ids:
            return
        execution_id = self.random.choice(ids)
        try:
            await self.loop_of(worker, execution_id).get_or_start(f"message {execution_id}", execution_id, session="s")
        except JournalConflict:
            return  # another machine runs it

    def problems(self) -> Sequence[str]:
        """Return the messages that the conversation lacks or repeats."""
        return self._wrong

    async def is_done(self) -> bool:
        """Return whether all messages are answered; then look at the conversation."""
        if not await super().is_done():
            return False
        heads = [head for head in await self._store.list() if head.execution_id in self.scripts]
        newest = max(heads, key=lambda head: head.number)
        state = fold_records(await self._store.read(newest.execution_id), newest.execution_id).state
        told = [message.text for message in state.messages if message.role == "user"] if state is not None else []
        expected = sorted(f"message {execution_id}" for execution_id in self.scripts)
        self._wrong = [] if sorted(told) == expected else [f"the conversation has the messages {told}"]
        return True


def scenario_of(loop: AgentLoop) -> type[SimulatedScenario]:
    """Return the scenario of executions of a loop of yours, with its tools and interceptors.

    In place of its model, one calls every tool that it is offered, with arguments that satisfy the schema. Its journal, clock and ids
    are those of the machines. Calls that wait are decided at random. Tools should do nothing but what a simulation has: no
    sockets, no threads of their own, no clock but that of the context.

    Args:
        loop: the loop, whose driver has a model as its attribute `inference`, such as `ToolCallingDriver`.

    Raises:
        ConfigurationError: the driver has no such attribute.
    """
    driver: Any = loop.driver
    if not isinstance(getattr(driver, "inference", None), CanInfer):
        raise ConfigurationError(f"the driver {type(driver).__name__} has no attribute `inference`")
    checked = [
        each.name for each in loop.tools if each.spec.effect is Effect.EFFECT and not isinstance(each, CanReconcileCall)
    ]

    class OfLoop(RecoveryScenario):
        unrepeatable = frozenset(checked)
        has_ledger = False

        def loop_of(self, worker: SimulatedWorker, execution_id: str) -> AgentLoop:  # noqa: ARG002  # one loop for all
            model = SimulatedModel(worker, RandomInference(self.world.seed))
            return loop.replace(
                driver=evolve(driver, inference=model),
                in_doubt=self.random.choice(_POLICIES),
                journal=worker.journal,
                clock=worker.clock,
                ids=worker.ids,
            )

    return OfLoop


SCENARIOS: Mapping[str, type[SimulatedScenario]] = {
    "recovery": RecoveryScenario,
    "approvals": ApprovalScenario,
    "agents": AgentScenario,
    "deletion": DeletionScenario,
    "forks": ForkScenario,
    "sessions": SessionScenario,
}
"""The scenarios of the package, by name."""
