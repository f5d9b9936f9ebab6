"""Groups of tools, held as long as something else is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial

from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.tool_group import CanDiscoverTools, ToolGroup
from agentloop.contracts.tools import Tools


async def hold_groups(groups: Iterable[ToolGroup], resources: Resources) -> None:
    """Hold groups in their order until the resources are closed, which releases them in reverse order; each once.

    Raises:
        asyncio.CancelledError: when cancelled meanwhile; what is held then is released with the resources.
    """
    for group in groups:
        key = (ToolGroup, id(group))
        if resources.holds(key):
            continue
        await group.hold()
        if resources.holds(key):  # another task was quicker
            await group.release()
        else:
            resources.open(key, partial(_itself, group), _release)


def must_discover(tools: Tools) -> bool:
    """Say whether some of the tools are known only when their group is held."""
    return any(isinstance(group, CanDiscoverTools) for group in tools.groups)


async def discovered(tools: Tools) -> Tools:
    """Ask the groups that discover their tools, all at once; return the set with what they found.

    Raises:
        asyncio.CancelledError: when cancelled meanwhile.
    """
    asked = [group for group in tools.groups if isinstance(group, CanDiscoverTools)]
    found = await asyncio.gather(*[group.discover() for group in asked])
    return tools.with_discovered(zip(asked, found, strict=True))


def _itself(group: ToolGroup) -> ToolGroup:
    return group


def _release(group: ToolGroup) -> Awaitable[None]:
    return group.release()
