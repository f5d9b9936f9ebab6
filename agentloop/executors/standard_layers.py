"""The layers around the calls of an execution: which of them it needs, and in which order."""

from __future__ import annotations

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanCallTools, CanContinueCall
from agentloop.executors.call_layers import CanLayerCalls
from agentloop.executors.definition_pins import DefinitionPins
from agentloop.executors.toolbox import Toolbox


def standard_layers(toolbox: Toolbox, scope: ExecutionScope) -> tuple[CanLayerCalls, ...]:
    """Return the layers that an execution needs with these tools, outermost first."""
    layers: list[CanLayerCalls] = []
    tools, log = toolbox.tools, scope.log
    if log is not None:
        from agentloop.executors.journaled_call import JournalLayer

        layers.append(JournalLayer(log))
    if log is not None or any(isinstance(tool, CanContinueCall) for tool in tools):
        from agentloop.executors.fencing import Fencing

        layers.append(Fencing())
    layers.append(DefinitionPins(has_definitions=any(spec.definition or spec.pinned for spec in tools.specs)))
    if any(isinstance(tool, CanCallTools) for tool in tools):
        from agentloop.executors.program_calls import ProgramCalls

        layers.append(ProgramCalls(log))
    return tuple(layers)
