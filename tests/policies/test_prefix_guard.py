"""The prefix guard: which requests extend the one before, and who broke the prefix if one does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import AgentLoop, Interceptor, Message, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.compilers import ConversationWithCurrentToolTrace, SlidingWindow
from agentloop.contracts import CanCompileMessages, CanIntercept, ExecutionScope
from agentloop.errors import ContractViolation
from agentloop.events import ContextEpochBegan, PrefixBroken
from agentloop.interception import BeforeInference, BeforeStep, CancellationToken, StepLimit, ToolSelection, at
from agentloop.policies import PrefixGuard, Resilience, TokenLimit
from agentloop.testing import LawViolation, stable_prefix
from agentloop.values import AgentState, Event, InferenceRequest, Text
from agentloop.values.epochs import PrefixBreak
from agentloop.values.estimates import BYTES_PER_TOKEN, message_tokens, tools_length
from agentloop.values.time_and_ids import IdSource
from tests.generated import examples


@tool(effect="pure")
def look(item: int) -> int:
    """Look at an item."""
    return item


@tool(effect="pure")
def listen(item: int) -> int:
    """Listen to an item."""
    return item


def script(steps: int) -> ScriptedInference:
    """Return a model that makes this number of calls, one per step, and answers."""
    return ScriptedInference(*[ToolCall(str(n), "look", f'{{"item": {n}}}') for n in range(steps)], "done")


def run(*interceptors: CanIntercept, steps: int = 3, **parts: Any) -> list[PrefixBreak]:
    """Run an agent under a guard, and return the breaks; they are those of the events."""
    guard, events = PrefixGuard(), list[Event]()
    tools = parts.pop("tools", [look, listen])
    loop = AgentLoop(ToolCallingDriver(script(steps)), tools, interceptors=[*interceptors, guard], **parts)
    loop.wiretap(events.append)
    state = loop.execute_sync("What now?")
    assert state.final_text == "done"
    assert [event.cause for event in events if isinstance(event, PrefixBroken)] == list(guard.breaks)
    return list(guard.breaks)


# --- no break -------------------------------------------------------------------------------------------------------


def add_system(point: BeforeInference) -> BeforeInference:
    """Put the same text at the end of the system prompt of each request, and the same message in front."""
    request = point.request.with_system_prompt(point.request.system_prompt + " Be short.")
    return point.with_request(request.with_messages([Message.user("Hello"), *request.messages]))


def rebuild(point: BeforeInference) -> BeforeInference:
    """Replace all segments by equal ones."""
    request = point.request
    messages = [evolve(message) for message in request.messages]
    tools = [evolve(spec) for spec in request.tools]
    return point.with_request(evolve(request, messages=messages, tools=tools))


def count_steps(point: BeforeStep) -> BeforeStep:
    return point.with_state(point.state.with_metadata(steps=point.state.step_count))


WELL_BEHAVED: Sequence[CanIntercept] = (
    at("before_inference", add_system),
    at("before_inference", rebuild),
    at("before_step", count_steps),
    CancellationToken(),
    Resilience(),
    StepLimit(50),
    TokenLimit(10**9),
    ToolSelection(offer=["look"]),
)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.sampled_from(WELL_BEHAVED), max_size=4, unique_by=id),
    st.integers(0, 6),
    st.sampled_from([None, ConversationWithCurrentToolTrace(), SlidingWindow(3)]),
)
def test_well_behaved_runs_do_not_break_the_prefix(
    interceptors: list[CanIntercept], steps: int, compiler: CanCompileMessages | None
) -> None:
    """Neither a run nor the next one of its conversation, whatever the compiler announces."""
    with stable_prefix() as guard:
        loop = AgentLoop(
            ToolCallingDriver(script(steps)), [look, listen], interceptors=[*interceptors, guard], compiler=compiler
        )
        first = loop.execute_sync("What now?")
        loop.execute_sync(first.with_message("And then?"))


def test_a_retried_answer_is_no_break() -> None:
    """A rejected answer is shown within its step, and left out of the next step."""
    with stable_prefix() as guard:
        model = ScriptedInference(
            "nonsense", 'Thought: I look.\nAction: look\nAction Input: {"item": 1}', "Final Answer: ok"
        )
        loop = AgentLoop(ReActDriver(model, output="text"), [look], interceptors=[guard])
        assert loop.execute_sync("What now?").final_text == "ok"


def test_another_model_has_a_prefix_of_its_own() -> None:
    """The model of the final answer gets no tools, and that breaks nothing."""
    with stable_prefix() as guard:
        driver = ToolCallingDriver(script(2), final_inference=ScriptedInference("The end."))
        loop = AgentLoop(driver, [look], interceptors=[guard])
        first = loop.execute_sync("What now?")
        assert first.final_text == "The end."


def test_another_conversation_is_not_compared() -> None:
    """An execution that goes on from an older state, and one of another agent, have nothing to extend."""
    with stable_prefix() as guard:
        loop = AgentLoop(ToolCallingDriver(script(1)), [look], interceptors=[guard])
        start = AgentState.start("What now?")
        loop.execute_sync(start.with_message("First?"))
        loop.execute_sync(start.with_message("Second?"))
        loop.execute_sync("Somebody else?")


# --- culprits -------------------------------------------------------------------------------------------------------


class Clock(Interceptor):
    """Writes the time into the system prompt of each request."""

    def __init__(self) -> None:
        self.minutes = 0

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        self.minutes += 1
        return point.with_request(point.request.with_system_prompt(f"It is 12:{self.minutes:02}. Be kind."))


def test_a_clock_in_the_system_prompt_is_caught_at_its_first_byte() -> None:
    """The break is at the last digit of the minutes."""
    found = run(at("before_inference", add_system, priority=5), Clock())
    assert [(each.place, each.writer, each.name) for each in found] == [("system prompt", "interceptor", "Clock")] * 3
    assert found[0].offset == len("It is 12:0")
    assert (found[0].before, found[0].after) == ("1. Be kind.", "2. Be kind.")
    assert found[0].tokens < found[2].tokens


def test_what_follows_a_break_is_measured_in_tokens_rounded_up() -> None:
    """The whole system prompt counts, then the messages of the request whose prefix was not kept."""
    found = run(Clock())
    prompt = -(-len("It is 12:01. Be kind.") // BYTES_PER_TOKEN)
    assert found[0].tokens == prompt + message_tokens(Message.user("What now?"))


class ClockInState(Interceptor):
    """Writes the number of the step into the system prompt of the state."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        return point.with_state(point.state.with_system_prompt(f"Step {point.state.step_count}"))


def test_an_interceptor_that_changes_the_prompt_of_the_state_is_named() -> None:
    """The prompt is what breaks, and the interceptor that changed it is named."""
    found = run(ClockInState())
    assert [(each.place, each.writer, each.name, each.offset) for each in found] == [
        ("system prompt", "prompt", "ClockInState", 5)
    ] * 3


def test_an_interceptor_that_leaves_the_prompt_of_the_state_alone_is_not_named() -> None:
    """Neither for the prompt of an interceptor before it, nor for one of the program, whatever else it changes."""
    found = run(ClockInState(), at("before_step", count_steps, priority=-5))
    assert [(each.writer, each.name) for each in found] == [("prompt", "ClockInState")] * 3
    guard, times = PrefixGuard(), iter(["12:01", "12:02"])
    loop = AgentLoop(
        ToolCallingDriver(script(1)),
        [look],
        interceptors=[guard, at("before_step", count_steps)],
        system_prompt=lambda _: f"It is {next(times)}.",
    )
    loop.execute_sync(loop.execute_sync("What now?").with_message("And then?"))
    assert [(each.place, each.writer, each.name) for each in guard.breaks] == [("system prompt", "prompt", "")]


def test_a_prompt_that_each_execution_writes_anew_is_caught() -> None:
    """A function of the time as system prompt breaks the prefix from one execution to the next."""
    guard, times = PrefixGuard(), iter(["12:01", "12:02"])
    loop = AgentLoop(
        ToolCallingDriver(script(1)), [look], interceptors=[guard], system_prompt=lambda _: f"It is {next(times)}."
    )
    first = loop.execute_sync("What now?")
    assert not guard.breaks
    loop.execute_sync(first.with_message("And then?"))
    assert [(each.place, each.writer) for each in guard.breaks] == [("system prompt", "prompt")]


class OtherModel(Interceptor):
    """Asks for another model in each step."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        options = evolve(point.request.options, model=f"model-{point.state.step_count}")
        return point.with_request(point.request.with_options(options))


def test_another_name_of_the_model_is_caught() -> None:
    """The cache of a model is of no use to another one: all tools and all messages are paid anew."""
    found = run(OtherModel())
    assert [(each.place, each.writer, each.name) for each in found] == [("model", "interceptor", "OtherModel")] * 3
    assert (found[0].offset, found[0].before, found[0].after) == (len("model-"), "0", "1")
    tools = -(-tools_length((look.spec, listen.spec)) // BYTES_PER_TOKEN)
    assert found[0].tokens == tools + message_tokens(Message.user("What now?"))


class LongPrompt(Interceptor):
    """Writes the number of the step in front of a long system prompt."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        return point.with_request(point.request.with_system_prompt(f"{point.state.step_count}{'abc' * 99}"))


def test_a_break_shows_sixty_bytes_from_the_first_difference() -> None:
    """However long the rest of the segment is."""
    found = run(LongPrompt())
    assert (found[0].before, found[0].after) == (f"0{'abc' * 99}"[:60], f"1{'abc' * 99}"[:60])


class Shuffle(Interceptor):
    """Offers the tools in another order each time, as those of a set."""

    def __init__(self) -> None:
        self.turned = False

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        self.turned = not self.turned
        return point.with_request(point.request.with_tools(point.request.tools[:: -1 if self.turned else 1]))


def test_tools_in_another_order_are_caught() -> None:
    """The first tool that moved is named."""
    found = run(Shuffle())
    assert [(each.place, each.writer, each.name) for each in found] == [("tools[0]", "interceptor", "Shuffle")] * 3
    assert (found[0].before[:6], found[0].after[:4]) == ('isten"', 'ook"')


def test_a_tool_selection_that_changes_is_caught_unless_it_is_expected() -> None:
    """A tool that is hidden later shortens the tools, which come before everything else."""
    selection = ToolSelection(hide=[lambda spec, state: spec.name == "listen" and state.step_count > 1])
    (found,) = run(selection)
    assert (found.place, found.writer, found.name, found.after) == ("tools[1]", "interceptor", "ToolSelection", "")
    with stable_prefix("ToolSelection") as guard:
        AgentLoop(ToolCallingDriver(script(3)), [look, listen], interceptors=[selection, guard]).execute_sync("?")


@pytest.mark.parametrize("prompt", ["", "Be kind."])
def test_what_comes_before_a_break_is_not_measured(prompt: str) -> None:
    """The cache still has the tools, the system prompt and the messages in front of the one that has changed."""
    guard, state = PrefixGuard(), AgentState.start("go")
    watching = guard.with_execution_scope(ExecutionScope())
    first, second, last = (Message.user(f"{word} question") for word in ("first", "second", "last"))
    for messages in ([first, second, last], [first, last]):
        request = InferenceRequest(messages, prompt, (look.spec, listen.spec))
        watching.begin_request(None, request, state)
        watching.end_request(request)
    (found,) = guard.breaks
    assert (found.place, found.tokens) == ("messages[1]", message_tokens(second) + message_tokens(last))


class Newest(CanCompileMessages):
    """A sliding truncation: the newest three messages, without epochs."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return state.messages[-3:]


def test_a_sliding_truncation_is_caught() -> None:
    """From the step on at which it drops the first message, the compiler breaks each request."""
    found = run(compiler=Newest())
    assert [(each.place, each.writer, each.name) for each in found] == [("messages[0]", "compiler", "")]
    assert "What now?" in found[0].before


class Redact(Interceptor):
    """Masks a result in the request when it is no longer the newest."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        messages = list(point.request.messages)
        for index, message in enumerate(messages[1:-1], 1):
            messages[index] = message.with_parts([Text("masked")])
        return point.with_request(point.request.with_messages(messages))


def test_an_interceptor_that_edits_an_earlier_message_is_caught() -> None:
    """The message that it edits is the first that differs, also behind one that another interceptor inserted in front."""
    found = run(Redact())
    assert [(each.place, each.writer, each.name) for each in found] == [
        ("messages[1]", "interceptor", "Redact"),
        ("messages[2]", "interceptor", "Redact"),
    ]
    found = run(at("before_inference", add_system, priority=-5), Redact())
    assert {(each.place, each.name) for each in found} == {("messages[2]", "Redact"), ("messages[3]", "Redact")}


class Once(Interceptor):
    """Adds a hint in front of the second request only."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        if point.state.step_count != 1:
            return point
        return point.with_request(point.request.with_messages([Message.user("Hint"), *point.request.messages]))


def test_an_interceptor_that_stops_editing_is_named() -> None:
    """What it inserted is missing in the request after that, which no one else changed."""
    found = run(Once())
    assert [(each.place, each.writer, each.name) for each in found] == [("messages[0]", "interceptor", "Once")] * 2


def test_an_interceptor_that_joins_for_the_next_execution_is_named() -> None:
    """It was not there when the request before was made, and is the only one that could change the prompt."""
    guard = PrefixGuard()
    loop = AgentLoop(ToolCallingDriver(script(1)), [look], interceptors=[guard])
    first = loop.execute_sync("What now?")
    loop.with_interceptors(Clock()).execute_sync(first.with_message("And then?"))
    assert [(each.place, each.writer, each.name) for each in guard.breaks] == [
        ("system prompt", "interceptor", "Clock")
    ] * 2


# --- the guard ------------------------------------------------------------------------------------------------------


def test_what_an_epoch_announces_is_no_break() -> None:
    """A window that slides announces it; the tools are compared nevertheless."""
    events, guard = list[Event](), PrefixGuard()
    loop = AgentLoop(
        ToolCallingDriver(script(6)), [look, listen], interceptors=[guard, Shuffle()], compiler=SlidingWindow(3)
    )
    loop.wiretap(events.append)
    loop.execute_sync("What now?")
    assert any(isinstance(event, ContextEpochBegan) for event in events)
    assert {each.place for each in guard.breaks} == {"tools[0]"}


def test_the_check_lists_the_breaks() -> None:
    """`check` and `stable_prefix` name place and writer."""
    guard = PrefixGuard()
    guard.check()
    AgentLoop(ToolCallingDriver(script(1)), [look], interceptors=[guard, Clock()]).execute_sync("?")
    with pytest.raises(ContractViolation, match="system prompt at byte 10, written by interceptor Clock: '1"):
        guard.check()
    with pytest.raises(LawViolation, match="law 13"), stable_prefix() as guarded:
        AgentLoop(ToolCallingDriver(script(1)), [look], interceptors=[guarded, Clock()]).execute_sync("?")


def test_concurrent_executions_are_told_apart() -> None:
    """One guard serves any number of agents at once."""

    async def execute() -> None:
        with stable_prefix() as guard:
            loop = AgentLoop(ToolCallingDriver(script(5)), [look], interceptors=[guard])
            await asyncio.gather(*[loop.execute(f"Question {n}") for n in range(5)])

    asyncio.run(execute())


def test_unchanged_segments_are_not_hashed() -> None:
    """A run whose requests extend each other hashes nothing, however long it is (law 20)."""
    guard = PrefixGuard()
    state = AgentLoop(ToolCallingDriver(script(30)), [look], interceptors=[guard]).execute_sync("?")
    assert not [message for message in state.messages if "agentloop.prefix_guard" in message._encodings]


class DescendingIds(IdSource):
    """Ids of which a later one comes first in the alphabet."""

    def __init__(self) -> None:
        self.numbers = iter(range(9_999, 1_000, -1))

    def new_id(self, kind: str) -> str:
        return f"{kind}_{next(self.numbers)}"


def test_a_break_between_executions_is_reported_once() -> None:
    """The later requests are compared with the first one of their own execution, whatever its id is."""
    guard, times = PrefixGuard(), iter(["12:01", "12:02"])
    loop = AgentLoop(
        ToolCallingDriver(script(3)),
        [look],
        interceptors=[guard],
        system_prompt=lambda _: f"It is {next(times)}.",
        ids=DescendingIds(),
    )
    loop.execute_sync(loop.execute_sync("What now?").with_message("And then?"))
    assert [each.place for each in guard.breaks] == ["system prompt"]


def test_a_guard_keeps_the_last_thousand_breaks() -> None:
    """The oldest ones are dropped, so that a guard of a long-lived process does not grow."""
    guard = PrefixGuard()
    watching, state = guard.with_execution_scope(ExecutionScope()), AgentState.start("go")
    for number in range(1_002):
        request = InferenceRequest((Message.user(f"question {number}"),))
        watching.begin_request(None, request, state)
        watching.end_request(request)
    assert len(guard.breaks) == 1_000
    assert [guard.breaks[index].after.partition('"')[0] for index in (0, -1)] == ["2", "1001"]


def test_a_guard_forgets_the_agent_that_has_not_asked_for_longest() -> None:
    """It compares the next request of a hundred agents; one that has asked again is kept, also if it was the first."""
    guard, numbers = PrefixGuard(), iter(range(1_000))
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(*["done"] * 120)),
        interceptors=[guard],
        system_prompt=lambda _: f"You are number {next(numbers)}.",
    )
    states = [loop.execute_sync(AgentState.start("What now?", agent_id=f"agent {n}")) for n in range(100)]
    assert not guard.breaks

    def has_broken(number: int) -> bool:
        """Go on with a conversation, whose prompt is always another one, and return whether the guard has noticed."""
        count = len(guard.breaks)
        states[number] = loop.execute_sync(states[number].with_message("And then?"))
        return len(guard.breaks) > count

    assert has_broken(0)
    states.append(loop.execute_sync(AgentState.start("What now?", agent_id="agent 100")))
    assert [has_broken(number) for number in (0, 2, 3, 99, 100)] == [True] * 5
    assert not has_broken(1)


def test_a_request_whose_beginning_a_guard_has_not_seen_is_not_compared() -> None:
    """A watcher does not raise, neither outside of an execution nor before the first request of one."""
    for guard in (PrefixGuard(), PrefixGuard().with_execution_scope(ExecutionScope())):
        guard.end_request(InferenceRequest((Message.user("go"),)))
        guard.check()
