"""The law suite of drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from attrs import field, frozen
from hypothesis import strategies as st

from agentloop.compilers.history import WholeConversation
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.errors import AgentLoopError, ContractViolation
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


class DriverKit(Kit):
    """Checks a driver against the laws of `CanUseTools`, in a loop with toy tools.

    Args:
        factory: creates a new driver that follows a scenario: `lambda scenario: MyDriver(scenario.inference())`.
        examples: the number of examples that are tried for each law.
        max_inferences_per_step: the maximum number of inferences that the driver declares for one step.
        scenarios: the model's decisions. Pass `VALID_SCENARIOS` for a driver that asks the model again when a call cannot be
            executed: it needs more responses than a scenario with invalid calls has.
    """

    laws: tuple[int, ...] = (2, 3, 5, 6, 7, 8, 9, 13, 19, 20)

    def __init__(
        self,
        factory: Callable[[Scenario], CanUseTools],
        *,
        examples: int = 100,
        max_inferences_per_step: int = 1,
        scenarios: st.SearchStrategy[Scenario] = SCENARIOS,
    ) -> None:
        super().__init__(examples=examples)
        self.scenarios = scenarios
        self.factory = factory
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
        """Run a scenario to its end.

        Args:
            scenario: the model's decisions, and the user's message.
            driver: the driver to use; a new one by default.
            interceptors: the interceptors of the loop.
            max_steps: the step limit; None for no limit.
            agent: the agent's id.
        """
        events, compiler = list[Event](), RecordingCompiler()
        bus = EventBus(clock=ManualClock())
        bus.wiretap(events.append)
        loop = AgentLoop(
            driver or self.factory(scenario),
            toy_tools(Ledger()),
            interceptors=interceptors,
            compiler=compiler,
            events=bus,
            max_steps=max_steps,
            clock=ManualClock(),
            ids=CountingIds(),
        )
        start = AgentState.start(scenario.question, agent_id=agent, clock=ManualClock())
        states = [state async for state in loop.iterate(start, execution_id=f"execution of {agent}")]
        compiled = compiler.compiled.get(f"execution of {agent}", [])
        return ScenarioRun(scenario, states[-1], tuple(states), tuple(events), tuple(compiled))

    def law_2(self) -> None:
        """Each call of the model is in the conversation with its execution, and in every encoded request."""

        def holds(scenario: Scenario) -> None:
            run = run_in_virtual_time(self.run_scenario(scenario))
            for state in run.states:
                expected = [len(turn.calls) for turn in scenario.turns[: state.step_count]]
                actual = [len(step.executions) for step in state.steps]
                require(2, actual == expected, f"the steps made {expected} calls and hold {actual} executions")
                unpaired = _unpaired(state)
                require(2, not unpaired, f"an encoded request holds the unpaired calls {unpaired}")
                # The loop adds calls that a driver leaves out, and reports the driver.
                broken = [error.message for error in state.errors if error.type == ContractViolation.__name__]
                require(2, not broken, f"the loop reports the driver: {broken}")

        self.for_all(self.scenarios, holds)

    def law_3(self) -> None:
        """A state that was yielded, and passed to the driver, never changes afterwards."""

        def holds(scenario: Scenario) -> None:
            run_in_virtual_time(self._compare_states(scenario))

        self.for_all(self.scenarios, holds)

    async def _compare_states(self, scenario: Scenario) -> None:
        loop = AgentLoop(self.factory(scenario), toy_tools(Ledger()), clock=ManualClock(), ids=CountingIds())
        start = AgentState.start(scenario.question, agent_id="agent", clock=ManualClock())
        snapshots = [(state, to_json(state)) async for state in loop.iterate(start)]
        for state, before in snapshots:
            require(3, to_json(state) == before, f"the state after step {state.step_count} was changed later")

    def law_5(self) -> None:
        """Under a limit of n steps there are at most n steps, with no more inferences than declared, and all are counted."""

        def holds(example: tuple[Scenario, int]) -> None:
            scenario, max_steps = example
            run = run_in_virtual_time(self.run_scenario(scenario, max_steps=max_steps))
            steps = run.state.step_count
            require(5, steps <= max_steps, f"{steps} steps under a limit of {max_steps}")
            if len(scenario.turns) > max_steps:
                signal = run.state.stop_signal
                require(
                    5,
                    signal is not None and signal.reason is StopReason.STEP_LIMIT,
                    f"the execution stopped by {signal}, not by the step limit",
                )
            inferences = sum(isinstance(event, InferenceResponseReceived) for event in run.events)
            allowed = steps * self.max_inferences_per_step
            require(5, inferences <= allowed, f"{inferences} inferences in {steps} steps; {allowed} are declared")
            counted = run.state.usage.requests
            # A scripted driver works without a model, and emits no responses for the requests that it counts.
            require(5, inferences in {0, counted}, f"{inferences} inferences, but {counted} are counted")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 5)), holds)

    def law_6(self) -> None:
        """The usage of the execution is the sum of the usage of its inferences; unknown stays unknown."""

        def holds(scenario: Scenario) -> None:
            run = run_in_virtual_time(self.run_scenario(scenario))
            expected: Usage = NO_USAGE
            for turn in scenario.turns:
                expected += turn.usage
            require(
                6, run.state.usage == expected, f"the model used {expected}, and the execution counts {run.state.usage}"
            )
            by_step: Usage = NO_USAGE
            for step in run.state.steps:
                by_step += step.usage
            require(6, by_step == expected, f"the model used {expected}, and the steps count {by_step}")

        self.for_all(self.scenarios, holds)

    def law_7(self) -> None:
        """The grammar accepts the event sequence of every run."""

        def holds(example: tuple[Scenario, int]) -> None:
            run = run_in_virtual_time(self.run_scenario(example[0], max_steps=example[1]))
            monitor = ProtocolMonitor()
            for event in run.events:
                monitor(event)
            unfinished = [f"the execution {execution} has not ended" for execution in monitor.unfinished]
            require(7, not [*monitor.violations, *unfinished], "; ".join([*monitor.violations, *unfinished]))
            started = sum(type(event).__name__ == "AgentStepStarted" for event in run.events)
            require(7, started == run.state.step_count, f"{run.state.step_count} steps, but {started} start events")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 5)), holds)

    def law_8(self) -> None:
        """The same scenario gives the same state, byte for byte."""

        def holds(scenario: Scenario) -> None:
            first = run_in_virtual_time(self.run_scenario(scenario))
            second = run_in_virtual_time(self.run_scenario(scenario))
            require(8, to_json(first.state) == to_json(second.state), "two runs of the same scenario differ")

        self.for_all(self.scenarios, holds)

    def law_9(self) -> None:
        """A driver that serves concurrent executions gives each the state that it would have alone."""

        async def run_concurrently(scenario: Scenario) -> list[ScenarioRun]:
            driver = self.factory(scenario)
            return await asyncio.gather(
                *[self.run_scenario(scenario, driver=driver, agent=agent) for agent in ("ada", "bob", "cleo")]
            )

        def holds(scenario: Scenario) -> None:
            for run in run_in_virtual_time(run_concurrently(scenario)):
                alone = run_in_virtual_time(self.run_scenario(scenario, agent=run.state.agent_id))
                require(
                    9,
                    to_json(run.state) == to_json(alone.state),
                    "a concurrent execution differs from the same execution alone",
                )

        self.for_all(self.scenarios, holds)

    def law_13(self) -> None:
        """The compiled messages of a step extend those of the previous step."""

        def holds(scenario: Scenario) -> None:
            compiled = run_in_virtual_time(self.run_scenario(scenario)).compiled
            for earlier, later in pairwise(compiled):
                require(
                    13, later[: len(earlier)] == earlier, "messages that the model has seen changed within an epoch"
                )

        self.for_all(self.scenarios, holds)

    def law_19(self) -> None:
        """No task or thread outlives an execution, even when the iteration stops early."""

        async def count_leaked_tasks(scenario: Scenario, steps: int) -> int:
            before = asyncio.all_tasks()
            loop = AgentLoop(self.factory(scenario), toy_tools(Ledger()))
            states = loop.iterate(scenario.question)
            for _ in range(steps):
                if await anext(states, None) is None:
                    break
            await states.aclose()
            return len(asyncio.all_tasks() - before)

        def holds(example: tuple[Scenario, int]) -> None:
            threads = set(threading.enumerate())
            require(19, run_in_virtual_time(count_leaked_tasks(*example)) == 0, "tasks are still running")
            leaked = set(threading.enumerate()) - threads
            require(19, not leaked, f"threads are still running: {leaked}")

        self.for_all(st.tuples(self.scenarios, st.integers(0, 6)), holds)

    def law_20(self) -> None:
        """A step compiles the conversation no more often than it calls the model."""

        def holds(scenario: Scenario) -> None:
            run = run_in_virtual_time(self.run_scenario(scenario))
            allowed = run.state.step_count * self.max_inferences_per_step
            require(20, len(run.compiled) <= allowed, f"compiled {len(run.compiled)} times; {allowed} are allowed")

        self.for_all(self.scenarios, holds)


@frozen
class ScenarioRun:
    """A complete execution of a scenario under a driver.

    Attributes:
        scenario: the model's decisions.
        state: the final state.
        states: the states that the loop yielded, in order.
        events: the events that were emitted, in order.
        compiled: the messages that were compiled for each request, in order.
    """

    scenario: Scenario
    state: AgentState
    states: tuple[AgentState, ...]
    events: tuple[Event, ...]
    compiled: tuple[tuple[Message, ...], ...]


@frozen
class RecordingCompiler(CanCompileMessages):
    """The default compiler, which records what it compiles.

    Attributes:
        compiled: the compiled messages of each request, in order, by execution id.
    """

    compiled: dict[str, list[tuple[Message, ...]]] = field(factory=dict)

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Compile the messages of a state, and record them."""
        messages = tuple(WholeConversation().compile(state))
        self.compiled.setdefault(state.execution_id, []).append(messages)
        return messages


def _unpaired(state: AgentState) -> list[str]:
    """Return the ids of calls without a result, and of results without a call, in the encoded request of a state."""
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
            is_paired = message["tool_call_id"] in waiting
            (waiting.remove if is_paired else unpaired.append)(message["tool_call_id"])
        else:
            unpaired += waiting
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return unpaired + waiting
