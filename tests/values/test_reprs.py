"""Tests of reprs and summaries: they fit on a screen, whatever a value holds."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from attrs import frozen
from rich.console import Console

from agentloop import (
    AgentLoop,
    AgentState,
    LLMConfig,
    Message,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    handoff_to,
    tool,
)
from agentloop.drivers import ScenarioStep, StepDraft
from agentloop.durable import MemoryJournal
from agentloop.interception import StepLimit
from agentloop.models import HttpInference
from agentloop.policies import ToolCallLimit
from agentloop.values import Image, InferenceResponse, JsonObject, ResponsePart, Text
from agentloop.values.reprs import MAX_REPR, bounded_repr, whole_repr
from agentloop.values.secrets import Secret
from agentloop.values.value import Value


@frozen
class Answer:
    """A typed answer.

    Attributes:
        number: a number.
    """

    number: int


AT = datetime(2026, 1, 1, tzinfo=UTC)


@tool(effect="pure")
def look(place: str) -> str:
    """Look somewhere."""
    return f"{place}: " + "rain " * 2_000


def long_state() -> AgentState[Any]:
    """Return the state of an execution with many steps, long results and texts that look like markup."""
    turns: list[Any] = [ToolCall(str(number), "look", f'{{"place": "<b>[red]{number}</b>"}}') for number in range(30)]
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*turns, "<script>alert(1)</script>" * 40)), [look])
    return loop.execute_sync("What is the weather? " + "x" * 10_000_000)


STATE = long_state()
LOOP = AgentLoop(
    ToolCallingDriver(HttpInference(LLMConfig.parse("openai:gpt-5", api_key="sk-0123456789abcdef", environment={}))),
    [look],
)
STEP = STATE.steps[0]
VALUES = {
    "state": STATE,
    "step": STEP,
    "execution": STATE.execution,
    "context": STATE.context,
    "tool execution": STEP.executions[0],
    "message": STATE.messages[0],
    "loop": LOOP,
    "loop with many parts": AgentLoop(ScriptedDriver(), interceptors=[StepLimit(number) for number in range(1, 500)]),
    "image": Message.user(Image(data=b"x" * 10_000_000, media_type="image/png")),
    "metadata": STATE.with_metadata(rows=[{"name": "x" * 500, "number": number} for number in range(5_000)]),
    "handoff": handoff_to(LOOP, name="over", description="x" * 10_000),
    "response": InferenceResponse([Text("word " * 5_000)] * 100),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_repr_fits_on_a_screen(name: str) -> None:
    """Whatever a value holds, its repr has at most 2,000 characters, begins with its class and gives the sizes of what is cut."""
    value = VALUES[name]
    shown = repr(value)
    assert len(shown) <= MAX_REPR
    assert shown.startswith(f"{type(value).__name__}(")
    assert shown.endswith(")")
    assert "sk-0123456789abcdef" not in shown


class ShowsExecutor(ScriptedDriver):
    """A driver that answers with the repr of the executor that it is given."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        await super().decide(draft, messages)
        return (Text(repr(self.executor)),)


async def test_the_executor_of_an_execution_fits_on_a_screen() -> None:
    """A driver can show what it is given, whatever the tools and the dependencies hold."""
    loop = AgentLoop(ShowsExecutor(ScenarioStep.final("")), [look])
    shown = (await loop.execute("go", dependencies=["x" * 500] * 500)).final_text or ""
    assert shown.startswith("CheckedExecutor(executor=ToolExecutor(")
    assert len(shown) <= MAX_REPR


def test_what_is_cut_is_given_by_its_size() -> None:
    """Texts, bytes and collections end in the number of what they hold."""
    assert "(10,000,021 characters)" in repr(STATE.messages[0])
    assert "<10000000 bytes>" in repr(VALUES["image"])
    assert "more" in repr(STATE.execution)


def test_a_short_value_is_shown_whole() -> None:
    """Nothing is left out of a value that fits."""
    assert (
        repr(Message.user("Hello."))
        == "Message(role='user', parts=(Text(text='Hello.', provider_data={}),), metadata={})"
    )


@frozen(eq=False, repr=False)
class Pair(Value):
    """A value with a field of any type."""

    first: Any
    second: Any = None


@pytest.mark.parametrize(
    "content", ["x" * 3_000, b"x" * 3_000, (1,) * 2_000, {"x" * 3_000: 1}, JsonObject(a="x" * 3_000)]
)
def test_the_whole_repr_tells_long_values_apart(content: Any) -> None:
    """Digests and comparisons use a repr that leaves nothing out."""
    one, other = Pair((content, 1)), Pair((content, True))
    assert len(repr(one)) <= MAX_REPR < len(whole_repr(one))
    assert whole_repr(one) != whole_repr(other)
    assert whole_repr(one) == f"Pair(first={(content, 1)!r}, second=None)"


def test_a_nest_is_shown_to_a_depth() -> None:
    """A value inside of many values is shown as its class."""
    value: Any = "x" * 3_000
    for _ in range(400):
        value = Pair(value)
    assert len(bounded_repr(value)) <= MAX_REPR
    assert "Pair(…)" in bounded_repr(value)


@pytest.mark.parametrize("name", ["state", "step", "loop"])
def test_a_summary_is_a_small_table(name: str) -> None:
    """Notebooks get an escaped table without scripts and links, and `rich` the same rows."""
    value: Any = VALUES[name]
    html = value._repr_html_()
    assert html.startswith(f"<table><caption>{type(value).__name__}</caption>")
    assert "<script" not in html
    assert "http" not in html
    assert "sk-0123456789abcdef" not in html
    assert len(html) < 5 * MAX_REPR
    stream = io.StringIO()
    Console(file=stream, width=100, color_system=None).print(value)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith(type(value).__name__)
    assert len(lines) <= 40


def test_a_summary_says_how_an_execution_ended() -> None:
    """Status, work, question and answer are rows."""
    loop = AgentLoop(ToolCallingDriver(ScriptedInference("It is 3.")))
    rows = dict(loop.execute_sync("1 + 2?").__rich_repr__())
    assert (rows["question"], rows["answer"]) == ("1 + 2?", "It is 3.")
    assert rows["status"].startswith("completed")
    assert rows["work"].startswith("1 step, 0 tool calls, ")
    assert "errors" not in rows


def test_a_summary_says_of_what_a_loop_consists() -> None:
    """Driver, model, tools, interceptors, steps and output are rows; a part that it does not have is not shown."""
    rows = dict(LOOP.__rich_repr__())
    assert rows == {
        "driver": "ToolCallingDriver",
        "model": "openai:gpt-5",
        "tools": "look",
        "steps": f"at most {LOOP.max_steps}",
        "output": "text",
    }
    typed: AgentLoop[Any] = AgentLoop(
        ToolCallingDriver(ScriptedInference()),
        interceptors=[StepLimit(3), ToolCallLimit(9)],
        max_steps=None,
        output_type=Answer,
        journal=MemoryJournal(),
    )
    rows = dict(typed.__rich_repr__())
    assert rows["interceptors"] == "StepLimit, ToolCallLimit"
    assert (rows["steps"], rows["output"]) == ("any number", "Answer")
    assert rows["journal"] == repr(typed.journal)


def test_a_secret_is_masked_in_a_field() -> None:
    """A field that holds a secret shows the mask."""
    assert "hush-hush" not in repr(Pair(Secret("hush-hush"), [Secret("hush-hush")] * 900))


def test_a_table_has_no_characters_that_cannot_be_seen() -> None:
    """A text of a model cannot reverse or hide what a notebook shows."""
    html = AgentLoop.for_model(ScriptedInference("\u202eevil\x1b[31m")).execute_sync("Hi.")._repr_html_()
    assert "\\u202eevil\\u001b[31m" in html
    assert not {"\u202e", "\x1b"} & set(html)


def test_a_state_shows_its_steps_and_calls_over_time() -> None:
    """A notebook gets a bar for each step and call, escaped and without scripts; of many, the first."""

    calls = [ToolCall(str(index), "look", '{"place": "here"}') for index in range(30)]
    bad = ToolCall("x", "<script>alert(1)</script>", "{}")
    loop = AgentLoop.for_model(ScriptedInference([bad, calls[0]], calls, "Done."), tools=[look])
    html = loop.execute_sync("Where is it?")._repr_html_()
    assert "<script" not in html
    assert "<td>step 1</td><td>tool execution</td>" in html
    assert "<td>· look</td><td>succeeded</td>" in html
    assert "· &lt;script&gt;" in html
    assert "<td>rejected</td>" in html
    assert "… 15 more" in html
    assert html.count("background:") == 20
