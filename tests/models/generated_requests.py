"""Strategies for conversations and requests, including the irregularities of real models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from agentloop.errors import BadRequest, UnsupportedOption
from agentloop.models import LLMConfig, WireFormat
from agentloop.values import (
    Audio,
    Document,
    ErrorInfo,
    HostedTool,
    Image,
    InferenceOptions,
    InferenceRequest,
    Message,
    ProviderPart,
    Reasoning,
    ResponseFormat,
    Text,
    ToolCall,
    ToolChoice,
    ToolExchange,
    ToolExecution,
    ToolSpec,
)

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)

call_ids = st.sampled_from(["", "", "a", "b", "call_0", "call_1", "a_1", "a_1_1", "toolu_01"])
"""Call ids as models send them: unique, missing or repeated, and some that look like derived ids."""

MALFORMED_ARGUMENTS = ('{"a": 1', "[1]", '"text"', "5", "true", "add(1)", '{"a": NaN}', "{'a': 1}", "{}{}", '{"a": 1}}')
arguments = st.one_of(
    json_objects.map(json.dumps),
    st.sampled_from(["", " ", "null", ' {"a": 1} ', '{\n"a":\t[1, 2]\n}']),
    st.sampled_from(MALFORMED_ARGUMENTS),
)

tool_names = st.one_of(
    st.sampled_from(["add", "math.factorial", "a b", "Zähler", "x" * 64, "x" * 65, "__12345678", ""]),
    st.text(max_size=80),
)
tool_calls = st.builds(ToolCall, call_ids, tool_names, arguments)


def execution_of(call: ToolCall, *, value: object = None, error: ErrorInfo | None = None) -> ToolExecution:
    """Return the execution of a call."""
    return ToolExecution(
        id="e",
        key="k",
        call=call,
        status="failed" if error else "succeeded",
        value=value,
        error=error,
        started_at=MOMENT,
        ended_at=MOMENT,
    )


@st.composite
def tool_exchanges(draw: st.DrawFn) -> ToolExchange:
    """Generate a call with its execution."""
    call = draw(tool_calls)
    if draw(st.booleans()):
        return ToolExchange(call, execution_of(call, value=draw(json_values)))
    return ToolExchange(call, execution_of(call, error=ErrorInfo("ToolFailed", draw(st.text()))))


media = st.one_of(
    st.builds(Image, media_type=st.just("image/png"), data=st.binary()),
    st.builds(Image, url=st.just("https://example.com/a.png")),
    st.builds(Audio, media_type=st.sampled_from(["audio/wav", "audio/x-wav", "audio/mpeg"]), data=st.binary()),
    st.builds(Document, media_type=st.just("application/pdf"), data=st.binary(), name=st.text(max_size=9)),
    st.builds(Document, file_id=st.just("file-1")),
)
user_messages = st.lists(st.text() | media, max_size=3).map(lambda parts: Message.user(*parts))
system_messages = st.lists(st.text(), max_size=2).map(lambda parts: Message.system(*parts))
assistant_messages = st.lists(
    st.one_of(
        st.builds(Text, st.text()),
        st.builds(Reasoning, st.text()),
        tool_exchanges(),
        st.builds(ProviderPart, st.just("anthropic-messages"), json_values),
    ),
    max_size=5,
).map(lambda parts: Message.assistant(*parts))
conversations = st.lists(user_messages | system_messages | assistant_messages, max_size=6)

tool_specs: st.SearchStrategy[Sequence[ToolSpec]] = st.lists(
    st.builds(
        ToolSpec,
        tool_names,
        st.text(),
        st.sampled_from(
            [{"type": "object", "properties": {}}, {"type": "object", "properties": {"a": {"type": "integer"}}}]
        ),
    ),
    max_size=4,
    unique_by=lambda spec: spec.name,
)
tool_choices = st.one_of(
    st.sampled_from([ToolChoice.auto(), ToolChoice.required(), ToolChoice.none()]), tool_names.map(ToolChoice.specific)
)
response_formats = st.one_of(
    st.none(),
    st.just(ResponseFormat()),
    st.builds(ResponseFormat, st.just({"type": "object"}), tool_names, st.booleans()),
)
hosted_tools = st.one_of(
    st.builds(HostedTool.web_search, allowed_domains=st.sampled_from([(), ("example.com",)])),
    st.builds(HostedTool.web_search, max_uses=st.none() | st.integers(1, 9)),
    st.builds(HostedTool.code_execution),
    st.builds(HostedTool.file_search, st.just("store_1"), max_results=st.none() | st.integers(1, 9)),
)
options = st.builds(
    InferenceOptions,
    model=st.none() | st.just("another"),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 10**6),
    stop=st.lists(st.text(min_size=1), max_size=4).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    reasoning_effort=st.none() | st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    hosted_tools=st.lists(hosted_tools, max_size=2),
    logprobs=st.booleans(),
    top_logprobs=st.none() | st.integers(0, 20),
    extra=st.sampled_from([{}, {"user": "me"}, {"metadata": {"a": "b"}}]),
)
inference_requests = st.builds(
    InferenceRequest,
    conversations,
    st.text(),
    tool_specs,
    tool_choices,
    st.none() | st.booleans(),
    response_formats,
    options,
)


def without_unsupported(request: InferenceRequest, wire_format: WireFormat, config: LLMConfig) -> InferenceRequest:
    """Return the request without the options that a wire format refuses."""
    while True:
        try:
            wire_format.encode_request(request, config)
        except UnsupportedOption as error:
            request = _without(request, error.option)
        except BadRequest:  # for something else
            return request
        else:
            return request


def _without(request: InferenceRequest, option: str) -> InferenceRequest:
    """Return the request with the default of an option that it sets."""
    owner = request if hasattr(request, option) else request.options
    default = getattr(InferenceRequest(()) if owner is request else InferenceOptions(), option)
    assert getattr(owner, option) != default
    changed: Any = evolve(owner, **{option: default})
    return changed if owner is request else request.with_options(changed)
