"""How many tokens a message takes, about."""

from __future__ import annotations

from agentloop.interception.budgeting.request_size import (
    BYTES_PER_TOKEN,
    TOKENS_PER_MESSAGE,
    message_length,
    part_length,
)
from agentloop.values.message import Message
from agentloop.values.parts import Media
from agentloop.values.tool_execution import ToolExchange


def message_tokens(message: Message) -> int:
    """Estimate the tokens of one message by its length; media that a tool returned count like a user's."""
    size = message_length(message)
    for part in message.parts:
        if isinstance(part, ToolExchange):
            size += sum(part_length(one) for one in part.execution.content or () if isinstance(one, Media))
    return TOKENS_PER_MESSAGE + -(-size // BYTES_PER_TOKEN)
