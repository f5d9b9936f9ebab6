"""Scenarios of the simulation in which the workers of a cluster and the HTTP front run."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.testing.simulation.scenarios import SCENARIOS, SimulatedScenario

SCENARIO_NAMES: Sequence[str] = (*SCENARIOS, "cluster", "server")
"""The names of all scenarios of the package."""


def scenario_named(name: str) -> type[SimulatedScenario]:
    """Return a scenario of the package; those of a cluster and of a server are loaded when they are asked for.

    Args:
        name: one of `SCENARIO_NAMES`.
    """
    if name == "cluster":
        from agentloop.service.simulation.cluster import ClusterScenario  # noqa: PLC0415  # the other scenarios need less

        return ClusterScenario
    if name == "server":
        from agentloop.service.simulation.server import ServerScenario  # noqa: PLC0415  # loads starlette

        return ServerScenario
    return SCENARIOS[name]
