"""One line is changed; the replay names the step and the place where that first matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve, frozen

from agentloop import AgentLoop, Interceptor, ReActDriver, ToolCallingDriver, tool
from agentloop.compilers import SlidingWindow
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
from agentloop.journal import MemoryJournal
from agentloop.replay import NOTHING, replay
from agentloop.values import InferenceOptions, StopReason, Text, ToolChoice
from tests.loop.recovery_bench import Model
from tests.replay.bench import SCRIPT, Ledger, loop_of, recorded, tools


@frozen
class Seal(Interceptor):
    """Puts a word after every outcome.

    Attributes:
        word: the word.
    """

    word: str = "sealed"

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Seal it."""
        return point.with_execution(point.execution.with_value(f"{point.execution.value}, {self.word}"))


@frozen
class Double(Interceptor):
    """Pays more than the model asked for.

    Attributes:
        times: how many times as much.
    """

    times: int = 2

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Multiply the amount."""
        if point.call.name != "pay":
            return point
        return point.with_call(point.call.with_arguments({"amount": self.times * int(point.call.arguments["amount"])}))


@frozen
class Note(Interceptor):
    """Writes into the metadata, first or last.

    Attributes:
        name: the entry.
    """

    name: str = "note"
    priority: int = 0

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Write."""
        before = point.state.context.metadata.get("order", "")
        return point.with_state(point.state.with_metadata(order=f"{before}{self.name}"))


@frozen
class Hint(Interceptor):
    """Tells the model something from a step on.

    Attributes:
        text: what.
        step: from which step on.
    """

    text: str
    step: int = 1

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Add it to the instructions."""
        if point.state.step_count + 1 < self.step:
            return point
        return point.with_request(point.request.with_system_prompt(self.text))


class Polite(Interceptor):
    """Ends answers politely."""

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Add a word to texts."""
        parts = [Text(f"{part.text} Bye.") if isinstance(part, Text) else part for part in point.response.parts]
        return point.with_response(evolve(point.response, parts=parts))


class Once(Interceptor):
    """Asks for one step more after the answer."""

    def after_step(self, point: AfterStep) -> AfterStep:
        """Ask for it."""
        return point.request_continuation() if point.state.step_count == 4 else point


class Farewell(Interceptor):
    """Writes at the end."""

    def on_stop(self, point: OnStop) -> OnStop:
        """Write."""
        return point.with_state(point.state.with_metadata(over=True))


class Early(Interceptor):
    """Stops before the third step."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop."""
        return point.stop("enough", reason=StopReason.NO_PROGRESS) if point.state.step_count == 2 else point


@tool(name="look", effect="pure")
async def look_with_more(n: int, deep: bool = False) -> str:  # noqa: FBT001, FBT002  # a tool's parameter
    """Look an order up."""
    return f"order {n}{deep}"


def driver(**parts: Any) -> ToolCallingDriver:
    """Return a driver that follows the script."""
    return ToolCallingDriver(Model(*SCRIPT), **parts)


Parts = Mapping[str, Any]

CHANGES: Sequence[tuple[str, Parts, Parts, tuple[int, int | None, str, str]]] = (
    ("a tool's description", {}, {"given": tools(Ledger(), pay="Pay!")}, (1, 0, "request.tools[1].description", "")),
    ("a tool's parameter", {}, {"given": [look_with_more, tools(Ledger())[1]]}, (1, 0, "request.tools[0].parameters.properties.deep", "")),
    ("a tool is gone", {}, {"given": tools(Ledger())[:1]}, (1, 0, "request.tools[1]", "")),
    ("the order of the tools", {}, {"given": tools(Ledger())[::-1]}, (1, 0, "request.tools[0].name", "")),
    ("the instructions", {}, {"system_prompt": "Be brief."}, (0, None, "state.context.system_prompt", "")),
    ("the form of answers", {}, {"output_type": int}, (0, None, "state.context.response_format", "")),
    ("the compiler", {}, {"compiler": SlidingWindow(1)}, (3, 0, "request.messages[1].parts[0].call.id", "")),
    ("the limit, lower", {}, {"max_steps": 2}, (2, None, "stop", "StepLimit")),
    ("the limit, higher", {"max_steps": 2}, {}, (2, None, "stop", "")),
    ("a driver's options", {}, {"driver": driver(options=InferenceOptions(temperature=0.5))}, (1, 0, "request.options", "")),
    ("a driver's tool choice", {}, {"driver": driver(tool_choice=ToolChoice.required())}, (1, 0, "request.tool_choice", "")),
    ("a driver's mode", {}, {"driver": driver(mode="parsed")}, (1, 0, "rendering", "")),
    ("an interceptor's word", {"interceptors": [Seal()]}, {"interceptors": [Seal("stamped")]}, (1, None, "state.context.messages[1].parts[0].execution.value", "Seal")),
    ("an interceptor is new", {}, {"interceptors": [Seal()]}, (1, None, "state.context.messages[1].parts[0].execution.value", "Seal")),
    ("an interceptor is gone", {"interceptors": [Seal()]}, {}, (1, None, "state.context.messages[1].parts[0].execution.value", "")),
    ("arguments", {"interceptors": [Double()]}, {"interceptors": [Double(3)]}, (2, 0, "calls[0].arguments.amount", "Double")),
    ("a permission", {}, {"interceptors": [Permissions(deny=["pay"])]}, (2, 0, "calls[0]", "Permissions")),
    ("the order of interceptors", {"interceptors": [Note("a"), Note("b")]}, {"interceptors": [Note("b"), Note("a")]}, (1, None, "state.context.metadata.order", "a")),
    ("a hint", {"interceptors": [Hint("Take care.")]}, {"interceptors": [Hint("Take great care.")]}, (1, 0, "request.system_prompt", "Hint")),
    ("a hint in one step", {}, {"interceptors": [Hint("Take care.", 3)]}, (3, 0, "request.system_prompt", "Hint")),
    ("a response", {}, {"interceptors": [Polite()]}, (4, None, "state.context.messages[4].parts[0].text", "Polite")),
    ("going on", {}, {"interceptors": [Once()]}, (4, None, "state.execution.continuation.signals", "Once")),
    ("stopping early", {}, {"interceptors": [Early()]}, (2, None, "stop", "Early")),
    ("the end", {}, {"interceptors": [Farewell()]}, (4, None, "state.context.metadata", "Farewell")),
)  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), [one[1:] for one in CHANGES], ids=[one[0] for one in CHANGES])
async def test_a_change_is_named_at_its_step_and_place(
    before: Parts, after: Parts, expected: tuple[int, int | None, str, str]
) -> None:
    """Step, index, place, and the interceptor that wrote what differs."""
    journal = await recorded(**before)
    assert (await replay(journal, "run", loop_of(**before))).is_equal
    found = (await replay(journal, "run", loop_of(**after))).divergence
    assert found is not None
    assert (found.step, found.index, found.place, found.interceptor) == expected, found.explain()
    assert str(found)
    assert found.explain()


async def test_the_account_says_what_differs_and_who_wrote_it() -> None:
    """A person reads the step, both values and the interceptor."""
    journal = await recorded(interceptors=[Seal()])
    found = (await replay(journal, "run", loop_of(interceptors=[Seal("stamped")]))).divergence
    assert str(found) == (
        'after step 1: state.context.messages[1].parts[0].execution.value differs: "order 1, sealed" → "order 1, stamped"; '
        "written by Seal at after_tool_use"
    )


async def test_an_interceptor_that_is_gone_is_named() -> None:
    """The record knows which stood there."""
    journal = await recorded(interceptors=[Seal()])
    found = (await replay(journal, "run", loop_of())).divergence
    assert found is not None
    assert found.reason == "Seal was part of the recorded loop, and is missing now"
    assert found.changes == ("interceptors: StepLimit, Seal → StepLimit",)


async def test_an_order_that_changes_nothing_is_told_and_is_no_divergence() -> None:
    """What is composed otherwise is said also where everything comes to the same."""
    journal = await recorded(interceptors=[Hint("a", 9), Seal()])
    found = await replay(journal, "run", loop_of(interceptors=[Seal(), Hint("a", 9)]))
    assert found.is_equal
    assert found.changes == ("interceptors: StepLimit, Hint, Seal → StepLimit, Seal, Hint",)


async def test_a_drivers_prompt_is_compared() -> None:
    """What ReAct tells its model stands in no request; the record knows it."""
    script = ('{"thought": "", "type": "final", "answer": "Nothing is due."}',)

    def loop(prompt: str | None = None) -> AgentLoop:
        parts: dict[str, Any] = {} if prompt is None else {"prompt": lambda _: prompt}
        return loop_of(driver=ReActDriver(Model(*script), output="json", **parts))

    journal = MemoryJournal()
    state = await loop().with_journal(journal).execute("What is due?", execution_id="run")
    assert state.status == "completed", state.explain()
    assert (await replay(journal, "run", loop())).is_equal
    found = (await replay(journal, "run", loop("Think, then act."))).divergence
    assert found is not None
    assert (found.step, found.index, found.place) == (1, 0, "rendering.system_prompt"), found.explain()
    assert found.recorded is not NOTHING


def test_every_kind_of_change_has_a_name_of_its_own() -> None:
    """There are more than twelve."""
    names: Iterable[str] = {one[0] for one in CHANGES}
    assert len(set(names)) == len(CHANGES) > 12
