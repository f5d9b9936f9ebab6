"""The progress view."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len
from rich.console import Console

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.cli.progress import Progress
from agentloop.events import (
    AgentStepStarted,
    DecisionExtractionFailed,
    EventBus,
    InferenceDeltaReceived,
    InferenceResponseReceived,
    InferenceRetried,
    ToolCallAbandoned,
    ToolCallCached,
    ToolCallRetried,
    ValidationFailed,
)
from agentloop.inference.scripted import ScriptLine
from agentloop.values import InferenceDelta, InferenceResponse, Reasoning, Text
from agentloop.values.event import EventHead
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_calls import ErrorInfo


@tool
def echo(text: str, context: ToolContext) -> str:
    """Return the text."""
    context.progress({"done": text[:20]})
    return text


@tool
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


class Blocks(Interceptor):
    """Keeps one tool from running."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not on [bold]Sundays[/bold]") if point.call.name == "echo" else point


def _console(width: int = 100, *, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, legacy_windows=False)


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def _shown(
    *lines: ScriptLine, width: int = 100, terminal: bool = False, interceptors: tuple[Interceptor, ...] = ()
) -> str:
    """Return what is shown of an execution; an error of the listener is raised."""
    console = _console(width, terminal=terminal)
    loop = AgentLoop.for_model(
        ScriptedInference(*lines),
        tools=[echo, fail],
        events=EventBus(strict=True),
        interceptors=interceptors,
    )
    with Progress(console) as progress:
        loop.wiretap(progress)
        await loop.execute("Go.")
    return _written(console)


def _call(name: str, arguments_json: str) -> ToolCall:
    return ToolCall("1", name, arguments_json)


async def test_every_stage_has_its_line() -> None:
    """Steps, tokens, what the model says, calls, their progress and their outcomes are shown in order."""
    shown = await _shown(
        ["Let me see.", _call("echo", '{"text":"hello"}'), _call("fail", '{"why":"no luck"}')], "Done."
    )
    begun = [" ".join(line.split()[:2]) for line in shown.splitlines()]
    assert begun[:3] == ["step 1", "· model", "· says"]
    assert sorted(begun[3:6]) == ["· 1.1", "→ 1.1", "→ 1.2"]
    assert begun[6:] == ["✓ 1.1", "✗ 1.2", "step 2", "· model"]
    assert 'echo(text="hello")' in shown
    assert "10 tokens in, 5 out" in shown
    assert "ValueError: no luck" in shown


async def test_the_answer_is_not_shown_twice() -> None:
    """The text of the final answer is no line of the progress: whoever shows it shows it whole."""
    assert "Done." not in await _shown("Done.")


async def test_a_blocked_call_is_shown_with_its_reason() -> None:
    """A call that was blocked has one line, with its arguments and the reason as it is: markup is text."""
    shown = await _shown([_call("echo", '{"text":"[red]hi"}')], "Done.", interceptors=(Blocks(),))
    assert '⛔ 1.1 echo(text="[red]hi")  blocked: not on [bold]Sundays[/bold]' in shown
    assert "→" not in shown


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (_call("ehco", "{}"), "✗  1.1 ehco()  rejected: there is no tool 'ehco'; did you mean 'echo'?"),
        (_call("echo", '{"text": 7}'), "✗  1.1 echo(text=7)  rejected: "),
        (_call("echo", '{"text": "a'), '✗  1.1 echo({"text": "a)  rejected: '),
    ],
)
async def test_a_rejected_call_is_shown_as_the_model_made_it(call: ToolCall, told: str) -> None:
    """A call that could not be run is shown with what was wrong with it."""
    assert told in await _shown([call], "Done.", width=200)


@pytest.mark.parametrize("width", [30, 60])
async def test_lines_fit_the_console(width: int) -> None:
    """However long arguments and results are, no line is wider than the console, nor are there more lines."""
    shown = await _shown([_call("echo", '{"text":"' + "日本 " * 5_000 + '"}')], "Done.", width=width)
    lines = shown.splitlines()
    assert len(lines) == 7
    assert max(map(cell_len, lines)) <= width
    assert sum(line.endswith("…") for line in lines) >= 2


async def test_text_of_tools_does_not_reach_the_terminal_as_commands() -> None:
    """Escape sequences in arguments and results are spelled out."""
    shown = await _shown(["\x1b]0;title\x07", _call("echo", '{"text":"\\u001b[2Jgone"}')], "Done.", width=200)
    assert "\x1b" not in shown
    assert "\\x1b[2Jgone" in shown


async def test_on_a_terminal_the_cursor_comes_back() -> None:
    """The moving line is gone at the end, and the cursor is shown again, also after a failure."""
    for lines in (["Done."], [ValueError("no model")]):
        shown = await _shown(*lines, terminal=True)
        assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0


async def test_a_model_that_does_not_answer_is_shown() -> None:
    """An inference that failed has a line with the class of its error."""
    assert "ConnectionError" in await _shown(ConnectionError("down"))


def _head(parent: str | None = None) -> EventHead:
    return EventHead("a", "e", parent, 3, 1, datetime(2024, 1, 1, tzinfo=UTC))


def test_a_retry_is_shown_with_its_delay() -> None:
    """An attempt that is repeated is shown with the reason and the wait."""
    console = _console()
    Progress(console)(InferenceRetried(_head(), 1, ErrorInfo("RateLimited", "slow\ndown"), 1.5))
    assert _written(console) == "  ↻  attempt 1 failed, again in 1.5 s  RateLimited: slow down\n"


def test_a_call_that_is_tried_again_is_shown() -> None:
    """A failed attempt of a call is told with the reason and the wait."""
    console = _console()
    Progress(console)(ToolCallRetried(_head(), "e/3/0", "echo", 1, ErrorInfo("ConnectionError", "down"), 0.25))
    assert _written(console) == "  ↻  3.1 echo  attempt 1 failed, again in 250 ms  ConnectionError: down\n"


def test_a_cached_result_is_shown_with_its_age() -> None:
    """A call that did not run is told apart from one that did."""
    console = _console()
    Progress(console)(ToolCallCached(_head(), "e/3/1", "echo", 2.0))
    assert _written(console) == "  ·  3.2 echo  from the cache, 2.0 s old\n"


def test_answers_that_cannot_be_used_are_shown() -> None:
    """What is wrong with an answer is told: that it cannot be read, or that a call in it cannot be run."""
    console = _console()
    progress = Progress(console)
    progress(DecisionExtractionFailed(_head(), 1, "it is not\nJSON"))
    progress(ValidationFailed(_head(), 2, ("no tool 'a'", "no tool 'b'")))
    assert _written(console).splitlines() == [
        "  ↻  the answer cannot be read  it is not JSON",
        "  ↻  the answer cannot be used  no tool 'a'; no tool 'b'",
    ]


def test_a_step_that_is_gone_on_with_says_so() -> None:
    """After a decision the same step begins once more, and is not taken for a new one."""
    console = _console()
    progress = Progress(console)
    progress(AgentStepStarted(_head()))
    progress(AgentStepStarted(_head()))
    assert _written(console) == "step 3\nstep 3, going on\n"


def test_thoughts_have_a_line() -> None:
    """What a model thinks is shown, on one line."""
    console = _console()
    Progress(console)(InferenceResponseReceived(_head(), InferenceResponse((Reasoning("Hm.\nTwo."), Text("4")))))
    assert "  ·  thinks  Hm. Two.\n" in _written(console)


def test_text_is_shown_while_it_is_written() -> None:
    """Pieces follow each other on one line, indented where they break it, until another line comes; controls are spelled out."""
    console = _console()
    progress = Progress(console)
    for piece in ("\n", "It ", "is\nfour\x1b", "."):
        progress(InferenceDeltaReceived(_head(), InferenceDelta("text", piece)))
    progress(InferenceDeltaReceived(_head(), InferenceDelta("arguments", "{}")))
    progress(InferenceDeltaReceived(_head(parent="b"), InferenceDelta("text", "not mine")))
    progress(InferenceRetried(_head(), 1, ErrorInfo("RateLimited", "slow"), 1.5))
    progress(InferenceDeltaReceived(_head(), InferenceDelta("text", "Four.")))
    progress(InferenceResponseReceived(_head(), InferenceResponse((Text("Four."), _call("echo", "{}")))))
    assert _written(console).splitlines() == [
        "  ·  It is",
        "     four\\x1b.",
        "  ↻  attempt 1 failed, again in 1.5 s  RateLimited: slow",
        "  ·  Four.",
        "  ·  model  <1 ms  tokens unknown",
    ]
    assert progress.written == "Four."


def test_an_abandoned_call_is_shown() -> None:
    """A function that goes on in its thread is told."""
    console = _console()
    Progress(console)(ToolCallAbandoned(_head(), "e/3/0", _call("echo", "{}")))
    assert "3.1 echo  goes on in its thread" in _written(console)


def test_agents_that_serve_another_are_indented() -> None:
    """The lines of an agent that serves another stand further in."""
    console = _console()
    Progress(console)(AgentStepStarted(_head()))
    Progress(console)(AgentStepStarted(_head(parent="b")))
    assert _written(console) == "step 3\n    step 3\n"


def test_signs_are_letters_where_the_encoding_has_no_others() -> None:
    """On a console that is not Unicode every sign is ASCII."""
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True), width=80)
    Progress(console)(InferenceRetried(_head(), 1, ErrorInfo("RateLimited", "slow"), 1.5))
    assert raw.getvalue() == b"  ~  attempt 1 failed, again in 1.5 s  RateLimited: slow\n"
