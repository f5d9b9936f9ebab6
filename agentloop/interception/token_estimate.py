"""How many tokens an execution has used, where the provider does not say."""

from __future__ import annotations

from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_execution import ToolExchange

BYTES_PER_TOKEN = 4
"""About how many bytes of English text or JSON make one token, in the vocabularies that providers use today."""


def estimated_tokens(state: AgentState) -> int:
    """Estimate the tokens of the current execution: what each step read and wrote, by length.

    Steps whose usage is known are counted as known.
    """
    execution = state.execution
    if execution is None:
        return 0
    history = len(state.context.system_prompt) + sum(map(_length, state.messages[: execution.history_length]))
    tokens = 0
    for step in execution.steps:
        written = _length(step.message) if step.message is not None else 0
        known = step.usage.total_tokens
        tokens += known if known is not None else (history + written) // BYTES_PER_TOKEN
        history += written
    return tokens


def _length(message: Message) -> int:
    length = 0
    for part in message.parts:
        if isinstance(part, Text | Reasoning):
            length += len(part.text)
        elif isinstance(part, ToolExchange):
            length += len(part.call.name) + len(part.call.arguments_json) + len(part.execution.text)
    return length
