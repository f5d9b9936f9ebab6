"""The mode in which a model calls tools by programs alone."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, ToolChoice
from agentloop.errors import ConfigurationError
from agentloop.interception import ToolSelection
from agentloop.models.modes.program import ProgramMode
from agentloop.values import InferenceRequest, InferenceResponse, Message, ToolStatus
from tests.models.programs.running import World, program


def test_only_programs_are_offered() -> None:
    """The request has one tool, whose description has the others as typed functions; the driver adds it."""
    world = World()
    model = ScriptedInference(program('await search("x", n=2)'), "done")
    loop = AgentLoop(ToolCallingDriver(model, mode="program"), world.tools)
    state = loop.execute_sync("Go.", execution_id="e")
    (offered,) = model.requests[0].tools
    assert offered.name == "run_program"
    assert "async def search(query: str, n: int = 1) -> list[str]:" in offered.description
    assert "    query: what to look for" in offered.description
    assert state.steps[0].executions[0].inner[0].value == ("x", "x")
    assert state.final_text == "done"


def test_a_direct_call_is_rejected() -> None:
    """A model that calls a tool directly reads that it has to write a program; the tool does not run."""
    world = World()
    model = ScriptedInference(ToolCall("1", "pay", '{"to": "Ada"}'), "done")
    loop = AgentLoop(ToolCallingDriver(model, mode="program"), world.tools)
    execution = loop.execute_sync("Go.").steps[0].executions[0]
    assert execution.status is ToolStatus.REJECTED
    assert "call it in a program" in execution.error_message
    assert world.done == []


def test_the_text_beside_a_direct_call_stays() -> None:
    """Only the calls of a response are rejected."""
    world = World()
    model = ScriptedInference(["I pay.", ToolCall("1", "pay", '{"to": "Ada"}')], "done")
    loop = AgentLoop(ToolCallingDriver(model, mode="program"), world.tools)
    state = loop.execute_sync("Go.")
    assert state.messages[1].text == "I pay."
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.REJECTED]


def test_a_program_beside_a_direct_call_runs() -> None:
    """Only the direct call is rejected."""
    world = World()
    calls = [ToolCall("1", "pay", '{"to": "Ada"}'), program('await search("x")'), ToolCall("3", "search", "{}")]
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(calls, "done"), mode="program"), world.tools)
    statuses = [execution.status for execution in loop.execute_sync("Go.").steps[0].executions]
    assert statuses == [ToolStatus.REJECTED, ToolStatus.SUCCEEDED, ToolStatus.REJECTED]
    assert world.done == ["search x"]


def test_a_direct_call_that_is_rejected_already_keeps_its_reason() -> None:
    """Such as one in prose, of which the form of the mode knows why it must not run; so does a program."""
    calls = [ToolCall(name, name, "{}", rejection="it is only mentioned") for name in ("pay", "run_program")]
    direct = ToolCall("2", "pay", "{}")
    request = InferenceRequest((Message.user("Go."),), tools=[each.spec for each in World().tools])
    parsed = ProgramMode().parse_response(InferenceResponse((*calls, direct)), request)
    assert [call.rejection == "it is only mentioned" for call in parsed.tool_calls] == [True, True, False]
    assert parsed.tool_calls[:2] == tuple(calls)
    assert "call it in a program" in parsed.tool_calls[2].rejection


def test_hidden_tools_are_hidden_from_programs() -> None:
    """A tool that an interceptor does not offer is not in the description, and a program cannot call it."""
    world = World()
    source = 'await search("x")\ntry:\n    await pay("Ada")\nexcept NameError as error:\n    print(error)'
    model = ScriptedInference(program(source), "done")
    driver = ToolCallingDriver(model, mode="program")
    loop = AgentLoop(driver, world.tools, interceptors=[ToolSelection(["search", "run_program"])])
    state = loop.execute_sync("Go.")
    assert "def pay" not in model.requests[0].tools[0].description
    assert "name 'pay' is not defined" in state.steps[0].executions[0].text
    assert world.done == ["search x"]


def test_a_choice_of_another_tool_is_refused() -> None:
    """A tool that must be called cannot be called by a program that nobody has written."""
    driver = ToolCallingDriver(ScriptedInference("done"), mode="program", tool_choice=ToolChoice.specific("pay"))
    state = AgentLoop(driver, World().tools).execute_sync("Go.")
    assert state.errors[-1].type == ConfigurationError.__name__


@pytest.mark.parametrize("streaming", [False, True])
def test_streams_are_equal(streaming: bool) -> None:  # noqa: FBT001  # a parameter
    """Streamed or not, the same calls are made and the same answer is given."""
    world = World()
    model = ScriptedInference(program('await search("x")'), "done")
    loop = AgentLoop(ToolCallingDriver(model, mode="program", streaming=streaming), world.tools)
    assert loop.execute_sync("Go.").final_text == "done"
    assert world.done == ["search x"]
