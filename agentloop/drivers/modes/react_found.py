"""What a model's text says, as the neutral parts of a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from agentloop.drivers.modes.react_decision import NOTATION
from agentloop.drivers.modes.strict_schema import without_nulls
from agentloop.drivers.modes.text_formats.completing import Rules, completed
from agentloop.drivers.modes.text_formats.draft import Draft
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.reading import FoundCall
from agentloop.errors import NotJson
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.json_value import freeze
from agentloop.values.message import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_spec import ToolSpec

ARGUMENTS_AS_TEXT = "arguments written as text"
NULL_LEFT_OUT = "null left out"
ANSWER_DROPPED = "an answer beside the call dropped"
OBSERVATION_CUT = "an invented observation cut off"

_ENDED = frozenset({FinishReason.STOP, FinishReason.UNKNOWN, FinishReason.OTHER})


@frozen
class Found:
    """A decision as it was read.

    Attributes:
        thoughts: what the model thought, in order.
        calls: its calls.
        answer: its answer; None when it gives none.
        further: what it gives for the further fields of its class.
        problem: why there is no decision, in words for the model; empty when there is one.
        wants_tool: whether it says that it calls a tool, whatever it names.
    """

    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    further: Mapping[str, Any] = field(factory=dict)
    problem: str = ""
    wants_tool: bool = False

    def response(self, response: InferenceResponse) -> InferenceResponse:
        """Return a model's response with its text replaced by what it says; one that says nothing keeps its text."""
        if self.problem:
            return evolve(response, problem=self.problem)
        parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
        thought = "\n\n".join([thought for thought in self.thoughts if thought])
        if thought:
            parts.append(Reasoning(thought))
        if self.further:
            try:
                parts.append(ProviderPart(NOTATION, freeze(self.further)))
            except NotJson as error:
                return evolve(response, problem=str(error))
        parts.extend(self.calls)
        if self.answer and not self.calls:
            parts.append(Text(self.answer))
        finish = response.finish_reason
        if finish in _ENDED and self.wants_tool:
            finish = FinishReason.TOOL_CALLS
        return evolve(response, parts=parts, finish_reason=finish)


def made_call(name: str, arguments: Any, tools: Sequence[ToolSpec], repairs: Sequence[str] = ()) -> ToolCall:
    """Return the call of a decision that was read as JSON; arguments that are no object are kept, for whoever validates them."""
    offered = OfferedTools.of(tools)
    noted = list(repairs)
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
            noted.append(ARGUMENTS_AS_TEXT)
        except ValueError:
            return ToolCall("", offered.plain_name(name), arguments, repairs=noted)
    if not isinstance(arguments, dict | None):
        return ToolCall("", offered.plain_name(name), format_json(arguments).decode(), repairs=noted)
    given = arguments or {}
    cleaned = without_nulls(given, offered.parameters(offered.plain_name(name)))
    if cleaned != given:
        noted.append(NULL_LEFT_OUT)
    found = completed(Draft(name, cleaned, 0, 0, repairs=tuple(noted)), offered, NOTATION, Rules())
    if isinstance(found, FoundCall):
        return ToolCall("", found.name, found.arguments_json, repairs=found.repairs)
    return ToolCall("", offered.plain_name(name), format_json(given).decode(), repairs=noted)


def with_repair(calls: Sequence[ToolCall], repair: str) -> tuple[ToolCall, ...]:
    """Return calls with one more thing that had to be mended."""
    return tuple([evolve(call, repairs=(*call.repairs, repair)) for call in calls])
