"""System prompts: texts, and functions that write one for an execution."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

from attrs import field, frozen

from agentloop._shielding import is_task_cancelled
from agentloop.errors.kinds import ForeignCancellation, InvalidParameter
from agentloop.values.run_requests import RunRequest, request_of
from agentloop.values.signatures import parameter_count
from agentloop.values.state import AgentState

SystemPrompt: TypeAlias = str | Callable[[AgentState], str] | Callable[[AgentState, RunRequest], str]
"""Instructions, or a plain function that returns them for the state with which an execution starts, or for that and its request."""


@frozen
class PromptFunction:
    """A function that writes the system prompt; called with a state, it returns the text.

    Attributes:
        function: the function.
        takes_request: whether it takes the `RunRequest` of the execution after the state: whether it has to get a second argument.

    Raises:
        InvalidParameter: it cannot be called with one argument, or with two.
    """

    function: Callable[..., object]
    takes_request: bool = field(init=False)

    @takes_request.default
    def _count(self) -> bool:
        count = parameter_count(self.function)
        if count not in {1, 2}:
            raise InvalidParameter(
                f"the system prompt {self.function!r:.80} has to take the state, or the state and the RunRequest: write "
                "def prompt(state) or def prompt(state, request)"
            )
        return count > 1

    def __call__(self, state: AgentState) -> str:
        """Return the instructions for an execution that starts with this state.

        Raises:
            InvalidParameter: the function returned no text.
            ForeignCancellation: it raised a cancellation although nobody has cancelled the task.
        """
        try:
            text = self.function(state, request_of(state)) if self.takes_request else self.function(state)
        except asyncio.CancelledError as cancelled:
            if is_task_cancelled():
                raise
            raise ForeignCancellation("the function for the system prompt", cancelled) from cancelled
        if not isinstance(text, str):
            raise InvalidParameter(
                f"the function for the system prompt has to return a text, not {type(text).__name__}"
            )
        return text


def as_prompt_function(prompt: SystemPrompt) -> str | PromptFunction:
    """Return a text as it is, and a function as one of which it is known what it takes."""
    if isinstance(prompt, str | PromptFunction):
        return prompt
    return PromptFunction(cast("Callable[..., object]", prompt))


def initial_prompt(prompt: SystemPrompt) -> str:
    """Return the instructions of a new agent: empty for a function, which is called when an execution starts."""
    return prompt if isinstance(prompt, str) else ""


def render_system_prompt(prompt: SystemPrompt, state: AgentState) -> str:
    """Return the instructions for an execution that starts with this state.

    Raises:
        InvalidParameter: the function returned no text.
        ForeignCancellation: the function raised a cancellation although nobody has cancelled the task.
    """
    known = as_prompt_function(prompt)
    return known if isinstance(known, str) else known(state)
