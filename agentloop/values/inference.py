"""Requests to models and their responses, independent of any provider: request, options, usage, response, deltas."""

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
from agentloop.values.value import UNCHECKED, Value, check_types

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


@frozen(eq=False, repr=False)
class ToolChoice(Value):
    """Whether the model has to call a tool, and which. Create it by `auto()`, `required()`, `none()` or `specific(name)`."""

    kind: Literal["auto", "required", "none", "specific"]
    name: str = ""

    __attrs_post_init__ = check_types

    @classmethod
    def auto(cls) -> ToolChoice:
        """Let the model decide."""
        return _AUTO

    @classmethod
    def required(cls) -> ToolChoice:
        """Require at least one tool call."""
        return cls("required")

    @classmethod
    def none(cls) -> ToolChoice:
        """Forbid tool calls."""
        return cls("none")

    @classmethod
    def specific(cls, name: str) -> ToolChoice:
        """Require a call of the tool of this name."""
        return cls("specific", name)

    @property
    def is_forced(self) -> bool:
        """Whether the model has to call a tool."""
        return self.kind in {"required", "specific"}

    def allows(self, name: str) -> bool:
        """Return whether the model may call the tool of this name."""
        return self.kind != "none" and (self.kind != "specific" or self.name == name)


_AUTO = ToolChoice("auto")


def tool_choice_of(choice: ToolChoice | Literal["auto", "required", "none"]) -> ToolChoice:
    """Return the choice of this name, or a choice as it is.

    Raises:
        ConfigurationError: if it is neither.
    """
    if isinstance(choice, ToolChoice):
        return choice
    if choice in ("auto", "required", "none"):  # what is passed instead may have no hash
        return ToolChoice(choice)
    raise ConfigurationError(
        f"tool_choice is 'auto', 'required', 'none' or a ToolChoice, not {choice!r:.100}; for one tool, write "
        "ToolChoice.specific('its_name')"
    )


@frozen(eq=False, repr=False)
class ResponseFormat(Value):
    """The required format of the model's text: JSON, with or without a schema.

    Attributes:
        schema: a JSON Schema for the text, or None for any JSON object.
        name: a name for the schema; some providers show it to the model.
        strict: whether the provider should enforce the schema, if it can.
    """

    schema: JsonObject | None = field(default=None, converter=optional(freeze_object))
    name: str = "answer"
    strict: bool = True

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False, kw_only=True)
class InferenceOptions(Value):
    """Sampling parameters and limits of a request; None stands for the provider's default.

    Attributes:
        model: the model, if it differs from the configured one.
        temperature: the sampling temperature.
        top_p: the probability mass of nucleus sampling, from 0 to 1.
        max_tokens: the maximum number of output tokens.
        stop: the texts that end the response.
        seed: the seed for repeatable sampling, where the provider supports it.
        reasoning_effort: how long to reason before the response.
        cache_prompt: whether to set cache breakpoints after tools, system prompt and conversation, for providers that need
            explicit ones.
        extra: entries that are added unchanged to the request body, for parameters of a single provider.

    Raises:
        ConfigurationError: if `temperature` or `top_p` is not finite.
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
        check_types(self)
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if value is not None and not isfinite(value):
                raise ConfigurationError(f"{name} is a finite number, not {value}; None leaves it to the provider")


DEFAULT_OPTIONS = InferenceOptions()


@frozen(eq=False, repr=False)
class InferenceRequest(Value):
    """One request to a model.

    Attributes:
        messages: the conversation as the model sees it, without the system prompt.
        system_prompt: the instructions that precede the conversation; may be empty.
        tools: the offered tools.
        tool_choice: whether the model has to call a tool, and which.
        parallel_tool_calls: whether a response may contain several calls; None for the provider's default.
        response_format: the format of the response's text; None for free text.
        options: model, sampling and limits.
    """

    messages: tuple[Message, ...] = field(converter=tuple[Message, ...], metadata=UNCHECKED)
    system_prompt: str = ""
    tools: tuple[ToolSpec, ...] = field(default=(), converter=tuple[ToolSpec, ...])
    tool_choice: ToolChoice = _AUTO
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    options: InferenceOptions = DEFAULT_OPTIONS

    __attrs_post_init__ = check_types

    def with_messages(self, *messages: Message) -> InferenceRequest:
        """Return the request with these messages instead."""
        return evolve(self, messages=messages)

    def with_system_prompt(self, system_prompt: str) -> InferenceRequest:
        """Return the request with this system prompt instead."""
        return evolve(self, system_prompt=system_prompt)

    def with_tools(self, *tools: ToolSpec) -> InferenceRequest:
        """Return the request with these tools instead."""
        return evolve(self, tools=tools)

    def with_tool_choice(self, tool_choice: ToolChoice) -> InferenceRequest:
        """Return the request with this tool choice instead."""
        return evolve(self, tool_choice=tool_choice)

    def with_response_format(self, response_format: ResponseFormat | None) -> InferenceRequest:
        """Return the request with this response format instead."""
        return evolve(self, response_format=response_format)

    def with_options(self, options: InferenceOptions) -> InferenceRequest:
        """Return the request with these options instead; `attrs.evolve(request.options, …)` changes single options."""
        return evolve(self, options=options)


def _sum(left: int | None, right: int | None) -> int | None:
    # Treating unknown as zero would report a cost that is too low.
    return None if left is None or right is None else left + right


@frozen(eq=False, repr=False)
class Usage(Value):
    """Tokens used by one or more inferences. An unknown count is None, not zero, and a sum with None is None (law 6).

    Attributes:
        input_tokens: all input, including cached input.
        output_tokens: all output, including reasoning.
        cached_input_tokens: the part of the input that was read from the provider's prompt cache.
        cache_write_tokens: the part of the input that was written to the provider's prompt cache.
        reasoning_tokens: the part of the output that is reasoning.
        requests: the number of inferences.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    requests: int = 1

    __attrs_post_init__ = check_types

    @classmethod
    def none(cls) -> Self:
        """Return the usage of no inferences, the zero of addition."""
        return cls(0, 0, 0, 0, 0, 0)

    @property
    def total_tokens(self) -> int | None:
        """The sum of input and output tokens; None if either is unknown."""
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
    """Why a model stopped generating."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"
    UNKNOWN = "unknown"

    @property
    def is_incomplete(self) -> bool:
        """Whether the model was interrupted: the limit of tokens, a filter, or an error ended its answer."""
        return self in _INCOMPLETE


_INCOMPLETE = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR})


@frozen(eq=False, repr=False)
class ModeChoice(Value):
    """The tool-calling mode of a model, and why it was chosen.

    Attributes:
        model: the name of the model, as `provider:model` or by its bare name.
        mode: the name of the mode, such as `native`.
        reason: why it was chosen, for people.
    """

    model: str
    mode: str
    reason: str

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class InferenceResponse(Value):
    """One response of a model.

    A response is the only value that holds tool calls without their executions; a driver joins the two into a `Message`.

    Attributes:
        parts: text, reasoning, tool calls and provider parts, in order.
        finish_reason: why the model stopped.
        usage: the tokens of this inference.
        model: the model that responded, as the provider names it.
        id: the provider's id of the response.
        provider_finish_reason: the provider's own finish reason; None if it sent none.
        problem: why the response cannot be parsed, in words for the model; empty if it can.
        wants_to_continue: whether the model neither called a tool nor answered, and should be called again.
        quoted_calls: the calls that were found in the text but only quoted there; they do not run.
        exceeded: the name of the bound that the text exceeds, so that it was not read; `problem` has the details. Empty if it
            exceeds none.
        mode_choice: the mode in which to call the model from now on, if this inference has shown that the assumed one does not
            suit it; else None.
    """

    parts: tuple[ResponsePart, ...] = field(converter=tuple[ResponsePart, ...])
    finish_reason: FinishReason = field(default=FinishReason.STOP, converter=FinishReason)
    usage: Usage = Usage()  # immutable
    model: str = ""
    id: str = ""
    provider_finish_reason: str | None = None
    problem: str = ""
    wants_to_continue: bool = False
    quoted_calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])
    exceeded: str = ""
    mode_choice: ModeChoice | None = None

    __attrs_post_init__ = check_types

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
        """Return the response with these parts instead."""
        return evolve(self, parts=parts)

    def with_text(self, text: str) -> InferenceResponse:
        """Return the response with this text in place of its text parts, at the position of the first, or at the front."""
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
    """A provisional part of a streamed response; the complete response that follows is final.

    Attributes:
        kind: `text`, `reasoning`, `tool_call` (a call starts) or `arguments` (more of its arguments).
        text: the added text, reasoning, or JSON text of a call's arguments.
        index: the 0-based index of the call in the response; for `tool_call` and `arguments`.
        call_id: the id of the call; for `tool_call`; may be empty.
        name: the name of the tool; for `tool_call`.
        attempt: the 1-based attempt of the inference; when an attempt is retried, discard its deltas.
    """

    kind: Literal["text", "reasoning", "tool_call", "arguments"]
    text: str = ""
    index: int = 0
    call_id: str = ""
    name: str = ""
    attempt: int = 1

    def with_attempt(self, attempt: int) -> InferenceDelta:
        """Return the delta with this attempt number."""
        return self if attempt == self.attempt else evolve(self, attempt=attempt)


def iter_deltas(response: InferenceResponse) -> Iterator[InferenceDelta]:
    """Yield the deltas of a complete response: text and reasoning word by word, the arguments of each call as one delta."""
    index = 0
    for part in response.parts:
        if isinstance(part, Text | Reasoning):
            for word in re.findall(r"\S+\s*|\s+", part.text):
                yield InferenceDelta("text" if isinstance(part, Text) else "reasoning", word)
        elif isinstance(part, ToolCall):
            yield InferenceDelta("tool_call", index=index, call_id=part.id, name=part.name)
            yield InferenceDelta("arguments", part.arguments_json, index)
            index += 1
