"""The law suite of interceptors: the package's interceptors pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop import (
    Budget,
    CancellationToken,
    Interceptor,
    Permissions,
    RequireApproval,
    StepLimit,
    TimeLimit,
    TokenLimit,
    ToolCall,
    ToolCallLimit,
    tool,
)
from agentloop.contracts import CanIntercept
from agentloop.errors import ConfigurationError
from agentloop.interception import AfterToolUse, BeforeToolUse, StopOnFinishReason
from agentloop.policies import AuditLog, EgressApproval, Guardrails, ReplaceAnswer
from agentloop.testing import InterceptorKit, LawViolation, check_laws
from tests.generated import examples
from tests.testing.zoo.interceptors import WritesMoreThanDeclared


class LimitPayments(Interceptor):
    """Blocks payments of more than 100."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("too much") if point.arguments["amount"] > 100 else point


class SharesPayments(LimitPayments):
    """Counts payments on itself, for all executions."""

    def __init__(self) -> None:
        self.count = 0

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        self.count += 1
        return point.with_value(self.count)


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


PAYMENTS = [ToolCall("", "pay", f'{{"amount": {amount}}}') for amount in (5, 500)]


def test_an_interceptor_that_needs_other_arguments_says_what_the_toys_have() -> None:
    """A report without a violation would be one about nothing."""
    report = check_laws(InterceptorKit(LimitPayments, examples=2))
    assert [each.law for each in report.unchecked] == list(InterceptorKit.laws)
    assert "failed at before_tool_use: KeyError: 'amount'; so it did in all 6 executions" in report.unchecked[0].reason
    assert "The toys have the arguments `value`, `seconds` and `key`" in report.unchecked[0].reason


class Quotes(Interceptor):
    """Fails at each call, with what a service has said."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        raise RuntimeError("the service said: ContractViolation: a tenant keeps its facts")


def test_an_error_is_judged_by_its_class() -> None:
    """What the message quotes is no refusal by the loop, which would break law 25."""
    report = check_laws(InterceptorKit(Quotes, examples=2))
    assert [each.law for each in report.unchecked] == list(InterceptorKit.laws)
    assert not report.violations


def test_tools_and_calls_of_a_program_take_the_place_of_the_toys() -> None:
    """What a lawful interceptor is for is checked then, and what a broken one does is found."""
    InterceptorKit(LimitPayments, examples=5, tools=[pay], calls=PAYMENTS).check_all()
    with pytest.raises(LawViolation, match=r"law 9 is violated: a concurrent execution differs .* at .*\.value: "):
        InterceptorKit(SharesPayments, examples=10, tools=[pay], calls=PAYMENTS).check(9)
    with pytest.raises(ConfigurationError, match="tools need calls of them"):
        InterceptorKit(LimitPayments, tools=[pay])


def test_an_undeclared_write_is_one_violation() -> None:
    """It is reported once, with the sentence that it breaks."""
    (violation,) = check_laws(InterceptorKit(WritesMoreThanDeclared, examples=10)).violations
    assert violation.law == 3
    assert "Declared writes: " in str(violation)


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


@tool(egress="url")
async def fetch(url: str) -> str:
    """Fetch a page."""
    return f"page of {url}"


@tool(egress=True)
async def search(words: str) -> str:
    """Ask a server."""
    return f"found {words}"


SENT = [
    *[ToolCall("", "fetch", f'{{"url": "http://{host}"}}') for host in ("a.example", "b.example")],
    ToolCall("", "search", '{"words": "x"}'),
]


@pytest.mark.parametrize("law", InterceptorKit.laws)
@pytest.mark.parametrize("from_start", [False, True])
def test_the_question_before_egress_obeys_the_laws(law: int, *, from_start: bool) -> None:
    """With tools by which data can leave, some calls of which are of a server."""
    kit = InterceptorKit(
        lambda: EgressApproval(["search"], from_start=from_start),
        examples=examples(5),
        tools=[fetch, search],
        calls=SENT,
    )
    kit.check(law)
