"""Drivers: what decides the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.drivers.asking_again import Unusable as Unusable
    from agentloop.drivers.driver import Driver as Driver
    from agentloop.drivers.inferring_driver import InferringDriver as InferringDriver
    from agentloop.drivers.modes.react_decision import ReActCall as ReActCall
    from agentloop.drivers.modes.react_decision import ReActDecision as ReActDecision
    from agentloop.drivers.modes.react_decision import decision_of as decision_of
    from agentloop.drivers.react import ReActDriver as ReActDriver
    from agentloop.drivers.scripted import ScenarioStep as ScenarioStep
    from agentloop.drivers.scripted import ScriptedDriver as ScriptedDriver
    from agentloop.drivers.step_draft import StepDraft as StepDraft
    from agentloop.drivers.tool_calling import ToolCallingDriver as ToolCallingDriver
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.drivers.driver": "Driver",
            "agentloop.drivers.inferring_driver": "InferringDriver",
            "agentloop.drivers.asking_again": "Unusable",
            "agentloop.drivers.modes.react_decision": "ReActCall ReActDecision decision_of",
            "agentloop.drivers.react": "ReActDriver",
            "agentloop.drivers.scripted": "ScenarioStep ScriptedDriver",
            "agentloop.drivers.step_draft": "StepDraft",
            "agentloop.drivers.tool_calling": "ToolCallingDriver",
        },
    )
