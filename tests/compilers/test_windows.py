"""Windows over conversations: of messages, and of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.compilers import ConversationWithCurrentToolTrace, SlidingWindow, TokenWindow, WholeConversation
from agentloop.compilers.retained import RetainedMessages
from agentloop.compilers.window import WindowCompiler
from agentloop.contracts import CanCompileMessages
from agentloop.errors import ConfigurationError
from agentloop.values import AgentState, Image, Message
from agentloop.values.estimates import message_tokens
from agentloop.values.serialization import from_json, to_json
from tests.compilers.conversations import (
    bind,
    call_message,
    extends,
    growing_states,
    is_subsequence,
    last_question,
    with_question,
    with_steps,
)
from tests.generated import examples
from tests.strategies import agent_states

ANSWER = Message.assistant("done")
DEAR = settings(max_examples=examples(60, share=6))
"""Conversations of many steps, each of which has a hundred values."""
MIN_RETAINED = 4
"""The messages that stay in any conversation without system messages: two questions, the newest message, and one to spare."""


@st.composite
def window_compilers(draw: st.DrawFn) -> WindowCompiler:
    """Generate windows of every size, over every compiler."""
    inner = draw(st.sampled_from([ConversationWithCurrentToolTrace(), WholeConversation()]))
    if draw(st.booleans()):
        maximum = draw(st.integers(1, 12))
        return SlidingWindow(maximum, keep=draw(st.none() | st.integers(1, maximum)), inner=inner)
    maximum = draw(st.integers(1, 200))
    return TokenWindow(maximum, keep=draw(st.none() | st.integers(1, maximum)), inner=inner)


def leading_count(messages: Sequence[Message]) -> int:
    """Return how many system messages a conversation begins with."""
    return next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))


@DEAR
@given(window_compilers(), growing_states())
def test_what_is_shown_only_grows_within_an_epoch(window: WindowCompiler, states: list[AgentState]) -> None:
    """Requests extend each other until an epoch begins, and every epoch differs from all before it (law 13)."""
    bound = bind(window)
    assert isinstance(bound, WindowCompiler)
    seen = [window.epoch(states[0])]
    for before, after in pairwise(states):
        epoch = window.epoch(after)
        assert bound.epoch(after) == epoch
        if epoch == seen[-1]:
            assert extends(window.compile(after), window.compile(before))
        else:
            assert epoch not in seen
            assert epoch.reason
            seen.append(epoch)


@DEAR
@given(window_compilers(), growing_states())
def test_whole_messages_of_the_state_are_shown_in_their_order(window: WindowCompiler, states: list[AgentState]) -> None:
    """No message is changed, so calls stay with their results (law 2); the last question and the newest message stay."""
    for state in states:
        shown = list(window.compile(state))
        whole = list(window.inner.compile(state))
        assert is_subsequence(shown, whole)
        assert shown[-1:] == whole[-1:]
        question = last_question(whole)
        assert question is None or any(message is question for message in shown)
        leading = leading_count(whole)
        assert shown[:leading] == whole[:leading]


@DEAR
@given(window_compilers(), growing_states())
def test_a_bound_window_shows_what_an_unbound_one_shows(window: WindowCompiler, states: list[AgentState]) -> None:
    """The cache does not change the result, in whatever order the states are compiled."""
    bound = bind(window)
    for state in [*states, *reversed(states), *states[::2]]:
        assert list(bound.compile(state)) == list(window.compile(state))


@given(window_compilers(), agent_states())
def test_compiling_is_pure(window: WindowCompiler, state: AgentState) -> None:
    """Equal states give equal messages, and the state does not change (laws 3 and 8)."""
    before = to_json(state)
    compiled = list(window.compile(state))
    assert list(window.compile(from_json(before, AgentState))) == compiled
    assert to_json(state) == before


@DEAR
@given(st.integers(1, 20), growing_states(max_steps=8))
def test_a_window_of_messages_shows_no_more(maximum: int, states: list[AgentState]) -> None:
    """The maximum is exceeded only by messages that always stay."""
    window = SlidingWindow(maximum)
    for state in states:
        whole = list(window.inner.compile(state))
        leading = leading_count(whole)
        assert len(window.compile(state)) <= max(maximum, leading + MIN_RETAINED - 1)


@DEAR
@given(st.integers(1, 400), growing_states(max_steps=8))
def test_a_window_of_tokens_shows_no_more(maximum: int, states: list[AgentState]) -> None:
    """The maximum is exceeded only when nothing is left but the messages that always stay."""
    window = TokenWindow(maximum)
    for state in states:
        shown = list(window.compile(state))
        leading = leading_count(shown)
        assert sum(map(message_tokens, shown)) <= maximum or len(shown) <= leading + MIN_RETAINED - 1


def run_states(steps: int) -> list[AgentState]:
    """Return the states of a run with one call in each step."""
    state = with_question(AgentState.start(), "go")
    states = [state]
    for step in range(steps):
        state = with_steps(state, call_message("find", f"found {step}", number=step))
        states.append(state)
    return states


def test_a_full_window_drops_many_messages_at_once() -> None:
    """Two epochs are as many steps apart as there is room between both limits, so the cache serves most requests."""
    window = SlidingWindow(20, keep=8)
    states = run_states(100)
    epoch_changes = sum(window.epoch(before) != window.epoch(after) for before, after in pairwise(states))
    assert epoch_changes == (101 - 8) // (21 - 8)
    sizes = [len(window.compile(state)) for state in states]
    assert max(sizes) == 20
    assert min(sizes[21:]) == 8


def test_the_question_stays_before_the_newest_steps() -> None:
    """The model always sees its task, and the request begins with a user's message."""
    window = SlidingWindow(5, keep=3)
    states = run_states(12)
    question = states[0].messages[0]
    for state in states:
        shown = window.compile(state)
        assert shown[0] is question
        assert is_subsequence(shown[1:], state.messages[1 - len(shown) :])


def test_a_message_during_the_work_does_not_displace_the_question() -> None:
    """A message that the user sends while the agent works is shown together with the question."""
    state = with_steps(with_question(AgentState.start(), "the task"), *[call_message("find", n, n=n) for n in range(3)])
    state = with_steps(state.with_message("hurry"), *[call_message("find", n, n=n) for n in range(3, 9)])
    shown = SlidingWindow(4, keep=3).compile(state)
    assert [message.text for message in shown if message.role == "user"] == ["the task", "hurry"]


def test_the_first_question_of_a_conversation_that_begins_with_calls_stays() -> None:
    """Nobody asked before these calls, so the question opens its turn, though it follows results."""
    state = with_question(AgentState.start().with_message(call_message("look", "a")), "go")
    state = with_steps(state, Message.assistant("working on it"))
    assert [message.text for message in SlidingWindow(1).compile(state)] == ["go", "working on it"]


def test_an_old_question_is_dropped_with_its_turn() -> None:
    """In a chat, the questions of earlier turns do not stay."""
    state = AgentState.start()
    for number in range(10):
        state = with_steps(with_question(state, f"question {number}"), Message.assistant(f"answer {number}"))
    shown = SlidingWindow(6, keep=4).compile(with_question(state, "last"))
    expected = ["question 7", "answer 7", "question 8", "answer 8", "question 9", "answer 9", "last"]
    assert [message.text for message in shown] == expected[-len(shown) :]
    assert 4 <= len(shown) <= 6


def test_instructions_at_the_beginning_stay() -> None:
    """System messages before the first other message always stay."""
    rules = [Message.system("be brief"), Message.system("be kind")]
    state = with_question(AgentState.start().with_messages([*rules, Message.user("old"), ANSWER]), "go")
    state = with_steps(state, *[call_message("find", n, n=n) for n in range(20)])
    assert list(SlidingWindow(6).compile(state)[:3]) == [*rules, Message.user("go")]


def test_the_system_prompt_counts() -> None:
    """A longer system prompt leaves less room for messages."""
    state = run_states(30)[-1]
    short = TokenWindow(300).compile(state)
    long = TokenWindow(300).compile(state.with_system_prompt("word " * 150))
    assert len(long) < len(short)


def test_a_custom_estimate_is_called_once_for_each_message() -> None:
    """Whatever the length of the run, a bound window measures each message once (law 20)."""
    calls: Counter[int] = Counter()

    def estimate(message: Message) -> int:
        calls[id(message)] += 1
        return 10

    window = bind(TokenWindow(100, keep=50, estimate=estimate))
    states = run_states(40)
    for state in states:
        assert len(window.compile(state)) <= 10
    assert len(calls) == 41
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("steps", [20, 40, 80])
def test_a_window_reads_each_message_once(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The position of the retained messages passes each message once, in a run of any length (law 20)."""
    read: list[int] = []
    original = RetainedMessages.advance

    def advance(self: RetainedMessages, messages: list[Message]) -> None:
        read.append(self.position)
        original(self, messages)

    monkeypatch.setattr(RetainedMessages, "advance", advance)
    window = bind(SlidingWindow(10))
    for state in run_states(steps):
        window.compile(state)
    assert len(read) == len(set(read)) <= steps + 1


def test_media_count() -> None:
    """A picture has tokens, also one that a tool returned."""
    picture = Image(media_type="image/png", data=b"x")
    assert message_tokens(Message.user("look", picture)) > message_tokens(Message.user("look")) + 1000
    message = call_message("look", "a picture")
    (exchange,) = message.exchanges
    with_picture = evolve(exchange, execution=evolve(exchange.execution, content=(picture,)))
    assert message_tokens(message.with_parts([with_picture])) > message_tokens(message) + 1000


def test_the_inner_compiler_may_be_a_custom_one() -> None:
    """A window can show what any compiler shows; if that has no epochs, only the window has."""

    class UserMessages(CanCompileMessages):
        def compile(self, state: AgentState) -> list[Message]:
            return [message for message in state.messages if message.role == "user"]

    state = AgentState.start("a")
    for text in "bcdefgh":
        state = state.with_message(text)
    window = SlidingWindow(4, inner=UserMessages())
    assert window.compile(state)[-1].text == "h"
    assert len(window.compile(state)) <= 4
    assert window.epoch(state).dropped == 8 - len(window.compile(state))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: SlidingWindow(0), "at least 1 of the messages"),
        (lambda: SlidingWindow(4, keep=5), "keeps between 1 and 4"),
        (lambda: SlidingWindow(4, keep=0), "keeps between 1 and 4"),
        (lambda: TokenWindow(0), "at least 1 of the tokens"),
        (lambda: TokenWindow(10, keep=11), "keeps between 1 and 10"),
    ],
)
def test_an_invalid_window_is_refused(create: Callable[[], object], message: str) -> None:
    """Construction raises an error that names the valid numbers."""
    with pytest.raises(ConfigurationError, match=message):
        create()
