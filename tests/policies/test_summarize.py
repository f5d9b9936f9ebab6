"""Summaries of the beginning of a conversation, and how the compilers show them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    Interceptor,
    Message,
    ScriptedInference,
    TokenLimit,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.compilers import ConversationWithCurrentToolTrace, SlidingWindow, WholeConversation
from agentloop.contracts import CanCompileMessages, CanInfer
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError
from agentloop.events import ContextEpochBegan, ContextSummarized, TokenUsageReported
from agentloop.policies import SummarizeHistory
from agentloop.testing import CountingIds, CrashableJournal, ManualClock
from agentloop.values import (
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Reasoning,
    Text,
    Usage,
)
from agentloop.values.epochs import Summary
from agentloop.values.points import BeforeStep
from agentloop.values.serialization import from_json, to_json
from tests.compilers.conversations import (
    bind,
    call_message,
    extends,
    growing_states,
    is_subsequence,
    with_question,
    with_steps,
)

PAGE = "a page of text " * 30
SUMMARY_USAGE = Usage(100, 20, 0, 0, 0)


@tool(effect="pure")
async def read(number: int) -> str:
    """Read a page."""
    return f"{number}: {PAGE}"


def numbered_summaries() -> ScriptedInference:
    """Return a model that returns numbered summaries."""
    return ScriptedInference(*[f"summary {number}" for number in range(1, 30)], usage=SUMMARY_USAGE)


def run_steps(
    steps: int, summarizing: CanInfer, start: AgentState | str = "the task", **parts: Any
) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run so many steps with one call each, and a final answer."""
    inference = ScriptedInference(*[ToolCall("c", "read", f'{{"number": {step}}}') for step in range(steps)], "done")
    loop = AgentLoop(
        ToolCallingDriver(inference),
        [read],
        interceptors=[SummarizeHistory(summarizing, tokens=700, keep=300), *parts.pop("interceptors", ())],
        max_steps=steps + 1,
        clock=ManualClock(),
        ids=CountingIds(),
        **parts,
    )
    events: list[Event] = []
    loop.wiretap(events.append)
    return loop.execute_sync(start), inference.requests, events


def test_a_long_run_continues_from_a_summary() -> None:
    """The model sees its question, the summary and the newest messages."""
    summarizing = numbered_summaries()
    final, requests, _ = run_steps(30, summarizing)
    assert final.status is ExecutionStatus.COMPLETED
    last = requests[-1].messages
    assert "summary" in last[0].text
    assert last[1] == Message.user("the task")
    assert is_subsequence(last[2:], final.messages)
    assert len(last) < 8
    assert len(summarizing.requests) > 3
    assert f"summary {len(summarizing.requests)}" in last[0].text


def test_the_state_keeps_every_message() -> None:
    """The summary is an extension of the state; the conversation is the same as without it."""
    final, _, _ = run_steps(12, numbered_summaries())
    without_summaries = AgentLoop(
        ToolCallingDriver(ScriptedInference(*[ToolCall("c", "read", f'{{"number": {n}}}') for n in range(12)], "done")),
        [read],
        clock=ManualClock(),
        ids=CountingIds(),
    ).execute_sync("the task")
    assert final.messages == without_summaries.messages
    assert from_json(to_json(final), AgentState) == final


def test_each_summary_is_made_of_the_previous_one_and_the_messages_since() -> None:
    """No message is summarized twice, and none is left out between two summaries."""
    summarizing = numbered_summaries()
    run_steps(30, summarizing)
    texts = [request.messages[0].text for request in summarizing.requests]
    for number, text in enumerate(texts[1:], 1):
        assert f"summary {number}\n" in text
        assert f"summary {number - 1}\n" not in text
    numbers = [n for text in texts for n in range(30) if f'called read with {{"number": {n}}}' in text]
    assert numbers == sorted(set(numbers)) == list(range(len(numbers)))
    assert all(request.tools == () for request in summarizing.requests)


def test_the_tokens_of_summaries_are_counted() -> None:
    """The execution's usage includes its steps and its summaries (law 6), and limits count both."""
    summarizing = numbered_summaries()
    final, _, events = run_steps(12, summarizing)
    steps = sum([step.usage for step in final.steps], Usage.none())
    summaries = sum([SUMMARY_USAGE for _ in summarizing.requests], Usage.none())
    assert final.usage == steps + summaries
    summarized = [event for event in events if isinstance(event, ContextSummarized)]
    assert [event.usage for event in summarized] == [SUMMARY_USAGE] * len(summarizing.requests)
    assert [event for event in events if isinstance(event, TokenUsageReported)][-1].total == final.usage
    stopped, _, _ = run_steps(12, numbered_summaries(), interceptors=[TokenLimit(150)])
    assert stopped.stop_signal is not None
    assert stopped.stop_signal.reason.value == "token_limit"
    assert stopped.step_count < 10


def test_a_summary_begins_an_epoch_and_within_it_requests_extend_each_other() -> None:
    """The event of the summary comes first, then that of the epoch with its reason (law 13)."""
    _, requests, events = run_steps(30, numbered_summaries())
    breaks = sum(not extends(later.messages, earlier.messages) for earlier, later in pairwise(requests))
    reported = [event for event in events if isinstance(event, ContextSummarized | ContextEpochBegan)]
    summaries, epochs = reported[::2], reported[1::2]
    assert len(summaries) == len(epochs) == breaks > 3
    for summary, epoch in zip(summaries, epochs, strict=True):
        assert isinstance(summary, ContextSummarized)
        assert isinstance(epoch, ContextEpochBegan)
        assert epoch.reason == "the conversation was summarized"
        assert epoch.dropped == summary.covered - 1  # the question stays
    assert breaks < 15


def test_the_next_execution_continues_from_the_summary() -> None:
    """The compiler leaves the earlier tool trace out; the summary stays."""
    first, _, _ = run_steps(12, numbered_summaries())
    summarizing = numbered_summaries()
    compiler = ConversationWithCurrentToolTrace()
    _, requests, events = run_steps(0, summarizing, first.with_message("again"), compiler=compiler)
    shown = requests[0].messages
    assert "summary" in shown[0].text
    assert [message.text for message in shown[1:]] == ["the task", "done", "again"]
    assert not summarizing.requests
    (epoch,) = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert epoch.reason == "another execution has begun"


def test_a_summary_does_not_stand_in_for_messages_that_replace_those_it_covers() -> None:
    """A conversation that goes back to an earlier message is shown whole, also when it is as long again."""
    first, _, _ = run_steps(12, numbered_summaries())
    summary = Summary.of(first)
    assert summary is not None
    state = first.with_messages(first.messages[:2])
    while len(state.messages) <= summary.at + 2:
        model = ScriptedInference("yes")
        state = AgentLoop.for_model(model).execute_sync(state.with_message(f"question {len(state.messages)}"))
        assert model.requests[0].messages == state.messages[:-1]


def test_a_window_keeps_the_summary() -> None:
    """The summary stays at the beginning, as system messages do."""
    _, requests, _ = run_steps(30, numbered_summaries(), compiler=SlidingWindow(4, keep=3))
    assert all("summary" in request.messages[0].text for request in requests[8:])
    assert all("the task" in [message.text for message in request.messages] for request in requests)


def test_the_summarizer_sees_text_and_no_reasoning() -> None:
    """The transcript has calls and their results, and no reasoning."""
    summarizing = numbered_summaries()
    thought = Message.assistant(Reasoning("secret thoughts"), "spoken words " * 300)
    state = with_steps(with_question(AgentState.start(), "the task"), thought, call_message("find", "found it", q=1))
    point = BeforeStep(with_steps(state, Message.assistant("later")))
    interceptor = SummarizeHistory(summarizing, tokens=100, keep=20)
    result = asyncio.run(interceptor.before_step(point))
    text = summarizing.requests[0].messages[0].text
    assert "spoken words" in text
    assert "secret" not in text
    assert 'called find with {"q":1}; succeeded: found it' in text
    assert Summary.of(result.state) == Summary("summary 1", 3, 4)


@pytest.mark.parametrize("compiler", [None, ConversationWithCurrentToolTrace()])
@pytest.mark.parametrize("steps", [2, 0])
def test_the_summarizer_sees_the_calls_of_earlier_executions(steps: int, compiler: Any) -> None:
    """A model that no longer sees a call of an execution, completed or not, knows of it by the summary."""
    summarizing = numbered_summaries()
    first = AgentLoop.for_model(
        ScriptedInference(ToolCall("c", "read", '{"number": 77}'), *["done"][: steps // 2]), tools=[read], max_steps=2
    ).execute_sync("the task")
    assert first.status is (ExecutionStatus.COMPLETED if steps else ExecutionStatus.FAILED)
    run_steps(9, summarizing, first.with_message("again"), compiler=compiler)
    earlier, _, current = summarizing.requests[0].messages[0].text.partition("again")
    assert 'called read with {"number": 77}' in earlier
    assert "called read" in current


async def test_an_execution_with_a_summary_goes_on_after_a_crash() -> None:
    """With the answers that would have followed: the requests for summaries are none of the driver's."""

    calls = [ToolCall(f"c{step}", "read", f'{{"number": {step}}}') for step in range(6)]

    def loop_of(journal: CrashableJournal) -> AgentLoop:
        layers = [SummarizeHistory(numbered_summaries(), tokens=700, keep=300)]
        return AgentLoop(
            ToolCallingDriver(ScriptedInference(*calls, "done")), [read], interceptors=layers, journal=journal
        )

    journal = CrashableJournal()
    state = await loop_of(journal).execute("the task", execution_id="run")
    assert Summary.of(state) is not None
    for count in range(1, len(journal.appended)):
        recovered = await loop_of(await journal.after_crash(count)).recover("run")
        assert recovered.final_text == "done", count
        assert [step.executions[0].call for step in recovered.steps[:-1]] == calls


def test_a_short_conversation_is_not_summarized() -> None:
    """No summary is requested, and the model sees all messages."""
    summarizing = numbered_summaries()
    final, requests, _ = run_steps(2, summarizing)
    assert not summarizing.requests
    assert Summary.of(final) is None
    assert len(requests[-1].messages) == 3


def test_an_empty_summary_stops_the_execution() -> None:
    """The error names the finish reason, and the usage is counted."""
    silent = ScriptedInference(InferenceResponse((Text("  "),), FinishReason.LENGTH, SUMMARY_USAGE))
    final, _, _ = run_steps(12, silent)
    assert final.status is ExecutionStatus.FAILED
    assert final.stop_signal is not None
    assert "returned no summary; its finish reason is length" in final.stop_signal.message
    assert final.usage == sum([step.usage for step in final.steps], SUMMARY_USAGE)


def test_a_summarizer_that_fails_fails_the_execution() -> None:
    """The state has all earlier steps, and the error."""
    final, _, _ = run_steps(12, ScriptedInference(RuntimeError("no connection")))
    assert final.status is ExecutionStatus.FAILED
    assert "no connection" in final.errors[0].message
    assert final.step_count > 3


def test_an_execution_that_is_stopped_is_not_summarized() -> None:
    """No summary is requested when another interceptor stops the execution first."""

    class Stop(Interceptor):
        priority = 1

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.stop("enough") if point.state.step_count == 8 else point

    summarizing = numbered_summaries()
    _, _, events = run_steps(12, summarizing, interceptors=[Stop()])
    assert all(event.step_number < 9 for event in events if isinstance(event, ContextSummarized))


@pytest.mark.parametrize("steps", [10, 40])
def test_each_message_is_measured_once(steps: int) -> None:
    """The number of estimates is linear in the length of the run (law 20)."""
    measured: list[int] = []
    messages: list[Message] = []  # keeps them alive, so that ids are unique

    def estimate(message: Message) -> int:
        measured.append(id(message))
        messages.append(message)
        return 10

    inference = ScriptedInference(*[ToolCall("c", "read", f'{{"number": {step}}}') for step in range(steps)], "done")
    summarize = SummarizeHistory(numbered_summaries(), tokens=100, keep=50, estimate=estimate)
    final = AgentLoop(ToolCallingDriver(inference), [read], interceptors=[summarize]).execute_sync("go")
    ids = {id(message) for message in final.messages}
    of_messages = [measured_id for measured_id in measured if measured_id in ids]
    assert len(of_messages) == len(set(of_messages)) == len(final.messages) - 1
    assert len(measured) <= 2 * len(final.messages)  # the summary is measured once in each step


def ten_tokens(_: Message) -> int:
    return 10


def summarizes(state: AgentState, tokens: int) -> bool:
    """Return whether a state is summarized if every message has ten tokens."""
    summarize = SummarizeHistory(numbered_summaries(), tokens=tokens, keep=0, estimate=ten_tokens)
    return Summary.of(asyncio.run(summarize.before_step(BeforeStep(state))).state) is not None


def test_a_conversation_is_summarized_from_one_token_over_the_maximum() -> None:
    """As many tokens as the maximum are not too many."""
    state = with_steps(
        with_question(AgentState.start(), "the task"), call_message("find", "found it"), call_message("x", "y")
    )
    assert not summarizes(state, 30)
    assert summarizes(state, 29)


def test_the_calls_of_earlier_executions_have_tokens() -> None:
    """The conversation is as long as the model sees it: with the three calls of the earlier execution."""
    first, _, _ = run_steps(3, numbered_summaries())
    again = with_steps(with_question(first, "again"), Message.assistant("one"), Message.assistant("two"))
    assert not summarizes(again, 80)
    assert summarizes(again, 79)


def test_a_message_that_was_replaced_is_measured_anew() -> None:
    """The maximum holds for the messages as they are now, also for one of which a shorter version was measured before."""
    summarize = SummarizeHistory(numbered_summaries(), tokens=500, keep=50).with_execution_scope(ExecutionScope())
    start = with_steps(with_question(AgentState.start(), "the task"), Message.assistant("first"))
    states = [with_steps(start, Message.assistant(text), Message.assistant("last")) for text in ("brief", PAGE * 9)]
    points = [asyncio.run(summarize.before_step(BeforeStep(state))) for state in states]
    assert [Summary.of(point.state) is not None for point in points] == [False, True]


def test_an_interceptor_of_equal_priority_that_is_registered_before_stops_first() -> None:
    """A stop in the step in which the conversation became too long makes the summary unnecessary."""

    class StopAtLength(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.stop("enough") if point.state.step_count == 2 else point

    summarizing = numbered_summaries()
    inference = ScriptedInference(*[ToolCall("c", "read", f'{{"number": {n}}}') for n in range(2)], "done")
    AgentLoop(
        ToolCallingDriver(inference),
        [read],
        interceptors=[StopAtLength(), SummarizeHistory(summarizing, tokens=50, keep=0)],
    ).execute_sync("the task")
    assert not summarizing.requests


def test_a_copy_that_is_bound_to_a_compiler_is_equal() -> None:
    """Whose messages it measures is no part of what it is."""
    summarize = SummarizeHistory(numbered_summaries(), tokens=1)
    assert summarize.with_compiler(WholeConversation()) == summarize


def test_invalid_limits_are_refused() -> None:
    """Construction raises an error that names the parameter."""
    with pytest.raises(ConfigurationError, match="keep has to be at least 0 and less than tokens=100"):
        SummarizeHistory(numbered_summaries(), tokens=100, keep=100)
    with pytest.raises(ValueError, match="tokens"):
        SummarizeHistory(numbered_summaries(), tokens=0)


@given(
    st.sampled_from([ConversationWithCurrentToolTrace(), WholeConversation(), SlidingWindow(5)]),
    growing_states(max_steps=8),
    st.data(),
)
def test_whatever_a_summary_covers_requests_extend_each_other_until_the_next(
    compiler: CanCompileMessages, states: list[AgentState], data: st.DataObject
) -> None:
    """The other messages are shown unchanged, and a bound compiler shows the same."""
    bound = bind(compiler)
    length = data.draw(st.integers(1, len(states[-1].messages)))
    summary = Summary("in short", data.draw(st.integers(1, length)), length)
    after = [summary.save_to(state) for state in states if len(state.messages) >= length]
    shown = [list(compiler.compile(state)) for state in after]
    assert [list(bound.compile(state)) for state in after] == shown
    if not isinstance(compiler, SlidingWindow):
        assert all(extends(later, earlier) for earlier, later in pairwise(shown))
    for state, messages in zip(after, shown, strict=True):
        assert sum(message == summary.message for message in messages) == 1
        assert is_subsequence([message for message in messages if message != summary.message], state.messages)


def test_an_invalid_summary_is_not_shown() -> None:
    """A summary of more messages than the conversation has is ignored, and so is any other value under its key."""
    state = with_question(AgentState.start(), "go")
    for noted in (Summary("x", 5, 6).save_to(state), state.with_extension("agentloop.summary", "mine")):
        assert Summary.of(noted) is None
        assert list(WholeConversation().compile(noted)) == [Message.user("go")]
    incomplete = state.with_extension("agentloop.summary", {"text": "x"})
    assert Summary.of(incomplete) is None
