"""Memory over turns and over conversations: the state carries a conversation, and a file what the agent shall keep."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, from_json, to_json
from agentloop.toolkits.memory import MemoryScope, memory_by

FIRST = ScriptedInference(ToolCall("1", "remember", '{"text": "Ada takes her tea without milk."}'), "Noted, Ada.")
SECOND = ScriptedInference("You said that you are Ada.")
LATER = ScriptedInference(ToolCall("1", "recall", '{"query": "tea"}'), "A tea without milk, as always?")


def main(folder: Path) -> None:
    # Whose memories they are is decided by the program, by the user who is logged in, and never by the model.
    memories = memory_by(folder / "memories.db", lambda context: MemoryScope(user=context.dependencies))
    state = AgentLoop.for_model(FIRST, tools=[memories]).execute_sync("I am Ada. No milk, please.", dependencies="ada")
    print(state.output)

    # The conversation is a value: it is stored between two requests, and goes on in another process.
    (folder / "conversation.json").write_bytes(to_json(state))
    state = from_json((folder / "conversation.json").read_bytes(), AgentState)
    loop = AgentLoop.for_model(SECOND, tools=[memories])
    state = loop.execute_sync(state.with_message("Who am I?"), dependencies="ada")
    print(f"{state.output} ({len(state.messages)} messages)")

    # A new conversation knows nothing of the old one but what was kept.
    loop = AgentLoop.for_model(LATER, tools=[memories])
    state = loop.execute_sync("A tea, please.", dependencies="ada")
    print(f"{state.steps[0].executions[0].text}\n{state.output}")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(sys.argv[1] if sys.argv[1:] else name))
