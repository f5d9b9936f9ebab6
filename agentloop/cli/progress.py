"""The progress of an execution, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import singledispatchmethod
from typing import Self

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from agentloop.cli.console import Symbols, Waiting, WrittenText, call_text, duration, one_line, tokens
from agentloop.events.execution import AgentStepStarted, ExecutionEnded
from agentloop.events.inference import (
    DecisionExtractionFailed,
    InferenceDeltaReceived,
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    ValidationFailed,
)
from agentloop.events.resilience import ToolCallCached, ToolCallRetried
from agentloop.events.tool_calls import (
    InferenceReused,
    Recovery,
    ToolCallAbandoned,
    ToolCallProgressed,
    ToolCallRecovered,
    ToolCallSettled,
    ToolCallStarted,
)
from agentloop.values.batches import parse_key
from agentloop.values.event import Event
from agentloop.values.json import format_json
from agentloop.values.parts import Reasoning
from agentloop.values.tool_calls import ToolExecution, ToolStatus

_RECOVERIES: Mapping[Recovery, str] = {
    Recovery.REUSED: "had ended: the recorded outcome is used",
    Recovery.REPEATED: "was interrupted: it runs again, with the same key",
    Recovery.CONTINUED: "was interrupted: it goes on from its own record",
    Recovery.RECONCILED: "was interrupted: its tool says that it has run, and what came of it",
    Recovery.IN_DOUBT: "was interrupted: it may have run, and is not run again",
}


class Progress:
    """A wiretap that writes what happens, one line per event, each cut to the width of the console.

        with Progress(console) as progress:
            loop.wiretap(progress)

    Calls are numbered by step and place, so that a result can be told from that of a sibling of the same name.

    Args:
        console: where the lines go.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._symbols = Symbols.of(console.encoding)
        self._waiting = Waiting(console)
        self._asked_at: dict[str, datetime] = {}
        self._reused: set[str] = set()
        self._running: dict[str, str] = {}
        self._last_step: dict[str, int] = {}
        self._written = WrittenText(console, self._symbols.note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.hide()
        self._written.end()

    @property
    def written(self) -> str:
        """The last text of the model that was shown while it was written, without the white space around it."""
        return self._written.last

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._tell(event)

    @singledispatchmethod
    def _tell(self, event: Event) -> None:
        """Say nothing of events that no method below is registered for."""

    @_tell.register
    def _step_started(self, event: AgentStepStarted) -> None:
        again = self._last_step.get(event.execution_id) == event.step_number
        self._last_step[event.execution_id] = event.step_number
        self._print(event, Text(f"step {event.step_number}{', going on' if again else ''}", "bold"))

    @_tell.register
    def _asked(self, event: InferenceRequestStarted) -> None:
        self._asked_at[event.execution_id] = event.time
        self._waiting.show("asking the model")

    @_tell.register
    def _retried(self, event: InferenceRetried) -> None:
        why = f"{event.error.type}: {event.error.message}"
        said = f"attempt {event.attempt} failed, again in {duration(event.delay)}"
        self._line(event, self._symbols.retry, "yellow", said, why)

    @_tell.register
    def _written_on(self, event: InferenceDeltaReceived) -> None:
        if event.delta.kind == "text" and event.parent_agent_id is None:
            self._waiting.hide()
            self._written.add(event.delta.text)

    @_tell.register
    def _answered(self, event: InferenceResponseReceived) -> None:
        self._waiting.hide()
        was_shown = event.parent_agent_id is None and self._written.end()
        reused = event.execution_id in self._reused
        self._reused.discard(event.execution_id)
        took = "the recorded answer is used" if reused else self._thought(event)
        self._line(event, self._symbols.note, "dim", f"model  {took}", tokens(event.response.usage))
        thoughts = " ".join([part.text for part in event.response.parts if isinstance(part, Reasoning)])
        if thoughts.strip():
            self._line(event, self._symbols.note, "dim", "thinks", thoughts)
        if event.response.tool_calls and event.response.text.strip() and not was_shown:
            self._line(event, self._symbols.note, "dim", "says", event.response.text)

    @_tell.register
    def _answer_reused(self, event: InferenceReused) -> None:
        self._reused.add(event.execution_id)

    @_tell.register
    def _not_answered(self, event: InferenceFailed) -> None:
        self._waiting.hide()
        self._line(event, self._symbols.failure, "red", f"model  {self._thought(event)}", event.error.type)

    @_tell.register
    def _unreadable(self, event: DecisionExtractionFailed) -> None:
        self._line(event, self._symbols.retry, "yellow", "the answer cannot be read", event.problem)

    @_tell.register
    def _unusable(self, event: ValidationFailed) -> None:
        self._line(event, self._symbols.retry, "yellow", "the answer cannot be used", "; ".join(event.problems))

    @_tell.register
    def _call_started(self, event: ToolCallStarted) -> None:
        self._running[event.key] = event.call.name
        self._line(event, self._symbols.call, "cyan", f"{_place(event.key)} {call_text(event.call)}")
        self._show_running()

    @_tell.register
    def _call_recovered(self, event: ToolCallRecovered) -> None:
        said = f"{_place(event.key)} {event.name}  {_RECOVERIES[event.recovery]}"
        self._line(event, self._symbols.retry, "yellow", said, event.reason)

    @_tell.register
    def _call_progressed(self, event: ToolCallProgressed) -> None:
        update = event.update if isinstance(event.update, str) else format_json(event.update).decode()
        self._line(event, self._symbols.note, "dim", f"{_place(event.key)} {event.name}", update)

    @_tell.register
    def _call_retried(self, event: ToolCallRetried) -> None:
        said = f"{_place(event.key)} {event.name}  attempt {event.attempt} failed, again in {duration(event.delay)}"
        self._line(event, self._symbols.retry, "yellow", said, f"{event.error.type}: {event.error.message}")

    @_tell.register
    def _call_cached(self, event: ToolCallCached) -> None:
        said = f"{_place(event.key)} {event.name}"
        self._line(event, self._symbols.note, "dim", said, f"from the cache, {duration(event.age)} old")

    @_tell.register
    def _call_abandoned(self, event: ToolCallAbandoned) -> None:
        told = "goes on in its thread; what it returns is dropped"
        self._line(event, self._symbols.note, "yellow", f"{_place(event.key)} {event.call.name}", told)

    @_tell.register
    def _call_settled(self, event: ToolCallSettled) -> None:
        execution = event.execution
        ran = self._running.pop(event.key, None) is not None
        symbol, style = self._sign(execution.status)
        name = (
            f"{one_line(execution.name)}  {duration(execution.duration_ms / 1000)}"
            if ran
            else call_text(execution.call)
        )
        self._line(event, symbol, style, f"{_place(event.key)} {name}", _outcome(execution))
        self._show_running()

    @_tell.register
    def _ended(self, _: ExecutionEnded) -> None:
        self._waiting.hide()

    def _sign(self, status: ToolStatus) -> tuple[str, str]:
        if status is ToolStatus.SUCCEEDED:
            return self._symbols.success, "green"
        return (self._symbols.block, "yellow") if status is ToolStatus.BLOCKED else (self._symbols.failure, "red")

    def _thought(self, event: Event) -> str:
        """Return how long the model took; an answer that nobody asked for took no time."""
        asked_at = self._asked_at.pop(event.execution_id, event.time)
        return duration((event.time - asked_at).total_seconds())

    def _show_running(self) -> None:
        if self._running:
            self._waiting.show(f"running {one_line(', '.join(self._running.values()))}")
        else:
            self._waiting.hide()

    def _line(self, event: Event, symbol: str, style: str, what: str, told: str = "") -> None:
        line = Text().append(f"  {set_cell_size(symbol, 2)} ", style).append(what, "dim" if style == "dim" else "")
        if told:
            line.append(f"  {one_line(told)}", "dim")
        self._print(event, line)

    def _print(self, event: Event, line: Text) -> None:
        self._written.end()
        indent = "" if event.parent_agent_id is None else "    "
        self._console.print(Text(indent) + line, no_wrap=True, overflow="ellipsis", crop=True)


def _place(key: str) -> str:
    """Return the number of a call for a person: step and place in it, both from 1."""
    place = parse_key(key)
    return "" if place is None else f"{place[0]}.{place[1] + 1}"


def _outcome(execution: ToolExecution) -> str:
    if execution.status in {ToolStatus.SUCCEEDED, ToolStatus.FAILED}:
        return execution.text
    return f"{execution.status.value.replace('_', ' ')}: {execution.error_message}"
