"""The words in which a model is asked to work in the ReAct pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.modes.calls import results_message
from agentloop.modes.react_decision import ReActDecision, further_schema, further_values
from agentloop.modes.react_reading import ACTION, ANSWER, INPUT, OBSERVATION, THOUGHT, label_of
from agentloop.modes.text import told_choice, told_tools
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolExchange, arguments_object

ReActPrompt: TypeAlias = Callable[[InferenceRequest], str]
"""Makes the system prompt of a request that has tools; its own prompt is to be part of it."""

_JSON = """\
You work in steps. In every step you think, and then either call tools or give the final answer. Write each step as one JSON \
object and nothing else.

To call a tool:
{"thought": "why", "type": "tool", "tool": "the tool's name", "args": {"the argument's name": "its value"}}
%(several)s
To give the final answer, once no call is left to be made:
{"thought": "why", "type": "final", "answer": "the answer"}
"""
_SEVERAL = """\
To call several tools at once, of which none needs the result of another:
{"thought": "why", "type": "tool", "calls": [{"tool": "a name", "args": {}}, {"tool": "a name", "args": {}}]}
"""
_TEXT = """\
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


def json_prompt(request: InferenceRequest, kind: type[ReActDecision]) -> str:
    """Return the system prompt of a request, followed by how decisions are written as JSON, and by the tools."""
    several = "" if request.parallel_tool_calls is False else _SEVERAL
    pieces = [_JSON % {"several": several}]
    own = further_schema(kind)
    if own["properties"]:
        pieces.append(f"Every such object also has what this JSON Schema asks for:\n{format_json(own).decode()}\n")
    return _prompt(request, pieces)


def text_prompt(request: InferenceRequest, kind: type[ReActDecision]) -> str:
    """Return the system prompt of a request, followed by how decisions are written as text, and by the tools."""
    several = "" if request.parallel_tool_calls is False else _SEVERAL_LINES
    pieces = [_TEXT % {"several": several}]
    for name, schema in further_schema(kind)["properties"].items():
        told = format_json(schema).decode()
        pieces.append(f"After every Thought, write a line `{label_of(name)}: ` and what satisfies {told}\n")
    return _prompt(request, pieces)


def told_end(request: InferenceRequest) -> str:
    """Return the system prompt of a request without tools, whose conversation may hold steps with tools."""
    if not any(message.exchanges for message in request.messages):
        return request.system_prompt
    form = "" if request.response_format is not None else ", in plain words and without any labels"
    told = f"No tool can be called any more. Write your answer now{form}."
    return f"{request.system_prompt}\n\n{told}" if request.system_prompt else told


def _prompt(request: InferenceRequest, pieces: Sequence[str]) -> str:
    told = [*([f"{request.system_prompt}\n"] if request.system_prompt else []), *pieces, _RULES]
    wanted = request.response_format
    if wanted is not None:
        form = "is a JSON object" if wanted.schema is None else f"satisfies {format_json(wanted.schema).decode()}"
        told.append(f"The final answer is JSON that {form}.\n")
    choice = told_choice(request.tool_choice)
    if choice:
        told.append(f"{choice}\n")
    told.append(told_tools(request.tools))
    return "\n".join(told)


AS_WRITTEN = "as_written"
"""The metadata of a message that the model is to see as it wrote it."""


@frozen
class DecisionText:
    """What an assistant's message says, as a decision.

    Attributes:
        thought: what it thought.
        answer: what it answered.
        further: what it gave for further fields.
        exchanges: its calls with their outcomes.
        kept: what a decision does not hold: media, and what a provider wants back.
    """

    thought: str
    answer: str
    further: Mapping[str, Any] = field(factory=dict)
    exchanges: tuple[ToolExchange, ...] = ()
    kept: tuple[Part, ...] = ()


def tell_as_json(message: Message) -> Sequence[Message]:
    """Return a message with its decision as a JSON object, and a user's message with the observations after it."""
    return _told(message, _as_json)


def tell_as_text(message: Message) -> Sequence[Message]:
    """Return a message with its decision in labeled lines, and a user's message with the observations after it."""
    return _told(message, _as_text)


def _told(message: Message, write: Callable[[DecisionText], str]) -> Sequence[Message]:
    if message.role != "assistant" or message.metadata.get(AS_WRITTEN):
        return (message,)
    said = _said(message)
    told = Message.assistant(*said.kept, write(said))
    if not said.exchanges:
        return (told,)
    several = len(said.exchanges) > 1
    return told, results_message(
        [
            (f"{OBSERVATION}{f' {number} ({one.call.name})' if several else ''}: {one.execution.text}", one)
            for number, one in enumerate(said.exchanges, 1)
        ]
    )


def _said(message: Message) -> DecisionText:
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and not part.provider_data]
    text = message.text
    if message.exchanges:
        thoughts, text = [*thoughts, text], ""
    return DecisionText(
        "\n\n".join([thought for thought in thoughts if thought]),
        text,
        further_values(message.parts),
        message.exchanges,
        tuple([part for part in message.parts if _is_kept(part)]),
    )


def _is_kept(part: Part) -> bool:
    if isinstance(part, Reasoning):
        return bool(part.provider_data)
    if isinstance(part, ProviderPart):
        return not further_values([part])
    return not isinstance(part, Text | ToolExchange)


def _as_json(said: DecisionText) -> str:
    made: dict[str, Any] = {"thought": said.thought, **said.further}
    calls = [{"tool": one.call.name, "args": arguments_object(one.call)} for one in said.exchanges]
    if len(calls) == 1:
        made |= {"type": "tool", **calls[0]}
    elif calls:
        made |= {"type": "tool", "calls": calls}
    else:
        made |= {"type": "final", "answer": said.answer}
    return format_json(made).decode()


def _as_text(said: DecisionText) -> str:
    lines = [f"{THOUGHT}: {said.thought}"] if said.thought else []
    lines += [f"{label_of(name)}: {_line(value)}" for name, value in said.further.items()]
    for one in said.exchanges:
        arguments = format_json(arguments_object(one.call)).decode()
        lines += [f"{ACTION}: {one.call.name}", f"{INPUT}: {arguments}"]
    if not said.exchanges:
        lines.append(f"{ANSWER}: {said.answer}")
    return "\n".join(lines)


def _line(value: Any) -> str:
    return value if isinstance(value, str) else format_json(value).decode()
