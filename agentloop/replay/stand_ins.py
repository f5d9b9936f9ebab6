"""Tools that only the record knows: those of groups that would have to be started to tell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from agentloop.contracts.tool import Tool
from agentloop.contracts.tool_group import CanDiscoverTools
from agentloop.contracts.tools import Tools
from agentloop.errors import ContractViolation
from agentloop.replay.timeline import Turn
from agentloop.values.json_value import JsonObject
from agentloop.values.tool_spec import Effect, ToolSpec


@frozen(kw_only=True)
class StandIn(Tool):
    """Stands for a tool of a group that is not started; it is offered and never run.

    Attributes:
        name: the name by which a model calls it.
        description: what it does.
        parameters: its parameters.
        effect: what it does to the world.
    """

    name: str = ""
    description: str = ""
    parameters: JsonObject
    effect: Effect

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Refuse to run.

        Raises:
            ContractViolation: always.
        """
        raise ContractViolation(
            f"the tool {self.name!r} stands in a replay and was to be run: {dict(arguments)!r:.100}"
        )


def with_stand_ins(tools: Tools, turn: Turn) -> Tools:
    """Return tools with those that were discovered when the turn was recorded.

    Args:
        tools: the tools of a loop.
        turn: the turn that is to be replayed.
    """
    group = next((one for one in tools.groups if isinstance(one, CanDiscoverTools)), None)
    if group is None:
        return tools
    known: Mapping[str, ToolSpec] = {
        spec.name: spec for asked in turn.inferences for spec in asked.request.tools if spec.name not in tools
    }
    stand_ins = [
        StandIn(name=spec.name, description=spec.description, parameters=spec.parameters, effect=spec.effect)
        for spec in known.values()
    ]
    return tools.with_discovered([(group, stand_ins)])
