"""Tests of the encoding of requests for the Converse API, checked by the service model that botocore ships."""

from __future__ import annotations

import base64
import json
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import BadRequest, ConfigurationError, UnsupportedOption
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import EncodedRequest, wire_format
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
    ToolSpec,
    to_json,
)
from agentloop.values.tool_calls import MALFORMED
from tests.models.generated_requests import (
    assistant_messages,
    execution_of,
    system_messages,
    tool_choices,
    tool_specs,
    user_messages,
)
from tests.models.wire_formats.bedrock_converse.aws_model import problems

CONFIG = LLMConfig(model="m", base_url="https://bedrock", wire_format="bedrock-converse")
ADD = ToolSpec("add", "Add numbers.", {"properties": {"a": {"type": "integer"}}})
ADD_ENCODED = {
    "toolSpec": {
        "name": "add",
        "description": "Add numbers.",
        "inputSchema": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
}
CALL = ToolCall("tooluse_1", "add", '{"a": 1}')
PNG = Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
PDF = Document(media_type="application/pdf", data=b"%PDF-1.7", name="Q3 report.pdf")
SIGNED = Reasoning("hm", provider_data={"bedrock-converse": {"signature": "sig"}})
CACHE_POINT = {"cachePoint": {"type": "default"}}


def encode(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> EncodedRequest:
    """Encode a request."""
    return wire_format("bedrock-converse").encode_request(request, config, stream=stream)


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Return the parsed body of a request, which is valid."""
    body: dict[str, Any] = json.loads(encode(request, config).body)
    assert not problems(body)
    return body


def encode_messages(*messages: Message, tools: tuple[ToolSpec, ...] = (ADD,)) -> list[dict[str, Any]]:
    """Return the encoded messages of a conversation."""
    encoded: list[dict[str, Any]] = encode_json(InferenceRequest(messages, tools=tools))["messages"]
    return encoded


def exchange(call: ToolCall = CALL, value: object = 2, **execution: Any) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, evolve(execution_of(call, value=value), **execution))


def user(*content: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": list(content)}


def test_a_body_contains_tools_prompt_messages_and_options_in_this_order() -> None:
    """The stable parts come first; the model is in the path."""
    options = InferenceOptions(temperature=0.5, top_p=0.9, max_tokens=10, stop=("end",), reasoning_effort="minimal")
    request = InferenceRequest((Message.user("hello"),), "Be brief.", (ADD,), ToolChoice.required(), options=options)
    encoded = encode(request)
    assert (
        json.loads(encoded.body)
        == encode_json(request)
        == {
            "toolConfig": {"tools": [ADD_ENCODED], "toolChoice": {"any": {}}},
            "system": [{"text": "Be brief."}],
            "messages": [user({"text": "hello"})],
            "inferenceConfig": {"maxTokens": 10, "temperature": 0.5, "topP": 0.9, "stopSequences": ["end"]},
            "outputConfig": {"effort": "low"},
        }
    )
    assert list(json.loads(encoded.body)) == ["toolConfig", "system", "messages", "inferenceConfig", "outputConfig"]


@pytest.mark.parametrize(
    ("model", "segment"),
    [
        ("us.amazon.nova-lite-v1:0", "us.amazon.nova-lite-v1%3A0"),
        (
            "arn:aws:bedrock:us-east-1::foundation-model/a.b",
            "arn%3Aaws%3Abedrock%3Aus-east-1%3A%3Afoundation-model%2Fa.b",
        ),
    ],
)
def test_the_model_is_one_segment_of_the_path(model: str, segment: str) -> None:
    """A request for a stream has a path and an `accept` of its own; the model of a request overrides the configured one."""
    request = InferenceRequest((), options=InferenceOptions(model=model))
    encoded, streamed = encode(request), encode(request, stream=True)
    assert (encoded.path, streamed.path) == (f"/model/{segment}/converse", f"/model/{segment}/converse-stream")
    assert (encoded.headers, streamed.headers) == ({}, {"accept": "application/vnd.amazon.eventstream"})
    assert encoded.body == streamed.body


def test_calls_and_results_alternate_with_the_messages_of_the_user() -> None:
    """Results and the message after them are one message; an error has a status; reasoning goes back with its signature."""
    failed = ToolCall("tooluse_2", "add", "{")
    turn = Message.assistant(
        SIGNED,
        Text("I add."),
        exchange(value={"sum": 2}),
        ToolExchange(failed, execution_of(failed, error=ErrorInfo("ToolFailed", "no"))),
    )
    assert encode_messages(Message.user("go"), turn, Message.user("and?"), Message.system("Hurry.")) == [
        user({"text": "go"}),
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "sig"}}},
                {"text": "I add."},
                {"toolUse": {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 1}}},
                {"toolUse": {"toolUseId": "tooluse_2", "name": "add", "input": {MALFORMED: "{"}}},
            ],
        },
        user(
            {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": '{"sum":2}'}]}},
            {"toolResult": {"toolUseId": "tooluse_2", "content": [{"text": "ToolFailed: no"}], "status": "error"}},
            {"text": "and?"},
            {"text": "Hurry."},
        ),
    ]


def test_what_other_providers_wrote_is_left_out() -> None:
    """Unsigned reasoning, reasoning at the end, blank texts and parts of other formats are refused by the provider."""
    own = {"toolUse": {"toolUseId": "s", "name": "search", "input": {}, "type": "server_tool_use"}}
    turn = Message.assistant(
        Reasoning("unsigned"), Text(" "), ProviderPart("gemini", own), ProviderPart("bedrock-converse", own), SIGNED
    )
    assert encode_messages(turn, Message.user("")) == [{"role": "assistant", "content": [own]}]


def test_without_offered_tools_calls_and_results_are_text() -> None:
    """The provider refuses calls without tools, and cannot forbid calls if there are tools."""
    server_call = ProviderPart("bedrock-converse", {"toolUse": {"toolUseId": "s", "name": "x", "input": {}}})
    messages = (Message.user("go"), Message.assistant("I add.", exchange(value="two"), server_call))
    expected = [
        user({"text": "go"}),
        {"role": "assistant", "content": [{"text": "I add."}, {"text": '[call of add: {"a": 1}]'}]},
        user({"text": "[result of add]"}, {"text": "two"}),
    ]
    assert encode_json(InferenceRequest(messages)) == {"messages": expected}
    assert encode_json(InferenceRequest(messages, tools=(ADD,), tool_choice=ToolChoice.none())) == {
        "messages": expected
    }
    provided = InferenceOptions(extra={"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}})
    assert "toolUse" in json.dumps(encode_json(InferenceRequest(messages, options=provided))["messages"])


@pytest.mark.parametrize(
    ("choice", "encoded"),
    [
        (ToolChoice.auto(), None),
        (ToolChoice.required(), {"any": {}}),
        (ToolChoice.specific("add"), {"tool": {"name": "add"}}),
        (ToolChoice.specific("a.b"), {"tool": {"name": "a_b__2e7336dc"}}),
    ],
)
def test_a_tool_choice_is_part_of_the_tool_configuration(choice: ToolChoice, encoded: Any) -> None:
    """Names that the provider refuses are encoded."""
    body = encode_json(InferenceRequest((), tools=(ADD, ToolSpec("a.b", "", {})), tool_choice=choice))
    names = [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]]
    assert body["toolConfig"].get("toolChoice") == encoded
    assert names[0] == "add"
    assert encode(InferenceRequest((), tools=(ToolSpec("a.b", "", {}),))).tool_names == {names[1]: "a.b"}


def test_media_are_sent_by_value_or_from_s3() -> None:
    """Each medium has the name of its format; videos are documents."""
    media: list[Image | Audio | Document] = [
        PNG,
        Image(url="s3://bucket/cat.jpg"),
        Document(media_type="video/mp4", data=b"mp4"),
        Document(media_type="text/x-python; charset=utf-8", data=b"1", name="a.py"),
        Audio(media_type="audio/mpeg", data=b"mp3"),
    ]
    assert encode_messages(Message.user("look", *media)) == [
        user(
            {"text": "look"},
            {"image": {"format": "png", "source": {"bytes": base64.b64encode(PNG.data or b"").decode()}}},
            {"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/cat.jpg"}}}},
            {"video": {"format": "mp4", "source": {"bytes": "bXA0"}}},
            {"document": {"format": "txt", "source": {"bytes": "MQ=="}, "name": "a-py"}},
            {"audio": {"format": "mp3", "source": {"bytes": "bXAz"}}},
        )
    ]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (
            Image(url="https://host/a.png"),
            r"does not support Image by a URL that is not s3://…, which a message of the user",
        ),
        (Image(file_id="f", media_type="image/png"), r"does not support Image by file id"),
        (Image(media_type="image/tiff", data=b"II*\0"), r"does not support Image of type image/tiff"),
        (Document(media_type="application/zip", data=b"PK"), r"does not support Document of type application/zip"),
        (Document(url="s3://bucket/unknown"), r"does not support Document of type \(unknown\)"),
    ],
)
def test_other_media_of_a_user_are_refused(part: Any, problem: str) -> None:
    """The error names part and container."""
    with pytest.raises(BadRequest, match=problem):
        encode(InferenceRequest((Message.user("look", part),)))


def test_media_of_an_assistant_are_refused() -> None:
    """The API accepts them from users only."""
    with pytest.raises(BadRequest, match="does not support Image in an assistant message"):
        encode(InferenceRequest((Message.assistant(PNG),)))


def test_pictures_and_documents_of_a_tool_are_in_its_result() -> None:
    """A medium that cannot be sent is described; a result without content has its status."""
    audio = Audio(media_type="audio/wav", data=b"RIFF")
    turn = Message.assistant(
        exchange(content=(Text("see"), PNG, PDF, audio)), exchange(ToolCall("t2", "add"), content=(Text(""),))
    )
    first, second = encode_messages(turn)[1]["content"]
    assert [next(iter(block)) for block in first["toolResult"]["content"]] == ["text", "image", "document", "text"]
    assert first["toolResult"]["content"][3] == {"text": "[audio/wav: this API cannot transmit it]"}
    assert second["toolResult"]["content"] == [{"text": "succeeded"}]


def test_documents_have_unique_names_that_bedrock_accepts() -> None:
    """A name that is used already gets the position of its message, which does not change when the conversation grows."""
    nameless = Document(media_type="application/pdf", data=b"%PDF")
    messages = [Message.user("a", PDF, PDF), Message.user(nameless), Message.assistant("ok"), Message.user("b", PDF)]
    for length in (2, 4):
        encoded = encode_messages(*messages[:length])
        names = [block["document"]["name"] for turn in encoded for block in turn["content"] if "document" in block]
        assert names == ["Q3 report-pdf", "Q3 report-pdf-0", "document", "Q3 report-pdf-3"][: 3 if length == 2 else 4]
    # A document needs a text beside it.
    assert encode_messages(Message.user(nameless))[0]["content"][0] == {"text": "document"}
    # One that becomes text needs no name.
    linked = Document(media_type="application/ld+json", data=b"{}", name="other")
    _, block = encode_messages(Message.user(linked, PDF))[0]["content"]
    assert block["document"]["name"] == "Q3 report-pdf"


def test_call_ids_are_unique_in_a_conversation() -> None:
    """An id that an earlier turn used, is missing or cannot be sent is replaced."""
    ids = ["a", "a", "", "x" * 80, "é"]
    turns = [Message.assistant(*[exchange(ToolCall(call_id, "add")) for call_id in ids]) for _ in range(2)]
    encoded = encode_messages(*turns)
    sent = [block["toolUse"]["toolUseId"] for turn in encoded for block in turn["content"] if "toolUse" in block]
    returned = [b["toolResult"]["toolUseId"] for turn in encoded for b in turn["content"] if "toolResult" in b]
    assert len(set(sent)) == 10
    assert sent == returned


def test_cache_points_follow_tools_prompt_and_the_last_messages_of_the_user() -> None:
    """There are four at most, and the last one of a request is in the next request, too."""
    options = InferenceOptions(cache_prompt=True)
    body = encode_json(InferenceRequest((Message.user("a"), Message.user("b")), "Be brief.", (ADD,), options=options))
    assert body["toolConfig"]["tools"] == [ADD_ENCODED, CACHE_POINT]
    assert body["system"] == [{"text": "Be brief."}, CACHE_POINT]
    assert body["messages"] == [user({"text": "a"}, {"text": "b"}, CACHE_POINT)]
    turns = [message for n in range(3) for message in (Message.user(f"u{n}"), Message.assistant(f"a{n}"))]
    config = evolve(CONFIG, options=options)
    for length, cached in ((1, ["u0"]), (3, ["u0", "u1"]), (5, ["u1", "u2"])):
        sent = encode_json(InferenceRequest(turns[:length]), config)["messages"]
        assert [turn["content"][0]["text"] for turn in sent if CACHE_POINT in turn["content"]] == cached
    assert encode_json(InferenceRequest(turns[1:2]), config) == {
        "messages": [{"role": "assistant", "content": [{"text": "a0"}]}]
    }


def test_a_response_format_is_a_closed_schema_as_text() -> None:
    """It does not replace the effort beside it."""
    schema = {"type": "object", "properties": {"a": {"type": "object"}}}
    options = InferenceOptions(reasoning_effort="high")
    body = encode_json(InferenceRequest((), response_format=ResponseFormat(schema, "my answer"), options=options))
    definition = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert body["outputConfig"]["effort"] == "high"
    assert body["outputConfig"]["textFormat"]["type"] == "json_schema"
    assert json.loads(definition["schema"]) == {
        "type": "object",
        "properties": {"a": {"type": "object", "additionalProperties": False}},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"options": InferenceOptions(seed=1)}, "seed"),
        ({"options": InferenceOptions(reasoning_effort="none")}, "reasoning_effort=none"),
        ({"parallel_tool_calls": False, "tools": (ADD,)}, "parallel_tool_calls=False"),
        ({"response_format": ResponseFormat()}, "response_format=any JSON object"),
    ],
)
def test_options_that_converse_lacks_are_refused(changes: dict[str, Any], option: str) -> None:
    """The error names the option; nothing is dropped."""
    with pytest.raises(UnsupportedOption, match=f"Converse has no equivalent of the option {option}; "):
        encode(InferenceRequest((), **changes))
    assert encode_json(InferenceRequest((), parallel_tool_calls=True, tools=(ADD,)))["toolConfig"]


def test_system_tools_are_offered_beside_other_tools() -> None:
    """Bedrock runs them itself; without tools of one's own, calls of the conversation are still calls."""
    own = {"systemTool": {"name": "nova_grounding"}}
    options = InferenceOptions(hosted_tools=["web_search", HostedTool.of("bedrock-converse", own)])
    messages = (Message.assistant(exchange()),)
    body = encode_json(InferenceRequest(messages, tools=(ADD,), options=options))
    assert body["toolConfig"]["tools"] == [ADD_ENCODED, own, own]
    body = encode_json(InferenceRequest(messages, options=options))
    assert body["toolConfig"] == {"tools": [own, own]}
    assert "toolUse" in body["messages"][0]["content"][0]
    with pytest.raises(UnsupportedOption, match=r"hosted_tools=web_search.max_uses; leave out max_uses"):
        encode(InferenceRequest((), options=InferenceOptions(hosted_tools=[HostedTool.web_search(max_uses=2)])))


def test_extra_entries_are_merged_and_override_options() -> None:
    """Those of the request come last; the entries of the request itself cannot be repeated."""
    configured = InferenceOptions(
        temperature=1.0, extra={"inferenceConfig": {"topP": 0.5}, "serviceTier": {"type": "flex"}}
    )
    options = InferenceOptions(max_tokens=5, extra={"additionalModelRequestFields": {"top_k": 3}})
    body = encode_json(InferenceRequest((), options=options), evolve(CONFIG, options=configured))
    assert body == {
        "messages": [],
        "inferenceConfig": {"temperature": 1.0, "topP": 0.5, "maxTokens": 5},
        "serviceTier": {"type": "flex"},
        "additionalModelRequestFields": {"top_k": 3},
    }
    for name in ("messages", "system", "toolConfig"):
        with pytest.raises((BadRequest, ConfigurationError), match=f"options.extra contains {name}"):
            encode(InferenceRequest((), "p", (ADD,), options=InferenceOptions(extra={name: []})))


# --- laws ------------------------------------------------------------------------------------------------------------

sendable_media = st.one_of(
    st.builds(Image, media_type=st.just("image/png"), data=st.binary(min_size=1)),
    st.builds(Audio, media_type=st.just("audio/wav"), data=st.binary(min_size=1)),
    st.builds(Document, media_type=st.just("application/pdf"), data=st.binary(min_size=1), name=st.text(max_size=250)),
)
users = st.lists(st.text() | sendable_media, max_size=3).map(lambda parts: Message.user(*parts))
conversations = st.lists(users | system_messages | assistant_messages, max_size=6)
sampling = st.builds(
    InferenceOptions,
    temperature=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 10**6),
    reasoning_effort=st.none() | st.sampled_from(["minimal", "low", "medium", "high", "xhigh", "max"]),
    cache_prompt=st.booleans(),
)
requests = st.builds(
    InferenceRequest,
    conversations,
    st.text(),
    tool_specs,
    tool_choices.filter(lambda choice: choice.kind != "specific" or bool(choice.name)),
    st.none() | st.just(value=True),
    st.none() | st.builds(ResponseFormat, st.just({"type": "object"})),
    sampling,
)


@given(requests)
def test_requests_are_valid_for_botocore(request: InferenceRequest) -> None:
    """Every request satisfies the service model, and encoding does not change it."""
    before = to_json(request)
    encode_json(request)
    assert to_json(request) == before


def test_the_check_of_requests_detects_violations() -> None:
    """Unknown entries, wrong values, bad names and missing parts are found."""
    wrong: list[dict[str, Any]] = [
        {"text": 5},
        {"texts": ""},
        {"toolUse": {"toolUseId": "a b", "name": "n", "input": {}}},
        {"image": {}},
    ]
    for block in wrong:
        assert problems({"messages": [user(block)]})
    assert problems({"messages": [{"role": "tool", "content": []}]})


@given(requests)
def test_calls_and_results_are_paired_and_roles_alternate(request: InferenceRequest) -> None:
    """Law 2: the results of each turn are in the next message; nothing blank or empty is sent."""
    messages = encode_json(request)["messages"]
    roles = [message["role"] for message in messages]
    assert all(one != other for one, other in pairwise(roles))
    for message, following in pairwise([*messages, {"content": []}]):
        ids = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        results = [block["toolResult"]["toolUseId"] for block in following["content"] if "toolResult" in block]
        assert not ids or ids == results
        assert message["content"]
        assert all(block["text"].strip() for block in message["content"] if "text" in block)
    calls = [
        block["toolUse"]["toolUseId"] for message in messages for block in message["content"] if "toolUse" in block
    ]
    offered = request.tools and request.tool_choice.kind != "none"
    assert len(set(calls)) == (sum(len(message.exchanges) for message in request.messages) if offered else 0)


@given(conversation=conversations, length=st.integers(0, 6))
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(conversation: list[Message], length: int) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply."""
    shorter, longer = (
        encode(InferenceRequest(tuple(part), "Be brief.", (ADD,))).body
        for part in (conversation[:length], conversation)
    )
    # The last message may be continued.
    start = shorter.removesuffix(b"]}").removesuffix(b"]}")
    assert longer.startswith(start)


@given(conversation=st.lists(user_messages | assistant_messages, max_size=4))
def test_any_conversation_is_encoded_or_refused(conversation: list[Message]) -> None:
    """Media that Converse lacks are a typed error."""
    has_references = any(getattr(part, "data", b"") is None for message in conversation for part in message.parts)
    with pytest.raises(BadRequest, match="Converse does not support") if has_references else nullcontext():
        encode_json(InferenceRequest(conversation, tools=(ADD,)))
