"""The known providers, as rows of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from agentloop.values.value import Value

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key"]
"""How the key is sent: as `Authorization: Bearer …`, or in the header with this name."""


@frozen(eq=False, repr=False, kw_only=True)
class Quirks(Value):
    """How a service differs from others with the same wire format.

    Attributes:
        max_tokens_field: the service's name for the limit of output tokens.
        stream_usage: whether a request for a stream may, and must, ask for the token usage (`stream_options`).
        default_max_tokens: the limit of output tokens when the options set none and the wire format requires one.
    """

    max_tokens_field: str = "max_tokens"
    stream_usage: bool = True
    default_max_tokens: int = 16_384


@frozen(eq=False, repr=False, kw_only=True)
class Preset(Value):
    """A provider.

    Attributes:
        name: the part before the colon of a model string such as `openai:gpt-5`.
        base_url: the URL that the paths of endpoints are appended to; `{NAME}` is replaced by the environment variable.
        wire_format: the name of the wire format, one of `wire_format.WIRE_FORMATS`.
        key_variable: the environment variable that contains the key; empty when no key is needed.
        auth: how the key is sent.
        function_auth: how the key is sent if a function returns it, when that is a token; None for `auth`.
        quirks: how the service differs from others with the same wire format.
    """

    name: str
    base_url: str
    wire_format: str = "openai-chat"
    key_variable: str = ""
    auth: Auth = "bearer"
    function_auth: Auth | None = None
    quirks: Quirks = Quirks()  # immutable


# `max_completion_tokens` is the name in OpenAI's current API, which some of the other services have adopted.
_ROWS = (
    Preset(
        name="openai",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="openai-responses",
        base_url="https://api.openai.com/v1",
        wire_format="openai-responses",
        key_variable="OPENAI_API_KEY",
    ),
    Preset(
        name="azure",
        base_url="{AZURE_OPENAI_ENDPOINT}/openai/v1",
        key_variable="AZURE_OPENAI_API_KEY",
        auth="api-key",
        function_auth="bearer",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="anthropic",
        base_url="https://api.anthropic.com/v1",
        wire_format="anthropic-messages",
        key_variable="ANTHROPIC_API_KEY",
        auth="x-api-key",
    ),
    Preset(
        name="gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        wire_format="gemini",
        key_variable="GEMINI_API_KEY",
        auth="x-goog-api-key",
    ),
    Preset(name="openrouter", base_url="https://openrouter.ai/api/v1", key_variable="OPENROUTER_API_KEY"),
    Preset(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        key_variable="GROQ_API_KEY",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        # Reports the usage of a stream without being asked, and refuses `stream_options`.
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        quirks=Quirks(stream_usage=False),
    ),
    Preset(name="deepseek", base_url="https://api.deepseek.com/v1", key_variable="DEEPSEEK_API_KEY"),
    Preset(name="xai", base_url="https://api.x.ai/v1", key_variable="XAI_API_KEY"),
    Preset(name="together", base_url="https://api.together.xyz/v1", key_variable="TOGETHER_API_KEY"),
    Preset(name="fireworks", base_url="https://api.fireworks.ai/inference/v1", key_variable="FIREWORKS_API_KEY"),
    Preset(
        name="cerebras",
        base_url="https://api.cerebras.ai/v1",
        key_variable="CEREBRAS_API_KEY",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(name="ollama", base_url="http://localhost:11434/v1"),
    Preset(name="ollama-native", base_url="http://localhost:11434", wire_format="ollama"),
    Preset(name="vllm", base_url="http://localhost:8000/v1"),
    Preset(name="lmstudio", base_url="http://localhost:1234/v1"),
    Preset(name="llamacpp", base_url="http://localhost:8080/v1"),
)

PRESETS: Mapping[str, Preset] = {row.name: row for row in _ROWS}
"""The providers that `LLMConfig.parse` knows, by name."""
