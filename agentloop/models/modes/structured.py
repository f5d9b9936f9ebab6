"""The mode in which a model writes its calls as JSON that follows a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.models.modes.answer_stream import AnswerStream, PlainSearch, may_continue_notation
from agentloop.models.modes.calls import (
    ANSWER,
    GO_ON,
    NO_ANSWER,
    SCRATCHPAD,
    answer_text,
    ask_for_answer,
    finish_with_calls,
    is_bare_answer,
    may_call,
    render_messages,
    results_message,
    text_of,
    thought_alone,
    validate_call,
    without_tools,
)
from agentloop.models.modes.leaked_calls import refuse_in_answer
from agentloop.models.modes.strict import NotStrict, closed_object, strict_schema, without_nulls
from agentloop.models.modes.written_calls import split_reasoning, strip_fence
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.inference import (
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    iter_deltas,
)
from agentloop.values.json import duplicate_key, format_json, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec, arguments_object
from agentloop.values.value import encode_each

_NEXT: Final = "next"
_TOOL, _ARGUMENTS = "tool", "arguments"
_ARGUMENT_KEYS: Final = (_ARGUMENTS, "args", "parameters")
"""The keys of arguments that models use where no schema is enforced."""

_CALL_KEYS: Final = frozenset({_NEXT, _TOOL, *_ARGUMENT_KEYS})
_ITEM_KEYS: Final = frozenset({_TOOL, *_ARGUMENT_KEYS, ANSWER, SCRATCHPAD})

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
    """Calls, the answer and thoughts as the items of a list in one JSON object.

    The schema of an item is an `anyOf`: one branch per tool, one for the answer and one for thoughts. Where no tool can be called,
    such as for the last answer within a budget, the schema is that of an answer alone.

    Attributes:
        variant: `json_schema` sends the schema to the provider. `json_object`, for models without enforced schemas, puts it
            into the prompt and requests any JSON object.
        bounds: limits the length of answers that are searched for calls; a driver sets those of its loop.
    """

    variant: Literal["json_schema", "json_object"] = "json_schema"
    bounds: Bounds = field(default=DEFAULT_BOUNDS, repr=False)

    @property
    def name(self) -> str:
        """`structured`."""
        return "structured"

    @property
    def reprompts(self) -> bool:
        """Always true: a response that cannot be read is sent back with the reason."""
        return True

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return self if bounds is self.bounds else evolve(self, bounds=bounds)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools as branches of the response format, and its messages as JSON."""
        plain = without_tools(render_messages(request, "structured payloads", _render_payload))
        if _answers_alone(request):
            return ask_for_answer(plain, self.variant)
        if not may_call(request):
            return plain
        schema = _payload_schema(request)
        if self.variant == "json_schema":
            response_format = ResponseFormat(schema, name="next_steps")
            return evolve(plain, system_prompt=_system_prompt(request, None), response_format=response_format)
        return evolve(plain, system_prompt=_system_prompt(request, schema), response_format=ResponseFormat())

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls, the answer and the thoughts of its JSON."""
        if response.tool_calls:
            return response
        if not may_call(request):
            return _read_plain_answer(response, request)
        payload = _read_payload(response.text, request)
        if payload.problem:
            return evolve(response, problem=payload.problem)
        reason = response.finish_reason
        read = evolve(
            _with_payload(response, payload),
            finish_reason=finish_with_calls(reason) if payload.has_calls else reason,
            wants_to_continue=payload.has_only_thoughts,
        )
        return refuse_in_answer(read, request, self.bounds)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that holds back JSON until it is complete."""
        if may_call(request) or _answers_alone(request):
            return _PayloadStream(is_active=True)
        return AnswerStream(PlainSearch()) if may_continue_notation(request) else _PayloadStream(is_active=False)


def _answers_alone(request: InferenceRequest) -> bool:
    """Whether a model that has tools, or has called some, is asked for an answer in words; another form has a schema of its own."""
    if request.response_format is not None or may_call(request):
        return False
    has_called = any(message.exchanges for message in request.messages)
    return bool(request.tools) or request.tool_choice.kind == "none" or has_called


def _read_plain_answer(response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
    """Return the response to a request without calls, with the answer of its JSON; a text that is none is the answer."""
    is_alone = _answers_alone(request)
    if not (is_alone or may_continue_notation(request)) or not _is_payload(response.text, is_alone=is_alone):
        return response
    payload = _read_payload(response.text, request)
    if is_alone and not any(isinstance(part, Text) for part in payload.parts):
        return evolve(response, problem=payload.problem or NO_ANSWER)
    if payload.problem or payload.has_calls or payload.has_only_thoughts:
        return response
    return _with_payload(response, payload)


def _with_payload(response: InferenceResponse, payload: _Payload) -> InferenceResponse:
    other_parts = [part for part in response.parts if not isinstance(part, Text)]
    return evolve(response, parts=(*other_parts, *payload.parts))


class _PayloadStream(ModeStream):
    """Emits reasoning at once and holds the JSON text back until it is complete; emits everything at once if inactive."""

    def __init__(self, *, is_active: bool) -> None:
        self._is_active = is_active
        self._has_reasoning = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the delta unless it is a piece of the JSON."""
        self._has_reasoning = self._has_reasoning or delta.kind == "reasoning"
        return [] if self._is_active and delta.kind == "text" else [delta]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the contents of the JSON as deltas."""
        if not self._is_active:
            return []
        # Thoughts are dropped if the provider streamed reasoning, which was emitted at once.
        return [delta for delta in iter_deltas(response) if not (self._has_reasoning and delta.kind == "reasoning")]


def _system_prompt(request: InferenceRequest, schema: dict[str, Any] | None) -> str:
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
    prompt = _PROMPT % {"rules": "".join(f"{rule}\n" for rule in rules), "tools": tools}
    return f"{request.system_prompt}\n\n{prompt}" if request.system_prompt else prompt


def _payload_schema(request: InferenceRequest) -> dict[str, Any]:
    """Return the strict schema of a payload: a list of calls, answers and thoughts, under one property."""
    tool_branches = tool_branches_of(request)
    branches = [branch.schema for branch in tool_branches]
    definitions = {name: schema for branch in tool_branches for name, schema in branch.definitions.items()}
    if not request.tool_choice.is_forced:
        schema, answer_definitions = answer_schema(request.response_format)
        branches.append(closed_object({ANSWER: schema}, "The final answer."))
        definitions.update(answer_definitions)
    branches.append(closed_object({SCRATCHPAD: {"type": "string"}}, "Thoughts of yours, before you go on."))
    payload = closed_object({_NEXT: {"type": "array", "items": {"anyOf": branches}}})
    return {**payload, "$defs": definitions} if definitions else payload


def tool_branches_of(request: InferenceRequest) -> list[ToolBranch]:
    """Return the branches of the tools that a request allows: a tool choice is enforced by leaving out the others."""
    specs = [spec for spec in request.tools if request.tool_choice.allows(spec.name)]
    return encode_each(specs, "a branch of a strict schema", build_tool_branch)


@frozen
class ToolBranch:
    """The branch of a payload's schema for the calls of one tool.

    Attributes:
        schema: the schema of a call.
        definitions: the definitions that it refers to.
        reason: why the arguments are JSON in a string; empty if they are an object.
    """

    schema: dict[str, Any]
    definitions: dict[str, Any]
    reason: str = ""


def build_tool_branch(spec: ToolSpec) -> ToolBranch:
    """Return the branch for the calls of a tool. Arguments that the strict subset cannot express become JSON in a string."""
    name: dict[str, Any] = {"type": "string", "enum": [spec.name]}
    try:
        # The definitions of all tools share one object; the prefix keeps equal names apart.
        arguments, definitions = strict_schema(spec.parameters, f"{spec.name}.")
    except NotStrict as error:
        text = json_text(spec.parameters, "The arguments as the text of a JSON object")
        return ToolBranch(closed_object({_TOOL: name, _ARGUMENTS: text}, spec.description), {}, str(error))
    return ToolBranch(closed_object({_TOOL: name, _ARGUMENTS: arguments}, spec.description), definitions)


def answer_schema(response_format: ResponseFormat | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the strict schema of an answer, and its definitions; what it cannot express is JSON in a string."""
    if response_format is None:
        return {"type": "string"}, {}
    if response_format.schema is None:
        return {"type": "string", "description": "The text of a JSON object."}, {}
    try:
        return strict_schema(response_format.schema, "answer.")
    except NotStrict:
        return json_text(response_format.schema, "The text of JSON"), {}


def json_text(schema: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the schema of a string that holds JSON of another schema, which the strict subset cannot express."""
    return {"type": "string", "description": f"{what} that satisfies {format_json(schema).decode()}"}


@frozen
class _Payload:
    """The contents of a model's JSON.

    Attributes:
        parts: calls, the answer as text, and thoughts as reasoning, in order.
        problem: why it cannot be read, in words for the model; empty if it can.
    """

    parts: tuple[ResponsePart, ...] = ()
    problem: str = ""

    @property
    def has_calls(self) -> bool:
        return any(isinstance(part, ToolCall) for part in self.parts)

    @property
    def has_only_thoughts(self) -> bool:
        return all(isinstance(part, Reasoning) for part in self.parts)


def _read_payload(text: str, request: InferenceRequest) -> _Payload:
    """Read a model's JSON; no text raises."""
    thoughts, rest = split_reasoning(text)
    parts: list[ResponsePart] = [Reasoning(thought) for thought in thoughts]
    bare = strip_fence(rest)
    if is_bare_answer(bare, request.response_format, _CALL_KEYS):
        return _Payload((*parts, Text(bare)))
    try:
        data, repeated = parse_json(bare), duplicate_key(bare)
    except ValueError as error:
        return _Payload(problem=f"it is not one JSON object ({error})")
    # Models without an enforced schema also write a bare item or a bare list.
    items = data.get(_NEXT, data) if isinstance(data, dict) else data
    for index, item in enumerate(items if isinstance(items, list) else [items]):
        item_parts = _read_item(item, request)
        if isinstance(item_parts, str):
            return _Payload(problem=f"at {_NEXT}[{index}]: {item_parts}")
        parts.extend(item_parts)
    # As one text, two values would be another value: 1 and 2 would be 12.
    if request.response_format is not None and sum(isinstance(part, Text) for part in parts) > 1:
        return _Payload(problem=f"the list {_NEXT!r} holds several answers; give one")
    payload = _Payload(tuple(parts)) if parts else _Payload(problem=f"the list {_NEXT!r} is empty")
    if repeated is not None and payload.has_calls:  # which of the two is meant is not known
        return _Payload(problem=f"it contains the key {repeated!r:.80} twice; write each key once")
    return payload


def _is_payload(text: str, *, is_alone: bool) -> bool:
    """Whether a text that should be plain is a payload and nothing else.

    Args:
        text: the text.
        is_alone: whether an object with an answer was asked for, so that the items of a payload count, too.
    """
    inner = strip_fence(text)
    if not inner.startswith("{"):
        return False
    try:
        data = parse_json(inner)
    except ValueError:
        return False
    if not isinstance(data, dict):
        return False
    if is_alone and data.keys() & {ANSWER, _TOOL} and data.keys() <= _ITEM_KEYS:
        return True
    return data.keys() == {_NEXT} and isinstance(data[_NEXT], list)


def _read_item(item: Any, request: InferenceRequest) -> list[ResponsePart] | str:
    """Return the parts of one item of the list, or what is wrong with it."""
    expected = f"an object with {_TOOL!r}, {ANSWER!r} or {SCRATCHPAD!r} is expected"
    if not isinstance(item, dict):
        return f"{expected}, not {_kind_of(item)}"
    parts: list[ResponsePart] = []
    if isinstance(item.get(SCRATCHPAD), str) and item[SCRATCHPAD]:
        parts.append(Reasoning(item[SCRATCHPAD]))
    name = _read_name(item, request)
    if name is not None:
        arguments = next((item[key] for key in _ARGUMENT_KEYS if item.get(key) is not None), None)
        parts.append(ToolCall("", name, _read_arguments(name, arguments, request)))
    # A null is an answer only where an answer of another type than text is requested.
    elif item.get(ANSWER) is not None or (ANSWER in item and request.response_format is not None):
        parts.append(Text(_read_answer(item[ANSWER], request.response_format)))
    if not parts:
        return f"{expected}; its keys are {', '.join(item) or 'none'}"
    return parts


def _read_name(item: dict[str, Any], request: InferenceRequest) -> str | None:
    """Return the name of the tool that an item calls; None if it calls none."""
    # A model that writes every key leaves the name empty beside an answer.
    if isinstance(item.get(_TOOL), str) and item[_TOOL]:
        return str(item[_TOOL])
    # Other data has names, too.
    name = item.get("name")
    is_call = not item.keys().isdisjoint(_ARGUMENT_KEYS) and any(spec.name == name for spec in request.tools)
    return str(name) if is_call else None


def _read_arguments(name: str, arguments: Any, request: InferenceRequest) -> str:
    if isinstance(arguments, str):
        return arguments
    spec = next((spec for spec in request.tools if spec.name == name), None)
    cleaned = arguments if spec is None else without_nulls(arguments, spec.parameters)
    return format_json({} if cleaned is None else cleaned).decode()


def _read_answer(answer: Any, response_format: ResponseFormat | None) -> str:
    if response_format is not None and response_format.schema is not None and _is_strict(response_format.schema):
        return answer_text(answer, response_format)
    return text_of(answer)


def _is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a payload contains an answer of this schema as a value and not as JSON in a string."""
    try:
        strict_schema(schema)
    except NotStrict:
        return False
    return True


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _render_payload(message: Message) -> Sequence[Message]:
    """Return an assistant's message as a payload, followed by a user's message with the results of its calls.

    A thought alone is followed by the request to go on.
    """
    if message.role != "assistant":
        return (message,)
    items: list[dict[str, Any]] = []
    other_parts = []
    results: list[tuple[str, ToolExchange]] = []
    for part in message.parts:
        if isinstance(part, Text):
            items.append({ANSWER: part.text})
        # Reasoning with data of the provider is not plain text: the provider requires it back unchanged.
        elif isinstance(part, Reasoning) and not part.provider_data:
            items.append({SCRATCHPAD: part.text})
        elif isinstance(part, ToolExchange):
            items.append({_TOOL: part.call.name, _ARGUMENTS: arguments_object(part.call)})
            result = {_TOOL: part.call.name, "result": part.execution.text}
            results.append((format_json(result).decode(), part))
        else:
            other_parts.append(part)
    payload = [format_json({_NEXT: items}).decode()] if items else []
    rendered = Message.assistant(*other_parts, *payload)
    if results:
        return rendered, results_message(results)
    return (rendered, GO_ON) if thought_alone(message) else (rendered,)
