"""Calls as JSON objects, and sequences of calls as JSON objects or in Python syntax."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from typing import Final

from attrs import evolve

from agentloop.models.text_calls.literal_reader import LiteralReader
from agentloop.models.text_calls.literals import PYTHON, REPEATED_KEY, ParsedList, ParsedObject
from agentloop.models.text_calls.notations.elements import draft_call, match_name, read_python_call, read_value
from agentloop.models.text_calls.offered_tools import MAX_NAME_LENGTH, OfferedTools
from agentloop.models.text_calls.text_buffer import Resumable, TextBuffer, match_literal, skip_space
from agentloop.models.text_calls.text_format import AttemptResult, CallDraft, ParseAttempt
from agentloop.values.json import duplicate_key, parse_json

_QUOTES: Final = frozenset("'\"`")
_CLOSING_TAGS: Final = ("</", "<|/", "<tool_call")  # some models close a tag with an opening one
_SEPARATORS: Final = frozenset(",;")
_MAX_BRACKETS: Final = 2  # a list, and a list inside it
_MAX_DEPTH: Final = 4
_PRINT: Final = "print"
_PRINTED_CALL: Final = "call in print()"


class CallSequence:
    """Parses calls as long as they follow one another, separated by white space, commas, brackets or quotation marks.

    Attributes:
        end: offset behind the last call and the brackets that belong to it.
        has_calls: whether a call was yielded.
    """

    def __init__(
        self,
        buffer: TextBuffer,
        start: int,
        tools: OfferedTools,
        *,
        is_explicit: bool,
        is_code: bool = False,
        max_depth: int = _MAX_DEPTH,
    ) -> None:
        """Create a parser.

        Args:
            buffer: the text.
            start: offset of the first call or of a bracket before it.
            tools: the tools that the model was offered.
            is_explicit: whether the notation states that calls follow, so that their names need not be offered.
            is_code: whether the calls may be written as code that prints their results: `print(f(a=1))`.
            max_depth: how many levels of objects and lists may enclose a call.
        """
        self.end: int = start
        self.has_calls: bool = False
        self._buffer = buffer
        self._tools = tools
        self._is_explicit = is_explicit
        self._print = _PRINT + "(" if is_code and not tools.is_offered(_PRINT) else ""
        self._max_depth = max_depth
        self._position = start
        self._depth = 0
        self._reached = start
        self._quote = ""

    def read(self) -> ParseAttempt:
        """Yield the calls; the result ends behind the last call, or behind a value that is not a call."""
        while True:
            self._position = yield from skip_space(self._buffer, self._position)
            letter = self._buffer.text[self._position : self._position + 1]
            if self._skip_punctuation(letter):
                self._position += 1
                if letter in "]}" and self.has_calls:
                    self.end = self._position
                    if not self._depth:
                        return self._result("")
                continue
            if letter == "{":
                rejection = yield from self._read_object()
            elif letter and (letter.isalpha() or letter == "_"):
                rejection = yield from self._read_python_call()
            else:
                return self._result("")
            if rejection is not None:
                return self._result(rejection)

    def _skip_punctuation(self, letter: str) -> bool:
        """Whether this is a bracket, a separator or a quotation mark that belongs to the sequence; keep track of it."""
        if letter == "[" and self._depth < _MAX_BRACKETS:
            self._depth += 1
        elif letter == "]" and self._depth:
            self._depth -= 1
        elif letter == "}" and self.has_calls and self._is_explicit:  # a superfluous brace before the closing tag
            return True
        elif letter and letter in _QUOTES and self._depth and not self._quote:
            self._quote = letter
        elif not (letter and letter in _SEPARATORS and self.has_calls and not self._quote):
            return False
        return True

    def _read_object(self) -> Generator[CallDraft | None, None, str | None]:
        """Yield the calls in an object; return None to continue the sequence, or why it ends."""
        reader = yield from read_value(self._buffer, self._position)
        self._reached = max(self._reached, reader.reached)
        if reader.failure and self._is_explicit:
            # Only before a closing tag is it certain that brackets are missing and not the rest of the call.
            closing_tag = yield from match_literal(self._buffer, reader.position, _CLOSING_TAGS)
            if closing_tag:
                reader.close_brackets()
        drafts = _JsonCalls(reader, self._buffer, self._tools, is_explicit=self._is_explicit).drafts(self._max_depth)
        if reader.value is not None and not self.has_calls:
            self.end = reader.position  # an object that is data contains no calls
        if not drafts:
            is_meant = self._is_explicit or self.has_calls or self._begins_call()
            return (reader.failure or (_NO_CALL if self._is_explicit else "")) if is_meant else ""
        yield from drafts
        yield from self._accept(reader.position)
        return None

    def _begins_call(self) -> bool:
        """Whether an object, of which nothing else is known, begins as a call of an offered tool."""
        start = _CALL_START.match(self._buffer.text, self._position)
        return start is not None and self._tools.is_offered(self._tools.normalize_name(start[1]))

    def _read_python_call(self) -> Generator[CallDraft | None, None, str | None]:
        """Yield a call in Python syntax; return None to continue the sequence, or why it ends."""
        printing = yield from match_literal(self._buffer, self._position, (self._print,))
        start = (yield from skip_space(self._buffer, self._position + len(printing))) if printing else self._position
        name = yield from match_name(self._buffer, start)
        self._reached = max(self._reached, start + len(name))
        if not name or not self._buffer.text.startswith("(", start + len(name)):
            return ""
        normalized = self._tools.normalize_name(name)
        is_acceptable = self._is_explicit or self._tools.is_offered(normalized)
        if not (is_acceptable or (self._depth and not self._tools.known_names)):
            return f"{normalized[:80]} is not offered" if self._depth else ""
        call = yield from read_python_call(self._buffer, start, name)
        if isinstance(call, LiteralReader):
            self._reached = max(self._reached, call.reached)
            return call.failure or "it is not an argument list"
        if printing:
            closing = yield from skip_space(self._buffer, call.end)
            self._reached = max(self._reached, closing)
            if not (yield from match_literal(self._buffer, closing, (")",))):
                return ""
            repairs = (*call.repairs, _PRINTED_CALL)
            call = evolve(call, start=self._position, end=closing + 1, repairs=repairs)
        yield call
        yield from self._accept(call.end)
        return None

    def _accept(self, end: int) -> Resumable[None]:
        self.has_calls = True
        closer = (yield from match_literal(self._buffer, end, (self._quote,))) if self._quote else ""
        self._position = self.end = end + len(closer)
        self._quote = ""

    def _result(self, rejection: str) -> AttemptResult:
        return AttemptResult(self.end, rejection, self._reached)


# Simple members, such as an id, may stand before the name. All repetitions are bounded.
_CALL_START: Final = re.compile(
    r"\{\s*+(?:[\"'][\w -]{1,20}[\"']\s*+:\s*+(?:[\"'][^\"'\n]{0,80}[\"']|\d{1,9})\s*+,\s*+){0,3}"
    r"[\"'](?:(?:tool|function)[_ -]?(?:name)?|name|action)[\"']\s*+:\s*+[\"']([^\"'\n]{1,200})[\"']",
    re.IGNORECASE,
)
# Keys are compared without case and separators: `tool_name`, `toolName` and `Tool Name` are one key.
_NAME_KEYS: Final = ("name", "toolname", "functionname", "tool", "function", "action")
_ARGUMENT_KEYS: Final = (
    "arguments",
    "parameters",
    "args",
    "params",
    "input",
    "toolinput",
    "toolarguments",
    "actioninput",
    "toolargs",
    "kwargs",
)
_WRAPPER_KEYS: Final = ("toolcalls", "toolcall", "functioncalls", "functioncall", "calls", "tooluse")
_EXTRA_KEYS: Final = frozenset({"id", "type", "index", "toolcallid", "callid", "tooluseid"})
# What an object may contain besides a call without being about something else.
_ASIDE_KEYS: Final = _EXTRA_KEYS | {"thought", "thoughts", "reasoning", "reasoningcontent", "scratchpad"}
_SEPARATORS_IN_KEY: Final = str.maketrans("", "", "_- ")
_ARGUMENTS_AS_TEXT: Final = "arguments as text"
_ARGUMENTS_BESIDE_NAME: Final = "arguments beside the name"
_CALL_AS_TEXT: Final = "call as text"


_NO_CALL: Final = "it has no name of a tool with an object of arguments"
_BESIDE: Final = "the argument {!r:.80} stands beside {!r:.20} and not in it, so that a bracket is in the wrong place; make the call again"


def _fold(key: str) -> str:
    return key.translate(_SEPARATORS_IN_KEY).lower()


def _find(node: ParsedObject, keys: tuple[str, ...], kind: type | tuple[type, ...]) -> str | None:
    """Return the first of these keys whose value is of a type, as it is spelled in an object; None if there is none."""
    spelled = {_fold(key): key for key in reversed(node)}
    return next((spelled[key] for key in keys if key in spelled and isinstance(node[spelled[key]], kind)), None)


class _JsonCalls:
    """Extracts the calls from a JSON value.

    With `is_explicit`, the notation around the value states that it is a call, so that names need not be offered.
    """

    def __init__(self, reader: LiteralReader, buffer: TextBuffer, tools: OfferedTools, *, is_explicit: bool) -> None:
        self._reader = reader
        self._buffer = buffer
        self._tools = tools
        self._is_explicit = is_explicit
        self._is_mixed = False

    def drafts(self, max_depth: int) -> list[CallDraft]:
        """Return the calls; each ends where the value ends. Empty if the value is data."""
        value = self._reader.value
        drafts = [] if value is None else self._extract(value, is_explicit=self._is_explicit, max_depth=max_depth)
        return [evolve(draft, end=self._reader.position, is_mixed=self._is_mixed) for draft in list(drafts)]

    def _extract(self, node: object, *, is_explicit: bool, max_depth: int) -> Iterator[CallDraft]:
        if not max_depth:
            return
        if isinstance(node, list):
            for item in node:
                yield from self._extract(item, is_explicit=is_explicit, max_depth=max_depth - 1)
        elif isinstance(node, ParsedObject):
            yield from self._extract_from_object(node, is_explicit=is_explicit, max_depth=max_depth)

    def _extract_from_object(self, node: ParsedObject, *, is_explicit: bool, max_depth: int) -> Iterator[CallDraft]:
        key = _find(node, _WRAPPER_KEYS, (ParsedObject, ParsedList))
        if key is not None:
            self._note_asides(node, key)
            yield from self._extract(node[key], is_explicit=True, max_depth=max_depth - 1)
            return
        key = _find(node, _WRAPPER_KEYS, str)
        drafts = [] if key is None else self._drafts_of_text(str(node[key]), node, max_depth)
        if key is not None and drafts:
            self._note_asides(node, key)
            yield from drafts
            return
        key = _find(node, _NAME_KEYS, ParsedObject)
        if key is not None:
            self._note_asides(node, key)
            yield from self._extract(node[key], is_explicit=is_explicit, max_depth=max_depth - 1)
            return
        draft = self._draft_named(node, is_explicit=is_explicit) or self._draft_single_key(node)
        if draft is not None:
            yield draft

    def _note_asides(self, node: ParsedObject, *keys: str) -> None:
        """Note whether an object has contents besides its calls."""
        rest = [value for key, value in node.items() if key not in keys and _fold(key) not in _ASIDE_KEYS]
        self._is_mixed = self._is_mixed or any(value not in (None, "") for value in rest)

    def _drafts_of_text(self, text: str, node: ParsedObject, max_depth: int) -> list[CallDraft]:
        """Return the calls that a string in place of calls contains, such as `{"function_call": "f(a=1)"}`; none if it is data."""
        sequence = CallSequence(
            TextBuffer(text, is_complete=True), 0, self._tools, is_explicit=True, max_depth=max_depth - 1
        )
        drafts: list[CallDraft] = []
        attempt = sequence.read()
        while True:
            try:
                draft = next(attempt)
            except StopIteration as stop:
                result: AttemptResult = stop.value
                break
            if draft is None:
                return []
            drafts.append(draft)
        if result.rejection or text[result.end :].strip():
            return []
        repairs = (*self._reader.repairs(node.start, node.end), _CALL_AS_TEXT)
        return [
            evolve(draft, start=node.start, end=node.end, raw="", repairs=(*repairs, *draft.repairs))
            for draft in drafts
        ]

    def _draft_named(self, node: ParsedObject, *, is_explicit: bool) -> CallDraft | None:
        """Return the call of an object with keys for name and arguments."""
        name_key = _find(node, _NAME_KEYS, str)
        if name_key is None or not _may_be_name(str(node[name_key])):
            return None
        name = str(node[name_key])
        is_offered = self._tools.is_offered(self._tools.normalize_name(name))
        argument_key = _find(node, _ARGUMENT_KEYS, object)
        if argument_key is None:
            if not (is_offered or is_explicit):
                return None
            return self._draft_without_arguments(node, name, name_key, is_explicit=is_explicit)
        # Without a known name, only the most common keys, and no others, make a call. `name` with `parameters`
        # describes a tool more often than it calls it.
        keys = (_fold(name_key), _fold(argument_key))
        has_exact_keys = {*map(_fold, node)} <= _EXTRA_KEYS | {*keys} and keys != ("name", "parameters")
        if not (is_offered or is_explicit or (has_exact_keys and keys[1] in {"arguments", "parameters", "args"})):
            return None
        self._note_asides(node, name_key, argument_key)
        draft = self._draft_with_arguments(node, name, node[argument_key], is_alone=not self._is_mixed)
        beside = self._tools.properties(self._tools.normalize_name(name)).keys() & node.keys() - {
            name_key,
            argument_key,
        }
        if draft is None or not beside - draft.arguments.keys():
            return draft
        outside = min(beside - draft.arguments.keys())
        return evolve(draft, problem=_BESIDE.format(outside, argument_key))

    def _draft_with_arguments(
        self, node: ParsedObject, name: str, arguments: object, *, is_alone: bool
    ) -> CallDraft | None:
        span = node.start, node.end
        if isinstance(arguments, ParsedObject):
            if self._is_schema(name, arguments):
                return None
            return draft_call(name, arguments, self._reader, self._buffer, span)
        if arguments is None or arguments == "":
            return CallDraft(name, {}, *span, repairs=self._reader.repairs(*span))
        if isinstance(arguments, str):
            return self._draft_from_string(node, name, arguments, is_alone=is_alone)
        return None

    def _draft_from_string(self, node: ParsedObject, name: str, arguments: str, *, is_alone: bool) -> CallDraft | None:
        """Return the call whose arguments are JSON in a string, as in the API of OpenAI, or text for the only parameter."""
        span = node.start, node.end
        repairs = (*self._reader.repairs(*span), _ARGUMENTS_AS_TEXT)
        if arguments.lstrip()[:1] == "{":
            parsed, is_repeated = _parse_object(arguments.strip())
            repairs = (*repairs, REPEATED_KEY) if is_repeated else repairs
            return None if parsed is None else CallDraft(name, parsed, *span, repairs=repairs)
        key = self._tools.sole_parameter(self._tools.normalize_name(name)) if is_alone else None
        return (
            None if key is None else CallDraft(name, {key: arguments}, *span, repairs=repairs, untyped=frozenset({key}))
        )

    def _draft_without_arguments(
        self, node: ParsedObject, name: str, name_key: str, *, is_explicit: bool
    ) -> CallDraft | None:
        """Return the call of an object that has no key for arguments: there are none, or they stand beside the name.

        Only where the notation says that it is a call: without that, an object with a name and other keys is data.
        """
        tool = self._tools.normalize_name(name)
        arguments = {key: value for key, value in node.items() if key != name_key and _fold(key) not in _EXTRA_KEYS}
        if not self._tools.properties(tool).keys() >= arguments.keys() >= {*self._tools.required(tool)}:
            return None
        if arguments and not is_explicit:
            return None
        repairs = self._reader.repairs(node.start, node.end)
        if arguments:
            repairs = (*repairs, _ARGUMENTS_BESIDE_NAME)
        return CallDraft(name, arguments, node.start, node.end, repairs=repairs)

    def _draft_single_key(self, node: ParsedObject) -> CallDraft | None:
        """Return the call of an object whose only key is the name of the tool."""
        if len(node) != 1:
            return None
        name, arguments = next(iter(node.items()))
        if not isinstance(arguments, ParsedObject) or self._is_schema(name, arguments):
            return None
        if not (self._is_explicit or self._tools.is_offered(self._tools.normalize_name(name))):
            return None
        return draft_call(name, arguments, self._reader, self._buffer, (node.start, node.end))

    def _is_schema(self, name: str, arguments: Mapping[str, object]) -> bool:
        """Whether this is the schema of a tool's parameters, quoted from the prompt, and not arguments."""
        looks_like_schema = isinstance(arguments.get("properties"), Mapping) and isinstance(arguments.get("type"), str)
        return looks_like_schema and "properties" not in self._tools.properties(self._tools.normalize_name(name))


def _parse_object(text: str) -> tuple[Mapping[str, object] | None, bool]:
    """Return the object that a text is, as JSON or in Python syntax, or None; and whether a key occurs twice in it."""
    try:
        value = parse_json(text)
        return (value, duplicate_key(text) is not None) if isinstance(value, dict) else (None, False)
    except ValueError:
        reader = LiteralReader(0, PYTHON)
        reader.advance(text, is_complete=True)
        value = reader.value if reader.position == len(text) else None
        return (value if isinstance(value, dict) else None), REPEATED_KEY in reader.repairs(0, len(text))


def _may_be_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_LENGTH and not any(letter.isspace() for letter in text)
