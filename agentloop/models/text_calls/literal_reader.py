"""An incremental reader for values in JSON, in JSON with small faults, and in Python syntax.

The reader is a state machine with an explicit stack: it never recurses, examines each character once, resumes where the text
ended, and never evaluates anything.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Final, Literal

from agentloop.models.text_calls.literals import (
    COMMENT,
    ESCAPED_UNDERSCORE,
    JSON,
    MAX_WORD_LENGTH,
    MISSING_BRACKET,
    OTHER_SPACE,
    PYTHON_LITERAL,
    QUOTE_STARTS,
    REPEATED_KEY,
    TRAILING_COMMA,
    UNQUOTED_KEY,
    Dialect,
    NotALiteral,
    ParsedContainer,
    ParsedList,
    ParsedObject,
    find_string_end,
    match_quote,
    read_word,
    unquote,
)
from agentloop.values.json import MAX_DEPTH

_JSON_SPACE = " \t\n\r"
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.+\-\\]+")
_IDENTIFIER = re.compile(r"[^\W\d](?:\w|\\_)*")
_LINE = re.compile(r"[^\n]*")
_CLOSER: Final = {"{": "}", "[": "]", "(": ")"}
_MAX_CONCATENATIONS = 50
_MAX_DEPTH = MAX_DEPTH + 2  # arguments may be enclosed by a call, and that by a list of calls

_NOT_A_STRING: Final = -1

_Expected = Literal["first", "next", "colon", "value", "separator"]


class _Frame:
    """An open container, and which token may follow in it.

    `concatenations` counts the strings that were appended to the last value; `_NOT_A_STRING` if that is not a string.
    """

    __slots__ = ("commas", "concatenations", "expected", "is_arguments", "key", "node", "opener")

    def __init__(self, opener: str, node: ParsedContainer, *, is_arguments: bool) -> None:
        self.opener: str = opener
        self.node: ParsedContainer = node
        self.is_arguments: bool = is_arguments
        self.expected: _Expected = "first"
        self.key: str = ""
        self.commas: int = 0
        self.concatenations: int = _NOT_A_STRING

    def accepts_value(self) -> bool:
        if isinstance(self.node, ParsedObject) and not self.is_arguments:
            return self.expected == "value"
        return self.expected in {"first", "next", "value"}


class LiteralReader:
    """Reads the container that begins at a position: `{…}`, `[…]`, or `(…)` as the argument list of a call.

    Attributes:
        value: the container, once it is complete.
        failure: why it cannot be read, once that is known; else empty.
        position: offset behind the value, or of the failure.
        reached: offset up to which the text was examined.
    """

    def __init__(self, start: int, dialect: Dialect = JSON, unclosed_quotes: dict[str, int] | None = None) -> None:
        """Create a reader.

        Args:
            start: offset of the opening bracket.
            dialect: the deviations from JSON that are not reported as repairs.
            unclosed_quotes: for each quotation mark, the position from which the text has no closing one. The readers of one
                text share it, so that no two of them search for the same missing mark.
        """
        self.value: ParsedContainer | None = None
        self.failure: str = ""
        self.position: int = start
        self.reached: int = start
        self._dialect = dialect
        self._unclosed_quotes = {} if unclosed_quotes is None else unclosed_quotes
        self._frames: list[_Frame] = []
        self._quote = ""
        self._string_start = 0
        self._in_comment = False
        self._repairs: list[tuple[int, str]] = []

    def advance(self, text: str, *, is_complete: bool) -> bool:
        """Continue reading.

        Args:
            text: the whole text so far; it must extend the text of the previous call.
            is_complete: whether no more text follows.

        Returns:
            True if the reader has finished, with a value or a failure; False if it needs more text.
        """
        while not self.failure and self.value is None:
            if self._quote:
                advanced = self._read_string(text, is_complete=is_complete)
            elif self._in_comment:
                advanced = self._read_comment(text, is_complete=is_complete)
            else:
                advanced = self._read_token(text, is_complete=is_complete)
            if not advanced:
                return False
        return True

    def repairs(self, start: int, end: int) -> tuple[str, ...]:
        """Return the distinct repairs between two offsets."""
        first = bisect_left(self._repairs, (start, ""))
        last = bisect_left(self._repairs, (end, ""))
        return tuple(dict.fromkeys(repair for _, repair in self._repairs[first:last]))

    def close_brackets(self) -> bool:
        """Close all open containers at the current position, when the caller knows that the value ends here.

        Returns:
            False if more than closing brackets is missing; nothing changes then.
        """
        if not self._frames or self._quote or self._frames[-1].expected != "separator":
            return False
        self.failure = ""
        while len(self._frames) > 1:
            inner = self._frames.pop().node
            inner.end = self.position
            self._add_value(inner)
        self.value = self._frames.pop().node
        self.value.end = self.position
        self._repairs.append((self.value.start, MISSING_BRACKET))
        self._repairs.sort()
        return True

    # The methods below return True when they made progress, also by failing, and False when they need more text.

    def _read_token(self, text: str, *, is_complete: bool) -> bool:
        space = _SPACE.match(text, self.position)
        if space and space[0].strip(_JSON_SPACE):
            self._note(OTHER_SPACE)
        self.position = self.reached = space.end() if space else self.position
        if self.position == len(text):
            return is_complete and self._fail("it is cut off", self.position)
        character = text[self.position]
        if character in "{[(":
            return self._open(character)
        if character in "}])":
            return self._close(character)
        if character in ",:=":
            return self._separate(character)
        if character in QUOTE_STARTS:
            read = self._begin_string
        elif character in "#/":
            read = self._begin_comment
        else:
            read = self._read_word
        return read(text, is_complete=is_complete)

    def _open(self, opener: str) -> bool:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and not frame.accepts_value():
            return self._fail(f"unexpected {opener} in place of a key or a comma", self.position)
        if len(self._frames) >= _MAX_DEPTH:
            return self._fail(f"it is nested more than {MAX_DEPTH} levels deep", self.position)
        is_arguments = opener == "(" and frame is None
        node = ParsedObject(self.position) if opener == "{" or is_arguments else ParsedList(self.position)
        self.position += 1
        self._frames.append(_Frame(opener, node, is_arguments=is_arguments))
        return True

    def _close(self, closer: str) -> bool:
        frame = self._frames[-1] if self._frames else None
        if frame is None or _CLOSER[frame.opener] != closer or frame.expected in {"colon", "value"}:
            return self._fail(f"unexpected {closer}", self.position)
        if frame.expected == "next" and frame.opener != "(":
            self._note(TRAILING_COMMA)
        self.position += 1
        frame.node.end = self.position
        self._frames.pop()
        if not self._frames:
            self.value = frame.node
            return True
        if frame.opener == "(":
            self._note(PYTHON_LITERAL)
            if not frame.commas and isinstance(frame.node, ParsedList) and len(frame.node) == 1:
                return self._add_value(frame.node[0])  # parentheses around a single value do not make a tuple
        return self._add_value(frame.node)

    def _separate(self, mark: str) -> bool:
        frame = self._frames[-1] if self._frames else None
        if frame is None:
            return self._fail(f"a value cannot begin with {mark}", self.position)
        if mark == "," and frame.expected == "separator":
            frame.expected = "next"
            frame.commas += 1
        elif frame.expected == "colon" and mark == ("=" if frame.is_arguments else ":"):
            frame.expected = "value"
        else:
            return self._fail(f"unexpected {mark}", self.position)
        self.position += 1
        return True

    def _begin_string(self, text: str, *, is_complete: bool) -> bool:
        quote = match_quote(text, self.position, is_complete=is_complete)
        if quote is None:
            return False
        frame = self._frames[-1] if self._frames else None
        continues = frame is not None and frame.expected == "separator" and self._can_concatenate(frame)
        if not quote or frame is None or (frame.expected in {"separator", "colon"} and not continues):
            return self._fail(f"unexpected {text[self.position]}", self.position)
        if self._unclosed_quotes.get(quote, len(text)) <= self.position:
            return self._fail("a quotation mark is never closed", self.position + 1)
        self.position += len(quote)
        self._quote, self._string_start = quote, self.position
        return True

    def _can_concatenate(self, frame: _Frame) -> bool:
        """Whether a string that follows a string continues it, as in Python."""
        return self._dialect.is_python and 0 <= frame.concatenations < _MAX_CONCATENATIONS

    def _read_string(self, text: str, *, is_complete: bool) -> bool:
        end = find_string_end(text, self._quote, self.position)
        self.reached = end
        if not text.startswith(self._quote, end):
            if not is_complete:
                self.position = end
                return False
            quote_start = self._string_start - len(self._quote)
            self._unclosed_quotes.setdefault(self._quote, quote_start)
            self._quote = ""
            return self._fail("a quotation mark is never closed", quote_start + 1)
        value, repairs = unquote(text[self._string_start : end], self._quote, is_python=self._dialect.is_python)
        for repair in repairs:
            self._note(repair, self._string_start)
        self.position = end + len(self._quote)
        self._quote = ""
        return self._add_value(value, is_string=True)

    def _begin_comment(self, text: str, *, is_complete: bool) -> bool:
        if text[self.position] == "/" and not text.startswith("//", self.position):
            if self.position + 1 == len(text) and not is_complete:
                return False
            return self._fail("unexpected /", self.position)
        self._note(COMMENT)
        self._in_comment = True
        return True

    def _read_comment(self, text: str, *, is_complete: bool) -> bool:
        line = _LINE.match(text, self.position)
        self.position = self.reached = line.end() if line else self.position
        self._in_comment = self.position == len(text) and not is_complete
        return not self._in_comment

    def _read_word(self, text: str, *, is_complete: bool) -> bool:
        match = _WORD.match(text, self.position)
        if match is None or not self._frames:
            return self._fail(f"{text[self.position]} is not part of a value", self.position)
        word = match[0]
        if len(word) > MAX_WORD_LENGTH:
            return self._fail("a word is too long to be a value", match.end())
        if match.end() == len(text) and not is_complete:
            return False
        return self._add_word(word)

    def _add_word(self, word: str) -> bool:
        frame = self._frames[-1]
        may_be_key = isinstance(frame.node, ParsedObject) and frame.expected in {"first", "next"}
        is_name = self._dialect.has_free_keys or _IDENTIFIER.fullmatch(word)
        if may_be_key and is_name and not _is_positional(frame, word):
            self._note(UNQUOTED_KEY)
            if "\\" in word:
                self._note(ESCAPED_UNDERSCORE)
            self.position += len(word)
            frame.key, frame.expected = word.replace("\\", ""), "colon"
            return True
        if not frame.accepts_value():
            return self._fail(f"unexpected {word[:40]}", self.position)
        try:
            value, repair = read_word(word)
        except NotALiteral as error:
            return self._fail(str(error), self.position)
        if repair:
            self._note(repair)
        self.position += len(word)
        return self._add_value(value)

    def _add_value(self, value: object, *, is_string: bool = False) -> bool:
        frame = self._frames[-1]
        node = frame.node
        if frame.expected == "separator":  # only a string that continues the previous string gets here
            self._concatenate(frame, str(value))
            return True
        if isinstance(node, ParsedList):
            node.append(value)
        elif frame.expected == "value":
            if frame.key in node:
                self._note(REPEATED_KEY)
            node[frame.key] = value
        elif frame.is_arguments:
            node.positional.append(value)
        elif is_string:
            frame.key, frame.expected = str(value), "colon"
            return True
        frame.expected, frame.concatenations = "separator", 0 if is_string else _NOT_A_STRING
        return True

    def _concatenate(self, frame: _Frame, text: str) -> None:
        node = frame.node
        if isinstance(node, ParsedList):
            node[-1] = f"{node[-1]}{text}"
        elif frame.is_arguments and not frame.key:
            node.positional[-1] = f"{node.positional[-1]}{text}"
        else:
            node[frame.key] = f"{node[frame.key]}{text}"
        frame.concatenations += 1

    def _note(self, repair: str, position: int | None = None) -> None:
        if repair not in self._dialect.allowed:
            self._repairs.append((self.position if position is None else position, repair))

    def _fail(self, reason: str, position: int) -> bool:
        self.failure, self.position = reason, position
        self.reached = max(self.reached, position)
        return True


def _is_positional(frame: _Frame, word: str) -> bool:
    return frame.is_arguments and word in {"True", "False", "None", "true", "false", "null"}
