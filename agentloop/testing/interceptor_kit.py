"""The law suite of interceptors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.interception.interceptor import FunctionInterceptor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.clocks import CountingIds, ManualClock, run_in_virtual_time
from agentloop.testing.kit import Kit, require
from agentloop.testing.scenario import SCENARIOS, Scenario
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.values.points import POINTS, Point, StatePoint
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState


class InterceptorKit(Kit):
    """Checks an interceptor against the laws of `CanIntercept`, in a loop with toy tools.

    Args:
        factory: creates a new interceptor.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (3, 8, 9)

    def __init__(self, factory: Callable[[], CanIntercept], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory = factory

    def law_3(self) -> None:
        """The interceptor changes no state of a point in place, and nothing besides the writes that it declares."""

        def holds(scenario: Scenario) -> None:
            snapshots: list[tuple[AgentState, bytes]] = []
            state = run_in_virtual_time(_run_scenario(scenario, self.factory(), *_recorders(snapshots)))
            undeclared = [error.message for error in state.errors if "its declared writes" in error.message]
            require(3, not undeclared, "; ".join(undeclared))
            for state, before in snapshots:
                require(3, to_json(state) == before, "the state of a point was changed")

        self.for_all(SCENARIOS, holds)

    def law_8(self) -> None:
        """The same scenario gives the same state, byte for byte."""

        def holds(scenario: Scenario) -> None:
            first = run_in_virtual_time(_run_scenario(scenario, self.factory()))
            second = run_in_virtual_time(_run_scenario(scenario, self.factory()))
            require(8, to_json(first) == to_json(second), "two runs of the same scenario differ")

        self.for_all(SCENARIOS, holds)

    def law_9(self) -> None:
        """An interceptor that serves concurrent executions gives each the state that it would have alone."""

        async def run_concurrently(scenario: Scenario) -> list[AgentState]:
            shared = self.factory()
            return await asyncio.gather(
                *[_run_scenario(scenario, shared, agent=agent) for agent in ("ada", "bob", "cleo")]
            )

        def holds(scenario: Scenario) -> None:
            for state in run_in_virtual_time(run_concurrently(scenario)):
                alone = run_in_virtual_time(_run_scenario(scenario, self.factory(), agent=state.agent_id))
                require(
                    9, to_json(state) == to_json(alone), "a concurrent execution differs from the same execution alone"
                )

        self.for_all(SCENARIOS, holds)


def _recorders(snapshots: list[tuple[AgentState, bytes]]) -> list[CanIntercept]:
    """Return interceptors that record the state of every point, before and after all other interceptors."""

    def record(point: Point) -> Point:
        snapshots.append((point.state, to_json(point.state)))
        return point

    kinds = [kind for kind in POINTS.values() if issubclass(kind, StatePoint)]
    return [FunctionInterceptor(kind, record, priority) for kind in kinds for priority in (10**6, -(10**6))]


async def _run_scenario(scenario: Scenario, *interceptors: CanIntercept, agent: str = "agent") -> AgentState:
    driver = ToolCallingDriver(scenario.inference())
    loop = AgentLoop(driver, toy_tools(Ledger()), interceptors=interceptors, clock=ManualClock(), ids=CountingIds())
    start = AgentState.start(scenario.question, agent_id=agent, clock=ManualClock())
    return await loop.execute(start, execution_id=f"execution of {agent}")
