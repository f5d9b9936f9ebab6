"""What is needed to reach a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import get_args

from attrs import evolve, field, fields, frozen
from attrs.validators import ge, gt, in_, instance_of, min_len, optional

from agentloop.errors import ConfigurationError
from agentloop.inference.presets import PRESETS, Auth, Preset, Quirks
from agentloop.values.inference import DEFAULT_OPTIONS, InferenceOptions
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.policies import RetryPolicy
from agentloop.values.secrets import Secret, as_secret
from agentloop.values.value import Value

_PORTS = 65536
_LONGEST_LABEL = 63
_OF_A_SECRET = re.compile(r"auth|key|token|secret|cookie|passw|signature|^sig$", re.IGNORECASE)
"""The name of a header, or of a place in a query, that carries a secret."""


def _as_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    base, mark, query = rest.partition("?")
    place = base.partition("/")[0]
    if "@" in place:
        raise ConfigurationError("a name and a password in the base URL are not sent; pass api_key or headers instead")
    is_one_word = url.isprintable() and " " not in url and "#" not in url
    if scheme.lower() not in {"http", "https"} or not is_one_word or not _is_place(place):
        raise ConfigurationError(
            f"the base URL {_without_query(url)!r} is not an http or https address such as https://api.openai.com/v1"
        )
    return f"{scheme.lower()}://{base.rstrip('/')}{mark}{query}"


def _is_place(place: str) -> bool:
    """Say whether this can be a host, with or without a port."""
    host, colon, port = (place, "", "") if place.endswith("]") or ":" not in place else place.rpartition(":")
    if colon and not (port.isdecimal() and len(port) <= len(str(_PORTS)) and int(port) < _PORTS):
        return False
    if host.startswith("["):
        return host.endswith("]")
    return all(0 < len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split("."))


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _as_headers(headers: Mapping[str, str]) -> JsonObject:
    """Spell names in lower case, so that a header that is given goes before one of ours."""
    made = {name.lower(): value.strip() for name, value in headers.items()}
    for name, value in made.items():
        is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not is_name or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"the header {name!r} cannot be sent: a name is letters, digits and dashes, a value ASCII on one line"
            )
    return freeze_object(made)


def _shown_headers(headers: Mapping[str, str]) -> str:
    """Show the names only, since any of them may carry a key."""
    return repr(dict.fromkeys(headers, "***"))


@frozen(eq=False, repr=False, kw_only=True)
class LLMConfig(Value):
    """What is needed to reach a model. Made by `LLMConfig.parse`, or spelled out.

    Attributes:
        model: the model, as the provider names it.
        base_url: where requests go, without the path of the endpoint; a query is kept, and never shown.
        wire_format: the name of the wire format.
        api_key: the key; None where none is needed.
        provider: the provider's name, for errors and events.
        auth: how the key is sent.
        headers: headers to send besides; their values are never shown.
        options: options for every inference; those of a request go before them.
        quirks: how the service differs from the others of its wire format.
        timeout: seconds to wait for the next byte of an answer.
        connect_timeout: seconds to wait for a connection.
        deadline: seconds for an inference with all its attempts; None for no limit.
        retry: how often to try, and how long to wait, when the provider cannot be reached or asks to wait.
        max_response_bytes: the most bytes of an answer to read.

    Raises:
        ConfigurationError: for a base URL, a key or a header that cannot be used.
        TypeError: for a value of a wrong type.
        ValueError: for a value that its attribute cannot have.
    """

    model: str = field(validator=min_len(1))
    base_url: str = field(converter=_as_url, repr=lambda url: repr(_without_query(url)))
    wire_format: str = "openai-chat"
    api_key: Secret | None = field(default=None, converter=as_secret)
    provider: str = ""
    auth: Auth = field(default="bearer", validator=in_(get_args(Auth)))
    headers: Mapping[str, str] = field(default=EMPTY_OBJECT, converter=_as_headers, repr=_shown_headers)
    options: InferenceOptions = field(default=DEFAULT_OPTIONS, validator=instance_of(InferenceOptions))
    quirks: Quirks = field(default=Quirks(), validator=instance_of(Quirks))
    timeout: float = field(default=600.0, validator=gt(0))
    connect_timeout: float = field(default=10.0, validator=gt(0))
    deadline: float | None = field(default=None, validator=optional(gt(0)))
    retry: RetryPolicy = field(default=RetryPolicy(), validator=instance_of(RetryPolicy))
    max_response_bytes: int = field(default=64 * 1024 * 1024, validator=ge(1))

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        base_url: str | None = None,
        api_key: str | Secret | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> LLMConfig:
        """Make a configuration of a model string such as `openai:gpt-5` or `ollama:qwen3`.

        Args:
            text: the provider's name, a colon, and the model as the provider names it.
            base_url: another address, as for a proxy or a server of your own; then no key is required.
            api_key: the key; taken from the provider's environment variable when left out or empty.
            environment: where to look for the key instead of `os.environ`.
            **settings: any other attribute of this class.

        Raises:
            ConfigurationError: for an unknown provider, a missing model or key, a setting that does not exist, a value
                that cannot be used.
        """
        name, _, model = (part.strip() for part in text.partition(":"))
        if not name or not model:
            raise ConfigurationError(
                f"the model string {text!r} is not of the form provider:model, as in 'openai:gpt-5'"
            )
        preset = PRESETS.get(name.lower())
        if preset is None:
            raise ConfigurationError(
                f"there is no provider {name!r}{_suggestion(name.lower(), PRESETS)}; known are {', '.join(PRESETS)}"
            )
        environment = os.environ if environment is None else environment
        key = as_secret(api_key) or _key_from(preset, environment)
        if key is None and preset.key_variable and base_url is None:
            raise ConfigurationError(
                f"{preset.name} needs a key: set the environment variable {preset.key_variable} (in a program, the "
                "argument api_key=… does as well)"
            )
        config = cls(
            model=model,
            base_url=_url_from(preset, environment) if base_url is None else base_url,
            wire_format=preset.wire_format,
            api_key=key,
            provider=preset.name,
            auth=preset.auth,
            quirks=preset.quirks,
        )
        return config.with_settings(**settings) if settings else config

    def with_settings(self, **settings: object) -> LLMConfig:
        """Return the configuration with these attributes changed.

        Raises:
            ConfigurationError: when there is no such attribute, or the value is not one it can have.
        """
        known = [attribute.name for attribute in fields(LLMConfig)]
        for name in settings:
            if name not in known:
                raise ConfigurationError(
                    f"there is no setting {name!r}{_suggestion(name, known)}; known are {', '.join(known)}"
                )
        try:
            return evolve(self, **settings)  # type: ignore[arg-type]  # checked by the fields themselves
        except (TypeError, ValueError, AttributeError) as error:
            what = error.args[0] if error.args else type(error).__name__
            raise ConfigurationError(f"the settings {', '.join(settings)} cannot be used: {what}") from error

    @property
    def name(self) -> str:
        """The model string, for errors and reports."""
        return f"{self.provider}:{self.model}" if self.provider else self.model

    @property
    def address(self) -> str:
        """The base URL without its query, for errors and reports."""
        return _without_query(self.base_url)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The key, and what headers and the query carry under the name of such a thing; none of it is told."""
        query = [part.partition("=")[::2] for part in self.base_url.partition("?")[2].split("&")]
        told = [value for name, value in (*self.headers.items(), *query) if _OF_A_SECRET.search(name)]
        named = [Secret(value.rpartition(" ")[2]) for value in told if value and value.isascii()]
        return tuple(named) if self.api_key is None else (self.api_key, *named)

    def url(self, path: str) -> str:
        """Return where requests to this path of the service go; a query of the path stands before that of the base URL."""
        base, _, query = self.base_url.partition("?")
        place, _, asked = path.partition("?")
        queries = "&".join(filter(None, (asked, query)))
        return f"{base}{place}?{queries}" if queries else f"{base}{place}"

    def auth_headers(self) -> dict[str, str]:
        """Return the headers that carry the key, and those to send besides; for the one place that sends them."""
        if self.api_key is None:
            return dict(self.headers)
        key = self.api_key.reveal()
        name, value = ("authorization", f"Bearer {key}") if self.auth == "bearer" else (self.auth, key)
        return {name: value, **self.headers}


def _key_from(preset: Preset, environment: Mapping[str, str]) -> Secret | None:
    return as_secret(environment.get(preset.key_variable)) if preset.key_variable else None


def _url_from(preset: Preset, environment: Mapping[str, str]) -> str:
    def value(name: re.Match[str]) -> str:
        found = environment.get(name[1], "").rstrip("/")
        if not found:
            raise ConfigurationError(
                f"{preset.name} needs an address: set the environment variable {name[1]}, or pass base_url"
            )
        return found

    return re.sub(r"\{(\w+)\}", value, preset.base_url)


def _suggestion(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  # loaded with the first unknown name

    closest = get_close_matches(name, known, n=1)
    return f", did you mean {closest[0]!r}?" if closest else ""
