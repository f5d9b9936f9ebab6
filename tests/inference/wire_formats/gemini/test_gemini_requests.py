"""Requests of generateContent: what is sent, by examples and held against the types that Google publishes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import BadRequest
from agentloop.inference import LLMConfig
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest, wire_format
from agentloop.values import (
    Audio,
    Document,
    ErrorInfo,
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
    ToolSpec,
    thaw,
    to_json,
)
from tests.inference.generated_requests import (
    assistant_messages,
    conversations,
    execution_of,
    inference_requests,
    system_messages,
    tool_exchanges,
    user_messages,
)

CONFIG = LLMConfig(model="m", base_url="https://gemini", wire_format="gemini", api_key="k", auth="x-goog-api-key")
HELLO = Message.user("hello")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PNG = "cG5n"
SIGNED = {"gemini": {"thoughtSignature": "c2lnbmVk"}}
SIGNATURE = {"thoughtSignature": "c2lnbmVk"}
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")


def made(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> EncodedRequest:
    """Encode a request."""
    return wire_format("gemini").encode_request(request, config, stream=stream)


def spelled(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Encode a request and parse what came of it."""
    body: dict[str, Any] = json.loads(made(request, config).body)
    return body


def contents_of(*messages: Message) -> list[dict[str, Any]]:
    """Encode a conversation and return its contents."""
    found: list[dict[str, Any]] = spelled(InferenceRequest(messages))["contents"]
    return found


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Join a call to an outcome."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def test_a_request_is_the_system_prompt_the_tools_the_contents_and_the_rest_in_this_order() -> None:
    """The body is compact JSON whose stable parts come first, byte by byte."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), ToolChoice.required(), options=InferenceOptions(seed=7))
    assert made(request).body == (
        b'{"systemInstruction":{"parts":[{"text":"Be kind."}]}'
        b',"tools":[{"functionDeclarations":[{"name":"add","description":"Add numbers.",'
        b'"parametersJsonSchema":{"type":"object","properties":{"a":{"type":"integer"}}}}]}]'
        b',"contents":[{"role":"user","parts":[{"text":"hello"}]}]'
        b',"toolConfig":{"functionCallingConfig":{"mode":"ANY"}},"generationConfig":{"seed":7}}'
    )


def test_what_is_not_asked_for_is_not_sent() -> None:
    """Defaults are left to the provider."""
    assert made(InferenceRequest((HELLO,))).body == b'{"contents":[{"role":"user","parts":[{"text":"hello"}]}]}'
    with_tools = spelled(InferenceRequest((HELLO,), tools=(ADD,), parallel_tool_calls=False))
    assert with_tools.keys() == {"tools", "contents"}
    assert spelled(InferenceRequest((HELLO,), "Be kind.")).keys() == {"systemInstruction", "contents"}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-flash", "/models/gemini-2.5-flash"),
        ("tunedModels/mine", "/tunedModels/mine"),
        ("publishers/google/models/gemini-2.5-flash", "/publishers/google/models/gemini-2.5-flash"),
        ("a b?c", "/models/a%20b%3Fc"),
    ],
)
def test_the_model_stands_in_the_path(model: str, path: str) -> None:
    """A plain name is one of the models; a path of one stays as it is; a stream is asked for as events."""
    request = InferenceRequest((HELLO,), options=InferenceOptions(model=model))
    assert made(request).path == f"{path}:generateContent"
    assert made(request, stream=True).path == f"{path}:streamGenerateContent?alt=sse"
    assert made(request, stream=True).body == made(request).body


def test_a_query_of_the_base_url_stays_beside_that_of_a_stream() -> None:
    """An address with a query of its own, as that of a gateway, keeps it."""
    path = made(InferenceRequest((HELLO,)), stream=True).path
    assert CONFIG.url(path) == "https://gemini/models/m:streamGenerateContent?alt=sse"
    gateway = CONFIG.with_settings(base_url="https://gateway/v1?tenant=a")
    assert gateway.url(path) == "https://gateway/v1/models/m:streamGenerateContent?alt=sse&tenant=a"
    assert gateway.url("/models/m:generateContent") == "https://gateway/v1/models/m:generateContent?tenant=a"


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (Text("so"), {"text": "so"}),
        (Text("so", provider_data=SIGNED), {"text": "so", **SIGNATURE}),
        (
            Image(media_type="image/png", data=b"png"),
            {"inlineData": {"mimeType": "image/png", "data": PNG}},
        ),
        (
            Audio(media_type="audio/wav", data=b"png"),
            {"inlineData": {"mimeType": "audio/wav", "data": PNG}},
        ),
        (
            Document(media_type="application/pdf", url="https://example.com/a.pdf"),
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.com/a.pdf"}},
        ),
        (Document(file_id="https://gemini/files/1"), {"fileData": {"fileUri": "https://gemini/files/1"}}),
    ],
)
def test_every_kind_of_content_is_sent(part: Text | Image | Audio | Document, sent: Mapping[str, object]) -> None:
    """Text and media by value and by reference are what Gemini calls them, from either side."""
    assert contents_of(Message.user(part)) == [{"role": "user", "parts": [sent]}]
    assert contents_of(Message.assistant(part)) == [{"role": "model", "parts": [sent]}]


def test_calls_are_one_content_followed_by_one_with_their_results() -> None:
    """What the model said and asked for stays together in its order; the results follow in the order of the calls."""
    message = Message.assistant(
        "so",
        exchange(ToolCall("c", "add", '{"a": 1}', provider_data=SIGNED), {"sum": 1}),
        exchange(ToolCall("", "add", '{"a": 2}'), error=ErrorInfo("ToolFailed", "no")),
        "and",
    )
    assert contents_of(HELLO, message, Message.user("thanks")) == [
        {"role": "user", "parts": [{"text": "hello"}]},
        {
            "role": "model",
            "parts": [
                {"text": "so"},
                {"functionCall": {"id": "c", "name": "add", "args": {"a": 1}}, **SIGNATURE},
                {"functionCall": {"name": "add", "args": {"a": 2}}},
                {"text": "and"},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c", "name": "add", "response": {"result": {"sum": 1}}}},
                {"functionResponse": {"name": "add", "response": {"error": "ToolFailed: no"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "thanks"}]},
    ]


def test_calls_of_another_provider_say_that_they_have_no_signature() -> None:
    """Some models refuse a turn whose first call is unsigned; Gemini's own messages stay as they came."""
    first, second = ToolCall("call_1", "add", '{"a": 1}'), ToolCall("call_2", "add", '{"a": 2}')
    foreign = Message.assistant("so", exchange(first, 1), exchange(second, 2))
    signatures = [part.get("thoughtSignature") for part in contents_of(foreign)[0]["parts"]]
    assert signatures == [None, "skip_thought_signature_validator", None]
    for own in (
        (exchange(ToolCall("", "add", '{"a": 1}'), 1), exchange(second, 2)),
        (Text("so", provider_data=SIGNED), exchange(first, 1)),
        (exchange(ToolCall("call_1", "add", provider_data=SIGNED), 1), exchange(second, 2)),
    ):
        assert "skip_thought" not in str(contents_of(Message.assistant(*own)))


def test_a_result_shows_what_stands_for_its_value() -> None:
    """Content that a tool puts before the model goes before its value: text as the result, media beside it."""
    call = ToolCall("", "draw")
    shown = execution_of(call).with_value({"size": 3}, [Text("drawn"), Image(media_type="image/png", data=b"png")])
    assert contents_of(Message.assistant(ToolExchange(call, shown)))[1]["parts"] == [
        {
            "functionResponse": {
                "name": "draw",
                "response": {"result": "drawn"},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
            }
        }
    ]


def test_what_gemini_signed_goes_back_where_it_came_from() -> None:
    """Signatures stay with their part, also with a text that is empty; parts that only Gemini knows stay as they are."""
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "Y29kZQ=="}
    message = Message.assistant(
        Reasoning("hm", provider_data=SIGNED), ProviderPart("gemini", code), "so", Text("", provider_data=SIGNED)
    )
    assert contents_of(message)[0]["parts"] == [
        {"text": "hm", "thought": True, **SIGNATURE},
        code,
        {"text": "so"},
        {"text": "", **SIGNATURE},
    ]


def test_what_other_providers_wrote_is_not_sent() -> None:
    """Thoughts without a signature of Gemini's, and parts and signatures of other providers, are left out."""
    other = {"anthropic-messages": {"signature": "x"}}
    message = Message.assistant(
        Reasoning("hm", provider_data=other),
        Reasoning("hm"),
        ProviderPart("anthropic-messages", {"type": "redacted_thinking"}),
        ProviderPart("gemini", "no part"),
        Text("so", provider_data=other),
    )
    assert contents_of(message) == [{"role": "model", "parts": [{"text": "so"}]}]


def test_empty_contents_are_left_out() -> None:
    """Gemini refuses texts and contents without anything in them."""
    assert contents_of(Message.user(""), Message.assistant(""), Message.assistant(), Message.user("", "so")) == [
        {"role": "user", "parts": [{"text": "so"}]}
    ]


def test_what_the_model_said_twice_in_a_row_is_one_content() -> None:
    """Gemini refuses a call that follows a content of the model's, and takes several of the user's in a row."""
    call = exchange(ToolCall("", "add"), 1)
    assert [
        (content["role"], len(content["parts"]))
        for content in contents_of(
            HELLO,
            HELLO,
            Message.assistant("a"),
            Message.user(""),
            Message.assistant("b", call),
            Message.assistant("c"),
            Message.assistant("d"),
            Message.assistant("e"),
        )
    ] == [("user", 1), ("user", 1), ("model", 3), ("user", 1), ("model", 3)]


def test_a_system_message_amid_the_conversation_is_said_by_the_user() -> None:
    """What stands before the conversation stays as it is when the system says more later."""
    request = InferenceRequest((HELLO, Message.system("hurry")), "Be kind.")
    assert spelled(request)["contents"][1] == {"role": "user", "parts": [{"text": "hurry"}]}
    assert spelled(request)["systemInstruction"] == {"parts": [{"text": "Be kind."}]}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice.auto(), None),
        (ToolChoice.required(), {"mode": "ANY"}),
        (ToolChoice.none(), {"mode": "NONE"}),
        (ToolChoice.specific("add"), {"mode": "ANY", "allowedFunctionNames": ["add"]}),
        (
            ToolChoice.specific("1 add"),
            {"mode": "ANY", "allowedFunctionNames": [wire_name("1 add", letter_first=True)]},
        ),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, sent: dict[str, object] | None) -> None:
    """Modes are what Gemini calls them."""
    config = spelled(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice)).get("toolConfig")
    assert config == (None if sent is None else {"functionCallingConfig": sent})
    assert "toolConfig" not in spelled(InferenceRequest((HELLO,), tool_choice=choice))


def test_tools_that_go_by_another_name_are_listed() -> None:
    """Names that Gemini refuses are made into others, which are told, so that calls come back under their own."""
    names = ["add", "1add", "-", "math.factorial", "x" * 65]
    request = InferenceRequest((HELLO,), tools=[ToolSpec(name, "", {"type": "object"}) for name in names])
    offered = [tool["name"] for tool in spelled(request)["tools"][0]["functionDeclarations"]]
    assert all(NAME.fullmatch(name) for name in offered)
    assert [made(request).tool_names.get(name, name) for name in offered] == names


@given(st.lists(st.text("a1-_.", max_size=5), max_size=8, unique=True))
@example(["1a", "_1a", wire_name("1a", letter_first=True)])
def test_different_tools_stay_different(names: list[str]) -> None:
    """No two tools go by one name."""
    assert len({wire_name(name, letter_first=True) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (ResponseFormat(), {"responseMimeType": "application/json"}),
        (
            ResponseFormat({"type": "object"}),
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
        ),
    ],
)
def test_the_response_format_is_sent(wanted: ResponseFormat, sent: dict[str, object]) -> None:
    """JSON is asked for by its MIME type, with the schema if there is one."""
    assert spelled(InferenceRequest((HELLO,), response_format=wanted))["generationConfig"] == sent


def test_options_are_what_gemini_calls_them() -> None:
    """Sampling and limits stand in one entry."""
    options = InferenceOptions(temperature=0.5, top_p=0.9, max_tokens=5, stop="END", seed=7, reasoning_effort="high")
    assert spelled(InferenceRequest((HELLO,), options=options))["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 5,
        "stopSequences": ["END"],
        "seed": 7,
        "thinkingConfig": {"thinkingLevel": "HIGH"},
    }


@pytest.mark.parametrize(
    ("effort", "sent"),
    [("none", {"thinkingBudget": 0}), ("minimal", {"thinkingLevel": "MINIMAL"}), ("max", {"thinkingLevel": "XHIGH"})],
)
def test_effort_is_a_published_level(effort: Any, sent: dict[str, object]) -> None:
    """No thinking is no budget for it; the most is the highest level there is."""
    request = InferenceRequest((HELLO,), options=InferenceOptions(reasoning_effort=effort))
    assert spelled(request)["generationConfig"] == {"thinkingConfig": sent}


def test_options_of_a_request_go_before_those_of_the_configuration() -> None:
    """Each option by itself; entries passed on as they are are put in among ours, also within an entry of ours."""
    config = CONFIG.with_settings(
        options=InferenceOptions(
            temperature=0.5,
            seed=1,
            reasoning_effort="none",
            extra={"generationConfig": {"topK": 3, "seed": 2}, "labels": {"a": "b"}},
        )
    )
    options = InferenceOptions(
        temperature=0.0,
        reasoning_effort="low",
        extra={"generationConfig": {"thinkingConfig": {"includeThoughts": True}}, "labels": {"c": "d"}},
    )
    body = spelled(InferenceRequest((HELLO,), options=options), config)
    assert body["generationConfig"] == {
        "temperature": 0.0,
        "seed": 2,
        "topK": 3,
        "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
    }
    assert body["labels"] == {"a": "b", "c": "d"}


@pytest.mark.parametrize("name", ["contents", "systemInstruction", "tools"])
def test_an_extra_entry_never_stands_beside_the_one_of_the_request(name: str) -> None:
    """What the request spells cannot be passed on as well; what it does not spell can."""
    options = InferenceOptions(extra={name: []})
    with pytest.raises(BadRequest, match=name):
        made(InferenceRequest((HELLO,), "Be kind.", (ADD,), options=options))
    if name != "contents":
        assert spelled(InferenceRequest((HELLO,), options=options))[name] == []


@st.composite
def gemini_messages(draw: st.DrawFn) -> Message:
    """Messages of the assistant as Gemini makes them, with signatures and parts of its own."""
    data = st.sampled_from([{}, SIGNED])
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    calls = st.builds(
        lambda made, data: ToolExchange(evolve(made.call, provider_data=data), made.execution), tool_exchanges(), data
    )
    part = st.one_of(
        st.builds(Text, st.text(), provider_data=data),
        st.builds(Reasoning, st.text(), provider_data=data),
        st.just(ProviderPart("gemini", code)),
        calls,
    )
    return Message.assistant(*draw(st.lists(part, max_size=5)))


requests = st.builds(
    lambda request, messages: evolve(
        request, messages=messages, options=evolve(request.options, extra={"labels": {"a": "b"}})
    ),
    inference_requests,
    st.lists(user_messages | system_messages | assistant_messages | gemini_messages(), max_size=6),
)


@given(requests)
def test_no_encoded_request_holds_a_call_without_its_result(request: InferenceRequest) -> None:
    """Law 2: each content with calls is followed by one with exactly their results, in order, and nothing else."""
    before = to_json(request)
    contents = spelled(request)["contents"]
    check_pairs(contents)
    sent = [part["functionCall"] for content in contents for part in content["parts"] if "functionCall" in part]
    calls = [made.call for message in request.messages for made in message.exchanges]
    assert [call["name"] for call in sent] == [wire_name(call.name, letter_first=True) for call in calls]
    assert [call.get("id", "") for call in sent] == [call.id for call in calls]
    assert to_json(request) == before


def check_pairs(contents: list[dict[str, Any]]) -> None:
    """Check that calls and results belong together, and that no call follows a content of the model's."""
    before: list[tuple[Any, Any]] = []
    role = "user"
    for content in contents:
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        assert [(result["name"], result.get("id")) for result in results] == before
        assert len(results) in {0, len(content["parts"])}
        assert (content["role"], role) != ("model", "model")
        role = content["role"]
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        before = [(call["name"], call.get("id")) for call in calls]
    assert not before


@given(
    conversation=st.lists(user_messages | system_messages | assistant_messages | gemini_messages(), max_size=6),
    system_prompt=st.text(),
    with_tools=st.booleans(),
    length=st.integers(0, 6),
)
@example(conversation=[Message.assistant("a"), Message.assistant("b")], system_prompt="", with_tools=True, length=1)
def test_the_segments_of_a_longer_request_extend_those_of_the_shorter(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: to go on with a conversation leaves the bytes before as they were, so that prompt caches serve them.

    Where the model goes on with what it said itself, its content is gone on with.
    """
    tools = (ADD,) if with_tools else ()
    shorter = made(InferenceRequest(tuple(conversation[:length]), system_prompt, tools)).body
    longer = made(InferenceRequest(tuple(conversation), system_prompt, tools)).body
    before, after = (json.loads(body)["contents"] for body in (shorter, longer))
    end = b"]}"
    if before and before[-1] != after[len(before) - 1]:
        assert before[-1]["role"] == after[len(before) - 1]["role"] == "model"
        end = b"]}]}"
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    going_on = longer[len(shorter) - len(end) :]
    assert going_on.startswith((end, b",")) or shorter.endswith(b'"contents":[]}')


@given(conversations)
def test_messages_and_tools_are_encoded_once(conversation: list[Message]) -> None:
    """Every configuration and both ways to answer share what was encoded."""
    for config in (CONFIG, CONFIG.with_settings(model="other")):
        for stream in (False, True):
            made(InferenceRequest(tuple(conversation), tools=(ADD,)), config, stream=stream)
    assert all(len(message._encodings) <= 1 for message in conversation)


@given(requests)
def test_a_request_is_what_googles_own_package_says_a_request_is(request: InferenceRequest) -> None:
    """Requests satisfy the types that Google publishes for them, which refuse entries that they do not know."""
    body = spelled(request)
    judge(body)
    for tool in body.get("tools", []):
        assert all(NAME.fullmatch(declared["name"]) for declared in tool["functionDeclarations"])


def judge(body: dict[str, Any]) -> None:
    """Validate every entry of a request by its type."""
    types = pytest.importorskip("google.genai.types", reason="google-genai is not installed")
    kinds = {
        "contents": types.Content,
        "tools": types.Tool,
        "systemInstruction": types.Content,
        "toolConfig": types.ToolConfig,
        "generationConfig": types.GenerationConfig,
    }
    assert body.keys() <= {*kinds, "labels"}
    for name, kind in kinds.items():
        held = body.get(name, [])
        for item in held if isinstance(held, list) else [held]:
            kind.model_validate(item)


def test_a_request_that_google_would_refuse_does_not_satisfy_its_types() -> None:
    """The judges of the tests above can say no."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    body = spelled(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    for damaged in (body["contents"][0]["parts"][0]["functionCall"], body["contents"][1]):
        damaged["arguments"] = "{}"
        with pytest.raises(pydantic.ValidationError):
            judge(body)
        del damaged["arguments"]
    judge(body)
    with pytest.raises(AssertionError):
        check_pairs(body["contents"][:1])


@given(st.lists(gemini_messages(), min_size=1, max_size=1))
def test_what_gemini_said_goes_back_as_it_came(messages: list[Message]) -> None:
    """An answer that is read and sent back is what was read, but for thoughts without a signature and empty texts."""
    for content in contents_of(*messages)[:1]:
        if content["role"] == "model" and not any("functionCall" in part for part in content["parts"]):
            body = json.dumps({"candidates": [{"content": content, "finishReason": "STOP"}]}).encode()
            again = wire_format("gemini").decode_response(200, {}, body)
            assert joined(contents_of(Message.of_response(again.parts, []))[0]["parts"]) == joined(content["parts"])


def joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join texts without a signature that follow each other."""
    return list(_joined(parts))


def _joined(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    before: dict[str, Any] | None = None
    for part in parts:
        if before is not None and before.keys() == part.keys() == {"text"}:
            before = {"text": before["text"] + part["text"]}
            continue
        if before is not None:
            yield before
        before = part
    if before is not None:
        yield before


def test_a_signed_call_goes_back_as_it_came() -> None:
    """So is a call with a signature, which the next request is refused without."""
    part = {"functionCall": {"id": "c", "name": "add", "args": {"a": 1}}, **SIGNATURE}
    body = json.dumps({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}).encode()
    (call,) = wire_format("gemini").decode_response(200, {}, body).tool_calls
    assert thaw(call.provider_data) == SIGNED
    assert contents_of(Message.assistant(exchange(call, 1)))[0]["parts"] == [part]
