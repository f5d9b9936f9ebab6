"""Captions: what each thing that happens in the demo is there to show."""

from __future__ import annotations

from functools import singledispatchmethod

from rich.console import Console
from rich.text import Text

from agentloop.events.execution import AgentExecutionSuspended
from agentloop.events.inference import InferenceRequestStarted, InferenceResponseReceived
from agentloop.events.resilience import ToolCallCached, ToolCallRetried
from agentloop.events.tool_calls import ToolCallBlocked, ToolCallCompleted
from agentloop.values.event import Event


class Captions:
    """A wiretap that explains what has just happened, each thing the first time only.

    Args:
        console: where the captions go.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Take one event."""
        caption = self._caption(event)
        if caption and caption not in self._told:
            self._told.add(caption)
            self._console.print(Text(f"     ({caption})", "italic cyan"))

    @singledispatchmethod
    def _caption(self, event: Event) -> str:  # noqa: ARG002  # nothing is said of other events
        return ""

    @_caption.register
    def _of_request(self, event: InferenceRequestStarted) -> str:
        if event.request.tools:
            return ""
        return "The budget's last step: the model is asked without tools, for an answer with what is there."

    @_caption.register
    def _of_response(self, event: InferenceResponseReceived) -> str:
        return "The calls of one answer run side by side." if len(event.response.tool_calls) > 1 else ""

    @_caption.register
    def _of_completion(self, event: ToolCallCompleted) -> str:
        return "" if event.execution.succeeded else "The model is told the error, and can correct itself."

    @_caption.register
    def _of_block(self, _: ToolCallBlocked) -> str:
        return "A rule of the program keeps the call from running; the model is told why."

    @_caption.register
    def _of_retry(self, _: ToolCallRetried) -> str:
        return "What may safely be repeated is tried again, without asking the model."

    @_caption.register
    def _of_cache(self, _: ToolCallCached) -> str:
        return "The same call as before: its result comes from the cache, and nothing runs."

    @_caption.register
    def _of_suspension(self, _: AgentExecutionSuspended) -> str:
        return "Calls that change something wait for a person; the state could be stored until then."
