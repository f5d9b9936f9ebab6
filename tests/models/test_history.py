"""Tests of importing and exporting conversations."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCallingDriver
from agentloop.errors import ConfigurationError, InvalidDocument
from agentloop.models import export_history, import_history
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


def test_a_conversation_can_be_converted_to_another_format_and_back() -> None:
    """A conversation imported from one format, exported to another, and imported again is unchanged."""
    prompt, messages = import_history(CHAT, "openai-chat")
    exported = export_history(messages, "anthropic-messages")
    assert [message["role"] for message in exported] == ["user", "assistant", "user", "assistant"]
    prompt_again, imported = import_history(exported, "anthropic-messages", system=prompt)
    assert export_history(imported, "openai-chat", system_prompt=prompt_again) == CHAT


async def test_an_agent_continues_an_imported_conversation() -> None:
    """An execution can start from an imported conversation."""
    prompt, messages = import_history(CHAT, "openai-chat")
    model = ScriptedInference("You are welcome.")
    state = AgentState.start(system_prompt=prompt).with_messages(messages).with_message("Thanks.")
    assert (await AgentLoop(ToolCallingDriver(model)).execute(state)).final_text == "You are welcome."
    assert model.requests[0].system_prompt == "Be brief."


def test_a_call_without_a_result_is_refused_or_cancelled() -> None:
    """A call without a result is an error by default, and cancelled with `unanswered="cancel"`."""
    with pytest.raises(InvalidDocument, match=r"messages\[2\]"):
        import_history(CHAT[:3], "openai-chat")
    _, messages = import_history(CHAT[:3], "openai-chat", unanswered="cancel")
    assert messages[-1].exchanges[0].execution.status is ToolStatus.CANCELLED


def test_an_unknown_format_is_refused() -> None:
    """The error for an unknown format names the known ones."""
    with pytest.raises(ConfigurationError, match="known ones are openai-chat and anthropic-messages"):
        import_history(CHAT, "gemini")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="known ones are"):
        export_history((), "gemini")  # type: ignore[arg-type]
