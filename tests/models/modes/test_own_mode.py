"""Tests of a mode that a program brings along."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.contracts import CanUseMode, ModeStream, ToolCallValidation
from agentloop.events import InferenceDeltaReceived
from agentloop.models import ReActDriver, ScriptedInference
from agentloop.models.modes.calls import validate_call
from agentloop.testing import LawViolation, ModeKit, ScriptedTurn
from agentloop.values import (
    Bounds,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    Text,
    ToolCall,
    ToolSpec,
)

CALL = re.compile(r"!(\w+) (\{.*\})")


class Silent(ModeStream):
    """Holds every delta back, so that the answer appears at the end."""

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return nothing."""
        return []

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the text of the response."""
        return [InferenceDelta("text", response.text)]


class ShellLikeMode(CanUseMode):
    """Calls are lines such as `!add {"a": 1}`."""

    @property
    def name(self) -> str:
        """The name that events and errors show."""
        return "shell-like"

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Describe the tools in the prompt and the results as messages of the user."""
        messages: list[Message] = []
        for message in request.messages:
            if message.exchanges:
                calls = [f"!{exchange.call.name} {exchange.call.arguments_json}" for exchange in message.exchanges]
                results = [f"= {exchange.execution.text}" for exchange in message.exchanges]
                messages += [Message.assistant("\n".join(calls)), Message.user("\n".join(results))]
            else:
                messages.append(message)
        prompt = "\n".join([request.system_prompt, *(f"!{spec.name}: {spec.description}" for spec in request.tools)])
        return request.with_system_prompt(prompt).with_messages(messages).with_tools(())

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Read the calls, one on a line."""
        calls = [ToolCall(f"call-{i}", *match.groups()) for i, match in enumerate(CALL.finditer(response.text))]
        return response if not calls else response.with_parts(calls)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check the call as the built-in modes do."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that shows the answer at its end."""
        return Silent()


def write_lines(turn: ScriptedTurn, number: int) -> InferenceResponse:
    """Write a turn in the notation of the mode."""
    lines = [turn.text, *(f"!{call.name} {call.arguments_json}" for call in turn.calls)]
    return turn.response(number).with_parts([Text("\n".join(lines).strip())])


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_mode_of_a_program_offers_tools_and_reads_calls_its_own_way() -> None:
    """The driver uses the mode's requests and responses; calls, results and the answer are those of any other mode."""
    model = ScriptedInference('!add {"a": 1, "b": 2}', '!add {"a": 3, "b": "x"}', "3 it is.")
    state = await AgentLoop(ToolCallingDriver(model, mode=ShellLikeMode()), [add]).execute("Add 1 and 2.")
    assert state.final_text == "3 it is."
    assert [execution.status.value for step in state.steps for execution in step.executions] == [
        "succeeded",
        "rejected",
    ]
    first, second, _third = model.requests
    assert "!add: Add two numbers." in first.system_prompt
    assert not first.tools
    assert [message.text for message in second.messages] == ["Add 1 and 2.", '!add {"a": 1, "b": 2}', "= 3"]


class Plain:
    """A mode that inherits from nothing: the methods of the other one, and nothing else."""

    def __init__(self) -> None:
        mode = ShellLikeMode()
        self.name = mode.name
        self.render_request = mode.render_request
        self.parse_response = mode.parse_response
        self.validate = mode.validate
        self.stream = mode.stream


class Repeating(Plain):
    """A mode with more of the members of the contract: it has invalid calls sent again, and keeps the bounds that it gets."""

    reprompts = True

    def __init__(self, bounds: Bounds | None = None) -> None:
        super().__init__()
        self.bounds = bounds

    def with_bounds(self, bounds: Bounds) -> Repeating:
        """Return a copy with these bounds."""
        return Repeating(bounds)


@pytest.mark.parametrize("streaming", [False, True])
async def test_any_object_with_the_methods_of_a_mode_is_one(*, streaming: bool) -> None:
    """Calls, results, answer and deltas are those of a mode that inherits from the contract."""
    ends = []
    for mode in (ShellLikeMode(), Plain()):
        model = ScriptedInference('!add {"a": 1, "b": 2}', '!add {"a": 3, "b": "x"}', "3 it is.")
        loop = AgentLoop(ToolCallingDriver(model, mode=mode, streaming=streaming), [add])
        seen: list[InferenceDeltaReceived] = []
        loop.on(InferenceDeltaReceived, seen.append)
        state = await loop.execute("Add 1 and 2.")
        statuses = [[each.status for each in step.executions] for step in state.steps]
        ends.append((state.final_text, statuses, [event.delta for event in seen]))
    assert ends[0] == ends[1]
    assert ends[0][0] == "3 it is."


async def test_further_members_of_a_mode_count_where_an_object_has_them() -> None:
    """With `reprompts`, an invalid call is sent back within the step; a mode with `with_bounds` gets the bounds of the loop."""
    model = ScriptedInference('!add {"a": 3, "b": "x"}', '!add {"a": 3, "b": 4}', "7 it is.")
    driver = ToolCallingDriver(model, mode=Repeating())
    state = await AgentLoop(driver, [add]).execute("Add.")
    assert [[execution.value for execution in step.executions] for step in state.steps] == [[7], []]
    mode = driver.mode_for(model)
    assert (mode.name, mode.reprompts, mode.translates, mode.fallback) == ("shell-like", True, True, None)


def test_an_object_is_accepted_wherever_a_mode_is() -> None:
    """By a loop for a model, by the driver of decisions, and by the kit of modes."""
    loop = AgentLoop.for_model(ScriptedInference('!add {"a": 1, "b": 2}', "3."), tools=[add], mode=Plain())
    assert loop.run_sync("Add.") == "3."
    assert ReActDriver(ScriptedInference(), output=Plain()).mode_for(ScriptedInference()).name == "shell-like"
    ModeKit(Plain, write_lines, examples=10).check(12)


@pytest.mark.parametrize("name", ["name", "render_request", "parse_response", "validate", "stream"])
def test_an_object_that_lacks_a_method_is_refused_with_the_name_of_the_method(name: str) -> None:
    """The message comes where the driver is made, and names the class of the object and what it lacks."""
    mode = Plain()
    delattr(mode, name)
    for make in (partial(ToolCallingDriver, mode=mode), partial(ReActDriver, output=mode)):
        with pytest.raises(TypeError, match=rf"this object of type Plain lacks {name}$"):
            make(ScriptedInference())
    setattr(mode, name, 3)
    with pytest.raises(TypeError, match=rf"lacks {name}$"):
        AgentLoop.for_model(ScriptedInference(), mode=mode)


@pytest.mark.parametrize("mode", [None, 3, object()])
def test_what_is_no_mode_is_refused(mode: object) -> None:
    """It lacks everything; a class is not an object of it."""
    with pytest.raises(
        TypeError, match=f"of type {type(mode).__name__} lacks name, parse_response, render_request, stream, val"
    ):
        ToolCallingDriver(ScriptedInference(), mode=mode)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError, match=r"Plain is a class: write Plain\(…\)"):
        ToolCallingDriver(ScriptedInference(), mode=Plain)


class HastyMode(ShellLikeMode):
    """Parses the arguments of a call at once, whether or not it is whole."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        for line in response.text.splitlines():
            name, _, arguments = line.removeprefix("!").partition(" ")
            if name in {tool.name for tool in request.tools}:
                json.loads(arguments)
        return super().parse_response(response, request)


def test_a_mode_that_raises_for_a_damaged_call_of_its_own_notation_is_found() -> None:
    ModeKit(ShellLikeMode, write_lines, examples=50).check(31)
    with pytest.raises(LawViolation, match="JSONDecodeError"):
        ModeKit(HastyMode, write_lines, examples=50).check(31)
