"""The mode in which a model writes its calls as JSON that a schema guides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.drivers.modes.call_validation import validate_call
from agentloop.drivers.modes.react_stream import PlainSearch, ReActStream
from agentloop.drivers.modes.structured_payload import holds_steps, read_payload, tell_payload
from agentloop.drivers.modes.structured_schema import envelope
from agentloop.inference.told_in_pieces import told_in_pieces
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json
from agentloop.values.message import ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_spec import ToolSpec

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
