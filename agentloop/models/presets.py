"""The known providers, as rows of data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.models.keys import google_token_function
from agentloop.models.signing import AwsSigner, CanSignRequests, aws_region
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.secrets import KeyFunction
from agentloop.values.value import Value, at_least, instance_of

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key"]
"""How the key is sent: as `Authorization: Bearer …`, or in the header with this name."""


Variables: TypeAlias = Callable[[str], str]
"""Returns the value of an environment variable; an empty text for one that is not set."""


@frozen(eq=False, repr=False, kw_only=True)
class Quirks(Value):
    """How a service differs from others with the same wire format.

    Attributes:
        max_tokens_field: the service's name for the limit of output tokens.
        stream_usage: whether a request for a stream may, and must, ask for the token usage (`stream_options`).
        default_max_tokens: the limit of output tokens when the options set none and the wire format requires one.
        call_id_length: the length of the ids of calls, in letters and digits, in Chat Completions; 0 for ids of any form.
        max_call_id_length: the maximum length of the ids of calls, in Chat Completions; 0 for any length.
        user_after_results: whether a message of the user may directly follow results, in Chat Completions.
        server_tool_calls: whether a request with tools of the provider besides others must ask for the calls of the provider's, in
            generateContent (`includeServerSideToolInvocations`).
        reasoning_field: the entry in which the service must get the reasoning before calls back, in Chat Completions; empty for
            services that do not want it, most of which refuse entries that they do not know.
    """

    max_tokens_field: str = "max_tokens"
    stream_usage: bool = field(default=True, validator=instance_of(bool))
    default_max_tokens: int = field(default=16_384, validator=at_least(0))
    call_id_length: int = field(default=0, validator=at_least(0))
    max_call_id_length: int = field(default=0, validator=at_least(0))
    user_after_results: bool = field(default=True, validator=instance_of(bool))
    server_tool_calls: bool = field(default=True, validator=instance_of(bool))
    reasoning_field: str = ""


@frozen(eq=False, repr=False, kw_only=True)
class Preset(Value):
    """A provider.

    Attributes:
        name: the part before the colon of a model string such as `openai:gpt-5`.
        base_url: the URL that the paths of endpoints are appended to; `{NAME}` is replaced by the environment variable,
            `{NAME:-text}` by the text if it is not set. Or a function that returns the URL and gets `Variables`.
        wire_format: the name of the wire format.
        key_variable: the environment variable that contains the key; empty when no key is needed.
        other_key_variables: further variables with a key, in the order in which they are looked up.
        bearer_variable: the environment variable with a token, which is used if there is no key, and sent as a bearer token.
        needs_key: whether a missing key is an error.
        default_key: returns the function that returns the key if no other is given, or raises `ConfigurationError`.
        auth: how the key is sent.
        function_auth: how the key is sent if a function returns it, when that is a token; None for `auth`.
        headers: the environment variables that are sent as headers when they are set, by header.
        signer: returns the signer of requests without a key and gets `Variables`; None if the service has no signatures.
        quirks: how the service differs from others with the same wire format.
        families: other names by which people call it: those of its models, its product or its company.
        makers_url: a regular expression for the base URLs at which it serves its own models; empty for a service that serves those of
            others. A maker's own API separates calls from text; elsewhere, a server may leave them in the text.
        path: the path with which a given base URL is completed that has only the beginning of it, such as none; None for the path of
            `base_url`, where that is a text.
        endpoint_path: the first part of the paths of all endpoints, which a given base URL need not repeat.
    """

    name: str
    base_url: str | Callable[[Variables], str]
    wire_format: str = "openai-chat"
    key_variable: str = ""
    other_key_variables: tuple[str, ...] = ()
    bearer_variable: str = ""
    needs_key: bool = True
    default_key: Callable[[], KeyFunction] | None = None
    auth: Auth = "bearer"
    function_auth: Auth | None = None
    headers: Mapping[str, str] = EMPTY_OBJECT
    signer: Callable[[Variables], CanSignRequests] | None = None
    quirks: Quirks = Quirks()  # immutable
    families: tuple[str, ...] = ()
    makers_url: str = ""
    path: str | None = None
    endpoint_path: str = ""

    def complete(self, base_url: str) -> str:
        """Return a given base URL with the rest of the path of this service, if it has only the beginning of that path.

        Args:
            base_url: the URL, with or without the version of the API.
        """
        scheme, separator, remainder = base_url.partition("://")
        location, mark, query = remainder.partition("?")
        authority, _, given = location.rstrip("/").partition("/")
        path = self._path.strip("/")
        if f"{path}/".startswith(f"{given}/" if given else ""):
            given = path
        if self.endpoint_path:
            given = f"/{given}".removesuffix(self.endpoint_path).strip("/")
        return f"{scheme}{separator}{authority}{'/' if given else ''}{given}{mark}{query}"

    @property
    def _path(self) -> str:
        """The path of the base URL; empty if it depends on the environment."""
        if self.path is not None or not isinstance(self.base_url, str):
            return self.path or ""
        url = _PLACEHOLDER.sub(lambda found: found[2] or "https://host", self.base_url)
        return url.partition("://")[2].partition("/")[2]

    def url(self, variables: Variables) -> str:
        """Return the base URL in an environment.

        Raises:
            ConfigurationError: a variable of the URL is not set; names it.
        """
        if not isinstance(self.base_url, str):
            return self.base_url(variables)

        def replacement(placeholder: re.Match[str]) -> str:
            value = variables(placeholder[1]).strip().rstrip("/") or placeholder[2]
            if value is None:
                raise _missing(f"{self.name} needs a URL", placeholder[1])
            return value

        return _PLACEHOLDER.sub(replacement, self.base_url)

    @property
    def all_key_variables(self) -> tuple[str, ...]:
        """The environment variables with a key or a token, in the order in which they are looked up."""
        return tuple(filter(None, (self.key_variable, *self.other_key_variables, self.bearer_variable)))


_PLACEHOLDER = re.compile(r"\{(\w+)(?::-([^}]*))?\}")
_HTTP_PORTS = {"http": "80", "https": "443"}
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  # what a server listens on, but no client can call
_BARE_IPV6 = re.compile(r"(?=.*::|(?:[^:]*:){7}[^:]*$)[0-9a-fA-F:.]+")
_MULTI_REGIONS = frozenset({"us", "eu"})


def _missing(need: str, variable: str) -> ConfigurationError:
    return ConfigurationError(f"{need}: set the environment variable {variable}, or pass base_url")


def _ollama_url(variables: Variables) -> str:
    """Return the URL in `OLLAMA_HOST`, which may be a host, a host with a port, a port after a colon, or a URL."""
    # Ollama ignores quotes, which come from files of variables, and brackets that are missing around an IPv6 address.
    text = variables("OLLAMA_HOST").strip().strip("\"'")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    rest = rest.rstrip("/")
    if not rest:
        return "http://localhost:11434"
    authority, slash, path = rest.partition("/")
    if _BARE_IPV6.fullmatch(authority):
        authority = f"[{authority}]"
    host, port = authority, ""
    # The colons of an IPv6 address are inside of brackets.
    if parts := re.fullmatch(r"(\[[^]]*\]|[^:]*)(?::(.*))?", authority):
        host, port = parts[1], parts[2] or (_HTTP_PORTS.get(scheme, "") if separator else "11434")
    host = _ANY_ADDRESS.get(host, host) or "127.0.0.1"
    return f"{scheme}://{host}:{port}{slash}{path}"


def _vertex_url(variables: Variables) -> str:
    """Return the URL of Google's models in the project and the location of the environment."""
    project, location = (
        variables("GOOGLE_CLOUD_PROJECT").strip(),
        variables("GOOGLE_CLOUD_LOCATION").strip() or "global",
    )
    if not project:
        raise _missing("vertex needs a project of Google Cloud", "GOOGLE_CLOUD_PROJECT")
    host = f"{location}-aiplatform.googleapis.com"
    if location == "global":
        host = "aiplatform.googleapis.com"
    elif location in _MULTI_REGIONS:
        host = f"aiplatform.{location}.rep.googleapis.com"
    server = variables("GOOGLE_VERTEX_BASE_URL").strip().rstrip("/") or f"https://{host}"
    # The version of Google's own clients: it has known the ids of calls for longer.
    return f"{server}/v1beta1/projects/{project}/locations/{location}/publishers/google"


def _bedrock_url(variables: Variables) -> str:
    """Return the URL of Bedrock in the region of the environment."""
    for name in ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL"):
        if url := variables(name).strip().rstrip("/"):
            return url
    region = aws_region(variables)
    return f"https://bedrock-runtime.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def _aws_signer(variables: Variables) -> AwsSigner:
    return AwsSigner(aws_region(variables), variables=variables)


_OPENAI_URL = "{OPENAI_BASE_URL:-https://api.openai.com/v1}"
_OPENAI_HEADERS = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}

# These services think between calls, and refuse or lose track of a conversation whose calls come without their reasoning.
_RETURNED_REASONING = Quirks(reasoning_field="reasoning_content")

# OpenAI refuses longer ids, which other services make, such as vLLM.
_OPENAI_QUIRKS = Quirks(max_tokens_field="max_completion_tokens", max_call_id_length=40)

# `max_completion_tokens` is the name in OpenAI's current API, which some of the other services have adopted.
_ROWS = (
    Preset(
        name="openai",
        makers_url=r"https?://(?:\w+\.)?api\.openai\.com/",
        families=("gpt", "chatgpt", "codex"),
        base_url=_OPENAI_URL,
        key_variable="OPENAI_API_KEY",
        headers=_OPENAI_HEADERS,
        quirks=_OPENAI_QUIRKS,
    ),
    Preset(
        name="openai-responses",
        makers_url=r"https?://(?:\w+\.)?api\.openai\.com/",
        base_url=_OPENAI_URL,
        wire_format="openai-responses",
        key_variable="OPENAI_API_KEY",
        headers=_OPENAI_HEADERS,
    ),
    Preset(
        name="azure",
        families=("microsoft",),
        base_url="{AZURE_OPENAI_ENDPOINT}/openai/v1",
        key_variable="AZURE_OPENAI_API_KEY",
        bearer_variable="AZURE_OPENAI_AD_TOKEN",
        auth="api-key",
        function_auth="bearer",
        quirks=_OPENAI_QUIRKS,
    ),
    Preset(
        name="anthropic",
        makers_url=r"https?://api\.anthropic\.com/",
        families=("claude", "sonnet", "opus", "haiku"),
        base_url="{ANTHROPIC_BASE_URL:-https://api.anthropic.com}/v1",
        wire_format="anthropic-messages",
        key_variable="ANTHROPIC_API_KEY",
        bearer_variable="ANTHROPIC_AUTH_TOKEN",
        auth="x-api-key",
    ),
    Preset(
        name="gemini",
        makers_url=r"https?://generativelanguage\.googleapis\.com/",
        families=("google", "gemma", "bard"),
        base_url="{GOOGLE_GEMINI_BASE_URL:-https://generativelanguage.googleapis.com}/v1beta",
        wire_format="gemini",
        key_variable="GOOGLE_API_KEY",
        other_key_variables=("GEMINI_API_KEY",),
        auth="x-goog-api-key",
    ),
    Preset(
        name="vertex",
        makers_url=r"https?://[\w.-]*aiplatform[\w.-]*\.googleapis\.com/\S*/publishers/google\b",
        base_url=_vertex_url,
        wire_format="gemini",
        default_key=google_token_function,
        quirks=Quirks(server_tool_calls=False),
    ),
    Preset(
        # Without a bearer token, requests are signed with the credentials of AWS.
        name="bedrock",
        families=("aws", "amazon", "nova", "titan"),
        base_url=_bedrock_url,
        wire_format="bedrock-converse",
        key_variable="AWS_BEARER_TOKEN_BEDROCK",
        needs_key=False,
        signer=_aws_signer,
    ),
    Preset(
        name="cohere",
        makers_url=r"https?://api\.cohere\.(?:com|ai)/",
        families=("command",),
        base_url="{CO_API_URL:-https://api.cohere.com}",
        wire_format="cohere-v2",
        endpoint_path="/v2",
        key_variable="CO_API_KEY",
        other_key_variables=("COHERE_API_KEY",),
    ),
    Preset(
        # Its reasoning is a list of details, among them the signatures of the models behind it.
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        quirks=Quirks(reasoning_field="reasoning_details"),
    ),
    Preset(
        name="groq",
        base_url="{GROQ_BASE_URL:-https://api.groq.com}/openai/v1",
        key_variable="GROQ_API_KEY",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        # Reports the usage of a stream without being asked, and refuses `stream_options`; refuses the ids of other providers.
        name="mistral",
        makers_url=r"https?://api\.mistral\.ai/",
        families=("mixtral", "ministral", "codestral", "devstral", "magistral", "pixtral"),
        base_url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        quirks=Quirks(stream_usage=False, call_id_length=9, user_after_results=False),
    ),
    Preset(
        name="deepseek",
        makers_url=r"https?://api\.deepseek\.com/",
        base_url="https://api.deepseek.com/v1",
        key_variable="DEEPSEEK_API_KEY",
        quirks=_RETURNED_REASONING,
    ),
    Preset(
        name="xai",
        makers_url=r"https?://(?:[\w-]+\.)?api\.x\.ai/",
        families=("grok",),
        base_url="https://api.x.ai/v1",
        key_variable="XAI_API_KEY",
    ),
    Preset(
        name="together",
        base_url="{TOGETHER_BASE_URL:-https://api.together.xyz/v1}",
        key_variable="TOGETHER_API_KEY",
    ),
    Preset(name="fireworks", base_url="https://api.fireworks.ai/inference/v1", key_variable="FIREWORKS_API_KEY"),
    Preset(
        name="cerebras",
        base_url="{CEREBRAS_BASE_URL:-https://api.cerebras.ai}/v1",
        key_variable="CEREBRAS_API_KEY",
        quirks=Quirks(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="huggingface",
        families=("hf",),
        base_url="https://router.huggingface.co/v1",
        key_variable="HF_TOKEN",
        other_key_variables=("HUGGING_FACE_HUB_TOKEN",),
    ),
    # The Chat Completions of this service ended in September 2026; its API has the form of Responses.
    Preset(
        name="perplexity",
        families=("sonar",),
        base_url="https://api.perplexity.ai/v1",
        wire_format="openai-responses",
        key_variable="PERPLEXITY_API_KEY",
    ),
    Preset(
        name="github",
        base_url="https://models.github.ai/inference",
        key_variable="GITHUB_TOKEN",
        quirks=Quirks(max_call_id_length=40),
    ),
    Preset(
        name="nvidia",
        families=("nemotron",),
        base_url="https://integrate.api.nvidia.com/v1",
        key_variable="NVIDIA_API_KEY",
    ),
    Preset(
        name="moonshot",
        makers_url=r"https?://api\.moonshot\.(?:ai|cn)/",
        families=("kimi",),
        base_url="https://api.moonshot.ai/v1",
        key_variable="MOONSHOT_API_KEY",
        quirks=_RETURNED_REASONING,
    ),
    Preset(
        name="zai",
        makers_url=r"https?://(?:api\.z\.ai|open\.bigmodel\.cn)/",
        families=("glm", "zhipu"),
        base_url="{ZAI_BASE_URL:-https://api.z.ai/api/paas/v4}",
        key_variable="ZAI_API_KEY",
        quirks=_RETURNED_REASONING,
    ),
    Preset(
        name="qwen",
        makers_url=r"https?://dashscope[\w-]*\.aliyuncs\.com/",
        families=("alibaba", "dashscope", "qwq"),
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        key_variable="DASHSCOPE_API_KEY",
    ),
    Preset(
        name="litellm",
        base_url="{LITELLM_PROXY_API_BASE:-http://localhost:4000}",
        path="/v1",
        key_variable="LITELLM_PROXY_API_KEY",
        needs_key=False,
    ),
    Preset(
        name="ollama",
        base_url=lambda variables: f"{_ollama_url(variables)}/v1",
        path="/v1",
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
    ),
    Preset(
        name="ollama-native",
        base_url=_ollama_url,
        wire_format="ollama",
        endpoint_path="/api",
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
    ),
    Preset(name="vllm", base_url="http://localhost:8000/v1"),
    Preset(name="lmstudio", base_url="http://localhost:1234/v1"),
    Preset(name="llamacpp", base_url="http://localhost:8080/v1"),
)

PRESETS: Mapping[str, Preset] = {row.name: row for row in _ROWS}
"""The providers that `LLMConfig.parse` knows, by name."""

_MAKERS_URLS = re.compile("|".join(sorted({row.makers_url for row in _ROWS if row.makers_url})))


@lru_cache(maxsize=256)
def is_makers_url(base_url: str) -> bool:
    """Whether a base URL is that of an API at which the maker of models serves them itself."""
    return _MAKERS_URLS.match(f"{base_url}/") is not None


def suggest_provider(name: str) -> str:
    """Return the part of a message that asks for the provider that an unknown name may mean; empty if there is none.

    Besides misspelled providers, it knows the families of models that people write in their place, such as `claude`.
    """
    family = re.match("[a-z]*", name.lower())
    for preset in _ROWS:
        if family is not None and family[0] in preset.families:
            return f", did you mean {preset.name!r}?"
    return suggest(name, PRESETS)
