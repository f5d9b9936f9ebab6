"""An interceptor that proceeds again: an effect that may have taken place does not take place again, unless code says so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, Interceptor, ScriptedInference, ToolCall, tool
from agentloop.errors import ToolUnavailable
from agentloop.policies import Resilience, Retry
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.values import ToolExecution
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import RetryPolicy


class Repeats(Interceptor):
    """Proceeds again when a call did not succeed."""

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        first = await proceed()
        return first if first.succeeded else await proceed()


class RepeatsAlways(Repeats):
    """Says that effects may be repeated."""

    repeats_effects = True


class CutsOff(Interceptor):
    """Proceeds again when a call takes too long."""

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(proceed(), 1)
        return await proceed()


class AtOnce(Interceptor):
    """Proceeds twice at the same time."""

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return (await asyncio.gather(proceed(), proceed()))[0]


def pay_twice(interceptor: Interceptor, error: Exception | None = None, **options: Any) -> tuple[int, AgentState]:
    """Return how often the tool ran, and the state."""
    paid: list[int] = []

    @tool(**options)
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        await asyncio.sleep(5)
        raise error or ConnectionError("the answer of the bank was lost")

    model = ScriptedInference(ToolCall("1", "pay", '{"cents": 5}'), "done")
    loop = AgentLoop.for_model(model, tools=[pay], interceptors=[interceptor], clock=LoopClock())
    state = run_in_virtual_time(loop.execute("Pay."))
    return len(paid), state


@pytest.mark.parametrize("interceptor", [Repeats(), CutsOff(), AtOnce()])
def test_an_effect_that_may_have_run_does_not_proceed_again(interceptor: Interceptor) -> None:
    """The second attempt is refused, the execution fails, and the call says that it may have run."""
    times, state = pay_twice(interceptor)
    assert times == 1
    (execution,) = state.steps[0].executions
    assert execution.may_have_run
    assert "proceeded again with a call of 'pay' that may have run" in state.errors[0].message


def test_the_refusal_has_the_first_outcome() -> None:
    """What the tool said before is not lost."""
    assert "the answer of the bank was lost" in pay_twice(Repeats())[1].errors[0].message


@pytest.mark.parametrize(
    ("interceptor", "options"),
    [
        (Repeats(), {"effect": "pure"}),
        (Repeats(), {"effect": "idempotent"}),
        (Interceptor(), {"retry": RetryPolicy(max_attempts=2)}),
        (RepeatsAlways(), {}),
        (Retry(RetryPolicy(max_attempts=2), effects=True), {}),
        (Resilience(), {"retry": RetryPolicy(max_attempts=2)}),
    ],
)
def test_code_can_say_that_a_call_may_be_repeated(interceptor: Interceptor, options: dict[str, Any]) -> None:
    """A tool that is pure or idempotent, or declares retries, and an interceptor that says so."""
    times, state = pay_twice(interceptor, **options)
    assert times == 2
    assert state.final_text == "done"


def test_a_call_that_did_not_begin_proceeds_again() -> None:
    """A tool that says that it did not run has had no effect."""
    assert pay_twice(Repeats(), ToolUnavailable("the server is away"))[0] == 2
