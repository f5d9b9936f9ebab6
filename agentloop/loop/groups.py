"""Groups of tools, held as long as something else is open."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial

from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.tool_group import ToolGroup


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


def _itself(group: ToolGroup) -> ToolGroup:
    return group


def _release(group: ToolGroup) -> Awaitable[None]:
    return group.release()
