"""Calls that start while the model still writes its answer: when they may, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, Interceptor, ToolCall, ToolCallingDriver, ToolExecutor, tool
from agentloop.contracts import CanDiscoverTools, CanInfer, CanIntercept, CanNameModel, Tool, ToolContext, ToolPolicy
from agentloop.drivers.eager_start import CallReader
from agentloop.durable import MemoryJournal, replay
from agentloop.durable.replaying.replays import Replay
from agentloop.errors import ConfigurationError, InvalidResponse
from agentloop.events import EagerCallsDiscarded
from agentloop.interception import (
    AfterInference,
    AroundToolUse,
    BeforeToolUse,
    CancellationToken,
    InterceptorStack,
    Permissions,
    ProceedToolUse,
    RequireApproval,
    StepLimit,
    at,
)
from agentloop.policies import (
    Budget,
    Cache,
    CircuitBreaker,
    Deadline,
    Deduplicate,
    RateLimiter,
    Resilience,
    Retry,
    TimeLimit,
    TokenLimit,
    ToolCallLimit,
)
from agentloop.testing import CountingIds, run_in_virtual_time
from agentloop.testing.eager_start_kit import StreamedModel, StreamedTurn
from agentloop.testing.scenario import ScriptedTurn
from agentloop.toolkits import Ensemble
from agentloop.toolkits.http import http
from agentloop.values import (
    AgentState,
    Bounds,
    CachePolicy,
    Event,
    InferenceDelta,
    RateLimit,
)


@frozen
class World:
    """What the tools of a test have done, with the seconds of virtual time.

    Attributes:
        began: when each call began, by its argument, in order.
        ended: the arguments of the calls that ended.
    """

    began: dict[Any, float] = field(factory=dict)
    ended: list[Any] = field(factory=list)

    async def use(self, item: Any, seconds: float = 2.0) -> Any:
        self.began[item] = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        self.ended.append(item)
        return item


def look_tool(world: World, **options: Any) -> Any:
    """Return a pure tool that takes two seconds."""

    async def look(item: int) -> Any:
        """Look at an item."""
        return await world.use(item)

    return tool(**{"effect": "pure", **options})(look)


def call(item: Any, name: str = "look") -> ToolCall:
    return ToolCall(f"call {item}", name, f'{{"item": {item}}}')


def stream(*calls: ToolCall, fault: str = "", wait: float = 1.0) -> list[StreamedTurn]:
    """Return an answer with calls, of which each takes two deltas of one second, and a final answer."""
    turns = [StreamedTurn(ScriptedTurn("", calls), wait=wait, chunk=100, fault=fault)]
    return [*turns, *[StreamedTurn(ScriptedTurn("done"), wait=0)] * 2]


async def run(
    tools: Sequence[Any],
    turns: Iterable[StreamedTurn],
    *interceptors: CanIntercept,
    events: list[Event] | None = None,
    dependencies: Any = None,
    **parts: Any,
) -> AgentState:
    driver = ToolCallingDriver(StreamedModel(turns), streaming=True, eager=True, max_retries=0)
    loop = AgentLoop(driver, tools, interceptors=interceptors, ids=CountingIds(), **parts)
    loop.wiretap((events if events is not None else []).append)
    return await loop.execute("?", dependencies=dependencies)


def test_a_call_starts_when_it_is_complete() -> None:
    """Two calls begin when their arguments have arrived, and the step ends with the later one."""
    world = World()
    state = run_in_virtual_time(run([look_tool(world)], stream(call(1), call(2))))
    assert world.began == {1: 2.0, 2: 4.0}
    assert [execution.value for execution in state.steps[0].executions] == [1, 2]
    assert state.steps[0].discarded_calls == ()


class UnlistedModel(StreamedModel, CanNameModel):
    """A model that no row names."""

    model_name = "unlisted"
    wire_format_name = "openai-chat"


def test_a_call_of_an_unlisted_model_starts_when_it_is_complete() -> None:
    """Its tool API is assumed, and a call that comes through it is as certain as with any other model."""
    world = World()
    driver = ToolCallingDriver(UnlistedModel(stream(call(1))), streaming=True, eager=True)
    loop = AgentLoop(driver, [look_tool(world)], ids=CountingIds())
    run_in_virtual_time(loop.execute("?"))
    assert world.began == {1: 2.0}


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "effect"},
        {"effect": "idempotent"},
        {"eager": False},
        {"sequential": True},
        {"key": "one"},
        {"cache": CachePolicy()},
        {"rate_limit": RateLimit(1)},
        {"deadline": 100},
        {"deduplicate": "exact"},
    ],
)
def test_a_call_waits_for_the_answer_if_its_tool_may_not_start_early(options: dict[str, Any]) -> None:
    """What costs something, has an effect or is admitted by a policy starts in its batch, and so do the calls behind it."""
    world, other = World(), World()

    async def other_look(item: int) -> Any:
        """Look elsewhere."""
        return await other.use(item)

    tools = [look_tool(world, **options), tool(effect="pure")(other_look)]
    state = run_in_virtual_time(run(tools, stream(call(1), call(2, "other_look"))))
    assert min(world.began[1], other.began[2]) >= 5.0
    assert all(execution.succeeded for execution in state.steps[0].executions)


class Server(CanDiscoverTools):
    """A group that discovers a tool when it starts, as one of an MCP server does."""

    name = "server"
    interceptors: Sequence[CanIntercept] = ()

    def __init__(self, found: Tool) -> None:
        self._found = found

    @property
    def offered(self) -> Sequence[Tool]:
        return [self._found]

    async def discover(self) -> Sequence[Tool]:
        return self.offered

    async def hold(self) -> None:
        """Start nothing."""

    async def release(self) -> None:
        """Stop nothing."""


def test_a_tool_of_a_server_waits_and_one_of_an_ensemble_does_not() -> None:
    """A discovered tool may use a network; tools of ensembles start early, also if the ensemble changes them."""
    world = World()
    run_in_virtual_time(run([Server(look_tool(world))], stream(call(1))))
    assert world.began == {1: 3.0}
    world = World()
    ensemble = Ensemble("eyes", [look_tool(world)], policy={"timeout": 100.0})
    run_in_virtual_time(run([ensemble], stream(call(1))))
    assert world.began == {1: 2.0}
    assert [each.policy.eager for each in http(["example.com"]).offered] == [False]


def test_an_invalid_unknown_or_repeated_call_ends_the_early_start() -> None:
    """A call behind one that has to wait does not overtake it."""
    for waiting in (call('"text"'), call(1, "unknown"), call(7)):
        world = World()
        run_in_virtual_time(run([look_tool(world)], stream(call(7), waiting, call(8))))
        assert world.began[7] == 2.0 or waiting == call(7)
        assert world.began[8] >= 7.0


def test_concurrency_and_threads_bound_the_early_start() -> None:
    """No more calls start early than may run at once."""
    world = World()
    calls = [call(item) for item in range(4)]
    run_in_virtual_time(run([look_tool(world)], stream(*calls), executor=ToolExecutor(max_concurrency=2)))
    assert [world.began[item] for item in range(4)] == [2.0, 4.0, 9.0, 9.0]
    world = World()
    run_in_virtual_time(run([look_tool(world)], stream(*calls), bounds=Bounds(calls_per_answer=3)))
    assert list(world.began) == [0, 1, 2]  # the answer has too many calls, and none of them counts


def test_a_tool_in_a_thread_starts_early() -> None:
    """A plain function runs in its thread while the stream goes on, within the bound on threads."""

    def add(item: int, context: ToolContext) -> str:
        """Add."""
        return f"{context.dependencies} {item}"

    turns = stream(call(1, "add"), call(2, "add"), call(3, "add"), wait=0.01)
    state = asyncio.run(run([tool(effect="pure")(add)], turns, dependencies="shop", bounds=Bounds(threads=1)))
    assert [execution.value for execution in state.steps[0].executions] == ["shop 1", "shop 2", "shop 3"]


@pytest.mark.parametrize("fault", ["fails", "fewer", "other"])
def test_what_ran_in_vain_is_in_the_step(fault: str) -> None:
    """A broken stream and an answer with other calls than its stream leave the calls in the step, and one event."""
    world, events = World(), list[Event]()
    state = run_in_virtual_time(run([look_tool(world)], stream(call(1), call(2), fault=fault), events=events))
    # Of a stream that fails, the last call was not complete.
    vain = [call(1)] if fault == "fails" else [call(2)]
    assert list(state.steps[0].discarded_calls) == vain
    assert [event.calls for event in events if isinstance(event, EagerCallsDiscarded)] == [tuple(vain)]
    assert bool(state.steps[0].errors) is (fault == "fails")


def test_a_discarded_call_is_cancelled() -> None:
    """A tool whose outcome cannot be used any more does not run on, however long the execution still takes."""
    world = World()
    answer, _, _ = stream(call(1), call(2), fault="fewer")
    later = StreamedTurn(ScriptedTurn("done"), wait=9)
    state = run_in_virtual_time(run([look_tool(world)], [answer, later]))
    assert state.steps[0].discarded_calls == (call(2),)
    assert list(world.began) == [1, 2]
    assert world.ended == [1]


class Model(CanInfer):
    """Streams the same call in two attempts, of which the first fails."""

    def __init__(self) -> None:
        self.attempts = 0

    async def infer(self, request: Any) -> Any:
        raise NotImplementedError

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        self.attempts += 1
        if self.attempts == 3:
            yield ScriptedTurn("done").response(3)
            return
        yield InferenceDelta("tool_call", call_id="x", name="look")
        yield InferenceDelta("arguments", '{"item": 1}')
        await asyncio.sleep(1)
        if self.attempts == 1:
            raise InvalidResponse("broke off")
        yield ScriptedTurn("", (ToolCall("x", "look", '{"item": 1}'),)).response(2)


class RetryInference(Interceptor):
    allows_eager_start = True

    async def around_inference(self, point: Any, proceed: Any) -> Any:
        try:
            return await proceed()
        except InvalidResponse:
            return await proceed()


def test_a_repeated_attempt_starts_its_calls_anew() -> None:
    """The calls of a failed attempt are cancelled, and counted."""
    world = World()
    driver = ToolCallingDriver(Model(), streaming=True, eager=True)

    async def execute() -> AgentState:
        return await AgentLoop(driver, [look_tool(world)], interceptors=[RetryInference()]).execute("?")

    state = run_in_virtual_time(execute())
    assert world.began == {1: 1.0}
    assert world.ended == [1]
    assert [each.name for each in state.steps[0].discarded_calls] == ["look"]
    assert state.final_text == "done"


class BlockOne(Interceptor):
    """Blocks the item 1 and changes the item 2."""

    allows_eager_start = True

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        item = point.arguments["item"]
        if item == 1:
            return point.block("not this one")
        return point.with_arguments({"item": 20}) if item == 2 else point


def test_interceptors_have_the_last_word() -> None:
    """An outcome of a call that is blocked or changed is dropped; the changed call runs."""
    world = World()
    state = run_in_virtual_time(run([look_tool(world)], stream(call(1), call(2), call(3)), BlockOne()))
    assert [execution.value for execution in state.steps[0].executions] == [None, 20, 3]
    assert [each.arguments["item"] for each in state.steps[0].discarded_calls] == [1, 2]
    assert world.began[3] == 6.0


def test_a_layer_retries_with_the_early_run_as_first_attempt() -> None:
    """`Retry` gets the failure of the early run, and runs the tool again."""
    attempts: list[int] = []

    async def flaky(item: int, context: ToolContext) -> int:
        """Fail once."""
        attempts.append(context.attempt)
        if len(attempts) == 1:
            raise OSError("no")
        return item

    state = run_in_virtual_time(run([tool(effect="pure")(flaky)], stream(call(1, "flaky")), Resilience()))
    assert attempts == [1, 2]
    assert state.steps[0].executions[0].value == 1


class LooksAtCalls(Interceptor):
    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point


class LooksAtAnswers(Interceptor):
    def after_inference(self, point: AfterInference) -> AfterInference:
        return point


class OnceAllowed(Interceptor):
    allows_eager_start = True

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point


class Stricter(OnceAllowed):
    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("never")


class AllowedRetry(Retry):
    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> Any:
        return await super().around_tool_use(point, proceed)


def never(_: BeforeToolUse) -> bool:
    return False


@pytest.mark.parametrize(
    ("interceptor", "allows"),
    [
        (LooksAtCalls(), False),
        (LooksAtAnswers(), False),
        (OnceAllowed(), True),
        (Stricter(), False),
        (AllowedRetry(), False),
        (at("before_tool_use", lambda point: point), False),
        (Permissions(deny=["look"]), False),
        (RequireApproval("look"), False),
        (StepLimit(3), True),
        (TokenLimit(1000), True),
        (TimeLimit(100), False),
        (ToolCallLimit(3), False),
        (Budget(tokens=1000), False),
        (CancellationToken(), True),
        (Resilience(), True),
        (Resilience(tools={"look": ToolPolicy(timeout=1)}), False),
        (Resilience(retry=AllowedRetry()), False),
        (Retry(), True),
        (Deduplicate(), True),
        (Deduplicate(across_executions=True), False),
        (Deduplicate(by=lambda one, other: one.name == other.name), False),
        (Cache(CachePolicy()), False),
        (RateLimiter(RateLimit(1)), False),
        (Deadline(3), False),
        (CircuitBreaker(), True),
    ],
    ids=lambda value: value.name if isinstance(value, CanIntercept) else str(value),
)
def test_an_interceptor_allows_the_eager_start_only_if_it_declares_it(interceptor: CanIntercept, allows: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """One that would see the answer or the call before a tool runs prevents it, unless its class says otherwise."""
    assert InterceptorStack.of(interceptor).allows_eager_start is allows


def test_an_interceptor_that_does_not_allow_it_prevents_it() -> None:
    """Under one, every call starts in its batch."""
    world = World()
    run_in_virtual_time(run([look_tool(world)], stream(call(1), call(2)), LooksAtCalls()))
    assert set(world.began.values()) == {5.0}


def test_a_tool_that_needs_what_only_the_batch_knows_runs_there() -> None:
    """Ids that are derived from the call are those of the plain run; progress is reported in its place, once."""

    async def number(item: int, context: ToolContext) -> str:
        """Number."""
        context.progress(item)
        return context.ids().new_id("x")

    def observe(*, eager: bool) -> tuple[Any, list[str]]:
        events: list[Event] = []

        async def execute() -> AgentState:
            driver = ToolCallingDriver(StreamedModel(stream(call(1, "number"))), streaming=True, eager=eager)
            loop = AgentLoop(driver, [tool(effect="pure")(number)], ids=CountingIds())
            loop.wiretap(events.append)
            return await loop.execute("?", execution_id="e")

        state = run_in_virtual_time(execute())
        names = [type(event).__name__ for event in events]
        return state.steps[0].executions[0].value, [name for name in names if name != "EagerCallsDiscarded"]

    assert observe(eager=True) == observe(eager=False)


@pytest.mark.parametrize("eager", [True, False])
def test_a_tool_sees_the_class_of_its_context_by_its_name(*, eager: bool) -> None:
    """A result or an error that names the class of the context is that of the plain run."""

    async def look(item: int, context: ToolContext) -> str:
        """Look."""
        return str(getattr(context, "missing"))  # noqa: B009  # there is no such attribute

    driver = ToolCallingDriver(StreamedModel(stream(call(1), call(2))), streaming=True, eager=eager)
    state = run_in_virtual_time(AgentLoop(driver, [tool(effect="pure")(look)]).execute("?"))
    error = state.steps[0].executions[0].error
    assert error is not None
    assert error.message == "'ToolContext' object has no attribute 'missing'"


def test_a_cancelled_execution_cancels_its_early_calls() -> None:
    """In the middle of the stream and in the middle of the batch, no task is left and no call runs on."""

    async def cancel_after(seconds: float) -> list[Any]:
        world = World()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await run([look_tool(world)], stream(call(1), call(2)))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return world.ended

    assert run_in_virtual_time(cancel_after(3.5)) == []
    assert run_in_virtual_time(cancel_after(5.5)) == [1]


def test_an_interrupted_stream_leaves_nothing_in_the_journal() -> None:
    """A pure call that ran before its answer was recorded runs again after a recovery, and the execution goes on."""
    world, journal = World(), MemoryJournal()

    async def execute() -> AgentState:
        driver = ToolCallingDriver(StreamedModel(stream(call(1), call(2))), streaming=True, eager=True)
        loop = AgentLoop(driver, [look_tool(world)], journal=journal)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.5):
                await loop.execute("?", execution_id="e")
        kinds = [record.kind.value for record in await journal.read("e")]
        assert not [kind for kind in kinds if kind.startswith("call_")]
        driver = ToolCallingDriver(StreamedModel(stream(call(1), call(2))), streaming=True, eager=True)
        return await AgentLoop(driver, [look_tool(world)], journal=journal).recover("e")

    state = run_in_virtual_time(execute())
    assert [execution.value for execution in state.steps[0].executions] == [1, 2]
    assert state.final_text == "done"


@pytest.mark.parametrize("fault", ["", "fewer", "fails"])
def test_an_eager_run_is_replayed(fault: str) -> None:
    """A replay runs no tool and differs nowhere, whatever the recorded run has discarded."""
    world, journal = World(), MemoryJournal()
    turns = stream(call(1), call(2), fault=fault)

    async def execute() -> Replay:
        driver = ToolCallingDriver(StreamedModel(turns), streaming=True, eager=True)
        loop = AgentLoop(driver, [look_tool(world)], journal=journal)
        await loop.execute("?", execution_id="e")
        world.began.clear()
        return await replay(journal, "e", loop)

    replayed = run_in_virtual_time(execute())
    assert replayed.is_equal, replayed
    assert world.began == {}


def test_eager_start_needs_streaming() -> None:
    """Without it, the flag would have no effect."""
    with pytest.raises(ConfigurationError, match="streaming=True"):
        ToolCallingDriver(StreamedModel(()), eager=True)


# --- reading calls out of deltas ------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(st.sampled_from('ab"\\{}[]é '), max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=3), _JSON, max_size=3), max_size=4), st.integers(1, 9))
def test_a_call_is_read_with_its_last_bracket(arguments: list[dict[str, Any]], chunk: int) -> None:
    """However arguments are cut, each call is returned once, whole, and with the delta that completes it."""
    reader, found = CallReader(), list[ToolCall]()
    for index, values in enumerate(arguments):
        text = json.dumps(values)
        assert reader.feed(InferenceDelta("tool_call", index=index, call_id=str(index), name="look")) == []
        pieces = [text[at : at + chunk] for at in range(0, len(text), chunk)]
        for piece in pieces[:-1]:
            assert reader.feed(InferenceDelta("arguments", piece, index)) == []
        found += reader.feed(InferenceDelta("arguments", pieces[-1], index))
    assert [each.arguments_json for each in found] == [json.dumps(values) for values in arguments]


def test_calls_are_read_in_call_order() -> None:
    """A call whose fragments arrive before those of an earlier one is held back; one without arguments ends with the next."""
    reader = CallReader()
    assert reader.feed(InferenceDelta("tool_call", index=0, name="none")) == []
    assert [each.name for each in reader.feed(InferenceDelta("tool_call", index=1, name="late"))] == ["none"]
    assert reader.feed(InferenceDelta("arguments", "{", 1)) == []
    assert reader.feed(InferenceDelta("tool_call", index=2, name="soon")) == []
    assert reader.feed(InferenceDelta("arguments", "{}", 2)) == []
    assert [each.name for each in reader.feed(InferenceDelta("arguments", "}", 1))] == ["late", "soon"]
