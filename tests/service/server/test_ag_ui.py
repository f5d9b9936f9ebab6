"""AG-UI: runs of front ends, with events that the published models of the protocol accept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from ag_ui.core import Event, RunAgentInput
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.durable import MemoryJournal
from agentloop.events import InferenceDeltaReceived
from agentloop.interception import AfterToolUse, RequireApproval, at
from agentloop.policies import Guardrails, ReplaceAnswer, SummarizeHistory
from agentloop.service.server import Principal, Scope, ServerLimits
from agentloop.service.server.ag_ui import AgUiEvents
from agentloop.service.server.feeds import RunningInference
from agentloop.service.server.record_events import ServerEvent
from agentloop.values import (
    AgentState,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Reasoning,
    SystemClock,
    Text,
    from_json,
)
from agentloop.values.event import EventHead
from tests.service.server.front import (
    DEADLINE,
    TOKENS,
    GatedInference,
    Received,
    add,
    adder,
    all_events,
    bearer,
    calling,
    pay,
    payer,
    read_events,
    serving,
    settled,
    start,
)

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


def run_input(text: str = "Go.", thread: str = "t", run: str = "r", **more: Any) -> dict[str, Any]:
    """Return a request as the models of the protocol write it."""
    messages = [{"id": "m1", "role": "user", "content": text}]
    body = {"threadId": thread, "runId": run, "messages": messages, "tools": [], "context": [], "state": {}, **more}
    written: dict[str, Any] = RunAgentInput.model_validate(body).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return written


async def run(client: httpx.AsyncClient, body: dict[str, Any]) -> list[Received]:
    """Run an agent, and return its events, each of which the models of the protocol accept without unknown fields."""
    async with client.stream("POST", "/ag-ui", json=body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [event async for event in read_events(response)]
    check_events(events)
    return events


def check_events(events: list[Received]) -> None:
    """Check events against the models, and that what begins ends before the run does."""
    active: list[str] = []
    for event in events:
        model = EVENTS.validate_python(event.data)
        assert not model.model_extra, event.data
        name, (_, _, stage) = event.data["type"], event.data["type"].rpartition("_")
        kind = name.removesuffix(f"_{stage}")
        if stage in {"START", "STARTED"} and kind != "RUN":
            active.append(kind)
        elif stage in {"END", "FINISHED"} and kind != "RUN":
            active.remove(kind)
        elif name in {"RUN_FINISHED", "RUN_ERROR"}:
            assert active == []
    assert active == []


class ShiftedClock(SystemClock):
    """The clock of a machine that somebody sets.

    Attributes:
        shift: by how much it is wrong.
    """

    __slots__ = ("shift",)

    def __init__(self) -> None:
        self.shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


def types(events: list[Received]) -> list[str]:
    return [event.data["type"] for event in events]


async def test_a_run_has_the_events_of_the_protocol() -> None:
    """A run with a tool call and an answer has its texts, calls and results between its start and its end."""
    async with serving(adder(MemoryJournal())) as client:
        events = await run(client, run_input())
        assert types(events) == [
            "RUN_STARTED",
            "STEP_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_FINISHED",
            "STEP_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "STEP_FINISHED",
            "RUN_FINISHED",
        ]
        assert events[0].data["threadId"] == "t"
        assert events[5].data["content"] == "3"
        assert events[-1].data["outcome"] == {"type": "success"}


async def test_reasoning_and_streamed_text_have_their_events() -> None:
    """Reasoning is a message of its own, and streamed text arrives once."""
    model = ScriptedInference(InferenceResponse((Reasoning("Hm."), Text("Three lamps are left."))))
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), streaming=True)
    async with serving(loop) as client:
        events = await run(client, run_input())
        assert {"REASONING_START", "REASONING_MESSAGE_CONTENT", "REASONING_END"} <= set(types(events))
        texts = [event.data["delta"] for event in events if event.data["type"] == "TEXT_MESSAGE_CONTENT"]
        assert "".join(texts) == "Three lamps are left."


async def test_who_comes_while_the_model_writes_gets_the_text_once() -> None:
    """A run that is followed from the middle of an answer has what was written before, and no second message."""
    model = GatedInference()
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), streaming=True)
    async with serving(loop) as client:
        await start(client, id="lamps")
        await model.has_begun.wait()
        events: list[Received] = []
        path = "/executions/ada:lamps/events?format=ag-ui"
        async with asyncio.timeout(DEADLINE), client.stream("GET", path) as response:
            async for event in read_events(response):
                events.append(event)
                model.gate.set()
        check_events(events)
        texts = [event.data["delta"] for event in events if event.data["type"] == "TEXT_MESSAGE_CONTENT"]
        assert texts == ["Three lamps ", "are left."]


def delta_events(attempts: list[list[str]]) -> list[ServerEvent]:
    """Return the deltas of an inference, which writes its answer in each of several attempts."""
    inference = RunningInference()
    inference.begin(1)
    head = EventHead("agent", "r", None, 1, 1, datetime.now(UTC))
    return [
        inference.add(InferenceDeltaReceived(head, InferenceDelta("text", text, attempt=attempt)))
        for attempt, pieces in enumerate(attempts, 1)
        for text in pieces
    ]


@given(st.lists(st.lists(st.text("ab", max_size=3), max_size=6), min_size=1, max_size=3), st.data())
def test_deltas_that_are_missing_leave_no_gap_and_no_repetition(attempts: list[list[str]], data: st.DataObject) -> None:
    """Whatever deltas a client does not get, and wherever a call starts, the text of the last attempt is there once."""
    deltas = delta_events(attempts)
    received = [delta for delta in deltas if data.draw(st.booleans())]
    call = {"step": 1, "key": "r/1/0", "id": "1", "name": "add", "arguments": "{}"}
    received.insert(data.draw(st.integers(0, len(received))), ServerEvent("call_started", call, sequence=1))
    text = "".join(attempts[-1])
    translator = AgUiEvents("t", "r")
    ended = ServerEvent("inference_completed", {"step": 1, "text": text}, sequence=2)
    translated = [each for event in (*received, ended) for each in translator.translate(event)]
    written = "".join([each["delta"] for each in translated if each["type"] == "TEXT_MESSAGE_CONTENT"])
    assert written.endswith(text)
    if len(attempts) == 1:
        assert written == text


async def test_a_summary_is_no_message_of_the_run() -> None:
    """It is for the model, and what made it is no answer."""
    calls = [ToolCall(str(number), "add", f'{{"a": {number}, "b": 2}}') for number in (1, 2)]
    summarize = SummarizeHistory(ScriptedInference("They add numbers."), tokens=1, keep=0)
    model = ScriptedInference(*calls, "It is 4.")
    loop = AgentLoop.for_model(model, tools=[add], journal=MemoryJournal(), interceptors=[summarize])
    async with serving(loop) as client:
        events = await run(client, run_input())
        assert len(summarize.inference.requests) == 1  # type: ignore[attr-defined]  # of the model above
        texts = [event.data["delta"] for event in events if event.data["type"] == "TEXT_MESSAGE_CONTENT"]
        assert "".join(texts) == "It is 4."


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("outcome", "texts"), [("stop", []), (ReplaceAnswer(lambda text: text.replace("secret", "***")), ["a ***"])]
)
async def test_a_run_has_no_text_that_a_guardrail_holds_back(
    outcome: Any, texts: list[str], *, streaming: bool
) -> None:
    """The record has it, and says that interceptors have seen it afterwards."""
    guard = Guardrails(
        output=[lambda inspection: ["it is secret"] if "secret" in inspection.text else []], on_output=outcome
    )
    model = ScriptedInference(InferenceResponse((Reasoning("It is a secret."), Text("a secret"))))
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), interceptors=[guard], streaming=streaming)
    async with serving(loop) as client:
        events = await run(client, run_input())
        assert [event.data["delta"] for event in events if event.data["type"] == "TEXT_MESSAGE_CONTENT"] == texts
        assert not any(event.data["type"].startswith("REASONING") for event in events)
        recorded = [event.data for event in await all_events(client, "/executions/ada:r/events")]
        assert [data["is_provisional"] for data in recorded if data["type"] == "inference_completed"] == [True]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_run_has_the_results_that_interceptors_have_left(*, waits: bool) -> None:
    """Also beside a call that waits for a decision; the record has what the tool returned, and says so."""

    def mask(point: AfterToolUse) -> AfterToolUse:
        return point.with_value("***") if point.call.name == "add" else point

    calls = [ToolCall("1", "add", '{"a": 1, "b": 2}'), *([ToolCall("2", "pay", '{"cents": 5}')] if waits else [])]
    loop = AgentLoop.for_model(
        ScriptedInference(calls, "Done."),
        tools=[add, pay],
        journal=MemoryJournal(),
        interceptors=[at("after_tool_use", mask), RequireApproval("pay")],
    )
    async with serving(loop) as client:
        events = await run(client, run_input())
        results = [event.data["content"] for event in events if event.data["type"] == "TOOL_CALL_RESULT"]
        assert results == ["***"]
        assert types(events)[-1] == "RUN_FINISHED"
        async with client.stream("GET", "/executions/ada:r/events") as response:
            recorded = await anext(event.data async for event in read_events(response) if event.event == "call_ended")
        assert (recorded["value"], recorded["is_provisional"]) == (3, True)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_text_beside_a_call_that_waits_is_written_once(
    *, replaced: bool, guarded: bool, streaming: bool
) -> None:
    """Before the interrupt, as the guardrail has left it, and not again in the run that answers it."""
    guard = Guardrails(output=[lambda _: ["all is"] if replaced else []], on_output=ReplaceAnswer("I do."))
    asking = InferenceResponse((Text("I pay."), ToolCall("1", "pay", '{"cents": 500}')))
    layers = [*([guard] if guarded or replaced else []), RequireApproval("pay")]
    model = ScriptedInference(asking, "It is paid.")
    loop = AgentLoop.for_model(model, tools=[pay], journal=MemoryJournal(), interceptors=layers, streaming=streaming)
    async with serving(loop) as client:
        first = await run(client, run_input(run="r1"))
        [interrupt] = first[-1].data["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
        second = await run(client, run_input(run="r2", resume=resume))
        texts = [
            "".join([event.data["delta"] for event in events if event.data["type"] == "TEXT_MESSAGE_CONTENT"])
            for events in (first, second)
        ]
        assert texts == (["I do.", "I do."] if replaced else ["I pay.", "It is paid."])
        assert types(first).index("TEXT_MESSAGE_END") < types(first).index("TOOL_CALL_START")
        assert [types(events).count("STEP_STARTED") for events in (first, second)] == [1, 2]
        recorded = [event.data for event in await all_events(client, "/executions/ada:r1/events")]
        completed = [(data["step"], data["text"]) for data in recorded if data["type"] == "step_completed"]
        assert completed == [(1, "I do." if replaced else "I pay."), (2, "I do." if replaced else "It is paid.")]


def messages_of(events: list[Received]) -> list[tuple[str, str, list[str]]]:
    """Return the messages that the client of the protocol makes of events: the role, text and calls of each."""
    messages: dict[str, tuple[str, list[str], list[str]]] = {}
    for data in [event.data for event in events]:
        last = next(reversed(messages), "")
        if data["type"] == "TEXT_MESSAGE_START":
            assert data["messageId"] not in messages
            messages[data["messageId"]] = ("assistant", [], [])
        elif data["type"] == "TEXT_MESSAGE_CONTENT":
            messages[data["messageId"]][1].append(data["delta"])
        elif data["type"] == "TOOL_CALL_START":
            if last != data["parentMessageId"]:
                assert data["parentMessageId"] not in messages
                messages[data["parentMessageId"]] = ("assistant", [], [])
            messages[data["parentMessageId"]][2].append(data["toolCallId"])
        elif data["type"] == "TOOL_CALL_RESULT":
            assert data["messageId"] not in messages
            messages[data["messageId"]] = ("tool", [data["content"]], [])
    return [(role, "".join(texts), calls) for role, texts, calls in messages.values()]


@pytest.mark.parametrize("text", ["", "I add."])
async def test_a_call_belongs_to_the_message_of_its_step(text: str) -> None:
    """A front end has calls beside the text that the model wrote with them, and all calls of a step in one message."""
    calls = [ToolCall(str(number), "add", f'{{"a": {number}, "b": 2}}') for number in (1, 2)]
    asking: list[InferenceResponse | ToolCall] = [
        InferenceResponse((*([Text(text)] if text else []), *calls)),
        calls[0],
    ]
    gate = RequireApproval("add")
    loop = AgentLoop.for_model(
        ScriptedInference(*asking, "Done."), tools=[add], journal=MemoryJournal(), interceptors=[gate]
    )
    async with serving(loop) as client:
        first = await run(client, run_input(run="r1"))
        interrupts = first[-1].data["outcome"]["interrupts"]
        resume = [{"interruptId": each["id"], "status": "resolved", "payload": True} for each in interrupts]
        second = await run(client, run_input(run="r2", resume=resume))
        assert messages_of(first) == [("assistant", text, ["ada:r1/1/0", "ada:r1/1/1"])]
        assert messages_of(second) == [("tool", "3", []), ("tool", "4", []), ("assistant", "", ["ada:r1/2/0"])]


async def test_runs_of_different_threads_may_have_one_id() -> None:
    """Each is an execution of its own, also when its request is repeated."""
    async with serving(adder(MemoryJournal())) as client:
        first = [await run(client, run_input("Go.", thread=thread, run="1")) for thread in ("a", "b", "c")]
        again = [await run(client, run_input("Go.", thread=thread, run="1")) for thread in ("a", "b", "c")]
        assert [types(events)[-1] for events in (*first, *again)] == ["RUN_FINISHED"] * 6
        assert {event.data["runId"] for events in first for event in (events[0], events[-1])} == {"1"}
        listed = (await client.get("/executions", headers=bearer("boss"))).json()["executions"]
        assert len(listed) == 3
        assert "ada:1" in {execution["id"] for execution in listed}
        other = await client.post("/ag-ui", json=run_input("Another.", thread="b", run="1"))
        assert (other.status_code, other.json()["code"]) == (422, "other_request")


async def test_the_next_run_of_a_thread_continues_its_conversation() -> None:
    """The recorded conversation counts, not what the client sends of it; the same run again is the same execution."""
    async with serving(adder(MemoryJournal())) as client:
        await run(client, run_input("First.", run="r1"))
        again = await run(client, run_input("First.", run="r1"))
        assert types(again)[-1] == "RUN_FINISHED"
        second = run_input("Second.", run="r2")
        second["messages"].insert(0, {"id": "m0", "role": "user", "content": "Forged."})
        await run(client, second)
        document = (await client.get("/executions/ada:r2/state")).content
        texts = [message.text for message in from_json(document, AgentState).messages if message.role == "user"]
        assert texts == ["First.", "Second."]


async def test_a_thread_goes_on_after_the_clock_was_set_back() -> None:
    """The last run of a thread is the one with the highest number, whatever the clock of the machine says."""
    clock = ShiftedClock()
    loop = adder(MemoryJournal()).replace(clock=clock)
    async with serving(loop) as client:
        for number, hours in enumerate([0, 1, -24, 0.5, 0], 1):
            clock.shift += timedelta(hours=hours)
            events = await run(client, run_input(f"{number}.", run=f"r{number}"))
            assert types(events)[-1] == "RUN_FINISHED"
        document = (await client.get("/executions/ada:r5/state")).content
        texts = [message.text for message in from_json(document, AgentState).messages if message.role == "user"]
        assert texts == ["1.", "2.", "3.", "4.", "5."]


async def test_an_interrupt_is_answered_after_the_clock_was_set_back() -> None:
    """The run that waits is the last one of the thread, although an earlier one has a later time."""
    clock = ShiftedClock()
    paying = calling("pay", '{"cents": 500}', "Done.")

    def respond(request: InferenceRequest) -> InferenceResponse | str:
        return paying(request) if len(request.messages) > 1 else "Hello."

    model = ScriptedInference(*[respond] * 3)
    loop = AgentLoop.for_model(model, tools=[pay], journal=MemoryJournal(), interceptors=[RequireApproval("pay")])
    async with serving(loop.replace(clock=clock)) as client:
        await run(client, run_input(run="r1"))
        clock.shift -= timedelta(hours=1)
        waiting = await run(client, run_input(run="r2"))
        (interrupt,) = waiting[-1].data["outcome"]["interrupts"]
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
        events = await run(client, run_input(run="r3", resume=[answer]))
        assert events[-1].data["outcome"] == {"type": "success"}


async def test_a_run_that_cannot_be_followed_is_not_started() -> None:
    """A token without the scope `read`, or with as many open streams as allowed, starts nothing."""
    starter = Principal(name="starter", scopes=frozenset({Scope.START}))
    tokens = {**TOKENS, "starter-token": starter}
    limits = ServerLimits(streams=1)
    async with serving(payer(MemoryJournal()), authenticate=tokens.get, limits=limits) as client:
        refused = await client.post("/ag-ui", json=run_input(), headers=bearer("starter"))
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
        await start(client, id="bill")
        async with client.stream("GET", "/executions/ada:bill/events") as stream:
            assert stream.status_code == 200
            assert (await client.post("/ag-ui", json=run_input())).status_code == 429
        ids = (await client.get("/executions", headers=bearer("boss"))).json()["executions"]
        assert [execution["id"] for execution in ids] == ["ada:bill"]


@pytest.mark.parametrize(
    ("entry", "status"),
    [
        ({"status": "resolved", "payload": True}, "succeeded"),
        ({"status": "resolved", "payload": {"kind": "edit", "arguments": {"cents": 1}}}, "succeeded"),
        ({"status": "resolved", "payload": {"approved": False}}, "blocked"),
        ({"status": "cancelled"}, "blocked"),
    ],
)
async def test_an_interrupt_is_answered_by_the_next_run(entry: dict[str, Any], status: str) -> None:
    """A pending call ends the run with an interrupt, and the run that resumes has its outcome."""
    async with serving(payer(MemoryJournal())) as client:
        first = await run(client, run_input(run="r1"))
        outcome = first[-1].data["outcome"]
        assert outcome["type"] == "interrupt"
        [interrupt] = outcome["interrupts"]
        assert interrupt["metadata"]["rendering"] == "pay\n  cents = 500"
        assert interrupt["message"].endswith(f"\n{interrupt['metadata']['rendering']}")
        refused = await client.post("/ag-ui", json=run_input(run="r2"))
        assert refused.status_code == 409
        resume = [{"interruptId": interrupt["id"], **entry}]
        events = await run(client, run_input(run="r2", resume=resume))
        assert types(events)[0] == "RUN_STARTED"
        assert events[0].data["runId"] == "r2"
        assert types(events)[-1] == "RUN_FINISHED"
        assert events[-1].data["outcome"] == {"type": "success"}
        results = [event.data for event in events if event.data["type"] == "TOOL_CALL_RESULT"]
        assert [result["toolCallId"] for result in results] == [interrupt["toolCallId"]]
        assert "TOOL_CALL_START" not in types(events)  # the run before has it
        recorded = [event.data for event in await all_events(client, "/executions/ada:r1/events")]
        calls = [call for data in recorded if data["type"] == "step_completed" for call in data["calls"]]
        assert [call["status"] for call in calls] == [status]
        late = await client.post("/ag-ui", json=run_input(run="r3", resume=resume))
        assert late.status_code == 409


async def test_a_failed_run_ends_with_an_error() -> None:
    """The error of an execution is that of the run."""
    loop = AgentLoop.for_model(ScriptedInference(ValueError("lost")), journal=MemoryJournal(), max_retries=0)
    async with serving(loop) as client:
        events = await run(client, run_input())
        assert events[-1].data["type"] == "RUN_ERROR"
        assert "lost" in events[-1].data["message"]


async def test_a_run_that_was_stopped_is_cancelled() -> None:
    """An execution that reaches its limit of steps has no result, and is no success."""
    call = ToolCall("1", "add", '{"a": 1, "b": 2}')
    loop = AgentLoop.for_model(ScriptedInference(call, call), tools=[add], journal=MemoryJournal(), max_steps=1)
    async with serving(loop) as client:
        events = await run(client, run_input())
        assert events[-1].data["outcome"] == {"type": "cancelled"}
        assert events[-1].data["result"]["stop"]["reason"]


async def test_any_execution_can_be_followed_in_this_format() -> None:
    """The events of an execution have this format on request, and can be resumed after each of their ids."""
    async with serving(adder(MemoryJournal())) as client:
        await start(client, id="sum")
        await settled(client, "ada:sum")
        path = "/executions/ada:sum/events?format=ag-ui"
        events = await all_events(client, path)
        check_events(events)
        for number, event in enumerate(events[:-1], 1):
            if event.id:
                rest = await all_events(client, path, headers={"last-event-id": event.id})
                assert [each.data for each in rest] == [each.data for each in events[number:]]
        wrong = await client.get("/executions/ada:sum/events?format=xml")
        assert wrong.status_code == 422


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": [{"id": "1", "role": "assistant", "content": "x"}]},
        {"messages": [{"id": "1", "role": "user", "content": [{"type": "image"}]}]},
        {"threadId": 7},
        {"threadId": "../x"},
        {"resume": [{"interruptId": "k#d"}]},
    ],
)
async def test_a_request_with_mistakes_is_refused(change: dict[str, Any]) -> None:
    """A request that is no run, or has nothing to answer, starts nothing."""
    async with serving(payer(MemoryJournal())) as client:
        answer = await client.post("/ag-ui", json={**run_input(), **change})
        assert answer.status_code in {409, 422}
        assert (await client.get("/executions")).json()["executions"] == []


async def test_a_server_with_several_agents_says_that_a_run_names_none() -> None:
    """No field of the request could choose the agent, so the refusal does not ask for one."""
    journal = MemoryJournal()
    async with serving({"adds": adder(journal), "more": adder(journal)}) as client:
        answer = await client.post("/ag-ui", json=run_input())
        assert (answer.status_code, answer.json()["code"]) == (409, "no_single_agent")
        assert (await client.get("/executions")).json()["executions"] == []
