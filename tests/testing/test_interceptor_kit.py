"""The law suite of interceptors: ours pass, and each broken one is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop import (
    AuditLog,
    Budget,
    CancellationToken,
    Interceptor,
    Permissions,
    RequireApproval,
    StepLimit,
    StopOnFinishReason,
    TimeLimit,
    TokenLimit,
    ToolCallLimit,
)
from agentloop.contracts import CanIntercept
from agentloop.testing import InterceptorKit, LawViolation
from agentloop.values.points import AfterStep, BeforeStep

MAKERS: dict[str, Callable[[], CanIntercept]] = {
    "step limit": lambda: StepLimit(2),
    "tool call limit": lambda: ToolCallLimit(3),
    "token limit": lambda: TokenLimit(500),
    "budget": lambda: Budget(steps=4, tool_calls=6, tokens=6_000, seconds=1000),
    "time limit": lambda: TimeLimit(1000),
    "finish reason": StopOnFinishReason,
    "permissions": lambda: Permissions(deny=["echo", lambda point: point.arguments["value"] > 10]),
    "approval": lambda: RequireApproval([lambda point: point.arguments["value"] % 3 == 0]),
    "audit log": lambda: AuditLog(lambda _: None, secrets=["value"], results=True),
    "cancellation": CancellationToken,
}


@pytest.mark.parametrize("law", InterceptorKit.laws)
@pytest.mark.parametrize("name", MAKERS)
def test_the_interceptors_keep_the_laws(name: str, law: int) -> None:
    """Each interceptor that comes with the package keeps every law of the contract."""
    InterceptorKit(MAKERS[name], examples=25).check(law)


class WritesIntoTheState(Interceptor):
    """Breaks law 3: the state of the point is changed in place."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        object.__setattr__(point.state, "execution_count", point.state.execution_count + 1)
        return point


class Counter:
    """What a broken interceptor counts across executions."""

    value = 0


class DependsOnChance(Interceptor):
    """Breaks law 8: what it does depends on how often it was used."""

    def after_step(self, point: AfterStep) -> AfterStep:
        Counter.value += 1
        return point.with_state(point.state.with_metadata(chance=Counter.value))


class KeepsTheState(Interceptor):
    """Breaks law 9: one execution sees what another has left."""

    def __init__(self) -> None:
        self.steps = 0

    def after_step(self, point: AfterStep) -> AfterStep:
        self.steps += 1
        return point.with_state(point.state.with_metadata(steps=self.steps))


BROKEN: list[tuple[int, Callable[[], CanIntercept]]] = [
    (3, WritesIntoTheState),
    (8, DependsOnChance),
    (9, KeepsTheState),
]


@pytest.mark.parametrize(("law", "make"), BROKEN)
def test_a_broken_interceptor_is_caught_by_its_law(law: int, make: Callable[[], CanIntercept]) -> None:
    """An interceptor that breaks a law is refused, and the law is named."""
    with pytest.raises(LawViolation) as caught:
        InterceptorKit(make).check(law)
    assert caught.value.law == law


def test_every_law_of_the_kit_has_an_interceptor_that_breaks_it() -> None:
    """No check of the kit is one that cannot fail."""
    assert {law for law, _ in BROKEN} == set(InterceptorKit.laws)
