from agentloop.toolkits.ensemble import Ensemble as Ensemble
from agentloop.toolkits.ensemble import ensemble_factory as ensemble_factory
from agentloop.toolkits.ensemble import load_ensembles as load_ensembles
from agentloop.toolkits.overrides import ToolOverride as ToolOverride
from agentloop.toolkits.sandboxes.bubblewrap import BubblewrapSandbox as BubblewrapSandbox
from agentloop.toolkits.sandboxes.container import ContainerSandbox as ContainerSandbox
