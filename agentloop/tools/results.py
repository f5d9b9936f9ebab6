"""A tool by which a model reads earlier results of the conversation: those that did not fit, or that are no longer shown."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Self, TypeAlias

from attrs import define, evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.can_journal import CanRedactRecords
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolContext,
    CanLabelResult,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import ContractViolation, InvalidArguments
from agentloop.errors.hints import suggest
from agentloop.values.json import (
    JsonObject,
    JsonValue,
    format_json,
    freeze,
    freeze_object,
    parse_json,
    read_pointer,
    thaw,
)
from agentloop.values.parts import Media, Text
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ContentPart, Effect, ToolExecution, ToolResult

_MAX_PATH, _MAX_TEXT = 2_000, 1_000
_PARAMETERS = freeze_object(
    {
        "type": "object",
        "properties": {
            "reference": {
                "type": "string",
                "maxLength": 1_000,
                "description": "The reference of the result, from the notice in it.",
            },
            "path": {
                "type": "string",
                "maxLength": _MAX_PATH,
                "description": "For JSON: the part to read, as a JSON pointer (/items/0/name) or as items[0].name.",
            },
            "from": {
                "type": "integer",
                "description": (
                    "Where to begin: the number of a line, from 1; for JSON, the index of an item or a key, from 0. "
                    "A negative number counts from the end."
                ),
            },
            "lines": {
                "type": "integer",
                "minimum": 1,
                "description": "How many lines or items; as many as fit if left out.",
            },
            "text": {
                "type": "string",
                "minLength": 1,
                "maxLength": _MAX_TEXT,
                "description": "Show only the places that contain this text, exactly as written, with what is around them.",
            },
        },
        "required": ["reference"],
        "additionalProperties": False,
    }
)
_DESCRIPTION = (
    "Read an earlier result of this conversation that was cut or is no longer shown, by the reference in its place: page by page, "
    "one part of its JSON, or the places that contain a text."
)


@frozen(eq=False)
class ReadResult(Tool, CanAccessAgentState, CanAccessToolContext, CanLabelResult):
    """Reads parts of earlier results by reference. Pass it among the tools of a loop: `AgentLoop(driver, [search, read_result])`.

    The state keeps every result whole, so that references hold in stored states, after a recovery and in forks. A reference is
    the key of a call. A model can read the results in its own conversation, and a sub-agent also those of the agents above it.
    It reads no more than it would have seen without limits: the content that a tool shows, not the value behind it, with
    everything masked that interceptors have masked, or that the journal masks.

    Attributes:
        max_bytes: the maximum size of what one call returns, in bytes.
        name: the name by which a model calls it.
    """

    max_bytes: int = field(default=20_000, kw_only=True, validator=ge(2_000))
    name: str = field(default="read_result", kw_only=True)
    _state: AgentState | None = field(default=None, kw_only=True, repr=False)
    _scope: ExecutionScope | None = field(default=None, kw_only=True, repr=False)

    @property
    def description(self) -> str:
        """The description for the model."""
        return _DESCRIPTION

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of its arguments."""
        return _PARAMETERS

    @property
    def effect(self) -> Effect:
        """Pure."""
        return Effect.PURE

    @property
    def is_local(self) -> bool:
        """True: it reads results in the state of the execution."""
        return True

    @cached_property
    def policy(self) -> ToolPolicy:
        """Its own limit on results, and that it reads those of others."""
        return ToolPolicy(max_result_bytes=self.max_bytes, reads_results=True)

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that reads the results in this state."""
        return evolve(self, state=state)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that also reads the results of the agents above, as the journal would store them."""
        return evolve(self, scope=context.scope)

    async def use(self, *_: Any, reference: str, path: str = "", text: str = "", **range_: int) -> Any:
        """Return a page of a result, as text; the first page of a result with media is followed by these.

        Raises:
            InvalidArguments: there is no such result, or no such part of it.
        """
        found = self._find(reference)
        shown = self._show(_readable(found), path, text, range_)
        if self._scope is None or not self._scope.labels:
            return shown
        result = shown if isinstance(shown, ToolResult) else ToolResult(shown)
        return evolve(result, label=found.origin)

    def _show(self, whole: Any, path: str, text: str, range_: Mapping[str, int]) -> Any:
        """Return a page of a result."""
        document = self._masked(_document(whole) if isinstance(whole, _Parts) else whole)
        if path:
            document = _select(_as_json(document), path)
        page = _Page(self.max_bytes, range_.get("from"), range_.get("lines"))
        shown = page.search(document, path, text) if text else page.read(document, path)
        if isinstance(whole, _Parts) and not (path or text or range_):
            media = [part for part in whole.content if isinstance(part, Media)]
            return ToolResult(shown, (Text(shown), *media)) if media else shown
        return shown

    def _find(self, reference: str) -> ToolExecution:
        if self._state is None:
            raise ContractViolation(f"the tool {self.name!r} needs the state of its call: run it by an executor")
        callers = () if self._scope is None else self._scope.callers
        for state in (self._state, *callers):
            # From the end: results that do not fit are mostly read soon.
            for message in reversed(state.messages):
                for exchange in message.exchanges:
                    if exchange.execution.key == reference:
                        return exchange.execution
        known = [exchange.execution.key for message in self._state.messages[-20:] for exchange in message.exchanges]
        hint = suggest(reference, known) if len(reference) <= _MAX_SUGGESTED else ""
        raise InvalidArguments(
            f"no result in this conversation has the reference {_shorten(reference)!r}{hint}; copy it from the notice in the result",
            path="$.reference",
        )

    def _masked(self, document: JsonValue) -> JsonValue:
        """Return a document as the journal stores it, so that no part is read out of the reach of its patterns."""
        log = None if self._scope is None else self._scope.log
        journal: object = None if log is None else log.settings.journal
        if not isinstance(journal, CanRedactRecords):
            return document
        plain = {"value": thaw(document)}
        masked = journal.redact(plain)
        return document if masked is plain else freeze(masked["value"])


read_result: ReadResult = ReadResult()
"""The tool with its defaults."""


# --- the result -------------------------------------------------------------------------------------------------

_MAX_SUGGESTED = 200


@frozen
class _Parts:
    """The content of a result that a tool shows in place of its value."""

    content: tuple[ContentPart, ...]


def _readable(execution: ToolExecution) -> JsonValue | _Parts:
    """Return what the model would see of a result without limits."""
    if execution.error is not None:
        return execution.text
    content = execution.content if execution.uncut is None else execution.uncut or None
    return execution.value if content is None else _Parts(content)


def _document(parts: _Parts) -> str:
    """Return the texts of a result, and a line for each medium."""
    return "\n".join([part.text if isinstance(part, Text) else _describe(part) for part in parts.content])


def _describe(part: Media) -> str:
    size = f", {len(part.data):,} bytes" if part.data is not None else ""
    return f"[{type(part).__name__.lower()} {part.name or part.url or part.media_type}{size}]"


def _as_json(document: JsonValue) -> JsonValue:
    """Return the JSON that a text holds; any other document unchanged.

    Raises:
        InvalidArguments: the text is not JSON.
    """
    if not isinstance(document, str):
        return document
    # A result of several parts, such as that of an MCP server, may hold JSON in the last of them.
    for text in dict.fromkeys([document, document.rpartition("\n")[2]]):
        try:
            return freeze(parse_json(text))
        except (ValueError, RecursionError):
            continue
    raise InvalidArguments("this result is a text and not JSON; read it by from, lines or text", path="$.path")


def _select(value: JsonValue, path: str) -> JsonValue:
    """Return the part of a JSON value at a path.

    Raises:
        InvalidArguments: there is no such part; names the closest one.
    """
    pointer = ""
    for token in _tokens(path):
        if isinstance(value, Mapping) and token in value:
            value = value[token]
        elif isinstance(value, tuple) and token.isdecimal() and len(token) < _MAX_DIGITS and int(token) < len(value):
            value = value[int(token)]
        else:
            raise InvalidArguments(
                f"there is no {_shorten(token)!r} at {pointer or '/'!r}: it is {_shape(value, token)}", path="$.path"
            )
        pointer = f"{pointer}/{_escape(token)}"
    return value


_MAX_DIGITS = 12


def _tokens(path: str) -> list[str]:
    if path.startswith("/"):
        return read_pointer(path)
    simple = path.removeprefix("$").replace("[", ".").replace("]", "")
    return [token.strip("'\"") for token in simple.split(".") if token]


def _escape(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")


def _shape(value: JsonValue, token: str) -> str:
    if isinstance(value, Mapping):
        names = list(value)[:_MAX_NAMES]
        more = f" and {len(value) - len(names):,} more" if len(value) > len(names) else ""
        hint = suggest(token, names) if len(token) <= _MAX_SUGGESTED else ""
        return f"an object with the keys {', '.join(map(_shorten, names)) or 'none'}{more}{hint}"
    if isinstance(value, tuple):
        return f"a list of {len(value):,} items"
    return "a text" if isinstance(value, str) else f"{format_json(value).decode()}"


_MAX_NAMES, _MAX_SHOWN = 20, 100


def _shorten(text: str, maximum: int = _MAX_SHOWN) -> str:
    return text if len(text) <= maximum else f"{text[:maximum]}…"


# --- lines ------------------------------------------------------------------------------------------------------

LINE_CHARACTERS = 400
"""The maximum length of a numbered line; a longer line counts as several."""


def numbered_lines(text: str) -> list[str]:
    """Return the lines of a text as they are numbered; those of more than 400 characters are several."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= LINE_CHARACTERS:
            lines.append(line)
        else:
            lines += [line[start : start + LINE_CHARACTERS] for start in range(0, len(line), LINE_CHARACTERS)]
    return lines


@define(eq=False)
class _Lines:
    """The numbered lines of a text, found block by block: a text of 100 MB has millions of lines, and a page some hundred.

    Attributes:
        text: the text.
    """

    text: str
    _starts: list[int] = field(init=False, factory=list)
    _firsts: list[int] = field(init=False, factory=list)
    _count: int = field(init=False, default=0)
    _block: tuple[int, list[int]] = field(init=False, default=(-1, []))

    def __attrs_post_init__(self) -> None:
        text, start = self.text, 0
        while True:
            newline = text.find("\n", start + _BLOCK_CHARACTERS)
            end = len(text) if newline < 0 else newline
            self._starts.append(start)
            self._firsts.append(self._count)
            # A line of 401 characters is two, one of 801 three: one more for each full line that something follows.
            more = sum(
                (match.end() - match.start() - 1) // LINE_CHARACTERS for match in _LONG.finditer(text, start, end)
            )
            self._count += text.count("\n", start, end) + 1 + more
            if newline < 0:
                break
            start = newline + 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> str:
        offset = self.offset(index)
        newline = self.text.find("\n", offset, offset + LINE_CHARACTERS)
        return self.text[offset : newline if newline >= 0 else offset + LINE_CHARACTERS]

    def offset(self, index: int) -> int:
        """Return the position of the first character of a line."""
        block = bisect_right(self._firsts, index) - 1
        return self._offsets(block)[index - self._firsts[block]]

    def at(self, position: int) -> int:
        """Return the index of the line at a position."""
        block = bisect_right(self._starts, position) - 1
        return self._firsts[block] + bisect_right(self._offsets(block), position) - 1

    def _offsets(self, block: int) -> list[int]:
        """Return the positions of the lines of a block; they are kept until another block is read."""
        if self._block[0] != block:
            start = self._starts[block]
            end = self._starts[block + 1] - 1 if block + 1 < len(self._starts) else len(self.text)
            offsets = list[int]()
            for line in self.text[start:end].split("\n"):
                offsets += range(start, start + max(len(line), 1), LINE_CHARACTERS)
                start += len(line) + 1
            self._block = block, offsets
        return self._block[1]


_BLOCK_CHARACTERS = 65_536
_LONG = re.compile(rf"^.{{{LINE_CHARACTERS + 1},}}", re.MULTILINE)


# --- pages ------------------------------------------------------------------------------------------------------

_HEADER_BYTES = 300
_CONTEXT_LINES = 2
_MAX_PLACES = 10_000
"""The maximum number of lines that one search counts; a page shows some hundred."""
_EXCERPT = 100
"""The characters of a JSON text that are shown before and after a found text."""
_INLINE_BYTES = 500
"""Larger members of a JSON value are described by their size, and read by their path."""


@frozen
class _Page:
    """What one call returns: a line about what is shown, and as many lines as fit.

    Only what is shown is formatted: a result may have millions of members.

    Attributes:
        max_bytes: the maximum size in bytes.
        start: the first line or item; negative from the end; None for the first one.
        count: the maximum number of lines or items; None for as many as fit.
    """

    max_bytes: int
    start: int | None
    count: int | None

    def read(self, document: JsonValue, path: str) -> str:
        """Return lines of a text, or members of a JSON value."""
        if isinstance(document, Mapping):
            names, pointer = list(document), _pointer(_tokens(path))
            return self._show(
                "keys", len(names), 0, lambda index: _member(pointer, names[index], document[names[index]])
            )
        if isinstance(document, tuple):
            pointer = _pointer(_tokens(path))
            return self._show("items", len(document), 0, lambda index: _member(pointer, str(index), document[index]))
        lines = _Lines(_as_text(document))
        return self._show("lines", len(lines), 1, lines.__getitem__)

    def search(self, document: JsonValue, path: str, text: str) -> str:
        """Return the places that contain a text, as it is written."""
        if not isinstance(document, JsonObject | tuple):
            return self._search_lines(_as_text(document), text)
        found, prefix = list(_find_in(document, None, text)), _tokens(path)
        noun = f"places that contain {_shorten(text)!r}:"
        return self._show(noun, len(found), 0, lambda index: _excerpt(prefix, *found[index], text))

    def _search_lines(self, whole: str, text: str) -> str:
        lines = _Lines(whole)
        first = self._first(len(lines), 1)
        found: dict[int, None] = {}  # in order
        position = whole.find(text, lines.offset(first))
        while position >= 0 and len(found) < _MAX_PLACES:
            line = lines.at(position)
            found[line] = None
            # The rest of a line that was found need not be searched.
            position = whole.find(text, lines.offset(line + 1)) if line + 1 < len(lines) else -1
        near = {
            shown: None
            for line in found
            for shown in range(max(first, line - _CONTEXT_LINES), min(len(lines), line + _CONTEXT_LINES + 1))
        }
        shown = self._fitting(f"{line + 1}{':' if line in found else '-'} {lines[line]}" for line in near)
        more = " or more" if position >= 0 else ""
        head = f"{len(found):,}{more} of {len(lines):,} lines contain {_shorten(text)!r}"
        if len(shown) < len(near):
            head += f"; next: from={list(near)[len(shown)] + 1}"
        elif position >= 0:
            head += f"; next: from={lines.at(position) + 1}"
        return "\n".join([f"[{head}]", *shown])

    def _show(self, noun: str, total: int, base: int, entry: Callable[[int], str]) -> str:
        """Return the entries from the start on, as many as fit.

        Args:
            noun: what they are, in the plural.
            total: how many there are.
            base: the number of the first one.
            entry: returns one by its index.
        """
        if not total:
            return f"[0 {noun.removesuffix(':')}]"
        first = self._first(total, base)
        shown = self._fitting(entry(index) for index in range(first, total))
        end = first + len(shown)
        head = f"{noun} {first + base:,} to {end - 1 + base:,} of {total:,}"
        if end < total:
            head += f"; next: from={end + base}"
        return "\n".join([f"[{head}]", *shown])

    def _first(self, total: int, base: int) -> int:
        start = base if self.start is None else self.start
        index = max(0, total + start) if start < 0 else start - base
        if not 0 <= index < max(total, 1):
            raise InvalidArguments(
                f"from={_shorten(str(start))} is outside of {base} to {total - 1 + base}", path="$.from"
            )
        return index

    def _fitting(self, entries: Iterable[str]) -> list[str]:
        left, shown = self.max_bytes - _HEADER_BYTES, list[str]()
        # `islice` takes no larger numbers than the size of a sequence.
        for entry in islice(entries, None if self.count is None else min(self.count, sys.maxsize)):
            data = entry.encode("utf-8", "surrogatepass")
            if len(data) > left and shown:
                break
            shown.append(entry if len(data) <= left else data[:left].decode("utf-8", "ignore"))
            left -= len(data) + 1
        return shown


def _as_text(document: JsonValue) -> str:
    return document if isinstance(document, str) else format_json(document).decode()


def _pointer(tokens: Iterable[str]) -> str:
    # A path that is shown has to be one that is accepted, so only keys that no path may have are shortened.
    return "".join([f"/{_shorten(_escape(token), _MAX_PATH)}" for token in tokens])


def _member(pointer: str, name: str, value: JsonValue) -> str:
    """Return a line for a member of a JSON value: its path, and it or its size."""
    return f"{pointer}{_pointer([name])}: {_outline(value)}"


def _outline(value: JsonValue) -> str:
    data = format_json(value)
    if len(data) <= _INLINE_BYTES:
        return data.decode()
    if isinstance(value, Mapping):
        return f"(an object with {len(value):,} keys, {len(data):,} bytes)"
    if isinstance(value, tuple):
        return f"(a list of {len(value):,} items, {len(data):,} bytes)"
    return f"(a text of {len(data):,} bytes that begins with {data[:_EXCERPT].decode('utf-8', 'ignore')})"


_Place: TypeAlias = "tuple[_Place | None, str | int]"
"""A place in a JSON value: the place around it, and its key or index there. A path as a text would be copied at each level."""


def _find_in(value: JsonValue, place: _Place | None, text: str) -> Iterator[tuple[_Place, JsonValue]]:
    """Yield each member whose key, or whose own value without further members, contains a text."""
    items: Iterable[tuple[str | int, JsonValue]]
    items = value.items() if isinstance(value, JsonObject) else enumerate(value) if isinstance(value, tuple) else ()
    for key, member in items:
        inner: _Place = (place, key)
        if isinstance(key, str) and text in key:
            yield inner, member
        elif isinstance(member, JsonObject | tuple):
            yield from _find_in(member, inner, text)
        elif text in _as_text(member):
            yield inner, member


def _excerpt(prefix: Sequence[str], place: _Place, value: JsonValue, text: str) -> str:
    tokens, around = list[str](), place
    while True:
        outer, key = around
        tokens.append(str(key))
        if outer is None:
            break
        around = outer
    pointer = _pointer([*prefix, *reversed(tokens)])
    whole = _as_text(value) if not isinstance(value, Mapping | tuple) else ""
    position = whole.find(text)
    if position < 0:
        return f"{pointer}: {_outline(value)}"
    start, end = max(0, position - _EXCERPT), position + len(text) + _EXCERPT
    return f"{pointer}: {'…' if start else ''}{whole[start:end]}{'…' if end < len(whole) else ''}"
