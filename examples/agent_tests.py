"""Tests of an agent, without a model: `pytest examples/agent_tests.py`.

Needs pytest and pytest-asyncio; the scripted model writes what a real one would, and keeps the requests that it got.
"""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.errors import ExecutionSuspended, RateLimited
from agentloop.values import ToolStatus, deny


@tool
def refund(order: int) -> str:
    """Pay an order back."""
    return f"order {order} is paid back"


def agent(*lines: str | ToolCall | Exception) -> tuple[AgentLoop[str], ScriptedInference]:
    """Return the agent under test, with a model that writes these lines."""
    model = ScriptedInference(*lines)
    approval = RequireApproval("refund")
    return AgentLoop.for_model(model, tools=[refund], interceptors=[approval], system_prompt="Be brief."), model


def test_the_model_gets_the_instructions_and_the_tool() -> None:
    loop, model = agent("Hello.")
    assert loop.run_sync("Hi") == "Hello."
    assert model.requests[0].system_prompt == "Be brief."
    assert [spec.name for spec in model.requests[0].tools] == ["refund"]


def test_a_refund_waits_for_a_person_who_can_refuse() -> None:
    loop, model = agent(ToolCall("1", "refund", '{"order": 7}'), "I may not do that.")
    with pytest.raises(ExecutionSuspended) as suspended:
        loop.run_sync("Refund order 7")
    (pending,) = suspended.value.state.pending
    state = loop.resume_sync(suspended.value.state, {pending.key: deny("too late")})
    assert state.steps[0].executions[0].status is ToolStatus.BLOCKED
    assert state.output == "I may not do that."
    model.assert_complete()


@pytest.mark.parametrize("arguments", ["{}", '{"order": "seven"}', "not JSON"])
def test_wrong_arguments_do_not_reach_the_tool(arguments: str) -> None:
    loop, _ = agent(ToolCall("1", "refund", arguments), "Which order?")
    state = loop.execute_sync("Refund it")
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.REJECTED]


def test_a_failure_of_the_provider_is_in_the_state() -> None:
    loop, _ = agent(RateLimited("slow down"))
    assert [error.type for error in loop.execute_sync("Hi").errors] == ["RateLimited"]
