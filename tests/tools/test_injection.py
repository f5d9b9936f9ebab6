"""What the program gives a tool: never shown to a model, never taken from one."""

from __future__ import annotations

from typing import Annotated, Any, Self

import pytest
from attrs import evolve, frozen

from agentloop import AgentState, ToolCall, ToolContext, tool
from agentloop.contracts import CanAccessAgentState, CanAccessToolCall, CanAccessToolContext
from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.testing import ExecutorBench
from agentloop.tools import TypedTool
from agentloop.values.tool_calls import ToolExecution


@tool
async def look(word: str, state: AgentState, served: Annotated[ToolCall, "mine"], context: ToolContext | None) -> str:
    """Look at what was given."""
    key = context.idempotency_key if context is not None else "none"
    return f"{word} {state.agent_id} {served.id} {key}"


@tool
def look_plainly(word: str, state: AgentState | None = None) -> str:
    """Look at what was given."""
    return f"{word} {state.agent_id if state is not None else 'alone'}"


async def outcome_of(made: Any, arguments: str) -> ToolExecution:
    (outcome,) = (await ExecutorBench([made]).run(ToolCall("c1", made.name, arguments))).executions
    return outcome


@pytest.mark.parametrize("made", [look, look_plainly], ids=["async", "plain"])
def test_what_is_injected_is_not_shown(made: Any) -> None:
    """A model sees only the parameters that are its own to give."""
    assert list(made.parameters["properties"]) == ["word"]
    assert made.parameters["required"] == ("word",)


async def test_injection_reaches_annotated_and_optional_parameters() -> None:
    """What stands around the class in the annotation does not matter, and a default gives way."""
    assert (await outcome_of(look, '{"word": "a"}')).value == "a agent c1 run/1/0"
    assert (await outcome_of(look_plainly, '{"word": "a"}')).value == "a agent"
    assert look_plainly("a") == "a alone"


@pytest.mark.parametrize("name", ["state", "served", "context"])
async def test_a_model_that_names_an_injected_parameter_is_refused(name: str) -> None:
    """Whatever the model puts there, the call does not run, and the model is told which argument was wrong."""
    refused = await outcome_of(look, f'{{"word": "a", "{name}": null}}')
    assert refused.status.value == "rejected"
    assert name in refused.error_message


@pytest.mark.parametrize("name", ["state", "served", "context"])
async def test_a_loose_schema_does_not_let_a_model_inject(name: str) -> None:
    """Also where the schema would let it pass, the argument is refused, with its path."""
    loose = tool(schema={"type": "object"})(look.function)
    refused = await outcome_of(loose, f'{{"word": "a", "{name}": null}}')
    assert refused.error is not None
    assert (refused.error.type, refused.error.path) == ("InvalidArguments", f"$.{name}")
    assert "given by the program, not by the caller: leave it out" in refused.error.message
    with pytest.raises(InvalidArguments):
        loose.prepare({"word": "a", name: None})


def test_a_schema_cannot_offer_what_is_injected() -> None:
    """A schema that names an injected parameter is a definition error."""
    with pytest.raises(ToolDefinitionError, match=r"\['state'\]"):
        tool(schema={"type": "object", "properties": {"word": {}, "state": {}}})(look.function)


def test_injecting_makes_copies() -> None:
    """The tool that was passed in never holds anything of a call."""
    state = AgentState.start("q")
    bound = look.with_agent_state(state).with_tool_call(ToolCall("c", "look"))
    assert bound is not look
    assert look_plainly.with_tool_call(ToolCall("c", "look_plainly")) is look_plainly  # it wants none
    assert not look._given


@frozen
class Reader(TypedTool, CanAccessAgentState, CanAccessToolCall, CanAccessToolContext):
    """Reads what it is given by contract."""

    seen: tuple[str, ...] = ()

    def with_agent_state(self, state: AgentState) -> Self:
        return evolve(self, seen=(*self.seen, state.agent_id))

    def with_tool_call(self, call: ToolCall) -> Self:
        return evolve(self, seen=(*self.seen, call.id))

    def with_tool_context(self, context: ToolContext) -> Self:
        return evolve(self, seen=(*self.seen, context.idempotency_key))

    async def use(self, word: str) -> list[str]:
        return [word, *sorted(self.seen)]


async def test_a_class_tool_is_given_state_call_and_context_by_contract() -> None:
    """Each contract gives its part, to a copy that serves one call."""
    reader = Reader()
    assert (await outcome_of(reader, '{"word": "a"}')).value == ("a", "agent", "c1", "run/1/0")
    assert reader.seen == ()
    assert list(reader.parameters["properties"]) == ["word"]


async def test_a_model_cannot_reach_what_a_class_tool_is_given() -> None:
    """There is no parameter for it, so naming one is refused."""
    refused = await outcome_of(Reader(), '{"word": "a", "seen": ["forged"]}')
    assert refused.status.value == "rejected"
    assert "'seen' was unexpected" in refused.error_message


def test_a_class_that_wants_the_state_as_a_parameter_is_told_how_to_get_it() -> None:
    """Only functions are injected by annotation; the error names the contract."""

    class Wrong(TypedTool):
        async def use(self, state: AgentState) -> str:
            """Look."""
            return state.agent_id

    with pytest.raises(ToolDefinitionError, match="implements CanAccessAgentState"):
        _ = Wrong().parameters
