"""Calls behind a tag or a special token, and calls as nested tags."""

from __future__ import annotations

from typing import Final

from agentloop.models.text_calls.arguments import TagTree
from agentloop.models.text_calls.notations.elements import IN_TAG, JSON_CALL, JSON_ESCAPE, Capture, match_header
from agentloop.models.text_calls.notations.fenced import FENCE, skip_closing_fence
from agentloop.models.text_calls.notations.json_objects import CallSequence
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.text_buffer import TextBuffer, find_literal, match_literal, skip_space
from agentloop.models.text_calls.text_format import (
    AttemptResult,
    CallDraft,
    CallPattern,
    ParseAttempt,
    Slot,
    TextFormat,
)

# The texts that announce calls, and the texts that close them.
_TAGS: Final = (
    ("<tool_call>", "</tool_call>"),  # Hermes, Qwen, Granite 4, and most others
    ("<function_call>", "</function_call>"),  # Granite 20b
    ("<tool_calls>", "</tool_calls>"),  # MiniMax M1, Apriel
    ("<function_calls>", "</function_calls>"),
    ("<functioncall>", "</functioncall>"),
    ("<tool_use>", "</tool_use>"),
    ("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano
    ("<longcat_tool_call>", "</longcat_tool_call>"),
    ("<dots_function_call>", "</dots_function_call>"),
    ("<ifm|tool_call>", "</ifm|tool_call>"),  # K2 Horizon
    ("<|tool_call|>", "<|/tool_call|>"),  # Granite 3, Phi 4
    ("<|tool_calls|>", ""),
    ("<|function_call|>", ""),  # GigaChat
    ("function call<|role_sep|>", ""),
    ("<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
    ("<|START_ACTION|>", "<|END_ACTION|>"),  # Cohere
    ("<|plugin|>", "<|action_end|>"),  # InternLM
    ("<|python_tag|>", ""),  # Llama 3
    ("<|python_start|>", "<|python_end|>"),  # Llama 4
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM 2
    ("[TOOL_CALLS]", ""),  # Mistral
    ("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),  # LM Studio
    ("functools", ""),  # Phi 4 mini
    ("Action:", ""),
)

_LISTED: Final = CallPattern(JSON_CALL, around=(("[TOOL_CALLS]", "["), ("]",)), between=", ")
_FENCES: Final = (*(FENCE + language for language in ("json", "python", "tool_call", "xml")), FENCE)


class TaggedCalls(TextFormat):
    """`<tool_call>{"name": "f", "arguments": {…}}</tool_call>` and its many variants."""

    name = "tagged"
    openings: tuple[str, ...] = tuple(opener for opener, _ in _TAGS)
    wrappers: tuple[str, ...] = (
        *(tag for pair in _TAGS for tag in pair if tag and tag[0] in "<["),
        # Tags that models invent around a call as JSON, which is read without them.
        *(f"<{close}{element}>" for element in ("tools", "tool", "json", "JSON") for close in ("", "/")),
        "<|action_start|>",
        "<|message_sep|>",
        "<|calls|>",
        "<|im_start|>",
        "</s>",
        *_FENCES,
    )
    control_tokens: tuple[str, ...] = (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<｜end▁of▁sentence｜>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|END_OF_TURN_TOKEN|>",
        "to=user<|message|>",
    )

    tags: tuple[tuple[str, str], ...] = (
        *(pair for pair in _TAGS if pair[0][0] in "<["),
        ("<|role_sep|>", ""),
        ("<|action_start|>", ""),
    )
    escape = JSON_ESCAPE
    patterns: tuple[CallPattern, ...] = (
        *(CallPattern((opener, *JSON_CALL, *filter(None, (closer,)))) for opener, closer in _TAGS),
        _LISTED,
    )

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the calls behind the tag; the closing tag is a wrapper."""
        opener = yield from match_literal(buffer, start, self.openings)
        fence_start = yield from skip_space(buffer, start + len(opener))
        fence = yield from match_literal(buffer, fence_start, _FENCES)
        content_start = fence_start + len(fence)
        result = yield from CallSequence(buffer, content_start, tools, is_explicit=True).read()
        if result.end <= content_start:
            return AttemptResult(start, result.rejection, result.reached)
        end = yield from skip_closing_fence(buffer, fence_start, content_start, result.end)
        return AttemptResult(end, result.rejection, result.reached)


_TAG_PREFIX: Final = "]<]minimax[>["
_OPENING: Final = _TAG_PREFIX + "<invoke name="
_CLOSING: Final = _TAG_PREFIX + "</invoke>"
_MAX_DEPTH: Final = 50


class NestedTags(TextFormat):
    """`<invoke name="f"><a>1</a><b><c>text</c></b></invoke>`, with a special token before each tag (MiniMax)."""

    name = "nested tags"
    openings: tuple[str, ...] = (_OPENING,)
    wrappers: tuple[str, ...] = (_TAG_PREFIX + "<tool_call>", _TAG_PREFIX + "</tool_call>")
    tags: tuple[tuple[str, str], ...] = ((_TAG_PREFIX, ""),)
    patterns: tuple[CallPattern, ...] = (
        CallPattern(
            (_OPENING + '"', Slot.NAME, '">', Slot.ARGUMENTS, _CLOSING),
            (_TAG_PREFIX + "<", Slot.KEY, ">", Slot.VALUE, _TAG_PREFIX + "</", Slot.KEY, ">"),
            "text",
            "",
            ((_TAG_PREFIX + "<tool_call>",), (_TAG_PREFIX + "</tool_call>",)),
        ),
    )

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:  # noqa: ARG002  # the contract's
        """Find the closing tag and build the arguments from the tags before it."""
        captures: dict[str, str] = {}
        header = (Capture("name", IN_TAG), ">")
        content_start = yield from match_header(buffer, start + len(_OPENING), header, captures)
        if content_start < 0:
            return AttemptResult(start)
        content_end = yield from find_literal(buffer, content_start, _CLOSING)
        if content_end < 0:
            return AttemptResult(start, "the call is never closed", len(buffer.text))
        tree = _build_tree(buffer.text[content_start:content_end].split(_TAG_PREFIX))
        end = content_end + len(_CLOSING)
        if tree is None:
            return AttemptResult(start, "its tags do not match", end)
        arguments = tree.named_children()
        yield CallDraft(captures["name"].strip("\"' "), arguments, start, end, untyped=frozenset(arguments))
        return AttemptResult(end)


def _build_tree(parts: list[str]) -> TagTree | None:
    """Build the tree of tags from the texts between the special tokens; None if the tags do not match, or a text is in none."""
    root = TagTree()
    stack = [("", root)]
    if parts[0].strip():
        return None
    for part in parts[1:]:
        tag, bracket, text = part.partition(">")
        if not bracket or not tag.startswith("<"):
            return None
        if tag.startswith("</"):
            name, closed = stack.pop()
            if not stack or name != tag[2:] or text.strip() or (closed.children and closed.text.strip()):
                return None
            continue
        child = TagTree(text)
        stack[-1][1].children.append((tag[1:], child))
        stack.append((tag[1:], child))
        if len(stack) > _MAX_DEPTH:
            return None
    return root if len(stack) == 1 else None
