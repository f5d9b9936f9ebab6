"""Tests of the tool names that are sent to providers."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.models import HttpInference
from agentloop.models.http_client import in_process_client
from agentloop.models.wire_formats.fields import encoded_names, wire_name
from agentloop.testing import run_in_virtual_time
from agentloop.values import InferenceRequest, Message, ToolSpec
from tests.models.generated_requests import tool_names
from tests.models.loopback_inference import config_for


@pytest.mark.parametrize("name", ["add", "a", "get_weather-2", "A" * 64, "report_20240101", "x__1234567"])
def test_a_name_that_providers_accept_is_unchanged(name: str) -> None:
    """Names of letters, digits, underscores and dashes are sent as they are."""
    assert wire_name(name) == name


@pytest.mark.parametrize("name", ["math.factorial", "a b", "é", "", "x" * 65, "a/b", "add\n", "add__0123abcd"])
def test_any_other_name_is_encoded_to_one_that_providers_accept(name: str) -> None:
    """A name that would be refused, or could be an encoded one, is encoded with its beginning intact."""
    encoded = wire_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", encoded)
    assert encoded.startswith(re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:50])
    assert encoded_names([name, "add"]) == {encoded: name}


@pytest.mark.parametrize("name", ["get-weather", "a-b__0123abcd", "2-b", "plain"])
def test_a_name_for_a_provider_without_dashes_is_an_identifier(name: str) -> None:
    """Only names that have dashes, or begin with a digit, are encoded."""
    encoded = wire_name(name, letter_first=True, has_dashes=False)
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", encoded)
    assert (encoded == name) is (name == "plain")
    assert encoded_names([name], letter_first=True, has_dashes=False) == ({} if name == "plain" else {encoded: name})


@given(st.lists(tool_names, max_size=6))
@example(["a.b", wire_name("a.b"), wire_name(wire_name("a.b"))])
@example(["a.b", "a_b", "a-b", "a/b"])
@example(["x" * 65, "x" * 66, "x" * 64])
def test_different_names_stay_different(names: list[str]) -> None:
    """Two tools never have the same wire name, even if one is named like an encoded name."""
    names = [*names, *map(wire_name, names)]
    wires = {name: wire_name(name) for name in names}
    assert len(set(wires.values())) == len(set(names))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire) for wire in wires.values())
    assert wires == {name: wire_name(name) for name in reversed(names)}


@given(st.lists(tool_names, max_size=5, unique=True))
@example(["a.b", wire_name("a.b")])
def test_calls_in_a_response_have_the_original_tool_names(names: list[str]) -> None:
    """Calls by wire names are decoded to calls by the original names."""

    def provider(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        offered = [tool["function"]["name"] for tool in json.loads(body).get("tools", [])]
        calls = [{"id": f"c{index}", "function": {"name": name}} for index, name in enumerate(offered)]
        return 200, {}, json.dumps({"choices": [{"message": {"tool_calls": calls}}]}).encode()

    inference = HttpInference(config_for("http://provider"), client=in_process_client(provider))
    tools = [ToolSpec(name, "", {"type": "object"}) for name in names]
    response = run_in_virtual_time(inference.infer(InferenceRequest((Message.user("go"),), tools=tools)))
    assert [call.name for call in response.tool_calls] == names
