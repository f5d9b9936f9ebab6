"""The law suite of the eager start: the library's driver passes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import pytest

from agentloop import Interceptor, ToolCallingDriver, ToolExecutor
from agentloop.contracts import CanInfer, CanIntercept
from agentloop.interception import BeforeToolUse
from agentloop.policies import Resilience
from agentloop.testing import EagerStartKit
from agentloop.testing.equivalence_kit import PointRecorder
from agentloop.values import Effect
from tests.generated import examples


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Leave out the logged failures of toys."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def driver(model: CanInfer, eager: bool) -> ToolCallingDriver:  # noqa: FBT001  # of the kit
    return ToolCallingDriver(model, streaming=True, eager=eager, max_retries=0)


class Gate(Interceptor):
    """Blocks, answers and changes calls depending on their value, after they may have started."""

    allows_eager_start = True

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        value = point.arguments["value"]
        if value % 5 == 3:
            return point.block("not this one")
        if value % 5 == 4:
            return point.answer(44)
        return point.with_arguments({**point.arguments, "value": value + 1}) if value % 5 == 2 else point


class Seal(Interceptor):
    """Sees calls before they run, and does not allow that they start earlier."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point


INTERCEPTORS: dict[str, Callable[[], Iterable[CanIntercept]]] = {
    "none": tuple,
    "recorder": lambda: (PointRecorder(),),
    "gate": lambda: (Gate(), PointRecorder()),
    "resilience": lambda: (Resilience(retry=None),),
    "seal": lambda: (Seal(),),
}


@pytest.mark.parametrize("interceptors", INTERCEPTORS)
@pytest.mark.parametrize("law", EagerStartKit.laws)
def test_an_eager_run_is_the_plain_run(law: int, interceptors: str) -> None:
    """State, events and records do not depend on the eager start, whatever streams, tools and interceptors do."""
    EagerStartKit(driver, interceptors=INTERCEPTORS[interceptors], examples=examples(20)).check(law)


@pytest.mark.parametrize("law", EagerStartKit.laws)
def test_calls_with_an_effect_never_start_early(law: int) -> None:
    """Of tools with an effect, nothing runs that the plain run would not run."""
    EagerStartKit(driver, effect=Effect.EFFECT, examples=examples(10)).check(law)


@pytest.mark.parametrize("law", EagerStartKit.laws)
def test_limits_of_concurrency_hold(law: int) -> None:
    """An executor that runs two calls at once changes nothing about that."""
    EagerStartKit(driver, executor=lambda: ToolExecutor(max_concurrency=2), examples=examples(10)).check(law)
