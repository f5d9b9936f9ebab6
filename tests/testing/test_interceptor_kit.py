"""The law suite of interceptors: the package's interceptors pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop import (
    AuditLog,
    Budget,
    CancellationToken,
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
from agentloop.testing import InterceptorKit
from tests.generated import examples

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
    # A budget that is nearly used up takes the tools out of requests, so that the model answers.
    InterceptorKit(FACTORIES[name], examples=examples(5), breaks_prefix=name == "budget").check(law)
