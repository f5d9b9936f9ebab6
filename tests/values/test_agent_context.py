"""What a model may see."""

from __future__ import annotations

from hypothesis import given

from agentloop.testing.strategies import messages, response_formats
from agentloop.values.inference import ResponseFormat
from agentloop.values.messages import Message
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentContext
from tests.strategies import agent_contexts


@given(agent_contexts(), messages(), response_formats())
def test_each_change_replaces_one_field_in_a_copy(
    context: AgentContext, message: Message, response_format: ResponseFormat
) -> None:
    """All other fields are equal, and the original is unchanged."""
    before = to_json(context)
    prompt, conversation, metadata, form = (
        context.system_prompt,
        context.messages,
        context.metadata,
        context.response_format,
    )
    changed = {
        context.with_system_prompt("new"): AgentContext("new", conversation, metadata, form),
        context.with_message(message): AgentContext(prompt, (*conversation, message), metadata, form),
        context.with_messages([message]): AgentContext(prompt, (message,), metadata, form),
        context.with_metadata(x=[1]): AgentContext(prompt, conversation, {**metadata, "x": (1,)}, form),
        context.with_response_format(response_format): AgentContext(prompt, conversation, metadata, response_format),
        context.with_response_format(None): AgentContext(prompt, conversation, metadata, None),
    }
    for made, expected in changed.items():
        assert made == expected
    assert to_json(context) == before


def test_a_conversation_is_copied() -> None:
    """Changing the list and dict that were passed in does not change the context."""
    conversation, metadata = [Message.user("a")], {"a": [1]}
    context = AgentContext("", conversation, metadata)
    conversation.clear()
    metadata["a"].append(2)
    assert context == AgentContext("", (Message.user("a"),), {"a": (1,)})
