"""Names of tools on the wire."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.inference import HttpInference
from agentloop.inference.http_client import in_process_client
from agentloop.inference.wire_formats.fields import encoded_names, wire_name
from agentloop.testing import run_virtual
from agentloop.values import InferenceRequest, Message, ToolSpec
from tests.inference.generated_requests import tool_names
from tests.inference.loopback_inference import config_for


@pytest.mark.parametrize("name", ["add", "a", "get_weather-2", "A" * 64, "report_20240101", "x__1234567"])
def test_a_name_that_providers_take_stays_as_it_is(name: str) -> None:
    """Letters, digits, underscores and dashes need no other name."""
    assert wire_name(name) == name


@pytest.mark.parametrize("name", ["math.factorial", "a b", "é", "", "x" * 65, "a/b", "add\n", "add__0123abcd"])
def test_any_other_name_gets_one_that_providers_take(name: str) -> None:
    """A name that would be refused, or could be another's, goes by one that begins like it and is taken."""
    made = wire_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made)
    assert made.startswith(re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:50])
    assert encoded_names([name, "add"]) == {made: name}


@given(st.lists(tool_names, max_size=6))
@example(["a.b", wire_name("a.b"), wire_name(wire_name("a.b"))])
@example(["a.b", "a_b", "a-b", "a/b"])
@example(["x" * 65, "x" * 66, "x" * 64])
def test_different_names_stay_different(names: list[str]) -> None:
    """No two tools go by one name on the wire, not even those that are named as if they had been renamed."""
    names = [*names, *map(wire_name, names)]
    wires = {name: wire_name(name) for name in names}
    assert len(set(wires.values())) == len(set(names))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire) for wire in wires.values())
    assert wires == {name: wire_name(name) for name in reversed(names)}


@given(st.lists(tool_names, max_size=5, unique=True))
@example(["a.b", wire_name("a.b")])
def test_a_call_comes_back_under_the_name_of_its_tool(names: list[str]) -> None:
    """A model that calls each tool by the name it was offered under calls the tools by their own names."""

    def provider(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        offered = [tool["function"]["name"] for tool in json.loads(body).get("tools", [])]
        calls = [{"id": f"c{place}", "function": {"name": name}} for place, name in enumerate(offered)]
        return 200, {}, json.dumps({"choices": [{"message": {"tool_calls": calls}}]}).encode()

    inference = HttpInference(config_for("http://provider"), client=in_process_client(provider))
    tools = [ToolSpec(name, "", {"type": "object"}) for name in names]
    response = run_virtual(inference.infer(InferenceRequest((Message.user("go"),), tools=tools)))
    assert [call.name for call in response.tool_calls] == names
