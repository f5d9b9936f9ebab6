"""Effects at an HTTP service that takes each key once: a request that is sent again, for whatever reason, has no second effect."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack
from urllib.parse import urlsplit

from attrs import define, field, frozen

from agentloop.contracts.tool import ToolContext
from agentloop.errors import ConfigurationError, NotJson, ToolFailed, ToolInDoubt
from agentloop.policies.web_addresses import HostRules
from agentloop.toolkits.http import METHODS, Body, Fetcher, Reply, decode_text
from agentloop.toolkits.keyed_functions import CALL, CONTEXT, KeyedFunction
from agentloop.toolkits.sql_effects import EffectOptions
from agentloop.tools.decorator import tool
from agentloop.tools.function_tool import FunctionTool
from agentloop.values.json import JsonValue, format_json, freeze, parse_json
from agentloop.values.secrets import Secret
from agentloop.values.tool_calls import Effect

P = ParamSpec("P")
R = TypeVar("R")

CLAIM_HEADER = "Agentloop-Claim-Token"
"""The header with the fencing token of the process that sends the request, where there is a journal."""

_WAITS = (0.0, 0.2, 0.8, 3.2, 12.8)
"""How long to wait before each attempt, in seconds."""
_UNCERTAIN = frozenset({408, 500, 502, 503, 504})
"""The status codes that do not say whether the request was carried out."""
_LATER = frozenset({409, 425, 429})
"""The status codes of a request that was not carried out, and may be later; 409 may say that one with the same key is still served."""
_LATER_ATTEMPTS = 3
_MAX_SHOWN = 500


@frozen
class ServiceReply:
    """What a service has answered.

    Attributes:
        status: the status code, from 200 to 299.
        data: the body as JSON data; None for an empty one, and a text for one that is not JSON.
    """

    status: int
    data: JsonValue


@define
class KeyedService:
    """The service of a tool, for one call: each request has a key of its own, which is the same when the call runs again.

    The function has to make the same requests in the same order whenever it runs for the same call.
    """

    _service: _Service
    _context: ToolContext
    _requests: int = field(default=0, init=False)

    async def post(self, path: str, data: object = None) -> ServiceReply:
        """Send JSON data by `POST`.

        Args:
            path: the path behind the URL of the service, such as `/charges`.
            data: the data; None for an empty body.

        Raises:
            ToolFailed: the service refused the request, or could not be reached.
            ToolInDoubt: it has not said what became of the request.
        """
        return await self.send("POST", path, data)

    async def send(self, method: str, path: str, data: object = None) -> ServiceReply:
        """Send a request.

        Args:
            method: `POST` or `PATCH`; other methods have no second effect anyway (RFC 9110, 9.2).
            path: the path behind the URL of the service.
            data: the data; None for an empty body.

        Raises:
            ToolFailed: the service refused the request, or could not be reached.
            ToolInDoubt: it has not said what became of the request.
            ConfigurationError: the method is another one.
            NotJson: the data has no JSON form.
        """
        if METHODS.get(method) is not Effect.EFFECT:
            raise ConfigurationError(f"a request with a key is a POST or a PATCH, not a {method}")
        self._requests += 1
        name = f"{self._context.idempotency_key}#{self._requests}"
        headers = {self._service.key_header: str(uuid.uuid5(uuid.NAMESPACE_URL, f"agentloop:{name}"))}
        if self._context.claim_token is not None:
            headers[CLAIM_HEADER] = str(self._context.claim_token)
        body = None if data is None else Body(format_json(freeze(data)), "application/json")
        return await self._service.send(method, path, body, headers)


def http_effect(
    url: str,
    *,
    headers: Mapping[str, str | Secret] | None = None,
    key_header: str = "Idempotency-Key",
    allow_private: bool = False,
    max_seconds: float = 30.0,
    **options: Unpack[EffectOptions],
) -> Callable[[Callable[Concatenate[KeyedService, P], Awaitable[R]]], FunctionTool[P, Awaitable[R]]]:
    """Turn an async function that calls an HTTP service into a tool whose calls have one effect there.

    The function takes a `KeyedService` as its first parameter, which the model does not see. Each request has a key, derived from that
    of the call. Where no answer comes, or one that may change, the request is sent again with the same key; after a crash, the call runs
    again with the same keys. That is safe if the service carries out a key once, as those do that document `Idempotency-Key`.

        @http_effect("https://api.example.com/v1", headers={"Authorization": "Bearer KEY"})
        async def charge(service: KeyedService, order: int, cents: int) -> JsonValue:
            \"\"\"Charge the customer of an order.\"\"\"
            return (await service.post("/charges", {"order": order, "cents": cents})).data

    Args:
        url: the URL of the service, to which paths are added.
        headers: headers of the program, such as `Authorization`; only sent encrypted, or to a private host.
        key_header: the name of the header that the service reads the key from.
        allow_private: whether the service may be in a private network or on this machine.
        max_seconds: the maximum time of one request, in seconds.
        options: the options of `@tool` that apply.

    Raises:
        ConfigurationError: the URL is none, or a header cannot be sent.
        ToolDefinitionError: when the function is decorated: it is not async, a method, or something that a model needs is missing.
    """
    service = _Service.at(url, headers or {}, key_header, max_seconds, allow_private=allow_private)

    def decorate(function: Callable[Concatenate[KeyedService, P], Awaitable[R]]) -> FunctionTool[P, Awaitable[R]]:
        keyed = KeyedFunction.of(function, http_effect.__name__, is_async=True)

        async def run(**arguments: Any) -> Any:
            context = arguments.pop(CONTEXT)
            del arguments[CALL]
            return await keyed.function(**{keyed.resource: KeyedService(service, context)}, **arguments)

        made: FunctionTool[P, Awaitable[R]] = tool(effect="idempotent", **options)(keyed.expose(run))
        return made

    return decorate


@frozen
class _Service:
    """A service.

    Attributes:
        url: its URL, without a slash at the end.
        fetcher: sends the requests.
        key_header: the name of the header with the key.
    """

    url: str
    fetcher: Fetcher
    key_header: str

    @classmethod
    def at(
        cls, url: str, headers: Mapping[str, str | Secret], key_header: str, max_seconds: float, *, allow_private: bool
    ) -> _Service:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
            raise ConfigurationError(f"the URL of a service is such as https://api.example.com/v1, not {url!r}")
        hosts = [parts.netloc.rpartition("@")[2]]
        rules = HostRules([], hosts) if allow_private else HostRules(hosts, ())
        return cls(url.rstrip("/"), Fetcher(rules, {hosts[0]: headers}, max_seconds=max_seconds), key_header)

    async def send(self, method: str, path: str, body: Body | None, headers: Mapping[str, str]) -> ServiceReply:
        """Send a request until the service says what became of it."""
        fetcher, doubt = self.fetcher.adding(headers), ""
        for attempt, seconds in enumerate(_WAITS):
            if attempt:
                await asyncio.sleep(seconds)
            try:
                reply = await fetcher.fetch(method, f"{self.url}/{path.lstrip('/')}", {}, body)
            except ToolInDoubt as error:
                doubt = str(error)
            except ToolFailed as error:
                if not doubt:
                    raise
                doubt = str(error)
            else:
                if reply.status in _UNCERTAIN:
                    doubt = f"the {method} was answered with status {reply.status}: {decode_text(reply):.{_MAX_SHOWN}}"
                elif reply.status not in _LATER or (attempt + 1 >= _LATER_ATTEMPTS and not doubt):
                    return _read(method, reply)
        raise ToolInDoubt(f"{len(_WAITS)} requests with the same key left open what became of it: {doubt}")


def _read(method: str, reply: Reply) -> ServiceReply:
    text = decode_text(reply)
    if not 200 <= reply.status < 300:  # noqa: PLR2004  # the codes of success
        raise ToolFailed(f"the service refused the {method} with status {reply.status}: {text:.{_MAX_SHOWN}}")
    try:
        return ServiceReply(reply.status, freeze(parse_json(text)) if text.strip() else None)
    except (ValueError, NotJson):
        return ServiceReply(reply.status, text)
