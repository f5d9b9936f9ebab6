"""Tests of a mode that a program brings along."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.contracts import CanUseMode, ModeStream, ToolCallValidation
from agentloop.models import ScriptedInference, validate_call
from agentloop.testing import LawViolation, ModeKit, ScriptedTurn
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Message, Text, ToolCall, ToolSpec

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


class HastyMode(ShellLikeMode):
    """Parses the arguments of a call at once, whether or not it is whole."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        for line in response.text.splitlines():
            name, _, arguments = line.removeprefix("!").partition(" ")
            if name in {tool.name for tool in request.tools}:
                json.loads(arguments)
        return super().parse_response(response, request)


def test_a_mode_that_raises_for_a_damaged_call_of_its_own_notation_is_found() -> None:
    def write(turn: ScriptedTurn, number: int) -> InferenceResponse:
        return turn.response(number).with_parts(
            [Text("\n".join([turn.text, *(f"!{call.name} {call.arguments_json}" for call in turn.calls)]).strip())]
        )

    ModeKit(ShellLikeMode, write, examples=50).check(31)
    with pytest.raises(LawViolation, match="JSONDecodeError"):
        ModeKit(HastyMode, write, examples=50).check(31)
