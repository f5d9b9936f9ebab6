"""A program as users write it: a tool, a driver, an executor, an interceptor, a journal, a listener, and tests of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from attrs import frozen

from agentloop import (
    AgentLoop,
    AgentState,
    Driver,
    Interceptor,
    Message,
    ScriptedInference,
    SqliteJournal,
    ToolCall,
    ToolContext,
    ToolExecutor,
    tool,
)
from agentloop.contracts import CanExecuteToolCalls, CanInfer, CanIntercept, CanJournal
from agentloop.drivers import StepDraft
from agentloop.errors import ExecutionStopped, ToolFailed
from agentloop.events import EventBus, ToolCallCompleted
from agentloop.interception import AfterToolUse, AroundToolUse, BeforeToolUse, RequireApproval, at
from agentloop.policies import Budget
from agentloop.testing import (
    EventMatch,
    EventRecorder,
    FakeTool,
    Fault,
    FaultPlan,
    RandomInference,
    run_in_virtual_time,
    run_interleaved,
    walk_interleavings,
)
from agentloop.testing.fake_tool import FakeCall
from agentloop.testing.interleavings import Interleaving
from agentloop.values import (
    Decision,
    Event,
    InferenceRequest,
    InferenceResponse,
    ResponsePart,
    Text,
    ToolExecution,
    approve,
    deny,
)


class Order(TypedDict):
    """What an agent of the shop answers."""

    item: str
    cents: int


class Shop:
    """The service that the tools work with."""

    def __init__(self, prices: Mapping[str, int]) -> None:
        self.prices = prices


# --- tools ----------------------------------------------------------------------------------------------------------


@tool(effect="pure")
def price(item: str, context: ToolContext[Shop]) -> int:
    """Return a price in cents."""
    try:
        return context.dependencies.prices[item]
    except KeyError:
        raise ToolFailed(f"there is no {item}") from None


@tool
async def buy(item: str, count: int, context: ToolContext[Shop]) -> Order:
    """Buy something."""
    context.progress({"bought": count})
    return {"item": item, "cents": context.dependencies.prices[item] * count}


# --- a driver, an interceptor, a listener, a model ---------------------------------------------------------------------


@frozen(kw_only=True)
class Greeting(Driver):
    """Answers with the question."""

    greeting: str = "Hello"

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Answer."""
        assert_type(draft.state, AgentState[Any])
        parts: tuple[ResponsePart, ...] = (Text(f"{self.greeting}, {messages[-1].text}"),)
        draft.add_response(InferenceResponse(parts))
        return parts


class LimitOrders(Interceptor):
    """Refuses large orders, and hides their prices."""

    priority = 10

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Refuse."""
        count = point.arguments.get("count")
        assert_type(point.call, ToolCall)
        return point.block("too many") if isinstance(count, int) and count > 10 else point

    async def around_tool_use(
        self, point: AroundToolUse, proceed: Callable[[], Awaitable[ToolExecution]]
    ) -> ToolExecution:
        """Run the tool."""
        execution = await proceed()
        assert_type(execution, ToolExecution)
        return execution

    async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Hide."""
        return point.with_value({"cents": None}) if point.execution.name == "buy" else point


def report(event: Event) -> None:
    """Print what is bought."""
    match event:
        case ToolCallCompleted(execution=execution):
            assert_type(execution, ToolExecution)
            print(execution.name, execution.value, execution.ended_at - execution.started_at)  # noqa: T201  # a program
        case _:
            assert_type(event.head.sequence, int)


def answer(request: InferenceRequest) -> InferenceResponse | str:
    """Answer as a model."""
    return f"{len(request.messages)} messages"


class Upper(ScriptedInference):
    """A model of the program's own."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answer in capitals."""
        response = await super().infer(request)
        return InferenceResponse((Text(response.text.upper()),))


# --- the agent ------------------------------------------------------------------------------------------------------


def make_loop(model: CanInfer, journal: CanJournal | None = None) -> AgentLoop[Order]:
    """Put the agent together."""
    layers: list[CanIntercept] = [LimitOrders(), RequireApproval(), Budget(steps=5)]
    executor: CanExecuteToolCalls = ToolExecutor(default_timeout=10.0)
    loop = AgentLoop.for_model(
        model,
        tools=[price, buy],
        output_type=Order,
        interceptors=[*layers, at("before_step", lambda point: point)],
        executor=executor,
        journal=journal,
        events=EventBus(),
        max_steps=10,
    )
    assert_type(loop, AgentLoop[Order])
    loop.on(ToolCallCompleted, report)
    return loop


async def order(loop: AgentLoop[Order], shop: Shop) -> int:
    """Order something, and have someone decide about it."""
    try:
        state = await loop.execute("Two lamps, please.", dependencies=shop)
    except ExecutionStopped as stopped:
        assert_type(stopped.state, AgentState[Any])
        raise
    decisions: dict[str, Decision] = {
        call.key: approve(call.digest) if call.call.name == "price" else deny("no") for call in state.pending
    }
    state = await loop.resume(state, decisions)
    for step in state.steps:
        assert_type(step.ended_at - step.started_at, timedelta)
        for execution in step.executions:
            assert_type(execution.succeeded, bool)
    assert_type(state.output["cents"], int)
    return state.output["cents"]


# --- its tests -------------------------------------------------------------------------------------------------------


def test_with_doubles() -> None:
    """The doubles have the types of what they stand in for."""
    fake = FakeTool(buy, returns=[{"item": "lamp", "cents": 2}, TimeoutError("slow")])
    assert_type(fake.calls, list[FakeCall])
    recorder = EventRecorder()
    loop = make_loop(RandomInference(seed=3)).replace(tools=[fake, price])
    loop.wiretap(recorder)
    assert_type(loop.run_sync("go"), Order)
    assert_type(recorder.only(ToolCallCompleted, execution__name="buy"), ToolCallCompleted)
    assert_type(EventMatch(ToolCallCompleted), EventMatch[ToolCallCompleted])
    fake.assert_called_once_with(item="lamp", count=2)


def test_with_faults() -> None:
    """A plan keeps the type of a loop, and virtual time that of a coroutine."""
    with FaultPlan(Fault.hang("tool:buy", number=2), Fault.drop("inference", when="after"), seed=1) as plan:
        loop = plan.apply(make_loop(Upper("done"), SqliteJournal("runs.db")))
        assert_type(loop, AgentLoop[Order])
        assert_type(run_in_virtual_time(loop.execute("go")), AgentState[Order])
        assert_type(run_interleaved(loop.run("go"), seed=2), Order)
        for interleaving in walk_interleavings(lambda: loop.run("go")):
            assert_type(interleaving, Interleaving[Order])
            assert_type(interleaving.value, Order)
    plan.assert_complete()
