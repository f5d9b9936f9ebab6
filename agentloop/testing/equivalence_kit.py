"""The law suite of drivers that stand for one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import field, fields, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.events.bus import EventBus
from agentloop.events.inference import InferenceDeltaReceived
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.clocks import CountingIds, ManualClock, run_in_virtual_time
from agentloop.testing.kit import Kit, require
from agentloop.testing.scenario import Scenario, valid_scenarios
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.values.event import Event
from agentloop.values.inference import InferenceResponse
from agentloop.values.points import (
    POINTS,
    AfterInference,
    AfterToolUse,
    AroundInference,
    AroundPoint,
    AroundToolUse,
    BeforeInference,
    BeforeToolUse,
    OnError,
    Point,
    Proceed,
    StatePoint,
)
from agentloop.values.tool_calls import ToolCall, ToolExecution

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)

_SCENARIOS = valid_scenarios("stop")


@frozen
class ObservedBehavior:
    """What of an execution must not depend on driver and mode.

    Attributes:
        outcomes: for each step, its calls and what came of them.
        used: what the toys were called with.
        final_text: the answer.
        status: how the execution ended.
        stop_reason: why it ended.
        usage: the tokens that it took.
        points: the interceptor points that it passed, each with what an interceptor sees there.
        events: the classes of what was emitted, apart from deltas.
    """

    outcomes: tuple[tuple[Any, ...], ...]
    used: tuple[Any, ...]
    final_text: str
    status: str
    stop_reason: str
    usage: Any
    points: tuple[Any, ...]
    events: tuple[str, ...]


@frozen
class PointRecorder(CanIntercept):
    """An interceptor that records every point and what is to be seen there.

    Attributes:
        seen: the name of each point that was passed, the number of steps, and the details of the point.
    """

    seen: list[Any] = field(factory=list)
    points: frozenset[str] = field(default=frozenset(POINTS), init=False)
    priority: int = field(default=0, init=False)
    name: str = field(default="PointRecorder", init=False)

    def handle(self, point: S) -> S:
        """Record the point."""
        self._record(point, _details(point))
        return point

    async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:
        """Record the point, and the response of an inference."""
        self._record(point, _details(point))
        outcome = await proceed()
        if isinstance(outcome, InferenceResponse):
            self._record(point, _said(outcome))
        return outcome

    def _record(self, point: Point, details: Sequence[Any]) -> None:
        self.seen.append((point.point_name, point.state.step_count, *details))


def _details(point: Point) -> Sequence[Any]:
    """Return what an interceptor sees at a point besides the state."""
    details: Sequence[Any] = ()
    match point:
        case BeforeInference(request=request):
            details = [spec.name for spec in request.tools], len(request.messages)
        case AroundInference(request=request):
            details = ([spec.name for spec in request.tools],)
        case AfterInference(response=response):
            details = _said(response)
        case BeforeToolUse(call=call) | AroundToolUse(call=call):
            details = _call(call)
        case AfterToolUse(execution=execution):
            details = _outcome(execution)
        case OnError(error=error):
            details = (str(error),)
    return details


class EquivalenceKit(Kit):
    """Checks that a driver comes to the same as another one, at work in a loop with toys (law 12).

    Args:
        make: makes a fresh driver that follows a scenario: `lambda scenario: MyDriver(scenario.inference(as_tags))`.
        reference: makes the driver that it is compared with; by native tool calls when left out.
        examples: how many examples are tried.
        scenarios: what the model decides.
    """

    laws: tuple[int, ...] = (12,)

    def __init__(
        self,
        make: Callable[[Scenario], CanUseTools],
        *,
        reference: Callable[[Scenario], CanUseTools] | None = None,
        examples: int = 100,
        scenarios: st.SearchStrategy[Scenario] = _SCENARIOS,
    ) -> None:
        super().__init__(examples=examples)
        self.make = make
        self.reference: Callable[[Scenario], CanUseTools] = reference or _native
        self.scenarios = scenarios

    def law_12(self) -> None:
        """Calls, outcomes, answer, reason to stop, points and events are the same as those of the reference."""

        def holds(given: tuple[Scenario, int]) -> None:
            scenario, most = given
            expected = run_in_virtual_time(observe_behavior(self.reference(scenario), scenario, max_steps=most))
            found = run_in_virtual_time(observe_behavior(self.make(scenario), scenario, max_steps=most))
            for one in fields(ObservedBehavior):
                wanted, got = getattr(expected, one.name), getattr(found, one.name)
                require(12, got == wanted, f"{one.name}: {wanted} under the reference, {got} under the driver")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 6)), holds)


async def observe_behavior(
    driver: CanUseTools, scenario: Scenario, *, max_steps: int | None = None
) -> ObservedBehavior:
    """Run a scenario under a driver, with toys, and return what must not depend on the driver."""
    events, recorder, ledger = list[Event](), PointRecorder(), Ledger()
    bus = EventBus(clock=ManualClock())
    bus.wiretap(events.append)
    loop = AgentLoop(
        driver,
        toy_tools(ledger),
        interceptors=[recorder],
        events=bus,
        max_steps=max_steps,
        clock=ManualClock(),
        ids=CountingIds(),
    )
    state = await loop.execute(scenario.question)
    signal = state.stop_signal
    return ObservedBehavior(
        tuple([tuple([_outcome(execution) for execution in step.executions]) for step in state.steps]),
        tuple(ledger.calls),
        state.final_text,
        state.status,
        signal.reason if signal is not None else "",
        state.usage,
        tuple(recorder.seen),
        tuple([type(event).__name__ for event in events if not isinstance(event, InferenceDeltaReceived)]),
    )


def _native(scenario: Scenario) -> CanUseTools:
    return ToolCallingDriver(scenario.inference(), mode="native")


def _call(call: ToolCall) -> tuple[Any, ...]:
    return call.name, call.arguments


def _said(response: InferenceResponse) -> tuple[Any, ...]:
    """Return the calls of a response, or its answer: what is said beside calls may be text or a thought."""
    calls = [_call(call) for call in response.tool_calls]
    return calls, "" if calls else response.text, response.finish_reason


def _outcome(execution: ToolExecution) -> tuple[Any, ...]:
    return *_call(execution.call), execution.status, execution.value, execution.error
