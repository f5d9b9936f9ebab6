"""The configuration of a model: which one it is, and how to reach it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

from attrs import evolve, field, fields, frozen
from attrs.validators import min_len, optional

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import install_hint, suggest
from agentloop.models.keys import fetched_keys, mask_key
from agentloop.models.model_limits import ModelLimits
from agentloop.models.presets import PRESETS, Auth, Preset, Quirks, is_makers_url, suggest_provider
from agentloop.models.signing import CanSignRequests
from agentloop.values.inference import DEFAULT_OPTIONS, InferenceOptions, options_of
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.policies import RetryPolicy
from agentloop.values.secrets import KeyFunction, Secret, as_key, as_secret
from agentloop.values.value import Value, above, at_least, instance_of, one_of

Transport: TypeAlias = Literal["httpx", "httptools"]
"""What reads and writes HTTP: the transport of httpx, or the parser httptools (extra `fast`)."""

_PORTS = 65536
_MAX_LABEL_LENGTH = 63
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|passw|signature|^sig$", re.IGNORECASE)
"""Matches the names of headers and query parameters that contain secrets."""


def _as_url(url: str) -> str:
    if not isinstance(url, str):
        raise ConfigurationError(f"the base URL is a text such as https://api.openai.com/v1, not {url!r:.100}")
    scheme, _, remainder = url.partition("://")
    # A query is split off first: it may contain slashes and at signs.
    base, mark, query = remainder.partition("?")
    authority = base.partition("/")[0]
    if "@" in authority:
        raise ConfigurationError("credentials in the base URL are not supported; pass api_key or headers instead")
    is_well_formed = url.isprintable() and " " not in url and "#" not in url
    if scheme.lower() not in {"http", "https"} or not is_well_formed or not _is_authority(authority):
        raise ConfigurationError(
            f"the base URL {_without_query(url)!r} is not an http or https URL such as https://api.openai.com/v1"
        )
    return f"{scheme.lower()}://{base.rstrip('/')}{mark}{query}"


def _is_authority(text: str) -> bool:
    """Return whether this is a host, with or without a port."""
    # An IPv6 address in brackets contains colons that do not separate a port.
    host, colon, port = (text, "", "") if text.endswith("]") or ":" not in text else text.rpartition(":")
    if colon and not (port.isdecimal() and len(port) <= len(str(_PORTS)) and int(port) < _PORTS):
        return False
    if host.startswith("["):  # an IPv6 address
        return host.endswith("]")
    if ":" in host:  # one without the brackets, whose end nobody can tell from a port
        return False
    # These are the limits of DNS names.
    return all(0 < len(label) <= _MAX_LABEL_LENGTH for label in host.removesuffix(".").split("."))


def _check_transport(_config: LLMConfig, _attribute: object, transport: Transport | None) -> None:
    if transport is not None and transport not in get_args(Transport):
        raise ConfigurationError(f"the transport has to be 'httpx' or 'httptools', not {transport!r:.100}")
    if transport == "httptools" and find_spec("httptools") is None:
        raise ConfigurationError(f"the transport 'httptools' needs httptools: {install_hint('fast')}")


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _as_headers(headers: Mapping[str, str]) -> JsonObject:
    # Lower-case names make a configured header replace a default one of the same name.
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    for name, value in lowered.items():
        is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not is_name or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"the header {name!r} is invalid: a name consists of letters, digits and dashes, a value of printable ASCII"
            )
    return freeze_object(lowered)


def _mask_headers(headers: Mapping[str, str]) -> str:
    # Any header may contain a secret, whatever its name.
    return repr(dict.fromkeys(headers, "***"))


@frozen(eq=False, repr=False, kw_only=True)
class LLMConfig(Value):
    """The configuration of a model, usually created by `LLMConfig.parse`.

    Attributes:
        model: the model, by the provider's name for it.
        base_url: the URL that the paths of endpoints are appended to; its query is sent, and never shown.
        wire_format: the name of the wire format.
        api_key: the key, or a function that returns it, plain or async, which is called for each attempt; None where none is
            needed.
        provider: the name of the provider, for errors and events.
        auth: how the key is sent.
        headers: additional headers; their values are never shown.
        signer: signs each request, for services that require it; not used if the headers contain `authorization`.
        options: default options, also as a mapping of their names; those of a request override them.
        quirks: how the service differs from others with the same wire format.
        timeout: seconds to wait for the next byte of a response; None for `first_byte_seconds` and `idle_seconds` of `Bounds`.
        connect_timeout: seconds to wait for a connection.
        deadline: seconds for an inference including all attempts and the waits between them; None for `inference_seconds` of
            `Bounds`, which excludes the waits. `float("inf")` lifts this and the other limits.
        retry: the number of attempts and the waits between them, when the provider is unavailable or asks to wait.
        limits: the requests and tokens per minute and the concurrent requests that are allowed; None for no limits.
        max_response_bytes: the maximum size of a response after decompression, in bytes; None for `response_bytes` of
            `Bounds`.
        transport: what sends the requests; None for `httptools` if it is installed (extra `fast`), else `httpx`. Through a
            proxy, and with a client of your own, it is httpx or that client.

    Raises:
        ConfigurationError: for an invalid base URL, key or header, and a transport that is not installed.
        TypeError: for a value of a wrong type.
        ValueError: for a value out of range.
    """

    model: str = field(validator=min_len(1))
    base_url: str = field(converter=_as_url, repr=lambda url: repr(_without_query(url)))
    wire_format: str = "openai-chat"
    api_key: Secret | KeyFunction | None = field(default=None, converter=as_key, repr=mask_key)
    provider: str = ""
    auth: Auth = field(default="bearer", validator=one_of(get_args(Auth)))
    headers: Mapping[str, str] = field(default=EMPTY_OBJECT, converter=_as_headers, repr=_mask_headers)
    signer: CanSignRequests | None = field(default=None, validator=optional(instance_of(CanSignRequests)))
    options: InferenceOptions = field(default=DEFAULT_OPTIONS, converter=options_of)
    quirks: Quirks = field(default=Quirks(), validator=instance_of(Quirks))
    timeout: float | None = field(default=None, validator=optional(above(0)))
    connect_timeout: float = field(default=10.0, validator=above(0))
    deadline: float | None = field(default=None, validator=optional(above(0)))
    retry: RetryPolicy = field(default=RetryPolicy(), validator=instance_of(RetryPolicy))
    limits: ModelLimits | None = field(default=None, validator=optional(instance_of(ModelLimits)))
    max_response_bytes: float | None = field(default=None, validator=optional(at_least(1.0)))
    transport: Transport | None = field(default=None, validator=_check_transport)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        base_url: str | None = None,
        api_key: str | Secret | KeyFunction | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> LLMConfig:
        """Create a configuration from a model string such as `openai:gpt-5` or `ollama:qwen3`.

        Args:
            text: the name of the provider, a colon, and the provider's name for the model.
            base_url: another URL, such as that of a proxy or a server of your own, with or without the path of the provider, such as
                `/v1`; the key is then optional.
            api_key: the key, or a function that returns it; by default, taken from the provider's environment variable.
            environment: the environment variables; by default, `os.environ`.
            **settings: any other attribute of this class.

        Raises:
            ConfigurationError: for an unknown provider or setting, a missing model or key, or an invalid value.
        """
        # Neither the key nor the environment may remain in a local variable, which tracebacks can show.
        api_key, variables = as_key(api_key), _Variables(environment)
        del environment
        # Only the first colon separates: model names such as `qwen3:8b` contain colons too.
        name, _, model = (part.strip() for part in text.partition(":"))
        if not name or not model:
            raise ConfigurationError(
                f"the model string {text!r} does not have the form provider:model, as in 'openai:gpt-5'"
            )
        preset = find_preset(name.lower())
        # An empty api_key counts as missing, so that api_key=os.environ.get(…, "") works.
        key, auth = (api_key, preset.auth) if api_key is not None else _key_from(preset, variables, base_url)
        if preset.function_auth is not None and key is not None and not isinstance(key, Secret):
            auth = preset.function_auth
        config = cls(
            model=model,
            base_url=preset.url(variables.get) if base_url is None else preset.complete(_as_url(base_url)),
            wire_format=preset.wire_format,
            api_key=key,
            provider=preset.name,
            auth=auth,
            headers={
                header: value for header, name in preset.headers.items() if (value := variables.get(name).strip())
            },
            signer=preset.signer(variables.get) if preset.signer and key is None and "signer" not in settings else None,
            quirks=preset.quirks,
        )
        if config.headers and isinstance(headers := settings.get("headers"), Mapping):
            settings["headers"] = {**config.headers, **headers}
        return config.with_settings(**settings) if settings else config

    def with_settings(self, **settings: object) -> LLMConfig:
        """Return a configuration in which these attributes are replaced.

        Raises:
            ConfigurationError: for an unknown attribute or an invalid value.
        """
        names = [attribute.name for attribute in fields(LLMConfig)]
        for name in settings:
            if name not in names:
                raise ConfigurationError(
                    f"there is no setting {name!r}{suggest(name, names)}; the known ones are {', '.join(names)}"
                )
        try:
            return evolve(self, **settings)  # type: ignore[arg-type]  # checked by the fields themselves
        except (TypeError, ValueError, AttributeError) as error:
            reason = error.args[0] if error.args else type(error).__name__
            raise ConfigurationError(f"invalid value among the settings {', '.join(settings)}: {reason}") from error

    @property
    def name(self) -> str:
        """The model string, for errors and reports."""
        return f"{self.provider}:{self.model}" if self.provider else self.model

    @property
    def is_makers_api(self) -> bool:
        """Whether the base URL is that of an API at which the maker of models serves them itself, and no gateway or server."""
        return is_makers_url(self.base_url)

    @property
    def address(self) -> str:
        """The base URL without its query, for errors and reports."""
        return _without_query(self.base_url)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The key, or the last ones of its function, headers and parameters named like a secret, and those of the signer."""
        parameters = [part.partition("=")[::2] for part in self.base_url.partition("?")[2].split("&")]
        values = [value for name, value in (*self.headers.items(), *parameters) if _SECRET_NAME.search(name)]
        # The last word of a header such as "Basic dXNlcjpwYXNz" is the secret.
        secrets = [Secret(value.rpartition(" ")[2]) for value in values if value and value.isascii()]
        key = self.api_key
        keys = (key,) if isinstance(key, Secret) else fetched_keys(key) if key is not None else ()
        return (*keys, *secrets, *(self.signer.secrets if self.signer is not None else ()))

    def url(self, path: str) -> str:
        """Return the URL for a path of the service, with or without a slash before it; its query precedes that of the base URL."""
        base, _, base_query = self.base_url.partition("?")
        location, _, path_query = path.partition("?")
        location = f"/{location}" if location and not location.startswith("/") else location  # never another host
        query = "&".join(filter(None, (path_query, base_query)))
        return f"{base}{location}?{query}" if query else f"{base}{location}"

    def auth_headers(self, key: Secret | None = None) -> dict[str, str]:
        """Return the additional headers and the one that contains the key in plain text.

        Args:
            key: the key that the function returned, if it is one that knows the key.
        """
        if key is None and isinstance(self.api_key, Secret):
            key = self.api_key
        # Configured headers override the one with the key, for gateways with an authorization of their own.
        if key is None:
            return dict(self.headers)
        if self.auth == "bearer":
            return {"authorization": f"Bearer {key.reveal()}", **self.headers}
        return {self.auth: key.reveal(), **self.headers}


class _Variables:
    """Environment variables; the repr shows none of them."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None) -> None:
        self._values = os.environ if values is None else values

    def get(self, name: str) -> str:
        return self._values.get(name, "")


def find_preset(name: str) -> Preset:
    """Return a provider of this package, or one that another distribution has registered.

    Args:
        name: its name, in lower case.

    Raises:
        ConfigurationError: there is none, or it is invalid.
    """
    if name in PRESETS:
        return PRESETS[name]
    # Only a name that this package does not know costs the look-up, which takes some milliseconds.
    from agentloop.models.plugins import known_names, load_plugin, wrong_kind, wrong_name

    loaded = load_plugin(name, PRESETS)
    if loaded is None:
        raise ConfigurationError(
            f"there is no provider {name!r}{suggest_provider(name)}; the known ones are {known_names(PRESETS)}"
        )
    if not isinstance(loaded, Preset):
        raise wrong_kind(name, loaded, "a Preset")
    if loaded.name != name:
        raise wrong_name(name, loaded.name)
    return loaded


def _key_from(preset: Preset, variables: _Variables, base_url: str | None) -> tuple[Secret | KeyFunction | None, Auth]:
    """Return the key of the environment, and how it is sent.

    Raises:
        ConfigurationError: if there is none, but the provider needs one.
    """
    for name in preset.all_key_variables:
        if (key := as_secret(variables.get(name))) is not None:
            return key, "bearer" if name == preset.bearer_variable else preset.auth
    # A server of your own may not require a key, but a key that is available is sent to it.
    if base_url is not None:
        return None, preset.auth
    if preset.default_key is not None:
        return preset.default_key(), preset.auth
    if preset.key_variable and preset.needs_key:
        names = " or ".join(preset.all_key_variables)
        raise ConfigurationError(
            f"{preset.name} needs a key: set the environment variable {names}, or, in a program, pass api_key"
        )
    return None, preset.auth
