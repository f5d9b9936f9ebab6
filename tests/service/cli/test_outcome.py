"""The outcome of an execution: exit code, problem and summary."""

from __future__ import annotations

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.errors import AuthenticationError
from agentloop.interception import at
from agentloop.models.scripted import ScriptLine
from agentloop.service.cli.console import describe_problem, exit_code_of, summarize
from agentloop.values.inference import Usage


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


PAY = ToolCall("1", "pay", '{"amount":5}')


async def _run(*lines: ScriptLine, max_steps: int = 5, suspends: bool = False) -> AgentState:
    loop = AgentLoop.for_model(ScriptedInference(*lines, usage=Usage(1000, 20)), tools=[pay], max_steps=max_steps)
    if suspends:
        loop = loop.with_interceptors(at("before_tool_use", lambda point: point.suspend("a person has to agree")))
    return await loop.execute("Pay.")


async def test_an_answer() -> None:
    """An answer has exit code 0, no problem, and a summary on one line."""
    state = await _run([PAY], "Done.")
    assert (exit_code_of(state), describe_problem(state)) == (0, "")
    assert summarize(state).startswith("completed in 2 steps · 1 tool call (1 succeeded) · 2,000 tokens in, 40 out · ")


async def test_a_failure() -> None:
    """A failure has exit code 1, and its problem names the error and what to check."""
    state = await _run([PAY], AuthenticationError("the key is refused", status=401))
    assert exit_code_of(state) == 1
    first, second = describe_problem(state).splitlines()
    assert first == "Failed after 2 steps: AuthenticationError: the key is refused"
    assert "Check the key in the provider's environment variable" in second


async def test_a_limit() -> None:
    """An execution that a limit stopped has exit code 3, and its problem names the limit."""
    state = await _run([PAY], [PAY], max_steps=1)
    assert (exit_code_of(state), describe_problem(state)) == (
        3,
        "Stopped after 1 step: the limit of 1 step is reached.\nTo get further, ask again with a larger --max-steps.",
    )


async def test_a_pending_decision() -> None:
    """A suspended execution has exit code 3, and its problem lists each pending call with the reason."""
    state = await _run([PAY], suspends=True)
    assert exit_code_of(state) == 3
    assert describe_problem(state).splitlines() == [
        "Suspended after 1 step: 1 call waits.",
        "pay(amount=5) waits for a decision: a person has to agree",
    ]
    assert "1 tool call (1 waiting)" in summarize(state)


async def test_a_pending_call_is_shown_whole() -> None:
    """The problem has all of a long call that waits, and the defaults that it runs with, for it may be decided by its number."""

    @tool
    def send(text: str, to: str = "everybody") -> str:
        """Send."""
        return text

    text = "all is well " * 2_000
    call = ToolCall("1", "send", f'{{"text":"{text}\u200b"}}')
    loop = AgentLoop.for_model(
        ScriptedInference([call]),
        tools=[send],
        interceptors=[at("before_tool_use", lambda point: point.suspend("why"))],
    )
    _, shown = describe_problem(await loop.execute("Go.")).splitlines()
    assert shown == f'send(text="{text}\\u200b", to="everybody" (default)) waits for a decision: why'


async def test_an_answer_without_text() -> None:
    """An agent that may be silent has exit code 0, and the problem says that its answer has no text."""
    state = await AgentLoop.for_model(ScriptedInference(""), output_type=str | None).execute("Pay.")
    assert exit_code_of(state) == 0
    assert describe_problem(state) == "Completed after 1 step, but the model's answer has no text."
    failed = await _run(*[""] * 3)
    assert exit_code_of(failed) == 1
    assert "it is empty" in describe_problem(failed)
