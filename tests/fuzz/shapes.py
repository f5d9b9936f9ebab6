"""Readers of texts of strangers, hostile shapes of text for each of them, and the steps that they take."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import FrameType
from typing import Any, Final

from attrs import frozen

from agentloop.errors import AgentLoopError
from agentloop.mcp.sdk.transports import parse_message
from agentloop.mcp.session import ConnectionLost
from agentloop.models import ReActDecision
from agentloop.models.modes.react_reading import read_json_decision, read_text_decision
from agentloop.models.text_calls import DEFAULT_FORMATS, StreamReader, TextFormat, read_calls
from agentloop.policies import PersonalData
from agentloop.policies.web_addresses import WebAddress
from agentloop.service.cli.console import as_one_line
from agentloop.service.server.access import RequestRefused
from agentloop.toolkits.front_matter import read_front_matter
from agentloop.toolkits.html_text import html_to_text
from agentloop.toolkits.source_files import find_toml_lines
from agentloop.tools import SchemaValidator
from agentloop.values import InferenceRequest, Message
from agentloop.values.json import (
    EMPTY_OBJECT,
    duplicate_key,
    extract_json,
    is_truncated_json,
    parse_json,
    replace_lone_surrogates,
)
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.visible_text import escape_invisible, render_text

_TOOLS: Final = [ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "string"}}})]
_REQUEST: Final = InferenceRequest([Message.user("Add.")], tools=_TOOLS)
_PIECE: Final = 64


@frozen
class Reader:
    """Something that reads or shows a text of others.

    Attributes:
        read: reads a text, or a document; its errors are outcomes.
        tokens: the parts of texts that mean something to it.
        documents: the documents that it is measured with, by the names of their shapes.
        longest: the longest text, in characters, that it is measured with: its bound, where that is shorter than a megabyte.
        thread_from: the length from which on its caller lets it read in a thread, or in pieces between which other tasks go on.
        is_bounded: whether a bound ends the reading of what takes long, so that the time is not proportional to the text.
    """

    read: Callable[[Any], object]
    tokens: Sequence[str] = ()
    documents: Mapping[str, Callable[[int], Any]] = EMPTY_OBJECT
    longest: int = 1_000_000
    thread_from: float = math.inf
    is_bounded: bool = False


def _read_in_pieces(text: str, formats: Sequence[TextFormat] = DEFAULT_FORMATS) -> None:
    reader = StreamReader(_TOOLS, formats)
    for start in range(0, len(text), _PIECE):
        reader.feed(text[start : start + _PIECE])
    reader.close()


def _search(pattern: str) -> Callable[[str], object]:
    return SchemaValidator({"pattern": pattern}).problems


def _check(schema: dict[str, object]) -> Callable[[str], object]:
    validator = SchemaValidator(schema)
    return lambda text: validator.problems([text[index : index + 8] for index in range(0, len(text), 8)])


JSON: Final = ["{", "[", '"', "\\", ",", ":", "}", "]", "1", "null", '{"a":', "[[", "\\u", "e", "-", " ", "\ud800"]
_CALLS: Final = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "```json\n", "```\n", "`", "<function=add>", "</function>"),
    *("[TOOL_CALLS]", "<|python_tag|>", "add(", "[add(", ")]", "a=", '{"name": "add"', '"arguments": {', "}", "[", "{"),
    *(
        "'",
        '"',
        "\\",
        "<",
        ">",
        "\n",
        " ",
        ".",
        "> ",
        "- ",
        "&lt;",
        "Action: add\n",
        "Action Input: {",
        "functions.add:0",
        "a",
    ),
]
_REACT: Final = [
    "Thought:",
    "Action:",
    "Action Input:",
    "Final Answer:",
    "Observation:",
    "\n",
    "*",
    "`",
    "```",
    "{",
    "[",
    '"',
    " ",
    "<think>",
]
_TOML: Final = [
    "a",
    ".",
    "=",
    "a = ",
    "[",
    "]",
    "[[",
    "{",
    "}",
    ",",
    "\n",
    " ",
    "#",
    '"',
    "'",
    '"' * 3,
    "'" * 3,
    "\\",
    "[a]\n",
    "1",
]
_YAML: Final = [
    "a",
    ": ",
    "- ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "\n",
    "\n  ",
    '"',
    "'",
    "\\",
    "#",
    "|\n",
    "&a ",
    "*a",
    "! ",
    "%",
    "0x_",
]
_HTML: Final = [
    *(
        "<",
        ">",
        "/",
        "&",
        "&amp;",
        "&#",
        ";",
        '"',
        "=",
        "a",
        " ",
        "\n",
        "\0",
        "<!--",
        "-->",
        "<!",
        "<?",
        "]]>",
        "<p>",
        "</p>",
    ),
    *("<div>", "</div>", "<a href='", "</a>", "<li>", "<td>", "<table>", "<pre>", "</pre>", "<script>", "</script>"),
    *("<title>", "<b>", "<i>", "<br>", "<select>", "<p style='display:", "<h1>", "<img alt=x>"),
]
_URLS: Final = [
    "https://",
    "http://",
    "a",
    ".",
    "/",
    "@",
    ":",
    "[",
    "]",
    "%",
    "%41",
    "\u00fc",
    "xn--",
    "?",
    "#",
    "\\",
    "1",
    "0x",
]
_DATA: Final = [
    "1",
    "a",
    "@",
    ".",
    "-",
    " ",
    "+",
    "(",
    ")",
    ":",
    "::",
    "/",
    "4111 ",
    "DE89",
    "0",
    "f",
    "\u00e9",
    "a@a.aa",
    "1.1",
]
_SHOWN: Final = ["a", " ", "\n", "\x1b", "\u202e", "\u0430", "e\u0301", "\u200b", "\t", "\\", '"', "  " * 9, "\u4e2d"]

READERS: Final[Mapping[str, Reader]] = {
    "calls in text": Reader(lambda text: read_calls(text, _TOOLS), _CALLS, longest=131_072, thread_from=2_000),
    "calls in a stream": Reader(_read_in_pieces, _CALLS, longest=131_072, thread_from=2_000),
    "ReAct, text": Reader(
        lambda text: read_text_decision(text, _TOOLS, ReActDecision), _REACT, longest=131_072, thread_from=2_000
    ),
    "ReAct, JSON": Reader(
        lambda text: read_json_decision(text, _REQUEST, ReActDecision),
        [*JSON, "```json\n", "```", "<think>", '{"type":'],
        longest=131_072,
        thread_from=2_000,
    ),
    "JSON": Reader(parse_json, JSON),
    "JSON among prose": Reader(extract_json, [*JSON, "```json\n", "```"]),
    "truncated JSON": Reader(is_truncated_json, JSON),
    "duplicate keys": Reader(duplicate_key, JSON),
    "lone surrogates": Reader(
        lambda text: replace_lone_surrogates(text.encode(errors="replace")), [*JSON, "\\ud800", "\\udc00"]
    ),
    "pages in HTML": Reader(lambda text: html_to_text(text, links=True), _HTML, thread_from=0),
    "URLs": Reader(WebAddress.parse, _URLS),
    "personal data": Reader(PersonalData().mask, _DATA, longest=10_000),
    "lines of MCP": Reader(
        lambda text: parse_message("server", text.encode(errors="replace")),
        [*JSON, '{"jsonrpc": "2.0", "id": 1', '"method":'],
        thread_from=10_000,
    ),
    "TOML": Reader(find_toml_lines, _TOML, thread_from=0),
    "front matter": Reader(lambda text: read_front_matter(f"---\n{text}\n---\n"), _YAML, longest=65_000, thread_from=0),
    "one line": Reader(as_one_line, _SHOWN),
    # A program has a call rendered for a person, and knows whether other tasks wait.
    "rendered text": Reader(render_text, _SHOWN, longest=300_000, thread_from=0),
    "visible text": Reader(escape_invisible, _SHOWN, longest=300_000),
    "pattern": Reader(_search(r"^(a+)+$"), ["a", "b", "\n", "!"]),
    "pattern with boundaries": Reader(_search(r"\b(?i:(\w|a)\B)*\b!$"), ["a", " ", "A", "!", "\n", "_"]),
    "schema": Reader(
        _check(
            {"items": {"anyOf": [{"minLength": 9}, {"pattern": "^(a|b)*$"}, {"enum": ["a" * 8]}]}, "uniqueItems": True}
        ),
        ["a", "b", "c" * 8, "ab"],
    ),
}


def _write(length: int, begin: str, repeated: str, again: str, end: str) -> str:
    """Return a text of about a length: a begin, a part repeated, another part as often, and an end."""
    count = length // (len(repeated) + len(again))
    return begin + repeated * count + again * count + end


def makers(tokens: Sequence[str]) -> Iterator[tuple[str, Callable[[int], str]]]:
    """Yield names and makers of texts of about a length, of each pair of tokens: repeated, begun, ended, nested and alternating."""
    for token in tokens:
        yield f"{token!r} repeated", partial(_write, begin="", repeated=token, again="", end="")
    for first, second in product(tokens, tokens):
        if first == second:
            continue
        yield f"{first!r}, then {second!r} repeated", partial(_write, begin=first, repeated=second, again="", end="")
        yield f"{second!r} repeated, then {first!r}", partial(_write, begin="", repeated=second, again="", end=first)
        nested = partial(_write, begin="", repeated=first, again=second, end="")
        yield f"{first!r} repeated, then {second!r} as often", nested
        alternating = partial(_write, begin="", repeated=first + second, again="", end="")
        yield f"{first!r} and {second!r} alternating", alternating


def shapes(tokens: Sequence[str], length: int) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of `makers` for a length."""
    for name, make in makers(tokens):
        yield name, make(length)


OUTCOMES: Final = (AgentLoopError, ConnectionLost, RequestRefused, RecursionError, ValueError)
"""The errors that a reader may raise for a text."""


def read(reader: Reader, text: Any) -> None:
    """Let a reader read a text; its errors are outcomes."""
    try:
        reader.read(text)
    except OUTCOMES:
        return


def steps(reader: Reader, text: str) -> int:
    """Return the number of functions that a reader enters and leaves, in Python and in C.

    The work inside of a function in C, such as a match of `re` or a copy of a string, counts as one.
    """
    count = 0

    def profile(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        read(reader, text)
    finally:
        sys.setprofile(None)
    return count
