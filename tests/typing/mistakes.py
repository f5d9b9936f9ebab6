"""Lines that type checkers have to refuse; a directive that suppresses nothing is an error itself."""

from __future__ import annotations

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCallingDriver, tool

driver = ToolCallingDriver(ScriptedInference())
AgentLoop("openai:gpt-5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # a text
AgentLoop(driver, max_steps="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # a text
AgentLoop(driver, max_step=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # no such parameter
AgentLoop(driver, journal="runs.db")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # a text
AgentLoop.for_model("ollama:m", temprature=0.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # misspelled
AgentLoop.for_model(driver)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # no model


def outputs_of_another_type(loop: AgentLoop[int], state: AgentState[int]) -> None:
    """The type of an answer is not forgotten."""
    text: str = loop.run_sync("go")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # it is an int
    output: str = state.output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # it is an int
    narrower: AgentLoop[bool] = loop  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # not every int is one
    state.with_output((text, output, narrower))
    state.final_text.upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # it may be None
    loop.execute_sync(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no input


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


add("1", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a text
