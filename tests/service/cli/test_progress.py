"""The progress of an execution, line by line."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len
from rich.console import Console

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.events import (
    AbandonedToolCallEnded,
    AgentStepStarted,
    DecisionExtractionFailed,
    EventBus,
    InferenceDelayed,
    InferenceDeltaReceived,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    ToolCallAbandoned,
    ToolCallCached,
    ToolCallProgressed,
    ToolCallRetried,
    ToolCallSlow,
    ToolCallStarted,
    ValidationFailed,
)
from agentloop.models.scripted import ScriptLine
from agentloop.service.cli.progress import Progress
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Reasoning, Text
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


class BlockEcho(Interceptor):
    """Blocks calls of one tool."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not on [bold]Sundays[/bold]") if point.call.name == "echo" else point


def _console(width: int = 100, *, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, legacy_windows=False)


def _output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def _progress_of(
    *lines: ScriptLine, width: int = 100, terminal: bool = False, interceptors: tuple[Interceptor, ...] = ()
) -> str:
    """Return the progress of an execution; an error of the listener is raised."""
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
    return _output(console)


def _call(name: str, arguments_json: str) -> ToolCall:
    return ToolCall("1", name, arguments_json)


async def test_every_stage_has_its_line() -> None:
    """Steps, tokens, texts of the model, calls, their progress and their outcomes are shown in order."""
    shown = await _progress_of(
        ["Let me see.", _call("echo", '{"text":"hello"}'), _call("fail", '{"why":"no luck"}')], "Done."
    )
    starts = [" ".join(line.split()[:2]) for line in shown.splitlines()]
    assert starts[:3] == ["step 1", "· model", "· says"]
    assert sorted(starts[3:6]) == ["· 1.1", "→ 1.1", "→ 1.2"]
    assert starts[6:] == ["✓ 1.1", "✗ 1.2", "step 2", "· model"]
    assert 'echo(text="hello")' in shown
    assert "10 tokens in, 5 out" in shown
    assert "ValueError: no luck" in shown


async def test_the_answer_is_not_part_of_the_progress() -> None:
    """The progress leaves the final answer to its caller, which prints it in full."""
    assert "Done." not in await _progress_of("Done.")


async def test_a_blocked_call_is_shown_with_its_reason() -> None:
    """A blocked call has one line with its arguments and the reason, in which markup is plain text."""
    shown = await _progress_of([_call("echo", '{"text":"[red]hi"}')], "Done.", interceptors=(BlockEcho(),))
    assert '⛔ 1.1 echo(text="[red]hi")  blocked: not on [bold]Sundays[/bold]' in shown
    assert "→" not in shown


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (_call("ehco", "{}"), "✗  1.1 ehco()  rejected: there is no tool 'ehco'; did you mean 'echo'?"),
        (_call("echo", '{"text": 7}'), "✗  1.1 echo(text=7)  rejected: "),
        (_call("echo", '{"text": "a'), '✗  1.1 echo("{\\"text\\": \\"a")  rejected: '),
    ],
)
async def test_a_rejected_call_is_shown_with_its_arguments(call: ToolCall, line: str) -> None:
    """A rejected call is shown with its arguments and the error."""
    assert line in await _progress_of([call], "Done.", width=200)


@pytest.mark.parametrize("width", [30, 60])
async def test_lines_fit_the_console(width: int) -> None:
    """Long arguments and results are cut to the width of the console, and add no lines."""
    shown = await _progress_of([_call("echo", '{"text":"' + "日本 " * 5_000 + '"}')], "Done.", width=width)
    lines = shown.splitlines()
    assert len(lines) == 7
    assert max(map(cell_len, lines)) <= width
    assert sum(line.endswith("…") for line in lines) >= 2


async def test_control_characters_are_escaped() -> None:
    """Escape sequences in texts, arguments and results are escaped."""
    shown = await _progress_of(["\x1b]0;title\x07", _call("echo", '{"text":"\\u001b[2Jgone"}')], "Done.", width=200)
    assert "\x1b" not in shown
    assert "\\u001b[2Jgone" in shown


async def test_the_cursor_is_restored() -> None:
    """At the end the spinner is removed and the cursor is visible again, also after a failure."""
    for lines in (["Done."], [ValueError("no model")]):
        shown = await _progress_of(*lines, terminal=True)
        assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0


async def test_a_failed_request_is_shown() -> None:
    """A failed request has a line with the class of its error."""
    assert "ConnectionError" in await _progress_of(ConnectionError("down"))


def _head(parent: str | None = None) -> EventHead:
    return EventHead("a", "e", parent, 3, 1, datetime(2024, 1, 1, tzinfo=UTC))


def test_a_retry_is_shown_with_its_delay() -> None:
    """A repeated request is shown with the reason and the delay."""
    console = _console()
    Progress(console)(InferenceRetried(_head(), 1, ErrorInfo("RateLimited", "slow\ndown"), 1.5))
    assert _output(console) == "  ↻  attempt 1 failed, retrying in 1.5 s  RateLimited: slow down\n"


def test_a_request_that_waits_for_a_limit_is_shown() -> None:
    """The limit is shown, and the time if it is known."""
    console = _console()
    progress = Progress(console)
    progress(InferenceDelayed(_head(), "60 requests per minute", 0, 1.5))
    progress(InferenceDelayed(_head(), "earlier requests", 3))
    assert _output(console).splitlines() == [
        "  ·  waiting for 60 requests per minute, for 1.5 s",
        "  ·  waiting for earlier requests",
    ]


def test_a_retried_call_is_shown() -> None:
    """A repeated call is shown with the reason and the delay."""
    console = _console()
    Progress(console)(ToolCallRetried(_head(), "e/3/0", "echo", 1, ErrorInfo("ConnectionError", "down"), 0.25))
    assert _output(console) == "  ↻  3.1 echo  attempt 1 failed, retrying in 250 ms  ConnectionError: down\n"


def test_a_cached_result_is_shown_with_its_age() -> None:
    """A call whose result comes from the cache is shown as such."""
    console = _console()
    Progress(console)(ToolCallCached(_head(), "e/3/1", "echo", 2.0))
    assert _output(console) == "  ·  3.2 echo  from the cache, 2.0 s old\n"


def test_unusable_responses_are_shown() -> None:
    """A response that cannot be read, or that contains invalid calls, is shown with its problems."""
    console = _console()
    progress = Progress(console)
    progress(DecisionExtractionFailed(_head(), 1, "it is not\nJSON"))
    progress(ValidationFailed(_head(), 2, ("no tool 'a'", "no tool 'b'")))
    assert _output(console).splitlines() == [
        "  ↻  unreadable response  it is not JSON",
        "  ↻  invalid response  no tool 'a'; no tool 'b'",
    ]


def test_a_resumed_step_is_marked() -> None:
    """A step that starts again after a decision is shown as resumed."""
    console = _console()
    progress = Progress(console)
    progress(AgentStepStarted(_head()))
    progress(AgentStepStarted(_head()))
    assert _output(console) == "step 3\nstep 3, resumed\n"


def test_reasoning_has_a_line() -> None:
    """The reasoning of a model is shown on one line."""
    console = _console()
    Progress(console)(InferenceResponseReceived(_head(), InferenceResponse((Reasoning("Hm.\nTwo."), Text("4")))))
    assert "  ·  thinks  Hm. Two.\n" in _output(console)


def test_streamed_text_is_shown_as_it_arrives() -> None:
    """Chunks follow each other on one line, are indented after line breaks, and end before the next line of the progress."""
    console = _console()
    progress = Progress(console)
    for chunk in ("\n", "It ", "is\nfour\x1b", "."):
        progress(InferenceDeltaReceived(_head(), InferenceDelta("text", chunk)))
    progress(InferenceDeltaReceived(_head(), InferenceDelta("arguments", "{}")))
    progress(InferenceDeltaReceived(_head(parent="b"), InferenceDelta("text", "not mine")))
    progress(InferenceRetried(_head(), 1, ErrorInfo("RateLimited", "slow"), 1.5))
    progress(InferenceDeltaReceived(_head(), InferenceDelta("text", "Four.")))
    progress(InferenceResponseReceived(_head(), InferenceResponse((Text("Four."), _call("echo", "{}")))))
    assert _output(console).splitlines() == [
        "  ·  It is",
        "     four\\x1b.",
        "  ↻  attempt 1 failed, retrying in 1.5 s  RateLimited: slow",
        "  ·  Four.",
        "  ·  model  <1 ms  tokens unknown",
    ]
    assert progress.streamed_text == "Four."


def test_an_abandoned_call_is_shown() -> None:
    """A call whose tool still runs is shown."""
    console = _console()
    Progress(console)(ToolCallAbandoned(_head(), "e/3/0", _call("echo", "{}")))
    assert "3.1 echo  still runs; its result is discarded" in _output(console)


def test_sub_agents_are_indented() -> None:
    """The lines of a sub-agent are indented."""
    console = _console()
    Progress(console)(AgentStepStarted(_head()))
    Progress(console)(AgentStepStarted(_head(parent="b")))
    assert _output(console) == "step 3\n    step 3\n"


def test_signs_are_ascii_where_the_encoding_requires_it() -> None:
    """On a console without Unicode, every sign is ASCII."""
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True), width=80)
    Progress(console)(InferenceRetried(_head(), 1, ErrorInfo("RateLimited", "slow"), 1.5))
    assert raw.getvalue() == b"  ~  attempt 1 failed, retrying in 1.5 s  RateLimited: slow\n"


def test_slow_calls_and_the_end_of_abandoned_ones_are_shown() -> None:
    """A call that runs for long has a line, and so has the end of a tool whose result is discarded."""
    console, call = _console(), ToolCall("1", "echo")
    progress = Progress(console)
    progress(ToolCallSlow(_head(), "e/3/0", call, 60.0))
    progress(AbandonedToolCallEnded(_head(), "e/3/0", call, ErrorInfo("ValueError", "no")))
    assert _output(console).splitlines() == [
        "  ·  3.1 echo  has been running for 1 min 0 s",
        "  ·  3.1 echo  has ended with ValueError: no; its result was discarded",
    ]


def test_names_of_tools_are_escaped() -> None:
    """A name that a server has chosen cannot control the terminal, in any line."""
    console, name = _console(), "\u202eohce\x1b[2J\n\u200b"
    progress = Progress(console)
    progress(ToolCallProgressed(_head(), "e/3/0", name, "half"))
    progress(ToolCallRetried(_head(), "e/3/0", name, 1, ErrorInfo("ConnectionError", "down"), 0.25))
    progress(ToolCallSlow(_head(), "e/3/0", ToolCall("1", name), 60.0))
    shown = _output(console)
    assert len(shown.splitlines()) == 3
    assert [char for char in "\u202e\x1b\u200b" if char in shown] == []


def test_parallel_calls_move_side_by_side_with_their_times() -> None:
    """On a terminal, one line shows all that runs, each with its own time; what has ended is not on it any more."""
    now = [0.0]
    console = Console(
        file=io.StringIO(),
        width=100,
        force_terminal=True,
        legacy_windows=False,
        color_system=None,
        get_time=lambda: now[0],
    )
    with Progress(console) as progress:
        progress(ToolCallStarted(_head(), "e/3/0", _call("stock", "{}")))
        now[0] = 2.0
        progress(ToolCallStarted(_head(), "e/3/1", _call("price", "{}")))
        now[0] = 5.0
        progress(InferenceRequestStarted(_head(), InferenceRequest(())))
    shown = [line for line in _output(console).splitlines() if "3.1 stock" in line and "3.2 price" in line]
    assert re.search(r"3\.1 stock  5 s +\S 3\.2 price  3 s +\S model", shown[-1])


def test_without_live_nothing_moves() -> None:
    """On a terminal, too, `live=False` prints lines only."""
    console = _console(terminal=True)
    with Progress(console, live=False) as progress:
        progress(ToolCallStarted(_head(), "e/3/0", _call("stock", "{}")))
    assert "\x1b[?25l" not in _output(console)
    assert len(_output(console).splitlines()) == 1
