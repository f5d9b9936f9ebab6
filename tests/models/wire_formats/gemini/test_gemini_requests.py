"""Tests of the encoding of requests for generateContent, also against the types that Google publishes."""

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
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.fields import wire_name
from agentloop.models.wire_formats.wire_format import EncodedRequest, wire_format
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
from tests.models.generated_requests import (
    assistant_messages,
    conversations,
    execution_of,
    inference_requests,
    system_messages,
    tool_exchanges,
    user_messages,
    without_unsupported,
)

CONFIG = LLMConfig(model="m", base_url="https://gemini", wire_format="gemini", api_key="k", auth="x-goog-api-key")
HELLO = Message.user("hello")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PNG = "cG5n"
SIGNED_DATA = {"gemini": {"thoughtSignature": "c2lnbmVk"}}
SIGNATURE = {"thoughtSignature": "c2lnbmVk"}
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")


def encode(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> EncodedRequest:
    """Encode a request."""
    return wire_format("gemini").encode_request(request, config, stream=stream)


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Return the parsed body of a request."""
    body: dict[str, Any] = json.loads(encode(request, config).body)
    return body


def encode_contents(*messages: Message) -> list[dict[str, Any]]:
    """Return the encoded contents of a conversation."""
    encoded: list[dict[str, Any]] = encode_json(InferenceRequest(messages))["contents"]
    return encoded


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def test_a_body_contains_prompt_tools_contents_and_options_in_this_order() -> None:
    """The body is compact JSON, whose stable parts come first."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), ToolChoice.required(), options=InferenceOptions(seed=7))
    assert encode(request).body == (
        b'{"systemInstruction":{"parts":[{"text":"Be kind."}]}'
        b',"tools":[{"functionDeclarations":[{"name":"add","description":"Add numbers.",'
        b'"parametersJsonSchema":{"type":"object","properties":{"a":{"type":"integer"}}}}]}]'
        b',"contents":[{"role":"user","parts":[{"text":"hello"}]}]'
        b',"toolConfig":{"functionCallingConfig":{"mode":"ANY"}},"generationConfig":{"seed":7}}'
    )


def test_unset_options_are_not_sent() -> None:
    """The provider's defaults apply to unset options."""
    assert encode(InferenceRequest((HELLO,))).body == b'{"contents":[{"role":"user","parts":[{"text":"hello"}]}]}'
    with_tools = encode_json(InferenceRequest((HELLO,), tools=(ADD,), parallel_tool_calls=True))
    assert with_tools.keys() == {"tools", "contents"}
    assert encode_json(InferenceRequest((HELLO,), "Be kind.")).keys() == {"systemInstruction", "contents"}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-flash", "/models/gemini-2.5-flash"),
        ("tunedModels/mine", "/tunedModels/mine"),
        ("publishers/google/models/gemini-2.5-flash", "/publishers/google/models/gemini-2.5-flash"),
        ("a b?c", "/models/a%20b%3Fc"),
    ],
)
def test_the_path_contains_the_model(model: str, path: str) -> None:
    """A plain name is a model, and a path is used unchanged; streams are requested as events."""
    request = InferenceRequest((HELLO,), options=InferenceOptions(model=model))
    assert encode(request).path == f"{path}:generateContent"
    assert encode(request, stream=True).path == f"{path}:streamGenerateContent?alt=sse"
    assert encode(request, stream=True).body == encode(request).body


def test_the_query_of_the_base_url_is_appended_to_that_of_a_stream() -> None:
    """A base URL with a query, such as that of a gateway, keeps it."""
    path = encode(InferenceRequest((HELLO,)), stream=True).path
    assert CONFIG.url(path) == "https://gemini/models/m:streamGenerateContent?alt=sse"
    gateway = CONFIG.with_settings(base_url="https://gateway/v1?tenant=a")
    assert gateway.url(path) == "https://gateway/v1/models/m:streamGenerateContent?alt=sse&tenant=a"
    assert gateway.url("/models/m:generateContent") == "https://gateway/v1/models/m:generateContent?tenant=a"


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (Text("so"), {"text": "so"}),
        (Text("so", provider_data=SIGNED_DATA), {"text": "so", **SIGNATURE}),
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
def test_every_kind_of_content_is_encoded(part: Text | Image | Audio | Document, sent: Mapping[str, object]) -> None:
    """Text and media, by value and by reference, are encoded for users and models."""
    assert encode_contents(Message.user(part)) == [{"role": "user", "parts": [sent]}]
    assert encode_contents(Message.assistant(part)) == [{"role": "model", "parts": [sent]}]


@pytest.mark.parametrize(
    ("part", "sent_type"),
    [
        (Image(media_type="image/jpg", data=b"x"), "image/jpeg"),
        (Image(media_type="image/heic", data=b"x"), "image/heic"),
        (Image(media_type="image/svg+xml", data=b"x"), None),
        (Audio(media_type="audio/x-wav", data=b"x"), "audio/wav"),
        (Audio(media_type="audio/midi", data=b"x"), None),
        (Document(media_type="video/webm", data=b"x"), "video/webm"),
        (Document(media_type="application/zip", data=b"x"), None),
        (Document(media_type="application/zip", url="https://example.com/a"), None),
        (Document(media_type="text/csv", url="https://example.com/a"), "text/csv"),
    ],
)
def test_a_medium_of_a_tool_is_sent_in_a_type_that_gemini_accepts(
    part: Image | Audio | Document, sent_type: str | None
) -> None:
    """Types have the names that Gemini documents; a note replaces a medium of another type."""
    call = ToolCall("", "look")
    exchanged = ToolExchange(call, execution_of(call).with_value(None, [part]))
    _, results, *following = encode_contents(Message.assistant(exchanged))
    assert ("cannot transmit it" in str(results)) is (sent_type is None)
    assert [next(iter(content["parts"][1].values()))["mimeType"] for content in following] == (
        [] if sent_type is None else [sent_type]
    )


def test_a_document_of_a_user_is_text_or_of_a_type_that_gemini_accepts() -> None:
    """The text of a document is sent as such; other types are refused by name, but those of images differ by model."""
    (content,) = encode_contents(Message.user(Document(media_type="text/markdown", data=b"# a", name="a.md")))
    assert content["parts"] == [{"text": '\n[text/markdown "a.md"]\n# a\n'}]
    with pytest.raises(BadRequest, match="does not support Document of type application/zip"):
        encode_contents(Message.user(Document(media_type="application/zip", data=b"x")))
    (content,) = encode_contents(Message.user(Image(media_type="image/gif", data=b"png")))
    assert content["parts"] == [{"inlineData": {"mimeType": "image/gif", "data": PNG}}]


def test_a_content_with_calls_is_followed_by_one_with_their_results() -> None:
    """Text and calls keep their order; the results follow in the order of the calls."""
    message = Message.assistant(
        "so",
        exchange(ToolCall("c", "add", '{"a": 1}', provider_data=SIGNED_DATA), {"sum": 1}),
        exchange(ToolCall("", "add", '{"a": 2}'), error=ErrorInfo("ToolFailed", "no")),
        "and",
    )
    assert encode_contents(HELLO, message, Message.user("thanks")) == [
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


@pytest.mark.parametrize("call_id", ["call_1", ""])
@pytest.mark.parametrize(
    ("model", "is_signed"),
    [
        ("gemini-3-pro-preview", True),
        ("publishers/google/models/gemini-3.5-flash", True),
        ("gemini-flash-latest", True),
        ("m", True),
        ("gemini-2.5-flash", False),
        ("models/gemini-2.0-flash", False),
    ],
)
def test_calls_without_a_signature_get_a_placeholder(model: str, call_id: str, *, is_signed: bool) -> None:
    """Models since Gemini 3 refuse a turn whose first call is unsigned; others take it as it is."""
    config = CONFIG.with_settings(model=model)
    first, second = ToolCall(call_id, "add", '{"a": 1}'), ToolCall("call_2", "add", '{"a": 2}')
    foreign = InferenceRequest((HELLO, Message.assistant("so", exchange(first, 1), exchange(second, 2))))
    contents = json.loads(encode(foreign, config).body)["contents"]
    signatures = [part.get("thoughtSignature") for part in contents[1]["parts"]]
    assert signatures == [None, "skip_thought_signature_validator" if is_signed else None, None]
    selected = InferenceRequest(foreign.messages, options=InferenceOptions(model=model))
    assert json.loads(encode(selected, CONFIG).body)["contents"] == contents


@pytest.mark.parametrize(("provider", "asks"), [("gemini", True), ("vertex", False)])
def test_the_calls_of_hosted_tools_are_asked_for_where_it_is_possible(provider: str, *, asks: bool) -> None:
    """The Gemini API combines its tools with functions in this way only; Vertex refuses the entry."""
    environment = {"GOOGLE_CLOUD_PROJECT": "p"}
    config = LLMConfig.parse(f"{provider}:gemini-3-pro", environment=environment, api_key="k")
    request = InferenceRequest((HELLO,), tools=(ADD,), options=InferenceOptions(hosted_tools=["web_search"]))
    body = json.loads(encode(request, config).body)
    assert body.get("toolConfig") == ({"includeServerSideToolInvocations": True} if asks else None)
    assert {"googleSearch": {}} in body["tools"]


def test_signed_messages_get_no_placeholder() -> None:
    """A message of the model itself is unchanged."""
    first, second = ToolCall("call_1", "add", '{"a": 1}'), ToolCall("call_2", "add", '{"a": 2}')
    for parts in (
        (Text("so", provider_data=SIGNED_DATA), exchange(first, 1)),
        (exchange(ToolCall("call_1", "add", provider_data=SIGNED_DATA), 1), exchange(second, 2)),
    ):
        assert "skip_thought" not in str(encode_contents(Message.assistant(*parts)))


def test_the_content_of_a_result_replaces_its_value() -> None:
    """The text of the content is the result, and media follow in a content of the user, which every model accepts."""
    call = ToolCall("", "draw")
    execution = execution_of(call).with_value({"size": 3}, [Text("drawn"), Image(media_type="image/png", data=b"png")])
    result = {"result": "drawn[image/png: in the next message of the user]"}
    assert encode_contents(Message.assistant(ToolExchange(call, execution)))[1:] == [
        {"role": "user", "parts": [{"functionResponse": {"name": "draw", "response": result}}]},
        {
            "role": "user",
            "parts": [
                {"text": "From the result of the tool draw:"},
                {"inlineData": {"mimeType": "image/png", "data": PNG}},
            ],
        },
    ]


def test_signatures_are_sent_back_with_their_parts() -> None:
    """Signatures stay with their part, even an empty text; opaque parts are unchanged."""
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "Y29kZQ=="}
    message = Message.assistant(
        Reasoning("hm", provider_data=SIGNED_DATA),
        ProviderPart("gemini", code),
        "so",
        Text("", provider_data=SIGNED_DATA),
    )
    assert encode_contents(message)[0]["parts"] == [
        {"text": "hm", "thought": True, **SIGNATURE},
        code,
        {"text": "so"},
        {"text": "", **SIGNATURE},
    ]


def test_data_of_other_providers_is_not_sent() -> None:
    """Unsigned thoughts, and parts and signatures of other providers, are dropped."""
    foreign_data = {"anthropic-messages": {"signature": "x"}}
    message = Message.assistant(
        Reasoning("hm", provider_data=foreign_data),
        Reasoning("hm"),
        ProviderPart("anthropic-messages", {"type": "redacted_thinking"}),
        ProviderPart("gemini", "no part"),
        Text("so", provider_data=foreign_data),
    )
    assert encode_contents(message) == [{"role": "model", "parts": [{"text": "so"}]}]


def test_empty_contents_are_not_sent() -> None:
    """Gemini refuses empty texts and contents."""
    assert encode_contents(Message.user(""), Message.assistant(""), Message.assistant(), Message.user("", "so")) == [
        {"role": "user", "parts": [{"text": "so"}]}
    ]


def test_consecutive_contents_of_the_model_are_merged() -> None:
    """Gemini refuses a call that follows a content of the model, and accepts consecutive contents of the user."""
    call = exchange(ToolCall("", "add"), 1)
    assert [
        (content["role"], len(content["parts"]))
        for content in encode_contents(
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


def test_a_system_message_within_the_conversation_has_the_role_of_the_user() -> None:
    """The bytes before the conversation do not change with later system messages."""
    request = InferenceRequest((HELLO, Message.system("hurry")), "Be kind.")
    assert encode_json(request)["contents"][1] == {"role": "user", "parts": [{"text": "hurry"}]}
    assert encode_json(request)["systemInstruction"] == {"parts": [{"text": "Be kind."}]}


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
    """The choices have Gemini's names."""
    config = encode_json(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice)).get("toolConfig")
    assert config == (None if sent is None else {"functionCallingConfig": sent})
    assert "toolConfig" not in encode_json(InferenceRequest((HELLO,), tool_choice=choice))


def test_the_encoded_request_lists_renamed_tools() -> None:
    """Names that Gemini refuses are encoded, and `tool_names` maps them back."""
    names = ["add", "1add", "-", "math.factorial", "x" * 65]
    request = InferenceRequest((HELLO,), tools=[ToolSpec(name, "", {"type": "object"}) for name in names])
    offered = [tool["name"] for tool in encode_json(request)["tools"][0]["functionDeclarations"]]
    assert all(NAME.fullmatch(name) for name in offered)
    assert [encode(request).tool_names.get(name, name) for name in offered] == names


@given(st.lists(st.text("a1-_.", max_size=5), max_size=8, unique=True))
@example(["1a", "_1a", wire_name("1a", letter_first=True)])
def test_different_names_stay_different(names: list[str]) -> None:
    """No two tools have the same encoded name."""
    assert len({wire_name(name, letter_first=True) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("response_format", "sent"),
    [
        (ResponseFormat(), {"responseMimeType": "application/json"}),
        (
            ResponseFormat({"type": "object"}),
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
        ),
    ],
)
def test_the_response_format_is_sent(response_format: ResponseFormat, sent: dict[str, object]) -> None:
    """JSON is requested by its MIME type, with the schema if there is one."""
    assert encode_json(InferenceRequest((HELLO,), response_format=response_format))["generationConfig"] == sent


def test_options_are_sent_under_the_names_of_gemini() -> None:
    """Sampling options and limits are sent in one entry."""
    options = InferenceOptions(temperature=0.5, top_p=0.9, max_tokens=5, stop="END", seed=7, reasoning_effort="high")
    assert encode_json(InferenceRequest((HELLO,), options=options))["generationConfig"] == {
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
def test_a_reasoning_effort_is_a_published_level(effort: Any, sent: dict[str, object]) -> None:
    """The effort `none` is a thinking budget of zero; unknown levels are mapped to the closest one."""
    request = InferenceRequest((HELLO,), options=InferenceOptions(reasoning_effort=effort))
    assert encode_json(request)["generationConfig"] == {"thinkingConfig": sent}


def test_options_of_a_request_override_those_of_the_configuration() -> None:
    """Options are merged individually; extra entries are merged with ours at every depth."""
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
    body = encode_json(InferenceRequest((HELLO,), options=options), config)
    assert body["generationConfig"] == {
        "temperature": 0.0,
        "seed": 2,
        "topK": 3,
        "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
    }
    assert body["labels"] == {"a": "b", "c": "d"}


@pytest.mark.parametrize("name", ["contents", "systemInstruction", "tools"])
def test_an_extra_entry_must_not_repeat_an_entry_of_the_body(name: str) -> None:
    """Duplicates are refused; entries that the request does not set are allowed."""
    options = InferenceOptions(extra={name: []})
    with pytest.raises(BadRequest, match=name):
        encode(InferenceRequest((HELLO,), "Be kind.", (ADD,), options=options))
    if name != "contents":
        assert encode_json(InferenceRequest((HELLO,), options=options))[name] == []


@st.composite
def gemini_messages(draw: st.DrawFn) -> Message:
    """Generate assistant messages as Gemini writes them, with signatures and opaque parts."""
    data = st.sampled_from([{}, SIGNED_DATA])
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    calls = st.builds(
        lambda exchange, data: ToolExchange(evolve(exchange.call, provider_data=data), exchange.execution),
        tool_exchanges(),
        data,
    )
    part = st.one_of(
        st.builds(Text, st.text(), provider_data=data),
        st.builds(Reasoning, st.text(), provider_data=data),
        st.just(ProviderPart("gemini", code)),
        calls,
    )
    return Message.assistant(*draw(st.lists(part, max_size=5)))


requests = st.builds(
    lambda request, messages: without_unsupported(
        evolve(request, messages=messages, options=evolve(request.options, extra={"labels": {"a": "b"}})),
        wire_format("gemini"),
        CONFIG,
    ),
    inference_requests,
    st.lists(user_messages | system_messages | assistant_messages | gemini_messages(), max_size=6),
)


@given(requests)
def test_no_encoded_request_contains_a_call_without_its_result(request: InferenceRequest) -> None:
    """Law 2: each content with calls is followed by one with exactly their results, in order."""
    before = to_json(request)
    contents = encode_json(request)["contents"]
    check_pairs(contents)
    sent = [part["functionCall"] for content in contents for part in content["parts"] if "functionCall" in part]
    calls = [exchange.call for message in request.messages for exchange in message.exchanges]
    assert [call["name"] for call in sent] == [wire_name(call.name, letter_first=True) for call in calls]
    assert [call.get("id", "") for call in sent] == [call.id for call in calls]
    assert to_json(request) == before


def check_pairs(contents: list[dict[str, Any]]) -> None:
    """Check that calls and results are paired, and that no two contents of the model are consecutive."""
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
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply.

    A content of the model that continues is extended itself.
    """
    tools = (ADD,) if with_tools else ()
    shorter = encode(InferenceRequest(tuple(conversation[:length]), system_prompt, tools)).body
    longer = encode(InferenceRequest(tuple(conversation), system_prompt, tools)).body
    before, after = (json.loads(body)["contents"] for body in (shorter, longer))
    end = b"]}"
    if before and before[-1] != after[len(before) - 1]:
        assert before[-1]["role"] == after[len(before) - 1]["role"] == "model"
        end = b"]}]}"
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    continuation = longer[len(shorter) - len(end) :]
    assert continuation.startswith((end, b",")) or shorter.endswith(b'"contents":[]}')


@given(conversations)
def test_messages_and_tools_are_encoded_once(conversation: list[Message]) -> None:
    """All configurations, and streamed and other requests, share encodings."""
    for config in (CONFIG, CONFIG.with_settings(model="other")):
        for stream in (False, True):
            encode(InferenceRequest(tuple(conversation), tools=(ADD,)), config, stream=stream)
    assert all(len(message._encodings) <= 1 for message in conversation)


@given(requests)
def test_requests_have_the_types_of_the_google_package(request: InferenceRequest) -> None:
    """Requests satisfy the types that Google publishes, which refuse unknown entries."""
    body = encode_json(request)
    check_request(body)
    for tool in body.get("tools", []):
        assert all(NAME.fullmatch(declared["name"]) for declared in tool.get("functionDeclarations", []))


def check_request(body: dict[str, Any]) -> None:
    """Validate the entries of a request against the types of Google's package."""
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
        entry = body.get(name, [])
        for item in entry if isinstance(entry, list) else [entry]:
            kind.model_validate(item)


def test_an_invalid_request_is_detected() -> None:
    """The checks of the tests above detect violations."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    body = encode_json(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    for damaged in (body["contents"][0]["parts"][0]["functionCall"], body["contents"][1]):
        damaged["arguments"] = "{}"
        with pytest.raises(pydantic.ValidationError):
            check_request(body)
        del damaged["arguments"]
    check_request(body)
    with pytest.raises(AssertionError):
        check_pairs(body["contents"][:1])


@given(st.lists(gemini_messages(), min_size=1, max_size=1))
def test_a_response_is_sent_back_unchanged(messages: list[Message]) -> None:
    """A decoded and encoded content equals the original, except for unsigned thoughts and empty texts."""
    for content in encode_contents(*messages)[:1]:
        if content["role"] == "model" and not any("functionCall" in part for part in content["parts"]):
            body = json.dumps({"candidates": [{"content": content, "finishReason": "STOP"}]}).encode()
            decoded = wire_format("gemini").decode_response(200, {}, body)
            assert with_joined_texts(
                encode_contents(Message.of_response(decoded.parts, []))[0]["parts"]
            ) == with_joined_texts(content["parts"])


def with_joined_texts(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts with consecutive unsigned texts joined."""
    return list(_joined_parts(parts))


def _joined_parts(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
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


def test_a_signed_call_is_sent_back_unchanged() -> None:
    """The provider refuses the next request without the signature."""
    part = {"functionCall": {"id": "c", "name": "add", "args": {"a": 1}}, **SIGNATURE}
    body = json.dumps({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}).encode()
    (call,) = wire_format("gemini").decode_response(200, {}, body).tool_calls
    assert thaw(call.provider_data) == SIGNED_DATA
    assert encode_contents(Message.assistant(exchange(call, 1)))[0]["parts"] == [part]
