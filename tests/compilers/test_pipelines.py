"""Old results that are cleared, and compilers composed of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from operator import or_

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, Message, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.compilers import (
    ClearOldResults,
    ConversationWithCurrentToolTrace,
    SlidingWindow,
    TokenWindow,
    WholeConversation,
)
from agentloop.contracts import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.can_accept import CanAcceptTools
from agentloop.contracts.can_compile_messages import CompilerPipeline
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError
from agentloop.events import ContextEpochBegan, ContextSummarized
from agentloop.policies import SummarizeHistory
from agentloop.testing import CountingIds, DriverKit, ManualClock
from agentloop.tools import read_result
from agentloop.values import Event, InferenceRequest
from agentloop.values.epochs import NO_EPOCH
from agentloop.values.estimates import message_tokens
from tests.compilers.conversations import bind, call_message, extends, growing_states, with_question, with_steps
from tests.generated import examples

PAGE = "a page of text " * 60
SUMMARIZE = SummarizeHistory(ScriptedInference(*["what was seen"] * 20), tokens=1_500)


@tool(effect="pure")
async def look(number: int) -> str:
    """Look."""
    return f"{number}: {PAGE}"


@frozen
class Shouting(CanCompileMessages):
    """A compiler of a user: it shows all that the user says in capitals."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return [Message.user(m.text.upper()) if m.role == "user" and not m.exchanges else m for m in state.messages]


@frozen
class WithoutAnswers(CanCompileMessages):
    """Another compiler of a user: it leaves answers without calls out."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return [m for m in state.messages if m.role != "assistant" or m.exchanges]


def run_steps(
    compiler: CanCompileMessages, steps: int, *tools: object, summaries: int = 0
) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run so many steps with one call each, and a final answer."""
    calls = [ToolCall(f"c{step}", "look", f'{{"number": {step}}}') for step in range(steps)]
    inference = ScriptedInference(*calls, "done")
    loop = AgentLoop(
        ToolCallingDriver(inference),
        [look, *tools],  # type: ignore[list-item]  # tools
        compiler=compiler,
        max_steps=steps + 1,
        clock=ManualClock(),
        ids=CountingIds(),
    )
    events: list[Event] = []
    loop.wiretap(events.append)
    state = loop.execute_sync("go", execution_id="run").raise_for_status()
    return state, inference.requests, events


def result_texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the results in these messages."""
    return [exchange.execution.text for message in messages for exchange in message.exchanges]


def count_breaks(requests: list[InferenceRequest]) -> int:
    """Count the requests that do not extend the previous one."""
    return sum(later.messages[: len(earlier.messages)] != earlier.messages for earlier, later in pairwise(requests))


# --- clearing ---------------------------------------------------------------------------------------------------


def test_old_results_are_cleared_and_calls_stay() -> None:
    """The notice has the reference where a tool reads results; the state keeps all."""
    state, requests, _ = run_steps(ClearOldResults(above=1_500, keep=2), 8, read_result)
    shown = requests[-1].messages
    texts = result_texts(shown)
    assert [exchange.call for message in shown for exchange in message.exchanges] == [
        exchange.call for message in state.messages for exchange in message.exchanges
    ]
    assert texts[0] == '[cleared: 903 bytes; read_result(reference="run/1/0") shows them again]'
    assert [text.startswith("[cleared") for text in texts][-2:] == [False, False]
    assert all(PAGE in text for text in result_texts(state.messages))
    assert sum(map(message_tokens, shown)) <= 1_500
    assert sum(map(message_tokens, state.messages)) > 1_800
    _, requests, _ = run_steps(ClearOldResults(above=1_500, keep=2), 8)
    assert result_texts(requests[-1].messages)[0] == "[cleared: 903 bytes]"


def test_a_cleared_result_is_read_by_its_reference() -> None:
    """What the notice names is what the tool reads."""
    calls = [ToolCall(f"c{step}", "look", f'{{"number": {step}}}') for step in range(8)]
    read = ToolCall("r", "read_result", '{"reference": "run/1/0"}')
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(*calls, read, "done")),
        [look, read_result],
        compiler=ClearOldResults(above=1_500),
    )
    state = loop.execute_sync("go", execution_id="run").raise_for_status()
    assert f"0: {PAGE[:300]}" in state.steps[8].executions[0].text


def test_each_epoch_of_clearing_is_announced_and_saves_enough() -> None:
    """Epochs are rare: each one saves at least a quarter of the limit (law 13)."""
    _, requests, events = run_steps(ClearOldResults(above=4_000, keep=2), 60)
    epochs = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert len(epochs) == count_breaks(requests)
    assert 2 < len(epochs) < 15
    assert [event.cleared for event in epochs] == sorted({event.cleared for event in epochs})
    assert all(event.dropped == 0 for event in epochs)
    sizes = [sum(map(message_tokens, request.messages)) for request in requests]
    for before, after in pairwise(range(len(requests))):
        if requests[after].messages[: len(requests[before].messages)] != requests[before].messages:
            assert sizes[before] - sizes[after] > 1_000 - 260


def test_results_that_the_model_has_not_seen_stay() -> None:
    """All results of the newest message stay, however few are kept; excluded tools and short results stay, too."""
    compiler = ClearOldResults(above=1, keep=0, at_least=1)
    first, newest = call_message("look", PAGE, number=1), call_message("look", PAGE, number=2)
    batch = Message.assistant(*first.exchanges, *newest.exchanges)
    state = with_steps(with_question(AgentState.start(), "go"), batch)
    assert result_texts(compiler.compile(state)) == [PAGE, PAGE]
    later = with_steps(state, call_message("look", "short", number=3), call_message("look", PAGE, number=4))
    assert result_texts(compiler.compile(later)) == ["[cleared: 900 bytes]"] * 2 + ["short", PAGE]
    excluding = ClearOldResults(above=1, keep=0, at_least=1, exclude="lo*")
    assert result_texts(excluding.compile(later)) == [PAGE, PAGE, "short", PAGE]


@pytest.mark.parametrize("wrong", [{"above": 0}, {"above": 10, "keep": -1}, {"above": 10, "at_least": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    """The mistake is named where the compiler is made."""
    with pytest.raises(ConfigurationError, match="above and at_least have to be"):
        ClearOldResults(**wrong)  # type: ignore[arg-type]  # numbers


# --- pipelines --------------------------------------------------------------------------------------------------


def test_a_composed_compiler_prints_its_parts_and_is_flat() -> None:
    """Compilers of users compose with each other and with those of the package."""
    pipeline = Shouting() | WithoutAnswers() | (SlidingWindow(4) | ClearOldResults(above=10))
    assert isinstance(pipeline, CompilerPipeline)
    assert [type(stage).__name__ for stage in pipeline.stages] == [
        "Shouting",
        "WithoutAnswers",
        "SlidingWindow",
        "ClearOldResults",
    ]
    assert repr(pipeline).startswith("Shouting() | WithoutAnswers() | SlidingWindow(")
    assert "Shouting() | WithoutAnswers()" in repr(AgentLoop.for_model(ScriptedInference(), compiler=pipeline))
    with pytest.raises(TypeError):
        SlidingWindow(4) | "SlidingWindow(4)"  # type: ignore[operator]  # the mistake


def test_each_stage_sees_what_the_one_before_shows() -> None:
    """The order of stages is the order of their effects."""
    state = AgentState.start().with_messages(
        [
            Message.user("one"),
            Message.assistant("two"),
            Message.user("three"),
            Message.assistant("four"),
            Message.user("five"),
        ]
    )
    compiled = [message.text for message in (Shouting() | WithoutAnswers() | SlidingWindow(2)).compile(state)]
    assert compiled == ["ONE", "FIVE"]
    assert [message.text for message in (WithoutAnswers() | Shouting()).compile(state)] == ["ONE", "THREE", "FIVE"]


STAGES = st.sampled_from(
    [
        lambda: ClearOldResults(above=40, keep=1),
        lambda: ClearOldResults(above=25, keep=0, at_least=1),
        lambda: SlidingWindow(4),
        lambda: TokenWindow(80),
        lambda: TokenWindow(50, keep=20),
        WholeConversation,
        ConversationWithCurrentToolTrace,
        Shouting,
    ]
)
READERS = Tools.of([look, read_result])


@settings(max_examples=examples(30))
@given(st.lists(STAGES, min_size=1, max_size=3), growing_states())
def test_within_an_epoch_requests_extend_each_other(
    stages: list[type[CanCompileMessages]], states: list[AgentState]
) -> None:
    """A new epoch of any stage differs from all before (law 13); a bound pipeline shows what an unbound one shows."""
    unbound = CompilerPipeline(tuple([make() for make in stages])).with_tools(READERS)
    bound = bind(unbound)
    assert isinstance(bound, CanMarkEpoch)
    seen = [bound.epoch(states[0])]
    for before, after in pairwise(states):
        epoch = bound.epoch(after)
        shown = bound.compile(after)
        assert epoch == unbound.epoch(after)
        assert list(shown) == list(unbound.compile(after))
        if epoch == seen[-1]:
            assert extends(shown, bound.compile(before))
        else:
            assert epoch not in seen
            assert epoch.reason
            seen.append(epoch)


@settings(max_examples=examples(30))
@given(st.lists(STAGES, min_size=1, max_size=3), growing_states())
def test_calls_stay_with_their_results_and_the_newest_message_is_shown(
    stages: list[type[CanCompileMessages]], states: list[AgentState]
) -> None:
    """No stage separates a call from its execution (law 2), and the state is not changed (law 3)."""
    pipeline = CompilerPipeline(tuple([make() for make in stages]))
    for state in states:
        before = state.messages
        shown = pipeline.compile(state)
        calls = {id(exchange.call) for message in state.messages for exchange in message.exchanges}
        assert all(id(exchange.call) in calls for message in shown for exchange in message.exchanges)
        assert all(
            exchange.execution.call == exchange.execution.call for message in shown for exchange in message.exchanges
        )
        if state.messages and state.messages[-1].exchanges:
            assert shown[-1] == state.messages[-1]
        assert state.messages is before


def test_a_pipeline_of_every_kind_runs_in_a_loop() -> None:
    """Each break of the prefix is announced, and the number of messages that the model sees is that of the event."""
    compiler = ClearOldResults(above=1_500, keep=1) | SlidingWindow(30) | TokenWindow(1_800)
    _, requests, events = run_steps(compiler, 60, read_result)
    epochs = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert len(epochs) == count_breaks(requests)
    assert any(event.cleared for event in epochs)
    assert any(event.dropped for event in epochs)
    by_step = {event.execution_id: event for event in epochs}
    assert by_step
    assert all(sum(map(message_tokens, request.messages)) <= 1_800 for request in requests)


def test_a_pipeline_reads_each_message_a_bounded_number_of_times() -> None:
    """Over a run, the work grows in proportion to its length (law 20)."""

    def measured(steps: int) -> int:
        count = 0

        def estimate(message: Message) -> int:
            nonlocal count
            count += 1
            return message_tokens(message)

        clearing = ClearOldResults(above=2_000, keep=2, estimate=estimate)
        run_steps(clearing | TokenWindow(2_500, estimate=estimate), steps)
        return count

    assert measured(80) < 2.6 * measured(40)


def test_summaries_measure_what_the_stages_before_show() -> None:
    """While clearing makes enough room, nothing is summarized; alone, a summary is shown, too."""

    def summaries(compiler: CanCompileMessages) -> tuple[int, list[InferenceRequest]]:
        _, requests, events = run_steps(compiler, 12)
        return sum(isinstance(event, ContextSummarized) for event in events), requests

    model = ScriptedInference(*["what was seen"] * 20)
    cleared, _ = summaries(ClearOldResults(above=1_000, keep=1) | SummarizeHistory(model, tokens=1_500))
    assert cleared == 0
    alone, requests = summaries(SummarizeHistory(model, tokens=1_500))
    assert alone > 0
    assert any("what was seen" in message.text for message in requests[-1].messages)
    behind, requests = summaries(
        TokenWindow(5_000) | ClearOldResults(above=2_600, keep=8) | SummarizeHistory(model, tokens=1_500)
    )
    assert behind > 0
    assert any("what was seen" in message.text for message in requests[-1].messages)
    assert sum(map(message_tokens, requests[-1].messages)) < 2_000


@pytest.mark.parametrize(
    ("stages", "prefix"),
    [
        ([SUMMARIZE], "WholeConversation() | "),
        ([SUMMARIZE, SlidingWindow(30)], "WholeConversation() | "),
        ([SlidingWindow(30), SUMMARIZE], ""),
        ([SlidingWindow(30), ClearOldResults(above=5_000)], ""),
        ([SlidingWindow(30)], ""),
    ],
    ids=lambda value: " | ".join(type(stage).__name__ for stage in value) if isinstance(value, list) else "",
)
def test_a_summary_has_a_compiler_before_it_that_shows_it(stages: list[CanCompileMessages], prefix: str) -> None:
    """A loop puts the whole conversation before a compiler that begins with a summary, and before no other one."""
    compiler = reduce(or_, stages)
    loop = AgentLoop(ToolCallingDriver(ScriptedInference()), compiler=compiler)
    assert repr(loop.compiler) == prefix + repr(compiler)
    if SUMMARIZE in stages:
        _, requests, _ = run_steps(compiler, 12)
        assert any("what was seen" in message.text for message in requests[-1].messages)


def test_a_pipeline_keeps_the_laws_of_drivers() -> None:
    """The kit of drivers accepts a driver with a composed compiler."""
    compiler = ClearOldResults(above=60, keep=1) | TokenWindow(200)
    assert isinstance(compiler, CanAcceptTools)
    assert compiler.epoch(AgentState.start("go")) == NO_EPOCH
    kit = DriverKit(lambda scenario: ToolCallingDriver(scenario.inference(), compiler=compiler), examples=examples(20))
    for law in (2, 13, 20):
        kit.check(law)
