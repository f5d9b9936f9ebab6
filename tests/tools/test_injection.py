"""Injected parameters: never shown to a model, never accepted from one."""

from __future__ import annotations

from typing import Annotated, Any, Self

import pytest
from attrs import evolve, frozen

from agentloop import AgentState, ToolCall, ToolContext, tool
from agentloop.contracts import CanAccessToolContext
from agentloop.contracts.tool import CanAccessAgentState, CanAccessToolCall
from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.testing import ExecutorBench
from agentloop.tools import TypedTool
from agentloop.values.tool_calls import ToolExecution


@tool
async def look(word: str, state: AgentState, served: Annotated[ToolCall, "a note"], context: ToolContext | None) -> str:
    """Format the injected values."""
    key = context.idempotency_key if context is not None else "none"
    return f"{word} {state.agent_id} {served.id} {key}"


@tool
def look_plainly(word: str, state: AgentState | None = None) -> str:
    """Format the injected values."""
    return f"{word} {state.agent_id if state is not None else 'alone'}"


async def outcome_of(subject: Any, arguments: str) -> ToolExecution:
    (outcome,) = (await ExecutorBench([subject]).run(ToolCall("c1", subject.name, arguments))).executions
    return outcome


@pytest.mark.parametrize("subject", [look, look_plainly], ids=["async", "plain"])
def test_injected_parameters_are_not_in_the_schema(subject: Any) -> None:
    """The schema has only the parameters that a model fills."""
    assert list(subject.parameters["properties"]) == ["word"]
    assert subject.parameters["required"] == ("word",)


async def test_injection_reaches_annotated_and_optional_parameters() -> None:
    """`Annotated`, unions and defaults do not keep a parameter from being injected."""
    assert (await outcome_of(look, '{"word": "a"}')).value == "a agent c1 run/1/0"
    assert (await outcome_of(look_plainly, '{"word": "a"}')).value == "a agent"
    assert look_plainly("a") == "a alone"


@pytest.mark.parametrize("name", ["state", "served", "context"])
async def test_an_argument_for_an_injected_parameter_is_rejected(name: str) -> None:
    """A call with an argument for an injected parameter does not run, and its error names the argument."""
    rejected = await outcome_of(look, f'{{"word": "a", "{name}": null}}')
    assert rejected.status.value == "rejected"
    assert name in rejected.error_message


@pytest.mark.parametrize("name", ["state", "served", "context"])
async def test_a_loose_schema_does_not_let_a_model_inject(name: str) -> None:
    """The argument is rejected with its path even where the schema would accept it."""
    loose = tool(schema={"type": "object"})(look.function)
    rejected = await outcome_of(loose, f'{{"word": "a", "{name}": null}}')
    assert rejected.error is not None
    assert (rejected.error.type, rejected.error.path) == ("InvalidArguments", f"$.{name}")
    assert "is injected by the program: leave it out" in rejected.error.message
    with pytest.raises(InvalidArguments):
        loose.prepare({"word": "a", name: None})


def test_a_schema_cannot_offer_what_is_injected() -> None:
    """A supplied schema with an injected parameter is a definition error."""
    with pytest.raises(ToolDefinitionError, match=r"\['state'\]"):
        tool(schema={"type": "object", "properties": {"word": {}, "state": {}}})(look.function)


def test_injection_returns_copies() -> None:
    """A tool never stores values of a call; injecting returns a copy."""
    state = AgentState.start("q")
    bound = look.with_agent_state(state).with_tool_call(ToolCall("c", "look"))
    assert bound is not look
    assert look_plainly.with_tool_call(ToolCall("c", "look_plainly")) is look_plainly  # it has no such parameter
    assert not look._injected


@frozen
class Reader(TypedTool, CanAccessAgentState, CanAccessToolCall, CanAccessToolContext):
    """Receives state, call and context by contract."""

    seen: tuple[str, ...] = ()

    def with_agent_state(self, state: AgentState) -> Self:
        return evolve(self, seen=(*self.seen, state.agent_id))

    def with_tool_call(self, call: ToolCall) -> Self:
        return evolve(self, seen=(*self.seen, call.id))

    def with_tool_context(self, context: ToolContext) -> Self:
        return evolve(self, seen=(*self.seen, context.idempotency_key))

    async def use(self, word: str) -> list[str]:
        return [word, *sorted(self.seen)]


async def test_a_class_receives_state_call_and_context_by_contract() -> None:
    """Each contract passes its value to a copy for one call."""
    reader = Reader()
    assert (await outcome_of(reader, '{"word": "a"}')).value == ("a", "agent", "c1", "run/1/0")
    assert reader.seen == ()
    assert list(reader.parameters["properties"]) == ["word"]


async def test_a_model_cannot_set_an_attribute_of_a_class_tool() -> None:
    """An attribute is not a parameter, so an argument for it is rejected."""
    rejected = await outcome_of(Reader(), '{"word": "a", "seen": ["forged"]}')
    assert rejected.status.value == "rejected"
    assert "'seen' was unexpected" in rejected.error_message


def test_a_class_cannot_have_parameters_injected() -> None:
    """Only functions are injected by annotation; the error names the contracts for classes."""

    class Wrong(TypedTool):
        async def use(self, state: AgentState) -> str:
            """Look."""
            return state.agent_id

    with pytest.raises(ToolDefinitionError, match="implements CanAccessAgentState"):
        _ = Wrong().parameters
