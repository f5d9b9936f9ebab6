"""Calls of which every value stands in a tag with its name, and every tag behind a special token, as MiniMax M3 writes them."""

from __future__ import annotations

from typing import Final

from agentloop.drivers.modes.text_formats.draft import Attempt, Draft, Outcome
from agentloop.drivers.modes.text_formats.notations.heads import IN_TAG, Field, read_head
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.source import Source, find
from agentloop.drivers.modes.text_formats.text_format import TextFormat
from agentloop.drivers.modes.text_formats.untyped_text import Tree

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
