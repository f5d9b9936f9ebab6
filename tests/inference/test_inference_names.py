"""The names of the room."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentloop.inference
from agentloop.errors import ConfigurationError
from agentloop.inference.wire_formats.wire_format import WireFormat, wire_format

PROGRAM = """
import agentloop.inference
from agentloop.inference import HttpInference
from agentloop.inference.wire_formats.openai_chat import OpenAIChat
assert isinstance(agentloop.inference.wire_format("openai-chat"), OpenAIChat), agentloop.inference.wire_format
"""


def test_every_public_name_is_there() -> None:
    """What the room lists can be taken from it."""
    names = vars(agentloop.inference)["__all__"]
    assert names == sorted(names) == dir(agentloop.inference)
    assert all(hasattr(agentloop.inference, name) for name in names)


def test_wire_formats_are_had_by_name_whatever_was_imported_before() -> None:
    """`agentloop.inference.wire_format` is the function, also after modules of the room have been imported."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_a_wire_format_knows_its_name() -> None:
    """Asked for by name, a wire format has that name."""
    made = wire_format("openai-chat")
    assert isinstance(made, WireFormat)
    assert made.name == "openai-chat"


def test_an_unknown_wire_format_is_refused_with_those_there_are() -> None:
    """A name that does not exist is an error that lists the names that do."""
    with pytest.raises(ConfigurationError, match=r"there is no wire format 'smoke'; the known ones are .*openai-chat"):
        wire_format("smoke")
