"""Conversations in the forms of the providers."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCallingDriver
from agentloop.errors import ConfigurationError, InvalidDocument
from agentloop.inference import export_history, import_history
from agentloop.values import ToolStatus

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 2?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]


def test_a_conversation_changes_providers_and_comes_back() -> None:
    """What was written for one provider can be read, given to the other, read again and given back."""
    prompt, messages = import_history(CHAT, "openai-chat")
    theirs = export_history(messages, "anthropic-messages")
    assert [message["role"] for message in theirs] == ["user", "assistant", "user", "assistant"]
    again, read = import_history(theirs, "anthropic-messages", system=prompt)
    assert export_history(read, "openai-chat", system_prompt=again) == CHAT


async def test_an_agent_goes_on_from_it() -> None:
    """An imported conversation is where an agent begins."""
    prompt, messages = import_history(CHAT, "openai-chat")
    model = ScriptedInference("You are welcome.")
    state = AgentState.start(system_prompt=prompt).with_messages(messages).with_message("Thanks.")
    assert (await AgentLoop(ToolCallingDriver(model)).execute(state)).final_text == "You are welcome."
    assert model.requests[0].system_prompt == "Be brief."


def test_a_call_without_a_result_is_refused_or_cancelled() -> None:
    """The pairing rule holds for what comes from elsewhere too."""
    with pytest.raises(InvalidDocument, match=r"messages\[2\]"):
        import_history(CHAT[:3], "openai-chat")
    _, messages = import_history(CHAT[:3], "openai-chat", unanswered="cancel")
    assert messages[-1].exchanges[0].execution.status is ToolStatus.CANCELLED


def test_an_unknown_form_is_refused() -> None:
    """The forms that there are are named."""
    with pytest.raises(ConfigurationError, match="known ones are openai-chat and anthropic-messages"):
        import_history(CHAT, "gemini")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="known ones are"):
        export_history((), "gemini")  # type: ignore[arg-type]
