"""Tests of the capability table: what a model can do, by its name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from agentloop import ToolCallingDriver
from agentloop.contracts import CanInfer, CanNameModel
from agentloop.errors import InferenceError
from agentloop.models import (
    FallbackInference,
    HttpInference,
    LLMConfig,
    RecordingInference,
    ReplayInference,
    capabilities,
)
from agentloop.models.http_client import in_process_client
from agentloop.models.model_capabilities import UNKNOWN_MODEL
from agentloop.models.model_rows import MODEL_ROWS, SERVICE_ROWS
from agentloop.models.presets import PRESETS
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.values import (
    Capabilities,
    CapabilityRow,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Message,
    Text,
    ToolChoice,
    ToolSpec,
)

NATIVE = [
    "openai:gpt-4o",
    "openai:gpt-4o-mini-2024-07-18",
    "openai:gpt-4.1-nano",
    "openai:gpt-5",
    "gpt-5.1-codex",
    "openai:gpt-3.5-turbo",
    "gpt-4",
    "openai:o1",
    "openai:o3-mini",
    "o4-mini-2025-04-16",
    "groq:openai/gpt-oss-120b",
    "ollama:gpt-oss:20b",
    "azure:my-deployment",
    "openai-responses:gpt-5-mini",
    "openai:ft:gpt-4o-mini-2024-07-18:acme::9abc",
    "anthropic:claude-3-haiku-20240307",
    "anthropic:claude-sonnet-4-5",
    "claude-opus-4-1-20250805",
    "openrouter:anthropic/claude-3.7-sonnet",
    "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
    "claude-sonnet-4@20250514",
    "openrouter:anthropic/claude-3.7-sonnet:thinking",
    "gemini:gemini-2.5-pro",
    "gemini:gemini-2.0-flash-lite",
    "openrouter:google/gemini-2.5-flash",
    "gemini:models/gemini-1.5-flash-8b",
    "together:meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo",
    "groq:llama-3.3-70b-versatile",
    "ollama:llama3.1:8b",
    "ollama:llama3.2",
    "openrouter:meta-llama/llama-3.3-70b-instruct:free",
    "cerebras:llama3.1-8b",
    "meta.llama3-1-70b-instruct-v1:0",
    "fireworks:accounts/fireworks/models/llama-v3p1-405b-instruct",
    "groq:meta-llama/llama-4-scout-17b-16e-instruct",
    "mistral:mistral-large-latest",
    "mistral:ministral-8b-latest",
    "mistral:codestral-latest",
    "mistral:magistral-medium-2506",
    "ollama:mistral:7b",
    "openrouter:mistralai/mixtral-8x22b-instruct",
    "mistral:pixtral-12b-2409",
    "mistral:devstral-small-2507",
    "vllm:mistralai/Mistral-7B-Instruct-v0.3",
    "ollama:mistral-nemo",
    "openrouter:mistralai/mistral-small-3.2-24b-instruct:free",
    "ollama:qwen2:7b",
    "ollama:qwen2.5:7b",
    "ollama:qwen2.5-coder:32b",
    "ollama:qwen3:8b",
    "qwen3:8b",
    "vllm:Qwen/Qwen2.5-7B-Instruct",
    "openrouter:qwen/qwen-2.5-72b-instruct",
    "openrouter:qwen/qwen3-coder:free",
    "groq:qwen/qwen3-32b",
    "openrouter:qwen/qwq-32b",
    "hf.co/Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
    "acme:qwen3:8b",
    "qwen-max",
    "deepseek:deepseek-chat",
    "deepseek:deepseek-reasoner",
    "openrouter:deepseek/deepseek-chat-v3.1",
    "together:deepseek-ai/DeepSeek-V3",
    "openrouter:deepseek/deepseek-r1-0528:free",
    "command-r-plus-08-2024",
    "ollama:command-r7b",
    "openrouter:cohere/command-a",
    "cohere.command-r-v1:0",
    "xai:grok-4",
    "xai:grok-code-fast-1",
    "openrouter:x-ai/grok-3-mini",
    "ollama:granite3.3:8b",
    "granite-3.1-8b-instruct",
    "ollama:granite4",
    "ibm-granite/granite-20b-functioncalling",
    "groq:moonshotai/kimi-k2-instruct",
    "moonshot-v1-32k",
    "openrouter:moonshotai/kimi-k2:free",
    "openrouter:z-ai/glm-4.5-air",
    "glm-4-plus",
    "fireworks:accounts/fireworks/models/glm-4p5",
    "openrouter:minimax/minimax-m2",
    "minimax-text-01",
    "ollama:phi4-mini",
    "microsoft/Phi-4-mini-instruct",
    "amazon.nova-pro-v1:0",
    "openrouter:amazon/nova-lite-v1",
    "openrouter:ai21/jamba-large-1.7",
    "ai21.jamba-1-5-large-v1:0",
    "ollama:hermes3:8b",
    "NousResearch/Hermes-2-Pro-Llama-3-8B",
    "openrouter:nousresearch/hermes-4-70b",
    "nvidia/llama-3.1-nemotron-70b-instruct",
    "openrouter:nvidia/nemotron-nano-9b-v2:free",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "ollama:llama3-groq-tool-use:8b",
    "ollama:smollm2:1.7b",
    "fireworks:accounts/fireworks/models/firefunction-v2",
    "ollama:functiongemma",
    "llamacpp:models/Llama-3.2-3B-Instruct.Q4_K_M.gguf",
]
TEXT = [
    "openai:o1-mini",
    "openai:o1-preview",
    "openai:chatgpt-4o-latest",
    "openai:gpt-3.5-turbo-instruct",
    "openai:o3-deep-research",
    "anthropic:claude-2.1",
    "anthropic.claude-instant-v1",
    "gemini:gemma-3-27b-it",
    "ollama:gemma3:4b",
    "google/gemma-2-9b-it",
    "ollama:codegemma:7b",
    "gemini:gemini-2.0-flash-thinking-exp",
    "ollama:llama2:13b",
    "meta-llama/Llama-2-7b-chat-hf",
    "ollama:llama3:8b",
    "meta-llama/Meta-Llama-3-70B-Instruct",
    "ollama:codellama",
    "ollama:llama3.2-vision",
    "groq:meta-llama/llama-guard-4-12b",
    "ollama:tinyllama",
    "llamacpp:llama-2-7b-chat.Q4_K_M.gguf",
    "mistralai/Mistral-7B-Instruct-v0.1",
    "mistral.mistral-7b-instruct-v0:2",
    "mistral:open-mistral-7b",
    "ollama:mixtral:8x7b",
    "ollama:codestral:22b",
    "ollama:qwen:7b",
    "Qwen/Qwen1.5-14B-Chat",
    "ollama:codeqwen",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen2-Math-7B-Instruct",
    "ollama:deepseek-r1:14b",
    "together:deepseek-ai/DeepSeek-R1",
    "groq:deepseek-r1-distill-llama-70b",
    "ollama:deepseek-coder-v2",
    "ollama:phi3",
    "microsoft/Phi-3.5-mini-instruct",
    "ollama:phi4:14b",
    "microsoft/phi-2",
    "ollama:granite-code:8b",
    "ollama:nous-hermes2",
    "ollama:glm4:9b",
    "THUDM/chatglm2-6b",
    "cohere:command-light",
    "ai21.jamba-instruct-v1:0",
    "groq:compound-beta-mini",
    "ollama:vicuna",
    "ollama:yi:34b",
    "ollama:dolphin-llama3",
    "nvidia/nemotron-4-340b-instruct",
]
UNKNOWN = ["acme:frob-1", "frob", "some/unheard-of-model:free", "openrouter:acme/frob"]


@pytest.mark.parametrize(("mode", "names"), [("native", NATIVE), ("validated", TEXT), ("native", UNKNOWN)])
def test_published_models_have_their_recommended_mode(mode: str, names: list[str]) -> None:
    """Each model, spelled as its services spell it, has the mode of its family."""
    assert {name: capabilities(name).mode for name in names} == dict.fromkeys(names, mode)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("gpt-4o-mini", "native"),
        ("gpt-4o", "native"),
        ("gpt-4.1", "native"),
        ("gpt-4.1-mini", "native"),
        ("o1", "native"),
        ("o3", "native"),
        ("o3-mini", "native"),
        ("openai/gpt-oss-120b", "native"),
        ("gpt-3.5-turbo", "native"),
        ("gpt-4-turbo", "native"),
        ("gpt-4", "native"),
        ("claude-3-5-sonnet", "native"),
        ("gemini-1.5-pro", "native"),
        ("mistral-large", "native"),
        ("mistral-7b", "native"),
        ("llama-3-70b", "validated"),
        ("meta-llama/llama-3.1-70b", "native"),
        ("qwen2.5-72b", "native"),
        ("deepseek-chat", "native"),
        ("deepseek-r1", "validated"),
        ("local-model", "native"),
        ("anthropic/claude-3-opus", "native"),
        ("google/gemini-pro", "native"),
        ("mistralai/mistral-large", "native"),
        ("openai/gpt-4o", "native"),
        ("o1-mini", "validated"),
    ],
)
def test_a_short_name_has_the_mode_of_its_family(name: str, mode: str) -> None:
    """A name without provider, version or date is enough to choose the mode."""
    assert capabilities(name).mode == mode


def test_a_provider_name_does_not_match_model_patterns() -> None:
    """The name of a provider, such as `ollama`, is not mistaken for part of a model name."""
    assert capabilities("ollama:smaug").is_assumed
    assert capabilities("ollama:smaug") == capabilities("smaug", wire_format="ollama")
    assert capabilities("deepseek:anything-new").mode == "native"


def test_models_without_tools_but_with_schemas_are_structured() -> None:
    """A model without a tool API that follows a schema gets the structured mode."""
    structured = Capabilities("structured", structured_output="json_schema")
    assert capabilities("openrouter:perplexity/sonar-pro") == structured
    assert capabilities("perplexity:sonar-pro").mode == "native"  # its own service has a tool API
    assert capabilities("openai:gpt-4o-search-preview").mode == "structured"


@pytest.mark.parametrize(
    ("name", "parallel", "structured"),
    [
        ("openai:gpt-4o", True, "json_schema"),
        ("openai:gpt-4-turbo", True, "json_object"),
        ("openai:gpt-4-0613", False, None),
        ("openai:o3-mini", False, "json_schema"),
        ("anthropic:claude-3-5-sonnet-latest", True, None),
        ("anthropic:claude-sonnet-4-20250514", True, None),
        ("anthropic:claude-sonnet-4-5-20250929", True, "json_schema"),
        ("anthropic:claude-opus-4-1-20250805", True, "json_schema"),
        ("deepseek:deepseek-chat", True, "json_object"),
        ("groq:llama-3.1-8b-instant", False, "json_schema"),
        ("groq:meta-llama/llama-4-maverick-17b-128e-instruct", True, "json_schema"),
        ("gemini:gemma-3-27b-it", False, None),
        ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", True, "json_schema"),
        ("bedrock:us.anthropic.claude-sonnet-4-6", True, "json_schema"),
        ("bedrock:eu.anthropic.claude-opus-4-7", True, None),
        ("bedrock:anthropic.claude-opus-5-5-v1:0", True, None),
        ("anthropic:claude-opus-4-7", True, "json_schema"),
        ("bedrock:arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-sonnet-4-20250514-v1:0", True, None),
        ("bedrock:arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc", True, None),
        ("bedrock:us.amazon.nova-2-lite-v1:0", True, None),
        ("bedrock:us.meta.llama4-maverick-17b-instruct-v1:0", True, None),
        ("bedrock:meta.llama3-1-70b-instruct-v1:0", False, None),
        ("bedrock:qwen.qwen3-32b-v1:0", True, "json_schema"),
        ("bedrock:us.deepseek.r1-v1:0", False, None),
        ("bedrock:openai.gpt-oss-120b-1:0", False, "json_schema"),
        ("cohere:command-a-03-2025", True, "json_schema"),
        ("cohere:something-new", True, "json_schema"),
        ("ollama:something-new", False, "json_schema"),
    ],
)
def test_the_table_includes_parallel_calls_and_structured_output(
    name: str,
    parallel: bool,  # noqa: FBT001  # a column of the table
    structured: str | None,
) -> None:
    """Parallel calls and structured output are those that the publisher documents."""
    result = capabilities(name)
    assert (result.parallel_tool_calls, result.structured_output) == (parallel, structured)


_NEW = ("claude-opus-5-5", "claude-sonnet-5-5-20260928", "claude-fable-5-1", "claude-mythos-5-2@20261001")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [ToolChoice.required(), ToolChoice.specific("add")])
@pytest.mark.parametrize(
    ("name", "is_forced"),
    [
        *[(f"anthropic:{model}", False) for model in _NEW],
        ("openrouter:anthropic/claude-opus-5.5", False),
        ("bedrock:us.anthropic.claude-opus-5-5-v1:0", False),
        *[(f"anthropic:{model}", True) for model in ("claude-opus-5", "claude-fable-5-20260601", "claude-haiku-5-5")],
        ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("openai:gpt-5", True),
    ],
)
async def test_a_call_is_forced_where_the_model_accepts_that(
    name: str, choice: ToolChoice, *, is_forced: bool, stream: bool
) -> None:
    """A model that refuses a forced call decides on its own, instead of refusing the request."""
    bodies: list[bytes] = []

    def provider(_: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        bodies.append(body)
        return 400, {}, b"{}"

    config = LLMConfig.parse(name, api_key="k", base_url="http://provider", environment={})
    inference = HttpInference(config, client=in_process_client(provider))
    request = InferenceRequest((Message.user("2 + 2?"),), tools=(ToolSpec("add", "", {}),), tool_choice=choice)
    with suppress(InferenceError):
        if stream:
            _ = [delta async for delta in inference.stream(request)]
        else:
            await inference.infer(request)
    (body,) = bodies
    assert (b'"tool_choice"' in body or b'"toolChoice"' in body) is is_forced


@pytest.mark.parametrize(
    ("model", "thinking", "effort"),
    [
        ("claude-opus-4-8", "disabled", None),
        ("claude-haiku-5-5", "disabled", None),
        ("claude-fable-5", "adaptive", "low"),
        ("claude-opus-5-5", "adaptive", "low"),
    ],
)
def test_a_model_that_always_thinks_is_asked_to_think_little(model: str, thinking: str, effort: str | None) -> None:
    """It refuses to be asked not to think."""
    config = LLMConfig.parse(f"anthropic:{model}", api_key="k")
    request = InferenceRequest((Message.user("hi"),), options=InferenceOptions(reasoning_effort="none"))
    body = json.loads(wire_format("anthropic-messages").encode_request(request, config).body)
    assert (body["thinking"]["type"], body.get("output_config", {}).get("effort")) == (thinking, effort)


def test_an_unknown_model_is_assumed_to_have_a_tool_api() -> None:
    """A model that matches no row gets `UNKNOWN_MODEL`."""
    assert {capabilities(name) for name in [*UNKNOWN, "", ":", "x:"]} == {UNKNOWN_MODEL}
    assert Capabilities("native", True, False, None, True) == UNKNOWN_MODEL  # noqa: FBT003  # the order is public


def test_a_wire_format_has_a_row_unless_its_services_differ() -> None:
    """Every wire format has a row for all models, except the one whose services do not agree on a tool API."""
    with_row = {row.wire_format for row in SERVICE_ROWS if row.pattern == "*"}
    assert set(WIRE_FORMATS) - with_row == {"openai-chat"}


def test_a_wire_format_can_imply_a_tool_api() -> None:
    """A model reached by such a wire format has a tool API, unless its family has none."""
    for name in ("anthropic-messages", "bedrock-converse", "cohere-v2", "gemini", "openai-responses"):
        assert capabilities("frob-1", wire_format=name).mode == "native"
        assert capabilities("acme:frob-1", wire_format=name).mode == "native"
    assert capabilities("frob-1", wire_format="openai-chat") == UNKNOWN_MODEL
    assert capabilities("acme:gemma-3-4b-it", wire_format="gemini").mode == "validated"


def test_custom_rows_come_first() -> None:
    """The first matching row decides, and custom rows precede the table."""
    parsed, native = Capabilities("parsed"), Capabilities("native")
    rows = [CapabilityRow("vllm:Qwen/*", parsed), CapabilityRow("frob-*|snark*", native), CapabilityRow("*", parsed)]
    assert capabilities("vllm:Qwen/Qwen3-8B", rows=rows) == parsed
    assert capabilities("acme:Frob-1", rows=rows) == native
    assert capabilities("openrouter:acme/snark:free", rows=rows) == native
    assert capabilities("openai:gpt-4o", rows=rows) == parsed
    assert capabilities("openai:gpt-4o", rows=rows[:2]).mode == "native"
    assert capabilities("qwen3:8b", rows=[CapabilityRow("qwen3:8b", parsed)]) == parsed
    assert capabilities("acme:gpt-4o", rows=[CapabilityRow("acme:*", parsed)]) == parsed


def test_a_row_can_be_limited_to_a_wire_format() -> None:
    """A row with a wire format does not match a model that is reached by another one."""
    rows = [CapabilityRow("qwen*", Capabilities("parsed"), "ollama")]
    assert capabilities("ollama-native:qwen3", rows=rows).mode == "parsed"
    assert capabilities("ollama:qwen3", rows=rows).mode == "native"


def test_an_unknown_mode_and_an_empty_pattern_are_refused() -> None:
    """Construction validates mode and pattern."""
    with pytest.raises(ValueError, match="mode"):
        Capabilities("magic")  # type: ignore[arg-type]  # the invalid mode
    with pytest.raises(ValueError, match="pattern"):
        CapabilityRow("", UNKNOWN_MODEL)


def test_every_row_can_be_reached() -> None:
    """No row is hidden by the rows before it."""
    for table in (MODEL_ROWS, SERVICE_ROWS):
        for index, row in enumerate(table):
            samples = [sample.replace("*", "x") for sample in row.pattern.split("|") if "[" not in sample]
            hidden = [
                sample for sample in samples if any(other.matches([sample], row.wire_format) for other in table[:index])
            ]
            assert len(hidden) < len(samples) or not samples, row


def http(text: str) -> HttpInference:
    """Return an inference that is never called."""
    return HttpInference(LLMConfig.parse(text, api_key="k", environment={}))


class Anonymous(CanInfer):
    """An inference that does not name its model."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text(f"hi{request.system_prompt}"),))


def test_inferences_name_their_model(tmp_path: Path) -> None:
    """HTTP names the configured model, a fallback its first model, a recording the recorded model."""
    first = http("anthropic:claude-sonnet-4-5")
    fallback = FallbackInference([first, http("openai:gpt-5")])
    recording = RecordingInference(fallback, tmp_path / "run.json")
    for inference in (first, fallback, recording):
        assert isinstance(inference, CanNameModel)
        assert inference.model_name == "anthropic:claude-sonnet-4-5"
        assert inference.wire_format_name == "anthropic-messages"


def test_the_model_name_considers_options_and_the_wire_format() -> None:
    """`options.model` and the `wire_format` argument override the configuration."""
    config = LLMConfig.parse("openai:gpt-5", api_key="k", options=InferenceOptions(model="o1-mini"))
    assert HttpInference(config).model_name == "openai:o1-mini"
    inference = HttpInference(LLMConfig(model="m", base_url="http://localhost"), wire_format=wire_format("gemini"))
    assert (inference.model_name, inference.wire_format_name) == ("m", "gemini")


def test_an_unknown_model_name_is_empty(tmp_path: Path) -> None:
    """A wrapper of an inference that does not name its model has empty names."""
    for inference in (FallbackInference([Anonymous()]), RecordingInference(Anonymous(), tmp_path / "run.json")):
        assert (inference.model_name, inference.wire_format_name) == ("", "")


async def test_a_replay_names_the_recorded_model(tmp_path: Path) -> None:
    """A recording contains the model's name, so that a replay uses the same mode."""

    class Named(Anonymous, CanNameModel):
        """An inference that names its model."""

        model_name = "ollama:gemma3"
        wire_format_name = "ollama"

    request = InferenceRequest((Message.user("hello"),))
    for inference, names in ((Named(), ("ollama:gemma3", "ollama")), (Anonymous(), ("", ""))):
        path = tmp_path / f"{type(inference).__name__}.json"
        await RecordingInference(inference, path).infer(request)
        replayed = ReplayInference(path)
        assert (replayed.model_name, replayed.wire_format_name) == names
        assert (await replayed.infer(request)).text == "hi"
        assert (replayed.model_name, replayed.wire_format_name) == names
    (tmp_path / "empty.json").write_text("")
    assert ReplayInference(tmp_path / "empty.json").model_name == ""


def test_an_inference_without_a_model_name_is_called_by_its_tool_api() -> None:
    """A fallback around such an inference is treated like the inference itself."""
    for inference in (Anonymous(), FallbackInference([Anonymous()])):
        assert ToolCallingDriver(inference).mode_for(inference).name == "native"


def test_the_rows_of_services_name_known_providers() -> None:
    """Each provider in the table of services has a preset."""
    providers = {name.partition(":")[0] for row in SERVICE_ROWS for name in row.pattern.split("|") if ":" in name}
    assert providers <= PRESETS.keys()
