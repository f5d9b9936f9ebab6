"""Tests of the gate that holds the tools of a request to what an API accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool
from agentloop.contracts.can_infer import LeftOutTool
from agentloop.errors import BadRequest
from agentloop.events import ToolLeftOut
from agentloop.models import tool_gate
from agentloop.models.tool_gate import ToolGate, gate_tool
from agentloop.models.tool_keys import KeyTranslation
from agentloop.models.tool_limits import ROWS, ToolLimits, tool_limits
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.tools.validation import SchemaValidator
from agentloop.values import InferenceRequest, Message, ToolChoice
from agentloop.values.json import freeze, thaw
from agentloop.values.policies import RetryPolicy
from agentloop.values.schema_drafts import all_schemas, schema_problem
from agentloop.values.tool_calls import Effect, ToolSpec

KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
QUESTION = Message.user("Go.")
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def spec(parameters: Mapping[str, Any], name: str = "odd") -> ToolSpec:
    """A tool with these parameters."""
    return ToolSpec(name, "Do it.", parameters, Effect.PURE)


def translation(parameters: Mapping[str, Any]) -> KeyTranslation:
    """The translation of a schema for keys as Anthropic accepts them."""
    found = KeyTranslation.of(parameters, KEY, 64)
    assert found is not None
    return found


# --- the rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_limit_has_a_source(row: ToolLimits) -> None:
    """Every cell of the table that says something names where it is written or was reported."""
    unset = ToolLimits(name="")
    told = [each.name for each in fields(ToolLimits) if each.name not in {"name", "sources"}]
    stated = {name for name in told if getattr(row, name) != getattr(unset, name)}
    assert stated - {"names"} <= row.sources.keys()
    assert all(source.startswith("https://") for source in row.sources.values())


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_each_wire_format_has_a_row(name: str) -> None:
    """Whatever is built in is held to a row; formats of others are not."""
    assert tool_limits("", name) is not None
    assert tool_limits("", "of-another-distribution") is None


def test_the_page_has_the_table() -> None:
    """The documentation lists the rows as they are."""
    lines = ["| API | Keys | Tools | Description | Refused at the top level |", "|---|---|---|---|---|"]
    for row in ROWS:
        top = ", ".join([f"`{keyword}`" for keyword in row.top_level]) or "none"
        keys = f"`{row.keys}`" if row.keys else "any"
        cells = [keys, str(row.max_tools or "any"), f"{row.max_description:,}" if row.max_description else "any", top]
        lines.append(f"| `{row.name}` | {' | '.join(cells)} |")
    assert "\n".join(lines) in PAGE.read_text()


# --- keys ---------------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["$top", "top", "filter[id]", "filter_id", "a", "名前", "key", "@odata.type", "x" * 70, "x" * 64]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda properties, required: {"type": "object", "properties": properties, "required": required},
            st.dictionaries(KEYS, inner, max_size=3),
            st.lists(KEYS, max_size=2, unique=True),
        ),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda items: {"type": "array", "prefixItems": items}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda item: {"type": "object", "additionalProperties": item}, inner),
        st.builds(lambda key: {"dependentRequired": {key: [key]}}, KEYS),
    )


SCHEMAS = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, True, {"$ref": "#/$defs/d"}, {}]), _objects, max_leaves=6
)
PARAMETERS = st.builds(
    lambda properties, definition: {"type": "object", "properties": properties, "$defs": {"d": definition}},
    st.dictionaries(KEYS, SCHEMAS, min_size=1, max_size=3),
    st.builds(
        lambda properties: {"type": "object", "properties": properties}, st.dictionaries(KEYS, SCHEMAS, max_size=2)
    ),
)
DATA = st.recursive(
    st.integers(0, 9) | st.sampled_from(["a", 'quo"te', "{", "\\"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def keys_of(schema: Any) -> set[str]:
    """All names of properties in a schema, also in data and where a walk of the library would not look."""
    if isinstance(schema, Mapping):
        own = set(schema["properties"]) if isinstance(schema.get("properties"), Mapping) else set()
        return own.union(*map(keys_of, schema.values()))
    return set().union(*map(keys_of, schema)) if isinstance(schema, tuple | list) else set()


def refusal(spec: ToolSpec, row: ToolLimits) -> str:
    """Return why an API would refuse a tool as it is; empty if it accepts it."""
    if problem := schema_problem(spec.parameters):
        return problem
    if row.max_description and len(spec.description) > row.max_description:
        return "the description is too long"
    accepted = row.accepted_keys
    if accepted is not None and (keys := KeyTranslation.of(spec.parameters, accepted, row.max_key_length)):
        return f"the keys {', '.join(keys.sent_names)} are refused"
    properties = [item for node in all_schemas(spec.parameters) for item in (node.get("properties") or {}).values()]
    has_booleans = not row.has_boolean_schemas and any(isinstance(item, bool) for item in properties)
    return "a property whose schema is true or false" if has_booleans else ""


@given(PARAMETERS, st.sampled_from(ROWS))
def test_a_tool_is_accepted_or_left_out(parameters: dict[str, Any], row: ToolLimits) -> None:
    """What the gate lets pass is accepted by its own check, and by checks that know only the row."""
    gated = gate_tool(spec(parameters), row)
    if gated.spec is None:
        assert gated.reason
        return
    sent = thaw(gated.spec.parameters)
    assert not refusal(gated.spec, row)
    Draft202012Validator.check_schema(sent)
    SchemaValidator(sent)
    if row.keys:
        assert all(re.fullmatch(row.keys, key) for key in keys_of(sent))


@given(
    st.dictionaries(
        st.sampled_from(["type", "properties", "items", "required", "$ref", "minimum", "anyOf"]),
        DATA | SCHEMAS,
        max_size=3,
    )
)
def test_anything_else_is_left_out(parameters: dict[str, Any]) -> None:
    """Data that is no schema costs its tool, and raises nothing."""
    gated = gate_tool(spec(parameters), ROWS[0])
    assert (gated.spec is None) is bool(gated.reason)
    assert gated.spec is None or not refusal(gated.spec, ROWS[0])


@given(PARAMETERS, st.dictionaries(KEYS, DATA, max_size=3))
def test_arguments_come_back(parameters: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Arguments have the keys of the tool again after they had those of the provider, unless an undeclared key has the name of one."""
    keys = KeyTranslation.of(parameters, KEY, 64)
    if keys is None:
        return
    text = json.dumps(arguments, ensure_ascii=False)
    sent = keys.to_provider(text)
    names = {key for key in keys_of(keys.sent_schema()) if key not in keys_of(parameters)}
    if names.isdisjoint(re.findall(r'"((?:[^"\\]|\\.)*)"', text)):
        assert keys.from_provider(sent) == text
    assert len(json.loads(sent)) == len(arguments)


@given(PARAMETERS, st.dictionaries(KEYS, DATA, max_size=3), st.integers(1, 5))
def test_pieces_of_a_stream_are_the_whole(parameters: dict[str, Any], arguments: dict[str, Any], size: int) -> None:
    """However the text of arguments is cut, the pieces join to the same translation."""
    keys = KeyTranslation.of(parameters, KEY, 64)
    if keys is None:
        return
    sent = keys.to_provider(json.dumps(arguments))
    reader = keys.reader()
    pieces = [reader.feed(sent[start : start + size]) for start in range(0, len(sent), size)]
    assert "".join([*pieces, reader.close()]) == keys.from_provider(sent)


def test_names_of_keys_are_readable_and_unique() -> None:
    """A name keeps what is accepted of its key, and never is another key of the tool."""
    parameters: dict[str, Any] = {
        "properties": {"$top": {}, "top": {}, "filter[id]": {}, "名前": {}, "x" * 65: {}, "x" * 64: {}}
    }
    sent = translation(parameters).sent_schema()["properties"]
    assert list(sent) == ["top_2", "top", "filter_id", "key", "x" * 62 + "_2", "x" * 64]
    assert sent["filter_id"] == {"title": "filter[id]"}


def test_keys_are_translated_wherever_a_schema_names_them() -> None:
    """References, requirements, dependencies, discriminators, defaults and enumerations follow the properties."""
    parameters = {
        "properties": {"$a": {"properties": {"b c": {}}, "default": {"b c": 1, "$a": 2}, "required": ["b c"]}},
        "dependentRequired": {"$a": ["$a"]},
        "dependentSchemas": {"$a": {"required": ["$a"]}},
        "anyOf": [{"$ref": "#/properties/$a/properties/b c"}],
        "discriminator": {"propertyName": "$a"},
        "enum": [{"$a": {"b c": 1}}],
    }
    assert thaw(freeze(translation(parameters).sent_schema())) == {
        "properties": {
            "a": {
                "title": "$a",
                "properties": {"b_c": {"title": "b c"}},
                "default": {"b_c": 1, "$a": 2},
                "required": ["b_c"],
            }
        },
        "dependentRequired": {"a": ["a"]},
        "dependentSchemas": {"a": {"required": ["a"]}},
        "anyOf": [{"$ref": "#/properties/a/properties/b_c"}],
        "discriminator": {"propertyName": "a"},
        "enum": [{"a": {"b_c": 1}}],
    }


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('{"top": 1.0,  "map": {"top": 1}}', '{"$top": 1.0,  "map": {"top": 1}}'),
        ('{"$top": 1}', '{"$top": 1}'),
        ('{"$top": 1, "top": 2}', '{"$top": 1, "top": 2}'),
        ('{"top": 1, "$top": 2}', '{"$top": 1, "top": 2}'),
        ('{"top": 1, "top": 2}', '{"$top": 1, "$top": 2}'),
        ('{"\\u0074op": 1}', '{"$top": 1}'),
        ('{"next": {"next": {"top": 1}}}', '{"next": {"next": {"$top": 1}}}'),
        ('{"list": [{"top": 1}, {"top": 2}]}', '{"list": [{"$top": 1}, {"top": 2}]}'),
        ('{"top": 1, "to', '{"$top": 1, "to'),
        ("no JSON", "no JSON"),
        ("", ""),
    ],
)
def test_only_declared_keys_are_translated(sent: str, read: str) -> None:
    """Text stays as the model wrote it but for declared keys, and no key is lost."""
    parameters = {
        "type": "object",
        "properties": {
            "$top": {},
            "map": {"type": "object", "additionalProperties": {}},
            "next": {"$ref": "#"},
            "list": {"prefixItems": [{"$ref": "#"}]},
        },
    }
    assert translation(parameters).from_provider(sent) == read


# --- the gate -----------------------------------------------------------------------------------------------------------


def request(*tools: ToolSpec, **more: Any) -> InferenceRequest:
    """A request with these tools."""
    return InferenceRequest((QUESTION,), tools=tools, **more)


def test_a_request_without_translation_is_passed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tools are looked at once per program, and cost the next request one comparison."""
    gate = ToolGate(ROWS[0])
    first = request(spec({"type": "object", "properties": {"a": {"type": "string"}}}))
    assert gate.pass_tools(first, 0, None).request(first) is first
    monkeypatch.setattr(tool_gate, "encode_each", None)
    again = first.with_messages((QUESTION, QUESTION))
    assert gate.pass_tools(again, 0, None).request(again) is again
    monkeypatch.undo()
    monkeypatch.setattr(tool_gate, "modern_schema", None)
    assert ToolGate(ROWS[0]).pass_tools(first, 0, None).request(first) is first


def test_tools_above_the_number_are_left_out() -> None:
    """The last tools go, except the one that the model has to call and the one with which it answers."""
    tools = [spec({"type": "object"}, f"t{number}") for number in range(130)]
    answer = spec({"type": "object"}, "give_final_answer")
    told: list[LeftOutTool] = []
    chosen = request(*tools, answer, tool_choice=ToolChoice.specific("t129"))
    passed = ToolGate(tool_limits("openai", "openai-chat")).pass_tools(chosen, 1, told.append)
    assert [each.name for each in passed.tools] == [
        *[f"t{number}" for number in range(125)],
        "t129",
        "give_final_answer",
    ]
    assert [each.name for each in told] == ["t125", "t126", "t127", "t128"]
    assert told[0].reason == "openai accepts 128 tools"


def test_a_tool_that_has_to_be_called_cannot_be_left_out() -> None:
    """A request that makes the model call such a tool is refused with the reason; other forced choices become free."""
    bad = spec({"type": "object", "properties": {"a": {"type": "dict"}}})
    gate = ToolGate(ROWS[0])
    forced = request(bad, tool_choice=ToolChoice.specific("odd"))
    with pytest.raises(
        BadRequest, match=r"'odd', which cannot be offered to it: .*\$.properties.a.type has to be a type"
    ):
        gate.pass_tools(forced, 0, None).request(forced)
    required = request(bad, tool_choice=ToolChoice.required())
    passed = gate.pass_tools(required, 0, None).request(required)
    assert not passed.tools
    assert passed.tool_choice == ToolChoice.auto()


def test_what_an_api_cannot_read_is_written_otherwise() -> None:
    """Ollama gets schemas in place of true and false, Azure descriptions of its length."""
    ollama, azure = tool_limits("", "ollama"), tool_limits("azure", "openai-chat")
    assert ollama is not None
    assert azure is not None
    gated = gate_tool(spec({"type": "object", "properties": {"a": True, "b": False}}), ollama)
    assert gated.spec is not None
    assert gated.spec.parameters["properties"] == {"a": {}, "b": {"not": {}}}
    gated = gate_tool(ToolSpec("long", "x" * 2_000, {"type": "object"}), azure)
    assert gated.spec is not None
    assert gated.spec.description == "x" * 1_023 + "…"


# --- over HTTP ----------------------------------------------------------------------------------------------------------

Answer = Callable[[dict[str, Any]], Any]


def loop_of(
    answers: list[Any], tools: list[Any], *, streaming: bool = False
) -> tuple[AgentLoop[str], list[dict[str, Any]]]:
    """A loop over a service with the Messages API that gives these answers, and the requests that the service gets."""
    seen: list[dict[str, Any]] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append(json.loads(sent.content))
        content = answers[len(seen) - 1]
        kind = "text/event-stream" if isinstance(content, bytes) else "application/json"
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return httpx.Response(200, content=body, headers={"content-type": kind})

    retry = RetryPolicy(max_attempts=1)
    config = LLMConfig.parse("anthropic:m", api_key="key", base_url="http://service.test", retry=retry)
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    driver = ToolCallingDriver(HttpInference(config, client=client), mode="native", streaming=streaming)
    return AgentLoop(driver, tools), seen


def message(*content: dict[str, Any], stop: str = "tool_use") -> dict[str, Any]:
    """An answer of the Messages API."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop,
        "usage": usage,
    }


def stream(*events: dict[str, Any]) -> bytes:
    """Events of a streamed answer."""
    return b"".join([f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events])


CALL = {"type": "tool_use", "id": "t1", "name": "find", "input": {"top": 5, "filter_id": {"top": 1}}}
DONE = message({"type": "text", "text": "done"}, stop="end_turn")
STREAMED_CALL = stream(
    {"type": "message_start", "message": message(stop="")},
    {"type": "content_block_start", "index": 0, "content_block": {**CALL, "input": {}}},
    *[
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
        for piece in ('{"to', 'p": 5, "filter', '_id": {"t', 'op": 1}}')
    ],
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
)
STREAMED_DONE = stream(
    {"type": "message_start", "message": message(stop="")},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_tool_gets_its_own_keys_and_the_provider_its_names(*, streaming: bool) -> None:
    """Calls are recorded with the keys of the tool, and sent again with the names of the provider."""
    got: list[dict[str, Any]] = []

    @tool(
        effect="pure",
        schema={"type": "object", "properties": {"$top": {"type": "integer"}, "filter[id]": {"type": "object"}}},
    )
    def find(**arguments: Any) -> str:
        """Find it."""
        got.append(arguments)
        return "ok"

    answers = [STREAMED_CALL, STREAMED_DONE] if streaming else [message(CALL), DONE]
    loop, seen = loop_of(answers, [find], streaming=streaming)
    state = loop.execute_sync("Go.")
    assert got == [{"$top": 5, "filter[id]": {"top": 1}}]
    assert state.steps[0].executions[0].call.arguments == got[0]
    assert list(seen[0]["tools"][0]["input_schema"]["properties"]) == ["top", "filter_id"]
    call = next(block for block in seen[1]["messages"][1]["content"] if block["type"] == "tool_use")
    assert call["input"] == CALL["input"]


def test_a_tool_that_is_not_accepted_costs_itself_alone() -> None:
    """The other tools are offered; an event, once, and no error names the one that is left out."""

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append([each["function"]["name"] for each in json.loads(sent.content)["tools"]])
        call = {"id": "1", "type": "function", "function": {"name": "t0", "arguments": "{}"}}
        said = {"content": "done"} if len(seen) > 1 else {"content": None, "tool_calls": [call]}
        reason = "stop" if len(seen) > 1 else "tool_calls"
        choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": reason}
        return httpx.Response(200, json={"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})

    def use() -> str:
        """Do it."""
        return "ok"

    seen: list[list[str]] = []
    events: list[ToolLeftOut] = []
    config = LLMConfig.parse("openai:m", api_key="key", base_url="http://service.test/v1")
    inference = HttpInference(config, client=httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    tools = [tool(effect="pure", name=f"t{number}")(use) for number in range(129)]
    loop = AgentLoop(ToolCallingDriver(inference, mode="native"), tools)
    loop.on(ToolLeftOut, events.append)
    assert loop.execute_sync("Go.").output == "done"
    assert [len(names) for names in seen] == [128, 128]
    assert [(event.tool, event.reason) for event in events] == [("t128", "openai accepts 128 tools")]


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in WIRE_FORMATS], ids=lambda row: row.name)
def test_the_body_has_what_the_row_says(row: ToolLimits) -> None:
    """Behind gate and wire format, no refused keyword is at the top level, and names have the form of the row."""
    parameters = {"type": "object", "anyOf": [{"properties": {"$a": True}}, {"properties": {"b": {"items": [{}]}}}]}
    sent = request(spec(parameters, "a.b/c"))
    passed = ToolGate(row).pass_tools(sent, 0, None).request(sent)
    config = LLMConfig(provider="", model="m", wire_format=row.name, base_url="http://service.test")
    body = json.loads(wire_format(row.name).encode_request(passed, config).body)
    tools = body["toolConfig"]["tools"] if "toolConfig" in body else body["tools"]
    declared = json.dumps(tools)
    schema = next(found for found in _dicts(tools) if found.get("type") == "object" or "anyOf" in found)
    assert schema.keys().isdisjoint(row.top_level)
    assert row.names == "any" or re.search(rf'"name": "{row.names}"', declared)


def _dicts(value: Any) -> list[dict[str, Any]]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] * isinstance(value, dict) + [found for item in items for found in _dicts(item)]
