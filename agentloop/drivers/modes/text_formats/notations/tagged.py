"""Calls behind a tag or a special token that says that calls follow."""

from __future__ import annotations

from typing import Final

from agentloop.drivers.modes.text_formats.draft import Attempt, Outcome
from agentloop.drivers.modes.text_formats.notations.elements import Run
from agentloop.drivers.modes.text_formats.notations.fenced import FENCE, past_fence
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.source import Source, after_space, literal_at
from agentloop.drivers.modes.text_formats.text_format import TextFormat

TAGS: Final = (
    ("<tool_call>", "</tool_call>"),  # Hermes, Qwen, Granite 4, and most others
    ("<function_call>", "</function_call>"),  # Granite 20b
    ("<tool_calls>", "</tool_calls>"),  # MiniMax M1, Apriel
    ("<function_calls>", "</function_calls>"),
    ("<functioncall>", "</functioncall>"),
    ("<tool_use>", "</tool_use>"),
    ("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano
    ("<longcat_tool_call>", "</longcat_tool_call>"),
    ("<|tool_call|>", "<|/tool_call|>"),  # Granite 3, Phi 4
    ("<|tool_calls|>", ""),
    ("<|function_call|>", ""),  # GigaChat
    ("function call<|role_sep|>", ""),
    ("<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
    ("<|START_ACTION|>", "<|END_ACTION|>"),  # Cohere
    ("<|action_start|><|plugin|>", "<|action_end|>"),  # InternLM
    ("<|python_tag|>", ""),  # Llama 3
    ("<|python_start|>", "<|python_end|>"),  # Llama 4
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM 2
    ("[TOOL_CALLS]", ""),  # Mistral
    ("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),  # LM Studio
    ("functools", ""),  # Phi 4 mini
    ("Action:", ""),
)
"""What says that calls follow, and what closes them."""

_LANGUAGES: Final = (FENCE + "json", FENCE + "python", FENCE + "tool_call", FENCE)
_CLOSER_OF: Final = dict(TAGS)


class TaggedCalls(TextFormat):
    """`<tool_call>{"name": "f", "arguments": {…}}</tool_call>` and its many relatives."""

    name = "tagged"
    openings: tuple[str, ...] = tuple(opener for opener, _ in TAGS)
    wrappers: tuple[str, ...] = (
        *(tag for pair in TAGS for tag in pair if tag and tag[0] in "<["),
        "<|message_sep|>",
        "<|calls|>",
        "<|im_start|>",
        "</s>",
    )
    control_tokens: tuple[str, ...] = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>")

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read the calls behind the tag."""
        opener = yield from literal_at(source, start, self.openings)
        at = yield from after_space(source, start + len(opener))
        fence = yield from literal_at(source, at, _LANGUAGES)
        outcome = yield from Run(source, at + len(fence), tools, explicit=True).read()
        if outcome.end <= at + len(fence):
            return Outcome(start, outcome.refusal, outcome.reached)
        behind = yield from past_fence(source, at, at + len(fence), outcome.end)
        return Outcome(behind, outcome.refusal, outcome.reached)
