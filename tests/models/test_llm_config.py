"""Tests of `LLMConfig`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError
from agentloop.models import PRESETS, LLMConfig, Preset, Quirks, wire_format
from agentloop.values import InferenceOptions, Secret
from agentloop.values.policies import RetryPolicy

RESOURCE = {
    "AWS_REGION": "eu-west-1",
    "AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/",
    "GOOGLE_CLOUD_PROJECT": "mine",
}
KEYS = {preset.key_variable: f"key of {name}" for name, preset in PRESETS.items() if preset.key_variable}
URLS = {
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "azure": "https://mine.openai.azure.com/openai/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "bedrock": "https://bedrock-runtime.eu-west-1.amazonaws.com",
    "cohere": "https://api.cohere.com",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
    "vertex": "https://aiplatform.googleapis.com/v1beta1/projects/mine/locations/global/publishers/google",
    "openrouter": "https://openrouter.ai/api/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "xai": "https://api.x.ai/v1",
    "together": "https://api.together.xyz/v1",
    "fireworks": "https://api.fireworks.ai/inference/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "huggingface": "https://router.huggingface.co/v1",
    "perplexity": "https://api.perplexity.ai/v1",
    "github": "https://models.github.ai/inference",
    "nvidia": "https://integrate.api.nvidia.com/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "zai": "https://api.z.ai/api/paas/v4",
    "qwen": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    "litellm": "http://localhost:4000",
    "ollama": "http://localhost:11434/v1",
    "ollama-native": "http://localhost:11434",
    "vllm": "http://localhost:8000/v1",
    "lmstudio": "http://localhost:1234/v1",
    "llamacpp": "http://localhost:8080/v1",
}


@pytest.mark.parametrize("name", URLS)
def test_a_preset_provides_all_settings(name: str) -> None:
    """The provider's name determines URL, wire format, key, and how the key is sent."""
    preset = PRESETS[name]
    config = LLMConfig.parse(f"{name}:some-model", environment={**KEYS, **RESOURCE})
    assert (config.model, config.provider, config.name) == ("some-model", name, f"{name}:some-model")
    assert (config.base_url, config.wire_format, config.auth, config.quirks) == (
        URLS[name],
        preset.wire_format,
        preset.auth,
        preset.quirks,
    )
    if preset.default_key is None:
        assert config.api_key == (Secret(KEYS[preset.key_variable]) if preset.key_variable else None)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_a_preset_is_complete(preset: Preset) -> None:
    """Every preset has a lower-case name, a way to send the key, and a wire format that exists."""
    assert PRESETS[preset.name] is preset
    assert re.fullmatch(r"[a-z0-9_-]+", preset.name)
    assert LLMConfig(model="m", base_url="http://host", auth=preset.auth).auth == preset.auth
    assert wire_format(preset.wire_format).name == preset.wire_format


@pytest.mark.parametrize(
    "preset", [row for row in PRESETS.values() if row.key_variable and row.needs_key], ids=lambda row: row.name
)
def test_the_error_for_a_missing_key_names_the_variables_to_set(preset: Preset) -> None:
    """An empty key counts as missing."""
    names = " or ".join(preset.all_key_variables)
    for environment in ({}, {preset.key_variable: " "}):
        with pytest.raises(ConfigurationError, match=f"{preset.name} needs a key: .*{names}, or.*api_key"):
            LLMConfig.parse(f"{preset.name}:m", environment=environment)
    with pytest.raises(ConfigurationError, match="needs a key"):
        LLMConfig.parse(f"{preset.name}:m", environment={}, api_key="")


@pytest.mark.parametrize(
    ("model", "environment", "header", "value"),
    [
        ("anthropic:m", {"ANTHROPIC_AUTH_TOKEN": "t"}, "authorization", "Bearer t"),
        ("anthropic:m", {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k"}, "x-api-key", "k"),
        ("azure:m", {**RESOURCE, "AZURE_OPENAI_AD_TOKEN": "t"}, "authorization", "Bearer t"),
        ("azure:m", {**RESOURCE, "AZURE_OPENAI_API_KEY": "k"}, "api-key", "k"),
        ("gemini:m", {"GEMINI_API_KEY": "k"}, "x-goog-api-key", "k"),
        ("gemini:m", {"GEMINI_API_KEY": "k", "GOOGLE_API_KEY": "g"}, "x-goog-api-key", "g"),
        ("huggingface:m", {"HUGGING_FACE_HUB_TOKEN": "t"}, "authorization", "Bearer t"),
        ("ollama:m", {"OLLAMA_API_KEY": "k"}, "authorization", "Bearer k"),
        ("litellm:m", {"LITELLM_PROXY_API_KEY": "k"}, "authorization", "Bearer k"),
        ("openai:m", {"OPENAI_API_KEY": "k", "OPENAI_ORG_ID": "org-1"}, "openai-organization", "org-1"),
        ("openai:m", {"OPENAI_API_KEY": "k", "OPENAI_PROJECT_ID": "proj"}, "openai-project", "proj"),
    ],
)
def test_keys_and_headers_come_from_the_variables_of_the_providers_own_client(
    model: str, environment: dict[str, str], header: str, value: str
) -> None:
    """What is set for the provider's own client has the same meaning here."""
    assert LLMConfig.parse(model, environment=environment).auth_headers()[header] == value


@pytest.mark.parametrize(
    ("model", "variable", "value", "url"),
    [
        ("openai:m", "OPENAI_BASE_URL", "http://proxy/v1/", "http://proxy/v1"),
        ("openai-responses:m", "OPENAI_BASE_URL", "http://proxy/v1", "http://proxy/v1"),
        ("anthropic:m", "ANTHROPIC_BASE_URL", "http://proxy/", "http://proxy/v1"),
        ("gemini:m", "GOOGLE_GEMINI_BASE_URL", "http://proxy", "http://proxy/v1beta"),
        ("groq:m", "GROQ_BASE_URL", "http://proxy", "http://proxy/openai/v1"),
        ("together:m", "TOGETHER_BASE_URL", "http://proxy/v1", "http://proxy/v1"),
        ("cerebras:m", "CEREBRAS_BASE_URL", "http://proxy", "http://proxy/v1"),
        ("zai:m", "ZAI_BASE_URL", "http://proxy/v4", "http://proxy/v4"),
        ("litellm:m", "LITELLM_PROXY_API_BASE", "http://proxy:4000", "http://proxy:4000"),
        ("openai:m", "OPENAI_BASE_URL", " ", "https://api.openai.com/v1"),
    ],
)
def test_a_url_comes_from_the_variable_of_the_providers_own_client(
    model: str, variable: str, value: str, url: str
) -> None:
    """The URL is completed where that client completes it; `base_url` overrides it."""
    environment = {**KEYS, variable: value}
    assert LLMConfig.parse(model, environment=environment).base_url == url
    assert LLMConfig.parse(model, environment=environment, base_url="http://other/own").base_url == "http://other/own"


@pytest.mark.parametrize(
    ("provider", "given", "url"),
    [
        *[
            (name, "", path)
            for name, path in [
                ("anthropic", "/v1"),
                ("gemini", "/v1beta"),
                ("groq", "/openai/v1"),
                ("cerebras", "/v1"),
                ("cohere", ""),
                ("ollama-native", ""),
                ("ollama", "/v1"),
                ("litellm", "/v1"),
                ("openai", "/v1"),
                ("vllm", "/v1"),
                ("azure", "/openai/v1"),
                ("bedrock", ""),
            ]
        ],
        ("anthropic", "/", "/v1"),
        ("anthropic", "/v1/", "/v1"),
        ("anthropic", "?a=/b", "/v1?a=/b"),
        ("anthropic", "/claude", "/claude"),
        ("groq", "/openai", "/openai/v1"),
        ("groq", "/open", "/open"),
        ("openrouter", "/api", "/api/v1"),
        ("cohere", "/v2", ""),
        ("cohere", "/mine/v2", "/mine"),
        ("ollama-native", "/api", ""),
        ("openai", "/v1/models", "/v1/models"),
        ("azure", "/openai/deployments/d?api-version=1", "/openai/deployments/d?api-version=1"),
    ],
)
def test_a_given_url_has_the_path_of_the_provider_or_not(provider: str, given: str, url: str) -> None:
    """What a given URL lacks of the path of the provider is added; any other path is the user's own."""
    config = LLMConfig.parse(f"{provider}:m", base_url=f"http://other{given}", api_key="k", environment={})
    assert config.base_url == f"http://other{url}"


def test_own_headers_are_added_to_those_of_the_environment() -> None:
    """A header of the same name replaces one of the environment, whatever its case."""
    environment = {**KEYS, "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj"}
    headers = {"X-Title": "tests", "OpenAI-Project": "other"}
    config = LLMConfig.parse("openai:m", environment=environment, headers=headers)
    assert config.headers == {"openai-organization": "org-1", "openai-project": "other", "x-title": "tests"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://localhost:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        (":56789", "http://127.0.0.1:56789"),
        ("example.com:56789/", "http://example.com:56789"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:80", "http://127.0.0.1:80"),
        ("[::]:80", "http://[::1]:80"),
        ("http://example.com", "http://example.com:80"),
        ("https://example.com", "https://example.com:443"),
        ("https://example.com:1/path/", "https://example.com:1/path"),
        ("example.com/path", "http://example.com:11434/path"),
        ("[0001:002::1]", "http://[0001:002::1]:11434"),
        ("0001:002::1", "http://[0001:002::1]:11434"),
        ("1:2:3:4:5:6:7:8", "http://[1:2:3:4:5:6:7:8]:11434"),
        ("::", "http://[::1]:11434"),
        ("http://", "http://localhost:11434"),
        (' "example.com:1" ', "http://example.com:1"),
        ("[0001:002::1]:56789/path", "http://[0001:002::1]:56789/path"),
    ],
)
def test_the_host_of_ollama_has_every_form_that_its_own_client_accepts(host: str, url: str) -> None:
    """A host, a host with a port, a port after a colon, an address that a server listens on, and a URL."""
    environment = {"OLLAMA_HOST": host}
    assert LLMConfig.parse("ollama-native:m", environment=environment).base_url == url
    assert LLMConfig.parse("ollama:m", environment=environment).base_url == f"{url}/v1"


@pytest.mark.parametrize("host", ["a:b:c", "[::1", "ftp://x", "host:port"])
def test_an_invalid_host_of_ollama_is_an_invalid_url(host: str) -> None:
    """The error quotes the URL."""
    with pytest.raises(ConfigurationError, match="is not an http or https URL"):
        LLMConfig.parse("ollama:m", environment={"OLLAMA_HOST": host})


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("", "aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
        ("europe-west4", "europe-west4-aiplatform.googleapis.com"),
    ],
)
def test_a_location_of_vertex_has_its_host(location: str, host: str) -> None:
    """The host depends on the location, which the path repeats."""
    environment = {"GOOGLE_CLOUD_PROJECT": "mine", "GOOGLE_CLOUD_LOCATION": location}
    url = LLMConfig.parse("vertex:gemini-3-pro", environment=environment, api_key="token").base_url
    assert url == f"https://{host}/v1beta1/projects/mine/locations/{location or 'global'}/publishers/google"


def test_vertex_needs_a_project() -> None:
    """The error names the variable; a server of one's own needs no project."""
    with pytest.raises(ConfigurationError, match=r"vertex needs a project of Google Cloud: .* GOOGLE_CLOUD_PROJECT"):
        LLMConfig.parse("vertex:m", environment={}, api_key="token")
    server = {**RESOURCE, "GOOGLE_VERTEX_BASE_URL": "http://proxy/"}
    base_url = LLMConfig.parse("vertex:m", environment=server, api_key="t").base_url
    assert base_url.startswith("http://proxy/v1beta1/projects/")


def test_a_customer_specific_url_comes_from_the_environment() -> None:
    """The error for a missing URL names the variable; `base_url` overrides it."""
    with pytest.raises(ConfigurationError, match=r"azure needs a URL: .*AZURE_OPENAI_ENDPOINT.*base_url"):
        LLMConfig.parse("azure:m", environment=KEYS)
    assert LLMConfig.parse("azure:m", environment=KEYS, base_url="https://x.test/v1").base_url == "https://x.test/v1"


def test_the_key_comes_from_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, `parse` reads `os.environ`; `api_key` overrides it."""
    monkeypatch.setenv("OPENAI_API_KEY", " from the environment\n")
    assert LLMConfig.parse("openai:m").api_key == Secret("from the environment")
    assert LLMConfig.parse("openai:m", api_key="explicit").api_key == Secret("explicit")
    assert LLMConfig.parse("openai:m", api_key=Secret("explicit")).api_key == Secret("explicit")
    assert LLMConfig.parse("openai:m", api_key="").api_key == Secret("from the environment")


def test_a_custom_base_url_makes_the_key_optional() -> None:
    """A key that is available is sent nevertheless."""
    config = LLMConfig.parse("openai:m", base_url="http://localhost:1/", environment={})
    assert (config.base_url, config.api_key) == ("http://localhost:1/v1", None)
    assert LLMConfig.parse("openai:m", base_url="http://localhost:1", environment=KEYS).api_key is not None


def test_the_model_is_everything_after_the_first_colon() -> None:
    """Model names may contain colons and slashes, and the case of the provider is ignored."""
    assert LLMConfig.parse("ollama:qwen3:8b").model == "qwen3:8b"
    assert LLMConfig.parse("vllm:org/model:tag/1").model == "org/model:tag/1"
    assert LLMConfig.parse(" Ollama : qwen3 ").name == "ollama:qwen3"


@pytest.mark.parametrize("text", ["", ":", "openai", "openai:", ":gpt-5", "openai: ", " :gpt-5", "gpt-5"])
def test_a_malformed_model_string_is_refused_with_an_example(text: str) -> None:
    """The error quotes the string and shows the expected form."""
    with pytest.raises(
        ConfigurationError, match=rf"{re.escape(repr(text))} does not have the form provider:model, as in"
    ):
        LLMConfig.parse(text, api_key="k")


@pytest.mark.parametrize(
    ("misspelled", "suggested"), [("opanai", "openai"), ("OpenAi-", "openai"), ("olama", "ollama")]
)
def test_an_unknown_provider_is_refused_with_the_closest_one(misspelled: str, suggested: str) -> None:
    """The error suggests the closest name and lists the known ones."""
    with pytest.raises(ConfigurationError, match=f"did you mean '{suggested}'.*the known ones are openai, "):
        LLMConfig.parse(f"{misspelled}:m", api_key="k")


def test_an_unknown_provider_without_a_close_name_gets_no_suggestion() -> None:
    """The error suggests nothing if no name is close."""
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
def test_an_invalid_base_url_is_refused(url: str) -> None:
    """An invalid URL raises at construction, not at the first request."""
    with pytest.raises(ConfigurationError, match="is not an http or https URL such as"):
        LLMConfig.parse("openai:m", base_url=url, api_key="k")


@pytest.mark.parametrize("url", ["http://me:secret@host/v1", "http://secret@host", "https://me:secret@host:bad"])
def test_credentials_in_a_base_url_are_refused_without_being_shown(url: str) -> None:
    """The error says what to use instead and does not contain the credentials."""
    with pytest.raises(ConfigurationError, match="pass api_key or headers") as caught:
        LLMConfig.parse("openai:m", base_url=url, api_key="k")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "base_url", "endpoint"),
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
def test_a_base_url_is_normalized_without_its_trailing_slash(url: str, base_url: str, endpoint: str) -> None:
    """All forms of URLs are accepted, and a path is inserted before the query."""
    config = LLMConfig(model="m", base_url=url)
    assert (config.base_url, config.url("/x")) == (base_url, endpoint)


def test_the_query_of_a_base_url_is_not_shown() -> None:
    """A query may contain a key, so neither the repr nor an error contains it."""
    config = LLMConfig(model="m", base_url="http://host/v1?key=secret")
    assert config.address == "http://host/v1"
    assert "base_url='http://host/v1'" in repr(config)
    with pytest.raises(ConfigurationError) as caught:
        config.with_settings(base_url="http://ho st?key=secret")
    assert "secret" not in str(caught.value) + repr(config)


def test_settings_override_the_preset() -> None:
    """Any attribute can be passed with the model string."""
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


def test_with_settings_returns_a_new_configuration() -> None:
    """The original configuration is unchanged."""
    config = LLMConfig.parse("ollama:m")
    assert (config.with_settings(model="n").model, config.model) == ("n", "m")


def test_an_unknown_setting_is_refused_with_the_closest_one() -> None:
    """The error suggests the closest name and lists the known ones."""
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
        ("options", [("temperature", 0)]),
        ("retry", 3),
        ("quirks", None),
        ("base_url", "nowhere"),
    ],
)
def test_an_invalid_value_is_a_configuration_error(name: str, value: object) -> None:
    """The error is printable whatever the value."""
    with pytest.raises(ConfigurationError) as caught:
        LLMConfig.parse("openai:m", api_key="k").with_settings(**{name: value})
    assert str(caught.value).isprintable()


def test_a_deadline_can_be_removed() -> None:
    """`deadline=None` is a valid setting."""
    config = LLMConfig.parse("ollama:m", deadline=5)
    assert config.with_settings(deadline=None).deadline is None


def test_header_names_are_stored_in_lower_case() -> None:
    """The case of header names is ignored."""
    config = LLMConfig.parse("ollama:m", headers={"X-Title": " tests "})
    assert config.headers == {"x-title": "tests"}


def test_a_configuration_is_a_value() -> None:
    """Configurations compare and hash by value, and their parts are immutable."""
    first, second = (LLMConfig.parse("openai:m", api_key="k", headers={"x": "y"}) for _ in range(2))
    assert first == second
    assert len({first, second}) == 1
    assert first != second.with_settings(api_key="l")
    headers: Any = first.headers
    with pytest.raises(TypeError):
        headers["x"] = "z"


def test_a_supplied_mapping_can_be_changed_afterwards() -> None:
    """The configuration copies the mapping."""
    headers = {"x": "y"}
    config = LLMConfig.parse("ollama:m", headers=headers)
    headers["x"] = "z"
    assert config.headers == {"x": "y"}


@given(st.text())
def test_any_text_is_a_base_url_or_a_configuration_error(text: str) -> None:
    """No text raises another error than `ConfigurationError`."""
    for url in (text, f"http://{text}", f"https://host:{text}", f"http://host/{text}"):
        try:
            LLMConfig(model="m", base_url=url)
        except ConfigurationError:
            continue


@given(st.text())
def test_any_text_is_a_model_string_or_a_configuration_error(text: str) -> None:
    """No text raises another error than `ConfigurationError`."""
    try:
        config = LLMConfig.parse(text, api_key="k")
    except ConfigurationError:
        return
    assert config.model
    assert config.provider in PRESETS


def test_an_ipv6_address_without_brackets_is_no_url() -> None:
    """Nobody can tell its end from a port."""
    with pytest.raises(ConfigurationError, match="is not an http or https URL"):
        LLMConfig.parse("openai:m", base_url="http://::1:8080", api_key="k")


@pytest.mark.parametrize("region", ["us east", "us-east-1/", "example.com#", "../x"])
def test_a_region_is_no_part_of_a_url(region: str) -> None:
    """It must not change the server that gets the credentials."""
    with pytest.raises(ConfigurationError, match="is not a region of AWS"):
        LLMConfig.parse("bedrock:m", environment={"AWS_REGION": region, "AWS_BEARER_TOKEN_BEDROCK": "k"})


def test_an_unknown_transport_is_refused() -> None:
    """The error names the transports."""
    with pytest.raises(ConfigurationError, match="has to be 'httpx' or 'httptools', not 'curl'"):
        LLMConfig.parse("openai:m", api_key="k", transport="curl")


def test_a_transport_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it; without a choice, httpx is used."""
    monkeypatch.setattr("agentloop.models.config.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"needs httptools: .*agentloop-kernel\[fast\]"):
        LLMConfig.parse("openai:m", api_key="k", transport="httptools")
    assert LLMConfig.parse("openai:m", api_key="k", transport="httpx").transport == "httpx"


@given(
    st.sampled_from(["https://a.example", "https://a.example/", "https://a.example/v1?x=1"]),
    st.from_regex(r"[a-z./]{0,9}", fullmatch=True),
)
def test_a_path_never_changes_the_host(base_url: str, path: str) -> None:
    config = LLMConfig(model="m", base_url=base_url)
    assert urlsplit(config.url(path)).netloc == "a.example"
    assert config.url(path) == config.url(f"/{path}") or path.startswith("/") or not path
