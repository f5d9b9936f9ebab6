"""One reader for all values: JSON first, JSON with small faults and Python's literals beside it.

It is a machine with a stack of its own: it never recurses, reads each character once, can stop where the text ends for now
and go on when there is more, and never evaluates anything.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Final

from agentloop.text_calls.literals import (
    COMMENT,
    ESCAPED_UNDERSCORE,
    JSON,
    LONGEST_WORD,
    MISSING_BRACKET,
    PYTHON_LITERAL,
    QUOTE_STARTS,
    TRAILING_COMMA,
    UNQUOTED_KEY,
    Dialect,
    Frame,
    NotAValue,
    ReadArguments,
    ReadContainer,
    ReadList,
    ReadObject,
    end_of_text,
    quote_at,
    read_word,
    unquoted,
)
from agentloop.values.json import MOST_LEVELS

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.+\-\\]+")
_IDENTIFIER = re.compile(r"[^\W\d](?:\w|\\_)*")
_LINE = re.compile(r"[^\n]*")
_CLOSER: Final = {"{": "}", "[": "]", "(": ")"}
_MOST_JOINED = 50
_LEVELS = MOST_LEVELS + 2  # a list of calls and the call around the arguments


class LiteralReader:
    """Reads one container that begins at a place in a text: `{…}`, `[…]`, or `(…)` as the arguments of a call.

    Attributes:
        value: the container, once it is read whole.
        failure: why it cannot be read, once that is known; else empty.
        at: where reading stands: after the value, or where it failed.
        reached: how far the text was looked at.
    """

    def __init__(self, start: int, dialect: Dialect = JSON, unclosed: dict[str, int] | None = None) -> None:
        """Begin to read.

        Args:
            start: where the container begins.
            dialect: what the notation writes as a matter of course.
            unclosed: by quotation mark, from where on the text has none any more; shared by the readers of one text, so
                that no two of them look for the same end.
        """
        self.value: ReadContainer | None = None
        self.failure: str = ""
        self.at: int = start
        self.reached: int = start
        self._dialect = dialect
        self._unclosed = {} if unclosed is None else unclosed
        self._frames: list[Frame] = []
        self._quote = ""
        self._from = 0
        self._in_comment = False
        self._repairs: list[tuple[int, str]] = []

    def advance(self, text: str, *, ended: bool) -> bool:
        """Read on; say whether reading is over, in success or failure. False asks for more text.

        Args:
            text: the whole text so far; it only ever grows.
            ended: whether this is all of it.
        """
        while not self.failure and self.value is None:
            if self._quote:
                went_on = self._text(text, ended=ended)
            elif self._in_comment:
                went_on = self._comment(text, ended=ended)
            else:
                went_on = self._token(text, ended=ended)
            if not went_on:
                return False
        return True

    def repairs(self, start: int, end: int) -> tuple[str, ...]:
        """Return what was mended between two places, each kind once."""
        first = bisect_left(self._repairs, (start, ""))
        last = bisect_left(self._repairs, (end, ""))
        return tuple(dict.fromkeys(repair for _, repair in self._repairs[first:last]))

    def close_here(self) -> bool:
        """Take what is open as closed, for whoever knows that the value ends here; False where more than brackets is missing."""
        if not self._frames or self._quote or self._frames[-1].expected != "separator":
            return False
        self.failure = ""
        while len(self._frames) > 1:
            inner = self._frames.pop().node
            inner.end = self.at
            self._place(inner)
        self.value = self._frames.pop().node
        self.value.end = self.at
        self._repairs.append((self.value.start, MISSING_BRACKET))
        self._repairs.sort()
        return True

    def _token(self, text: str, *, ended: bool) -> bool:
        space = _SPACE.match(text, self.at)
        self.at = self.reached = space.end() if space else self.at
        if self.at == len(text):
            return ended and self._fail("it is cut off", self.at)
        character = text[self.at]
        if character in "{[(":
            return self._open(character)
        if character in "}])":
            return self._close(character)
        if character in ",:=":
            return self._separate(character)
        read = (
            self._begin_text if character in QUOTE_STARTS else self._begin_comment if character in "#/" else self._word
        )
        return read(text, ended=ended)

    def _open(self, opener: str) -> bool:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and not self._takes_value(frame):
            return self._fail(f"{opener} stands where a key or a comma belongs", self.at)
        if len(self._frames) >= _LEVELS:
            return self._fail(f"it is nested more than {MOST_LEVELS} levels deep", self.at)
        self.at += 1
        node: ReadContainer
        if opener == "{":
            node = ReadObject(self.at - 1)
        elif opener == "(" and frame is None:
            node = ReadArguments(self.at - 1)
        else:
            node = ReadList(self.at - 1)
        self._frames.append(Frame(opener, node))
        return True

    def _takes_value(self, frame: Frame) -> bool:
        if isinstance(frame.node, ReadObject) and not isinstance(frame.node, ReadArguments):
            return frame.expected == "value"
        return frame.expected in {"first", "next", "value"}

    def _close(self, closer: str) -> bool:
        frame = self._frames[-1] if self._frames else None
        if frame is None or _CLOSER[frame.opener] != closer or frame.expected in {"colon", "value"}:
            return self._fail(f"{closer} closes nothing that may end there", self.at)
        if frame.expected == "next" and frame.opener != "(":
            self._note(TRAILING_COMMA)
        self.at += 1
        frame.node.end = self.at
        self._frames.pop()
        if not self._frames:
            self.value = frame.node
            return True
        if frame.opener == "(":
            self._note(PYTHON_LITERAL)
            if not frame.commas and isinstance(frame.node, ReadList) and len(frame.node) == 1:
                return self._place(frame.node[0])  # brackets around one value are no tuple
        return self._place(frame.node)

    def _separate(self, mark: str) -> bool:
        frame = self._frames[-1] if self._frames else None
        if frame is None:
            return self._fail(f"{mark} begins no value", self.at)
        if mark == "," and frame.expected == "separator":
            frame.expected = "next"
            frame.commas += 1
        elif frame.expected == "colon" and mark == ("=" if isinstance(frame.node, ReadArguments) else ":"):
            frame.expected = "value"
        else:
            return self._fail(f"{mark} stands where it does not belong", self.at)
        self.at += 1
        return True

    def _begin_text(self, text: str, *, ended: bool) -> bool:
        quote = quote_at(text, self.at, ended=ended)
        if quote is None:
            return False
        frame = self._frames[-1] if self._frames else None
        joins = frame is not None and frame.expected == "separator" and self._joins(frame)
        if not quote or frame is None or (frame.expected in {"separator", "colon"} and not joins):
            return self._fail(f"{text[self.at]} stands where it does not belong", self.at)
        if self._unclosed.get(quote, len(text)) <= self.at:
            return self._fail("a quotation mark is never closed", self.at + 1)
        self.at += len(quote)
        self._quote, self._from = quote, self.at
        return True

    def _joins(self, frame: Frame) -> bool:
        """Say whether a text that follows a text is its continuation, as in Python."""
        return self._dialect.python and 0 <= frame.joined < _MOST_JOINED

    def _text(self, text: str, *, ended: bool) -> bool:
        end = end_of_text(text, self._quote, self.at)
        self.reached = end
        if not text.startswith(self._quote, end):
            if not ended:
                self.at = end
                return False
            opened = self._from - len(self._quote)
            self._unclosed.setdefault(self._quote, opened)
            self._quote = ""
            return self._fail("a quotation mark is never closed", opened + 1)
        value, repairs = unquoted(text[self._from : end], self._quote, python=self._dialect.python)
        for repair in repairs:
            self._note(repair, self._from)
        self.at = end + len(self._quote)
        self._quote = ""
        return self._place(value, is_text=True)

    def _begin_comment(self, text: str, *, ended: bool) -> bool:
        if text[self.at] == "/" and not text.startswith("//", self.at):
            if self.at + 1 == len(text) and not ended:
                return False
            return self._fail("/ stands where it does not belong", self.at)
        self._note(COMMENT)
        self._in_comment = True
        return True

    def _comment(self, text: str, *, ended: bool) -> bool:
        line = _LINE.match(text, self.at)
        self.at = self.reached = line.end() if line else self.at
        self._in_comment = self.at == len(text) and not ended
        return not self._in_comment

    def _word(self, text: str, *, ended: bool) -> bool:
        found = _WORD.match(text, self.at)
        if found is None or not self._frames:
            return self._fail(f"{text[self.at]} is not part of a value", self.at)
        word = found[0]
        if len(word) > LONGEST_WORD:
            return self._fail("a word is too long to be a value", found.end())
        if found.end() == len(text) and not ended:
            return False
        return self._take_word(word)

    def _take_word(self, word: str) -> bool:
        frame = self._frames[-1]
        may_be_key = isinstance(frame.node, ReadObject) and frame.expected in {"first", "next"}
        if may_be_key and _IDENTIFIER.fullmatch(word) and not self._is_positional(frame, word):
            self._note(UNQUOTED_KEY)
            if "\\" in word:
                self._note(ESCAPED_UNDERSCORE)
            self.at += len(word)
            frame.key, frame.expected = word.replace("\\", ""), "colon"
            return True
        if not self._takes_value(frame):
            return self._fail(f"{word[:40]} stands where it does not belong", self.at)
        try:
            value, repair = read_word(word)
        except NotAValue as refusal:
            return self._fail(str(refusal), self.at)
        if repair:
            self._note(repair)
        self.at += len(word)
        return self._place(value)

    def _is_positional(self, frame: Frame, word: str) -> bool:
        return isinstance(frame.node, ReadArguments) and word in {"True", "False", "None", "true", "false", "null"}

    def _place(self, value: object, *, is_text: bool = False) -> bool:
        frame = self._frames[-1]
        node = frame.node
        if frame.expected == "separator":
            return self._join(frame, str(value))
        if isinstance(node, ReadList):
            node.append(value)
        elif frame.expected == "value":
            node[frame.key] = value
        elif isinstance(node, ReadArguments):
            node.positional.append(value)
        elif is_text:
            frame.key, frame.expected = str(value), "colon"
            return True
        frame.expected, frame.joined = "separator", 0 if is_text else -1
        return True

    def _join(self, frame: Frame, text: str) -> bool:
        node = frame.node
        if isinstance(node, ReadList):
            node[-1] = f"{node[-1]}{text}"
        elif isinstance(node, ReadArguments) and not frame.key:
            node.positional[-1] = f"{node.positional[-1]}{text}"
        else:
            node[frame.key] = f"{node[frame.key]}{text}"
        frame.joined += 1
        return True

    def _note(self, repair: str, at: int | None = None) -> None:
        if repair not in self._dialect.native:
            self._repairs.append((self.at if at is None else at, repair))

    def _fail(self, reason: str, at: int) -> bool:
        self.failure, self.at = reason, at
        self.reached = max(self.reached, at)
        return True
