"""What is asked of a model, in neutral form."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Literal, TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.errors import ConfigurationError
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.message import Message, as_messages
from agentloop.values.tool_spec import ToolSpec
from agentloop.values.value import Value

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _as_specs(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(tools)


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

    messages: tuple[Message, ...] = field(converter=as_messages)
    system_prompt: str = ""
    tools: tuple[ToolSpec, ...] = field(default=(), converter=_as_specs)
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
