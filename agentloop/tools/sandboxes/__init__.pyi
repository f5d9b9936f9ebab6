from agentloop.tools.sandboxes.bubblewrap import BubblewrapSandbox as BubblewrapSandbox
from agentloop.tools.sandboxes.container import ContainerSandbox as ContainerSandbox
