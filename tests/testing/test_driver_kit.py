"""The law suite of drivers: the package's drivers pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop import ReActDriver, ToolCallingDriver
from agentloop.contracts import CanUseTools
from agentloop.testing import NOTATIONS, DriverKit, Scenario
from agentloop.testing.scenario import VALID_SCENARIOS
from tests.generated import examples

FACTORIES: dict[str, Callable[[Scenario], CanUseTools]] = {
    "tool calling": lambda scenario: ToolCallingDriver(scenario.inference()),
    "parsed": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["parsed"]), mode="parsed"),
    "scripted": lambda scenario: scenario.driver(),
    "react without validation": lambda scenario: ReActDriver(
        scenario.inference(NOTATIONS["react-json"]), output="json", validator=lambda *_: None
    ),
}
RETRYING: dict[str, Callable[[Scenario], CanUseTools]] = {
    "structured": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["structured"]), mode="structured"),
    "validated": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["validated"]), mode="validated"),
    "react in JSON": lambda scenario: ReActDriver(scenario.inference(NOTATIONS["react-json"]), output="json"),
    "react in text": lambda scenario: ReActDriver(
        scenario.inference(NOTATIONS["react-text"]), output="text", streaming=True
    ),
}


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", FACTORIES)
def test_drivers_obey_the_laws(name: str, law: int) -> None:
    """Each driver obeys every law of its contract."""
    DriverKit(FACTORIES[name], examples=examples(8)).check(law)


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", RETRYING)
def test_drivers_that_retry_invalid_calls_obey_the_laws(name: str, law: int) -> None:
    """Each driver that asks the model again for invalid calls obeys every law in scenarios with valid calls."""
    DriverKit(RETRYING[name], examples=examples(6), scenarios=VALID_SCENARIOS).check(law)
