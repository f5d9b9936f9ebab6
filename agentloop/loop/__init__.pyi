from agentloop.loop.agent_loop import AgentLoop as AgentLoop
from agentloop.loop.agent_loop import Input as Input
from agentloop.loop.event_stream import EventStream as EventStream
from agentloop.loop.handoff import handed_over_by as handed_over_by
from agentloop.loop.handoff import handoff_to as handoff_to
from agentloop.loop.inbox import Inbox as Inbox
from agentloop.loop.recovery import stop_execution as stop_execution
