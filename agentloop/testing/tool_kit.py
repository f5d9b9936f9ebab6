"""The law suites of tools and of listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from inspect import isawaitable
from math import nan
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from agentloop.contracts.can_handle_events import Listener
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanDescribeResult,
    CanPrepareArguments,
    Tool,
    ToolContext,
    ToolLike,
)
from agentloop.errors import ConfigurationError
from agentloop.events.bus import EventBus, Receiver
from agentloop.executors.toolbox import ReadyTool
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock, run_in_virtual_time
from agentloop.testing.executor_bench import ExecutorBench, started_state
from agentloop.testing.kit import Kit, LawViolation, checked_factory, require
from agentloop.testing.scenario import SCENARIOS, Scenario
from agentloop.testing.surroundings import Surroundings
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.tools.decorator import collect_tools
from agentloop.tools.presentation import RAN
from agentloop.tools.validation import SchemaValidator
from agentloop.values.event import Event
from agentloop.values.forms import form_text
from agentloop.values.json import freeze_object, thaw
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus

TESTIMONY = 41
"""The number of the law about answers."""
_ODD_ANSWERS: tuple[Any, ...] = (nan, {17: "booked"}, {b"booked"}, [RuntimeError("booked")], object())
_MAX_TICKS, _MANY, _PATIENCE = 6, 3, 5.0
_TICKS = 20
"""In how many iterations of the event loop a tool is cancelled."""


class ToolKit(Kit):
    """Checks a tool against the laws of `Tool`, run by the package's executor.

    Args:
        factory: creates the tool: an object of a subclass of `Tool`, or a function with `@tool`.
        arguments: the arguments of calls that succeed, one mapping for each call.
        dependencies: the program's dependencies, which the tool can access.
        observe: returns what the tool changes, such as the rows of a table; with it, law 14 compares it after a second call with the
            same key.
        examples: the number of examples that are tried for each law.

    Raises:
        ConfigurationError: there are no arguments.
    """

    laws: tuple[int, ...] = (3, 9, 14, 17, 19, 34, TESTIMONY, YIELDING)

    def __init__(
        self,
        factory: Callable[[], ToolLike],
        arguments: Iterable[Mapping[str, Any]],
        *,
        dependencies: Any = None,
        observe: Callable[[], object] | None = None,
        examples: int = 20,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], ToolLike] = checked_factory(factory)
        self.arguments: tuple[Mapping[str, Any], ...] = tuple(freeze_object(each) for each in arguments)
        self.dependencies = dependencies
        self.observe = observe
        if not self.arguments:
            raise ConfigurationError("a ToolKit needs the arguments of at least one call, as in [{'city': 'Lisbon'}]")

    def _for_calls(self, check: Callable[[ToolCall], None]) -> None:
        calls = [ToolCall("", self._tool().name).with_arguments(arguments) for arguments in self.arguments]
        self.for_all(st.sampled_from(calls), check)

    def _tool(self) -> Tool:
        (tool,) = collect_tools([self.factory()])
        return tool

    def _context(self) -> ToolContext[Any]:
        """Return the context of a call."""
        key = "execution/1/0"
        return ToolContext(
            execution_id="execution", agent_id="agent", idempotency_key=key, dependencies=self.dependencies
        )

    def _bound(self, call: ToolCall) -> Tool:
        """Return the tool with what it accepts for a call, as an executor binds it."""
        tool = self._tool()
        return ReadyTool(tool, tool.spec).bind(started_state("agent", "execution"), call, self._context)

    def _bench(self) -> ExecutorBench:
        return ExecutorBench([self.factory()], dependencies=self.dependencies, clock=LoopClock())

    async def _use(self, *calls: ToolCall) -> Sequence[ToolExecution]:
        return (await self._bench().run(*calls)).executions

    def law_3(self) -> None:
        """The tool does not change its arguments."""

        async def use(call: ToolCall) -> None:
            tool, given = self._bound(call), thaw(call.arguments)
            before = deepcopy(given)
            if isinstance(tool, CanPrepareArguments):
                tool.prepare(deepcopy(given))
            else:
                await tool.use(**given)
            require(3, given == before, f"the arguments {before} became {given}")

        self._for_calls(lambda call: asyncio.run(use(call)))

    def law_9(self) -> None:
        """Calls that run at the same time end as each does alone; of tools that are pure, with the same results."""
        kept = _binding_that_is_kept(self._tool(), self._context())
        require(
            9,
            not kept,
            f"{kept} changed the tool in place of a copy, so that calls at the same time share what it gets",
        )

        async def use_all(call: ToolCall) -> None:
            calls = [ToolCall("", call.name).with_arguments(arguments) for arguments in self.arguments] + [call]
            alone = [(await self._use(each))[0] for each in calls]
            together = await self._use(*calls)
            is_pure = self._tool().spec.effect is Effect.PURE
            for before, after in zip(alone, together, strict=True):
                same = before.status == after.status and (not is_pure or before.value == after.value)
                require(9, same, f"{before.call!r} alone gave {before.text!r}, beside others {after.text!r}")

        self._for_calls(lambda call: asyncio.run(use_all(call)))

    def law_14(self) -> None:
        """A tool that declares to be pure gives the same result again, and one that is idempotent succeeds again."""

        async def use_twice(call: ToolCall) -> None:
            effect = self._tool().spec.effect
            if effect is Effect.EFFECT:
                return
            first = (await self._use(call))[0]
            before = None if self.observe is None else deepcopy(self.observe())
            second = (await self._use(call))[0]
            after = None if self.observe is None else self.observe()
            said = f"a second {call!r} with the same key changed what it acts on from {before!r:.300} to {after!r:.300}"
            require(14, before == after, said)
            require(14, second.status == first.status, f"{call!r} {first.status.value}, then {second.status.value}")
            same = effect is not Effect.PURE or first.value == second.value
            require(14, same, f"the tool is pure, and {call!r} gave {first.text!r}, then {second.text!r}")

        self._for_calls(lambda call: asyncio.run(use_twice(call)))

    def law_17(self) -> None:
        """The parameters are a schema that the arguments satisfy, calls with them succeed, and others are refused.

        Results satisfy the schema that the tool declares for them.
        """

        async def use(call: ToolCall) -> None:
            tool = self._tool()
            schema, arguments = freeze_object(tool.parameters), thaw(call.arguments)
            require(17, SchemaValidator(schema).accepts(arguments), f"{arguments} do not fit the parameters")
            execution = (await self._use(call))[0]
            require(17, execution.succeeded, f"{call!r} {execution.status.value}: {execution.error_message}")
            results = tool.result_schema if isinstance(tool, CanDescribeResult) else None
            if results is not None:
                problems = SchemaValidator(freeze_object(results), "the schema of results").problems(
                    thaw(execution.value)
                )
                said = f"the result {execution.value!r:.500} of {call!r} does not fit the schema of results: {problems}"
                require(
                    17,
                    not problems,
                    said,
                    sentence="Validity: results satisfy the schema that the tool declares for them.",
                )
            for name in schema.get("required", ()):
                others = {key: value for key, value in call.arguments.items() if key != name}
                refused = (await self._use(call.with_arguments(others)))[0]
                require(17, refused.status is ToolStatus.REJECTED, f"without {name}, {call!r} {refused.status.value}")

        self._for_calls(lambda call: asyncio.run(use(call)))

    def law_19(self) -> None:
        """No task or thread outlives a call, also one that is cancelled."""

        async def use(call: ToolCall, ticks: int) -> None:
            before = Surroundings.now()
            await self._cancel(asyncio.ensure_future(self._bench().run(call)), ticks)
            await before.require_tasks_and_sockets()

        def holds(call: ToolCall) -> None:
            before = Surroundings.now()
            for ticks in (1, 3, _TICKS):
                asyncio.run(use(call, ticks))
            before.require_threads()

        self._for_calls(holds)

    def law_34(self) -> None:
        """A call that is cancelled while it waits ends at once."""

        async def use(call: ToolCall, ticks: int) -> None:
            tool, arguments = self._bound(call), thaw(call.arguments)
            if isinstance(tool, CanPrepareArguments):
                arguments = dict(tool.prepare(arguments))
            task = asyncio.ensure_future(tool.use(**arguments))
            if await self._cancel(task, ticks):
                require(34, task.cancelled(), f"{call!r} was cancelled, and did not raise that")

        def holds(call: ToolCall) -> None:
            for ticks in (1, 2, 5):
                asyncio.run(use(call, ticks))

        self._for_calls(holds)

        self._for_calls(lambda call: asyncio.run(self._require_reuse(call)))

    async def _require_reuse(self, call: ToolCall) -> None:
        """Check that a call succeeds after calls that were cancelled; what a call with an effect has done may remain."""
        if self._tool().spec.effect is Effect.EFFECT:
            return
        for ticks in range(_MAX_TICKS):
            for _ in range(_MANY):
                tool, arguments = self._bound(call), thaw(call.arguments)
                if isinstance(tool, CanPrepareArguments):
                    arguments = dict(tool.prepare(arguments))
                await self._cancel(asyncio.ensure_future(tool.use(**arguments)), ticks)
            said = f"after {call!r} was cancelled after {ticks} iterations of the event loop, the next call"
            try:
                again = (await asyncio.wait_for(self._use(call), _PATIENCE))[0]
            except TimeoutError:
                raise LawViolation(34, f"{said} does not end", took_time=True) from None
            require(34, again.succeeded, f"{said} {again.status.value}: {again.error_message}")

    def law_45(self) -> None:
        """The event loop runs while the tool waits; a tool that blocks uses a thread."""

        @refuse_blocking
        def use(call: ToolCall) -> None:
            asyncio.run(self._use_once(call))

        self._for_calls(use)

    async def _use_once(self, call: ToolCall) -> None:
        await self._use(call)

    def law_41(self) -> None:
        """What the tool returned is in the result, or in the error about it, unless the error says that the tool ran and hides the rest."""

        async def use(call: ToolCall) -> None:
            tool, arguments = self._bound(call), thaw(call.arguments)
            if isinstance(tool, CanPrepareArguments):
                arguments = dict(tool.prepare(arguments))
            ready = ReadyTool(self._tool(), self._tool().spec)
            for answer in (await tool.use(**arguments), *_ODD_ANSWERS):
                told = _tell(ready, answer)
                known = form_text(answer, _MAX_TOLD)
                require(
                    TESTIMONY,
                    told is None or known in told or RAN in told,
                    f"the tool returned {known}, and the model reads {told}",
                )

        self._for_calls(lambda call: asyncio.run(use(call)))

    async def _cancel(self, task: asyncio.Future[Any], ticks: int) -> bool:
        """Cancel a task after some iterations of the event loop; return whether it was still running."""
        for _ in range(ticks):
            await asyncio.sleep(0)
        is_running = task.cancel()
        await asyncio.wait([task])
        return is_running


_MAX_TOLD = 200


def _tell(tool: ReadyTool, answer: Any) -> str | None:
    """Return the error about what a tool returned; None if it is a result."""
    try:
        tool.present(answer)
    except Exception as error:  # noqa: BLE001  # whatever the tool raises is its outcome
        return f"{type(error).__name__}: {error}"
    return None


class ListenerKit(Kit):
    """Checks a listener of events, in a loop with toy tools: watching changes nothing.

    Args:
        factory: creates the listener: a plain or async function of one event.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (3, 7, 8, 19, YIELDING)

    def __init__(self, factory: Callable[[], Listener[Event]], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], Listener[Event]] = checked_factory(factory)

    def law_3(self) -> None:
        """The listener changes no event."""

        def holds(scenario: Scenario) -> None:
            seen: list[tuple[Event, bytes]] = []
            before = lambda event: seen.append((event, to_json(event)))  # noqa: E731  # one of two listeners
            run_in_virtual_time(_listen(scenario, [before, self.factory()]))
            changed = [type(event).__name__ for event, text in seen if to_json(event) != text]
            require(3, not changed, f"these events were changed: {', '.join(changed)}")

        self.for_all(SCENARIOS, holds)

    def law_7(self) -> None:
        """The listener handles every event of a run, of whatever class, without an error."""

        def holds(scenario: Scenario) -> None:
            problems: list[str] = []
            run_in_virtual_time(_listen(scenario, [_noting(self.factory(), problems)]))
            require(7, not problems, "; ".join(problems))

        self.for_all(SCENARIOS, holds)

    def law_8(self) -> None:
        """A run with the listener is the run without it."""

        def holds(scenario: Scenario) -> None:
            alone = run_in_virtual_time(_listen(scenario, []))
            watched = run_in_virtual_time(_listen(scenario, [self.factory()]))
            require(8, to_json(alone) == to_json(watched), "the state differs from that of a run without the listener")

        self.for_all(SCENARIOS, holds)

    def law_19(self) -> None:
        """No task or thread of the listener outlives the execution."""

        async def listen_tidily(scenario: Scenario) -> None:
            before = Surroundings.now()
            await _listen(scenario, [self.factory()])
            await before.require_tasks_and_sockets()

        def holds(scenario: Scenario) -> None:
            before = Surroundings.now()
            run_in_virtual_time(listen_tidily(scenario))
            before.require_threads()

        self.for_all(SCENARIOS, holds)

    def law_45(self) -> None:
        """The event loop runs while the listener waits."""

        @refuse_blocking
        def holds(scenario: Scenario) -> None:
            run_in_virtual_time(_listen(scenario, [self.factory()]))

        self.for_all(SCENARIOS, holds)


async def _listen(scenario: Scenario, listeners: Sequence[Listener[Event]]) -> AgentState:
    bus = EventBus(clock=ManualClock())
    for listener in listeners:
        bus.wiretap(listener)
    scenario = evolve(scenario)
    loop = AgentLoop(scenario.driver(), toy_tools(Ledger()), events=bus, clock=ManualClock(), ids=CountingIds())
    start = AgentState.start(scenario.question, agent_id="agent", clock=ManualClock())
    return await loop.execute(start, execution_id="execution")


def _binding_that_is_kept(tool: Tool, context: ToolContext[Any]) -> str:
    """Return the method that binds a tool to a call and leaves what it was given in the tool itself; empty if there is none.

    A tool that has no use for it may return itself.
    """
    state, call = started_state("agent", "execution"), ToolCall("", tool.name)
    if isinstance(tool, CanAccessAgentState) and _keeps(tool, tool.with_agent_state(state), state):
        return "with_agent_state"
    if isinstance(tool, CanAccessToolCall) and _keeps(tool, tool.with_tool_call(call), call):
        return "with_tool_call"
    if isinstance(tool, CanAccessToolContext) and _keeps(tool, tool.with_tool_context(context), context):
        return "with_tool_context"
    return ""


def _keeps(tool: Tool, bound: object, given: object) -> bool:
    return bound is tool and any(value is given for value in getattr(tool, "__dict__", {}).values())


def _noting(listener: Listener[Event], problems: list[str]) -> Listener[Event]:
    """Return a listener that notes the errors of another one, which it calls as a bus without other listeners does."""
    is_async = Receiver(listener, 0).is_async

    async def listen(event: Event) -> None:
        at = f"at {type(event).__name__}, the listener"
        try:
            outcome = listener(event)
            if is_async:
                await outcome
            elif isawaitable(outcome):
                problems.append(
                    f"{at} is a plain function and returned an awaitable, which nobody awaits: use async def"
                )
        except Exception as error:  # noqa: BLE001  # noted as what breaks the law
            problems.append(f"{at} raised {type(error).__name__}: {error}")

    return listen
