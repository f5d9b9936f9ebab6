"""The law suite of drivers: the package's drivers pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import frozen

from agentloop import AgentState, ReActDriver, ScriptedInference, ToolCallingDriver
from agentloop.contracts import CanUseTools, ExecutionScope
from agentloop.testing import NOTATIONS, DriverKit, LawViolation, Scenario, run_in_virtual_time
from agentloop.testing.scenario import valid_scenarios
from agentloop.values import InferenceRequest
from agentloop.values.steps import SuspendedTurn
from tests.generated import examples
from tests.testing.lawful import PlanAndExecute, Planner
from tests.testing.zoo.drivers import CallsModelTwice, CreatesIds, ForgesOutcomes, HidesUsedTools


def _kit_of(driver: type[ToolCallingDriver]) -> DriverKit:
    return DriverKit(lambda scenario: driver(scenario.inference()), examples=5)


def planner(scenario: Scenario) -> PlanAndExecute:
    """Return a driver that makes two inferences in its first step."""
    return PlanAndExecute(scenario.inference(), planner=scenario.watch(Planner()))


@frozen(kw_only=True)
class FailsLater(ToolCallingDriver):
    """Fails when an execution is resumed."""

    async def _settle_pending(self, state: AgentState, turn: SuspendedTurn) -> AgentState:
        raise RuntimeError("no plan")


@pytest.mark.parametrize(
    ("kit", "law", "reason"),
    [
        (DriverKit(planner, examples=3), 5, r"2 inferences in 1 step; with max_inferences_per_step=1, 1 are declared"),
        (
            _kit_of(CreatesIds),
            8,
            r"two runs of the same scenario differ, in the state at execution.steps\[0\].id: 'mine_",
        ),
        (_kit_of(ForgesOutcomes), 10, r"returned one outcome and the step has another, at value: 0 and 'all is well'"),
        (_kit_of(FailsLater), 16, r"the execution failed, so that no decision is left: no plan"),
        (
            _kit_of(CallsModelTwice),
            5,
            r"2 inferences in 1 step; with max_inferences_per_step=1, 1 are declared",
        ),
    ],
)
def test_the_reason_names_what_differs(kit: DriverKit, law: int, reason: str) -> None:
    """It says which field, which parameter, and what failed, and shows no whole states."""
    with pytest.raises(LawViolation, match=reason) as raised:
        kit.check(law)
    assert len(raised.value.reason) < 500


def test_a_script_that_is_watched_continues_where_an_execution_is_resumed() -> None:
    """Its position is the number of its own requests, not of those to all models of the driver."""
    scenario = Scenario()
    watched = scenario.watch(ScriptedInference("one", "two", "three"))
    scope = ExecutionScope()
    first = watched.with_execution_scope(scope.for_another_model())
    assert run_in_virtual_time(first.infer(InferenceRequest(()))).text == "one"
    again = watched.with_execution_scope(scope.for_another_model())
    assert run_in_virtual_time(again.infer(InferenceRequest(()))).text == "one"
    resumed = watched.with_execution_scope(
        ExecutionScope(inference_count=1, other_inference_count=5).for_another_model()
    )
    assert run_in_virtual_time(resumed.infer(InferenceRequest(()))).text == "three"
    assert len(scenario.requests) == 3
    assert len(scenario.watched_usages) == 3


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
    DriverKit(RETRYING[name], examples=examples(6), scenarios=valid_scenarios()).check(law)


def test_a_driver_may_be_documented_to_change_its_requests() -> None:
    """With `breaks_prefix`, law 13 looks at what is compiled alone."""
    DriverKit(lambda scenario: HidesUsedTools(scenario.inference()), breaks_prefix=True, examples=examples(8)).check(13)
