from agentloop.service.cluster.cluster import Cluster as Cluster
from agentloop.service.cluster.database import ClusterDatabase as ClusterDatabase
from agentloop.service.cluster.queued_tools import QueuedToolExecutor as QueuedToolExecutor
from agentloop.service.cluster.worker import Worker as Worker
