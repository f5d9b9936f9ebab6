"""System prompts that a function writes: from the state, or from the state and who asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, Interceptor, Message, ScriptedInference, ToolCall, handoff_to
from agentloop.contracts import CanCompileMessages
from agentloop.errors import ForeignCancellation, InvalidParameter
from agentloop.interception import at
from agentloop.loop import Identity, RunRequest
from agentloop.policies import Guardrails, Inspection
from agentloop.values.points import POINTS, Point
from agentloop.values.run_requests import principal_of

ADA = Identity("ada", tenant="acme")


def greet(state: AgentState, request: RunRequest) -> str:
    """Greet whoever asks."""
    assert request.execution_id == state.execution_id
    return f"You help {request.principal or 'somebody'}."


def prompts_of(model: ScriptedInference) -> list[str]:
    """Return the system prompts of the requests that a model got."""
    return [request.system_prompt for request in model.requests]


async def test_a_prompt_can_name_who_asks() -> None:
    """A function of two arguments gets the request of each execution, also of one that continues a conversation."""
    model = ScriptedInference("Hi.", "Hi.", "Hi.")
    loop = AgentLoop.for_model(model, system_prompt=greet)
    state = await loop.execute("Hello.", principal=ADA)
    await loop.execute(state.with_message(Message.user("Again.")))
    await loop.replace(name="other").run("Hello.", principal=Identity("bob"))
    assert prompts_of(model) == ["You help ada@acme.", "You help somebody.", "You help bob."]


async def test_the_loop_that_takes_over_and_a_sub_agent_have_such_prompts_too() -> None:
    """A handoff renders the prompt of its target for the same request, and so does an agent as a tool."""
    model = ScriptedInference("Hi.")
    desk = AgentLoop.for_model(model, system_prompt=greet)
    first = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "desk", "{}")), tools=[handoff_to(desk, name="desk", description="Helps.")]
    )
    await first.run("Hello.", principal=ADA)
    inner = ScriptedInference("Hi.")
    tool = AgentLoop.for_model(inner, system_prompt=greet).as_tool("inner", "Helps.")
    call = ToolCall("1", "inner", '{"task": "Help."}')
    await AgentLoop.for_model(ScriptedInference(call, "Done."), tools=[tool]).run("Hello.", principal=ADA)
    assert prompts_of(model) == prompts_of(inner) == ["You help ada@acme."]


class Shop:
    """A prompt that is an object, and one that is a method."""

    def __call__(self, state: AgentState) -> str:
        """Return the prompt."""
        return "called"

    def prompt(self, _: AgentState, request: RunRequest, mark: str = "!") -> str:
        """Return the prompt."""
        return f"{request.principal}{mark}"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (lambda state: "one", "one"),
        (lambda state, mark="x": mark, "x"),
        (lambda *arguments: str(len(arguments)), "1"),
        (Shop(), "called"),
        (Shop().prompt, "ada@acme!"),
    ],
)
async def test_what_a_function_takes_is_known_by_its_signature(prompt: Any, expected: str) -> None:
    """A second parameter without a default is the request; anything that can be called with the state alone gets that alone."""
    model = ScriptedInference("Hi.")
    await AgentLoop.for_model(model, system_prompt=prompt).run("Hello.", principal=ADA)
    assert prompts_of(model) == [expected]


@pytest.mark.parametrize("prompt", [lambda: "", lambda a, b, c: "", lambda a, *, b: ""])
def test_a_function_with_other_parameters_is_refused_where_it_is_given(prompt: Any) -> None:
    """The loop is not made, and the error says what to write."""
    with pytest.raises(InvalidParameter, match=r"def prompt\(state\) or def prompt\(state, request\)"):
        AgentLoop.for_model(ScriptedInference("Hi."), system_prompt=prompt)


def cancelled(_: AgentState) -> str:
    """Raise what a future raises that somebody else has cancelled."""
    raise asyncio.CancelledError("not yours")


async def test_a_prompt_that_raises_a_cancellation_of_its_own_is_named() -> None:
    """The task of the caller goes on with an error of agentloop; a loop that takes over fails with it."""
    loop = AgentLoop.for_model(ScriptedInference("Hi."), system_prompt=cancelled)
    with pytest.raises(ForeignCancellation, match="the function for the system prompt"):
        await loop.execute("Hello.")
    first = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "desk", "{}")), tools=[handoff_to(loop, name="desk", description="Helps.")]
    )
    state = await first.execute("Hello.")
    assert state.errors[-1].type == "ForeignCancellation"


async def test_a_prompt_of_a_cancelled_task_lets_the_cancellation_pass() -> None:
    """A cancellation of the task itself stays one."""

    def cancel(_: AgentState) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise asyncio.CancelledError

    loop = AgentLoop.for_model(ScriptedInference("Hi."), system_prompt=cancel)
    task = asyncio.create_task(loop.execute("Hello."))
    await asyncio.wait((task,))
    assert task.cancelled()


async def test_every_interceptor_point_knows_who_asks() -> None:
    """Interceptors, guardrails, output checks and compilers see the principal, and None where nobody is known."""
    seen: dict[str, set[Identity | None]] = {}

    def note(name: str, principal: Identity | None) -> None:
        seen.setdefault(name, set()).add(principal)

    class Watch(Interceptor):
        """Notes who asks at every point."""

        async def around_inference(self, point: Any, proceed: Any) -> Any:
            note(point.point_name, point.principal)
            return await proceed()

        async def around_tool_use(self, point: Any, proceed: Any) -> Any:
            note(point.point_name, point.principal)
            return await proceed()

    class Compiler(CanCompileMessages):
        """Shows everything."""

        def compile(self, state: AgentState) -> Any:
            note("compile", principal_of(state))
            return state.messages

    def observe(point: Point) -> Any:
        note(point.point_name, point.principal)
        return point

    def check(inspection: Inspection) -> list[str]:
        note("guardrail", inspection.principal)
        return []

    attach: Any = at
    plain = [name for name in POINTS if not name.startswith("around") and name != "on_error"]
    loop = AgentLoop.for_model(
        ScriptedInference(
            ToolCall("1", "unknown", "{}"), ToolCall("2", "noop", "{}"), "Hi.", ToolCall("3", "noop", "{}"), "Hi."
        ),
        tools=[noop],
        interceptors=[Watch(), Guardrails(input=check), *[attach(name, observe) for name in plain]],
        output_check=lambda _, inspection: note("output_check", inspection.principal),
        compiler=Compiler(),
    )
    await loop.run("Hello.", principal=ADA)
    names = {*POINTS, "guardrail", "output_check", "compile"} - {"on_error"}
    assert seen == {name: {ADA} for name in names}
    await loop.run("Hello.")
    assert {name: found - {ADA} for name, found in seen.items()} == {name: {None} for name in names}


def noop() -> str:
    """Do nothing."""
    return "done"
