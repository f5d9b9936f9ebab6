"""Ensembles: groups of tools that are configured, enabled and disabled together, and those that come with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.tools.ensembles.ensemble import Ensemble as Ensemble
    from agentloop.tools.ensembles.ensemble import load_ensembles as load_ensembles
    from agentloop.tools.ensembles.ensemble import makes_ensemble as makes_ensemble
    from agentloop.tools.ensembles.overrides import ToolOverride as ToolOverride
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.tools.ensembles.ensemble": "Ensemble load_ensembles makes_ensemble",
            "agentloop.tools.ensembles.overrides": "ToolOverride",
        },
    )
