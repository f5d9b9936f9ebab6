"""A replay of changed code names the step and the place of the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve, frozen

from agentloop import AgentLoop, AgentState, Interceptor, ReActDriver, ToolCallingDriver, ToolExecutor, tool
from agentloop.compilers import SlidingWindow, WholeConversation
from agentloop.durable import MemoryJournal, replay
from agentloop.durable.replaying.divergence import NOTHING
from agentloop.interception import (
    AfterInference,
    AfterStep,
    AfterToolUse,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    OnStop,
    Permissions,
)
from agentloop.values import InferenceOptions, StopReason, Text, ToolChoice
from tests.durable.recovery_bench import Model
from tests.durable.replaying.bench import SCRIPT, Ledger, loop_of, record_run, tools


@frozen
class Seal(Interceptor):
    """Appends a word to every outcome.

    Attributes:
        word: the word.
    """

    word: str = "sealed"

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Append the word."""
        return point.with_execution(point.execution.with_value(f"{point.execution.value}, {self.word}"))


@frozen
class Double(Interceptor):
    """Multiplies the amounts of payments.

    Attributes:
        times: the factor.
    """

    times: int = 2

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Multiply the amount."""
        if point.call.name != "pay":
            return point
        return point.with_call(point.call.with_arguments({"amount": self.times * int(point.call.arguments["amount"])}))


@frozen
class Note(Interceptor):
    """Appends its name to an entry of the metadata.

    Attributes:
        name: the name to append.
    """

    name: str = "note"
    priority: int = 0

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Append the name."""
        before = point.state.context.metadata.get("order", "")
        return point.with_state(point.state.with_metadata(order=f"{before}{self.name}"))


@frozen
class Hint(Interceptor):
    """Replaces the system prompt from a step on.

    Attributes:
        text: the system prompt.
        step: the number of the first step.
    """

    text: str
    step: int = 1

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Replace the system prompt."""
        if point.state.step_count + 1 < self.step:
            return point
        return point.with_request(point.request.with_system_prompt(self.text))


class Polite(Interceptor):
    """Appends a farewell to texts."""

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Append it."""
        parts = [Text(f"{part.text} Bye.") if isinstance(part, Text) else part for part in point.response.parts]
        return point.with_response(evolve(point.response, parts=parts))


class ContinuesOnce(Interceptor):
    """Requests one more step after the answer."""

    def after_step(self, point: AfterStep) -> AfterStep:
        """Request it after step 4."""
        return point.request_continuation() if point.state.step_count == 4 else point


class Farewell(Interceptor):
    """Changes the metadata when the execution stops."""

    def on_stop(self, point: OnStop) -> OnStop:
        """Change it."""
        return point.with_state(point.state.with_metadata(over=True))


class StopsEarly(Interceptor):
    """Stops before the third step."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop after two steps."""
        return point.stop("enough", reason=StopReason.NO_PROGRESS) if point.state.step_count == 2 else point


@tool(name="look", effect="pure")
async def look_with_more(n: int, deep: bool = False) -> str:  # noqa: FBT001, FBT002  # a tool's parameter
    """Look up an order."""
    return f"order {n}{deep}"


def driver(**parts: Any) -> ToolCallingDriver:
    """Return a driver that follows the script."""
    return ToolCallingDriver(Model(*SCRIPT), **parts)


Parts = Mapping[str, Any]

CHANGES: Sequence[tuple[str, Parts, Parts, tuple[int, int | None, str, str]]] = (
    ("a tool's description", {}, {"tool_list": tools(Ledger(), pay="Pay!")}, (1, 0, "request.tools[1].description", "")),
    ("a tool's parameter", {}, {"tool_list": [look_with_more, tools(Ledger())[1]]}, (1, 0, "request.tools[0].parameters.properties.deep", "")),
    ("a removed tool", {}, {"tool_list": tools(Ledger())[:1]}, (1, 0, "request.tools[1]", "")),
    ("the order of the tools", {}, {"tool_list": tools(Ledger())[::-1]}, (1, 0, "request.tools[0].name", "")),
    ("the system prompt", {}, {"system_prompt": "Be brief."}, (0, None, "state.context.system_prompt", "")),
    ("the response format", {}, {"output_type": int}, (0, None, "state.context.response_format", "")),
    ("the compiler", {}, {"compiler": SlidingWindow(1)}, (3, 0, "request.messages[1].parts[0].call.id", "")),
    ("the limit, lower", {}, {"max_steps": 2}, (2, None, "stop", "StepLimit")),
    ("the limit, higher", {"max_steps": 2}, {}, (2, None, "stop", "")),
    ("a driver's options", {}, {"driver": driver(options=InferenceOptions(temperature=0.5))}, (1, 0, "request.options", "")),
    ("a driver's tool choice", {}, {"driver": driver(tool_choice=ToolChoice.required())}, (1, 0, "request.tool_choice", "")),
    ("a driver's mode", {}, {"driver": driver(mode="parsed")}, (1, 0, "rendering", "")),
    ("a setting of an interceptor", {"interceptors": [Seal()]}, {"interceptors": [Seal("stamped")]}, (1, None, "state.context.messages[1].parts[0].execution.value", "Seal")),
    ("a new interceptor", {}, {"interceptors": [Seal()]}, (1, None, "state.context.messages[1].parts[0].execution.value", "Seal")),
    ("a removed interceptor", {"interceptors": [Seal()]}, {}, (1, None, "state.context.messages[1].parts[0].execution.value", "")),
    ("arguments", {"interceptors": [Double()]}, {"interceptors": [Double(3)]}, (2, 0, "calls[0].arguments.amount", "Double")),
    ("a denied tool", {}, {"interceptors": [Permissions(deny=["pay"])]}, (2, 0, "calls[0]", "Permissions")),
    ("the order of interceptors", {"interceptors": [Note("a"), Note("b")]}, {"interceptors": [Note("b"), Note("a")]}, (1, None, "state.context.metadata.order", "a")),
    ("the request of an interceptor", {"interceptors": [Hint("Take care.")]}, {"interceptors": [Hint("Take great care.")]}, (1, 0, "request.system_prompt", "Hint")),
    ("a request from the third step on", {}, {"interceptors": [Hint("Take care.", 3)]}, (3, 0, "request.system_prompt", "Hint")),
    ("a response", {}, {"interceptors": [Polite()]}, (4, None, "state.context.messages[4].parts[0].text", "Polite")),
    ("a further step", {}, {"interceptors": [ContinuesOnce()]}, (4, None, "state.execution.continuation.signals", "ContinuesOnce")),
    ("an early stop", {}, {"interceptors": [StopsEarly()]}, (2, None, "stop", "StopsEarly")),
    ("a change at the end", {}, {"interceptors": [Farewell()]}, (4, None, "state.context.metadata", "Farewell")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "expected"), [change[1:] for change in CHANGES], ids=[change[0] for change in CHANGES]
)
async def test_a_change_is_reported_with_its_step_and_place(
    before: Parts, after: Parts, expected: tuple[int, int | None, str, str]
) -> None:
    """A divergence has the step, the index, the place, and the interceptor that wrote the value."""
    journal = await record_run(**before)
    assert (await replay(journal, "run", loop_of(**before))).is_equal
    divergence = (await replay(journal, "run", loop_of(**after))).divergence
    assert divergence is not None
    assert (divergence.step, divergence.index, divergence.place, divergence.interceptor) == expected, (
        divergence.explain()
    )
    assert str(divergence)
    assert divergence.explain()


async def test_the_text_of_a_divergence_names_both_values_and_the_interceptor() -> None:
    """The text of a divergence contains the step, the place, both values and the interceptor."""
    journal = await record_run(interceptors=[Seal()])
    divergence = (await replay(journal, "run", loop_of(interceptors=[Seal("stamped")]))).divergence
    assert str(divergence) == (
        'after step 1: state.context.messages[1].parts[0].execution.value differs: "order 1, sealed" → "order 1, stamped"; '
        "written by Seal at after_tool_use"
    )


async def test_a_removed_interceptor_is_named() -> None:
    """The reason names an interceptor that was part of the recorded loop only."""
    journal = await record_run(interceptors=[Seal()])
    divergence = (await replay(journal, "run", loop_of())).divergence
    assert divergence is not None
    assert divergence.reason == "Seal was part of the recorded loop, and is missing now"
    assert divergence.changes == ("interceptors: StepLimit, Seal → StepLimit",)


async def test_a_changed_order_without_consequences_is_reported_but_not_a_divergence() -> None:
    """`changes` lists differences in the composition of the loop, even when the execution is equal."""
    journal = await record_run(interceptors=[Hint("a", 9), Seal()])
    result = await replay(journal, "run", loop_of(interceptors=[Seal(), Hint("a", 9)]))
    assert result.is_equal
    assert result.changes == ("interceptors: StepLimit, Hint, Seal → StepLimit, Seal, Hint",)


@frozen
class OwnExecutor(ToolExecutor):
    """An executor with another name."""


WIDE = SlidingWindow(99)
"""A compiler that leaves the whole script as it is."""


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({}, {}, ()),
        ({}, {"compiler": WIDE}, ("compiler: WholeConversation → SlidingWindow",)),
        ({}, {"driver": driver(compiler=WIDE)}, ("compiler: WholeConversation → SlidingWindow",)),
        ({"driver": driver(compiler=WIDE)}, {}, ("compiler: SlidingWindow → WholeConversation",)),
        ({"driver": driver(compiler=WIDE), "compiler": WholeConversation()}, {}, ()),
        ({}, {"executor": OwnExecutor()}, ("executor: ToolExecutor → OwnExecutor",)),
        ({}, {"driver": driver(mode="parsed")}, ("mode: auto → parsed",)),
        ({}, {"driver": ReActDriver(Model(*SCRIPT), output="json")}, ("driver: ToolCallingDriver → ReActDriver", "mode: auto → json")),
        ({}, {"tool_list": tools(Ledger())[:1]}, ("tools: look, pay → look",)),
        ({}, {"tool_list": []}, ("tools: look, pay → none",)),
        ({}, {"max_steps": None}, ("interceptors: StepLimit → none",)),
    ],
)  # fmt: skip
async def test_each_changed_part_of_the_loop_is_named(before: Parts, after: Parts, changes: Sequence[str]) -> None:
    """`changes` has what was recorded and what is there now, whichever part selects the messages."""
    journal = await record_run(**before)
    assert (await replay(journal, "run", loop_of(**after))).changes == tuple(changes)


@pytest.mark.parametrize("prompt", ["", "Today's."])
async def test_an_execution_that_did_not_begin_with_the_prompt_of_its_loop_keeps_its_own(prompt: str) -> None:
    """That of a state which the program made, and that of a conversation in its further executions."""
    journal = MemoryJournal()
    loop = loop_of(journal=journal, system_prompt="Yesterday's.")
    await loop.execute(AgentState.start("What is due?", system_prompt="The state's."), execution_id="other")
    first = await loop.execute("What about my orders?", execution_id="first")
    await loop.execute(first.with_message("And now?"), execution_id="second")
    today = loop_of(system_prompt=prompt)
    assert [(await replay(journal, name, today)).is_equal for name in ("other", "first", "second")] == [
        True,
        False,
        True,
    ]


async def test_a_drivers_prompt_is_compared() -> None:
    """The prompt that ReAct adds when it renders a request is recorded, and compared."""
    script = ('{"thought": "", "type": "final", "answer": "Nothing is due."}',)

    def loop(prompt: str | None = None) -> AgentLoop:
        parts: dict[str, Any] = {} if prompt is None else {"prompt": lambda _: prompt}
        return loop_of(driver=ReActDriver(Model(*script), output="json", **parts))

    journal = MemoryJournal()
    state = await loop().replace(journal=journal).execute("What is due?", execution_id="run")
    assert state.status == "completed", state.explain()
    assert (await replay(journal, "run", loop())).is_equal
    divergence = (await replay(journal, "run", loop("Think, then act."))).divergence
    assert divergence is not None
    assert (divergence.step, divergence.index, divergence.place) == (1, 0, "rendering.system_prompt"), (
        divergence.explain()
    )
    assert divergence.recorded is not NOTHING


def test_every_change_has_a_unique_name() -> None:
    """More than twelve kinds of changes are tested."""
    names: Iterable[str] = {change[0] for change in CHANGES}
    assert len(set(names)) == len(CHANGES) > 12
