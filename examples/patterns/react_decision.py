"""ReAct with a decision of your own: each decision has a confidence, and unsure answers are refused."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCall, tool
from agentloop.drivers import Rejection
from agentloop.models import ReActDecision, decision_of
from agentloop.values import ToolSpec


@tool(effect="pure")
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a tower with a lamp"


@frozen(kw_only=True)
class Rated(ReActDecision):
    """A decision with the model's confidence in it, from 0 to 1."""

    confidence: float


def is_sure(decision: ReActDecision, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> Rejection | None:
    if not calls and isinstance(decision, Rated) and decision.confidence < 0.8:
        return Rejection("you are not sure; look the word up first")
    return None


model = ScriptedInference(
    '{"thought": "A house, I guess.", "confidence": 0.3, "type": "final", "answer": "a house"}',
    '{"thought": "I look.", "confidence": 0.9, "type": "call", "tool": "look_up", "args": {"word": "lighthouse"}}',
    '{"thought": "Now I know.", "confidence": 1.0, "type": "final", "answer": "A tower with a lamp."}',
)
loop = AgentLoop(ReActDriver(model, output="json", decision_type=Rated, validator=is_sure), [look_up])
state = loop.execute_sync("What is a lighthouse?")
for message in state.messages[1:]:
    decision = decision_of(message, Rated)
    print(f"{decision.confidence}: {decision.thought}")
print(state.final_text)
