"""What each API accepts in tools, as rows of data. `tool_gate` holds requests to it before they are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class ToolLimits(Value):
    """What an API accepts in tools. All APIs get schemas in draft 2020-12.

    Attributes:
        name: the name of the API: of the wire format, or of a provider that differs from others with its wire format.
        keys: matches the names of properties that it accepts; empty for any.
        max_key_length: the maximum length of these names; 0 for any.
        max_tools: the maximum number of tools in a request; 0 for any.
        max_description: the maximum length of the description of a tool in characters; 0 for any.
        has_boolean_schemas: whether the schema of a property may be true or false.
        top_level: the keywords that it refuses at the top level of parameters. The wire format writes schemas without them.
        names: the form of the names of tools. The wire format writes names in it.
        sources: where each of these is written, or where a refusal was reported, by attribute.
    """

    name: str
    keys: str = ""
    max_key_length: int = 0
    max_tools: int = 0
    max_description: int = 0
    has_boolean_schemas: bool = True
    top_level: tuple[str, ...] = ()
    names: str = "[a-zA-Z0-9_-]{1,64}"
    sources: Mapping[str, str] = field(default=EMPTY_OBJECT)

    @property
    def accepted_keys(self) -> re.Pattern[str] | None:
        """The pattern of keys; None for any."""
        return re.compile(self.keys) if self.keys else None


_OPENAI_TOP_LEVEL = ("anyOf", "oneOf", "allOf", "enum", "const", "not", "$ref")
_OPENAI_SOURCES = {
    "names": "https://platform.openai.com/docs/api-reference/chat/create#chat-create-tools",
    "top_level": "https://github.com/langchain-ai/langchainjs/issues/9804",
}
_CLAUDE_KEYS = "[a-zA-Z0-9_.-]{1,64}"

ROWS: Final = (
    ToolLimits(
        name="anthropic-messages",
        keys=_CLAUDE_KEYS,
        max_key_length=64,
        top_level=("anyOf", "oneOf", "allOf"),
        sources={
            "names": "https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use",
            "keys": "https://github.com/ComposioHQ/composio/issues/3500",
            "max_key_length": "https://github.com/ComposioHQ/composio/pull/3067",
            "draft": "https://github.com/Dokploy/mcp/issues/74",
            "top_level": "https://github.com/nspady/google-calendar-mcp/issues/39",
        },
    ),
    ToolLimits(
        name="bedrock-converse",
        keys=_CLAUDE_KEYS,
        max_key_length=64,
        top_level=("anyOf", "oneOf", "allOf"),
        sources={
            "names": "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html",
            "keys": (
                "https://github.com/aws-solutions-library-samples/"
                "accelerated-intelligent-document-processing-on-aws/issues/709"
            ),
            "max_key_length": (
                "https://github.com/aws-solutions-library-samples/"
                "accelerated-intelligent-document-processing-on-aws/issues/709"
            ),
            "top_level": "https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use",
        },
    ),
    ToolLimits(
        name="gemini",
        keys="[a-zA-Z_][a-zA-Z0-9_]{0,63}",
        max_key_length=64,
        max_tools=512,
        names="[a-zA-Z_][a-zA-Z0-9_-]{0,63}",
        sources={
            "names": "https://github.com/kaitranntt/ccs/issues/25",
            "keys": (
                "https://cloud.google.com/vertex-ai/generative-ai/docs/reference/java/latest/"
                "com.google.cloud.vertexai.api.FunctionDeclarationOrBuilder"
            ),
            "max_key_length": (
                "https://cloud.google.com/vertex-ai/generative-ai/docs/reference/java/latest/"
                "com.google.cloud.vertexai.api.FunctionDeclarationOrBuilder"
            ),
            "max_tools": "https://github.com/googleapis/python-genai/blob/main/google/genai/types.py",
        },
    ),
    ToolLimits(
        name="cohere-v2",
        names="[a-zA-Z_][a-zA-Z0-9_]{0,63}",
        sources={"names": "https://docs.cohere.com/v2/docs/tool-use-overview"},
    ),
    ToolLimits(
        name="ollama",
        names="any",
        has_boolean_schemas=False,
        sources={
            "has_boolean_schemas": "https://github.com/can1357/oh-my-pi/issues/4488",
            "draft": "https://github.com/ollama/ollama/issues/10328",
        },
    ),
    ToolLimits(name="openai-chat", top_level=_OPENAI_TOP_LEVEL, sources=_OPENAI_SOURCES),
    ToolLimits(name="openai-responses", top_level=_OPENAI_TOP_LEVEL, sources=_OPENAI_SOURCES),
    # Providers with the wire format of others.
    ToolLimits(
        name="openai",
        max_tools=128,
        top_level=_OPENAI_TOP_LEVEL,
        sources={**_OPENAI_SOURCES, "max_tools": "https://github.com/zed-industries/zed/issues/42393"},
    ),
    ToolLimits(
        name="azure",
        max_tools=128,
        max_description=1_024,
        top_level=_OPENAI_TOP_LEVEL,
        sources={
            **_OPENAI_SOURCES,
            "max_tools": "https://learn.microsoft.com/en-us/azure/ai-foundry/openai/quotas-limits",
            "max_description": "https://github.com/langchain-ai/open_deep_research/issues/80",
        },
    ),
    ToolLimits(
        name="groq",
        max_tools=128,
        top_level=_OPENAI_TOP_LEVEL,
        sources={**_OPENAI_SOURCES, "max_tools": "https://github.com/gsd-build/gsd-2/issues/4376"},
    ),
    ToolLimits(
        name="xai",
        max_tools=200,
        top_level=_OPENAI_TOP_LEVEL,
        sources={**_OPENAI_SOURCES, "max_tools": "https://github.com/router-for-me/CLIProxyAPI/issues/5214"},
    ),
)
"""The rows; the name of a row is that of a wire format, or of a provider."""

# Ollama's own server reads the tools of Chat Completions into the same types.
_ALIASES: Final = {("ollama", "openai-chat"): "ollama"}
_BY_NAME: Final = {row.name: row for row in ROWS}


def tool_limits(provider: str, wire_format: str) -> ToolLimits | None:
    """Return what an API accepts; None for a wire format of others, of which nothing is known.

    Args:
        provider: the name of the provider; may be empty.
        wire_format: the name of the wire format.
    """
    by_format = _BY_NAME.get(wire_format)
    if by_format is None:
        return None
    name = _ALIASES.get((provider, wire_format), provider)
    is_openai = wire_format.startswith("openai-")
    own = _BY_NAME.get(name) if is_openai else None
    if own is None and is_openai and provider.startswith("openai"):
        own = _BY_NAME["openai"]
    return own or by_format
