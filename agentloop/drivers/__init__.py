"""Drivers: what decides the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.drivers.driver import Driver as Driver
    from agentloop.drivers.driver import StepDraft as StepDraft
    from agentloop.drivers.inferring_driver import InferringDriver as InferringDriver
    from agentloop.drivers.react import ReActDriver as ReActDriver
    from agentloop.drivers.rejections import Unusable as Unusable
    from agentloop.drivers.scripted import ScenarioStep as ScenarioStep
    from agentloop.drivers.scripted import ScriptedDriver as ScriptedDriver
    from agentloop.drivers.tool_calling import ToolCallingDriver as ToolCallingDriver
    from agentloop.modes.react_decision import ReActCall as ReActCall
    from agentloop.modes.react_decision import ReActDecision as ReActDecision
    from agentloop.modes.react_decision import decision_of as decision_of
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.drivers.driver": "Driver StepDraft",
            "agentloop.drivers.inferring_driver": "InferringDriver",
            "agentloop.drivers.rejections": "Unusable",
            "agentloop.modes.react_decision": "ReActCall ReActDecision decision_of",
            "agentloop.drivers.react": "ReActDriver",
            "agentloop.drivers.scripted": "ScenarioStep ScriptedDriver",
            "agentloop.drivers.tool_calling": "ToolCallingDriver",
        },
    )
