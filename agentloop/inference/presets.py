"""Providers as rows of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from agentloop.values.value import Value

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key"]
"""How the key is sent: as `Authorization: Bearer …`, or in the header of this name."""


@frozen(eq=False, repr=False, kw_only=True)
class Quirks(Value):
    """How a service differs from the others that speak its wire format.

    Attributes:
        max_tokens_field: what the service calls the limit of tokens to write.
        stream_usage: whether it has to be asked to report the tokens of a streamed answer, and takes the question.
    """

    max_tokens_field: str = "max_tokens"
    stream_usage: bool = True


@frozen(eq=False, repr=False, kw_only=True)
class Preset(Value):
    """A provider.

    Attributes:
        name: what stands before the colon in a model string such as `openai:gpt-5`.
        base_url: where requests go, without the path of the endpoint.
        wire_format: how requests and responses are spelled.
        key_variable: the environment variable that holds the key; empty when no key is needed.
        auth: how the key is sent.
        quirks: how the service differs from the others of its wire format.
    """

    name: str
    base_url: str
    wire_format: str = "openai-chat"
    key_variable: str = ""
    auth: Auth = "bearer"
    quirks: Quirks = Quirks()  # immutable


_ROWS = (
    Preset(
        name="openai",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(name="ollama", base_url="http://localhost:11434/v1"),
    Preset(name="vllm", base_url="http://localhost:8000/v1"),
)

PRESETS: Mapping[str, Preset] = {row.name: row for row in _ROWS}
"""The providers that `LLMConfig.parse` knows, by name."""
