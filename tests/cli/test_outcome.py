"""What came of an execution."""

from __future__ import annotations

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.cli.console import exit_code, shortcoming, summary
from agentloop.errors import AuthenticationError
from agentloop.inference.scripted import ScriptLine
from agentloop.interception import before_tool_use
from agentloop.values.inference import Usage


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


PAY = ToolCall("1", "pay", '{"amount":5}')


async def _ended(*lines: ScriptLine, max_steps: int = 5, suspends: bool = False) -> AgentState:
    loop = AgentLoop.for_model(ScriptedInference(*lines, usage=Usage(1000, 20)), tools=[pay], max_steps=max_steps)
    if suspends:
        loop = loop.with_interceptors(before_tool_use(lambda point: point.suspend("a person has to agree")))
    return await loop.execute("Pay.")


async def test_an_answer() -> None:
    """An answer ends with 0, has no shortcoming, and is summed up on one line."""
    state = await _ended([PAY], "Done.")
    assert (exit_code(state), shortcoming(state)) == (0, "")
    assert summary(state).startswith("completed in 2 steps · 1 tool call (1 succeeded) · 2,000 tokens in, 40 out · ")


async def test_a_failure() -> None:
    """A failure ends with 1 and is told with its error and what to look at."""
    state = await _ended([PAY], AuthenticationError("the key is refused", status=401))
    assert exit_code(state) == 1
    first, second = shortcoming(state).splitlines()
    assert first == "Failed after 2 steps: AuthenticationError: the key is refused"
    assert "Is the key in the provider's environment variable the right one" in second


async def test_a_limit() -> None:
    """An execution that a limit cut short ends with 3 and names the limit."""
    state = await _ended([PAY], [PAY], max_steps=1)
    assert (exit_code(state), shortcoming(state)) == (3, "Stopped after 1 step: the limit of 1 step is reached.")


async def test_a_decision_that_is_waited_for() -> None:
    """An execution that waits ends with 3 and shows each call that waits, and why."""
    state = await _ended([PAY], suspends=True)
    assert exit_code(state) == 3
    assert shortcoming(state).splitlines() == [
        "Suspended after 1 step: 1 call waits.",
        "pay(amount=5) waits for a decision: a person has to agree",
    ]
    assert "1 tool call (1 waiting)" in summary(state)


async def test_an_answer_without_text() -> None:
    """A model that answers with nothing has answered, and that there is no text is told."""
    state = await _ended("")
    assert exit_code(state) == 0
    assert shortcoming(state) == "Completed after 1 step, but the model gave no text as its answer."
