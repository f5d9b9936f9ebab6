"""What is left of calls that cannot be read, in a text that has no tag of a notation there."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from agentloop.text_calls.grades import Segment
from agentloop.text_calls.literal_reader import LiteralReader
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.results import RejectedCall

# A whole call in Python syntax at the beginning of a line, of a list, or of the rest of one.
_UNREAD_PYTHON: Final = re.compile(
    r"(?:\A\s*+[,;]\s*+|^[ \t]*+(?>(?:[-*+]|\d{1,3}[.)])[ \t]++)*+[\[(]*+)[^\W\d][\w.]{0,200}+"
    r"\((?>[^()\n]|\([^()\n]*+\)){0,2000}+\)[ \t]*+[\]),;]*+[ \t]*+(?=\n|,|\Z)",
    re.MULTILINE,
)
_UNREAD_JSON: Final = re.compile(
    r"\{\s*+[\"'](?:name|tool|tool_name|function|function_name|action|tool_calls?|function_calls?)[\"']\s*+:"
)
# The arguments of a call as JSON whose beginning is missing.
_UNREAD_ARGUMENTS: Final = re.compile(r"[\"'](?:arguments|parameters)[\"']\s*+:\s*+[{\"']")
# An argument as JSON has it, or on a line that ends as a call in Python does.
_ARGUMENT: Final = re.compile(
    r"[\"']([\w.-]{1,80})[\"']\s{0,4}:"
    r"|(?:^|[(,\[`])[ \t]{0,8}([\w.-]{1,80})[ \t]{0,4}=(?=[^\n]{0,200}\)[ \t]{0,4}(?:$|[(,\]`\w]))",
    re.MULTILINE,
)
# An argument directly behind a call, whose closing bracket stands in front of it.
_ARGUMENT_BEHIND: Final = re.compile(r"\s*+(?:[,;}\])]\s*+){0,6}+([\w.-]{1,80})\s{0,4}=|\s*+[,}]\s*+([\w.-]{1,80}):")


def find_unread(text: str, segments: Iterable[Segment], rejected: Sequence[RejectedCall], tools: OfferedTools) -> str:
    """Return why a part of an answer with calls resembles a call and was not parsed; empty if there is no such part.

    Args:
        text: the whole text.
        segments: its parts, in order.
        rejected: the parts that were rejected by a notation, or as a call of an offered tool.
        tools: the offered tools.
    """
    segments = list(segments)
    calls = [segment for segment in segments if segment.kind == "call"]
    starts = [segment.start for segment in calls]
    for rejection in rejected:
        index = bisect_right(starts, rejection.start) - 1
        # Another notation has read what one rejected.
        if index < 0 or rejection.start >= calls[index].end:
            return rejection.reason
    names, follows_call = tools.argument_names, False
    for segment in segments:
        if segment.kind == "text":
            part = text[segment.start : segment.end]
            if name := _find_argument(part, names, follows_call=follows_call):
                return f"the argument {name!r} stands in no call"
            unread = _UNREAD_PYTHON.search(part) or _UNREAD_JSON.search(part) or _UNREAD_ARGUMENTS.search(part)
            if unread is not None:
                return f"it is not a call of an offered tool: {unread[0].strip(' ,;[]()')[:80]}"
        follows_call = segment.kind == "call" or (follows_call and segment.kind in {"mark", "token"})
    return ""


def _find_argument(part: str, names: frozenset[str], *, follows_call: bool = False) -> str:
    """Return the name of an argument that stands outside of calls as if it belonged to one; empty if there is none."""
    found = [*_ARGUMENT.finditer(part)]
    if follows_call and (behind := _ARGUMENT_BEHIND.match(part)) is not None:
        found.insert(0, behind)
    return next((name for match in found if (name := match[1] or match[2]) in names), "")


_BROKEN: Final = "it has parts of a call, and they make no call that can be read"
# A call as JSON whose name is empty, or has a line break in it.
_NAMELESS: Final = re.compile(
    r"(?:json\s)?[\[{\s]*[\"'](?:name|tool|function)[\"']\s*:\s*[\"'](?:[^\"'\n]{0,80}\n[^\"'\n]{0,80})?[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters)[\"']"
)
# An argument of a call in Python whose brackets are in the wrong place.
_LOOSE_ARGUMENT: Final = re.compile(r"[\s,(\[]([\w.-]{1,80})[ \t]{0,4}\(?=(?!=)")
_QUOTED: Final = re.compile(r"\"[^\"\n]{0,2000}\"|'[^'\n]{0,2000}'")
_SENTENCE: Final = re.compile(r"[^\W\d_]{2,}[ \t]++[^\W\d_]{2,}")
_NAME: Final = re.compile(r"[\w.-]{1,200}")
_MAX_BROKEN: Final = 20_000


def find_broken_call(text: str, tools: OfferedTools) -> str:
    """Return why a text without calls and without words is nothing but a broken call in JSON or Python; empty if it is none.

    Data is none: what can be read as a whole, such as another JSON object, unless it is a call that only lacks its name.

    Args:
        text: the text, without what belongs to its reasoning.
        tools: the offered tools.
    """
    bare = text.strip().strip("`").strip()
    if not bare or len(bare) > _MAX_BROKEN or _SENTENCE.search(_QUOTED.sub('""', bare)):
        return ""
    names = tools.argument_names
    has_argument = bool(_find_argument(bare, names)) or (
        "(" in bare and any(match[1] in names for match in _LOOSE_ARGUMENT.finditer(bare))
    )
    has_holder = _UNREAD_ARGUMENTS.search(bare) is not None
    if _is_data(bare):  # only the name is missing
        return _BROKEN if has_argument and _NAMELESS.match(bare) else ""
    # A part in the wrong place may touch the name.
    has_name = any(name in bare for name in tools.by_exact_name) or any(
        tools.is_offered(tools.normalize_name(word[0].strip(".-"))) for word in _NAME.finditer(bare)
    )
    if (has_argument and (has_name or "=" in bare)) or (has_name and has_holder):
        return _BROKEN
    return ""


def _is_data(text: str) -> bool:
    text = text.removeprefix("json").lstrip()
    if text[:1] not in {"{", "["}:
        return False
    reader = LiteralReader(0)
    reader.advance(text, is_complete=True)
    return reader.value is not None and reader.position == len(text)
