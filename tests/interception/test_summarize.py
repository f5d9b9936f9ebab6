"""Summaries of the beginning of a conversation, and what the compilers make of them."""

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
from agentloop.errors import ConfigurationError
from agentloop.events import ContextEpochBegan, ContextSummarized, TokenUsageReported
from agentloop.interception import SummarizeHistory
from agentloop.testing import CountingIds, ManualClock
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
    asked,
    begins_with,
    bound,
    called,
    growing_states,
    is_subsequence,
    told,
)

PAGE = "a page of text " * 30
SUMMED = Usage(100, 20, 0, 0, 0)


@tool(effect="pure")
async def read(number: int) -> str:
    """Read a page."""
    return f"{number}: {PAGE}"


def numbered() -> ScriptedInference:
    """Make a model whose summaries are numbered."""
    return ScriptedInference(*[f"summary {number}" for number in range(1, 30)], usage=SUMMED)


def driven(
    steps: int, summarizing: CanInfer, start: AgentState | str = "the task", **parts: Any
) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run so many steps with a call each, and an answer."""
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


def test_a_long_run_goes_on_from_a_summary() -> None:
    """The model is shown its question, the summary and the newest messages, and never more than the bound."""
    summarizing = numbered()
    final, requests, _ = driven(30, summarizing)
    assert final.status is ExecutionStatus.COMPLETED
    last = requests[-1].messages
    assert "summary" in last[0].text
    assert last[1] == Message.user("the task")
    assert is_subsequence(last[2:], final.messages)
    assert len(last) < 8
    assert len(summarizing.requests) > 3
    assert f"summary {len(summarizing.requests)}" in last[0].text


def test_the_state_keeps_every_message() -> None:
    """A summary is a note in the metadata; the conversation is as it is without."""
    final, _, _ = driven(12, numbered())
    plain = AgentLoop(
        ToolCallingDriver(ScriptedInference(*[ToolCall("c", "read", f'{{"number": {n}}}') for n in range(12)], "done")),
        [read],
        clock=ManualClock(),
        ids=CountingIds(),
    ).execute_sync("the task")
    assert final.messages == plain.messages
    assert from_json(to_json(final), AgentState) == final


def test_each_summary_is_made_of_the_last_and_what_came_after_it() -> None:
    """No message is summarized twice, and none is forgotten between two summaries."""
    summarizing = numbered()
    driven(30, summarizing)
    texts = [request.messages[0].text for request in summarizing.requests]
    for number, text in enumerate(texts[1:], 1):
        assert f"summary {number}\n" in text
        assert f"summary {number - 1}\n" not in text
    numbers = [n for text in texts for n in range(30) if f'called read with {{"number": {n}}}' in text]
    assert numbers == sorted(set(numbers)) == list(range(len(numbers)))
    assert all(request.tools == () for request in summarizing.requests)


def test_the_tokens_of_summaries_are_counted() -> None:
    """The execution's usage is that of its steps and its summaries (law 6), and limits see it."""
    summarizing = numbered()
    final, _, events = driven(12, summarizing)
    steps = sum([step.usage for step in final.steps], Usage.none())
    summaries = sum([SUMMED for _ in summarizing.requests], Usage.none())
    assert final.usage == steps + summaries
    told_of = [event for event in events if isinstance(event, ContextSummarized)]
    assert [event.usage for event in told_of] == [SUMMED] * len(summarizing.requests)
    assert [event for event in events if isinstance(event, TokenUsageReported)][-1].total == final.usage
    stopped, _, _ = driven(12, numbered(), interceptors=[TokenLimit(150)])
    assert stopped.stop_signal is not None
    assert stopped.stop_signal.reason.value == "token_limit"
    assert stopped.step_count < 10


def test_a_summary_begins_an_epoch_and_within_it_requests_extend_each_other() -> None:
    """The events tell the summary first, then the epoch, and why (law 13)."""
    _, requests, events = driven(30, numbered())
    breaks = sum(not begins_with(later.messages, one.messages) for one, later in pairwise(requests))
    told_of = [event for event in events if isinstance(event, ContextSummarized | ContextEpochBegan)]
    summaries, epochs = told_of[::2], told_of[1::2]
    assert len(summaries) == len(epochs) == breaks > 3
    for summary, epoch in zip(summaries, epochs, strict=True):
        assert isinstance(summary, ContextSummarized)
        assert isinstance(epoch, ContextEpochBegan)
        assert epoch.reason == "the conversation was summarized"
        assert epoch.dropped == summary.covered - 1  # the question stays
    assert breaks < 15


def test_the_next_execution_goes_on_from_the_summary() -> None:
    """What is not summarized of the earlier trace is left out, as by default; the summary stays."""
    first, _, _ = driven(12, numbered())
    summarizing = numbered()
    _, requests, events = driven(2, summarizing, first.with_message("again"))
    shown = requests[0].messages
    assert "summary" in shown[0].text
    assert [message.text for message in shown[1:]] == ["the task", "done", "again"]
    assert not summarizing.requests
    (epoch,) = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert epoch.reason == "another execution has begun"


def test_a_window_keeps_the_summary() -> None:
    """It stands at the beginning like instructions do."""
    _, requests, _ = driven(30, numbered(), compiler=SlidingWindow(4, keep=3))
    assert all("summary" in request.messages[0].text for request in requests[8:])
    assert all(any(one.text == "the task" for one in request.messages) for request in requests)


def test_the_summarizer_sees_text_and_no_thoughts() -> None:
    """Calls and results are written down, media named, reasoning left out; errors are told."""
    summarizing = numbered()
    thought = Message.assistant(Reasoning("secret thoughts"), "spoken words " * 300)
    state = told(asked(AgentState.start(), "the task"), thought, called("find", "found it", q=1))
    point = BeforeStep(told(state, Message.assistant("later")))
    interceptor = SummarizeHistory(summarizing, tokens=100, keep=20)
    made = asyncio.run(interceptor.before_step(point))
    text = summarizing.requests[0].messages[0].text
    assert "spoken words" in text
    assert "secret" not in text
    assert 'called find with {"q":1}; succeeded: found it' in text
    assert Summary.of(made.state) == Summary("summary 1", 3, 4)


def test_a_short_conversation_is_not_summarized() -> None:
    """Nothing is asked, and the point is the one that was given."""
    summarizing = numbered()
    final, requests, _ = driven(2, summarizing)
    assert not summarizing.requests
    assert Summary.of(final) is None
    assert len(requests[-1].messages) == 3


def test_a_summary_that_does_not_come_stops_the_execution() -> None:
    """With an error that says so; what was spent is counted."""
    silent = ScriptedInference(InferenceResponse((Text("  "),), FinishReason.LENGTH, SUMMED))
    final, _, _ = driven(12, silent)
    assert final.status is ExecutionStatus.FAILED
    assert final.stop_signal is not None
    assert "gave no summary; it ended with length" in final.stop_signal.message
    assert final.usage == sum([step.usage for step in final.steps], SUMMED)


def test_a_summarizer_that_fails_fails_the_execution() -> None:
    """The state holds all that was done before, and the error."""
    final, _, _ = driven(12, ScriptedInference(RuntimeError("no connection")))
    assert final.status is ExecutionStatus.FAILED
    assert "no connection" in final.errors[0].message
    assert final.step_count > 3


def test_an_execution_that_is_stopped_is_not_summarized() -> None:
    """Nobody would read it."""

    class Stop(Interceptor):
        priority = 1

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.stop("enough") if point.state.step_count == 8 else point

    summarizing = numbered()
    _, _, events = driven(12, summarizing, interceptors=[Stop()])
    assert all(event.step_number < 9 for event in events if isinstance(event, ContextSummarized))


@pytest.mark.parametrize("steps", [10, 40])
def test_each_message_is_weighed_once(steps: int) -> None:
    """Whatever the length of the run (law 20)."""
    weighed: list[int] = []
    kept: list[Message] = []

    def estimate(message: Message) -> int:
        weighed.append(id(message))
        kept.append(message)
        return 10

    inference = ScriptedInference(*[ToolCall("c", "read", f'{{"number": {step}}}') for step in range(steps)], "done")
    summarize = SummarizeHistory(numbered(), tokens=100, keep=50, estimate=estimate)
    final = AgentLoop(ToolCallingDriver(inference), [read], interceptors=[summarize]).execute_sync("go")
    own = {id(message) for message in final.messages}
    of_messages = [one for one in weighed if one in own]
    assert len(of_messages) == len(set(of_messages)) == len(final.messages) - 1
    assert len(weighed) <= 2 * len(final.messages)  # beside them the summary, at each step


def test_a_summarizer_that_cannot_be_is_refused() -> None:
    """When it is made."""
    with pytest.raises(ConfigurationError, match="less than 100 can be kept"):
        SummarizeHistory(numbered(), tokens=100, keep=100)
    with pytest.raises(ValueError, match="tokens"):
        SummarizeHistory(numbered(), tokens=0)


@given(
    st.sampled_from([ConversationWithCurrentToolTrace(), WholeConversation(), SlidingWindow(5)]),
    growing_states(most=8),
    st.data(),
)
def test_whatever_a_summary_covers_what_is_shown_only_grows_until_the_next(
    compiler: CanCompileMessages, states: list[AgentState], data: st.DataObject
) -> None:
    """The rest is shown as it is, the last question stays, and a bound compiler shows the same."""
    keeps = bound(compiler)
    at = data.draw(st.integers(1, len(states[-1].messages)))
    summary = Summary("in short", data.draw(st.integers(1, at)), at)
    after = [summary.save_to(state) for state in states if len(state.messages) >= at]
    shown = [list(compiler.compile(state)) for state in after]
    assert [list(keeps.compile(state)) for state in after] == shown
    if not isinstance(compiler, SlidingWindow):
        assert all(begins_with(later, one) for one, later in pairwise(shown))
    for state, messages in zip(after, shown, strict=True):
        assert sum(message == summary.message for message in messages) == 1
        assert is_subsequence([message for message in messages if message != summary.message], state.messages)


def test_a_summary_of_more_than_there_is_is_not_shown() -> None:
    """An interceptor may have shortened the conversation; and what else stands under the key is none."""
    state = asked(AgentState.start(), "go")
    for noted in (Summary("x", 5, 6).save_to(state), state.with_extension("agentloop.summary", "mine")):
        assert Summary.of(noted) is None
        assert list(WholeConversation().compile(noted)) == [Message.user("go")]
    incomplete = state.with_extension("agentloop.summary", {"text": "x"})
    assert Summary.of(incomplete) is None
