"""Asks servers of models what they can do. Loaded with the first question."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, Final

import httpx

from agentloop.models.config import LLMConfig
from agentloop.models.connections import tls_context
from agentloop.models.http_client import is_recorded
from agentloop.models.server_abilities import ServerAbilities, read_llama_cpp, read_models, read_ollama
from agentloop.values.secrets import Secret

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
    headers = config.auth_headers() if isinstance(config.api_key, Secret | None) else {}
    # Reading certificates takes long, and no certificate is checked without TLS.
    tls = tls_context() if config.base_url.startswith("https:") else False
    try:
        async with (
            asyncio.timeout(_SECONDS),
            httpx.AsyncClient(verify=tls, headers=headers, timeout=_SECONDS) as client,
        ):
            return await _Questions(config, client).ask(model)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None  # no answer is an answer, too: the request of the model follows and reports what is wrong


class _Questions:
    """The questions to one server."""

    def __init__(self, config: LLMConfig, client: httpx.AsyncClient) -> None:
        self._config = config
        self._client = client
        # The paths of the server's own API are beside `/v1`, also behind a prefix.
        base, _, self._query = config.base_url.partition("?")
        self._root = _VERSION.sub("", base)

    async def ask(self, model: str) -> ServerAbilities | None:
        provider = self._config.provider
        if self._config.wire_format == "ollama" or provider == "ollama":
            return await self._ask_ollama(model)
        if provider not in {"vllm", "lmstudio"} and (found := read_llama_cpp(await self._get(self._root, "/props"))):
            return found
        listed = read_models(await self._get(self._config.base_url.partition("?")[0], "/models"))
        if listed is not None and listed.server == "Ollama":
            return await self._ask_ollama(model) or listed
        return listed

    async def _ask_ollama(self, model: str) -> ServerAbilities | None:
        # Another server may take any POST for a request to its model.
        version = await self._get(self._root, "/api/version")
        if not isinstance(version, dict) or "version" not in version:
            return None
        return read_ollama(await self._send("POST", f"{self._root}/api/show", {"model": model}))

    async def _get(self, root: str, path: str) -> Any:
        return await self._send("GET", f"{root}{path}", None)

    async def _send(self, method: str, url: str, body: Any) -> Any:
        """Return the document of an answer; None if there is none, such as with the status 404."""
        address = f"{url}?{self._query}" if self._query else url
        async with self._client.stream(method, address, json=body, follow_redirects=False) as response:
            if response.status_code != _OK:
                return None
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _MAX_BYTES:
                    return None
        try:
            return httpx.Response(_OK, content=bytes(content)).json()
        except ValueError:
            return None
