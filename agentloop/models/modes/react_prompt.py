"""Prompts of the ReAct pattern, and conversations rendered in its notations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from agentloop.models.modes.calls import GO_ON, SCRATCHPAD, results_message, thought_alone
from agentloop.models.modes.react_decision import ReActDecision, extra_fields_schema, extra_values
from agentloop.models.modes.react_reading import ACTION, ANSWER, INPUT, OBSERVATION, THOUGHT, label_of, text_of
from agentloop.models.modes.text import describe_tool_choice, describe_tools
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolExchange, arguments_object

ReActPrompt: TypeAlias = Callable[[InferenceRequest], str]
"""Builds the system prompt of a request with tools; the result must include the request's own system prompt."""

_JSON_INSTRUCTIONS = """\
You work in steps. In every step you think, and then either call tools or give the final answer. Write each step as one JSON \
object and nothing else.

To call a tool:
{"thought": "why", "type": "tool", "tool": "the tool's name", "args": {"the argument's name": "its value"}}
%(several)s
To give the final answer, once no call is left to be made:
{"thought": "why", "type": "final", "answer": "the answer"}
"""
_SEVERAL_OBJECTS = """\
To call several tools at once, of which none needs the result of another:
{"thought": "why", "type": "tool", "calls": [{"tool": "a name", "args": {}}, {"tool": "a name", "args": {}}]}
"""
_TEXT_INSTRUCTIONS = """\
You work in steps. In every step you think, and then either call tools or give the final answer, in this notation.

To call a tool:
Thought: why
Action: the tool's name
Action Input: the arguments, as one JSON object
%(several)s
To give the final answer, once no call is left to be made:
Thought: why
Final Answer: the answer
"""
_SEVERAL_LINES = "To call several tools at once, write one Action and its Action Input after the other.\n"
_RULES = """\
After a call, stop writing: the results are given to you in the next message, after the word Observation. Never write an \
observation yourself. Call only the tools below, each with arguments that satisfy its JSON Schema.
"""


def json_prompt(request: InferenceRequest, decision_type: type[ReActDecision]) -> str:
    """Return the request's system prompt, followed by the instructions for JSON decisions and the tools."""
    several = "" if request.parallel_tool_calls is False else _SEVERAL_OBJECTS
    instructions = [_JSON_INSTRUCTIONS % {"several": several}]
    extra = extra_fields_schema(decision_type)
    if extra["properties"]:
        schema = format_json(extra).decode()
        instructions.append(f"Every such object also has what this JSON Schema asks for:\n{schema}\n")
    return _system_prompt(request, instructions)


def text_prompt(request: InferenceRequest, decision_type: type[ReActDecision]) -> str:
    """Return the request's system prompt, followed by the instructions for labeled lines and the tools."""
    several = "" if request.parallel_tool_calls is False else _SEVERAL_LINES
    instructions = [_TEXT_INSTRUCTIONS % {"several": several}]
    for name, schema in extra_fields_schema(decision_type)["properties"].items():
        line = f"`{label_of(name)}: ` and what satisfies {format_json(schema).decode()}"
        instructions.append(f"After every Thought, write a line {line}\n")
    return _system_prompt(request, instructions)


def final_answer_prompt(request: InferenceRequest) -> str:
    """Return the system prompt of a request without tools; if its messages contain calls, it asks for a plain answer."""
    if not any(message.exchanges for message in request.messages):
        return request.system_prompt
    form = "" if request.response_format is not None else ", in plain words and without any labels"
    instruction = f"No tool can be called any more. Write your answer now{form}."
    return f"{request.system_prompt}\n\n{instruction}" if request.system_prompt else instruction


def _system_prompt(request: InferenceRequest, instructions: Sequence[str]) -> str:
    sections = [*([f"{request.system_prompt}\n"] if request.system_prompt else []), *instructions, _RULES]
    answer = request.response_format
    if answer is not None:
        form = "is a JSON object" if answer.schema is None else f"satisfies {format_json(answer.schema).decode()}"
        sections.append(f"The final answer is JSON that {form}.\n")
    choice = describe_tool_choice(request.tool_choice)
    if choice:
        sections.append(f"{choice}\n")
    sections.append(describe_tools(request.tools))
    return "\n".join(sections)


AS_WRITTEN = "as_written"
"""Metadata key of a message that is rendered exactly as the model wrote it."""


def render_as_json(message: Message) -> Sequence[Message]:
    """Return a message with its decision as a JSON object, followed by a user's message with the observations."""
    return _render(message, _format_json_decision)


def render_as_text(message: Message) -> Sequence[Message]:
    """Return a message with its decision as labeled lines, followed by a user's message with the observations."""
    return _render(message, _format_text_decision)


@frozen
class DecisionText:
    """The content of an assistant's message as a decision.

    Attributes:
        thought: the reasoning.
        answer: the answer; empty if there are calls.
        extra: the values of extra fields.
        exchanges: the calls with their results.
        other_parts: parts that a decision does not express: media, and data that a provider requires back.
        continues: whether it is a thought alone, after which the model goes on.
    """

    thought: str
    answer: str
    extra: Mapping[str, Any]
    exchanges: tuple[ToolExchange, ...]
    other_parts: tuple[Part, ...]
    continues: bool


def _render(message: Message, format_decision: Callable[[DecisionText], str]) -> Sequence[Message]:
    if message.role != "assistant" or message.metadata.get(AS_WRITTEN):
        return (message,)
    # What cannot be expressed in the notation remains as parts before the text.
    decision = _decision_text(message)
    rendered = Message.assistant(*decision.other_parts, format_decision(decision))
    if not decision.exchanges:
        return (rendered, GO_ON) if decision.continues else (rendered,)
    has_several = len(decision.exchanges) > 1
    observations = [
        (_format_observation(exchange, number if has_several else None), exchange)
        for number, exchange in enumerate(decision.exchanges, 1)
    ]
    return rendered, results_message(observations)


def _decision_text(message: Message) -> DecisionText:
    # Reasoning with data of the provider is not plain text: the provider requires it back unchanged.
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and not part.provider_data]
    text = message.text
    if message.exchanges:  # the text next to calls is not an answer
        thoughts, text = [*thoughts, text], ""
    return DecisionText(
        "\n\n".join([thought for thought in thoughts if thought]),
        text,
        extra_values(message.parts),
        message.exchanges,
        tuple([part for part in message.parts if _is_other_part(part)]),
        bool(thought_alone(message)),
    )


def _is_other_part(part: Part) -> bool:
    if isinstance(part, Reasoning):
        return bool(part.provider_data)
    if isinstance(part, ProviderPart):
        return not extra_values([part])
    return not isinstance(part, Text | ToolExchange)


def _format_observation(exchange: ToolExchange, number: int | None) -> str:
    label = OBSERVATION if number is None else f"{OBSERVATION} {number} ({exchange.call.name})"
    return f"{label}: {exchange.execution.text}"


def _format_json_decision(decision: DecisionText) -> str:
    if decision.continues:
        return format_json({SCRATCHPAD: decision.thought}).decode()
    data: dict[str, Any] = {"thought": decision.thought, **decision.extra}
    calls = [{"tool": exchange.call.name, "args": arguments_object(exchange.call)} for exchange in decision.exchanges]
    if len(calls) == 1:
        data |= {"type": "tool", **calls[0]}
    elif calls:
        data |= {"type": "tool", "calls": calls}
    else:
        data |= {"type": "final", "answer": decision.answer}
    return format_json(data).decode()


def _format_text_decision(decision: DecisionText) -> str:
    lines = [f"{THOUGHT}: {decision.thought}"] if decision.thought else []
    lines += [f"{label_of(name)}: {text_of(value)}" for name, value in decision.extra.items()]
    for exchange in decision.exchanges:
        arguments = format_json(arguments_object(exchange.call)).decode()
        lines += [f"{ACTION}: {exchange.call.name}", f"{INPUT}: {arguments}"]
    if not decision.exchanges and not decision.continues:
        lines.append(f"{ANSWER}: {decision.answer}")
    return "\n".join(lines)
