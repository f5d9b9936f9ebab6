"""What was recorded of a call that has begun holds, whatever interceptors make of it now."""

from __future__ import annotations

from agentloop.events.recovery_events import ToolCallIntentKept
from agentloop.executors.call_slot import CallSlot
from agentloop.executors.tool_run import RunSettings
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Answer
from agentloop.values.points import BeforeToolUse
from agentloop.values.verdict import Block, Suspend


async def keep_intent(slot: CallSlot, point: BeforeToolUse, settings: RunSettings) -> None:
    """Tell what interceptors wanted of a call that has begun, if that is anything else than what it began as."""
    match point.verdict:
        case Block(reason):
            refused = f"block: {reason}"
        case Suspend(reason):
            refused = f"suspend: {reason}"
        case Answer():
            refused = "answer"
        case None if point.call != slot.call:
            refused = f"change to {point.call.name}({point.call.arguments_json})"
        case None:
            return
    await tell_kept(slot, refused, point.state, settings)


async def tell_kept(slot: CallSlot, refused: str, state: AgentState, settings: RunSettings) -> None:
    """Tell that a call that has begun goes on as it began."""
    events = settings.events
    if events.due(ToolCallIntentKept):
        head = events.head(state, step_number=slot.step)
        await events.emit(ToolCallIntentKept(head, slot.key, slot.call.name, slot.call, refused))
