"""Asks servers of models what they can do. Loaded with the first question."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, Final

from attrs import evolve, frozen

from agentloop.errors import ConfigurationError, InferenceError
from agentloop.models.config import LLMConfig
from agentloop.models.http_client import HttpClient, is_recorded
from agentloop.models.server_abilities import ServerAbilities, read_llama_cpp, read_models, read_ollama
from agentloop.values.json import format_json, parse_json

_LOG: Final = logging.getLogger("agentloop.inference")
_SECONDS: Final = 1.0
_MAX_BYTES: Final = 4_000_000
_MAX_ADDRESSES: Final = 256
_OK: Final = 200
_VERSION: Final = re.compile(r"/v\d+\Z")

_known: dict[tuple[str, str], ServerAbilities | None] = {}
"""What the servers have answered, by base URL and model; None for those that have not."""


async def ask_server(config: LLMConfig, model: str) -> ServerAbilities | None:
    """Ask a server what it can do with a model, at most for one second; each server once in the life of the process.

    Args:
        config: how to reach the server.
        model: the server's name for the model.

    Returns:
        What it says; None if it does not answer, is none of those that say it, or the requests are recorded or replayed.
    """
    if is_recorded():
        return None
    key = (config.base_url, model)
    if key not in _known:
        _keep(key, await ask_anew(config, model))
    return _known[key]


def note_abilities(config: LLMConfig, model: str, seen: ServerAbilities) -> None:
    """Keep what a server was seen to do, in place of what it has answered."""
    if not is_recorded():
        _LOG.info("%s, model %r: %s", config.base_url.partition("?")[0], model, seen.reason)
        _keep((config.base_url, model), seen)


def _keep(key: tuple[str, str], abilities: ServerAbilities | None) -> None:
    while len(_known) >= _MAX_ADDRESSES:
        del _known[next(iter(_known))]
    _known[key] = abilities


def forget_servers() -> None:
    """Ask all servers anew."""
    _known.clear()


async def ask_anew(config: LLMConfig, model: str) -> ServerAbilities | None:
    """Ask a server, whatever it has answered before."""
    # The paths of the server's own API are beside `/v1`, also behind a prefix.
    base, mark, query = config.base_url.partition("?")
    root = _VERSION.sub("", base)
    client = None
    try:
        client = HttpClient(
            evolve(config, base_url=f"{root}{mark}{query}", max_response_bytes=_MAX_BYTES, connect_timeout=_SECONDS)
        )
        async with asyncio.timeout(_SECONDS):
            return await _Questions(config, client, base.removeprefix(root)).ask(model)
    except (TimeoutError, InferenceError, ConfigurationError):
        return None  # no answer is an answer, too: the request of the model follows and reports what is wrong
    finally:
        if client is not None:
            await client.aclose()


@frozen
class _Questions:
    """The questions to one server.

    Attributes:
        config: how to reach it.
        client: sends to the root of its API.
        version: the path in front of those of the wire format, such as `/v1`.
    """

    config: LLMConfig
    client: HttpClient
    version: str

    async def ask(self, model: str) -> ServerAbilities | None:
        provider = self.config.provider
        if self.config.wire_format == "ollama" or provider == "ollama":
            return await self._ask_ollama(model)
        if provider not in {"vllm", "lmstudio"} and (found := read_llama_cpp(await self._send("GET", "/props"))):
            return found
        listed = read_models(await self._send("GET", f"{self.version}/models"))
        if listed is not None and listed.server == "Ollama":
            return await self._ask_ollama(model) or listed
        return listed

    async def _ask_ollama(self, model: str) -> ServerAbilities | None:
        # Another server may take any POST for a request to its model.
        version = await self._send("GET", "/api/version")
        if not isinstance(version, dict) or "version" not in version:
            return None
        return read_ollama(await self._send("POST", "/api/show", format_json({"model": model})))

    async def _send(self, method: str, path: str, body: bytes = b"") -> Any:
        """Return the document of an answer; None if there is none, such as with the status 404."""
        response = await self.client.open(path, {}, body, method=method)
        try:
            answer = await response.read()
            return parse_json(answer.body) if answer.status == _OK else None
        except ValueError:
            return None
        finally:
            await response.aclose()
