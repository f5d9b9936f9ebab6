"""The law suite of interceptors: the package's interceptors pass, and every broken one fails."""

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
from agentloop.interception import Guardrails, ReplaceAnswer
from agentloop.testing import InterceptorKit, LawViolation
from agentloop.values.points import AfterStep, BeforeStep

FACTORIES: dict[str, Callable[[], CanIntercept]] = {
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
    "guardrails": lambda: Guardrails(
        input=[lambda inspection: ["short"] * (len(inspection.text) % 3 == 0)],
        output=[lambda inspection: ["odd"] * (len(inspection.text) % 2)],
        on_input="ask",
        on_output=ReplaceAnswer(str.upper),
    ),
}


@pytest.mark.parametrize("law", InterceptorKit.laws)
@pytest.mark.parametrize("name", FACTORIES)
def test_interceptors_obey_the_laws(name: str, law: int) -> None:
    """Each interceptor of the package obeys every law of the contract."""
    InterceptorKit(FACTORIES[name], examples=25).check(law)


class MutatesState(Interceptor):
    """Breaks law 3: the interceptor changes the state of a point in place."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        object.__setattr__(point.state, "execution_count", point.state.execution_count + 1)
        return point


class Counter:
    """A counter that a broken interceptor shares between executions."""

    value = 0


class DependsOnUse(Interceptor):
    """Breaks law 8: the metadata depends on how often the interceptor was used."""

    def after_step(self, point: AfterStep) -> AfterStep:
        Counter.value += 1
        return point.with_state(point.state.with_metadata(count=Counter.value))


class SharesState(Interceptor):
    """Breaks law 9: concurrent executions share a counter."""

    def __init__(self) -> None:
        self.steps = 0

    def after_step(self, point: AfterStep) -> AfterStep:
        self.steps += 1
        return point.with_state(point.state.with_metadata(steps=self.steps))


BROKEN: list[tuple[int, Callable[[], CanIntercept]]] = [
    (3, MutatesState),
    (8, DependsOnUse),
    (9, SharesState),
]


@pytest.mark.parametrize(("law", "factory"), BROKEN)
def test_a_broken_interceptor_violates_its_law(law: int, factory: Callable[[], CanIntercept]) -> None:
    """The kit raises `LawViolation` with the number of the law that an interceptor breaks."""
    with pytest.raises(LawViolation) as violation:
        InterceptorKit(factory).check(law)
    assert violation.value.law == law


def test_every_law_of_the_kit_has_an_interceptor_that_breaks_it() -> None:
    """Each check of the kit can fail."""
    assert {law for law, _ in BROKEN} == set(InterceptorKit.laws)
