"""What all modes share: validation of calls, and calls and results rendered as plain messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final

from attrs import evolve

from agentloop.contracts.can_use_mode import ToolCallValidation
from agentloop.errors import InvalidArguments, MalformedArguments, ToolDefinitionError
from agentloop.errors.hints import suggest
from agentloop.models.modes.strict import closed_object, without_nulls
from agentloop.tools.fitting import fit_call, with_defaults
from agentloop.tools.validation import SchemaValidator
from agentloop.values.capabilities import StructuredOutput
from agentloop.values.inference import FinishReason, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json import EMPTY_OBJECT, extract_json, format_json, parse_json
from agentloop.values.messages import LAST_ANSWER, OF_TOOLS, Message
from agentloop.values.parts import Media, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolSpec
from agentloop.values.value import encode_each

SCRATCHPAD: Final = "scratchpad"
"""The key of a thought in the JSON of a model, in every mode."""

ANSWER: Final = "answer"
"""The key of the answer in the JSON of a model, in every mode."""

_TOKENS: Final = r"[✿｜‖]|\|[DG]SML\||to=functions|assistant(?:commentary|analysis)"
CALL_CHARACTER: Final = re.compile(rf"[<>({{\[`:◁]|{_TOKENS}")
"""One of these is in every call in a built-in text format, around its arguments if not in its opening, and in every tag."""
TAG_CHARACTER: Final = re.compile(rf"[<\[]|>>>|action input:|\b(?:antml|atem|steptml):|{_TOKENS}", re.IGNORECASE)
"""One of these is in every tag of a built-in text format."""


def validate_call(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
    """Check whether a call names an offered tool and its arguments satisfy the tool's schema; nothing is executed.

    Arguments are coerced as an executor does; those that are returned contain the defaults of the schema.
    """
    if call.rejection:
        return ToolCallValidation(is_valid=False, error_message=call.rejection)
    spec = next((spec for spec in tools if spec.name == call.name), None)
    # The messages name valid alternatives: they are sent to the model, which corrects its call.
    if spec is None:
        return ToolCallValidation(is_valid=False, error_message=_unknown_tool_message(call.name, tools))
    try:
        arguments = with_defaults(spec, fit_call(call, spec)[1])
    except (MalformedArguments, InvalidArguments, ToolDefinitionError) as error:
        return ToolCallValidation(is_valid=False, error_message=str(error))
    return ToolCallValidation(is_valid=True, arguments=arguments)


def _unknown_tool_message(name: str, tools: Sequence[ToolSpec]) -> str:
    names = [spec.name for spec in tools]
    return f"there is no tool {name!r}{suggest(name, names)}; the tools are {', '.join(names) or 'none'}"


def may_call(request: InferenceRequest) -> bool:
    """Whether a request lets the model call a tool."""
    return bool(request.tools) and request.tool_choice.kind != "none"


_ANSWER_SCHEMA: Final = closed_object({ANSWER: {"type": "string"}}, "The final answer.")
_ANSWER_PROMPT: Final = """\
No tool can be called any more. Give your final answer now, from the results that you have, as one JSON object and nothing else: \
{"answer": TEXT}"""


NO_ANSWER: Final = f'it has no answer, and no tool can be called now; write {{"{ANSWER}": "your answer"}}'


def without_tools(request: InferenceRequest) -> InferenceRequest:
    """Return a request without tools and what is said about calling them, for a mode that says it in words of its own."""
    return evolve(request, tools=(), tool_choice=ToolChoice.auto(), parallel_tool_calls=None)


def without_notice(request: InferenceRequest) -> InferenceRequest:
    """Return a request without the message that announces the last answer, which a weak model repeats as its answer."""
    messages = [message for message in request.messages if not LAST_ANSWER.items() <= message.metadata.items()]
    return request if len(messages) == len(request.messages) else evolve(request, messages=messages)


def is_last_answer(request: InferenceRequest) -> bool:
    """Whether a request is for an answer in words, which no tool can be called for; another form has a schema of its own."""
    is_last = request.tool_choice.kind == "none" or without_notice(request) is not request
    return is_last and request.response_format is None


def ask_for_answer(request: InferenceRequest, response_format: StructuredOutput | None) -> InferenceRequest:
    """Return a rendered request with the schema of an answer alone, which leaves a model no way to go on in its notation.

    Args:
        request: the request.
        response_format: what the provider is asked to enforce: the schema, any JSON object, or nothing.
    """
    prompt = f"{request.system_prompt}\n\n{_ANSWER_PROMPT}" if request.system_prompt else _ANSWER_PROMPT
    schema = _ANSWER_SCHEMA if response_format == "json_schema" else None
    form = None if response_format is None else ResponseFormat(schema, name=ANSWER) if schema else ResponseFormat()
    return evolve(without_notice(request), system_prompt=prompt, response_format=form)


def is_requested_form(data: Any, response_format: ResponseFormat | None) -> bool:
    """Whether data has the form in which the answer is requested, so that its keys are those of the user."""
    if response_format is None:
        return False
    if response_format.schema is None:
        return isinstance(data, dict)
    try:
        return SchemaValidator(response_format.schema, "the schema of the answer").accepts(data)
    except ToolDefinitionError:  # nothing can be said; the check of answers reports the schema
        return True


def is_bare_answer(text: str, response_format: ResponseFormat | None, call_keys: AbstractSet[str]) -> bool:
    """Whether a text is an answer of the user's own schema, without the object in which a mode has its answers.

    Its keys may be those of an answer in JSON of the mode. If what stands under `answer` is of that schema, too, the text is an
    answer of the mode.

    Args:
        text: the text.
        response_format: the requested form of the answer.
        call_keys: the keys of the other objects of the mode.
    """
    if response_format is None or response_format.schema is None or not text.startswith("{"):
        return False
    try:
        data = parse_json(text)
        inner = data.get("answer")
        inner = parse_json(inner) if isinstance(inner, str) and inner.lstrip().startswith(("{", "[")) else inner
    except ValueError:
        return False
    others = data.keys() - {"answer", SCRATCHPAD}
    properties = response_format.schema.get("properties")
    # A schema without required keys accepts the objects of the mode, too.
    if others and (
        not others.isdisjoint(call_keys) or not isinstance(properties, Mapping) or others.isdisjoint(properties)
    ):
        return False
    return is_requested_form(data, response_format) and not is_requested_form(inner, response_format)


def answer_text(answer: Any, response_format: ResponseFormat) -> str:
    """Return the text of an answer that a mode has as a value in its JSON.

    A value that the requested schema accepts is the answer, also a string. Another string that is JSON is the text of the answer:
    models write it where no schema is enforced.

    Args:
        answer: the value.
        response_format: the requested form of the answer, with a schema.
    """
    if isinstance(answer, str) and not is_requested_form(answer, response_format) and _is_json(answer):
        return answer
    schema = response_format.schema
    return format_json(answer if schema is None else without_nulls(answer, schema)).decode()


def text_of(value: Any) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else format_json(value).decode()


def _is_json(text: str) -> bool:
    try:
        extract_json(text)
    except ValueError:
        return False
    return True


MessageRenderer = Callable[[Message], Sequence[Message]]
"""Renders one message as plain messages: the calls of an assistant's message as text, their results as a user's message."""


def render_messages(request: InferenceRequest, fingerprint: str, render: MessageRenderer) -> InferenceRequest:
    """Return the request with its messages rendered. Each message is rendered once, and the result is cached with it.

    Args:
        request: the request.
        fingerprint: names the renderer in the cache.
        render: a pure function.
    """
    rendered = chain.from_iterable(encode_each(request.messages, fingerprint, render))
    return evolve(request, messages=tuple(rendered))


GO_ON: Final = Message.user("Go on.")
"""What follows a thought alone: models and services take a message of the assistant at the end for an answer that is finished, or
that they have to complete."""


def thought_alone(message: Message) -> str:
    """Return the thought of an assistant's message that holds nothing else to read; empty for any other message.

    Reasoning with data of the provider is not plain text: the provider requires it back unchanged.
    """
    if message.role != "assistant" or message.exchanges or message.text:
        return ""
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and not part.provider_data]
    return "\n\n".join([thought for thought in thoughts if thought])


def results_message(results: Sequence[tuple[str, ToolExchange]]) -> Message:
    """Return the user's message with the results of calls: for each exchange its text, then the media of its result.

    Args:
        results: each exchange with the text of its result.
    """
    content: list[str | ContentPart] = []
    lines: list[str] = []
    for text, exchange in results:
        lines.append(text)
        media = [part for part in exchange.execution.parts if not isinstance(part, Text)]
        if media:  # adjacent texts are joined: only media separates them into parts
            content += ["\n".join(lines), *media]
            lines = []
    content += ["\n".join(lines)] if lines else []
    # A medium that the wire format cannot send is refused from a user, and replaced by a note from a tool.
    has_media = any(isinstance(part, Media) for part in content)
    return Message.user(*content, metadata=OF_TOOLS if has_media else EMPTY_OBJECT)


# A server that does not parse the text cannot know that it contains calls, and reports an ordinary end.
_REGULAR_ENDS = frozenset({FinishReason.STOP, FinishReason.UNKNOWN})


def finish_with_calls(reason: FinishReason) -> FinishReason:
    """Return the finish reason of a response whose text contained calls; an irregular end, such as `LENGTH`, remains."""
    return FinishReason.TOOL_CALLS if reason in _REGULAR_ENDS else reason
