from agentloop.executors.forwarding import ForwardingExecutor as ForwardingExecutor
from agentloop.executors.remote import RemoteToolExecutor as RemoteToolExecutor
from agentloop.executors.remote_calls import ProgressReport as ProgressReport
from agentloop.executors.remote_calls import RemoteCall as RemoteCall
from agentloop.executors.remote_calls import RemoteResult as RemoteResult
from agentloop.executors.remote_calls import run_remote_call as run_remote_call
from agentloop.executors.tool_executor import ToolExecutor as ToolExecutor
from agentloop.executors.unstarted_batches import not_begun as not_begun
