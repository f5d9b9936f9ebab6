from agentloop.executors.tool_executor import ToolExecutor as ToolExecutor
