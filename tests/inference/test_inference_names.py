"""Tests of the public names of `agentloop.inference`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentloop.inference
from agentloop.errors import ConfigurationError
from agentloop.inference.wire_formats.wire_format import WIRE_FORMATS, WireFormat, wire_format

PROGRAM = """
import agentloop.inference
from agentloop.inference import HttpInference
from agentloop.inference.wire_formats.openai_chat import OpenAIChat
assert isinstance(agentloop.inference.wire_format("openai-chat"), OpenAIChat), agentloop.inference.wire_format
"""


def test_every_public_name_can_be_imported() -> None:
    """`__all__` is sorted and equals `dir()`, and every name can be loaded."""
    names = vars(agentloop.inference)["__all__"]
    assert names == sorted(names) == dir(agentloop.inference)
    assert all(hasattr(agentloop.inference, name) for name in names)


def test_wire_format_is_the_function_whatever_was_imported_before() -> None:
    """`agentloop.inference.wire_format` is the function even after the module of the same name was imported."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_a_wire_format_has_the_name_it_was_requested_by(name: str) -> None:
    """`wire_format(name)` returns a wire format with that name."""
    instance = wire_format(name)
    assert isinstance(instance, WireFormat)
    assert instance.name == name


def test_an_unknown_wire_format_is_refused_with_the_known_ones() -> None:
    """The error for an unknown name lists the known names."""
    with pytest.raises(ConfigurationError, match=r"there is no wire format 'smoke'; the known ones are .*openai-chat"):
        wire_format("smoke")
