"""One conversation, many providers: a conversation of one wire format is continued by a model, and sent on in another."""

from __future__ import annotations

import json
from typing import Any

from agentloop import AgentLoop, AgentState, ScriptedInference
from agentloop.models import export_history, import_history

openai: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many lamps are left?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": '{"item": "lamp"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
]
prompt, messages = import_history(openai, "openai-chat")
state = AgentState.start(system_prompt=prompt).with_messages(messages).with_message("In words, please.")
state = AgentLoop.for_model(ScriptedInference("Three.")).execute_sync(state)
print(f"system prompt: {state.context.system_prompt}")
for message in export_history(state.messages, "anthropic-messages"):
    print(json.dumps(message))
