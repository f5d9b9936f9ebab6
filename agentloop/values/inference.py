"""What is asked of a model, in neutral form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from math import isfinite
from typing import Literal, Self, TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.errors import ConfigurationError
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolSpec
from agentloop.values.value import Value

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


@frozen(eq=False, repr=False)
class ToolChoice(Value):
    """Whether and which tool the model has to call. Made by `auto()`, `required()`, `none()` and `specific(name)`."""

    kind: Literal["auto", "required", "none", "specific"]
    name: str = ""

    @classmethod
    def auto(cls) -> ToolChoice:
        """Let the model decide."""
        return _AUTO

    @classmethod
    def required(cls) -> ToolChoice:
        """Make the model call at least one tool."""
        return cls("required")

    @classmethod
    def none(cls) -> ToolChoice:
        """Keep the model from calling tools."""
        return cls("none")

    @classmethod
    def specific(cls, name: str) -> ToolChoice:
        """Make the model call the tool of this name."""
        return cls("specific", name)


_AUTO = ToolChoice("auto")


@frozen(eq=False, repr=False)
class ResponseFormat(Value):
    """The form that the model's text has to have.

    Attributes:
        schema: a JSON Schema for the text, or None for any JSON object.
        name: a name for the schema; some providers show it to the model.
        strict: ask the provider to enforce the schema where it can.
    """

    schema: JsonObject | None = field(default=None, converter=optional(freeze_object))
    name: str = "answer"
    strict: bool = True


@frozen(eq=False, repr=False, kw_only=True)
class InferenceOptions(Value):
    """How a model is to answer; what is None is left to the provider.

    Attributes:
        model: the model to ask, when another than the one configured.
        temperature: how much chance is in the choice of words.
        top_p: the share of probability that words are chosen from.
        max_tokens: the most tokens to write.
        stop: texts at which to end the answer.
        seed: a number that makes the answer repeatable where the provider can.
        reasoning_effort: how much to think first.
        cache_prompt: mark the ends of tools, system prompt and conversation as cache breakpoints, where the provider
            wants to be told.
        extra: entries of the request body for one provider only, put in as they are.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = field(default=(), converter=_as_texts)
    seed: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    cache_prompt: bool = False
    extra: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def __attrs_post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            given = getattr(self, name)
            if given is not None and not isfinite(given):
                raise ConfigurationError(f"{name} is a finite number, not {given}; None leaves it to the provider")


DEFAULT_OPTIONS = InferenceOptions()


@frozen(eq=False, repr=False)
class InferenceRequest(Value):
    """One request to a model.

    Attributes:
        messages: the conversation as the model shall see it, without the system prompt.
        system_prompt: instructions that stand before the conversation; may be empty.
        tools: the tools on offer.
        tool_choice: whether and which of them has to be called.
        parallel_tool_calls: whether several calls may come in one answer; None leaves it to the provider.
        response_format: the form of the answer's text; None for free text.
        options: model, sampling and limits.
    """

    messages: tuple[Message, ...] = field(converter=tuple[Message, ...])
    system_prompt: str = ""
    tools: tuple[ToolSpec, ...] = field(default=(), converter=tuple[ToolSpec, ...])
    tool_choice: ToolChoice = _AUTO
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    options: InferenceOptions = DEFAULT_OPTIONS

    def with_messages(self, *messages: Message) -> InferenceRequest:
        """Return the request with other messages."""
        return evolve(self, messages=messages)

    def with_system_prompt(self, system_prompt: str) -> InferenceRequest:
        """Return the request with another system prompt."""
        return evolve(self, system_prompt=system_prompt)

    def with_tools(self, *tools: ToolSpec) -> InferenceRequest:
        """Return the request with other tools on offer."""
        return evolve(self, tools=tools)

    def with_tool_choice(self, tool_choice: ToolChoice) -> InferenceRequest:
        """Return the request with another tool choice."""
        return evolve(self, tool_choice=tool_choice)

    def with_response_format(self, response_format: ResponseFormat | None) -> InferenceRequest:
        """Return the request with another form asked of the answer."""
        return evolve(self, response_format=response_format)

    def with_options(self, options: InferenceOptions) -> InferenceRequest:
        """Return the request with other options; `attrs.evolve(request.options, …)` changes single ones."""
        return evolve(self, options=options)


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


@frozen(eq=False, repr=False)
class Usage(Value):
    """Tokens that one or more inferences used. Unknown is None, never zero, and stays unknown in a sum.

    Attributes:
        input_tokens: everything the model read, cached input included.
        output_tokens: everything the model wrote, reasoning included.
        cached_input_tokens: the part of the input that the provider took from its prompt cache.
        cache_write_tokens: the part of the input that the provider wrote to its prompt cache.
        reasoning_tokens: the part of the output that was reasoning.
        requests: how many inferences this counts.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    requests: int = 1

    @classmethod
    def none(cls) -> Self:
        """Return the usage of no inference at all: the zero of addition."""
        return cls(0, 0, 0, 0, 0, 0)

    @property
    def total_tokens(self) -> int | None:
        """Input and output together, or None when either is unknown."""
        return _sum(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cached_input_tokens, other.cached_input_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            self.requests + other.requests,
        )


class FinishReason(StrEnum):
    """Why a model stopped writing."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"
    UNKNOWN = "unknown"


@frozen(eq=False, repr=False)
class InferenceResponse(Value):
    """One answer of a model. Only a response holds bare calls; a driver joins each to its execution.

    Attributes:
        parts: text, reasoning, tool calls and provider parts in the order they came.
        finish_reason: why the model stopped, in common words.
        usage: tokens of this one inference.
        model: the model that answered, as the provider names it.
        id: the provider's id of the answer.
        provider_finish_reason: why the model stopped, in the provider's own word; None when it gave none.
        problem: what keeps the answer from being read as calls or as an answer, in words for the model; empty when nothing does.
        wants_to_continue: whether the model has neither called a tool nor answered, but wants to think on.
    """

    parts: tuple[ResponsePart, ...] = field(converter=tuple[ResponsePart, ...])
    finish_reason: FinishReason = field(default=FinishReason.STOP, converter=FinishReason)
    usage: Usage = Usage()  # immutable
    model: str = ""
    id: str = ""
    provider_finish_reason: str | None = None
    problem: str = ""
    wants_to_continue: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Reasoning])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order."""
        return tuple([part for part in self.parts if type(part) is ToolCall])

    def with_parts(self, *parts: ResponsePart) -> InferenceResponse:
        """Return the response with other parts."""
        return evolve(self, parts=parts)

    def with_text(self, text: str) -> InferenceResponse:
        """Return the response with its text parts replaced by this one, where the first of them stood, or at the front."""
        before: list[ResponsePart] = []
        after: list[ResponsePart] = []
        seen = False
        for part in self.parts:
            if type(part) is Text:
                seen = True
            else:
                (after if seen else before).append(part)
        if not seen:
            before, after = [], before
        return evolve(self, parts=(*before, Text(text), *after))


@frozen(eq=False, repr=False)
class InferenceDelta(Value):
    """A provisional piece of an answer; the response that follows is final.

    Attributes:
        kind: `text`, `reasoning`, `tool_call` (a call begins) or `arguments` (more of its arguments).
        text: the new piece: of text, of reasoning or of a call's arguments as JSON text.
        index: which call of this answer, from 0; for `tool_call` and `arguments`.
        call_id: the call's id, for `tool_call`; may be empty.
        name: the tool's name, for `tool_call`.
        attempt: which attempt of this inference it belongs to, from 1; the pieces of an attempt that is retried are void.
    """

    kind: Literal["text", "reasoning", "tool_call", "arguments"]
    text: str = ""
    index: int = 0
    call_id: str = ""
    name: str = ""
    attempt: int = 1

    def with_attempt(self, attempt: int) -> InferenceDelta:
        """Return the piece as belonging to this attempt."""
        return self if attempt == self.attempt else evolve(self, attempt=attempt)


_WORD = re.compile(r"\S+\s*|\s+")


def iter_deltas(response: InferenceResponse) -> Iterator[InferenceDelta]:
    """Return the deltas of an answer: text and reasoning by words, each call with its arguments in one piece."""
    index = 0
    for part in response.parts:
        if isinstance(part, Text | Reasoning):
            for word in _WORD.findall(part.text):
                yield InferenceDelta("text" if isinstance(part, Text) else "reasoning", word)
        elif isinstance(part, ToolCall):
            yield InferenceDelta("tool_call", index=index, call_id=part.id, name=part.name)
            yield InferenceDelta("arguments", part.arguments_json, index)
            index += 1
