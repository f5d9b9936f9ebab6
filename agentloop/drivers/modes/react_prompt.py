"""The words in which a model is asked to work in the ReAct pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from agentloop.drivers.modes.react_decision import ReActDecision, further_schema
from agentloop.drivers.modes.react_text_reading import label_of
from agentloop.drivers.modes.tagged_text import told_choice, told_tools
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.json_text import format_json

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
