"""The capabilities of published models, as rows of data.

A row states what the publisher of a model family documents: whether the models are trained for the tool API, can make several
calls in one response, and can be constrained to a schema. A server may be configured without a capability of its model; state
that with a row of your own.
"""

from __future__ import annotations

from typing import Final

from attrs import evolve

from agentloop.values.capabilities import Capabilities, CapabilityRow

_TEXT: Final = Capabilities("validated")
_ASSUMED_SCHEMA: Final = Capabilities("native", structured_output="json_schema", is_assumed=True)
_SCHEMA_ONLY: Final = Capabilities("structured", structured_output="json_schema")
_TOOLS: Final = Capabilities("native")
_TOOLS_OBJECT: Final = Capabilities("native", structured_output="json_object")
_TOOLS_SCHEMA: Final = Capabilities("native", structured_output="json_schema")
_PARALLEL: Final = Capabilities("native", parallel_tool_calls=True)
_PARALLEL_OBJECT: Final = Capabilities("native", parallel_tool_calls=True, structured_output="json_object")
_PARALLEL_SCHEMA: Final = Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")
_SIGNED: Final = evolve(_PARALLEL_SCHEMA, signed_calls=True)

# Within a family, rows for exceptions precede the row for the family as a whole.
_OPENAI: Final = (
    CapabilityRow(
        "o1-mini*|o1-preview*|o[1-9]*-deep-research*|chatgpt-4o*|gpt-3.5-turbo-instruct*|gpt-4-base*|gpt-4-vision*",
        _TEXT,
    ),
    CapabilityRow("gpt-[1-2]|gpt-[1-2]-*|gpt-j*|gpt-neo*|gpt4all*|gpt2*", _TEXT),
    CapabilityRow("gpt-*-search-*", _SCHEMA_ONLY),
    CapabilityRow("gpt-3.5*|gpt-35*|gpt-4-turbo*|gpt-4-1106*|gpt-4-0125*|gpt-4o-2024-05-13", _PARALLEL_OBJECT),
    CapabilityRow("gpt-4|gpt-4-0*|gpt-4-32k*", _TOOLS),
    CapabilityRow("o[1-9]|o[1-9]-*|gpt-oss*|codex-mini*", _TOOLS_SCHEMA),
    CapabilityRow("gpt-[4-9]*|gpt-[1-9][0-9]*", _PARALLEL_SCHEMA),
)
_CLAUDE_4_8: Final = evolve(_PARALLEL_SCHEMA, system_messages=True)
_CLAUDE_FABLE: Final = evolve(_CLAUDE_4_8, optional_reasoning=False)
_CLAUDE_5_5: Final = evolve(_CLAUDE_FABLE, forced_calls=False, bound_reasoning=True)
_WITHOUT_FORCED_CALLS: Final = "|".join(
    [
        "claude-opus-5[.-]5*|claude-sonnet-5[.-]5*",
        *[f"claude-{name}-5[.-][1-9]{end}" for name in ("fable", "mythos") for end in ("", "-*", "@*")],
    ]
)
_ANTHROPIC: Final = (
    CapabilityRow("claude-1*|claude-2*|claude-v*|claude-instant*", _TEXT),
    CapabilityRow("claude-3*|claude-opus-4|claude-opus-4-0|claude-opus-4-2*|claude-opus-4@*", _PARALLEL),
    CapabilityRow("claude-sonnet-4|claude-sonnet-4-0|claude-sonnet-4-2*|claude-sonnet-4@*", _PARALLEL),
    CapabilityRow(_WITHOUT_FORCED_CALLS, _CLAUDE_5_5),
    CapabilityRow("claude-haiku-5[.-]5*", evolve(_CLAUDE_4_8, bound_reasoning=True)),
    CapabilityRow("claude-fable-5*|claude-mythos-5*", _CLAUDE_FABLE),
    CapabilityRow("claude-opus-4[.-]8*|claude-opus-5*|claude-haiku-5*", _CLAUDE_4_8),
    CapabilityRow("claude-*", _PARALLEL_SCHEMA),
)
_GOOGLE: Final = (
    CapabilityRow("gemini-*thinking-exp*|gemini-*-tts*|gemini-pro-vision*|gemini-1.0-pro-vision*", _TEXT),
    CapabilityRow("gemini-1.0*|gemini-pro", _TOOLS),
    CapabilityRow("gemini-1.5*|gemini-2*", _PARALLEL_SCHEMA),
    CapabilityRow("gemini-*", _SIGNED),
    CapabilityRow("functiongemma*|gemma-4*|gemma4*", _TOOLS),
    CapabilityRow("*gemma*|learnlm*|palm-*|chat-bison*|text-bison*", _TEXT),
)
# Fine-tuned models are named after their base models, whose rows follow; these rows come first.
_DERIVED: Final = (
    CapabilityRow("*llama*guard*|granite-guardian*|granite3-guardian*", _TEXT),
    CapabilityRow("deepseek-r1*distill*|deepseek-r1-0528-qwen*", _TEXT),
    CapabilityRow("llama*tool-use*|llama*firefunction*|firefunction*|functionary*|*xlam*|hammer*|watt-tool*", _TOOLS),
    CapabilityRow("hermes-[2-9]*|hermes[3-9]*|nous-hermes-[2-9]-pro*|deephermes*", _TOOLS),
    CapabilityRow("nous-hermes*|openhermes*|hermes*", _TEXT),
    CapabilityRow("nemotron-4*|mistral-nemo-minitron*", _TEXT),
    CapabilityRow("*nemotron*", _TOOLS),
    CapabilityRow("dolphin*|tulu*|openorca*|mistral-openorca*|mistrallite*", _TEXT),
)
_META: Final = (
    CapabilityRow("*llama-4*|*llama4*|llama-v4*", _PARALLEL_SCHEMA),
    CapabilityRow("llama*3.2*vision*", _TEXT),
    CapabilityRow("llama*3.[1-9]*|meta-llama-3.[1-9]*|llama3-[1-9]-*|llama-3-[1-9]-*", _TOOLS_SCHEMA),
    CapabilityRow("*llama*|alpaca*|vicuna*|llava*|bakllava*", _TEXT),
)
_MISTRAL: Final = (
    CapabilityRow("mistral-7b*v0[.-][012]*|open-mistral-7b*|mistral-tiny*|mixtral-8x7b*|open-mixtral-8x7b*", _TEXT),
    CapabilityRow("ollama:codestral*|ollama-native:codestral*|codestral-22b*|*codestral-mamba*|mathstral*", _TEXT),
    CapabilityRow("mistral*|open-mistral*|ministral*|pixtral*|codestral*|devstral*|voxtral*", _PARALLEL_SCHEMA),
    CapabilityRow("mixtral*|open-mixtral*|magistral*|labs-*tral*", _PARALLEL_SCHEMA),
)
_QWEN: Final = (
    CapabilityRow(
        "qwen|qwen-[0-9]b*|qwen-[0-9][0-9]b*|qwen-1*|qwen1.5*|codeqwen*|qwen-long*|qwen-math*|qwen2*-math*|qwen-2*-math*",
        _TEXT,
    ),
    CapabilityRow("qwen-vl*|qwen2-vl*|qwen-2-vl*|qwen2.5-vl*|qwen-2.5-vl*|qwen2.5vl*|qwen*-audio*|qvq*", _TEXT),
    CapabilityRow("qwen3*|qwen-3*", _PARALLEL_OBJECT),
    CapabilityRow("qwen*|qwq*", _TOOLS_OBJECT),
)
_DEEPSEEK: Final = (
    CapabilityRow("deepseek-r1-0528*", _TOOLS_OBJECT),
    CapabilityRow("deepseek-r1*|deepseek-r1|deepseek-v2|deepseek-v2-*|deepseek-coder*|deepseek-llm*", _TEXT),
    CapabilityRow("deepseek-vl*|deepseek-math*|deepseek-prover*|deepseek-ocr*|janus*", _TEXT),
    CapabilityRow("deepseek*", _PARALLEL_OBJECT),
)
_OTHERS: Final = (
    CapabilityRow("command-r*|command-a*|c4ai-command-*", _PARALLEL_SCHEMA),
    CapabilityRow("command|command-light*|command-nightly*|command-text*|*aya-*|aya", _TEXT),
    CapabilityRow("grok-1|grok-1-*", _TEXT),
    CapabilityRow("grok*", _PARALLEL_SCHEMA),
    CapabilityRow("granite-code*|granite-*b-code*|granite-13b*|granite-[78]b-*|granite-7b*", _TEXT),
    CapabilityRow("granite*", _TOOLS),
    CapabilityRow("kimi-vl*|kimi-dev*|kimi-thinking-preview*|moonlight*", _TEXT),
    CapabilityRow("kimi*|moonshot*", _PARALLEL_OBJECT),
    CapabilityRow("ollama:glm4*|ollama-native:glm4*|glm-4v*|glm-4.1v*|glm-z1*|chatglm|chatglm2*|chatglm-*", _TEXT),
    CapabilityRow("glm-*|glm4*|chatglm*", _TOOLS_OBJECT),
    CapabilityRow("minimax*|abab*", _PARALLEL),
    CapabilityRow("phi-4-mini-reasoning*|phi4-mini-reasoning*", _TEXT),
    CapabilityRow("phi-4-mini*|phi4-mini*", _TOOLS),
    CapabilityRow("phi|phi-*|phi[1-9]*|wizard*|orca*", _TEXT),
    CapabilityRow("nova-micro*|nova-lite*|nova-pro*|nova-premier*|nova-[2-9]-*", _PARALLEL),
    CapabilityRow("titan-*|jamba-instruct*|jamba-v0*|jamba-tiny-dev*|jamba-reasoning*|j2-*", _TEXT),
    CapabilityRow("jamba*|ai21-jamba*", _PARALLEL_OBJECT),
    CapabilityRow("yi-large-fc*", _TOOLS),
    CapabilityRow("yi|yi-*|falcon*|stablelm*|starcoder*|zephyr*|openchat*|mpt-*|bloom*|internlm|internlm2", _TEXT),
    CapabilityRow("internlm2-*|internlm2.5*|internlm3*|smollm2*|smollm3*|lfm2*|cogito*|athene-v2*", _TOOLS),
    CapabilityRow("smollm*|olmo-[12]*|olmo2*|olmo|exaone-3*|exaone3*|exaone-deep*|solar|solar-10*", _TEXT),
    CapabilityRow("olmo-3*|olmo3*|exaone-4*|exaone4*|solar-pro[2-9]*|ernie-[4-9]*|ernie-x*|hunyuan-[at]*", _TOOLS),
    CapabilityRow("seed-oss*|doubao-*|step-[2-9]*|mimo-*|longcat-*|ling-*|ring-*|palmyra-x*|mercury*", _TOOLS),
)

# Bedrock constrains some models to a schema and others to nothing, and names a few without their family.
_BEDROCK: Final = (
    CapabilityRow("r1-v1*", _TEXT, "bedrock-converse"),  # DeepSeek's
    CapabilityRow("qwen3*|v3-v1*|v3.[1-9]*|kimi-k2*", _PARALLEL_SCHEMA, "bedrock-converse"),
    CapabilityRow("jamba-1*|command-r*|glm-*", _PARALLEL, "bedrock-converse"),
    CapabilityRow("mistral-large-24*|mistral-small-24*|pixtral*|llama4-*", _PARALLEL, "bedrock-converse"),
    CapabilityRow("llama3-[1-9]-*", _TOOLS, "bedrock-converse"),
    CapabilityRow("claude-opus-4-[56]*|claude-sonnet-4-[56]*", _PARALLEL_SCHEMA, "bedrock-converse"),
    CapabilityRow(_WITHOUT_FORCED_CALLS, evolve(_PARALLEL, forced_calls=False), "bedrock-converse"),
    CapabilityRow(
        "claude-3*|claude-opus-*|claude-sonnet-*|claude-haiku-*|claude-fable-*|claude-mythos-*",
        _PARALLEL,
        "bedrock-converse",
    ),
)

MODEL_ROWS: Final[tuple[CapabilityRow, ...]] = (
    # Before the families: in the Chat Completions of others, these models have no tool API; that of their own service has one.
    CapabilityRow("sonar*|r1-1776*|perplexity:*", _SCHEMA_ONLY, "openai-chat"),
    *_BEDROCK,
    *_OPENAI,
    *_ANTHROPIC,
    *_GOOGLE,
    *_DERIVED,
    *_META,
    *_MISTRAL,
    *_QWEN,
    *_DEEPSEEK,
    *_OTHERS,
)
"""The models, by family; the first matching row decides."""

SERVICE_ROWS: Final[tuple[CapabilityRow, ...]] = (
    # These models call tools on their own and accept none.
    CapabilityRow("groq:compound*|groq:*/compound*", _TEXT),
    CapabilityRow("openai:*|azure:*|mistral:*|xai:*", _PARALLEL_SCHEMA),
    CapabilityRow("deepseek:*|groq:*", _PARALLEL_OBJECT),
    CapabilityRow("anthropic:*|cerebras:*", _PARALLEL),
    CapabilityRow("*", _PARALLEL_SCHEMA, "openai-responses"),
    CapabilityRow("*", _PARALLEL, "anthropic-messages"),
    CapabilityRow("*", _SIGNED, "gemini"),
    CapabilityRow("*", _PARALLEL, "bedrock-converse"),
    CapabilityRow("*", _PARALLEL_SCHEMA, "cohere-v2"),
    # Local servers can constrain the output of any model to a schema. Whether they take tools depends on their configuration
    # and on the template of the model.
    CapabilityRow("ollama:*|ollama-native:*|lmstudio:*|llamacpp:*|vllm:*", _ASSUMED_SCHEMA),
    CapabilityRow("*", _ASSUMED_SCHEMA, "ollama"),
)
"""The services, and the wire formats that imply a tool API; for models that match none of the rows above."""
