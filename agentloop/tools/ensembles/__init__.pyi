from agentloop.tools.ensembles.ensemble import Ensemble as Ensemble
from agentloop.tools.ensembles.ensemble import ensemble_factory as ensemble_factory
from agentloop.tools.ensembles.ensemble import load_ensembles as load_ensembles
from agentloop.tools.ensembles.overrides import ToolOverride as ToolOverride
