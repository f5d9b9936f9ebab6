"""The spans of executions: which there are, how they nest, and how they end."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import get_current_span

from agentloop import AgentLoop, Interceptor, LLMConfig, ScriptedInference, ToolCall, handoff_to, tool
from agentloop.contracts import CanHandleEvents, CanNameModel, ToolContext
from agentloop.durable import MemoryJournal, SqliteJournal, replay
from agentloop.errors import CallSuspended, RateLimited
from agentloop.events import EventBus
from agentloop.interception import BeforeInference, Permissions, RequireApproval, StepLimit
from agentloop.models import FallbackInference, RunProgram
from agentloop.policies import Resilience
from agentloop.testing.eager_start_kit import StreamedModel, StreamedTurn
from agentloop.testing.scenario import ScriptedTurn
from agentloop.values import InferenceRequest, InferenceResponse, RetryPolicy, Text
from agentloop.values.decisions import Approve, Deny
from tests.service.telemetry.observed import Watch, attribute, context_of, error_of


@tool(effect="pure")
async def look(item: str) -> str:
    """Look at an item."""
    await asyncio.sleep(0)
    return f"a {item}"


@tool(effect="pure")
def broken() -> str:
    """Fail."""
    raise ValueError("secret-text")


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    """Return a call."""
    return ToolCall(f"call_{number}", name, json.dumps(arguments))


def loop_of(*lines: Any, tools: Any = (look, broken), **options: Any) -> AgentLoop[Any]:
    """Return a loop whose model follows a script."""
    return AgentLoop.for_model(ScriptedInference(*lines), tools=tools, **options)


async def test_an_execution_has_spans_for_steps_inferences_and_parallel_calls() -> None:
    """Each step is in the execution, each inference and each call in its step; calls of a batch are siblings."""
    watch = Watch(agent_name="shop")
    loop = watch.observe(loop_of([call("look", 1, item="lamp"), call("look", 2, item="desk")], "Done."))
    state = await loop.execute("What is there?")
    assert watch.paths() == [
        "invoke_agent shop",
        "invoke_agent shop/step 1",
        "invoke_agent shop/step 1/chat",
        "invoke_agent shop/step 1/execute_tool look",
        "invoke_agent shop/step 1/execute_tool look",
        "invoke_agent shop/step 2",
        "invoke_agent shop/step 2/chat",
    ]
    root, first = watch.one("invoke_agent shop"), watch.named("execute_tool look")[0]
    assert attribute(root, "gen_ai.operation.name") == "invoke_agent"
    assert attribute(root, "gen_ai.agent.id") == attribute(root, "gen_ai.conversation.id") == state.agent_id
    assert attribute(root, "agentloop.execution.id") == state.execution_id
    assert attribute(root, "agentloop.execution.status") == "completed"
    assert (attribute(root, "gen_ai.usage.input_tokens"), attribute(root, "agentloop.step.count")) == (20, 2)
    assert attribute(first, "gen_ai.tool.name") == "look"
    assert attribute(first, "gen_ai.tool.call.id") == "call_1"
    assert attribute(first, "gen_ai.tool.description") == "Look at an item."
    assert attribute(first, "agentloop.tool.call.key") == f"{state.execution_id}/1/0"
    assert attribute(first, "agentloop.tool.call.status") == "succeeded"
    assert {error_of(span) for span in watch.spans} == {None}


async def test_spans_have_the_names_of_the_agents() -> None:
    """Each agent goes by its own name, a sub-agent without one by that of its tool, and agents without any by the observer's."""
    watch = Watch(agent_name="shop")
    ask = call("research", task="Look.")
    inner = loop_of("Found.", name="researcher")
    await watch.observe(loop_of(ask, "Done.", tools=[inner.as_tool("research", "Look.")], name="front")).execute("Go.")
    await watch.observe(loop_of(ask, "Done.", tools=[loop_of("Found.").as_tool("research", "Look.")])).execute("Go.")
    roots = [span for span in watch.spans if attribute(span, "gen_ai.operation.name") == "invoke_agent"]
    names = {"front", "researcher", "shop", "research"}
    assert {attribute(span, "gen_ai.agent.name") for span in roots} == names
    assert {span.name for span in roots} == {f"invoke_agent {name}" for name in names}


async def test_a_handoff_is_an_event_with_the_name_of_the_agent_that_takes_over() -> None:
    """The span of the execution keeps the name that it began with, and says who took over."""
    watch = Watch()
    over = handoff_to(loop_of("Paid.", name="billing"), name="to_billing", description="Money.")
    await watch.observe(loop_of(call("to_billing"), tools=[over], name="desk")).execute("Go.")
    (event,) = watch.one("invoke_agent desk").events
    assert event.attributes == {"gen_ai.tool.name": "to_billing", "gen_ai.agent.name": "billing"}


class Mistral(ScriptedInference, CanNameModel):
    """A scripted model with the name of another one."""

    @property
    def model_name(self) -> str:
        return LLMConfig.parse("mistral:large", api_key="key").name

    @property
    def wire_format_name(self) -> str:
        return "openai-chat"


async def test_a_chat_span_names_the_provider_the_models_and_the_tokens() -> None:
    """Requests and responses are described as the conventions say; the content is not there."""
    watch = Watch()
    loop = watch.observe(
        AgentLoop.for_model(Mistral("Hi."), options={"temperature": 0.5, "max_tokens": 9, "stop": "END", "seed": 7})
    )
    await loop.execute("What is there?")
    chat = watch.one("chat large")
    assert {name: value for name, value in (chat.attributes or {}).items() if name != "gen_ai.conversation.id"} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "large",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.response.model": "scripted",
        "gen_ai.response.id": "scripted-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }
    assert chat.kind.name == "CLIENT"
    assert attribute(watch.one("invoke_agent"), "gen_ai.provider.name") == "mistral_ai"


class Blocking(Interceptor):
    """Blocks calls of `look`."""

    def before_tool_use(self, point: Any) -> Any:
        return point.block("not today") if point.call.name == "look" else point


async def test_failed_blocked_and_rejected_calls_end_their_spans_with_an_error() -> None:
    """Each of them has a span with its status and the type of its error, and no text without `content`."""
    watch = Watch()
    calls = [call("broken", 1), call("look", 2, item="x"), call("look", 3, item=4), call("nothing", 4)]
    await watch.observe(loop_of(calls, "Done.", interceptors=[Blocking()])).execute("Go.")
    found = {
        attribute(span, "gen_ai.tool.call.id"): (attribute(span, "agentloop.tool.call.status"), error_of(span))
        for span in watch.spans
        if span.name.startswith("execute_tool")
    }
    assert found == {
        "call_1": ("failed", "ValueError"),
        "call_2": ("blocked", "ToolBlocked"),
        "call_3": ("rejected", "InvalidArguments"),
        "call_4": ("rejected", "UnknownTool"),
    }
    assert "secret-text" not in "".join(span.to_json() for span in watch.spans)


async def test_a_sub_agent_is_inside_of_the_call_that_it_serves() -> None:
    """The execution of a sub-agent has the name of its tool, and the trace of its caller, with each bus."""
    inner = loop_of(call("look", item="lamp"), "A lamp.")
    outer = loop_of(call("explore", task="Look."), "Done.", tools=[inner.as_tool("explore", "Explores.")])
    watch = Watch()
    watch.observe(inner)
    await watch.observe(outer).execute("Go.")
    below = "invoke_agent/step 1/execute_tool explore/invoke_agent explore"
    assert [path for path in watch.paths() if path.startswith(below)] == [
        below,
        f"{below}/step 1",
        f"{below}/step 1/chat",
        f"{below}/step 1/execute_tool look",
        f"{below}/step 2",
        f"{below}/step 2/chat",
    ]
    assert len({context_of(span).trace_id for span in watch.spans}) == 1


async def test_a_bus_without_contexts_has_the_same_spans() -> None:
    """Nothing is current inside of calls then, and yet every span has its parent."""

    class Plain(CanHandleEvents):
        def __init__(self, bus: CanHandleEvents) -> None:
            self.bus = bus

        def wiretap(self, listener: Any) -> Any:
            return self.bus.wiretap(listener)

        def on(self, kind: Any, listener: Any) -> Any:
            return self.bus.on(kind, listener)

        def for_execution(self) -> CanHandleEvents:
            return Plain(self.bus.for_execution())

        def due(self, kind: Any) -> bool:
            return self.bus.due(kind)

        def head(self, state: Any, *, step_number: int | None = None) -> Any:
            return self.bus.head(state, step_number=step_number)

        async def emit(self, event: Any) -> None:
            await self.bus.emit(event)

        def emit_soon(self, event: Any) -> None:
            self.bus.emit_soon(event)

        async def drain(self) -> None:
            await self.bus.drain()

    inner = loop_of("A lamp.")
    tools = [inner.as_tool("explore", "Explores.")]
    outer = loop_of(call("explore", task="Look."), "Done.", tools=tools, events=Plain(EventBus()))
    watch = Watch()
    await watch.observe(outer).execute("Go.")
    assert "invoke_agent/step 1/execute_tool explore/invoke_agent explore/step 1/chat" in watch.paths()


async def test_the_calls_of_a_program_are_inside_of_the_call_that_runs_it() -> None:
    """Each call that the program makes has a span below that of the program."""
    watch = Watch()
    source = json.dumps({"code": "await look(item='lamp')"})
    loop = loop_of(ToolCall("1", "run_program", source), "Done.", tools=[look, RunProgram()])
    state = await watch.observe(loop).execute("Go.")
    assert state.steps[0].executions[0].succeeded, state.explain()
    assert "invoke_agent/step 1/execute_tool run_program/execute_tool look" in watch.paths()


def test_a_dropped_loop_is_not_kept_by_its_observer() -> None:
    """An observer that lives as long as the program can observe a loop for each request."""
    watch = Watch()
    loop = watch.observe(loop_of("Hi."))
    bus = weakref.ref(loop.events)
    del loop
    gc.collect()
    assert bus() is None
    assert len(watch.telemetry._observed) == 0


def test_each_bus_is_observed_though_subscriptions_of_dropped_ones_are_kept() -> None:
    """A new bus may be where an old one was in memory, and is another one."""
    watch, subscriptions = Watch(), []
    for _ in range(20):
        subscriptions.append(watch.telemetry.observe(SimpleNamespace(events=EventBus(), journal=None)))
        gc.collect()
    assert len(set(map(id, subscriptions))) == len(subscriptions)


# --- retries, streams, early starts ---------------------------------------------------------------------------------


async def test_retried_inferences_have_a_span_for_each_further_attempt() -> None:
    """The span of an inference covers all attempts; a retry names the error before it and what is asked instead."""

    def limited(_: InferenceRequest) -> InferenceResponse:
        raise RateLimited("not now")

    watch = Watch()
    model = FallbackInference([ScriptedInference(limited), ScriptedInference("Done.")])
    await watch.observe(AgentLoop.for_model(model)).execute("Go.")
    retry = watch.one("retry 1")
    assert "invoke_agent/step 1/chat/retry 1" in watch.paths()
    assert attribute(retry, "error.type") == "RateLimited"
    assert attribute(retry, "agentloop.retry.attempt") == 1
    assert error_of(watch.one("chat")) is None


async def test_retried_calls_have_a_span_for_each_further_attempt() -> None:
    """An attempt that fails in its turn ends its span with an error."""
    attempts: list[int] = []

    @tool(effect="pure", retry=RetryPolicy(max_attempts=3, initial_wait=0.001, max_wait=0.001))
    def flaky() -> str:
        """Fail twice."""
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("no")
        return "yes"

    watch = Watch()
    await watch.observe(loop_of(call("flaky"), "Done.", tools=[flaky], interceptors=[Resilience()])).execute("Go.")
    first, second = watch.one("retry 1"), watch.one("retry 2")
    assert (error_of(first), second.status.is_ok) == ("OSError", True)
    assert error_of(watch.one("execute_tool flaky")) is None


async def test_a_failed_inference_ends_its_span_and_that_of_the_execution_with_its_error() -> None:
    """The type of the error is the same in the inference, the step and the execution."""

    def limited(_: InferenceRequest) -> InferenceResponse:
        raise RateLimited("not now")

    watch = Watch()
    await watch.observe(loop_of(limited)).execute("Go.")
    assert {span.name: error_of(span) for span in watch.spans} == dict.fromkeys(
        ["invoke_agent", "step 1", "chat"], "RateLimited"
    )
    assert attribute(watch.one("invoke_agent"), "agentloop.execution.status") == "failed"


async def test_a_streamed_inference_has_the_time_to_its_first_chunk() -> None:
    """It is an attribute of the span, and the request is said to be streamed."""
    watch = Watch()
    loop = AgentLoop.for_model(ScriptedInference("One two three."), streaming=True)
    await watch.observe(loop).execute("Go.")
    chat = watch.one("chat")
    assert attribute(chat, "gen_ai.request.stream") is True
    assert attribute(chat, "gen_ai.response.time_to_first_chunk") >= 0


async def test_a_tool_that_starts_early_has_one_span_that_begins_with_it() -> None:
    """The span begins while the model still writes, is current in the tool, and ends with the call."""
    current: list[int] = []

    @tool(effect="pure")
    async def early(item: int) -> int:
        """Return an item."""
        current.append(get_current_span().get_span_context().span_id)
        return item

    calls = ScriptedTurn("", (call("early", 1, item=1), call("early", 2, item=2)))
    model = StreamedModel([StreamedTurn(calls, 0.0), StreamedTurn(ScriptedTurn("Done."), 0.0)])
    watch = Watch()
    await watch.observe(AgentLoop.for_model(model, tools=[early], streaming=True, eager=True)).execute("Go.")
    spans = watch.named("execute_tool early")
    assert [attribute(span, "agentloop.tool.call.status") for span in spans] == ["succeeded", "succeeded"]
    assert attribute(spans[0], "agentloop.tool.call.eager") is True
    assert current == [context_of(span).span_id for span in spans]


async def test_a_tool_that_started_early_for_nothing_ends_its_span() -> None:
    """The call of the final answer has other arguments: the first span is discarded, and that of the call is another one."""

    @tool(effect="pure")
    async def early(item: int) -> int:
        """Return an item."""
        return item

    calls = ScriptedTurn("", (call("early", 1, item=1), call("early", 2, item=2)))
    model = StreamedModel([StreamedTurn(calls, 0.0, fault="other"), StreamedTurn(ScriptedTurn("Done."), 0.0)])
    watch = Watch()
    state = await watch.observe(AgentLoop.for_model(model, tools=[early], streaming=True, eager=True)).execute("Go.")
    assert len(state.steps[0].discarded_calls) == 1
    statuses = [attribute(span, "agentloop.tool.call.status") for span in watch.named("execute_tool early")]
    assert sorted(statuses) == ["discarded", "rejected", "succeeded"]


async def test_a_replay_of_an_observed_execution_is_equal_and_makes_no_spans() -> None:
    """The trace in the records is no part of what is compared."""
    journal, watch = MemoryJournal(), Watch()
    loop = watch.observe(loop_of(call("look", item="lamp"), "Done.", journal=journal))
    await loop.execute("Go.", execution_id="run")
    spans = len(watch.spans)
    assert (await replay(journal, "run", loop)).is_equal
    assert len(watch.spans) == spans


async def test_an_answer_of_an_interceptor_is_no_inference() -> None:
    """It is an event of the step."""

    class Answering(Interceptor):
        def before_inference(self, point: BeforeInference) -> BeforeInference:
            return point.answer(InferenceResponse((Text("Hello."),)))

    watch = Watch()
    await watch.observe(loop_of("never", interceptors=[Answering()])).execute("Go.")
    assert watch.paths() == ["invoke_agent", "invoke_agent/step 1"]
    assert [event.name for event in watch.one("step 1").events] == ["agentloop.inference.replaced"]


# --- ends -----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_execution_ends_every_span() -> None:
    """The calls that were cancelled, the step and the execution end with an error."""
    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()

    watch = Watch()
    running = asyncio.create_task(watch.observe(loop_of(call("wait"), tools=[wait])).execute("Go."))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    errors = {span.name: error_of(span) for span in watch.spans}
    assert errors == {"invoke_agent": "interrupted", "step 1": None, "chat": None, "execute_tool wait": "Cancelled"}
    assert attribute(watch.one("invoke_agent"), "agentloop.execution.status") == "in_progress"


async def test_an_execution_that_is_left_between_two_steps_ends_its_span() -> None:
    """Its status is `left`, and nothing is current where its states are used."""
    watch = Watch()
    states = watch.observe(loop_of(call("look", item="x"), "Done.")).iterate("Go.")
    async for _ in states:
        assert not get_current_span().get_span_context().is_valid
        break
    await states.aclose()
    assert attribute(watch.one("invoke_agent"), "agentloop.execution.status") == "left"


async def test_a_limit_is_no_error() -> None:
    """An execution that a limit stopped has the reason, and no error."""
    watch = Watch()
    loop = loop_of(*[call("look", item="x")] * 3, interceptors=[StepLimit(1)])
    await watch.observe(loop).execute("Go.")
    root = watch.one("invoke_agent")
    assert error_of(root) is None
    assert (attribute(root, "agentloop.execution.status"), attribute(root, "agentloop.stop.reason")) == (
        "stopped",
        "step_limit",
    )


# --- approvals and other processes ----------------------------------------------------------------------------------


@tool
def pay(cents: int) -> str:
    """Pay an amount."""
    return f"paid {cents}"


async def test_approvals_have_a_span_when_they_are_asked_for_and_when_they_are_given() -> None:
    """The second one lasts as long as the call waited, and the resumed execution links to the suspended one."""
    watch = Watch()
    loop = watch.observe(
        loop_of(
            [call("pay", 1, cents=1), call("pay", 2, cents=2)], "Done.", tools=[pay], interceptors=[RequireApproval()]
        )
    )
    state = await loop.execute("Pay.")
    first = watch.one("invoke_agent")
    assert attribute(first, "agentloop.execution.status") == "suspended"
    assert [attribute(span, "agentloop.approval.state") for span in watch.named("approval pay")] == ["suspended"] * 2
    watch.exporter.clear()
    keys = [pending.key for pending in state.pending]
    await loop.resume(state, {keys[0]: Approve(), keys[1]: Deny("no")})
    second = watch.one("invoke_agent")
    assert [link.context.span_id for link in second.links] == [context_of(first).span_id]
    decided = watch.named("approval pay")
    by_key = {
        attribute(span, "agentloop.tool.call.key"): attribute(span, "agentloop.approval.decision") for span in decided
    }
    assert by_key == {keys[0]: "approve", keys[1]: "deny"}
    assert {span.start_time for span in decided} == {first.end_time}
    paid = {attribute(span, "gen_ai.tool.call.id"): error_of(span) for span in watch.named("execute_tool pay")}
    assert paid == {"call_1": None, "call_2": "ToolBlocked"}


async def test_an_execution_that_another_process_resumes_links_to_the_earlier_trace(tmp_path: Any) -> None:
    """The journal has the trace in which the execution began; without an observer it has none."""
    path = tmp_path / "runs.db"
    options: dict[str, Any] = {"tools": [pay], "interceptors": [RequireApproval()]}
    first, second = Watch(), Watch()
    journal = SqliteJournal(path)
    state = await first.observe(loop_of(call("pay", cents=1), "Done.", journal=journal, **options)).execute("Pay.")
    await journal.aclose()
    journal = SqliteJournal(path)  # as in another process, which knows nothing but the file
    loop = second.observe(loop_of(call("pay", cents=1), "Done.", journal=journal, **options))
    await loop.resume(state.execution_id, {state.pending[0].key: Approve()})
    await journal.aclose()
    began = context_of(first.one("invoke_agent"))
    (link,) = second.one("invoke_agent").links
    assert (link.context.trace_id, link.context.span_id) == (began.trace_id, began.span_id)
    assert attribute(second.one("invoke_agent"), "agentloop.execution.resumed") is True


async def test_a_call_in_doubt_ends_its_span_as_such() -> None:
    """After a crash, a call with an effect is in doubt, and its span says what the recovery decided."""
    journal = MemoryJournal()

    @tool
    async def crash() -> None:
        """End the task of the execution, as the end of the process would."""
        running.cancel()
        await asyncio.Event().wait()

    def loop() -> AgentLoop[Any]:
        return loop_of(call("crash"), "Done.", tools=[crash], journal=journal)

    running = asyncio.ensure_future(loop().execute("Go.", execution_id="run"))
    await asyncio.wait((running,))
    watch = Watch()
    await watch.observe(loop()).recover("run")
    doubted = watch.one("execute_tool crash")
    assert attribute(doubted, "agentloop.tool.call.status") == "in_doubt"
    assert attribute(doubted, "agentloop.tool.call.recovery") == "in_doubt"
    assert attribute(doubted, "agentloop.tool.call.may_have_run") is True
    assert error_of(doubted) is not None
    assert [event.name for event in watch.one("step 1").events] == ["agentloop.inference.reused"]


async def test_a_tool_that_suspends_its_call_ends_the_span() -> None:
    """The span has this status, and no error."""

    @tool
    def ask(context: ToolContext) -> str:
        """Ask a person."""
        if context.resumed is None:
            raise CallSuspended("which one?")
        return "this one"

    watch = Watch()
    state = await watch.observe(loop_of(call("ask"), "Done.", tools=[ask])).execute("Go.")
    asked = watch.one("execute_tool ask")
    assert (attribute(asked, "agentloop.tool.call.status"), error_of(asked)) == ("suspended", None)
    assert state.pending


async def test_observing_twice_makes_each_span_once_and_cancelling_ends_it() -> None:
    """A loop is observed once, however often it is asked for, until the subscription is cancelled."""
    watch = Watch()
    loop = watch.observe(watch.observe(loop_of("One.", interceptors=[Permissions()])))
    await loop.execute("Go.")
    assert len(watch.named("chat")) == 1
    watch.telemetry.observe(loop).cancel()
    await loop_of("Two.", events=loop.events).execute("Go.")
    assert len(watch.named("chat")) == 1
