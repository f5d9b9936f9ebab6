"""Import and export of conversations in the formats of the providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from attrs import evolve

from agentloop.errors import ConfigurationError
from agentloop.models.wire_formats.anthropic_messages import history as anthropic_messages
from agentloop.models.wire_formats.imported_calls import UNKNOWN_TIME, UnansweredCalls
from agentloop.models.wire_formats.openai_chat import history as openai_chat
from agentloop.values.labels import Label, SourceKind, foreign
from agentloop.values.messages import Message

IMPORTED: Final = foreign("an imported conversation", kind=SourceKind.UNKNOWN)
"""The label of messages that were imported: they may say anything of anybody."""
HistoryFormat: TypeAlias = Literal["openai-chat", "anthropic-messages"]
"""The wire format of an imported or exported conversation."""


def import_history(
    messages: Sequence[Mapping[str, Any]],
    wire_format: HistoryFormat,
    *,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    unanswered: UnansweredCalls = "refuse",
    at: datetime = UNKNOWN_TIME,
    label: Label | None = IMPORTED,
) -> tuple[str, tuple[Message, ...]]:
    """Import a conversation in the format of a provider; each call is paired with its result within its turn.

    Args:
        messages: the messages, as in the body of a request.
        wire_format: the format of the messages.
        system: the system prompt, for the format in which it is not among the messages.
        unanswered: `refuse` to raise for a call without a result, `cancel` to import it as cancelled.
        at: the time of the executions, which the messages do not contain.
        label: who had a part in the messages, for loops that ask about it; None if those of the user are the words of the user.

    Returns:
        The system prompt, which may be empty, and the messages, for
        `AgentState.start(system_prompt=…).with_messages(…)`.

    Raises:
        InvalidDocument: when an item is not a message, or calls and results cannot be paired; names the place.
        ConfigurationError: for an unknown format.
    """
    if wire_format == "openai-chat":
        # In this format the prompt is the first message; an explicit one overrides it.
        prompt, imported = openai_chat.import_messages(messages, unanswered=unanswered, at=at)
        prompt = system if isinstance(system, str) else prompt
    elif wire_format == "anthropic-messages":
        prompt, imported = anthropic_messages.import_messages(messages, system=system, unanswered=unanswered, at=at)
    else:
        raise _unknown_format(wire_format)
    return prompt, tuple([evolve(message, label=label) for message in imported])


def export_history(
    messages: Sequence[Message], wire_format: HistoryFormat, *, system_prompt: str = ""
) -> list[dict[str, Any]]:
    """Return a conversation in the format of a provider, as in the body of a request.

    Args:
        messages: the messages.
        wire_format: the format to export to.
        system_prompt: the system prompt, for the format in which it is the first message.

    Raises:
        BadRequest: when the format has no encoding for something in a message; names the part.
        ConfigurationError: for an unknown format.
    """
    if wire_format == "openai-chat":
        return openai_chat.export_messages(messages, system_prompt)
    if wire_format == "anthropic-messages":
        return anthropic_messages.export_messages(messages)
    raise _unknown_format(wire_format)


def _unknown_format(wire_format: object) -> ConfigurationError:
    return ConfigurationError(
        f"there is no history format {wire_format!r}; the known ones are openai-chat and anthropic-messages"
    )
