"""The law suite of drivers that stand for one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attrs import field, fields, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.events.bus import EventBus
from agentloop.events.inference import InferenceDeltaReceived
from agentloop.interception.interceptor import Interceptor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.clocks import CountingIds, ManualClock, run_virtual
from agentloop.testing.kit import Kit, require
from agentloop.testing.scenario import Scenario, valid_scenarios
from agentloop.testing.toy_tools import Ledger, toys
from agentloop.values.event import Event
from agentloop.values.inference import InferenceResponse
from agentloop.values.points import (
    AfterExecution,
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeExecution,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    OnError,
    OnStop,
    Point,
    ProceedInference,
    ProceedToolUse,
)
from agentloop.values.tool_calls import ToolCall, ToolExecution

P = TypeVar("P", bound=Point)

_SCENARIOS = valid_scenarios("stop")


@frozen
class Account:
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
class Witness(Interceptor):
    """Stands at every point and writes down what it sees.

    Attributes:
        seen: the name of each point that was passed, with what was to be seen there.
    """

    seen: list[Any] = field(factory=list)

    def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        """Note it."""
        return self._noted("before_execution", point)

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Note it."""
        return self._noted("before_step", point)

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Note the tools on offer and the length of the conversation."""
        request = point.request
        return self._noted("before_inference", point, [spec.name for spec in request.tools], len(request.messages))

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Note the tools on offer, and the calls and the answer that come back."""
        self._noted("around_inference", point, [spec.name for spec in point.request.tools])
        response = await proceed()
        self._noted("around_inference", point, *_said(response))
        return response

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Note the calls and the answer."""
        return self._noted("after_inference", point, *_said(point.response))

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Note the call."""
        return self._noted("before_tool_use", point, *_call(point.call))

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Note the call."""
        self._noted("around_tool_use", point, *_call(point.call))
        return await proceed()

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Note the outcome."""
        return self._noted("after_tool_use", point, *_outcome(point.execution))

    def after_step(self, point: AfterStep) -> AfterStep:
        """Note it."""
        return self._noted("after_step", point)

    def on_stop(self, point: OnStop) -> OnStop:
        """Note it."""
        return self._noted("on_stop", point)

    def after_execution(self, point: AfterExecution) -> AfterExecution:
        """Note it."""
        return self._noted("after_execution", point)

    def on_error(self, point: OnError) -> OnError:
        """Note the error."""
        return self._noted("on_error", point, str(point.error))

    def _noted(self, name: str, point: P, *details: Any) -> P:
        self.seen.append((name, point.state.step_count, *details))
        return point


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
            expected = run_virtual(account_of(self.reference(scenario), scenario, max_steps=most))
            found = run_virtual(account_of(self.make(scenario), scenario, max_steps=most))
            for one in fields(Account):
                wanted, got = getattr(expected, one.name), getattr(found, one.name)
                require(12, got == wanted, f"{one.name}: {wanted} under the reference, {got} under the driver")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 6)), holds)


async def account_of(driver: CanUseTools, scenario: Scenario, *, max_steps: int | None = None) -> Account:
    """Run a scenario under a driver, with toys, and return what must not depend on the driver."""
    events, witness, ledger = list[Event](), Witness(), Ledger()
    bus = EventBus(clock=ManualClock())
    bus.wiretap(events.append)
    loop = AgentLoop(
        driver,
        toys(ledger),
        interceptors=[witness],
        events=bus,
        max_steps=max_steps,
        clock=ManualClock(),
        ids=CountingIds(),
    )
    state = await loop.execute(scenario.question)
    signal = state.stop_signal
    return Account(
        tuple([tuple([_outcome(execution) for execution in step.executions]) for step in state.steps]),
        tuple(ledger.used),
        state.final_text,
        state.status,
        signal.reason if signal is not None else "",
        state.usage,
        tuple(witness.seen),
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
