"""Windows over conversations: of messages, and of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.compilers import ConversationWithCurrentToolTrace, SlidingWindow, TokenWindow, WholeConversation
from agentloop.compilers.retained import RetainedMessages
from agentloop.compilers.window import WindowCompiler
from agentloop.contracts import CanCompileMessages
from agentloop.errors import ConfigurationError
from agentloop.testing.strategies import agent_states
from agentloop.values import AgentState, Image, Message
from agentloop.values.estimates import message_tokens
from agentloop.values.serialization import from_json, to_json
from tests.compilers.conversations import (
    asked,
    begins_with,
    bound,
    called,
    growing_states,
    is_subsequence,
    last_question,
    told,
)

ANSWER = Message.assistant("done")
LEAST = 4
"""What stays beyond any bound in a conversation without system messages: two questions, the newest message, one to spare."""


@st.composite
def windows(draw: st.DrawFn) -> WindowCompiler:
    """Windows of every size, over every compiler."""
    of = draw(st.sampled_from([ConversationWithCurrentToolTrace(), WholeConversation()]))
    if draw(st.booleans()):
        most = draw(st.integers(1, 12))
        return SlidingWindow(most, keep=draw(st.none() | st.integers(1, most)), of=of)
    most = draw(st.integers(1, 200))
    return TokenWindow(most, keep=draw(st.none() | st.integers(1, most)), of=of)


def epochs(compiler: CanCompileMessages) -> Callable[[AgentState], object]:
    """Return what tells the epochs of a window."""
    assert isinstance(compiler, WindowCompiler)
    return compiler.epoch


@given(windows(), growing_states())
def test_what_is_shown_only_grows_within_an_epoch(window: WindowCompiler, states: list[AgentState]) -> None:
    """Requests extend each other until an epoch begins, and every epoch is another one than all before (law 13)."""
    keeps = bound(window)
    seen = [window.epoch(states[0])]
    for before, after in pairwise(states):
        epoch = window.epoch(after)
        assert epochs(keeps)(after) == epoch
        if epoch == seen[-1]:
            assert begins_with(window.compile(after), window.compile(before))
        else:
            assert epoch not in seen
            assert epoch.reason
            seen.append(epoch)


@given(windows(), growing_states())
def test_whole_messages_of_the_state_are_shown_in_their_order(window: WindowCompiler, states: list[AgentState]) -> None:
    """Nothing is changed, so no call is parted from its result (law 2); the last question and the newest message stay."""
    for state in states:
        shown = list(window.compile(state))
        whole = list(window.of.compile(state))
        assert is_subsequence(shown, whole)
        assert shown[-1:] == whole[-1:]
        question = last_question(whole)
        assert question is None or any(one is question for one in shown)
        leading = next((at for at, one in enumerate(whole) if one.role != "system"), len(whole))
        assert shown[:leading] == whole[:leading]


@given(windows(), growing_states())
def test_a_bound_window_shows_what_an_unbound_one_shows(window: WindowCompiler, states: list[AgentState]) -> None:
    """What is kept of an execution changes nothing, in whatever order its states come."""
    keeps = bound(window)
    for state in [*states, *reversed(states), *states[::2]]:
        assert list(keeps.compile(state)) == list(window.compile(state))


@given(windows(), agent_states())
def test_compiling_is_pure(window: WindowCompiler, state: AgentState) -> None:
    """Equal states give equal messages, and the state is as before (laws 3 and 8)."""
    before = to_json(state)
    made = list(window.compile(state))
    assert list(window.compile(from_json(before, AgentState))) == made
    assert to_json(state) == before


@given(st.integers(1, 20), growing_states(most=8))
def test_a_window_of_messages_shows_no_more(most: int, states: list[AgentState]) -> None:
    """Its bound holds, but for what always stays."""
    window = SlidingWindow(most)
    for state in states:
        whole = list(window.of.compile(state))
        leading = next((at for at, one in enumerate(whole) if one.role != "system"), len(whole))
        assert len(window.compile(state)) <= max(most, leading + LEAST - 1)


@given(st.integers(1, 400), growing_states(most=8))
def test_a_budget_is_kept(most: int, states: list[AgentState]) -> None:
    """What is shown fits, unless nothing is left but what always stays."""
    window = TokenWindow(most)
    for state in states:
        shown = list(window.compile(state))
        leading = next((at for at, one in enumerate(shown) if one.role != "system"), len(shown))
        assert sum(map(message_tokens, shown)) <= most or len(shown) <= leading + LEAST - 1


def run_of(steps: int) -> list[AgentState]:
    """Return the states of a run with one call in each step."""
    state = asked(AgentState.start(), "go")
    states = [state]
    for step in range(steps):
        state = told(state, called("find", f"found {step}", number=step))
        states.append(state)
    return states


def test_the_window_moves_in_leaps() -> None:
    """Between two breaks are as many steps as there is room between the marks, so that the cache serves most requests."""
    window = SlidingWindow(20, keep=8)
    states = run_of(100)
    breaks = sum(window.epoch(one) != window.epoch(other) for one, other in pairwise(states))
    assert breaks == (101 - 8) // (21 - 8)
    sizes = [len(window.compile(state)) for state in states]
    assert max(sizes) == 20
    assert min(sizes[21:]) == 8


def test_the_question_stays_before_the_newest_steps() -> None:
    """The model always knows what it works on, and the request begins with a user's message."""
    window = SlidingWindow(5, keep=3)
    states = run_of(12)
    question = states[0].messages[0]
    for state in states:
        shown = window.compile(state)
        assert shown[0] is question
        assert is_subsequence(shown[1:], state.messages[1 - len(shown) :])


def test_a_message_on_the_way_stays_beside_the_question() -> None:
    """What the user says while the work goes on does not push the question out."""
    state = told(asked(AgentState.start(), "the task"), *[called("find", n, n=n) for n in range(3)])
    state = told(state.with_message("hurry"), *[called("find", n, n=n) for n in range(3, 9)])
    shown = SlidingWindow(4, keep=3).compile(state)
    assert [one.text for one in shown if one.role == "user"] == ["the task", "hurry"]


def test_an_old_question_goes_with_its_turn() -> None:
    """A chat does not keep what is over."""
    state = AgentState.start()
    for number in range(10):
        state = told(asked(state, f"question {number}"), Message.assistant(f"answer {number}"))
    shown = SlidingWindow(6, keep=4).compile(asked(state, "last"))
    expected = ["question 7", "answer 7", "question 8", "answer 8", "question 9", "answer 9", "last"]
    assert [one.text for one in shown] == expected[-len(shown) :]
    assert 4 <= len(shown) <= 6


def test_instructions_at_the_beginning_stay() -> None:
    """System messages before the first other message are shown whatever is dropped."""
    rules = [Message.system("be brief"), Message.system("be kind")]
    state = asked(AgentState.start().with_messages([*rules, Message.user("old"), ANSWER]), "go")
    state = told(state, *[called("find", n, n=n) for n in range(20)])
    assert list(SlidingWindow(6).compile(state)[:3]) == [*rules, Message.user("go")]


def test_the_system_prompt_takes_part_of_the_budget() -> None:
    """A longer prompt leaves less room, and nothing is shown of it among the messages."""
    state = run_of(30)[-1]
    short = TokenWindow(300).compile(state)
    long = TokenWindow(300).compile(state.with_system_prompt("word " * 150))
    assert len(long) < len(short)


def test_an_estimate_of_ones_own_is_asked_once_for_each_message() -> None:
    """Whatever the length of the run, a bound window weighs each message once (law 20)."""
    asked_of: Counter[int] = Counter()

    def estimate(message: Message) -> int:
        asked_of[id(message)] += 1
        return 10

    window = bound(TokenWindow(100, keep=50, estimate=estimate))
    states = run_of(40)
    for state in states:
        assert len(window.compile(state)) <= 10
    assert len(asked_of) == 41
    assert set(asked_of.values()) == {1}


@pytest.mark.parametrize("steps", [20, 40, 80])
def test_a_window_looks_at_each_message_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Messages that are passed are passed once, in a run of any length (law 20)."""
    passed: list[int] = []
    move = RetainedMessages.move

    def moving(self: RetainedMessages, messages: list[Message]) -> None:
        passed.append(self.place)
        move(self, messages)

    monkeypatch.setattr(RetainedMessages, "move", moving)
    window = bound(SlidingWindow(10))
    for state in run_of(steps):
        window.compile(state)
    assert len(passed) == len(set(passed)) <= steps + 1


def test_media_are_not_free() -> None:
    """A picture takes part of the budget, also one that a tool returned."""
    picture = Image(media_type="image/png", data=b"x")
    assert message_tokens(Message.user("look", picture)) > message_tokens(Message.user("look")) + 1000
    seen = called("look", "a picture")
    (exchange,) = seen.exchanges
    shown = evolve(exchange, execution=evolve(exchange.execution, content=(picture,)))
    assert message_tokens(seen.with_parts([shown])) > message_tokens(seen) + 1000


def test_a_window_over_a_compiler_of_ones_own() -> None:
    """Any compiler can be looked at through a window; one that tells no epochs has none but the window's."""

    class Backwards(CanCompileMessages):
        def compile(self, state: AgentState) -> list[Message]:
            return [message for message in state.messages if message.role == "user"]

    state = AgentState.start("a")
    for text in "bcdefgh":
        state = state.with_message(text)
    window = SlidingWindow(4, of=Backwards())
    assert [one.text for one in window.compile(state)][-1] == "h"
    assert len(window.compile(state)) <= 4
    assert window.epoch(state).dropped == 8 - len(window.compile(state))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlidingWindow(0), "at least 1 of the messages"),
        (lambda: SlidingWindow(4, keep=5), "keeps between 1 and 4"),
        (lambda: SlidingWindow(4, keep=0), "keeps between 1 and 4"),
        (lambda: TokenWindow(0), "at least 1 of the tokens"),
        (lambda: TokenWindow(10, keep=11), "keeps between 1 and 10"),
    ],
)
def test_a_window_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    """When it is made, and in words."""
    with pytest.raises(ConfigurationError, match=message):
        make()
