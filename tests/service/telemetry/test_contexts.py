"""What is current where code of an execution runs, and what travels to other processes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.trace import get_current_span

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanProvideContext, ToolContext
from agentloop.durable import SqliteJournal
from agentloop.events import EventBus, continue_trace, current_operation, trace_headers
from agentloop.executors import RemoteCall, RemoteResult, RemoteToolExecutor, run_remote_call
from agentloop.mcp import McpEnsemble
from agentloop.service.cluster import Cluster
from agentloop.values import Operation, from_json, to_json
from agentloop.values.event import OperationKind
from tests.loaded import loaded_agentloop
from tests.mcp.running import NO_TIMEOUTS
from tests.service.cluster.workers import working
from tests.service.server.front import adder, serving, settled, start
from tests.service.telemetry.observed import Watch, attribute, context_of


def span_id() -> int:
    """Return the id of the current span."""
    return get_current_span().get_span_context().span_id


def trace_id() -> int:
    """Return the id of the current trace."""
    return get_current_span().get_span_context().trace_id


class Notes:
    """What tools note of their surroundings."""

    def __init__(self) -> None:
        self.spans: list[int] = []
        self.traces: list[int] = []
        self.operations: list[Operation | None] = []

    def note(self) -> None:
        """Note what is current."""
        self.spans.append(span_id())
        self.traces.append(trace_id())
        self.operations.append(current_operation())

    def tools(self) -> list[Any]:
        """Return an async and a plain tool that note what is current."""

        @tool(effect="pure")
        async def inline(item: int) -> int:
            """Note it."""
            await asyncio.sleep(0)
            self.note()
            return item

        @tool(effect="pure")
        def threaded(item: int) -> int:
            """Note it in a thread."""
            self.note()
            return item

        return [inline, threaded]


def loop_of(*names: str, tools: Any, **options: Any) -> AgentLoop[Any]:
    """Return a loop whose model calls tools in parallel, and then answers."""
    calls = [ToolCall(str(number), name, json.dumps({"item": number})) for number, name in enumerate(names)]
    return AgentLoop.for_model(ScriptedInference(calls, "Done."), tools=tools, **options)


@pytest.mark.parametrize("name", ["inline", "threaded"])
async def test_the_span_of_a_call_is_current_in_its_tool(name: str) -> None:
    """Of parallel calls, each has its own, in a coroutine and in a thread; afterwards nothing is current."""
    notes, watch = Notes(), Watch()
    state = await watch.observe(loop_of(name, name, tools=notes.tools())).execute("Go.")
    assert set(notes.spans) == {context_of(span).span_id for span in watch.named(f"execute_tool {name}")}
    assert len(set(notes.spans)) == 2
    assert {operation.key for operation in notes.operations if operation} == {
        f"{state.execution_id}/1/0",
        f"{state.execution_id}/1/1",
    }
    assert current_operation() is None
    assert span_id() == 0


async def test_interceptors_models_and_callers_have_their_spans() -> None:
    """The span of the step is current between its calls, that of the inference in the model, that of the program outside."""
    seen: dict[str, int] = {}

    class Noting(Interceptor):
        def before_execution(self, point: Any) -> Any:
            seen["invoke_agent"] = span_id()
            return point

        def after_step(self, point: Any) -> Any:
            seen["step 1"] = span_id()
            return point

    def model(_: Any) -> str:
        seen["chat"] = span_id()
        return "Done."

    watch = Watch()
    loop = watch.observe(AgentLoop.for_model(ScriptedInference(model), interceptors=[Noting()]))
    with watch.tracers.get_tracer("program").start_as_current_span("request"):
        outside = span_id()
        await loop.execute("Go.")
        assert span_id() == outside
    assert seen == {name: context_of(watch.one(name)).span_id for name in seen}
    assert len(seen) == 3
    parent = watch.one("invoke_agent").parent
    assert parent is not None
    assert parent.span_id == outside


async def test_states_of_an_iteration_are_used_outside_of_the_execution() -> None:
    """Between two steps the context is that of the program, and the next step is in the execution again."""
    notes = Notes()
    loop = Watch().observe(loop_of("inline", tools=notes.tools()))
    async with aclosing(loop.iterate("Go.")) as states:
        async for _ in states:
            assert current_operation() is None
            assert span_id() == 0
    assert [operation.kind for operation in notes.operations if operation] == [OperationKind.TOOL_CALL]


async def test_what_a_provider_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The execution goes on, without what the provider would have had current."""

    class Failing(CanProvideContext):
        def enter(self, operation: Operation) -> AbstractContextManager[None]:
            raise OSError(operation.kind.value)

        def end(self, operation: Operation) -> None:
            raise OSError(operation.kind.value)

        def carrier(self) -> Mapping[str, str]:
            raise OSError

    bus = EventBus()
    subscription = bus.provide(Failing())
    loop = loop_of("inline", tools=Notes().tools(), events=bus)
    with caplog.at_level(logging.ERROR):
        assert (await loop.execute("Go.")).final_text == "Done."
    assert {record.getMessage() for record in caplog.records} == {"Failing failed to provide a context"}
    subscription.cancel()
    caplog.clear()
    await loop.execute("Go.")
    assert not caplog.records


# --- other processes ------------------------------------------------------------------------------------------------


async def test_a_remote_call_continues_the_trace() -> None:
    """A call that travels as JSON has the trace with it; without a current span it has none."""
    notes = Notes()
    sent: list[str] = []

    class Wire(RemoteToolExecutor):
        async def call_remotely(self, call: RemoteCall, report: Any) -> RemoteResult:
            sent.append(to_json(call).decode())

            async def elsewhere() -> RemoteResult:
                return await run_remote_call(notes.tools(), from_json(sent[-1], RemoteCall), report=report)

            with continue_trace({}):
                return await elsewhere()

    watch = Watch()
    await watch.observe(loop_of("inline", tools=notes.tools(), executor=Wire())).execute("Go.")
    assert notes.spans == [context_of(watch.one("execute_tool inline")).span_id]
    await loop_of("inline", tools=notes.tools(), executor=Wire()).execute("Go.")
    assert ['"trace"' in text for text in sent] == [True, False]


async def test_a_submitted_execution_continues_the_trace_on_a_worker(tmp_path: Any) -> None:
    """The job has the trace of the program that submits it, and the worker measures how long it waited."""
    notes, watch = Notes(), Watch()
    db = str(tmp_path / "runs.db")
    loop = watch.observe(loop_of("threaded", tools=notes.tools()))
    async with Cluster(db) as cluster, working(db, loop):
        with watch.tracers.get_tracer("program").start_as_current_span("request"):
            submitted = trace_id()
            execution_id = await cluster.submit("tests.service.cluster.agents:loop", "Go.")
        await cluster.result(execution_id)
    root = watch.one("invoke_agent")
    assert context_of(root).trace_id == submitted == notes.traces[0]
    assert root.parent is not None
    ((labels, seconds, count),) = watch.metric("agentloop.queue.duration")
    assert (count, seconds >= 0, labels) == (1, True, {})


async def test_a_request_to_the_server_continues_the_trace_of_its_client(tmp_path: Any) -> None:
    """`traceparent` of a request is the parent of the execution that it starts."""
    watch = Watch()
    journal = SqliteJournal(tmp_path / "runs.db")
    loop = watch.observe(adder(journal))
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    async with serving(loop) as client:
        response = await client.post("/executions", json={"input": "Go."}, headers=headers)
        await settled(client, response.json()["id"])
        plain = await start(client)
        await settled(client, plain["id"])
    await journal.aclose()
    traces = [f"{context_of(span).trace_id:032x}" for span in watch.named("invoke_agent")]
    assert traces[0] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert traces[1] != traces[0]


SERVED = """
from agentloop import tool
from agentloop.events import trace_headers

@tool(effect="pure")
def where() -> str:
    'Say where it runs.'
    return trace_headers().get("traceparent", "none")
"""


async def test_a_call_of_an_mcp_server_has_the_trace_in_its_meta(tmp_path: Path) -> None:
    """A tool that another process serves runs in the trace of the call: it travels in `_meta` of the request."""
    watch = Watch()
    (tmp_path / "served.py").write_text(SERVED)
    launcher, *arguments = loaded_agentloop("mcp", "serve", str(tmp_path / "served.py"))
    served = McpEnsemble.stdio(launcher, arguments, name="served", **NO_TIMEOUTS)
    loop = watch.observe(AgentLoop.for_model(ScriptedInference(ToolCall("1", "where"), "Done."), tools=[served]))
    state = await loop.execute("Go.")
    text = state.steps[0].executions[0].text
    assert f"{context_of(watch.one('execute_tool where')).trace_id:032x}" in text


async def test_requests_of_a_tool_have_the_trace_if_it_sends_it() -> None:
    """`trace_headers` are those of the current call, for a client that no instrumentation watches."""
    sent: list[httpx.Headers] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers)
        return httpx.Response(200)

    @tool(effect="pure")
    async def fetch(context: ToolContext) -> str:
        """Fetch."""
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await client.get("http://example.com", headers=trace_headers())
        return context.idempotency_key

    watch = Watch()
    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "fetch"), "Done."), tools=[fetch])
    await watch.observe(loop).execute("Go.")
    span = watch.one("execute_tool fetch")
    assert sent[0]["traceparent"].split("-")[2] == f"{context_of(span).span_id:016x}"
    assert attribute(span, "agentloop.tool.call.status") == "succeeded"


async def events_of(loop: AgentLoop[Any]) -> AsyncGenerator[str, None]:
    """Yield the names of the events of an execution, in order."""
    async with aclosing(loop.stream("Go.")) as stream:
        async for event in stream:
            yield type(event).__name__


async def test_a_stream_of_events_has_nothing_current_outside() -> None:
    """Who reads the events of an execution is not in it."""
    loop = Watch().observe(loop_of("inline", tools=Notes().tools()))
    names = []
    async for name in events_of(loop):
        names.append(name)
        assert current_operation() is None
    assert names[-1] == "AgentExecutionCompleted"


async def test_an_observation_that_ends_inside_of_an_operation_leaves_nothing_current() -> None:
    """A tool may end the observation of its own execution: what was entered is left nevertheless."""
    watch, bus = Watch(), EventBus()

    @tool
    async def unplug() -> None:
        """End the observation."""
        subscription.cancel()

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "unplug"), "Done."), tools=[unplug], events=bus)
    subscription = watch.telemetry.observe(loop)
    assert (await loop.execute("Go.")).final_text == "Done."
    assert span_id() == 0
    assert bus.providers == []
    assert attribute(watch.one("invoke_agent"), "agentloop.execution.status") == "unobserved"
