"""Documents that are not what was written: read whole or refused, never in part."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import AgentLoopError, InvalidDocument, SchemaTooNew
from agentloop.testing.strategies import json_values
from agentloop.values.batches import ToolCalls
from agentloop.values.decisions import PendingCall
from agentloop.values.event import EventHead
from agentloop.values.inference import InferenceOptions, ToolChoice, Usage
from agentloop.values.json import format_json, freeze
from agentloop.values.messages import Message
from agentloop.values.parts import Image, Reasoning, Text
from agentloop.values.serialization import SCHEMA_VERSION, from_json, from_plain, to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import SuspendedTurn
from agentloop.values.stop import StopSignal
from tests.generated import examples

GOLDEN = Path(__file__).parent / "golden" / "agent_state_v2.json"
HEAD = {"agent_id": "a", "execution_id": "e", "parent_agent_id": None, "step_number": 0, "sequence": 1}


def document(kind: str, value: object, version: object = SCHEMA_VERSION) -> bytes:
    """Write an envelope around plain data."""
    return json.dumps({"schema_version": version, "kind": kind, "value": value}).encode()


@pytest.mark.parametrize("version", [None, True, 1.0, "1", [1]])
def test_a_document_without_a_version_is_not_ours(version: object) -> None:
    """Only a whole number is a version."""
    with pytest.raises(InvalidDocument, match="not written by agentloop"):
        from_json(document("Text", {"text": "x"}, version), Text)


@pytest.mark.parametrize("data", [b"[]", b"1", b'"x"', b"null", b"{}"])
def test_other_json_is_not_ours(data: bytes) -> None:
    """JSON without an envelope is refused."""
    with pytest.raises(InvalidDocument, match="not an object with a schema_version"):
        from_json(data, Text)


def test_a_document_of_another_kind_is_refused() -> None:
    """A message is not read as a state, however alike they look."""
    with pytest.raises(InvalidDocument, match="this document holds a Text, not a Reasoning"):
        from_json(to_json(Text("x")), Reasoning)


@pytest.mark.parametrize(
    "envelope", [{"schema_version": 1, "kind": "Text"}, {**json.loads(document("Text", {"text": "x"})), "more": 1}]
)
def test_an_envelope_has_exactly_its_three_entries(envelope: dict[str, object]) -> None:
    """A missing field and an unknown field are damage."""
    with pytest.raises(InvalidDocument, match="has to have exactly"):
        from_json(json.dumps(envelope), Text)


DAMAGED: list[tuple[type, Any, str]] = [
    (Text, None, "NoneType in place of an object @ $"),
    (Text, [], "list in place of an object @ $"),
    (Text, {}, "required field missing @ $.text"),
    (Text, {"text": None}, "NoneType in place of str @ $.text"),
    (Text, {"text": 5}, "int in place of str @ $.text"),
    (Text, {"text": "x", "txet": "y"}, "txet"),
    (Usage, [], "list in place of an object @ $"),
    (Usage, "", "str in place of an object @ $"),
    (Usage, {"input_tokens": "3"}, "str in place of int @ $.input_tokens"),
    (Usage, {"input_tokens": 3.0}, "float in place of int @ $.input_tokens"),
    (Usage, {"requests": True}, "bool in place of int @ $.requests"),
    (InferenceOptions, {"temperature": "hot"}, "str in place of float @ $.temperature"),
    (InferenceOptions, {"cache_prompt": "false"}, "str in place of bool @ $.cache_prompt"),
    (InferenceOptions, {"cache_prompt": 0}, "int in place of bool @ $.cache_prompt"),
    (InferenceOptions, {"stop": "END"}, "str in place of an array @ $.stop"),
    (InferenceOptions, {"stop": {}}, "dict in place of an array @ $.stop"),
    (InferenceOptions, {"stop": ["a", 1]}, "int in place of str @ $.stop[1]"),
    (InferenceOptions, {"extra": []}, "a JSON object was expected, not list @ $.extra"),
    (Message, {"role": "tool", "parts": []}, "@ $.role"),
    (Message, {"role": "user", "parts": [5]}, "int in place of an object with a type @ $.parts[0]"),
    (Message, {"role": "user", "parts": [{"text": "x"}]}, "there is no None here; expected one of text, image,"),
    (Message, {"role": "user", "parts": [{"type": "poem"}]}, "there is no 'poem' here; expected one of text, image,"),
    (Message, {"role": "user", "parts": [{"type": []}]}, "there is no [] here"),
    (Message, {"role": "user", "parts": [{"type": "text"}]}, "required field missing @ $.parts[0].text"),
    (
        Message,
        {"role": "user", "parts": [{"type": "tool_call", "id": "", "name": "x"}]},
        "there is no 'tool_call' here",
    ),
    (Message, {"role": "system", "parts": [{"type": "image", "url": "u"}]}, "a message of role system holds Text"),
    (Image, {"data": "$$$", "media_type": "image/png"}, "@ $.data"),
    (Image, {"data": "eA==", "url": "u", "media_type": "image/png"}, "given: data and url"),
    (EventHead, {**HEAD, "time": "yesterday"}, "Invalid isoformat string: 'yesterday' @ $.time"),
    (EventHead, {**HEAD, "time": 5}, "fromisoformat: argument must be str @ $.time"),
    (StopSignal, {"reason": "boredom"}, "'boredom' is not a valid StopReason @ $.reason"),
    (ToolChoice, {"kind": "maybe"}, "@ $.kind"),
    (SuspendedTurn, {"parts": [{"type": "tool_call", "id": "", "name": "x"}], "slots": []}, "needs 1 slots, not 0"),
    (
        PendingCall,
        {"key": "k", "call": {"id": "", "name": "x"}, "decision": {"type": "deny", "reason": 1}},
        "@ $.decision",
    ),
    (ToolCalls, {"calls": [], "keys": [], "decisions": {"k": {"type": "allow"}}}, "there is no 'allow' here"),
]


@pytest.mark.parametrize(
    ("kind", "value", "words"), DAMAGED, ids=lambda part: getattr(part, "__name__", str(part)[:40])
)
def test_the_error_names_the_path_of_the_damage(kind: type, value: Any, words: str) -> None:
    """A wrong type, a missing, an unknown and an impossible entry are named with their path; nothing is converted."""
    with pytest.raises(InvalidDocument, match=re.escape(words)) as caught:
        from_json(document(kind.__name__, value), kind)
    assert str(caught.value).startswith(f"this is not the JSON form of a {kind.__name__}: ")
    assert " @ $" in str(caught.value)
    with pytest.raises(InvalidDocument, match=re.escape(str(caught.value))):
        from_plain(value, kind)


def test_only_the_first_problems_are_listed() -> None:
    """A document of garbage does not become an error of garbage."""
    parts = [{"type": "text", "text": number} for number in range(1000)]
    with pytest.raises(InvalidDocument) as caught:
        from_json(document("Message", {"role": "user", "parts": parts}), Message)
    assert str(caught.value).count(" @ ") == 3


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the ways to everything inside of plain data."""
    paths = [path] if path else []
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in inner:
        paths.extend(places(value, (*path, step)))
    return paths


@settings(max_examples=examples(150))
@given(data=st.data())
def test_a_changed_document_is_read_whole_or_refused(data: st.DataObject) -> None:
    """Whatever is dropped, replaced, doubled or renamed, the answer is a value that can be written, or our error."""
    plain = json.loads(GOLDEN.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places(plain)))
        holder = plain
        for step in way:
            holder = holder[step]
        change = data.draw(st.sampled_from(["drop", "replace", "double", "rename", "swap"]))
        if change == "drop":
            del holder[last]
        elif change == "double" and isinstance(holder, list):
            holder.append(holder[last])
        elif change == "rename" and isinstance(holder, dict):
            holder[data.draw(st.text(max_size=5))] = holder.pop(last)
        elif change == "swap":
            holder[last] = data.draw(st.sampled_from([[holder[last]], {"a": holder[last]}, str(holder[last])]))
        else:
            holder[last] = data.draw(json_values(max_leaves=3))
        if not places(plain):
            break
    try:
        value = from_json(format_json(freeze(plain)), AgentState)
    except (InvalidDocument, SchemaTooNew):
        return
    assert from_json(to_json(value), AgentState) == value


@settings(max_examples=examples(150))
@given(data=st.data())
def test_damaged_bytes_are_read_whole_or_refused(data: st.DataObject) -> None:
    """Whatever is cut off or overwritten, the answer is a value that can be written, or our error."""
    golden = GOLDEN.read_bytes()
    start = data.draw(st.integers(0, len(golden)))
    damage = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"{}", b"null", b"[", b"]", b",", b"1e999"]))
    rest = data.draw(st.sampled_from([golden[start + len(damage) :], golden[start:], b""]))
    try:
        value = from_json(golden[:start] + damage + rest, AgentState)
    except (InvalidDocument, SchemaTooNew):
        return
    assert from_json(to_json(value), AgentState) == value


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", '{"schema_version":1', b"[" * 100_000])
def test_the_error_says_that_a_document_is_not_json(data: bytes | str) -> None:
    """Empty, cut and binary files are no documents."""
    with pytest.raises(InvalidDocument, match="this is not JSON: ") as caught:
        from_json(data, AgentState)
    assert isinstance(caught.value, AgentLoopError)
