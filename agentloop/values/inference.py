"""Requests to models and their responses, independent of any provider: request, options, usage, response, deltas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, get_args

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.errors.hints import suggest
from agentloop.errors.kinds import BoundExceeded, ConfigurationError, InvalidParameter
from agentloop.values.bounds import Bounds
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze_object
from agentloop.values.labels import Label
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolSpec
from agentloop.values.value import UNCHECKED, Declared, Value, check_types

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model shall think before it answers; each provider has some of these levels."""


def _as_texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(texts, Iterable):
        raise InvalidParameter(f"the texts that end a response are a text or a list of texts, not {texts!r:.100}")
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


HostedKind: TypeAlias = Literal["web_search", "code_execution", "file_search", "provider"]


@frozen(eq=False, repr=False)
class HostedTool(Declared):
    """A tool that the provider of a model runs itself, beside the tools of the loop.

    Create it by `web_search()`, `code_execution()` or `file_search(…)`, which every wire format with such a tool translates, or by
    `of(…)` for any other tool of one provider. The calls of these tools and their results are `ProviderPart`s of the response.

    Attributes:
        kind: what the tool does; `provider` for a tool of one provider.
        settings: its settings; for the kind `provider`, the tool as that provider writes it.
        wire_format: the wire format of a tool of the kind `provider`; otherwise empty.

    Raises:
        ConfigurationError: if both `allowed_domains` and `blocked_domains` are set, a file search has no stores, or a tool of one
            provider has no `wire_format`.
    """

    kind: HostedKind
    settings: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    wire_format: str = ""

    def check_declaration(self) -> None:
        """Check the settings against each other, and their ranges."""
        if (self.kind == "provider") != bool(self.wire_format):
            raise ConfigurationError(
                "a HostedTool of one provider has a wire_format, and no other does; use HostedTool.of(wire_format, tool)"
            )
        if self.kind == "file_search" and not self.settings.get("stores"):
            raise ConfigurationError("a file search needs the ids of its stores: HostedTool.file_search('…')")
        if self.settings.get("allowed_domains") and self.settings.get("blocked_domains"):
            raise ConfigurationError(
                "a web search has either allowed_domains or blocked_domains; leave out one of them"
            )

    @classmethod
    def web_search(
        cls,
        *,
        allowed_domains: Iterable[str] = (),
        blocked_domains: Iterable[str] = (),
        max_uses: int | None = None,
    ) -> HostedTool:
        """Return a search of the web.

        Args:
            allowed_domains: the only domains to search; by default all.
            blocked_domains: domains that are left out.
            max_uses: the maximum number of searches for one response.
        """
        allowed, blocked = _as_domains(allowed_domains), _as_domains(blocked_domains)
        settings = {"allowed_domains": allowed, "blocked_domains": blocked, "max_uses": max_uses}
        return cls("web_search", _without_defaults(settings))

    @classmethod
    def code_execution(cls) -> HostedTool:
        """Return a sandbox of the provider, in which the model runs code that it writes."""
        return cls("code_execution")

    @classmethod
    def file_search(cls, *stores: str, max_results: int | None = None) -> HostedTool:
        """Return a search of uploaded files.

        Args:
            *stores: the ids of the stores of the provider that contain the files.
            max_results: the maximum number of found passages.
        """
        return cls("file_search", _without_defaults({"stores": stores, "max_results": max_results}))

    @classmethod
    def of(cls, wire_format: str, tool: Mapping[str, object]) -> HostedTool:
        """Return any tool of one provider.

        Args:
            wire_format: the wire format that the tool is written for, such as `anthropic-messages`.
            tool: the entry of the request's `tools`, as the provider documents it.
        """
        return cls("provider", freeze_object(tool), wire_format)


def _as_domains(domains: Iterable[str]) -> tuple[str, ...]:
    return (domains,) if isinstance(domains, str) else tuple(domains)


def _without_defaults(settings: Mapping[str, object]) -> JsonObject:
    return freeze_object({name: value for name, value in settings.items() if value not in {None, ()}})


_SHORT_KINDS: tuple[HostedKind, ...] = ("web_search", "code_execution")
"""The kinds that need no settings."""


def _as_hosted_tools(tools: Iterable[HostedTool | HostedKind]) -> tuple[HostedTool, ...]:
    # A single one, or its kind, is easily written without the list around it.
    several: Iterable[Any] = (tools,) if isinstance(tools, str | HostedTool) else tools
    return tuple([_hosted_tool(tool) if isinstance(tool, str) else tool for tool in several])


def _hosted_tool(name: str) -> HostedTool:
    kind = next((kind for kind in _SHORT_KINDS if kind == name), None)
    if kind is None:
        hint = "" if name in get_args(HostedKind) else suggest(name, _SHORT_KINDS)
        raise InvalidParameter(
            f"{name!r} is no hosted tool that needs no settings; those are {', '.join(_SHORT_KINDS)}{hint}"
        )
    return HostedTool(kind)


MAX_TEMPERATURE = 2
"""The highest temperature that any provider accepts."""
MAX_TOP_LOGPROBS = 20
"""The maximum number of alternatives per token, which is that of the providers."""
OWN_ENTRIES = ("model", "messages", "stream")
"""The entries of a body that every request sets itself; a wire format refuses its further ones when it writes the body."""


@frozen(eq=False, repr=False, kw_only=True)
class InferenceOptions(Declared):
    """Sampling parameters and limits of a request; None stands for the provider's default.

    A wire format that has no equivalent of an option raises `UnsupportedOption` before it sends anything.

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
        hosted_tools: tools that the provider runs itself; `"web_search"` is short for `HostedTool.web_search()`.
        logprobs: whether to return the log probability of each token of the answer, in `InferenceResponse.logprobs`.
        top_logprobs: the number of most likely tokens to return at each position, from 0 to 20; a number implies `logprobs`.
        extra: entries that are added unchanged to the request body, for parameters of a single provider.

    Raises:
        ConfigurationError: if `temperature`, `top_p`, `max_tokens` or `top_logprobs` is out of range, if a text of `stop` is empty, or
            if `extra` has an entry that every request sets itself.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = field(default=(), converter=_as_texts)
    seed: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    cache_prompt: bool = False
    hosted_tools: tuple[HostedTool, ...] = field(default=(), converter=_as_hosted_tools)
    logprobs: bool = False
    top_logprobs: int | None = None
    extra: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def check_declaration(self) -> None:
        """Check the settings against each other, and their ranges."""
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if value is not None and not -inf < value < inf:
                raise ConfigurationError(f"{name} is a finite number, not {value}; None leaves it to the provider")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigurationError(f"max_tokens is 1 or more, not {self.max_tokens}; None leaves it to the provider")
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ConfigurationError(f"top_p is a number from 0 to 1, not {self.top_p}; None leaves it to the provider")
        if self.temperature is not None and not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigurationError(
                f"temperature is a number from 0 to {MAX_TEMPERATURE}, not {self.temperature}; None leaves it to the provider"
            )
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ConfigurationError(f"top_logprobs is a number from 0 to {MAX_TOP_LOGPROBS}, not {self.top_logprobs}")
        if "" in self.stop:
            raise ConfigurationError(
                "stop has an empty text, which would end each answer before it begins: leave it out"
            )
        taken = [name for name in OWN_ENTRIES if name in self.extra]
        if taken:
            raise ConfigurationError(
                f"options.extra contains {', '.join(taken)}, which the request itself sets; remove it there, or set the parameter of that name"
            )


DEFAULT_OPTIONS = InferenceOptions()


class InferenceOptionsDict(TypedDict, total=False):
    """The attributes of `InferenceOptions` as a mapping, such as `{"temperature": 0.2}`; that class describes them."""

    model: str | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: str | Iterable[str]
    seed: int | None
    reasoning_effort: ReasoningEffort | None
    cache_prompt: bool
    hosted_tools: Iterable[HostedTool | HostedKind]
    logprobs: bool
    top_logprobs: int | None
    extra: Mapping[str, JsonValue]


OptionsLike: TypeAlias = InferenceOptions | InferenceOptionsDict
"""Options of requests: an `InferenceOptions`, or its attributes as a mapping."""


def options_of(options: OptionsLike) -> InferenceOptions:
    """Return options as they are, or those of a mapping.

    Raises:
        InvalidParameter: they are of another type, or the mapping has an unknown key; the message suggests the closest one.
        ConfigurationError: an option is out of range.
        TypeError: an option has a wrong type.
    """
    if isinstance(options, InferenceOptions):
        return options
    given: object = options
    if not isinstance(given, Mapping):
        found = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InvalidParameter(
            f"options is an InferenceOptions, or a mapping such as {{'temperature': 0.2}}, not {found}"
        )
    for name in given:
        if name not in InferenceOptionsDict.__annotations__:
            raise InvalidParameter(
                f"options has no key {name!r:.100}{suggest(str(name), InferenceOptionsDict.__annotations__)}"
            )
    return InferenceOptions(**given)


def check_keywords(function: str, given: Iterable[str], known: Mapping[str, object]) -> None:
    """Check the names of keyword arguments that a function takes as a mapping.

    Args:
        function: the function as a call, such as `AgentLoop()`.
        given: the names.
        known: the names that it takes, such as the annotations of a `TypedDict`.

    Raises:
        InvalidParameter: a name is unknown; the message suggests the closest one, or the key of `options` that it is.
    """
    options = InferenceOptionsDict.__annotations__ if "options" in known else {}
    for name in given:
        if name in known:
            continue
        if name in options:
            hint = f"; it is a key of options: write options={{{name!r}: …}}"
        else:
            hint = suggest(name, known) or suggest(name, options).replace("?", "? It is a key of options")
        raise InvalidParameter(f"{function} got an unexpected keyword argument {name!r}{hint}")


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

    def with_messages(self, messages: Iterable[Message]) -> InferenceRequest:
        """Return the request with these messages instead."""
        return evolve(self, messages=messages)

    def with_system_prompt(self, system_prompt: str) -> InferenceRequest:
        """Return the request with this system prompt instead."""
        return evolve(self, system_prompt=system_prompt)

    def with_tools(self, tools: Iterable[ToolSpec]) -> InferenceRequest:
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
        hosted_tool_calls: the number of calls of hosted tools that the provider reports, as far as it does; some of them are
            charged apart from tokens.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    requests: int = 1
    hosted_tool_calls: int = 0

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
            self.hosted_tool_calls + other.hosted_tool_calls,
        )


class FinishReason(StrEnum):
    """Why a model stopped generating.

    `STOP` and `TOOL_CALLS` are normal ends. `UNKNOWN` says that the provider has reported no reason, as some services do for each
    answer, and `OTHER` that it has reported one which is not known here.
    """

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"
    UNKNOWN = "unknown"

    @property
    def is_incomplete(self) -> bool:
        """Whether the answer did not end normally: the limit of tokens, a filter or an error ended it, or a reason that is not known."""
        return self in _INCOMPLETE


_INCOMPLETE = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR, FinishReason.OTHER})


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
class TokenLogprob(Value):
    """The log probability of one token of an answer.

    Attributes:
        token: the token as text; parts of a character may be replaced.
        logprob: its natural logarithm of the probability, at most 0.
        data: the bytes of the token, where the provider reports them: a token need not be valid UTF-8.
        top: the most likely tokens at this position, most likely first, each without alternatives of its own.
    """

    token: str
    logprob: float
    data: bytes | None = None
    top: tuple[TokenLogprob, ...] = field(default=(), converter=tuple["TokenLogprob", ...])

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
        quoted_texts: the parts of the text that only calls have, such as `<tool_call>`, and that the text only shows; with a `problem`,
            the parts that may be shown or meant.
        exceeded: the name of the bound that the text exceeds, so that it was not read; `problem` has the details. Empty if it
            exceeds none.
        mode_choice: the mode in which to call the model from now on, if this inference has shown that the assumed one does not
            suit it; else None.
        logprobs: the log probabilities of the tokens of the text, in order; empty unless the options ask for them.
        label: who had a part in what the model had read; None where that is not known.
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
    logprobs: tuple[TokenLogprob, ...] = field(default=(), converter=tuple[TokenLogprob, ...])
    quoted_texts: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    label: Label | None = field(default=None, repr=False)

    __attrs_post_init__ = check_types

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Reasoning])

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order."""
        return tuple([part for part in self.parts if type(part) is ToolCall])

    def with_parts(self, parts: Iterable[ResponsePart]) -> InferenceResponse:
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
        text: the added text or reasoning; empty for the other kinds, so that the texts of all deltas have no arguments in them.
        index: the 0-based index of the call in the response; for `tool_call` and `arguments`.
        call_id: the id of the call; for `tool_call`; may be empty.
        name: the name of the tool, or its beginning where a service sends it in pieces; for `tool_call`.
        attempt: the 1-based attempt of the inference; when an attempt is retried, discard its deltas.
        arguments: the added JSON text of a call's arguments; for `arguments`, where it may be passed as the text.
    """

    kind: Literal["text", "reasoning", "tool_call", "arguments"]
    text: str = ""
    index: int = 0
    call_id: str = ""
    name: str = ""
    attempt: int = 1
    arguments: str = field(default="", kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.kind == "arguments" and self.text:
            object.__setattr__(self, "arguments", self.text)
            object.__setattr__(self, "text", "")

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


_OUTCOMES: Final = 8
"""How many times `Bounds.calls_per_answer` the calls of an answer may be that get an outcome each; more are one error of the answer."""


def within_bounds(response: InferenceResponse, bounds: Bounds) -> InferenceResponse:
    """Return a response, without its calls if they are so many that even their rejections would take long."""
    limit = bounds.calls_per_answer * _OUTCOMES
    if len(response.parts) <= limit and len(response.quoted_calls) <= limit:
        return response
    response = evolve(response, quoted_calls=response.quoted_calls[: int(limit)])
    count = len(response.tool_calls)
    if count <= limit:
        return response
    problem = BoundExceeded("calls_per_answer", bounds.calls_per_answer, f"the answer has {count:,} tool calls")
    parts = [part for part in response.parts if not isinstance(part, ToolCall)]
    return evolve(response, parts=parts, problem=str(problem), exceeded=problem.bound)
