"""The law suite of drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from attrs import field, frozen
from hypothesis import strategies as st

from agentloop.compilers.history import ConversationWithCurrentToolTrace
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.errors import AgentLoopError
from agentloop.events.bus import EventBus
from agentloop.events.grammar import ProtocolMonitor
from agentloop.events.inference import InferenceResponseReceived
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.clocks import CountingIds, ManualClock, run_in_virtual_time
from agentloop.testing.kit import Kit, require
from agentloop.testing.scenario import SCENARIOS, Scenario
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.values.event import Event
from agentloop.values.inference import InferenceRequest, Usage
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.stop import StopReason


@frozen
class RecordingCompiler(CanCompileMessages):
    """The default compiler, and a record of what it compiled, by execution.

    Attributes:
        compiled: for each execution, what was compiled, in order.
    """

    compiled: dict[str, list[tuple[Message, ...]]] = field(factory=dict)

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Compile, and take note."""
        messages = tuple(ConversationWithCurrentToolTrace().compile(state))
        self.compiled.setdefault(state.execution_id, []).append(messages)
        return messages


@frozen
class ScenarioRun:
    """A whole execution under a driver.

    Attributes:
        scenario: what the model decides.
        state: the final state.
        states: what was yielded, in order.
        events: what was emitted, in order.
        compiled: what was compiled, in order.
    """

    scenario: Scenario
    state: AgentState
    states: tuple[AgentState, ...]
    events: tuple[Event, ...]
    compiled: tuple[tuple[Message, ...], ...]


class DriverKit(Kit):
    """Checks a driver against the laws of `CanUseTools`, at work in a loop with toys.

    Args:
        make: makes a fresh driver that follows a scenario: `lambda scenario: MyDriver(scenario.inference())`.
        examples: how many examples are tried for each law.
        max_inferences_per_step: how often the driver says it consults the model in one step.
        scenarios: what the model decides; a driver that asks again for calls that cannot be executed takes `VALID_SCENARIOS`.
    """

    laws: tuple[int, ...] = (2, 3, 5, 6, 7, 8, 9, 13, 19, 20)

    def __init__(
        self,
        make: Callable[[Scenario], CanUseTools],
        *,
        examples: int = 100,
        max_inferences_per_step: int = 1,
        scenarios: st.SearchStrategy[Scenario] = SCENARIOS,
    ) -> None:
        super().__init__(examples=examples)
        self.scenarios = scenarios
        self.make = make
        self.max_inferences_per_step = max_inferences_per_step

    async def run_scenario(
        self,
        scenario: Scenario,
        *,
        driver: CanUseTools | None = None,
        interceptors: Iterable[CanIntercept] = (),
        max_steps: int | None = None,
        agent: str = "agent",
    ) -> ScenarioRun:
        """Run a scenario to its end."""
        events, watching = list[Event](), RecordingCompiler()
        bus = EventBus(clock=ManualClock())
        bus.wiretap(events.append)
        loop = AgentLoop(
            driver or self.make(scenario),
            toy_tools(Ledger()),
            interceptors=interceptors,
            compiler=watching,
            events=bus,
            max_steps=max_steps,
            clock=ManualClock(),
            ids=CountingIds(),
        )
        start = AgentState.start(scenario.question, agent_id=agent, clock=ManualClock())
        states = [state async for state in loop.iterate(start, execution_id=f"execution of {agent}")]
        compiled = watching.compiled.get(f"execution of {agent}", [])
        return ScenarioRun(scenario, states[-1], tuple(states), tuple(events), tuple(compiled))

    def law_2(self) -> None:
        """Every call that the model made is in the conversation with its execution, and in every encoded request."""

        def holds(scenario: Scenario) -> None:
            journey = run_in_virtual_time(self.run_scenario(scenario))
            for state in journey.states:
                made = [len(turn.calls) for turn in scenario.turns[: state.step_count]]
                held = [len(step.executions) for step in state.steps]
                require(2, held == made, f"steps made {made} calls, and hold {held}")
                unpaired = _unpaired(state)
                require(2, not unpaired, f"an encoded request holds unpaired calls {unpaired}")

        self.for_all(self.scenarios, holds)

    def law_3(self) -> None:
        """A state that was yielded, and so given to the driver, never changes afterwards."""

        def holds(scenario: Scenario) -> None:
            run_in_virtual_time(self._compare_states(scenario))

        self.for_all(self.scenarios, holds)

    async def _compare_states(self, scenario: Scenario) -> None:
        loop = AgentLoop(self.make(scenario), toy_tools(Ledger()), clock=ManualClock(), ids=CountingIds())
        start = AgentState.start(scenario.question, agent_id="agent", clock=ManualClock())
        kept = [(state, to_json(state)) async for state in loop.iterate(start)]
        for state, before in kept:
            require(3, to_json(state) == before, f"the state after step {state.step_count} was changed later")

    def law_5(self) -> None:
        """Under a limit of n steps there are at most n, with no more inferences than declared, all of them counted."""

        def holds(given: tuple[Scenario, int]) -> None:
            scenario, most = given
            journey = run_in_virtual_time(self.run_scenario(scenario, max_steps=most))
            steps = journey.state.step_count
            require(5, steps <= most, f"{steps} steps under a limit of {most}")
            if len(scenario.turns) > most:
                signal = journey.state.stop_signal
                require(5, signal is not None and signal.reason is StopReason.STEP_LIMIT, f"it ended by {signal}")
            answered = sum(isinstance(event, InferenceResponseReceived) for event in journey.events)
            allowed = steps * self.max_inferences_per_step
            require(5, answered <= allowed, f"{answered} inferences in {steps} steps, {allowed} are declared")
            counted = journey.state.usage.requests
            require(5, answered in {0, counted}, f"{answered} inferences, {counted} of them counted")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 5)), holds)

    def law_6(self) -> None:
        """The usage of the execution is the sum of the usage of its inferences; unknown stays unknown."""

        def holds(scenario: Scenario) -> None:
            journey = run_in_virtual_time(self.run_scenario(scenario))
            expected: Usage = NO_USAGE
            for turn in scenario.turns:
                expected += turn.usage
            require(6, journey.state.usage == expected, f"{expected} was used, {journey.state.usage} is recorded")
            by_step: Usage = NO_USAGE
            for step in journey.state.steps:
                by_step += step.usage
            require(6, by_step == expected, f"{expected} was used, the steps say {by_step}")

        self.for_all(self.scenarios, holds)

    def law_7(self) -> None:
        """The events of every run are accepted by the grammar."""

        def holds(given: tuple[Scenario, int]) -> None:
            journey = run_in_virtual_time(self.run_scenario(given[0], max_steps=given[1]))
            monitor = ProtocolMonitor()
            for event in journey.events:
                monitor(event)
            unfinished = [f"{execution} has not ended" for execution in monitor.unfinished]
            require(7, not [*monitor.violations, *unfinished], "; ".join([*monitor.violations, *unfinished]))
            started = sum(type(event).__name__ == "AgentStepStarted" for event in journey.events)
            require(7, started == journey.state.step_count, f"{journey.state.step_count} steps, {started} were told")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 5)), holds)

    def law_8(self) -> None:
        """The same scenario gives the same state, byte for byte."""

        def holds(scenario: Scenario) -> None:
            first, second = (
                run_in_virtual_time(self.run_scenario(scenario)),
                run_in_virtual_time(self.run_scenario(scenario)),
            )
            require(8, to_json(first.state) == to_json(second.state), "two runs of one scenario differ")

        self.for_all(self.scenarios, holds)

    def law_9(self) -> None:
        """One driver serves executions at the same time as if each were alone."""

        async def together(scenario: Scenario) -> list[ScenarioRun]:
            driver = self.make(scenario)
            return await asyncio.gather(
                *[self.run_scenario(scenario, driver=driver, agent=agent) for agent in ("ada", "bob", "cleo")]
            )

        def holds(scenario: Scenario) -> None:
            for journey in run_in_virtual_time(together(scenario)):
                alone = run_in_virtual_time(self.run_scenario(scenario, agent=journey.state.agent_id))
                require(
                    9, to_json(journey.state) == to_json(alone.state), "an execution differs from the same one alone"
                )

        self.for_all(self.scenarios, holds)

    def law_13(self) -> None:
        """What is compiled for a step extends what was compiled for the step before."""

        def holds(scenario: Scenario) -> None:
            compiled = run_in_virtual_time(self.run_scenario(scenario)).compiled
            for earlier, later in pairwise(compiled):
                require(13, later[: len(earlier)] == earlier, "what a model has seen was changed within an epoch")

        self.for_all(self.scenarios, holds)

    def law_19(self) -> None:
        """Afterwards, tasks and threads are as before, also when the iteration is left early."""

        async def left_over(scenario: Scenario, after: int) -> int:
            before = asyncio.all_tasks()
            loop = AgentLoop(self.make(scenario), toy_tools(Ledger()))
            states = loop.iterate(scenario.question)
            for _ in range(after):
                if await anext(states, None) is None:
                    break
            await states.aclose()
            return len(asyncio.all_tasks() - before)

        def holds(given: tuple[Scenario, int]) -> None:
            threads = set(threading.enumerate())
            require(19, run_in_virtual_time(left_over(*given)) == 0, "tasks are left")
            left = set(threading.enumerate()) - threads
            require(19, not left, f"threads are left: {left}")

        self.for_all(st.tuples(self.scenarios, st.integers(0, 6)), holds)

    def law_20(self) -> None:
        """A step compiles the conversation no more often than the model is asked."""

        def holds(scenario: Scenario) -> None:
            journey = run_in_virtual_time(self.run_scenario(scenario))
            most = journey.state.step_count * self.max_inferences_per_step
            require(20, len(journey.compiled) <= most, f"compiled {len(journey.compiled)} times, {most} are allowed")

        self.for_all(self.scenarios, holds)


def _unpaired(state: AgentState) -> list[str]:
    """Return the ids of calls without a result, or results without a call, in the request that a state makes."""
    request = InferenceRequest(state.messages)
    config = LLMConfig(model="any", base_url="http://localhost")
    try:
        body = parse_json(wire_format("openai-chat").encode_request(request, config).body)
    except AgentLoopError as error:
        return [str(error)]
    waiting: list[str] = []
    unpaired: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            found = message["tool_call_id"] in waiting
            (waiting.remove if found else unpaired.append)(message["tool_call_id"])
        else:
            unpaired += waiting
            waiting = [one["id"] for one in message.get("tool_calls") or ()]
    return unpaired + waiting
