"""The mode in which a model writes its calls as JSON that a schema guides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.modes.answer_stream import PlainSearch, ReActStream
from agentloop.modes.calls import results_message, validate_call
from agentloop.modes.strict import NotStrict, strict_schema, without_nulls
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    ToolChoice,
    told_in_pieces,
)
from agentloop.values.json import format_json, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec, arguments_object
from agentloop.values.value import encode_each

NEXT = "next"
TOOL, ARGUMENTS, ANSWER, SCRATCHPAD = "tool", "arguments", "answer", "scratchpad"


@frozen
class ToolBranch:
    """What may stand for a call of one tool.

    Attributes:
        schema: the schema of such a call.
        definitions: the definitions that it refers to.
        reason: why the arguments are JSON written as a text; empty when they stand as they are.
    """

    schema: dict[str, Any]
    definitions: dict[str, Any]
    reason: str = ""


def tool_branch(spec: ToolSpec) -> ToolBranch:
    """Return what may stand for a call of a tool; computed once per tool."""
    return spec.encoded("a branch of a strict schema", _tool_branch)


def envelope(request: InferenceRequest) -> dict[str, Any]:
    """Return the schema of an answer: a list of calls, answers and thoughts, under one property, in the strict subset."""
    choice = request.tool_choice
    specs = [spec for spec in request.tools if choice.kind != "specific" or spec.name == choice.name]
    tools = encode_each(specs, "a branch of a strict schema", _tool_branch)
    branches = [branch.schema for branch in tools]
    definitions = {name: made for branch in tools for name, made in branch.definitions.items()}
    if choice.kind not in {"required", "specific"}:
        schema, more = _answer_schema(request.response_format)
        branches.append(_closed("The final answer.", **{ANSWER: schema}))
        definitions.update(more)
    branches.append(_closed("Thoughts of yours, before you go on.", **{SCRATCHPAD: {"type": "string"}}))
    made = _closed("", **{NEXT: {"type": "array", "items": {"anyOf": branches}}})
    return {**made, "$defs": definitions} if definitions else made


def is_answer_strict(wanted: ResponseFormat | None) -> bool:
    """Say whether the form that is asked of the answer stands in the schema; otherwise the answer is JSON written as a text."""
    if wanted is None or wanted.schema is None:
        return False
    try:
        strict_schema(wanted.schema)
    except NotStrict:
        return False
    return True


def _tool_branch(spec: ToolSpec) -> ToolBranch:
    name: dict[str, Any] = {"type": "string", "enum": [spec.name]}
    try:
        arguments, definitions = strict_schema(spec.parameters, f"{spec.name}.")
    except NotStrict as reason:
        told = f"The arguments as the text of a JSON object that satisfies {format_json(spec.parameters).decode()}"
        text: dict[str, Any] = {"type": "string", "description": told}
        schema = _closed(spec.description, **{TOOL: name, ARGUMENTS: text})
        return ToolBranch(schema, {}, str(reason))
    return ToolBranch(_closed(spec.description, **{TOOL: name, ARGUMENTS: arguments}), definitions)


def _answer_schema(wanted: ResponseFormat | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if wanted is None:
        return {"type": "string"}, {}
    if wanted.schema is None:
        return {"type": "string", "description": "The text of a JSON object."}, {}
    try:
        return strict_schema(wanted.schema, "answer.")
    except NotStrict:
        told = f"The text of JSON that satisfies {format_json(wanted.schema).decode()}"
        return {"type": "string", "description": told}, {}


def _closed(described: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"description": described, **schema} if described else schema


_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)
_THOUGHTS = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


@frozen
class Payload:
    """What a model's JSON holds.

    Attributes:
        parts: calls, answers as text and thoughts as reasoning, in order.
        problem: why it cannot be read, in words for the model; empty when it can.
    """

    parts: tuple[ResponsePart, ...] = ()
    problem: str = ""

    @property
    def has_calls(self) -> bool:
        """Whether it calls a tool."""
        return any(isinstance(part, ToolCall) for part in self.parts)

    @property
    def only_thinks(self) -> bool:
        """Whether it neither calls a tool nor answers."""
        return all(isinstance(part, Reasoning) for part in self.parts)


def read_payload(text: str, request: InferenceRequest) -> Payload:
    """Read a model's JSON; no text makes this raise."""
    thoughts = _THOUGHTS.match(text)
    rest = text[thoughts.end() :] if thoughts is not None else text
    fenced = _FENCE.match(rest)
    try:
        data = parse_json((fenced[1] if fenced is not None else rest).strip())
    except ValueError as error:
        return Payload(problem=f"it is not one JSON object ({error})")
    items = data.get(NEXT, data) if isinstance(data, dict) else data
    parts: list[ResponsePart] = [Reasoning(thoughts[1].strip())] if thoughts is not None else []
    for place, item in enumerate(items if isinstance(items, list) else [items]):
        part = _part(item, request)
        if isinstance(part, str):
            return Payload(problem=f"at {NEXT}[{place}]: {part}")
        parts.extend(part)
    return Payload(tuple(parts)) if parts else Payload(problem=f"the list {NEXT!r} is empty")


def holds_steps(text: str) -> bool:
    """Say whether a text that should be plain is such JSON, whole and with nothing beside it."""
    fenced = _FENCE.match(text)
    inner = (fenced[1] if fenced is not None else text).strip()
    if not inner.startswith("{"):
        return False
    try:
        data = parse_json(inner)
    except ValueError:
        return False
    return isinstance(data, dict) and data.keys() == {NEXT} and isinstance(data[NEXT], list)


def tell_payload(message: Message) -> Sequence[Message]:
    """Return a message as such JSON: what an assistant said, then a user's message with the results of its calls."""
    if message.role != "assistant":
        return (message,)
    items: list[dict[str, Any]] = []
    kept = []
    results: list[tuple[str, ToolExchange]] = []
    for part in message.parts:
        if isinstance(part, Text):
            items.append({ANSWER: part.text})
        elif isinstance(part, Reasoning) and not part.provider_data:
            items.append({SCRATCHPAD: part.text})
        elif isinstance(part, ToolExchange):
            items.append({TOOL: part.call.name, ARGUMENTS: arguments_object(part.call)})
            told = {TOOL: part.call.name, "result": part.execution.text}
            results.append((format_json(told).decode(), part))
        else:
            kept.append(part)
    said = Message.assistant(*kept, *([format_json({NEXT: items}).decode()] if items else []))
    return (said, results_message(results)) if results else (said,)


def _part(item: Any, request: InferenceRequest) -> list[ResponsePart] | str:
    """Read one item of the list; a text says what is wrong with it."""
    if not isinstance(item, dict):
        return f"an object with {TOOL!r}, {ANSWER!r} or {SCRATCHPAD!r} is expected, not {_kind(item)}"
    parts: list[ResponsePart] = []
    if isinstance(item.get(SCRATCHPAD), str) and item[SCRATCHPAD]:
        parts.append(Reasoning(item[SCRATCHPAD]))
    if isinstance(item.get(TOOL), str):
        parts.append(ToolCall("", item[TOOL], _arguments(item[TOOL], item.get(ARGUMENTS), request)))
    elif item.get(ANSWER) is not None or (ANSWER in item and request.response_format is not None):
        parts.append(Text(_answer(item[ANSWER], request)))
    if not parts:
        return f"an object with {TOOL!r}, {ANSWER!r} or {SCRATCHPAD!r} is expected; its keys are {', '.join(item) or 'none'}"
    return parts


def _arguments(name: str, arguments: Any, request: InferenceRequest) -> str:
    if isinstance(arguments, str):
        return arguments
    spec = next((spec for spec in request.tools if spec.name == name), None)
    cleaned = arguments if spec is None else without_nulls(arguments, spec.parameters)
    return format_json({} if cleaned is None else cleaned).decode()


def _answer(answer: Any, request: InferenceRequest) -> str:
    wanted = request.response_format
    if wanted is not None and wanted.schema is not None and is_answer_strict(wanted):
        answer = without_nulls(answer, wanted.schema)
        return format_json(answer).decode()
    return answer if isinstance(answer, str) else format_json(answer).decode()


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


_ENDED = frozenset({FinishReason.STOP, FinishReason.UNKNOWN, FinishReason.OTHER})
_PROMPT = """\
You answer with one JSON object and nothing else: {"next": [...]}. Its list holds, in order, what you do next:
- {"tool": NAME, "arguments": {...}} calls a tool. Several calls run at once; their results are given to you in the next message.
- {"answer": ...} is your final answer. Give it when no call is left to be made, and only then.
- {"scratchpad": TEXT} is a thought of yours that nobody is shown. Alone, it lets you think on.
%(rules)s
The tools:
%(tools)s"""


@frozen(kw_only=True)
class StructuredMode(CanUseMode):
    """Structured output: calls, answer and thoughts are JSON of one schema.

    The schema is an object whose one property is a list of an `anyOf`: one branch per tool, one for the answer, one for
    thoughts. A tool whose parameters the strict subset cannot express takes its arguments as the text of a JSON object.

    Attributes:
        variant: `json_schema` hands the schema to the provider; `json_object`, for models that know no schemas, tells it in
            the prompt and asks for a JSON object.
    """

    variant: Literal["json_schema", "json_object"] = "json_schema"

    @property
    def name(self) -> str:
        """`structured`."""
        return "structured"

    @property
    def asks_again(self) -> bool:
        """Yes."""
        return True

    def offer(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools as branches of the response format, and its conversation as such JSON."""
        messages = tuple(chain.from_iterable(encode_each(request.messages, "structured payloads", tell_payload)))
        if not request.tools or request.tool_choice.kind == "none":
            return evolve(request, messages=messages, tools=(), tool_choice=ToolChoice.auto(), parallel_tool_calls=None)
        schema = envelope(request)
        by_schema = self.variant == "json_schema"
        return evolve(
            request,
            messages=messages,
            system_prompt=_prompt(request, None if by_schema else schema),
            tools=(),
            tool_choice=ToolChoice.auto(),
            parallel_tool_calls=None,
            response_format=ResponseFormat(schema, name="next_steps") if by_schema else ResponseFormat(),
        )

    def read(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls, the answer and the thoughts that its JSON holds."""
        if response.tool_calls:
            return response
        if not request.tools or request.tool_choice.kind == "none":
            return _plainly(response, request)
        kept: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
        payload = read_payload(response.text, request)
        if payload.problem:
            return evolve(response, problem=payload.problem)
        finish = response.finish_reason
        if finish in _ENDED and payload.has_calls:
            finish = FinishReason.TOOL_CALLS
        parts = (*kept, *payload.parts)
        return evolve(response, parts=parts, finish_reason=finish, wants_to_continue=payload.only_thinks)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Say whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return what translates a streamed answer: its JSON is held back until it is whole."""
        if request.tools and request.tool_choice.kind != "none":
            return _HeldBack(holds=True)
        return ReActStream(PlainSearch) if _may_go_on(request) else _HeldBack(holds=False)


def _may_go_on(request: InferenceRequest) -> bool:
    """Say whether a model that is asked for a plain answer has seen such JSON, which it may go on writing."""
    return request.response_format is None and any(message.role == "assistant" for message in request.messages)


def _plainly(response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
    """Return the response with the answer that a model gave in JSON all the same."""
    if not _may_go_on(request) or not holds_steps(response.text):
        return response
    payload = read_payload(response.text, request)
    if payload.problem or payload.has_calls or payload.only_thinks:
        return response
    kept = [part for part in response.parts if not isinstance(part, Text)]
    return evolve(response, parts=(*kept, *payload.parts))


class _HeldBack(ModeStream):
    """Shows reasoning as it comes, and the rest when it is whole."""

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self._reasoned = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the piece, unless it is a piece of the JSON."""
        self._reasoned = self._reasoned or delta.kind == "reasoning"
        return [] if self._holds and delta.kind == "text" else [delta]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return what the JSON holds, in pieces."""
        if not self._holds:
            return []
        return [delta for delta in told_in_pieces(response) if not (self._reasoned and delta.kind == "reasoning")]


def _prompt(request: InferenceRequest, schema: dict[str, object] | None) -> str:
    rules = []
    if request.parallel_tool_calls is False:
        rules.append("Call one tool at a time.")
    if request.tool_choice.kind == "required":
        rules.append("Call a tool now; do not answer yet.")
    if request.tool_choice.kind == "specific":
        rules.append(f"Call the tool {request.tool_choice.name} now; do not answer yet.")
    if schema is not None:
        rules.append(f"The object satisfies this JSON Schema:\n{format_json(schema).decode()}")
    tools = "\n".join(f"- {spec.name}: {spec.description}" for spec in request.tools)
    told = _PROMPT % {"rules": "".join(f"{rule}\n" for rule in rules), "tools": tools}
    return f"{request.system_prompt}\n\n{told}" if request.system_prompt else told
