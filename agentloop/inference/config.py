"""What is needed to reach a model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from attrs import evolve, field, frozen
from attrs.validators import ge, gt, optional

from agentloop.errors import ConfigurationError
from agentloop.inference.presets import PRESETS, Auth, Preset, Quirks
from agentloop.inference.retrying import Patience
from agentloop.inference.secret import Secret, as_secret
from agentloop.values.inference_request import DEFAULT_OPTIONS, InferenceOptions
from agentloop.values.value import Value


def _as_url(url: str) -> str:
    if not re.match(r"https?://[^/\s]+", url):
        raise ConfigurationError(
            f"the base URL {url!r} is not an http or https address such as https://api.openai.com/v1"
        )
    return url.rstrip("/")


@frozen(eq=False, repr=False, kw_only=True)
class LLMConfig(Value):
    """What is needed to reach a model. Made by `LLMConfig.parse`, or spelled out.

    Attributes:
        model: the model, as the provider names it.
        base_url: where requests go, without the path of the endpoint.
        wire_format: the name of the wire format.
        api_key: the key; None where none is needed.
        provider: the provider's name, for errors and events.
        auth: how the key is sent.
        headers: headers to send besides.
        options: options for every inference; those of a request go before them.
        quirks: how the service differs from the others of its wire format.
        timeout: seconds to wait for the next byte of an answer.
        connect_timeout: seconds to wait for a connection.
        deadline: seconds for an inference with all its attempts; None for no limit.
        patience: how often to try, and how long to wait, when the provider cannot be reached or asks to wait.
        max_response_bytes: the most bytes of an answer to read.
    """

    model: str
    base_url: str = field(converter=_as_url)
    wire_format: str = "openai-chat"
    api_key: Secret | None = field(default=None, converter=as_secret)
    provider: str = ""
    auth: Auth = "bearer"
    headers: Mapping[str, str] = field(factory=dict, converter=dict)
    options: InferenceOptions = DEFAULT_OPTIONS
    quirks: Quirks = Quirks()  # noqa: RUF009  # immutable
    timeout: float = field(default=600.0, validator=gt(0))
    connect_timeout: float = field(default=10.0, validator=gt(0))
    deadline: float | None = field(default=None, validator=optional(gt(0)))
    patience: Patience = Patience()  # noqa: RUF009  # immutable
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
            api_key: the key; taken from the provider's environment variable when left out.
            environment: where to look for the key instead of `os.environ`.
            **settings: any other attribute of this class.

        Raises:
            ConfigurationError: for an unknown provider, a missing model or key, a setting that does not exist.
        """
        name, colon, model = text.partition(":")
        if not colon or not name or not model:
            raise ConfigurationError(
                f"the model string {text!r} is not of the form provider:model, as in 'openai:gpt-5'"
            )
        preset = PRESETS.get(name.lower())
        if preset is None:
            raise ConfigurationError(
                f"there is no provider {name!r}{_suggestion(name)}; known are {', '.join(PRESETS)}"
            )
        key = as_secret(api_key) or _key_from(preset, os.environ if environment is None else environment)
        if key is None and preset.key_variable and base_url is None:
            raise ConfigurationError(
                f"{preset.name} needs a key: set the environment variable {preset.key_variable}, or pass api_key"
            )
        config = cls(
            model=model,
            base_url=base_url or preset.base_url,
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
        try:
            return evolve(self, **settings)  # type: ignore[arg-type]  # checked by the fields themselves
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the settings {sorted(settings)} cannot be used: {error}") from error

    @property
    def name(self) -> str:
        """The model string, for errors and reports."""
        return f"{self.provider}:{self.model}" if self.provider else self.model

    def auth_headers(self) -> dict[str, str]:
        """Return the headers that carry the key, and those to send besides; for the one place that sends them."""
        if self.api_key is None:
            return dict(self.headers)
        key = self.api_key.reveal()
        name, value = ("authorization", f"Bearer {key}") if self.auth == "bearer" else (self.auth, key)
        return {name: value, **self.headers}


def _key_from(preset: Preset, environment: Mapping[str, str]) -> Secret | None:
    value = environment.get(preset.key_variable, "").strip() if preset.key_variable else ""
    return Secret(value) if value else None


def _suggestion(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  # loaded with the first unknown name

    closest = get_close_matches(name.lower(), PRESETS, n=1)
    return f", did you mean {closest[0]!r}?" if closest else ""
