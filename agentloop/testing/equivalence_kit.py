"""The law suite for the equivalence of drivers and modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
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
from agentloop.testing.kit import Kit, checked_factory, require
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


class EquivalenceKit(Kit):
    """Checks that a driver behaves like a reference driver, in a loop with toy tools (law 12).

    Args:
        factory: creates a new driver that follows a scenario: `lambda scenario: MyDriver(scenario.inference(notation))`, where
            `notation` writes the turns of the model as the driver reads them; see `NOTATIONS`.
        reference: creates the driver to compare with; by default one with native tool calls.
        examples: the number of examples that are tried.
        scenarios: the model's decisions; None for `valid_scenarios("stop")`.
    """

    laws: tuple[int, ...] = (12,)

    def __init__(
        self,
        factory: Callable[[Scenario], CanUseTools],
        *,
        reference: Callable[[Scenario], CanUseTools] | None = None,
        examples: int = 100,
        scenarios: st.SearchStrategy[Scenario] | None = None,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[Scenario], CanUseTools] = checked_factory(factory)
        self.reference: Callable[[Scenario], CanUseTools] = reference or _native
        self.scenarios: st.SearchStrategy[Scenario] = _SCENARIOS if scenarios is None else scenarios

    def law_12(self) -> None:
        """Calls, outcomes, answer, stop reason, points and events equal those of the reference driver."""

        def holds(example: tuple[Scenario, int]) -> None:
            scenario, max_steps = example
            expected = run_in_virtual_time(observe_behavior(self.reference(scenario), scenario, max_steps=max_steps))
            actual = run_in_virtual_time(observe_behavior(self.factory(scenario), scenario, max_steps=max_steps))
            for attribute in fields(ObservedBehavior):
                theirs, ours = getattr(expected, attribute.name), getattr(actual, attribute.name)
                if ours != theirs:
                    place, theirs, ours = _first_difference(attribute.name, theirs, ours)
                    require(
                        12, condition=False, reason=f"{place}: {theirs} under the reference, {ours} under the driver"
                    )

        self.for_all(st.tuples(self.scenarios, st.integers(1, 6)), holds)


def _first_difference(place: str, theirs: object, ours: object) -> tuple[str, object, object]:
    """Return the first place at which two values differ, and both values there; sequences are compared item by item."""
    if not isinstance(theirs, list | tuple) or not isinstance(ours, list | tuple):
        return place, theirs, ours
    for index, (left, right) in enumerate(zip_longest(theirs, ours, fillvalue="nothing")):
        if left != right:
            return f"{place}[{index}]", left, right
    return place, theirs, ours


@frozen
class ObservedBehavior:
    """The parts of an execution that must not depend on the driver or the mode.

    Attributes:
        outcomes: the calls of each step, with their outcomes.
        used: the calls that ran, with their arguments.
        final_text: the answer.
        status: the final status.
        stop_reason: the reason of the stop signal, or an empty string.
        usage: the tokens that the execution used.
        points: the interceptor points that were passed, each with the details that an interceptor sees there.
        events: the class names of the emitted events, without deltas.
    """

    outcomes: tuple[tuple[Any, ...], ...]
    used: tuple[Any, ...]
    final_text: str
    status: str
    stop_reason: str
    usage: Any
    points: tuple[Any, ...]
    events: tuple[str, ...]


async def observe_behavior(
    driver: CanUseTools, scenario: Scenario, *, max_steps: int | None = None
) -> ObservedBehavior:
    """Run a scenario under a driver, with toy tools, and return what must not depend on the driver."""
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
        state.final_text or "",
        state.status,
        signal.reason if signal is not None else "",
        state.usage,
        tuple(recorder.seen),
        tuple([type(event).__name__ for event in events if not isinstance(event, InferenceDeltaReceived)]),
    )


@frozen
class PointRecorder(CanIntercept):
    """An interceptor that records every point that it passes.

    Attributes:
        seen: the name of each point, the number of steps so far, and the details of the point.
    """

    seen: list[Any] = field(factory=list)
    points: frozenset[str] = field(default=frozenset(POINTS), init=False)
    priority: int = field(default=0, init=False)
    name: str = field(default="PointRecorder", init=False)
    allows_eager_start: bool = field(default=True, init=False)

    def handle(self, point: S) -> S:
        """Record the point."""
        self._record(point, _details(point))
        return point

    async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:
        """Record the point, and afterwards the response if it is an inference."""
        self._record(point, _details(point))
        outcome = await proceed()
        if isinstance(outcome, InferenceResponse):
            self._record(point, _response(outcome))
        return outcome

    def _record(self, point: Point, details: Sequence[Any]) -> None:
        self.seen.append((point.point_name, point.state.step_count, *details))


def _details(point: Point) -> Sequence[Any]:
    """Return the details that an interceptor sees at a point, without the state."""
    details: Sequence[Any] = ()
    match point:
        case BeforeInference(request=request):
            details = [spec.name for spec in request.tools], len(request.messages)
        case AroundInference(request=request):
            details = ([spec.name for spec in request.tools],)
        case AfterInference(response=response):
            details = _response(response)
        case BeforeToolUse(call=call) | AroundToolUse(call=call):
            details = _call(call)
        case AfterToolUse(execution=execution):
            details = _outcome(execution)
        case OnError(error=error):
            details = (str(error),)
    return details


def _native(scenario: Scenario) -> CanUseTools:
    return ToolCallingDriver(scenario.inference(), mode="native")


def _call(call: ToolCall) -> tuple[Any, ...]:
    return call.name, call.arguments


def _response(response: InferenceResponse) -> tuple[Any, ...]:
    """Return the calls of a response, or its answer.

    Text next to calls is left out: it is text in some modes, and a thought in others.
    """
    calls = [_call(call) for call in response.tool_calls]
    return calls, "" if calls else response.text, response.finish_reason


def _outcome(execution: ToolExecution) -> tuple[Any, ...]:
    return *_call(execution.call), execution.status, execution.value, execution.error
