"""Requests to a model."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given

from agentloop.errors import ConfigurationError
from agentloop.testing.strategies import inference_requests
from agentloop.values.inference import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.messages import Message
from agentloop.values.serialization import to_json
from agentloop.values.tool_calls import Effect, ToolSpec

SPEC = ToolSpec("find", "Find.", {"type": "object"})


@given(inference_requests())
def test_each_change_replaces_one_field_in_a_copy(request: InferenceRequest) -> None:
    """The changed request differs in that alone, and the request it came from is as before."""
    before = to_json(request)
    changes: dict[str, tuple[InferenceRequest, Any]] = {
        "messages": (request.with_messages([Message.user("new")]), (Message.user("new"),)),
        "system_prompt": (request.with_system_prompt("new"), "new"),
        "tools": (request.with_tools([SPEC, SPEC]), (SPEC, SPEC)),
        "tool_choice": (request.with_tool_choice(ToolChoice.specific("new")), ToolChoice.specific("new")),
        "response_format": (request.with_response_format(ResponseFormat(name="new")), ResponseFormat(name="new")),
        "options": (request.with_options(InferenceOptions(model="new")), InferenceOptions(model="new")),
    }
    for name, (changed, value) in changes.items():
        assert getattr(changed, name) == value
        assert attrs.evolve(changed, **{name: getattr(request, name)}) == request
    assert to_json(request) == before


def test_the_arguments_of_a_request_are_copied() -> None:
    """Changing lists and dicts afterwards changes nothing."""
    messages, tools, schema = [Message.user("a")], [SPEC], {"type": "object", "required": ["a"]}
    request = InferenceRequest(messages, tools=tools, response_format=ResponseFormat(schema))
    messages.clear()
    tools.clear()
    schema["type"] = "array"
    assert request.messages == (Message.user("a"),)
    assert request.tools == (SPEC,)
    assert request.response_format == ResponseFormat({"type": "object", "required": ("a",)})


def test_there_are_four_tool_choices() -> None:
    """Each tool choice is created by the method of its name."""
    assert ToolChoice.auto() == ToolChoice("auto")
    assert ToolChoice.required() == ToolChoice("required")
    assert ToolChoice.none() == ToolChoice("none")
    assert ToolChoice.specific("find") == ToolChoice("specific", "find")
    assert InferenceRequest(()).tool_choice == ToolChoice.auto()


def test_a_single_stop_text_becomes_a_tuple() -> None:
    """A text is not taken apart into letters."""
    assert InferenceOptions(stop="END").stop == ("END",)
    assert InferenceOptions(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_sampling_takes_finite_numbers(number: float) -> None:
    """Options that no request could carry are refused by the constructor."""
    with pytest.raises(ConfigurationError, match="temperature is a finite number, not"):
        InferenceOptions(temperature=number)
    with pytest.raises(ConfigurationError, match="top_p is a finite number, not"):
        InferenceOptions(top_p=number)
    assert InferenceOptions(temperature=0, top_p=0.5).temperature == 0


def test_a_tool_is_offered_by_name_description_and_schema() -> None:
    """The schema is immutable JSON, and the effect can be passed by name."""
    schema: dict[str, Any] = {"type": "object", "required": ["a"]}
    spec = ToolSpec("find", "Find.", schema, "pure")
    schema["required"].append("b")
    assert spec == ToolSpec("find", "Find.", {"type": "object", "required": ("a",)}, Effect.PURE)
    assert SPEC.effect is Effect.EFFECT
    with pytest.raises(ValueError, match="'free' is not a valid Effect"):
        ToolSpec("find", "Find.", {}, "free")
