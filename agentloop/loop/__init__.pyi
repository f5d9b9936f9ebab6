from agentloop.loop.agent_loop import AgentLoop as AgentLoop
from agentloop.loop.handoff import handed_over_by as handed_over_by
from agentloop.loop.handoff import handoff_to as handoff_to
from agentloop.loop.parts import FileOptions as FileOptions
from agentloop.loop.parts import LoopOptions as LoopOptions
from agentloop.loop.parts import ModelOptions as ModelOptions
from agentloop.values.run_requests import Identity as Identity
from agentloop.values.run_requests import RunRequest as RunRequest
