"""Consoles: where the command line writes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import TextIO

from attrs import frozen
from rich.cells import set_cell_size
from rich.console import Console
from rich.status import Status
from rich.text import Text

from agentloop.errors import MalformedArguments
from agentloop.values.inference import Usage
from agentloop.values.json import format_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolCall

_WIDTH_OF_A_FILE = 120


def console(*, stderr: bool = False) -> Console:
    """Make a console that writes text as it is: no markup, no emoji codes, colors only where a terminal shows them.

    Args:
        stderr: write to stderr instead of stdout.
    """
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=_WIDTH_OF_A_FILE)
    return made


def on_one_terminal(one: TextIO, other: TextIO) -> bool:
    """Say whether two streams go to the same terminal, so that a person sees both."""
    if not (one.isatty() and other.isatty()):
        return False
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except OSError:  # a stream that is no file
        return False


_LONGEST_LINE = 2_000
_ACTED_ON = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed, among them those that begin a sequence
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"  # separators of lines, and what turns the direction of writing around
    "\ud800-\udfff]"  # halves of characters, which no encoding can write
)


def printable(text: str) -> str:
    """Return the text with every character that a terminal would act on spelled out; tabs and line feeds stay."""
    return _ACTED_ON.sub(_spelled, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the text on one line, printable, and cut where it is far longer than any line."""
    return printable(" ".join(text[:_LONGEST_LINE].split()))


def call_text(call: ToolCall) -> str:
    """Return a call as a person would write it: `find(name="Ada", limit=3)`."""
    try:
        arguments = call.arguments
    except MalformedArguments:
        return one_line(f"{call.name}({call.arguments_json})")
    listed = ", ".join([f"{name}={format_json(value).decode()}" for name, value in arguments.items()])
    return one_line(f"{call.name}({listed})")


def _spelled(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


_INDENT = " " * 5


class WrittenText:
    """Shows pieces of text as they come, dim and indented, one after the other.

    Args:
        console: where they are shown.
        symbol: the sign at the beginning.
    """

    def __init__(self, console: Console, symbol: str) -> None:
        self._console = console
        self._begin = f"  {set_cell_size(symbol, 2)} "
        self._is_open = False
        self._pieces: list[str] = []

    @property
    def last(self) -> str:
        """The text that was shown last, without the white space around it."""
        return "".join(self._pieces).strip()

    def add(self, piece: str) -> None:
        """Show one more piece."""
        if not self._is_open:
            piece = piece.lstrip()
            if not piece:
                return
            self._is_open = True
            self._pieces.clear()
            self._show(self._begin)
        self._pieces.append(piece)
        self._show(printable(piece).replace("\n", f"\n{_INDENT}"))

    def end(self) -> bool:
        """End the text, if there is any, and say whether there was."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._console.print()
        return was_open

    def _show(self, piece: str) -> None:
        self._console.print(Text(piece, "dim"), end="", soft_wrap=True)


@frozen
class Symbols:
    """Signs for what happens in an execution; each fits into two columns.

    Attributes:
        call: a tool begins to run.
        success: it returned.
        failure: it did not.
        block: it was kept from running.
        retry: the model is asked again.
        note: anything else worth a line.
    """

    call: str
    success: str
    failure: str
    block: str
    retry: str
    note: str

    @classmethod
    def of(cls, encoding: str) -> Symbols:
        """Return the signs that an encoding can write."""
        return _PICTURES if encoding.lower().startswith("utf") else _LETTERS


_PICTURES = Symbols(call="→", success="✓", failure="✗", block="⛔", retry="↻", note="·")
_LETTERS = Symbols(call="->", success="ok", failure="x", block="#", retry="~", note="-")


_MILLISECOND = 0.001
_MINUTE = 60.0


def counted(number: int, thing: str) -> str:
    """Return a number of things: `1 step`, `1,200 steps`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def duration(seconds: float) -> str:
    """Return a length of time, in the unit that suits it: `3 ms`, `1.2 s`, `2 min 5 s`."""
    if seconds < _MILLISECOND:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), int(_MINUTE))
    return f"{minutes} min {rest} s"


def tokens(usage: Usage) -> str:
    """Return the tokens in and out; what is unknown is called so."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return "tokens unknown"
    return f"{_number(usage.input_tokens)} tokens in, {_number(usage.output_tokens)} out"


def _number(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


class Waiting:
    """A line that moves below the others on a terminal; nothing where the output is not one.

    Args:
        console: where the line is shown.
    """

    def __init__(self, console: Console) -> None:
        self._status: Status | None = None
        self._console = console

    def show(self, what: str) -> None:
        """Say what is being waited for."""
        if not self._console.is_interactive:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(what)

    def hide(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


_CODES: Mapping[ExecutionStatus, int] = {ExecutionStatus.COMPLETED: 0, ExecutionStatus.FAILED: 1}
_CUT_SHORT = 3
_ADVICE: Mapping[str, str] = {
    "AuthenticationError": "Is the key in the provider's environment variable the right one, and may it use this model?",
    "InvalidResponse": "Is this the address of an API of the provider's kind? A proxy or a login page may have answered.",
    "ContextLengthExceeded": "Shorten the question, or have the tools return less.",
}


def exit_code(state: AgentState) -> int:
    """Return what the process ends with: 0 for an answer, 1 for a failure, 3 for an execution that was cut short or waits."""
    return _CODES.get(state.status, _CUT_SHORT)


def shortcoming(state: AgentState) -> str:
    """Say in a line or two why there is no answer; empty when there is one."""
    after = f"after {counted(state.step_count, 'step')}"
    if state.status is ExecutionStatus.FAILED:
        return _failure(state, after)
    if state.status is ExecutionStatus.SUSPENDED:
        waiting = [f"{call_text(call.call)} waits for a decision: {one_line(call.reason)}" for call in state.pending]
        total = counted(len(waiting), "call")
        return "\n".join([f"Suspended {after}: {total} {'waits' if len(waiting) == 1 else 'wait'}.", *waiting])
    if state.status is ExecutionStatus.COMPLETED:
        return "" if state.final_text else f"Completed {after}, but the model gave no text as its answer."
    signal = state.stop_signal
    return f"Stopped {after}: {one_line(signal.message or signal.reason.value)}." if signal is not None else "Stopped."


def summary(state: AgentState) -> str:
    """Return steps, calls by outcome, tokens and time, on one line."""
    parts = [f"{state.status.value} in {counted(state.step_count, 'step')}", _calls(state), tokens(state.usage)]
    execution = state.execution
    if execution is not None and execution.ended_at is not None:
        parts.append(duration((execution.ended_at - execution.started_at).total_seconds()))
    return " · ".join(parts)


def _calls(state: AgentState) -> str:
    total = counted(state.tool_call_count, "tool call")
    found = Counter(execution.status.value for step in state.steps for execution in step.executions)
    found.update({"waiting": len(state.pending)} if state.pending else {})
    listed = ", ".join([f"{number:,} {status.replace('_', ' ')}" for status, number in found.items()])
    return f"{total} ({listed})" if listed else total


def _failure(state: AgentState, after: str) -> str:
    if not state.errors:
        return f"Failed {after}."
    error = state.errors[-1]
    lines = [f"Failed {after}: {error.type}: {one_line(error.message)}"]
    return "\n".join([*lines, *filter(None, [_ADVICE.get(error.type)])])
