"""The mode that uses the provider's tool API, and its form for a model that may have none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.models.modes.calls import CALL_CHARACTER, TAG_CHARACTER, validate_call
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ModeChoice,
    ResponseFormat,
    ToolChoice,
)
from agentloop.values.json import format_json, freeze_object, parse_json
from agentloop.values.messages import REJECTED_ANSWER, ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ANSWER_TOOL, Effect, ToolCall, ToolSpec
from agentloop.values.value import one_of

if TYPE_CHECKING:
    from agentloop.models.modes.text import TextMode

WrittenCalls: TypeAlias = Literal["read", "refused", "shown"]
"""What becomes of calls that a server leaves in the text of a model, although they were offered through the tool API."""


AnswerForm: TypeAlias = Literal["format", "late_format", "tool"]
"""How an answer gets its requested form."""


@frozen(kw_only=True)
class NativeMode(CanUseMode):
    """The provider's tool API.

    Attributes:
        output: how an answer gets its requested form: `format` uses the provider's response format; `late_format` uses it without the
            tools, where none can be called or the model has answered in another form, for servers that do not let a model call
            tools beside it; `tool` offers a tool whose arguments are the answer, for models whose API enforces no schema for answers.
        written_calls: what becomes of calls that a server leaves in the text: `read` reads them as the mode `validated` does,
            `refused` asks for them again, and `shown` takes them for a part of the answer, with an event. What the text only quotes
            is a part of the answer in any case. `auto` and `native` read them unless the model is at its maker's own API.
        bounds: limits the length of texts that are read and the steps that it takes; a driver sets those of its loop.
        reprompts: False: the provider's API does not produce calls that cannot be read.
        streams_calls: True: the provider separates calls from text also in its streams.
    """

    reprompts: ClassVar[bool] = False
    streams_calls: ClassVar[bool] = True

    output: AnswerForm = "format"
    written_calls: WrittenCalls = field(default="refused", validator=one_of(frozenset(get_args(WrittenCalls))))
    bounds: Bounds = field(default=DEFAULT_BOUNDS, repr=False)

    @property
    def name(self) -> str:
        """`native`."""
        return "native"

    @property
    def translates(self) -> bool:
        """Whether requests with a form for the answer change, or calls are read from the text."""
        return self.output != "format" or self.written_calls == "read"

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return self if bounds is self.bounds else evolve(self, bounds=bounds)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request; if a form is requested, with the tool that gives the answer, or without the form or the tools."""
        if self.output == "late_format" and request.response_format is not None and request.tools:
            return _with_late_format(request, request.response_format)
        if not self._answers_with_tool(request):
            return request
        # The answer is a tool call, too, so the model must always call a tool.
        choice = ToolChoice.required() if request.tool_choice.kind in {"auto", "required"} else request.tool_choice
        if choice.kind == "none":
            choice = ToolChoice.specific(ANSWER_TOOL)
        spec = _answer_tool(request.response_format)
        return evolve(request, tools=(*request.tools, spec), tool_choice=choice, response_format=None)

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with a call of the answer tool as its text. Next to other calls, that call is dropped."""
        return self.read_answer(self.read_written(response, request), request)

    def read_written(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls in its text, or with what becomes of them."""
        # Most answers are prose, for which nothing is loaded that reads calls.
        if response.tool_calls or not self._may_have_calls(response.text):
            return response
        offered = self._offered(request)
        if not offered.tools:
            return response
        from agentloop.models.modes.leaked_calls import note_leaked, read_leaked, refuse_leaked

        act = {"read": read_leaked, "refused": refuse_leaked, "shown": note_leaked}[self.written_calls]
        return act(response, offered, self.bounds)

    def read_answer(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with a call of the answer tool as its text."""
        if not self._answers_with_tool(request):
            return response
        answers = [call for call in response.tool_calls if call.name == ANSWER_TOOL]
        if not answers:
            return response
        remaining = [part for part in response.parts if part not in answers]
        # An answer that does not wait for the results of the other calls is premature.
        if any(isinstance(part, ToolCall) for part in remaining):
            return evolve(response, parts=remaining)
        parts: list[ResponsePart] = [part for part in remaining if not isinstance(part, Text)]
        text = _answer_text(answers[0].arguments_json, request.response_format)
        reason = response.finish_reason
        # An answer that was cut off remains one.
        return evolve(
            response, parts=(*parts, Text(text)), finish_reason=reason if reason.is_incomplete else FinishReason.STOP
        )

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that emits every delta; the arguments of the answer tool become the answer's text.

        Where calls are read from the text, it holds text back from where a call may begin.
        """
        answer = _AnswerToolStream(is_active=self._answers_with_tool(request))
        if self.written_calls != "read" or not request.tools:
            return answer
        return _ReadingStream(partial(self._text_stream, request), answer, self._offered(request).tools)

    def _text_stream(self, request: InferenceRequest) -> ModeStream:
        return _text_mode(self.bounds).stream(self._offered(request))

    def _may_have_calls(self, text: str) -> bool:
        return (CALL_CHARACTER if self.written_calls == "read" else TAG_CHARACTER).search(text) is not None

    def _offered(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the tools that the model sees, also the one that gives the answer."""
        return evolve(request, tools=self.render_request(request).tools)

    def _answers_with_tool(self, request: InferenceRequest) -> bool:
        return self.output == "tool" and request.response_format is not None


_FORM: Final = "When no tool is left to be called, answer with JSON that {}, and nothing else."


def _with_late_format(request: InferenceRequest, answer_format: ResponseFormat) -> InferenceRequest:
    """Return a request with tools, and the form of the answer in words; or with the form, if the model can only answer."""
    last, choice = request.messages[-1] if request.messages else None, request.tool_choice
    has_answered = last is not None and REJECTED_ANSWER.items() <= last.metadata.items() and not choice.is_forced
    schema = answer_format.schema
    form = "is an object" if schema is None else f"satisfies this JSON Schema: {format_json(schema).decode()}"
    prompt = "\n\n".join(filter(None, (request.system_prompt, _FORM.format(form))))
    if choice.kind == "none" or has_answered:
        return evolve(
            request.with_tools(()), system_prompt=prompt, tool_choice=ToolChoice.auto(), parallel_tool_calls=None
        )
    return evolve(request, system_prompt=prompt, response_format=None)


class _AnswerToolStream(ModeStream):
    """Emits all deltas except those of the answer tool, whose arguments follow as text at the end."""

    def __init__(self, *, is_active: bool) -> None:
        self._is_active = is_active
        self._answer_indexes: set[int] = set()

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the delta unless it belongs to the answer tool."""
        if not self._is_active:
            return [delta]
        if delta.kind == "tool_call" and delta.name == ANSWER_TOOL:
            self._answer_indexes.add(delta.index)
        is_answer = delta.kind in {"tool_call", "arguments"} and delta.index in self._answer_indexes
        return [] if is_answer else [delta]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the answer if it was given with the tool."""
        is_answer = self._answer_indexes and not response.tool_calls
        return [InferenceDelta("text", response.text)] if is_answer else []


_VALUE = "answer"
"""The parameter of the answer tool for an answer that is not an object."""


def _answer_tool(response_format: ResponseFormat | None) -> ToolSpec:
    schema: Mapping[str, Any] = {"type": "object"}
    if response_format is not None and response_format.schema is not None:
        schema = response_format.schema
    # The arguments of a tool are always an object.
    if not _is_object(response_format):
        schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE]}
    description = "Give the final answer, when no other tool is left to be called."
    return ToolSpec(ANSWER_TOOL, description, freeze_object(schema), Effect.PURE)


def _answer_text(arguments_json: str, response_format: ResponseFormat | None) -> str:
    """Return the answer's text. What cannot be unwrapped is returned as it is; the check of answers rejects it."""
    if _is_object(response_format):
        return arguments_json
    try:
        data = parse_json(arguments_json)
    except ValueError:
        return arguments_json
    return format_json(data[_VALUE]).decode() if isinstance(data, dict) and _VALUE in data else arguments_json


def _is_object(response_format: ResponseFormat | None) -> bool:
    return response_format is None or response_format.schema is None or response_format.schema.get("type") == "object"


# --- calls in streamed text --------------------------------------------------------------------------------------------

# Behind the first words of an answer: a tag, an object or a list of objects, a block, or a label of a notation.
_CALL_START: Final = re.compile(r"[<{✿◁｜‖]|\|[DG]SML|\[(?=[A-Z{]|\Z)|`{3}|[Aa]ction\b|to=|call:|>>>|assistant")
_FIRST_WORD: Final = re.compile(r"\s*([^\W\d_][\w.-]*)(?=[\s,.;!?'-])")
_LAST_WORD: Final = re.compile(r"[\w.-]{1,200}\Z")


class _ReadingStream(ModeStream):
    """Passes the text of an answer through another stream from where a call may begin; until then, the text passes at once.

    Most texts are prose, which need not be read while they arrive.
    """

    def __init__(self, open_reader: Callable[[], ModeStream], native: ModeStream, tools: Sequence[ToolSpec]) -> None:
        """Create a stream.

        Args:
            open_reader: opens the stream that reads text.
            native: the stream that all deltas pass last.
            tools: the offered tools.
        """
        self._open_reader = open_reader
        self._native = native
        self._names = tuple([spec.name for spec in tools])
        self._reader: ModeStream | None = None
        self._passed: list[str] = []
        # A word at the end that may become a call in Python syntax.
        self._word = ""
        # The characters that the reader has yet to give again, since they have passed.
        self._repeated = 0

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return what is certain."""
        if self._reader is None and delta.kind == "text":
            text = self._word + delta.text
            if _CALL_START.search(text) is None and (self._passed or self._begins_as_prose(text)):
                return self._pass_on(delta, text)
            self._reader, self._word = self._open_reader(), ""
            passed = "".join(self._passed)
            self._repeated = len(passed)
            delta = evolve(delta, text=passed + text)
        pieces = [delta] if self._reader is None else self._without_repeated(self._reader.feed(delta))
        return [item for piece in pieces for item in self._native.feed(piece)]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas that were held back."""
        held = [InferenceDelta("text", self._word)] if self._word else []
        if self._reader is not None:
            held = self._without_repeated(self._reader.close(response))
        return [*held, *self._native.close(response)]

    def _begins_as_prose(self, text: str) -> bool:
        """Whether an answer begins with a word that is no name of a tool."""
        word = _FIRST_WORD.match(text)
        return word is not None and not any(name in word[1] for name in self._names)

    def _pass_on(self, delta: InferenceDelta, text: str) -> list[InferenceDelta]:
        last = _LAST_WORD.search(text[-_MAX_WORD:])
        self._word = last[0] if last is not None and last[0] in self._names else ""
        piece = text[: len(text) - len(self._word)]
        self._passed.append(piece)
        return self._native.feed(delta if piece == delta.text else evolve(delta, text=piece)) if piece else []

    def _without_repeated(self, deltas: Sequence[InferenceDelta]) -> list[InferenceDelta]:
        """Return the deltas without the text that has passed before."""
        new: list[InferenceDelta] = []
        for delta in deltas:
            skipped = min(self._repeated, len(delta.text)) if delta.kind == "text" else 0
            self._repeated -= skipped
            if skipped < len(delta.text) or delta.kind != "text":
                new.append(evolve(delta, text=delta.text[skipped:]) if skipped else delta)
        return new


_MAX_WORD: Final = 201


# --- models without known capabilities --------------------------------------------------------------------------------


@frozen(kw_only=True)
class AssumedMode(CanUseMode):
    """The provider's tool API, for a model that may have none.

    Calls in the text of a response are read as in the mode `validated`, and the `mode_choice` of the response says so.

    Attributes:
        model: the name of the model.
        enforces_schemas: whether the provider can constrain an answer to a schema. It is asked to only without tools, or when the
            model has answered, since several servers that constrain the answer do not let the model call a tool.
        bounds: limits the length of texts that are read and the steps that it takes; a driver sets those of its loop.
    """

    streams_calls: ClassVar[bool] = True

    model: str
    enforces_schemas: bool = False
    bounds: Bounds = field(default=DEFAULT_BOUNDS, repr=False)

    @property
    def name(self) -> str:
        """`native`."""
        return "native"

    @property
    def fallback(self) -> CanUseMode:
        """The mode in which to call the model when its provider refuses tools."""
        return _text_mode(self.bounds)

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return self if bounds is self.bounds else evolve(self, bounds=bounds)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request for the tool API."""
        return self._native().render_request(request)

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with its calls, from the tool API or from its text."""
        native = self._native()
        written = native.read_written(response, request)
        if written is not response and written.tool_calls:
            written = evolve(written, mode_choice=ModeChoice(self.model, self.fallback.name, _WRITES_CALLS))
        return native.read_answer(written, request)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that emits the calls of the tool API at once, and holds text back from where a call may begin."""
        return self._native().stream(request)

    def _native(self) -> NativeMode:
        return _reading_mode("late_format" if self.enforces_schemas else "tool", self.bounds)


@lru_cache(maxsize=16)
def _text_mode(bounds: Bounds) -> TextMode:
    from agentloop.models.modes.text import TextMode

    return TextMode(bounds=bounds)


@lru_cache(maxsize=16)
def _reading_mode(output: AnswerForm, bounds: Bounds) -> NativeMode:
    return NativeMode(output=output, written_calls="read", bounds=bounds)


_WRITES_CALLS = "the model wrote a call as text, although it was offered the tool API"
