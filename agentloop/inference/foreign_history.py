"""Conversations in the forms of the providers: taken over, and given away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from agentloop.errors import ConfigurationError
from agentloop.inference.wire_formats.anthropic_messages import history as anthropic_messages
from agentloop.inference.wire_formats.openai_chat import history as openai_chat
from agentloop.values.messages import Message

HistoryForm: TypeAlias = Literal["openai-chat", "anthropic-messages"]
"""The name of the wire format whose messages a conversation is made of."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def import_history(
    messages: Sequence[Mapping[str, Any]],
    form: HistoryForm,
    *,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    unanswered: Literal["refuse", "cancel"] = "refuse",
    at: datetime = _EPOCH,
) -> tuple[str, tuple[Message, ...]]:
    """Read a conversation in the form of a provider: each call is joined to its result, within its turn.

    Args:
        messages: the messages, as they stand in a request.
        form: whose form they have.
        system: the system prompt, where it stands beside the messages.
        unanswered: `refuse` a call without a result, or have it `cancel`led, so that the model is told.
        at: when the executions are said to have happened; such messages do not tell.

    Returns:
        The system prompt, empty when there is none, and the messages, for
        `AgentState.start(system_prompt=…).with_messages(…)`.

    Raises:
        InvalidDocument: when something is no such message, or a call and its result cannot be paired; names the place.
        ConfigurationError: for a form that is not known.
    """
    if form == "openai-chat":
        prompt, read = openai_chat.import_messages(messages, unanswered=unanswered, at=at)
        return (system if isinstance(system, str) else prompt), read
    if form == "anthropic-messages":
        return anthropic_messages.import_messages(messages, system=system, unanswered=unanswered, at=at)
    raise _unknown(form)


def export_history(messages: Sequence[Message], form: HistoryForm, *, system_prompt: str = "") -> list[dict[str, Any]]:
    """Return a conversation in the form of a provider, as it would stand in a request.

    Args:
        messages: the messages.
        form: whose form they are to have.
        system_prompt: the system prompt, for the form in which it is the first message.

    Raises:
        BadRequest: when a message holds what the form cannot carry; names the part.
        ConfigurationError: for a form that is not known.
    """
    if form == "openai-chat":
        return openai_chat.export_messages(messages, system_prompt)
    if form == "anthropic-messages":
        return anthropic_messages.export_messages(messages)
    raise _unknown(form)


def _unknown(form: object) -> ConfigurationError:
    return ConfigurationError(f"no conversation has the form {form!r}; known are openai-chat and anthropic-messages")
