"""A world in which every part of a loop may raise, lie, wait or be cancelled, and which knows what really happened."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from attrs import define, evolve, field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Interceptor,
    Message,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    ToolExecution,
    ToolExecutor,
    Usage,
    from_json,
    to_json,
    tool,
)
from agentloop.contracts import CanExecuteToolCalls, CanInfer, Tool
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle, CanAcceptTools
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.drivers.driver import StepDraft
from agentloop.durable import MemoryJournal
from agentloop.errors import InvalidResponse, ProviderUnavailable
from agentloop.events.execution import AgentStepStarted
from agentloop.events.grammar import ProtocolMonitor
from agentloop.testing import CountingIds, LoopClock
from agentloop.testing.clocks import VirtualTimeLoop
from agentloop.toolkits import Ensemble
from agentloop.values import (
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Text,
    ToolCalls,
    ToolExecutions,
    ToolStatus,
    interrupted_state,
)
from agentloop.values.decisions import Decision, PendingCall, answer, approve, deny, edit

TOKENS = 7
"""The input tokens of every inference; its output has none."""

_TOLD_AS_RUN = {ToolStatus.SUCCEEDED, ToolStatus.FAILED}
_MAX_STEPS = 8
_MAX_TICKS = 40


class Chooser(Protocol):
    """Chooses what happens: a random generator, or Hypothesis."""

    def number(self, most: int) -> int:
        """Return a number from 0 to `most`, inclusive."""

    def happens(self, percent: int) -> bool:
        """Return whether something with this probability happens."""


@define(eq=False)
class World:
    """What really happened, and what the parts of the loop do next.

    Attributes:
        chooser: chooses.
        percent: how often a part misbehaves when it is used.
        started: how often each effect has started, by token.
        delegated: the keys of the calls whose sub-agents have started effects, by token.
        spent: the number of inferences that the current execution has paid for.
        steps: the number of steps that were started.
        states: states of other executions, for parts that lie.
        problems: the broken promises.
    """

    chooser: Chooser
    percent: int
    started: Counter[int] = field(factory=Counter)
    delegated: dict[int, str] = field(factory=dict)
    spent: int = 0
    steps: int = 0
    states: list[AgentState] = field(factory=list)
    problems: list[str] = field(factory=list)
    _tokens: int = 0

    def pick(self, *options: str) -> str:
        """Return one of the options, mostly the first."""
        if not self.chooser.happens(self.percent):
            return options[0]
        return options[self.chooser.number(len(options) - 1)]

    def token(self) -> int:
        """Return the token of the next effect."""
        self._tokens += 1
        return self._tokens

    def start(self, token: int, context: ToolContext) -> None:
        """Note that an effect has started."""
        self.started[token] += 1
        caller, is_sub_agent, _ = context.execution_id.rpartition("/agent")
        if is_sub_agent:
            self.delegated[token] = caller

    def foreign_state(self, state: AgentState) -> AgentState:
        """Return a state that does not continue this one."""
        kinds: list[Callable[[], AgentState]] = [
            lambda: AgentState.start("another"),
            lambda: evolve(state, agent_id="stranger"),
            lambda: self.states[self.chooser.number(len(self.states) - 1)] if self.states else AgentState.start("x"),
        ]
        return kinds[self.chooser.number(len(kinds) - 1)]()

    async def trouble(self, kind: str) -> None:
        """Wait, raise, or await something that was cancelled."""
        match kind:
            case "wait":
                await asyncio.sleep(0.5)
            case "raise":
                raise RuntimeError("trouble")
            case "stop":
                raise AgentStop("enough")
            case "cancelled":
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            case "fail":
                raise ProviderUnavailable("down")
            case "cut":
                raise InvalidResponse("cut")


# --- the parts ------------------------------------------------------------------------------------------------------

_MANNERS = ("return", "wait", "raise", "wait and raise", "swallow", "convert", "stop", "cancelled")


def effect_tools(world: World) -> list[Tool]:
    """Return the tools: one has an effect that is recorded, whatever becomes of the call."""

    @tool
    async def pay(token: int, manner: str, context: ToolContext) -> int:
        """Pay."""
        world.start(token, context)
        await _behave(world, manner)
        return token

    @tool
    def pay_in_thread(token: int, manner: str, context: ToolContext) -> int:
        """Pay, in a thread."""
        world.start(token, context)
        if manner == "raise":
            raise ValueError(manner)
        return token

    @tool(effect="pure")
    async def look(token: int, manner: str) -> int:
        """Look."""
        await _behave(world, manner)
        return token

    return [pay, pay_in_thread, look]


async def _behave(world: World, manner: str) -> None:
    match manner:
        case "wait":
            await asyncio.sleep(1)
        case "wait and raise":
            await asyncio.sleep(1)
            raise ValueError(manner)
        case "raise":
            raise ValueError(manner)
        case "swallow" | "convert":
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if manner == "convert":
                    raise ConnectionError("lost") from None
        case "stop" | "cancelled":
            await world.trouble(manner)


@define(eq=False)
class HostileModel(CanInfer):
    """Answers with calls of effects, texts, or an error."""

    world: World
    is_sub_agent: bool = False

    async def infer(self, request: InferenceRequest) -> InferenceResponse:  # the contract's signature
        """Answer."""
        world = self.world
        await world.trouble(world.pick("", "wait", "fail", "raise", "cancelled", "cut"))
        calls = [self._call() for _ in range(world.chooser.number(3))]
        world.spent += not self.is_sub_agent
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        if world.chooser.happens(world.percent // 4):
            finish = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR)[world.chooser.number(2)]
        return InferenceResponse((Text("so"), *calls), finish, Usage(TOKENS, 0), "m", f"r{world.spent}")

    def _call(self) -> ToolCall:
        world, token = self.world, self.world.token()
        name = ("pay", "pay", "look", "pay_in_thread", "nothing", "ask")[world.chooser.number(5)]
        if name == "ask":
            return ToolCall(f"c{token}", name, json.dumps({"task": f"task {token}"}))
        arguments: dict[str, object] = {"token": token, "manner": world.pick(*_MANNERS)}
        if world.chooser.happens(world.percent // 4):
            arguments["token"] = "no number"
        return ToolCall(f"c{token}", name, json.dumps(arguments))


@frozen
class HostileDriver(ToolCallingDriver):
    """Raises, waits, swallows cancellations, and returns states that do not continue the one it was given."""

    world: World = field(kw_only=True, repr=False, eq=False)

    async def use_tools(self, state: AgentState) -> AgentState:
        """Take a step, or misbehave."""
        kind = self.world.pick(
            "", "raise", "wait", "stop", "cancelled", "swallow", "same", "foreign", "late", "nothing"
        )
        if kind in {"raise", "wait", "stop", "cancelled"}:
            await self.world.trouble(kind)
        try:
            result = await super().use_tools(state)
        except asyncio.CancelledError:
            if kind == "swallow":
                return state
            raise
        match kind:
            case "same":
                return state
            case "foreign":
                return self.world.foreign_state(result)
            case "late":
                raise RuntimeError("late")
            case "nothing":
                return None  # type: ignore[return-value]  # what a careless driver does
        return result

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        """Finish the step, or raise."""
        if self.world.pick("", "raise"):
            raise RuntimeError("finish")
        return super().finish(draft, outcome)


@define(eq=False)
class HostileExecutor(CanExecuteToolCalls, CanAcceptTools, CanAcceptLifecycle, CanAcceptExecutionScope):
    """Runs the calls, and then loses, invents or reorders outcomes, or raises."""

    world: World
    inner: ToolExecutor = field(factory=ToolExecutor)

    def with_tools(self, tools: Tools) -> HostileExecutor:
        """Return a copy that runs these tools."""
        return HostileExecutor(self.world, self.inner.with_tools(tools))

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> HostileExecutor:
        """Return a copy with these interceptors and this bus."""
        return HostileExecutor(self.world, self.inner.with_lifecycle(interceptor, events))

    def with_execution_scope(self, scope: ExecutionScope) -> HostileExecutor:
        """Return a copy with this scope."""
        return HostileExecutor(self.world, self.inner.with_execution_scope(scope))

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:  # noqa: PLR0911  # a way each
        """Execute the calls, or misbehave."""
        outcome = await self.inner.execute_tools(tool_calls, state)
        executions = outcome.executions
        match self.world.pick(
            "", "drop", "reverse", "rename", "raise", "wait", "foreign", "nothing", "cancelled", "twice"
        ):
            case "drop":
                return evolve(outcome, executions=executions[1:])
            case "reverse":
                return evolve(outcome, executions=executions[::-1])
            case "rename" if executions:
                return evolve(outcome, executions=(evolve(executions[0], key="e/9/9"), *executions[1:]))
            case "twice":
                return evolve(outcome, executions=executions * 2)
            case "foreign":
                return evolve(outcome, state=self.world.foreign_state(state))
            case "nothing":
                return None  # type: ignore[return-value]  # what a careless executor does
            case kind:
                await self.world.trouble(kind)
        return outcome


@define(eq=False)
class HostileInterceptor(Interceptor):
    """Raises, waits, stops and lies at every point."""

    world: World

    async def _pass(self, point: Any) -> Any:
        kind = self.world.pick("", "wait", "raise", "stop", "cancelled", "foreign", "nothing", "message")
        match kind:
            case "foreign":
                return evolve(point, state=self.world.foreign_state(point.state))
            case "nothing":
                return None
            case "message":
                return evolve(point, state=point.state.with_metadata(note=1))
        await self.world.trouble(kind)
        return point

    before_execution = before_step = after_step = on_stop = after_execution = on_error = _pass
    before_inference = after_inference = _pass

    async def before_tool_use(self, point: Any) -> Any:
        """Block, suspend, answer or let pass."""
        match self.world.pick("", "suspend", "block", "answer", "other"):
            case "suspend" if point.decision is None:
                return point.suspend("a person decides")
            case "block":
                return point.block("no")
            case "answer":
                return point.answer(0)
        return await self._pass(point)

    async def after_tool_use(self, point: Any) -> Any:
        """Replace the outcome, or its facts."""
        match self.world.pick("", "value", "error", "facts", "other"):
            case "value":
                return point.with_value("masked")
            case "error":
                return point.with_error("unwanted")
            case "facts":
                return point.with_execution(evolve(point.execution, key="e/8/8", may_have_run=False))
        return await self._pass(point)

    async def around_tool_use(self, point: Any, proceed: Any) -> Any:
        """Proceed once, within a time limit, or not at all."""
        match self.world.pick("", "timeout", "instead", "after", "swallow", "other"):
            case "timeout":
                return await asyncio.wait_for(proceed(), 0.5)
            case "instead":
                return point.fail("not now")
            case "after":
                await proceed()
                raise RuntimeError("after")
            case "swallow":
                try:
                    return await proceed()
                except asyncio.CancelledError:
                    return point.fail("swallowed")
            case "other":
                await self.world.trouble(self.world.pick("", "raise", "stop", "cancelled", "wait"))
        return await proceed()

    async def around_inference(self, point: Any, proceed: Any) -> Any:  # the contract's signature
        """Proceed, and perhaps raise afterwards."""
        response = await proceed()
        await self.world.trouble(self.world.pick("", "raise", "wait", "cancelled"))
        return response


def hostile_group(world: World) -> Ensemble:
    """Return a group of tools whose start and end fail or take long."""

    async def hook() -> None:
        await world.trouble(world.pick("", "raise", "wait", "cancelled"))

    return Ensemble("shop", effect_tools(world), start=hook, stop=hook)


def hostile_loop(world: World, *, journal: MemoryJournal | None, parts: int) -> AgentLoop:
    """Return a loop.

    Args:
        world: decides what its parts do.
        journal: the journal; None to record nothing.
        parts: bits that say which parts misbehave: 1 driver, 2 executor, 4 interceptors, 8 listeners, 16 groups; 32 for streamed
            answers, and 64 for a sub-agent whose parts misbehave alike.
    """
    model = HostileModel(world)
    settings: dict[str, Any] = {"mode": "native", "streaming": bool(parts & 32)}
    driver = HostileDriver(model, world=world, **settings) if parts & 1 else ToolCallingDriver(model, **settings)
    loop = AgentLoop(
        driver,
        [
            *([hostile_group(world)] if parts & 16 else effect_tools(world)),
            *([_sub_agent(world, parts)] if parts & 64 else []),
        ],
        executor=HostileExecutor(world) if parts & 2 else ToolExecutor(),
        interceptors=[HostileInterceptor(world), HostileInterceptor(world)] if parts & 4 else [],
        max_steps=_MAX_STEPS,
        journal=journal,
        clock=LoopClock(),
        ids=CountingIds(),
    )
    if parts & 8:

        async def listener(_: Event) -> None:
            await world.trouble(world.pick("", "raise", "wait", "cancelled"))

        loop.wiretap(listener)
    return loop


def _sub_agent(world: World, parts: int) -> Tool:
    model = HostileModel(world, is_sub_agent=True)
    loop = AgentLoop(
        HostileDriver(model, mode="native", world=world) if parts & 1 else ToolCallingDriver(model, mode="native"),
        effect_tools(world),
        executor=HostileExecutor(world) if parts & 2 else ToolExecutor(),
        interceptors=[HostileInterceptor(world)] if parts & 4 else [],
        max_steps=2,
        clock=LoopClock(),
    )
    return loop.as_tool("ask", "Ask an agent.")


# --- histories ------------------------------------------------------------------------------------------------------


@define(eq=False)
class History:
    """A conversation with an agent, run after run, with what must hold whenever a state leaves the loop.

    Attributes:
        world: the world.
        loop: the loop.
        has_journal: whether the runs are recorded.
        state: the newest state; None before the first run.
        is_interrupted: whether a run with a journal was interrupted and is not yet recovered.
        monitor: checks the events.
    """

    world: World
    loop: AgentLoop
    has_journal: bool
    state: AgentState | None = None
    is_interrupted: bool = False
    monitor: ProtocolMonitor = field(factory=ProtocolMonitor)

    @classmethod
    def begin(cls, chooser: Chooser) -> History:
        """Begin a history with parts that are chosen."""
        world = World(chooser, percent=(0, 3, 10, 30)[chooser.number(3)])
        has_journal = chooser.happens(40)
        loop = hostile_loop(world, journal=MemoryJournal() if has_journal else None, parts=chooser.number(127))
        history = cls(world, loop, has_journal)
        loop.wiretap(history.monitor)
        loop.on(AgentStepStarted, history._count)
        return history

    def run(self) -> None:
        """Run, continue, resume or recover the agent once; note every promise that was broken."""
        cancel_after = self.world.chooser.number(_MAX_TICKS) if self.world.chooser.happens(35) else None
        spent = self.world.spent
        operation = self._operation()
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            left, is_interrupted = runner.run(self._leave(operation, cancel_after))
        if left is not None:
            self.state = left
            self.is_interrupted = self.has_journal and is_interrupted
        else:
            self.world.spent = spent  # cancelled before it began
        self._check()

    def _operation(self) -> Coroutine[Any, Any, AgentState]:
        state = self.state
        if state is None:
            self.world.spent = 0
            return self.loop.execute("go")
        if self.is_interrupted:
            return self.loop.recover(state.execution_id)
        if state.status is ExecutionStatus.SUSPENDED:
            return self.loop.resume(state, self._decisions(state))
        if state.status is not ExecutionStatus.IN_PROGRESS:
            self.world.spent = 0
            self.world.states.append(state)
            return self.loop.execute(state.with_message(Message.user("go on")))
        return self.loop.execute(state)

    def _decisions(self, state: AgentState) -> dict[str, Decision]:
        def decide(call: PendingCall) -> Decision:
            # A person changes nothing but how the effect behaves.
            kinds = (approve, lambda: deny("no"), lambda: answer(5), lambda: _edited(call))
            return kinds[self.world.chooser.number(3)]()

        # Some calls stay undecided.
        return {
            call.key: decide(call) for call in state.pending if not call.waits_for and not self.world.pick("", "later")
        }

    async def _leave(
        self, operation: Coroutine[Any, Any, AgentState], cancel_after: int | None
    ) -> tuple[AgentState | None, bool]:
        """Return the state that leaves the run, and whether the run was interrupted."""
        task = asyncio.ensure_future(operation)
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            was_running = task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            return task.result(), False
        error: BaseException = asyncio.CancelledError()
        try:
            await task
        except BaseException as raised:  # noqa: BLE001  # anything may escape from a broken loop
            error = raised
        if not isinstance(error, asyncio.CancelledError):
            self._report(f"escaped: {error!r}")
        elif cancel_after is None or not was_running:
            self._report("a cancellation that nobody asked for left the loop")
        return interrupted_state(error), True

    # --- the promises -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        world, state = self.world, self.state
        doubled = [token for token, count in world.started.items() if count > 1]
        if doubled:
            self._report(f"doubled: {doubled}")
        if self.monitor.violations or (self.monitor.unfinished and state is not None):
            self._report(f"grammar: {self.monitor.violations[:1]} unfinished: {self.monitor.unfinished}")
        if state is None:
            return
        if from_json(to_json(state), AgentState) != state:
            self._report("unreadable state")
        if not self.is_interrupted:
            self._check_effects(state)
            self._check_usage(state)

    def _check_effects(self, state: AgentState) -> None:
        told = {_token_of(execution): execution for execution in _executions(state)}
        by_key = {execution.key: execution for execution in _executions(state)}
        pending = {call.key for call in state.pending}
        for token in self.world.started:
            caller = self.world.delegated.get(token)
            if caller in pending:
                continue
            execution = told.get(token) if caller is None else by_key.get(caller)
            if execution is None:
                self._report(f"lost: the effect {token} is not in the state")
            elif execution.status not in _TOLD_AS_RUN and not execution.may_have_run:
                self._report(f"untold: the effect {token} is {execution.status} and said not to have run")

    def _check_usage(self, state: AgentState) -> None:
        counted = (state.usage.input_tokens or 0) // TOKENS
        # An inference whose record was not written when its process was interrupted is paid again.
        if counted > self.world.spent or (counted < self.world.spent and not self.has_journal):
            self._report(f"usage: {self.world.spent} inferences were paid, {counted} counted")

    def _count(self, _: AgentStepStarted) -> None:
        self.world.steps += 1

    def _report(self, problem: str) -> None:
        self.world.problems.append(problem)


def _executions(state: AgentState) -> list[ToolExecution]:
    settled = [exchange.execution for message in state.messages for exchange in message.exchanges]
    last = state.last_step
    return [*settled, *(last.executions if last is not None else ())]


def _edited(call: PendingCall) -> Decision:
    return edit({**call.call.arguments, **({"manner": "return"} if call.call.name != "ask" else {})})


def _token_of(execution: ToolExecution) -> object:
    return execution.call.arguments.get("token")
