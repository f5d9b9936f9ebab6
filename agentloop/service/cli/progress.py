"""The progress of an execution, line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import singledispatchmethod
from typing import Any, Self, TypeVar

import click
from rich.cells import set_cell_size
from rich.console import Console

from agentloop.events.execution import AgentStepStarted, ExecutionEnded
from agentloop.events.inference import (
    DecisionExtractionFailed,
    InferenceDelayed,
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    ValidationFailed,
)
from agentloop.events.resilience import ToolCallCached, ToolCallRetried
from agentloop.events.tool_calls import (
    AbandonedToolCallEnded,
    InferenceReused,
    Recovery,
    ToolCallAbandoned,
    ToolCallProgressed,
    ToolCallRecovered,
    ToolCallSettled,
    ToolCallSlow,
    ToolCallStarted,
)
from agentloop.service.cli.console import (
    Line,
    Spinner,
    Symbols,
    as_one_line,
    format_call,
    format_call_number,
    format_duration,
    format_outcome,
    format_settled_call,
    format_tokens,
    indent_call,
    without_tool_records,
)
from agentloop.service.cli.markdown import indented_text
from agentloop.values.event import Event
from agentloop.values.json import format_json
from agentloop.values.parts import Reasoning
from agentloop.values.visible_text import escape_invisible

_RECOVERIES: Mapping[Recovery, str] = {
    Recovery.REUSED: "was complete: its recorded outcome is reused",
    Recovery.REPEATED: "was interrupted: it runs again with the same key",
    Recovery.CONTINUED: "was interrupted: it continues from its own record",
    Recovery.RECONCILED: "was interrupted: its tool reports that it ran, with this outcome",
    Recovery.IN_DOUBT: "was interrupted: it may have run, and does not run again",
}


FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)
no_live_option: Callable[[FC], FC] = click.option(
    "--no-live", is_flag=True, help="Print lines only, without the moving ones that show on a terminal what runs."
)


class Progress:
    """A wiretap that prints one line per event, cut to the width of the console, above moving lines for what runs.

        with Progress(console) as progress:
            loop.wiretap(progress)

    Calls are numbered by step and place, so that results of parallel calls of one tool can be told apart.

    Args:
        console: where the lines are printed.
        live: whether moving lines show what runs; they are shown on terminals only.
    """

    def __init__(self, console: Console, *, live: bool = True) -> None:
        self._symbols = Symbols.for_encoding(console.encoding)
        self._spinner = Spinner(console, live=live)
        self._requested_at: dict[str, datetime] = {}
        self._reused: set[str] = set()
        self._running: dict[str, str] = {}
        self._last_step: dict[str, int] = {}
        self._silenced = ExitStack()
        self._streamed = indented_text(console, self._symbols)

    def __enter__(self) -> Self:
        self._silenced.enter_context(without_tool_records())
        return self

    def __exit__(self, *_: object) -> None:
        self._silenced.close()
        self._spinner.hide()
        self._streamed.end()

    @property
    def streamed_text(self) -> str:
        """The last text of the model that was printed while it was generated, without surrounding white space."""
        return self._streamed.last

    def __call__(self, event: Event) -> None:
        """Print the line of an event, if it has one."""
        self._show(event)

    def clear(self) -> None:
        """Leave nothing moving on the terminal that has ended, before others write to it."""
        self._spinner.clear()

    @singledispatchmethod
    def _show(self, event: Event) -> None:
        """Ignore events that no method below is registered for."""

    @_show.register
    def _step_started(self, event: AgentStepStarted) -> None:
        # A step starts a second time when its pending calls have been decided.
        is_resumed = self._last_step.get(event.execution_id) == event.step_number
        self._last_step[event.execution_id] = event.step_number
        self._print(event, [(f"step {event.step_number}{', resumed' if is_resumed else ''}", "bold")])

    # --- the model --------------------------------------------------------------------------------------------------

    @_show.register
    def _request_started(self, event: InferenceRequestStarted) -> None:
        self._requested_at[event.execution_id] = event.time
        agent = "" if event.parent_agent_id is None else " of an agent"
        self._running[event.execution_id] = f"model{agent}"
        self._show_running()

    @_show.register
    def _delayed(self, event: InferenceDelayed) -> None:
        text = f"waiting for {event.reason}" + (f", for {format_duration(event.delay)}" if event.delay else "")
        self._line(event, self._symbols.note, "yellow", text)

    @_show.register
    def _retried(self, event: InferenceRetried) -> None:
        text = f"attempt {event.attempt} failed, retrying in {format_duration(event.delay)}"
        self._line(event, self._symbols.retry, "yellow", text, f"{event.error.type}: {event.error.message}")

    @_show.register
    def _delta_received(self, event: InferenceDeltaReceived) -> None:
        # Text of sub-agents is left out: their streams would interleave.
        if event.delta.kind == "text" and event.parent_agent_id is None:
            self._running.pop(event.execution_id, None)
            self._spinner.hide()
            self._streamed.add(event.delta.text)

    @_show.register
    def _response_received(self, event: InferenceResponseReceived) -> None:
        self._running.pop(event.execution_id, None)
        was_streamed = event.parent_agent_id is None and self._streamed.end()
        is_reused = event.execution_id in self._reused
        # The mark belongs to this response only; the next one may be a real request.
        self._reused.discard(event.execution_id)
        source = "recorded response reused" if is_reused else self._format_elapsed(event)
        self._line(event, self._symbols.note, "dim", f"model  {source}", format_tokens(event.response.usage))
        reasoning = " ".join([part.text for part in event.response.parts if isinstance(part, Reasoning)])
        if reasoning.strip():
            self._line(event, self._symbols.note, "dim", "thinks", reasoning)
        # Without calls the text is the answer, which the command prints itself.
        if event.response.tool_calls and event.response.text.strip() and not was_streamed:
            self._line(event, self._symbols.note, "dim", "says", event.response.text)
        self._show_running()

    @_show.register
    def _response_reused(self, event: InferenceReused) -> None:
        self._reused.add(event.execution_id)

    @_show.register
    def _request_failed(self, event: InferenceFailed) -> None:
        self._running.pop(event.execution_id, None)
        self._line(event, self._symbols.failure, "red", f"model  {self._format_elapsed(event)}", event.error.type)
        self._show_running()

    @_show.register
    def _response_unreadable(self, event: DecisionExtractionFailed) -> None:
        self._line(event, self._symbols.retry, "yellow", "unreadable response", event.problem)

    @_show.register
    def _response_invalid(self, event: ValidationFailed) -> None:
        self._line(event, self._symbols.retry, "yellow", "invalid response", "; ".join(event.problems))

    # --- tool calls -------------------------------------------------------------------------------------------------

    @_show.register
    def _call_started(self, event: ToolCallStarted) -> None:
        self._running[event.key] = f"{format_call_number(event.key)} {event.call.name}"
        self._line(event, self._symbols.call, "cyan", f"{format_call_number(event.key)} {format_call(event.call)}")
        self._show_running()

    @_show.register
    def _call_recovered(self, event: ToolCallRecovered) -> None:
        text = f"{format_call_number(event.key)} {event.name}  {_RECOVERIES[event.recovery]}"
        self._line(event, self._symbols.retry, "yellow", text, event.reason)

    @_show.register
    def _call_progressed(self, event: ToolCallProgressed) -> None:
        update = event.update if isinstance(event.update, str) else format_json(event.update).decode()
        self._line(event, self._symbols.note, "dim", f"{format_call_number(event.key)} {event.name}", update)

    @_show.register
    def _call_retried(self, event: ToolCallRetried) -> None:
        delay = format_duration(event.delay)
        text = f"{format_call_number(event.key)} {event.name}  attempt {event.attempt} failed, retrying in {delay}"
        self._line(event, self._symbols.retry, "yellow", text, f"{event.error.type}: {event.error.message}")

    @_show.register
    def _call_cached(self, event: ToolCallCached) -> None:
        text = f"{format_call_number(event.key)} {event.name}"
        self._line(event, self._symbols.note, "dim", text, f"from the cache, {format_duration(event.age)} old")

    @_show.register
    def _call_abandoned(self, event: ToolCallAbandoned) -> None:
        self._note_call(event, "yellow", "still runs; its result is discarded")

    @_show.register
    def _call_slow(self, event: ToolCallSlow) -> None:
        self._note_call(event, "yellow", f"has been running for {format_duration(event.seconds)}")

    @_show.register
    def _abandoned_call_ended(self, event: AbandonedToolCallEnded) -> None:
        error = "" if event.error is None else f" with {event.error.type}: {event.error.message}"
        self._note_call(event, "dim", f"has ended{error}; its result was discarded")

    def _note_call(
        self, event: ToolCallAbandoned | ToolCallSlow | AbandonedToolCallEnded, style: str, detail: str
    ) -> None:
        text = f"{format_call_number(event.key)} {event.call.name}"
        self._line(event, self._symbols.note, style, text, detail)

    @_show.register
    def _call_settled(self, event: ToolCallSettled) -> None:
        execution = event.execution
        # A rejected or blocked call has no line yet, so its arguments are shown now.
        has_run = self._running.pop(event.key, None) is not None
        symbol, style = self._symbols.sign_of(execution.status)
        text = f"{format_call_number(event.key)} {format_settled_call(execution, has_run=has_run)}"
        self._line(event, symbol, style, text, format_outcome(execution))
        self._show_running()

    @_show.register
    def _ended(self, event: ExecutionEnded) -> None:
        if event.parent_agent_id is None:
            self._running.clear()
            self._spinner.hide()

    # --- lines ------------------------------------------------------------------------------------------------------

    def _format_elapsed(self, event: Event) -> str:
        """Return the time since the request; a response without a request took no time."""
        # A recorded response that is reused has no request.
        requested_at = self._requested_at.pop(event.execution_id, event.time)
        return format_duration((event.time - requested_at).total_seconds())

    def _show_running(self) -> None:
        self._spinner.show_all(self._running)

    def _line(self, event: Event, symbol: str, style: str, text: str, detail: str = "") -> None:
        # Texts contain names of tools, which a server may have chosen.
        visible = escape_invisible(text).replace("\n", "\\n")
        indent = indent_call(getattr(event, "key", ""))
        line = [
            (f"  {indent}{set_cell_size(symbol, 2)} ", style),
            (visible, "dim" if style == "dim" else ""),
        ]
        if detail:
            line.append((f"  {as_one_line(detail)}", "dim"))
        self._print(event, line)

    def _print(self, event: Event, line: Line) -> None:
        # A line in the middle of a streamed text would continue it on the terminal.
        self._streamed.end()
        indent = "" if event.parent_agent_id is None else "    "
        self._spinner.print_above([(indent, ""), *line])
