"""Hypothesis strategies for requests and what they hold: the values that a kit draws.

The generated values are valid: executions belong to their calls, and no time is before the one that it follows. Text contains no
lone surrogates.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import ParamSpec, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from agentloop.values.inference import (
    HostedTool,
    InferenceOptions,
    InferenceRequest,
    ResponseFormat,
    ToolChoice,
)
from agentloop.values.json import JsonObject, JsonValue, format_json, freeze, freeze_object
from agentloop.values.messages import Message, Part
from agentloop.values.parts import URL_SCHEMES, Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.records import inner_key
from agentloop.values.tool_calls import (
    ContentPart,
    Effect,
    ErrorInfo,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
)

_EARLIEST, _LATEST = datetime(2000, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001  # st.datetimes takes naive bounds
_DURATIONS = st.timedeltas(timedelta(0), timedelta(hours=1))
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
_SHORT = st.text(max_size=12)

P = ParamSpec("P")
T = TypeVar("T")


def _make_once(make: Callable[P, T]) -> Callable[P, T]:
    """Let a function return the same strategy each time: Hypothesis validates a strategy once, which takes longer than many draws."""
    return cast("Callable[P, T]", cache(make))


@_make_once
def json_values(*, max_leaves: int = 8) -> SearchStrategy[JsonValue]:
    """Immutable JSON values of any shape."""
    scalars = st.none() | st.booleans() | st.integers() | _FLOATS | _SHORT
    nested = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_SHORT, inner, max_size=3),
        max_leaves=max_leaves,
    )
    return nested.map(freeze)


@_make_once
def json_objects(*, max_size: int = 3) -> SearchStrategy[JsonObject]:
    """Immutable JSON objects."""
    return st.dictionaries(_SHORT, json_values(max_leaves=4), max_size=max_size).map(freeze_object)


@_make_once
def moments() -> SearchStrategy[datetime]:
    """Aware datetimes in UTC, from 2000 to 2100."""
    return st.datetimes(_EARLIEST, _LATEST, timezones=st.just(UTC))


@_make_once
def content_parts() -> SearchStrategy[ContentPart]:
    """Parts that a user or a tool can send to a model: text and media, by value and by reference."""
    data = {"media_type": st.sampled_from(["image/png", "audio/wav", "application/pdf"]), "data": st.binary(max_size=8)}
    path = st.text("ab/.-%é", min_size=1, max_size=8)
    url = {
        "url": st.builds("{}://{}".format, st.sampled_from(URL_SCHEMES), path),
        "name": _SHORT,
        "provider_data": json_objects(max_size=1),
    }
    media = [st.builds(kind, **data) | st.builds(kind, **url) for kind in (Image, Audio, Document)]
    files = [st.builds(kind, file_id=_SHORT) for kind in (Image, Audio, Document)]
    return st.one_of(_texts(), *media, *files)


@_make_once
def _texts() -> SearchStrategy[Text]:
    return st.builds(Text, _SHORT, provider_data=json_objects(max_size=1))


@_make_once
def _reasoning() -> SearchStrategy[Reasoning | ProviderPart]:
    reasoning = st.builds(Reasoning, _SHORT, provider_data=json_objects(max_size=1))
    return reasoning | st.builds(ProviderPart, _NAMES, json_values(max_leaves=3))


@_make_once
def tool_calls(*, names: SearchStrategy[str] = _NAMES) -> SearchStrategy[ToolCall]:
    """Calls of tools with these names. The arguments are a JSON object, with and without extra whitespace, or empty."""
    compact = json_objects().map(lambda value: format_json(value).decode())
    arguments = compact | compact.map(lambda text: f" {text.replace('{}', '{ }')}\n") | st.just("")
    return st.builds(ToolCall, _SHORT, names, arguments, provider_data=json_objects(max_size=1))


@_make_once
def error_infos() -> SearchStrategy[ErrorInfo]:
    """Errors as values."""
    return st.builds(ErrorInfo, st.sampled_from(["ToolFailed", "ToolTimedOut", "ValueError"]), _SHORT, _SHORT)


_RESULTS = st.none() | st.lists(content_parts(), max_size=2)


@st.composite
def tool_executions(
    draw: DrawFn,
    *,
    call: ToolCall | None = None,
    key: str = "execution/1/0",
    at: datetime | None = None,
    max_inner: int = 2,
) -> ToolExecution:
    """Executions of this call, or of any call, with every status: a success has a value and maybe content, others have an error.

    Some have calls inside, as those of programs do, at most `max_inner`.
    """
    status = draw(st.sampled_from(ToolStatus))
    succeeded = status is ToolStatus.SUCCEEDED
    started_at = at or draw(moments())
    return ToolExecution(
        id=draw(_NAMES),
        key=key,
        call=call or draw(tool_calls()),
        status=status,
        value=draw(json_values()) if succeeded else None,
        content=draw(_RESULTS) if succeeded else None,
        error=None if succeeded else draw(error_infos()),
        may_have_run=not succeeded and draw(st.booleans()),
        started_at=started_at,
        ended_at=started_at + draw(_DURATIONS),
        inner=[
            draw(tool_executions(key=inner_key(key, number), at=at, max_inner=0))
            for number in range(draw(st.integers(0, max_inner)) if max_inner else 0)
        ],
    )


@st.composite
def tool_exchanges(draw: DrawFn, *, key: str = "execution/1/0") -> ToolExchange:
    """Calls with their executions. Some calls ran with other arguments than the model's."""
    call = draw(tool_calls())
    executed = call.with_arguments(draw(json_objects())) if draw(st.booleans()) else call
    return ToolExchange(call, draw(tool_executions(call=executed, key=key)))


@_make_once
def messages() -> SearchStrategy[Message]:
    """Messages of every role, with all kinds of parts that the role may have."""
    content = st.lists(content_parts(), max_size=3)
    parts: SearchStrategy[Part] = content_parts() | _reasoning() | tool_exchanges()
    return st.one_of(
        st.builds(Message, st.just("user"), content, json_objects(max_size=1)),
        st.builds(Message, st.just("system"), st.lists(_texts(), max_size=2), json_objects(max_size=1)),
        st.builds(Message, st.just("assistant"), st.lists(parts, max_size=4), json_objects(max_size=1)),
    )


@_make_once
def tool_specs() -> SearchStrategy[ToolSpec]:
    """Tool specs with up to three scalar parameters."""
    types = st.sampled_from([{"type": name} for name in ("string", "integer", "number", "boolean")])
    schemas = st.dictionaries(_NAMES, types, max_size=3).map(lambda names: {"type": "object", "properties": names})
    egress = st.booleans() | st.lists(_NAMES, min_size=1, max_size=2)
    names = st.lists(_NAMES, max_size=2)
    data = {"egress": egress, "own": names, "identifiers": names, "decides": names | st.just("*")}
    return st.builds(ToolSpec, _NAMES, _SHORT, schemas, st.sampled_from(Effect), **data)


@_make_once
def response_formats() -> SearchStrategy[ResponseFormat]:
    """Response formats, with and without a schema."""
    schemas = st.none() | tool_specs().map(lambda spec: spec.parameters)
    return st.builds(ResponseFormat, schemas, _NAMES, st.booleans())


@_make_once
def hosted_tools() -> SearchStrategy[HostedTool]:
    """Tools that a provider runs itself."""
    search = st.builds(HostedTool.web_search, blocked_domains=st.lists(_NAMES, max_size=1))
    return search | st.just(HostedTool.code_execution()) | st.builds(HostedTool.of, _NAMES, json_objects(max_size=1))


@_make_once
def inference_options() -> SearchStrategy[InferenceOptions]:
    """Model, sampling and limits, each set or left to the provider."""
    return st.builds(
        InferenceOptions,
        model=st.none() | _NAMES,
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0, 1),
        max_tokens=st.none() | st.integers(1, 10**6),
        stop=st.lists(_SHORT.filter(bool), max_size=2),
        seed=st.none() | st.integers(0, 2**31),
        reasoning_effort=st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", "max"]),
        cache_prompt=st.booleans(),
        hosted_tools=st.lists(hosted_tools(), max_size=1),
        logprobs=st.booleans(),
        top_logprobs=st.none() | st.integers(0, 20),
        extra=json_objects(max_size=1),
    )


@_make_once
def inference_requests() -> SearchStrategy[InferenceRequest]:
    """Requests with messages, tools and options."""
    choices = st.sampled_from([ToolChoice.auto(), ToolChoice.required(), ToolChoice.none()])
    return st.builds(
        InferenceRequest,
        st.lists(messages(), max_size=3),
        _SHORT,
        st.lists(tool_specs(), max_size=2, unique_by=lambda spec: spec.name),
        choices | _NAMES.map(ToolChoice.specific),
        st.sampled_from([None, True, False]),
        st.none() | response_formats(),
        inference_options(),
    )
