"""Calls behind a tag or a special token that says that calls follow."""

from __future__ import annotations

from typing import Final

from agentloop.text_calls.arguments import Tree
from agentloop.text_calls.notations.elements import IN_TAG, Field, read_head
from agentloop.text_calls.notations.fenced import FENCE, past_fence
from agentloop.text_calls.notations.json_objects import Run
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import Attempt, Draft, Outcome
from agentloop.text_calls.source import Source, after_space, find, literal_at
from agentloop.text_calls.text_format import TextFormat

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


_BEFORE_TAG: Final = "]<]minimax[>["
_OPENING: Final = _BEFORE_TAG + "<invoke name="
_END: Final = _BEFORE_TAG + "</invoke>"
_DEEPEST: Final = 50


class NestedTags(TextFormat):
    """`<invoke name="f"><a>1</a><b><c>text</c></b></invoke>`, with a special token before each tag."""

    name = "nested tags"
    openings: tuple[str, ...] = (_OPENING,)
    wrappers: tuple[str, ...] = (_BEFORE_TAG + "<tool_call>", _BEFORE_TAG + "</tool_call>")

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:  # noqa: ARG002  # the contract's
        """Read up to the closing tag, and build the arguments from what stands between."""
        fields: dict[str, str] = {}
        at = yield from read_head(source, start + len(_OPENING), (Field("name", IN_TAG), ">"), fields)
        if at < 0:
            return Outcome(start)
        end = yield from find(source, at, _END)
        if end < 0:
            return Outcome(start, "the call is never closed", len(source.text))
        tree = _tree(source.text[at:end].split(_BEFORE_TAG))
        behind = end + len(_END)
        if tree is None:
            return Outcome(start, "its tags do not match", behind)
        arguments = dict(tree.children)
        yield Draft(fields["name"].strip("\"' "), arguments, start, behind, untyped=frozenset(arguments))
        return Outcome(behind)


def _tree(parts: list[str]) -> Tree | None:
    """Build the tree of tags from the texts between the tokens; None when the tags do not match."""
    root = Tree()
    stack = [("", root)]
    for part in parts[1:]:
        tag, closed, text = part.partition(">")
        if not closed or not tag.startswith("<"):
            return None
        if tag.startswith("</"):
            name, _ = stack.pop()
            if not stack or name != tag[2:]:
                return None
            continue
        child = Tree(text)
        stack[-1][1].children.append((tag[1:], child))
        stack.append((tag[1:], child))
        if len(stack) > _DEEPEST:
            return None
    return root if len(stack) == 1 else None
