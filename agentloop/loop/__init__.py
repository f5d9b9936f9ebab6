"""The loop itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.loop.agent_loop import AgentLoop as AgentLoop
    from agentloop.loop.agent_loop import Input as Input
    from agentloop.loop.event_stream import EventStream as EventStream
    from agentloop.loop.handoff import handed_over_by as handed_over_by
    from agentloop.loop.handoff import handoff_to as handoff_to
    from agentloop.loop.inbox import Inbox as Inbox
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.loop.agent_loop": "AgentLoop Input",
            "agentloop.loop.event_stream": "EventStream",
            "agentloop.loop.handoff": "handed_over_by handoff_to",
            "agentloop.loop.inbox": "Inbox",
        },
    )
