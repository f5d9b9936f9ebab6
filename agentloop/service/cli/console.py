"""What the commands print: consoles, safe text, formatting, and the outcome of an execution."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event as ThreadEvent
from threading import RLock, Thread
from typing import Self, TextIO, TypeAlias, cast

import click
from attrs import frozen
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.segment import ControlType, Segment
from rich.text import Text

from agentloop.contracts.can_journal import CanRedactRecords
from agentloop.service.telemetry.logs import LogRedaction
from agentloop.values.batches import parse_key
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import Usage
from agentloop.values.records import outer_key
from agentloop.values.rendering import render_call
from agentloop.values.reprs import format_count
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import StopReason
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus
from agentloop.values.visible_text import escape_invisible

# --- consoles -------------------------------------------------------------------------------------------------------

_WIDTH_WITHOUT_TERMINAL = 120


def create_console(*, stderr: bool = False, file: TextIO | None = None) -> Console:
    """Create a console that prints text as it is: no markup, no emoji codes, and colors on terminals only.

    Args:
        stderr: write to stderr instead of stdout.
        file: write to this stream instead; None for stdout or stderr as they are at each moment.
    """
    # Texts of models and tools contain square brackets and colons, which rich would take for markup.
    console = Console(file=file, stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Rich falls back to 80 columns, in which tables in files and pipes wrap for no reason.
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def is_same_terminal(first: TextIO, second: TextIO) -> bool:
    """Return whether two streams write to the same terminal, where a person sees both."""
    if not (first.isatty() and second.isatty()):
        return False
    try:
        return os.path.samestat(os.fstat(first.fileno()), os.fstat(second.fileno()))
    except OSError:  # a stream without a file descriptor
        return False


# --- safe text ------------------------------------------------------------------------------------------------------

_MAX_LINE = 2_000
_WHITE_SPACE = re.compile(r"[ \t\r\n\f\v]+")
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed, among them the start of escape sequences
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # line separators, and marks and controls of the writing direction
    # Characters that show nothing and can carry a hidden text; joiners and selectors stay, which emoji and letters need.
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
    "\ud800-\udfff]"  # lone surrogates, which no encoding can write
)


def as_printable(text: str) -> str:
    """Escape every character that a terminal would interpret; tabs and line feeds stay."""
    # A lone carriage return stays unsafe: it lets a text overwrite the line before it.
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def as_one_line(text: str) -> str:
    """Return the text on one line, with every character visible; a text that is far longer than any line is cut, with a mark."""
    # Cut first: a result may be megabytes long. Only white space that a terminal shows as such is collapsed.
    line = _WHITE_SPACE.sub(" ", text[: _MAX_LINE * 2]).strip()
    if len(text) <= _MAX_LINE * 2 and len(line) <= _MAX_LINE:
        return escape_invisible(line)
    return f"{escape_invisible(line[:_MAX_LINE])}… [cut: {len(text):,} characters in all]"


def as_short_lines(text: str) -> str:
    """Return the text with every character that a terminal would interpret escaped, and long lines cut, with a mark."""
    lines = as_printable(text).split("\n")
    return "\n".join(line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}… [cut: {len(line):,}]" for line in lines)


DEBUG_VARIABLE = "AGENTLOOP_DEBUG"
"""The environment variable that has commands print tracebacks; `agentloop --debug` sets it."""


def is_debugging() -> bool:
    """Return whether a person wants tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}


class _VisibleRecords(logging.Formatter):
    """Formats log records so that a terminal shows every character: each on one line, with its traceback for a person who debugs."""

    def format(self, record: logging.LogRecord) -> str:
        if is_debugging() or not record.exc_info:
            return escape_invisible(super().format(record))
        error = record.exc_info[1]
        return as_one_line(f"{record.getMessage()}: {type(error).__name__}: {error}")


def escape_log_records() -> None:
    """Escape invisible characters in log records that no handler of the program takes, which Python prints to stderr."""
    # Messages of tools and servers are in them, as in the traceback of a tool that failed.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleRecords())


def mask_log_records(redactions: Iterable[CanRedactRecords]) -> None:
    """Mask secrets in the log records that this process writes until the command ends.

    Args:
        redactions: what is masked.
    """
    handlers = [*logging.getLogger().handlers, *([] if logging.lastResort is None else [logging.lastResort])]
    context = click.get_current_context()
    for redaction in redactions:
        masking = LogRedaction(redaction)
        for handler in handlers:
            handler.addFilter(masking)
            context.call_on_close(partial(handler.removeFilter, masking))


@contextmanager
def without_tool_records() -> Iterator[None]:
    """Print no log records about tools inside, where the progress has a line for each; a person who debugs gets both."""
    logger, handler = logging.getLogger("agentloop.tools"), logging.NullHandler()
    if not is_debugging():
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


# --- formatting -----------------------------------------------------------------------------------------------------

_MILLISECOND = 0.001
_MINUTE = 60.0


def format_call(call: ToolCall, *, in_full: bool = False) -> str:
    """Format a call on one line, as one would write it by hand: `find(name="Ada", limit=3)`.

    Args:
        call: the call.
        in_full: whether a call that is longer than any line is shown whole; otherwise it is cut, with a mark.
    """
    return render_call(call, max_length=None if in_full else _MAX_LINE)


def format_pending_call(call: PendingCall) -> str:
    """Format a call that waits on one line, whole and with its defaults: whoever reads it may decide about it by its number."""
    return render_call(call.call, defaults=call.defaults)


def format_settled_call(execution: ToolExecution, *, has_run: bool, in_full: bool = False) -> str:
    """Format a settled call: its name and duration, or its arguments if no line has shown them before."""
    if has_run:
        return f"{as_one_line(execution.name)}  {format_duration(execution.duration_ms / 1000)}"
    return format_call(execution.call, in_full=in_full)


def format_outcome(execution: ToolExecution) -> str:
    """Format the result of a call, or its status and error."""
    if execution.status in {ToolStatus.SUCCEEDED, ToolStatus.FAILED}:
        return execution.text
    return f"{execution.status.value.replace('_', ' ')}: {execution.error_message}"


def format_call_number(key: str) -> str:
    """Format the number of a call: its step and its place in the step, both from 1, such as `2.1`; in a program `2.1.3`."""
    place = parse_key(key)
    # Keys count places from 0, people count from 1.
    inner = f".{int(key.rpartition('/')[2]) + 1}" if outer_key(key) else ""
    return "" if place is None else f"{place[0]}.{place[1] + 1}{inner}"


def indent_call(key: str) -> str:
    """Return the indentation of a line about a call: calls of a program are below the call that runs it."""
    return "  " if outer_key(key) else ""


def format_duration(seconds: float) -> str:
    """Format a duration in a suitable unit: `3 ms`, `1.2 s`, `2 min 5 s`."""
    if seconds < _MILLISECOND:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), int(_MINUTE))
    return f"{minutes} min {rest} s"


def format_tokens(usage: Usage) -> str:
    """Format the input and output tokens; unknown counts are named as such."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return "tokens unknown"
    return f"{_format_token_count(usage.input_tokens)} tokens in, {_format_token_count(usage.output_tokens)} out"


def _format_token_count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


# --- progress elements ----------------------------------------------------------------------------------------------


@frozen
class Symbols:
    """Signs before the lines of an execution; each fits into two columns.

    Attributes:
        call: a tool starts.
        success: a call succeeded.
        failure: a call failed.
        block: a call was blocked.
        retry: something is repeated.
        note: anything else worth a line.
    """

    call: str
    success: str
    failure: str
    block: str
    retry: str
    note: str

    @classmethod
    def for_encoding(cls, encoding: str) -> Symbols:
        """Return signs that an encoding can write."""
        # A character that the encoding lacks would become a question mark in every line.
        return _UNICODE_SYMBOLS if encoding.lower().startswith("utf") else _ASCII_SYMBOLS

    def sign_of(self, status: ToolStatus) -> tuple[str, str]:
        """Return the sign of a settled call, and its style."""
        if status is ToolStatus.SUCCEEDED:
            return self.success, "green"
        return (self.block, "yellow") if status is ToolStatus.BLOCKED else (self.failure, "red")


_UNICODE_SYMBOLS = Symbols(call="→", success="✓", failure="✗", block="⛔", retry="↻", note="·")
_ASCII_SYMBOLS = Symbols(call="->", success="ok", failure="x", block="#", retry="~", note="-")


Line: TypeAlias = list[tuple[str, str]]
"""A line as texts with their styles. The texts have no characters that a terminal interprets."""


@frozen
class Lines:
    """Lines that are cut to the width of a console, with a mark, and never wrapped.

    They print several times as fast as rich's `Text`, which is made for more: an execution has some lines per turn, and each of
    them draws what moves below it again.

    Attributes:
        lines: the lines.
    """

    lines: Sequence[Line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of the lines."""
        for line in self.lines:
            for text, style in _cut(line, options.max_width):
                yield Segment(text, console.get_style(style) if style else None)
            yield Segment.line()


def _cut(line: Line, width: int) -> Line:
    """Return a line, or as much of it as fits with an ellipsis behind it."""
    if sum([cell_len(text) for text, _ in line]) <= width:
        return line
    cut: Line = []
    room = max(width - 1, 0)
    for text, style in line:
        size = cell_len(text)
        if size > room:
            return [*cut, (f"{set_cell_size(text, room)}…", style)]
        cut.append((text, style))
        room -= size
    return cut


class StreamedText:
    """Prints the chunks of a text as they arrive.

    Args:
        write: prints a text without ending the line.
        prefix: what is printed before each text.
        indent: what is printed before each further line of a text.
        end_line: ends the line of a text; None to print a line feed.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        prefix: str = "",
        indent: str = "",
        end_line: Callable[[], None] | None = None,
    ) -> None:
        self._write = write
        self._end_line = end_line or partial(write, "\n")
        self._prefix = prefix
        self._indent = indent
        self._is_open = False
        self._chunks: list[str] = []

    @classmethod
    def indented(cls, console: Console, symbol: str) -> Self:
        """Return one that prints to a console, dimmed and indented, with a sign before the text."""

        def write(text: str) -> None:
            console.print(Text(as_printable(text), "dim"), end="", soft_wrap=True)

        return cls(write, prefix=f"  {set_cell_size(symbol, 2)} ", indent=" " * 5)

    @property
    def last(self) -> str:
        """The text that was printed last, without surrounding white space."""
        return "".join(self._chunks).strip()

    def add(self, chunk: str) -> None:
        """Print the next chunk."""
        if not self._is_open:
            # Models often start with line breaks, which would leave an empty line.
            chunk = chunk.lstrip()
            if not chunk:
                return
            self._is_open = True
            self._chunks.clear()
            self._write(self._prefix)
        self._chunks.append(chunk)
        self._write(chunk.replace("\n", f"\n{self._indent}"))

    def end(self) -> bool:
        """End the line of the text, if one is open; return whether one was."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._end_line()
        return was_open

    def forget(self) -> None:
        """Forget the last text."""
        self._chunks.clear()


class _LowerLines(RenderHook):
    """Lines below all that is printed, drawn again with each print and some times per second.

    Rich's `Live` lays its content out anew for every line that is printed. Here lines wait for the next drawing, and whatever else is
    printed comes behind those that wait.

    Args:
        console: where they are drawn.
        draw: returns the lines as they are now.
    """

    def __init__(self, console: Console, draw: Callable[[], Lines]) -> None:
        self._console = console
        self._draw = draw
        self._height = 0
        self._is_shown = True
        self._waiting: list[Line] = []
        self._lock = RLock()
        self._ended = ThreadEvent()
        self._former: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)
        self._thread = Thread(target=self._redraw, name="agentloop progress", daemon=True)

    def start(self) -> None:
        """Hide the cursor and draw from now on; what others write to stdout and stderr goes above the lines."""
        self._console.show_cursor(show=False)
        sys.stdout, sys.stderr = self._above(sys.stdout), self._above(sys.stderr)
        self._console.push_render_hook(self)
        self._thread.start()

    def stop(self) -> None:
        """Remove the lines, and show the cursor."""
        self._ended.set()
        with self._console:  # the terminal gets all of it at once
            self._console.print(Control())
            self._is_shown = False
            self._console.print(Control())
            self._console.pop_render_hook()
            self._console.show_cursor(show=True)
        sys.stdout, sys.stderr = self._former
        self._thread.join()

    def draw(self) -> None:
        """Print what waits, and draw the lines anew."""
        self._console.print(Control())

    def clear(self) -> None:
        """Draw the lines anew if anything waits or is left of them."""
        if self._height or self._waiting:
            self.draw()

    def add(self, line: Line) -> None:
        """Print a line above the others, with the next drawing at the latest."""
        with self._lock:
            self._waiting.append(line)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Put what waits and what is printed in place of the lines, and the lines below it."""
        with self._lock:
            erase = Control(ControlType.CARRIAGE_RETURN, *_ERASED_LINE * self._height)
            renderables, self._waiting = [Lines(self._waiting), *renderables], []
            if not self._is_shown:
                self._height = 0
                return [erase, *renderables]
            drawn = self._draw()
            if len(drawn.lines) >= self._console.height:  # what has left the screen at its top cannot be erased
                drawn = Lines(drawn.lines[: self._console.height - 1])
            self._height = len(drawn.lines)
            return [erase, *renderables, drawn]

    def _above(self, stream: TextIO) -> TextIO:
        return stream if isinstance(stream, FileProxy) else cast("TextIO", FileProxy(self._console, stream))

    def _redraw(self) -> None:
        while not self._ended.wait(1 / _FRAMES_PER_SECOND):
            # Where nothing moves, others may be writing a line to the terminal.
            if self._height or self._waiting or self._draw().lines:
                self.draw()


_ERASED_LINE = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))


class Spinner:
    """Moving lines below the others that show what runs, each with its time; silent where the output is not a terminal.

    What runs at the same time stands side by side, as far as the width allows.

    Args:
        console: where it is shown.
        live: whether anything moves at all.
    """

    def __init__(self, console: Console, *, live: bool = True) -> None:
        self._drawing: _LowerLines | None = None
        self._console = console
        self._is_live = live and console.is_interactive
        self._shown: dict[str, tuple[str, float]] = {}
        has_dots = Symbols.for_encoding(console.encoding) is _UNICODE_SYMBOLS
        self._frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if has_dots else "-\\|/"

    def show(self, text: str) -> None:
        """Show one text."""
        self.show_all({"": text})

    def show_all(self, texts: Mapping[str, str]) -> None:
        """Show texts side by side; those with the key of one that is shown already go on with its time.

        Args:
            texts: the texts by keys of the caller; there may be none.
        """
        now = self._console.get_time()
        self._shown = {key: (text, self._shown.get(key, ("", now))[1]) for key, text in texts.items()}
        # A thread draws it at its own pace, so it starts with the first text only.
        if self._is_live and texts and self._drawing is None:
            self._drawing = _LowerLines(self._console, self._render)
            self._drawing.start()

    def clear(self) -> None:
        """Print what waits and remove the lines of what has ended, before others write to the terminal."""
        if self._drawing is not None and not self._shown:
            self._drawing.clear()

    def print_above(self, line: Line) -> None:
        """Print a line above those that move; while some move, it may wait for an eighth of a second."""
        if self._drawing is not None:
            self._drawing.add(line)
        else:
            # The line is cut already: rich would look for that again.
            self._console.print(Lines([line]), crop=False)

    def hide(self) -> None:
        """Remove the lines; the times go on for what is shown again."""
        if self._drawing is not None:
            self._drawing.stop()
            self._drawing = None

    def _render(self) -> Lines:
        now, shown = self._console.get_time(), tuple(self._shown.values())
        frame = self._frames[int(now * _FRAMES_PER_SECOND) % len(self._frames)]
        cells = [_cell(frame, text, now - since) for text, since in shown[:_MAX_CELLS]]
        more = [[(f"  {len(shown) - _MAX_CELLS} more", "")]] if len(shown) > _MAX_CELLS else []
        return Lines(_side_by_side([*cells, *more], self._console.width))


def _cell(frame: str, text: str, seconds: float) -> Line:
    # The time of what has just begun would only flicker.
    elapsed = f"  {seconds:.0f} s" if seconds >= 1 else ""
    return [(f"  {frame} {as_one_line(text)}", ""), (elapsed, "dim")]


def _side_by_side(cells: Iterable[Line], width: int) -> list[Line]:
    """Return lines of cells, as many beside each other as the width allows."""
    lines: list[Line] = []
    used = 0
    for cell in cells:
        size = cell_len("".join([text for text, _ in cell]))
        if lines and used + _CELL_GAP + size < width:
            lines[-1] += [(" " * _CELL_GAP, ""), *cell]
            used += _CELL_GAP + size
        else:
            lines.append([*cell])
            used = size
    return lines


_CELL_GAP = 3
_FRAMES_PER_SECOND = 8
_MAX_CELLS = 12
"""The number of running calls that are shown; more would fill a terminal."""


# --- the outcome of an execution ------------------------------------------------------------------------------------

_EXIT_CODES: Mapping[ExecutionStatus, int] = {ExecutionStatus.COMPLETED: 0, ExecutionStatus.FAILED: 1}
_STOPPED_OR_SUSPENDED = 3
_LIMIT_OPTIONS: Mapping[StopReason, str] = {
    StopReason.STEP_LIMIT: "--max-steps",
    StopReason.TIME_LIMIT: "--timeout",
    StopReason.TOKEN_LIMIT: "--max-tokens",
    StopReason.COST_LIMIT: "--max-cost",
}
_ADVICE: Mapping[str, str] = {
    "AuthenticationError": "Check the key in the provider's environment variable, and whether it may use this model.",
    "InvalidResponse": "Check that the address belongs to an API of this provider; a proxy or a login page may have responded.",
    "ContextLengthExceeded": "Shorten the question, or have the tools return less.",
}


def exit_code_of(state: AgentState) -> int:
    """Return the exit code of a command: 0 for an answer, 1 for a failure, 3 for a stopped or suspended execution."""
    return _EXIT_CODES.get(state.status, _STOPPED_OR_SUSPENDED)


def describe_problem(state: AgentState) -> str:
    """Describe in a line or two why there is no answer; return an empty text when there is one."""
    after = f"after {format_count(state.step_count, 'step')}"
    if state.status is ExecutionStatus.FAILED:
        return "\n".join([_describe_failure(state, after), *describe_doubts(state)])
    if state.status is ExecutionStatus.SUSPENDED:
        calls = [
            f"{format_pending_call(call)} waits for a decision: {as_one_line(call.reason)}" for call in state.pending
        ]
        total = format_count(len(calls), "call")
        return "\n".join([f"Suspended {after}: {total} {'waits' if len(calls) == 1 else 'wait'}.", *calls])
    if state.status is ExecutionStatus.COMPLETED:
        return "" if state.final_text else f"Completed {after}, but the model's answer has no text."
    signal = state.stop_signal
    if signal is None:
        return "\n".join(["Stopped.", *describe_doubts(state)])
    line = f"Stopped {after}: {as_one_line(signal.message or signal.reason.value)}."
    option = _LIMIT_OPTIONS.get(signal.reason)
    advice = f"To get further, ask again with a larger {option}." if option else ""
    return "\n".join([line, *describe_doubts(state), *filter(None, [advice])])


def describe_doubts(state: AgentState) -> list[str]:
    """Return a line about each call that did not succeed and may have had an effect; before them, one that says what to do."""
    lines = [
        f"  {format_call_number(execution.key)} {format_call(execution.call)}: {as_one_line(format_outcome(execution))}"
        for step in state.steps
        for execution in step.executions
        if not execution.succeeded and execution.may_have_run
    ]
    return (
        ["In doubt: these calls did not succeed, but may have had an effect. Look before you repeat them:", *lines]
        if lines
        else []
    )


def summarize(state: AgentState) -> str:
    """Summarize status, steps, calls by outcome, tokens and time on one line."""
    parts = [f"{state.status.value} in {format_count(state.step_count, 'step')}", _summarize_calls(state)]
    parts.append(format_tokens(state.usage))
    # A suspended execution has not ended, so it has no duration.
    execution = state.execution
    if execution is not None and execution.ended_at is not None:
        parts.append(format_duration((execution.ended_at - execution.started_at).total_seconds()))
    return " · ".join(parts)


def _summarize_calls(state: AgentState) -> str:
    total = format_count(state.tool_call_count, "tool call")
    counts = Counter(execution.status.value for step in state.steps for execution in step.executions)
    counts.update({"waiting": len(state.pending)} if state.pending else {})
    listed = ", ".join([f"{count:,} {status.replace('_', ' ')}" for status, count in counts.items()])
    return f"{total} ({listed})" if listed else total


def _describe_failure(state: AgentState, after: str) -> str:
    if not state.errors:
        return f"Failed {after}."
    error = state.errors[-1]
    lines = [f"Failed {after}: {error.type}: {as_one_line(error.message)}"]
    return "\n".join([*lines, *filter(None, [_ADVICE.get(error.type)])])
