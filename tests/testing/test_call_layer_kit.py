"""Layers around calls of the package, and those that people write, keep their laws."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.executors.admission import CanLayerCalls
from agentloop.executors.approval import Approval
from agentloop.executors.definition_pins import DefinitionPins
from agentloop.executors.fencing import Fencing
from agentloop.executors.intercepted_call import Interception
from agentloop.executors.labeled_calls import Labeling
from agentloop.executors.program_calls import ProgramCalls
from agentloop.interception.stack import InterceptorStack
from agentloop.policies import Retry
from agentloop.testing import CallLayerKit, LawNotChecked
from agentloop.testing.kit_choice import kit_of
from agentloop.testing.toys import Gatekeeper
from tests.generated import examples
from tests.testing.lawful_layers import LAWFUL_LAYERS, Watches
from tests.testing.zoo.layers import Lays, Span

FEATURES: dict[str, Callable[[], CanLayerCalls]] = {
    "approval": Approval,
    "fencing": Fencing,
    "interception": lambda: Interception(InterceptorStack.of([Gatekeeper(), Retry()])),
    "labels": lambda: Labeling(ExecutionScope()),
    "pins": lambda: DefinitionPins(are_defined=True),
    "programs": lambda: ProgramCalls(None),
}


@pytest.mark.parametrize("law", CallLayerKit.laws)
@pytest.mark.parametrize("name", FEATURES)
def test_features_of_the_package_keep_the_laws(name: str, law: int) -> None:
    """What an execution may have is no worse when it is laid around a call a second time."""
    CallLayerKit(FEATURES[name], examples=examples(4)).check(law)


@pytest.mark.parametrize("law", CallLayerKit.laws)
@pytest.mark.parametrize("feature", LAWFUL_LAYERS)
def test_features_that_people_write_keep_the_laws(feature: Callable[[], CanLayerCalls], law: int) -> None:
    """They refuse, suspend, repeat, keep, correct and end calls, and none of that breaks a law."""
    CallLayerKit(feature, examples=examples(4)).check(law)


def test_what_a_feature_has_begun_is_compared() -> None:
    """A feature shows it as whatever it has, such as a set or a list."""
    CallLayerKit(Watches, begun=lambda watches: watches.running, examples=examples(10)).check(58)
    CallLayerKit(lambda: Lays(Span), begun=lambda feature: feature.running, examples=examples(10)).check(58)


def test_a_feature_is_found_by_its_contract() -> None:
    """`pytest --agentloop-kit` needs its name alone."""
    assert isinstance(kit_of("tests.testing.lawful_layers:Watches"), CallLayerKit)


def test_a_feature_that_cannot_be_created_keeps_no_law() -> None:
    """The reason is said once for all laws."""

    def create() -> CanLayerCalls:
        raise OSError("no disk")

    with pytest.raises(LawNotChecked, match="the factory raised OSError: no disk"):
        CallLayerKit(create, examples=1).check(58)
