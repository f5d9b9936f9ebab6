"""Where a text holds a model's thoughts: tags around them, by vendor."""

from __future__ import annotations

from typing import Final

THOUGHTS: Final[tuple[tuple[str, str], ...]] = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen 3, GLM 4.5, and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<scratch_pad>", "</scratch_pad>"),  # Hermes
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),  # Mistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss: the harmony response format
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
"""What opens and what closes a model's thoughts."""

CLOSER_OF: Final = dict(THOUGHTS)

CLOSES_ALONE: Final = frozenset({"</think>", "</thinking>", "[/THINK]", "◁/think▷", "</seed:think>", "</mm:think>"})
"""What closes thoughts also where nothing opens them: prompts of these models end with the opening tag."""
