"""Messages that are sent to an execution while it runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    Message,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    from_json,
    to_json,
    tool,
)
from agentloop.drivers import ScenarioStep
from agentloop.durable import MemoryJournal
from agentloop.errors import ContractViolation, InboxClosed
from agentloop.events import (
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    InferenceRequestStarted,
    MessageReceived,
)
from agentloop.interception import RequireApproval, at
from agentloop.loop.inbox import Inbox, Inboxes
from agentloop.testing import Ledger, run_in_virtual_time, toy_call, toy_tools
from agentloop.values import Event, ExecutionStatus, Image, StopReason, approve
from agentloop.values.interruptions import interrupted_state


def scripted(*lines: Any, ledger: Ledger | None = None, **parts: Any) -> AgentLoop:
    return AgentLoop(ToolCallingDriver(ScriptedInference(*lines)), toy_tools(ledger or Ledger()), **parts)


def send_at(loop: AgentLoop, kind: type[Event], *texts: str, times: int = 1) -> list[Inbox]:
    """Send the texts at the first events of this class."""
    inbox, left = loop.inbox("run"), [times]

    def send(_: Event) -> None:
        if left[0]:
            left[0] -= 1
            for text in texts:
                inbox.send(text)

    loop.on(kind, send)
    return [inbox]


def conversation(state: AgentState) -> list[str]:
    """Return role and text of the messages; calls of an assistant are shown by their number."""
    return [f"{message.role[0]}:{message.text or len(message.exchanges)}" for message in state.messages]


@pytest.mark.parametrize("kind", [AgentStepStarted, InferenceRequestStarted, ContinuationEvaluated, AgentStepCompleted])
def test_a_message_is_in_the_conversation_before_the_next_step(kind: type[Event]) -> None:
    """Whenever in a step it is sent, the next request contains it, after the outcomes of the step."""
    loop = scripted([toy_call("echo", 1)], "done")
    send_at(loop, kind, "also this")
    events: list[Event] = []
    loop.wiretap(events.append)
    state = loop.execute_sync("go", execution_id="run")
    assert conversation(state) == ["u:go", "a:1", "u:also this", "a:done"]
    requests = [event.request for event in events if isinstance(event, InferenceRequestStarted)]
    assert [message.text for message in requests[1].messages if message.role == "user"] == ["go", "also this"]
    (received,) = [event for event in events if isinstance(event, MessageReceived)]
    assert (received.message.text, received.step_number) == ("also this", 2)


@pytest.mark.parametrize("kind", [InferenceRequestStarted, ContinuationEvaluated, AgentStepCompleted])
def test_a_message_after_the_final_answer_continues_the_execution(kind: type[Event]) -> None:
    """The message is answered in the same execution."""
    loop = scripted("done", "done again")
    send_at(loop, kind, "one more thing")
    state = loop.execute_sync("go", execution_id="run")
    assert conversation(state) == ["u:go", "a:done", "u:one more thing", "a:done again"]
    assert (state.status, state.step_count, state.execution_count) == (ExecutionStatus.COMPLETED, 2, 1)
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.COMPLETED


def test_a_waiting_message_requests_a_continuation() -> None:
    """A message that waits at the end of a step is the reason for the next step."""
    loop = scripted("done", "done again")
    send_at(loop, InferenceRequestStarted, "one more thing")
    events: list[Event] = []
    loop.on(ContinuationEvaluated, events.append)
    loop.execute_sync("go", execution_id="run")
    assert [event.continues for event in events if isinstance(event, ContinuationEvaluated)] == [True, False]


async def test_messages_can_be_sent_while_iterating() -> None:
    """A reader of the states can reply to the final answer."""
    loop = scripted("done", "done again", "at last")
    inbox = loop.inbox("run")
    states = []
    async for state in loop.iterate("go", execution_id="run"):
        states.append(state)
        if len(states) <= 2:
            inbox.send(f"message {len(states)}")
    assert conversation(states[-1]) == ["u:go", "a:done", "u:message 1", "a:done again", "u:message 2", "a:at last"]
    assert states[-1].status is ExecutionStatus.COMPLETED


def test_messages_can_be_sent_while_streaming() -> None:
    """A reader of the events can send a message while a tool runs."""
    loop = scripted([toy_call("echo", 1, seconds=1)], "done")

    async def read() -> AgentState | None:
        async with loop.stream("go", execution_id="run") as stream:
            async for event in stream:
                if isinstance(event, InferenceRequestStarted) and event.step_number == 1:
                    loop.inbox(event.execution_id).send("look here")
        return stream.state

    state = run_in_virtual_time(read())
    assert state is not None
    assert conversation(state) == ["u:go", "a:1", "u:look here", "a:done"]


def test_messages_sent_before_the_start_are_received() -> None:
    """They follow the input, in their order, before the first step."""
    loop = scripted("done")
    loop.inbox("run").send("first")
    loop.inbox("run").send(Message.user("second ", Image(file_id="f"), metadata={"from": "phone"}))
    state = loop.execute_sync("go", execution_id="run")
    assert conversation(state) == ["u:go", "u:first", "u:second ", "a:done"]
    assert state.messages[2].metadata == {"from": "phone"}


def test_a_changed_copy_has_the_same_inbox() -> None:
    """A message that is sent to a loop reaches executions of its changed copies."""
    loop = scripted("done")
    loop.inbox("run").send("first")
    assert conversation(loop.replace(max_steps=3).execute_sync("go", execution_id="run")) == [
        "u:go",
        "u:first",
        "a:done",
    ]


def test_a_message_is_for_one_execution() -> None:
    """Other executions of the loop do not receive it (law 9)."""
    loop = scripted("done")
    loop.inbox("other").send("not for you")
    assert conversation(loop.execute_sync("go", execution_id="run")) == ["u:go", "a:done"]


def test_an_ended_execution_refuses_messages() -> None:
    """The error says what to do instead."""
    loop = scripted("done")
    loop.execute_sync("go", execution_id="run")
    with pytest.raises(InboxClosed, match=r"'run' has ended .* loop.execute\(state.with_message"):
        loop.inbox("run").send("too late")


def test_an_execution_continued_from_an_earlier_state_accepts_messages_again() -> None:
    """Its end is forgotten when one of its earlier states is executed."""
    script = ScenarioStep.tool_call("echo", {"value": 1}), ScenarioStep.final("done"), ScenarioStep.final("indeed")
    loop = AgentLoop(ScriptedDriver(*script), toy_tools(Ledger()))
    first, *_ = loop.iterate_sync("go", execution_id="run")
    send_at(loop, AgentStepStarted, "in time")
    again = loop.execute_sync(first)
    assert conversation(again) == ["u:go", "a:1", "a:done", "u:in time", "a:indeed"]


def test_of_many_ended_executions_the_last_ones_refuse_messages() -> None:
    """The end of the first of 10,001 is forgotten, so that its messages wait; those to all others are refused."""
    inboxes = Inboxes()
    for number in range(10_001):
        inboxes.close(f"run {number}")
    inboxes.put("run 0", Message.user("hello"))
    for number in (1, 5_000, 10_000):
        with pytest.raises(InboxClosed):
            inboxes.put(f"run {number}", Message.user("hello"))
    assert inboxes.take("run 0") == [Message.user("hello")]


async def test_a_loop_does_not_keep_the_messages_of_an_ended_execution() -> None:
    """What was sent to a recorded execution is collected with its states."""
    loop = AgentLoop(ScriptedDriver(ScenarioStep.final("done"), ScenarioStep.final("done again")))

    async def execute() -> weakref.ref[Message]:
        message, states = Message.user("one more thing"), list[AgentState]()
        async for state in loop.replace(journal=MemoryJournal()).iterate("go", execution_id="run"):
            if not states:
                loop.inbox("run").send(message)
                await asyncio.sleep(0)  # it is recorded
            states.append(state)
        assert conversation(states[-1]) == ["u:go", "a:done", "u:one more thing", "a:done again"]
        return weakref.ref(message)

    sent = await execute()
    gc.collect()
    assert sent() is None


@pytest.mark.parametrize("point", [at("on_stop"), at("after_execution")])
def test_a_message_that_is_too_late_is_refused(point: Callable[..., Any]) -> None:
    """From the moment at which the execution stops, sending is an error."""
    refused: list[str] = []

    def send(point: Any) -> Any:
        with pytest.raises(InboxClosed) as caught:
            loop.inbox("run").send("too late")
        refused.append(str(caught.value))
        return point

    loop = scripted("done").with_interceptors(point(send))
    assert conversation(loop.execute_sync("go", execution_id="run")) == ["u:go", "a:done"]
    assert len(refused) == 1


@pytest.mark.parametrize(
    ("parts", "lines", "expected"),
    [
        ({"max_steps": 1}, ["done"], ["u:go", "a:done", "u:more"]),
        ({"max_steps": 1}, [[toy_call("echo", 1)]], ["u:go", "a:1", "u:more"]),
        (
            {"interceptors": [at("after_step", lambda point: point.stop("no", reason=StopReason.COST_LIMIT))]},
            ["done"],
            ["u:go", "a:done", "u:more"],
        ),
    ],
)
def test_a_message_does_not_bypass_a_limit(parts: Any, lines: list[Any], expected: list[str]) -> None:
    """If the execution stops nevertheless, the message is in the final state, without an answer."""
    loop = scripted(*lines, **parts)
    send_at(loop, InferenceRequestStarted, "more")
    state = loop.execute_sync("go", execution_id="run")
    assert state.status is ExecutionStatus.STOPPED
    assert conversation(state) == expected


def test_a_stop_before_the_first_step_keeps_the_message() -> None:
    """The message is in the final state, although no model was called."""
    for at_point in (at("before_execution"), at("before_step")):
        loop = scripted("done").with_interceptors(at_point(lambda point: point.stop("not today")))
        loop.inbox("run").send("more")
        state = loop.execute_sync("go", execution_id="run")
        assert (state.step_count, conversation(state)) == (0, ["u:go", "u:more"])


def test_a_failed_execution_keeps_the_message() -> None:
    """An error of the model does not lose messages that were sent meanwhile."""
    loop = scripted(ValueError("no model"))
    send_at(loop, InferenceRequestStarted, "more")
    state = loop.execute_sync("go", execution_id="run")
    assert state.status is ExecutionStatus.FAILED
    assert conversation(state) == ["u:go", "u:more"]


def test_a_cancelled_execution_keeps_the_message() -> None:
    """The state that the error carries has the message, after the cancelled calls."""
    loop = scripted([toy_call("echo", 1, seconds=9)])
    send_at(loop, InferenceRequestStarted, "more")

    async def cancel() -> AgentState:
        task = asyncio.ensure_future(loop.execute("go", execution_id="run"))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        state = interrupted_state(caught.value)
        assert state is not None
        return state

    assert conversation(run_in_virtual_time(cancel())) == ["u:go", "a:1", "u:more"]


async def test_a_message_to_a_suspended_execution_waits() -> None:
    """It follows the suspended turn, when all its calls are settled."""
    ledger = Ledger()
    script = ScenarioStep.tool_calls(("echo", {"value": 1}), ("echo", {"value": 2})), ScenarioStep.final("done")
    loop = AgentLoop(ScriptedDriver(*script), toy_tools(ledger), interceptors=[RequireApproval()])
    state = await loop.execute("go", execution_id="run")
    loop.inbox("run").send("hurry up")
    assert state.status is ExecutionStatus.SUSPENDED
    state = await loop.resume(from_json(to_json(state), AgentState), {"run/1/0": approve()})
    assert conversation(state) == ["u:go"]
    loop.inbox("run").send("please")
    state = await loop.resume(state, {"run/1/1": approve()})
    assert conversation(state) == ["u:go", "a:2", "u:hurry up", "u:please", "a:done"]
    assert len(ledger.calls) == 2


def test_only_user_messages_can_be_sent() -> None:
    """Anything else is refused by `send`."""
    inbox = scripted("done").inbox("run")
    with pytest.raises(
        ContractViolation, match="only a user's message can be sent to an execution, not the assistant's"
    ):
        inbox.send(Message.assistant("I say"))
    with pytest.raises(TypeError, match="a message is a text or a Message, not int"):
        inbox.send(7)  # type: ignore[arg-type]  # the mistake under test


def test_messages_can_be_sent_from_any_thread() -> None:
    """A hundred messages from four threads, sent while a tool runs, all arrive, those of each thread in order."""
    loop: AgentLoop

    def sender(name: str) -> None:
        for number in range(25):
            loop.inbox("run").send(f"{name} {number}")

    @tool
    def work() -> str:
        """Send messages from threads."""
        threads = [threading.Thread(target=sender, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "worked"

    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("", "work")], "done")), [work])
    state = loop.execute_sync("go", execution_id="run")
    got = [message.text for message in state.messages if message.role == "user"][1:]
    assert len(got) == 100
    for name in "abcd":
        assert [text for text in got if text.startswith(name)] == [f"{name} {number}" for number in range(25)]


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.sampled_from(["call", "answer"]), max_size=4))
def test_no_message_is_lost_duplicated_or_reordered(sent: list[int], turns: list[str]) -> None:
    """All messages are in the conversation once, in order, and a second run is identical."""
    lines = [[toy_call("echo", 1)] if turn == "call" else "said" for turn in turns]
    loop = scripted(*lines, *["done"] * (len(sent) + 2))
    numbers = iter(range(100))
    expected: list[str] = []

    def send(event: AgentStepStarted) -> None:
        step = event.step_number - 1
        for _ in range(sent[step] if step < len(sent) else 0):
            expected.append(f"message {next(numbers)}")
            loop.inbox("run").send(expected[-1])

    loop.on(AgentStepStarted, send)
    state = loop.execute_sync("go", execution_id="run")
    assert state.status is ExecutionStatus.COMPLETED
    assert [message.text for message in state.messages if message.role == "user"][1:] == expected
    assert state.messages[-1].role == "assistant"


def test_an_inbox_is_known_by_its_execution() -> None:
    """Inboxes of one execution are equal, also of a changed copy, and shown by its id; those of another loop are others."""
    loop = scripted("done")
    inbox = loop.inbox("run")
    assert {inbox, loop.inbox("run"), loop.replace(max_steps=3).inbox("run")} == {inbox}
    assert inbox not in {loop.inbox("other"), scripted("done").inbox("run")}
    assert repr(inbox) == "Inbox(execution_id='run')"


def test_an_unused_inbox_has_no_entries() -> None:
    """An execution without messages has the state that it would have without inboxes, and no list is kept for it."""
    loop = scripted("done")
    loop.inbox("run")
    loop.execute_sync("go", execution_id="run")
    assert not loop._shared.inboxes.waiting


def test_a_message_that_another_process_has_received_is_not_received_again() -> None:
    """A run that has found it in the journal, and then lost its execution for a while, finds it there no more."""
    inboxes, message = Inboxes(), Message.user("Hello.")
    inboxes.open("run", lambda _: None)
    assert inboxes.put_recorded("run", message)
    inboxes.restore("run", [Message.user("Hello.")])  # as when it is resumed
    inboxes.restore("run", [])  # and when it is recovered, after another process has taken a step
    assert inboxes.take("run") == []
