"""Configuring a model."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError
from agentloop.inference import PRESETS, LLMConfig, Preset, Quirks, Secret, wire_format
from agentloop.values import InferenceOptions
from agentloop.values.policies import RetryPolicy

RESOURCE = {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/"}
KEYS = {preset.key_variable: f"key of {name}" for name, preset in PRESETS.items() if preset.key_variable}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_in_whatever_a_provider_needs(name: str) -> None:
    """The provider's name alone gives address, wire format, key, and how the key is sent."""
    preset = PRESETS[name]
    config = LLMConfig.parse(f"{name}:some-model", environment={**KEYS, **RESOURCE})
    assert (config.model, config.provider, config.name) == ("some-model", name, f"{name}:some-model")
    assert (config.base_url, config.wire_format, config.auth, config.quirks) == (
        preset.base_url.format(AZURE_OPENAI_ENDPOINT="https://mine.openai.azure.com"),
        preset.wire_format,
        preset.auth,
        preset.quirks,
    )
    assert config.api_key == (Secret(KEYS[preset.key_variable]) if preset.key_variable else None)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_a_preset_is_complete(preset: Preset) -> None:
    """Every row has a name in lower case, an address in its final form, and a wire format that exists."""
    assert PRESETS[preset.name] is preset
    assert re.fullmatch(r"[a-z0-9_-]+", preset.name)
    if "{" not in preset.base_url:
        assert LLMConfig(model="m", base_url=preset.base_url, auth=preset.auth).base_url == preset.base_url
    assert wire_format(preset.wire_format).name == preset.wire_format


@pytest.mark.parametrize("preset", [row for row in PRESETS.values() if row.key_variable], ids=lambda row: row.name)
def test_a_missing_key_is_told_with_the_variable_to_set(preset: Preset) -> None:
    """A provider that needs a key says so, and where to put it; an empty one is none."""
    for environment in ({}, {preset.key_variable: " "}):
        with pytest.raises(ConfigurationError, match=f"{preset.name} needs a key: .*{preset.key_variable}.*api_key"):
            LLMConfig.parse(f"{preset.name}:m", environment=environment)
    with pytest.raises(ConfigurationError, match="needs a key"):
        LLMConfig.parse(f"{preset.name}:m", environment={}, api_key="")


def test_an_address_of_ones_own_is_taken_from_the_environment() -> None:
    """A provider whose customers have an address each says which variable holds it, unless it is given."""
    with pytest.raises(ConfigurationError, match=r"azure needs a URL: .*AZURE_OPENAI_ENDPOINT.*base_url"):
        LLMConfig.parse("azure:m", environment=KEYS)
    assert LLMConfig.parse("azure:m", environment=KEYS, base_url="https://x.test/v1").base_url == "https://x.test/v1"


def test_the_key_is_looked_for_in_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment of its own, parse looks into that of the process."""
    monkeypatch.setenv("OPENAI_API_KEY", " from the environment\n")
    assert LLMConfig.parse("openai:m").api_key == Secret("from the environment")
    assert LLMConfig.parse("openai:m", api_key="given").api_key == Secret("given")
    assert LLMConfig.parse("openai:m", api_key=Secret("given")).api_key == Secret("given")
    assert LLMConfig.parse("openai:m", api_key="").api_key == Secret("from the environment")


def test_an_address_of_ones_own_needs_no_key() -> None:
    """A proxy or a server of one's own may want none; one that is there is sent."""
    config = LLMConfig.parse("openai:m", base_url="http://localhost:1/", environment={})
    assert (config.base_url, config.api_key) == ("http://localhost:1", None)
    assert LLMConfig.parse("openai:m", base_url="http://localhost:1", environment=KEYS).api_key is not None


def test_the_model_is_everything_after_the_first_colon() -> None:
    """Models may have colons and slashes in their names, and providers may be written in capitals."""
    assert LLMConfig.parse("ollama:qwen3:8b").model == "qwen3:8b"
    assert LLMConfig.parse("vllm:org/model:tag/1").model == "org/model:tag/1"
    assert LLMConfig.parse(" Ollama : qwen3 ").name == "ollama:qwen3"


@pytest.mark.parametrize("text", ["", ":", "openai", "openai:", ":gpt-5", "openai: ", " :gpt-5", "gpt-5"])
def test_a_string_that_is_no_provider_and_model_is_refused_with_an_example(text: str) -> None:
    """A malformed model string is shown, with how one looks."""
    with pytest.raises(
        ConfigurationError, match=rf"{re.escape(repr(text))} does not have the form provider:model, as in"
    ):
        LLMConfig.parse(text, api_key="k")


@pytest.mark.parametrize(("wrong", "meant"), [("opanai", "openai"), ("OpenAi-", "openai"), ("olama", "ollama")])
def test_an_unknown_provider_is_refused_with_the_closest_one(wrong: str, meant: str) -> None:
    """A misspelled provider gets a suggestion, and the list of those there are."""
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'.*the known ones are openai, "):
        LLMConfig.parse(f"{wrong}:m", api_key="k")


def test_a_provider_like_no_other_gets_no_suggestion() -> None:
    """Where nothing is close, nothing is suggested."""
    with pytest.raises(ConfigurationError, match="there is no provider 'zzz'; the known ones are"):
        LLMConfig.parse("zzz:m", api_key="k")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.openai.com/v1",
        "ftp://host",
        "http://",
        "https:///v1",
        "http://ho st",
        "http://host/a b",
        "http://host\n",
        "http://host:port",
        "http://host:65536",
        "http://host:1234567890",
        "http://:80",
        "http://a..b",
        "http://.host",
        f"http://{'a' * 64}.com",
        "http://[::1",
        "http://host/v1#part",
    ],
)
def test_a_base_url_that_is_no_address_is_refused(url: str) -> None:
    """What cannot be reached by HTTP is refused when it is configured, not when it is used."""
    with pytest.raises(ConfigurationError, match="is not an http or https URL such as"):
        LLMConfig.parse("openai:m", base_url=url, api_key="k")


@pytest.mark.parametrize("url", ["http://me:secret@host/v1", "http://secret@host", "https://me:secret@host:bad"])
def test_a_name_and_a_password_in_a_base_url_are_refused_unshown(url: str) -> None:
    """Credentials in an address would not be sent; the error says what to do and does not repeat them."""
    with pytest.raises(ConfigurationError, match="pass api_key or headers") as caught:
        LLMConfig.parse("openai:m", base_url=url, api_key="k")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kept", "endpoint"),
    [
        ("http://host", "http://host", "http://host/x"),
        ("http://host/", "http://host", "http://host/x"),
        ("HTTPS://Host.Example:8443/a/b/", "https://Host.Example:8443/a/b", "https://Host.Example:8443/a/b/x"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1", "http://[::1]:80/v1/x"),
        ("http://[::1]", "http://[::1]", "http://[::1]/x"),
        ("http://host./v1", "http://host./v1", "http://host./v1/x"),
        ("http://bücher.example", "http://bücher.example", "http://bücher.example/x"),
        ("http://host/v1/?a=b/", "http://host/v1?a=b/", "http://host/v1/x?a=b/"),
        ("http://host?a=@b", "http://host?a=@b", "http://host/x?a=@b"),
    ],
)
def test_an_address_is_kept_without_the_slash_at_its_end(url: str, kept: str, endpoint: str) -> None:
    """Every form of address is understood, and a path comes between it and its query."""
    config = LLMConfig(model="m", base_url=url)
    assert (config.base_url, config.url("/x")) == (kept, endpoint)


def test_the_query_of_an_address_is_not_shown() -> None:
    """A query may hold a key: it is sent, and neither shown nor told in errors."""
    config = LLMConfig(model="m", base_url="http://host/v1?key=secret")
    assert config.address == "http://host/v1"
    assert "base_url='http://host/v1'" in repr(config)
    with pytest.raises(ConfigurationError) as caught:
        config.with_settings(base_url="http://ho st?key=secret")
    assert "secret" not in str(caught.value) + repr(config)


def test_settings_override_what_the_preset_says() -> None:
    """Any attribute can be set beside the model string."""
    settings: dict[str, Any] = {
        "wire_format": "other",
        "auth": "api-key",
        "headers": {"x": "y"},
        "options": InferenceOptions(temperature=0),
        "quirks": Quirks(max_tokens_field="n"),
        "timeout": 1,
        "connect_timeout": 2,
        "deadline": 3,
        "retry": RetryPolicy(max_attempts=1),
        "max_response_bytes": 4,
        "provider": "mine",
    }
    config = LLMConfig.parse("openai:m", api_key="k", **settings)
    assert {name: getattr(config, name) for name in settings} == settings
    assert config == LLMConfig.parse("openai:m", api_key="k").with_settings(**settings)


def test_with_settings_returns_another_configuration() -> None:
    """A change makes a new configuration and leaves the old one."""
    config = LLMConfig.parse("ollama:m")
    assert (config.with_settings(model="n").model, config.model) == ("n", "m")


def test_a_setting_that_does_not_exist_is_refused_with_the_closest_one() -> None:
    """A misspelled setting is an error that says which one was meant."""
    with pytest.raises(
        ConfigurationError, match=r"no setting 'tiemout', did you mean 'timeout'\?; the known ones are model, "
    ):
        LLMConfig.parse("ollama:m", tiemout=5)
    with pytest.raises(ConfigurationError, match="no setting 'temperature'; the known ones are"):
        LLMConfig.parse("ollama:m").with_settings(temperature=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("timeout", 0),
        ("timeout", "soon"),
        ("timeout", float("nan")),
        ("connect_timeout", -1),
        ("deadline", 0),
        ("max_response_bytes", 0),
        ("auth", "cookie"),
        ("api_key", 5),
        ("api_key", "k\nk"),
        ("headers", 5),
        ("headers", {"x": 5}),
        ("headers", {"x y": "z"}),
        ("headers", {"": "z"}),
        ("headers", {"x": "ü"}),
        ("headers", {"x": "a\nb"}),
        ("options", {"temperature": 0}),
        ("retry", 3),
        ("quirks", None),
        ("base_url", "nowhere"),
    ],
)
def test_a_setting_that_cannot_be_is_a_configuration_error(name: str, value: object) -> None:
    """A value that an attribute cannot have is refused by name when it is set."""
    with pytest.raises(ConfigurationError) as caught:
        LLMConfig.parse("openai:m", api_key="k").with_settings(**{name: value})
    assert str(caught.value).isprintable()


def test_no_deadline_is_a_deadline() -> None:
    """A deadline can be taken away again."""
    config = LLMConfig.parse("ollama:m", deadline=5)
    assert config.with_settings(deadline=None).deadline is None


def test_header_names_are_kept_in_lower_case() -> None:
    """Headers are the same whatever the case of their names."""
    config = LLMConfig.parse("ollama:m", headers={"X-Title": " tests "})
    assert config.headers == {"x-title": "tests"}


def test_a_configuration_is_a_value() -> None:
    """Configurations compare and hash by what they say, and cannot be changed through a part of them."""
    one, other = (LLMConfig.parse("openai:m", api_key="k", headers={"x": "y"}) for _ in range(2))
    assert one == other
    assert len({one, other}) == 1
    assert one != other.with_settings(api_key="l")
    headers: Any = one.headers
    with pytest.raises(TypeError):
        headers["x"] = "z"


def test_a_mapping_that_was_given_may_be_changed_afterwards() -> None:
    """A configuration keeps what it was given, not the thing it was given in."""
    headers = {"x": "y"}
    config = LLMConfig.parse("ollama:m", headers=headers)
    headers["x"] = "z"
    assert config.headers == {"x": "y"}


@given(st.text())
def test_any_text_is_a_base_url_or_a_configuration_error(text: str) -> None:
    """No address, however odd, is another error than a configuration error."""
    for url in (text, f"http://{text}", f"https://host:{text}", f"http://host/{text}"):
        try:
            LLMConfig(model="m", base_url=url)
        except ConfigurationError:
            continue


@given(st.text())
def test_any_text_is_a_model_string_or_a_configuration_error(text: str) -> None:
    """No model string, however odd, is another error than a configuration error."""
    try:
        config = LLMConfig.parse(text, api_key="k")
    except ConfigurationError:
        return
    assert config.model
    assert config.provider in PRESETS
