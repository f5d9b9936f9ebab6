"""Tests of the public names of `agentloop.models`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentloop.models
from agentloop.errors import ConfigurationError
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, WireFormat, wire_format

PROGRAM = """
import agentloop.models
from agentloop.models import HttpInference
from agentloop.models.wire_formats.openai_chat import OpenAIChat
assert isinstance(agentloop.models.wire_format("openai-chat"), OpenAIChat), agentloop.models.wire_format
"""


def test_every_public_name_can_be_imported() -> None:
    """`__all__` is sorted and equals `dir()`, and every name can be loaded."""
    names = vars(agentloop.models)["__all__"]
    assert names == sorted(names) == dir(agentloop.models)
    assert all(hasattr(agentloop.models, name) for name in names)


def test_wire_format_is_the_function_whatever_was_imported_before() -> None:
    """`agentloop.models.wire_format` is the function even after the module of the same name was imported."""
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
