"""What a server of models says about itself: which servers are asked, and how their answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen

from agentloop.errors import ConfigurationError
from agentloop.models.presets import PRESETS, is_makers_url
from agentloop.values.value import Value

_WIRE_FORMATS: Final = frozenset({"openai-chat", "ollama"})
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@frozen(eq=False, repr=False)
class ServerAbilities(Value):
    """What a server can do with a model.

    Attributes:
        server: the name of its software.
        has_tools: whether the template of the model has tools; None if the server does not say it.
        enforces_schemas: whether the server constrains answers to a schema.
        reason: how it is known, as a sentence without its point.
    """

    server: str
    has_tools: bool | None
    enforces_schemas: bool
    reason: str

    @property
    def mode(self) -> str:
        """The mode in which the model is called first; the first answer may show that the next one suits it."""
        if self.has_tools is not False:
            return "native"
        return "structured" if self.enforces_schemas else "validated"


@lru_cache(maxsize=256)
def is_asked(provider: str, base_url: str, wire_format: str) -> bool:
    """Return whether a server is asked what it can do: one of the user's, at a local address or another one than the provider's.

    Args:
        provider: the name of the provider; may be empty.
        base_url: the base URL.
        wire_format: the name of the wire format.
    """
    if wire_format not in _WIRE_FORMATS or is_makers_url(base_url):
        return False
    host, preset = urlsplit(base_url).hostname, PRESETS.get(provider)
    if preset is None or host in _THIS_MACHINE:
        return True
    try:
        own = preset.url(lambda _: "")
    except ConfigurationError:  # it has no URL of its own, such as that of a resource of Azure
        return False
    return urlsplit(own).hostname != host


def read_llama_cpp(document: object) -> ServerAbilities | None:
    """Read the answer of llama.cpp to `GET /props`; None if it is the answer of something else.

    Source: `tools/server/README.md` of llama.cpp.
    """
    if not isinstance(document, Mapping) or "chat_template" not in document:
        return None
    caps = document.get("chat_template_caps")
    if isinstance(caps, Mapping) and isinstance(caps.get("supports_tools"), bool):
        has_tools: bool = caps["supports_tools"]
    else:  # an older server says it by the template itself
        has_tools = "tools" in f"{document['chat_template']}{document.get('chat_template_tool_use', '')}"
    return ServerAbilities(
        "llama.cpp", has_tools, enforces_schemas=True, reason=_said("llama.cpp", has_tools=has_tools)
    )


def read_ollama(document: object) -> ServerAbilities | None:
    """Read the answer of Ollama to `POST /api/show`; None if it is the answer of something else.

    Source: `docs/api.md` of Ollama.
    """
    if not isinstance(document, Mapping) or "template" not in document:
        return None
    capabilities = document.get("capabilities")
    # Before 0.6.4, the template alone says it.
    has_tools = "tools" in capabilities if isinstance(capabilities, list) else ".Tools" in str(document["template"])
    return ServerAbilities("Ollama", has_tools, enforces_schemas=True, reason=_said("Ollama", has_tools=has_tools))


_OWNERS: Final = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "library": "Ollama"}
"""The software of servers by `owned_by` of the models that they list; all of these constrain answers to schemas."""


def read_models(document: object) -> ServerAbilities | None:
    """Read the answer to `GET /v1/models`, which tells the software of the server and nothing of tools; None if it does not."""
    models: Any = document.get("data") if isinstance(document, Mapping) else None
    owners = (
        {str(each.get("owned_by")) for each in models if isinstance(each, Mapping)} if isinstance(models, list) else ()
    )
    server = next((name for owner, name in _OWNERS.items() if owner in owners), None)
    if server is None:
        return None
    reason = f"{server} answers, and does not say whether the model has tools"
    return ServerAbilities(server, None, enforces_schemas=True, reason=reason)


def _said(server: str, *, has_tools: bool) -> str:
    return f"{server} says that the template of the model has {'tools' if has_tools else 'no tools'}"
