"""Files that describe tools and agents, in TOML or in Markdown with front matter: their values, and the line of each key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from agentloop.errors import ConfigurationError, InvalidDescriptor, InvalidFile, NotJson
from agentloop.toolkits.front_matter import MAX_DEPTH, Key, KeyPath, read_front_matter
from agentloop.values.bounds import current_bounds
from agentloop.values.json import freeze

Mistake: TypeAlias = tuple[str, str, int, str]
"""A mistake in a file, as `InvalidDescriptor` has it: the file, the key, the number of the line (0 for none), a message."""


@frozen
class SourceFile:
    """A file of configuration.

    Attributes:
        path: its path.
        data: its values.
        lines: the 1-based number of the line of each key and item, by the keys that lead to it.
        body: the text after the front matter of a Markdown file; None in TOML.
        body_line: the line on which the body begins; 0 without one.
    """

    path: Path
    data: dict[str, Any] = field(repr=False)
    lines: Mapping[KeyPath, int] = field(repr=False)
    body: str | None = field(default=None, repr=False)
    body_line: int = field(default=0, repr=False)

    def line_of(self, path: Sequence[Key]) -> int:
        """Return the line of a value, or of the innermost value around it that has one; 0 when none has."""
        keys = tuple(path)
        lengths = range(len(keys), 0, -1)
        return next((self.lines[keys[:length]] for length in lengths if keys[:length] in self.lines), 0)


@frozen
class LocatedValue:
    """A value in a file.

    Attributes:
        value: the value.
        file: the file.
        path: the key of the value, after the keys of the tables around it.
        under: the value that it replaces: the value of the same key in the file that this file names as its source.
    """

    value: Any
    file: SourceFile
    path: KeyPath
    under: LocatedValue | None = field(default=None, repr=False)

    def at(self, *keys: Key) -> LocatedValue:
        """Return the value under these keys inside of it; None where there is none."""
        value = self.value
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                value = None
        return LocatedValue(value, self.file, (*self.path, *keys))

    def mistake(self, message: str, *keys: Key) -> Mistake:
        """Return a mistake at this value, or at the value under these keys inside of it."""
        path = (*self.path, *keys)
        return str(self.file.path), format_keys(path), self.file.line_of(path), message


def format_keys(path: Sequence[Key]) -> str:
    """Return a path of keys as people write it, such as `invokers[0].name`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def keys_of_json_path(path: str) -> KeyPath:
    """Return the keys of a JSON path, such as `$.days[0]`, for the lookup of a line."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", path.removeprefix("$"))
    return tuple([int(index) if index and len(index) < _MAX_INDEX_DIGITS else index or name for index, name in parts])


_MAX_INDEX_DIGITS = 10

# --- reading ----------------------------------------------------------------------------------------------------

MARKDOWN_SUFFIXES: Final = frozenset({".md", ".markdown"})
"""The endings of the names of files that are read as Markdown with front matter; all others are TOML."""


def read_source_file(path: Path) -> SourceFile:
    """Read a file.

    Args:
        path: its path; the ending of its name tells TOML from Markdown.

    Raises:
        InvalidFile: it is not TOML, or not Markdown with front matter, or exceeds a limit; has the line.
        ConfigurationError: there is no such file, it cannot be read, or the extra `yaml` is needed and not installed.
    """
    text = _read_text(path)
    if path.suffix.lower() in MARKDOWN_SUFFIXES:
        front_matter = read_front_matter(text)
        return SourceFile(path, front_matter.values, front_matter.lines, front_matter.body, front_matter.body_line)
    # Lines are found first: that takes linear time, and tomllib must not meet keys with thousands of parts.
    lines = find_toml_lines(text)
    try:
        return SourceFile(path, tomllib.loads(text), lines)
    # An integer of thousands of digits is a plain ValueError.
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"this is not TOML: {error}", _toml_error_line(str(error))) from error


def _read_text(path: Path) -> str:
    limit = int(min(current_bounds().document_bytes, _MAX_READ))
    try:
        # A device or a pipe could be endless, and opening one can wait.
        if not path.is_file():
            problem = f"{path} cannot be read: it is not a file" if path.exists() else f"there is no file {path}"
            raise ConfigurationError(problem)
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise InvalidFile(f"the file has more than {limit:,} bytes; the limit is Bounds.document_bytes")
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"the file is not UTF-8: {error.reason}", data.count(b"\n", 0, error.start) + 1) from error
    # An embedded null byte is a ValueError in a path.
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


_MAX_READ = 1 << 40


def _toml_error_line(message: str) -> int:
    # tomllib has the line only in its message, as "(at line 3, column 1)".
    match = re.search(r"\(at line (\d{1,9}),", message)
    return int(match[1]) if match else 0


# --- the lines of keys in TOML ----------------------------------------------------------------------------------

_BLANK = re.compile(r"(?>[ \t\r\n]|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]++")
_TEXT = re.compile(
    r'"""(?>[^"\\]|\\.|"(?!""))*+""""{0,2}'  # up to two quotes may stand before the closing ones
    r"|'''(?>[^']|'(?!''))*+''''{0,2}"
    r'|"(?!"")(?>[^"\\\n]|\\.)*+"'
    r"|'(?!'')[^'\n]*+'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]++")


def find_toml_lines(text: str) -> dict[KeyPath, int]:
    """Find the lines of the keys of a TOML document, and of the items of its lists.

    tomllib does not report them. Of a text that is not TOML, those before the first error are found.

    Args:
        text: the document.

    Returns:
        The 1-based number of the line on which each key or item first stands, by the keys that lead to it.

    Raises:
        InvalidFile: tables and lists are nested too deep.
    """
    scanner = _TomlScanner(text)
    with suppress(_SyntaxError):  # tomllib reports it, with a reason
        scanner.scan()
    return scanner.lines


class _SyntaxError(Exception):
    """The text is not TOML from here on."""


class _TomlScanner:
    """Goes through a document once, and notes the keys; it accepts all TOML, and some texts that are not."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._position = 0
        self._line = 1
        self._counted = 0
        self._tables: dict[KeyPath, int] = {}  # how many tables each list of tables has so far

    def scan(self) -> None:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self._text):
            if self._takes("[["):
                table = self._header("]]", is_item=True)
            elif self._takes("["):
                table = self._header("]", is_item=False)
            else:
                self._assignment(table)

    def _header(self, end: str, *, is_item: bool) -> KeyPath:
        self._skip(_SPACE)
        keys = self._keys()
        self._expect(end)
        path: KeyPath = ()
        for number, key in enumerate(keys, 1):
            path = self._note((*path, key))
            # A header inside of a list of tables means the last of them.
            if is_item and number == len(keys):
                self._tables[path] = self._tables.get(path, 0) + 1
            if path in self._tables:
                path = self._note((*path, self._tables[path] - 1))
        return path

    def _assignment(self, path: KeyPath) -> None:
        for key in self._keys():
            path = self._note((*path, key))
        self._expect("=")
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._takes("["):
            self._items(path)
        elif self._takes("{"):
            self._members(path)
        else:
            start = self._text[self._position : self._position + 1]
            self._match(_TEXT if start in {'"', "'"} else _PLAIN)

    def _items(self, path: KeyPath) -> None:
        index = 0
        while not self._ends("]", is_first=index == 0):
            self._value(self._note((*path, index)))
            index += 1

    def _members(self, path: KeyPath) -> None:
        is_first = True
        while not self._ends("}", is_first=is_first):
            self._assignment(path)
            is_first = False

    def _ends(self, mark: str, *, is_first: bool) -> bool:
        """Skip the comma before the next item; return whether there is none."""
        self._skip(_BLANK)
        if not is_first and self._takes(","):
            self._skip(_BLANK)
        elif not is_first:
            self._expect(mark)
            return True
        return self._takes(mark)

    def _keys(self) -> list[str]:
        keys = [self._key()]
        self._skip(_SPACE)
        while self._takes("."):
            self._skip(_SPACE)
            keys.append(self._key())
            self._skip(_SPACE)
            if len(keys) > MAX_DEPTH:
                self._raise_too_deep()
        return keys

    def _key(self) -> str:
        if self._text[self._position : self._position + 1] not in {'"', "'"}:
            return self._match(_BARE_KEY)
        quoted = self._match(_TEXT)
        try:
            # Escapes are those of tomllib itself.
            return next(iter(tomllib.loads(f"{quoted} = 0")))
        except ValueError as error:
            raise _SyntaxError from error

    def _note(self, path: KeyPath) -> KeyPath:
        """Note the line of a key unless it is known, and return its path."""
        if len(path) > MAX_DEPTH:
            self._raise_too_deep()
        self.lines.setdefault(path, self._current_line())
        return path

    def _raise_too_deep(self) -> None:
        raise InvalidFile(f"tables and lists are nested more than {MAX_DEPTH} deep", self._current_line())

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line

    def _takes(self, mark: str) -> bool:
        is_here = self._text.startswith(mark, self._position)
        self._position += len(mark) if is_here else 0
        return is_here

    def _expect(self, mark: str) -> None:
        self._skip(_SPACE)
        if not self._takes(mark):
            raise _SyntaxError

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return self._position

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            raise _SyntaxError
        self._position = match.end()
        return match[0]


# --- values in words --------------------------------------------------------------------------------------------

_TYPE_NAMES: Mapping[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "a list",
    datetime: "a date",
    date: "a date",
    time: "a time",
    type(None): "nothing",
}


def describe_type(value: object) -> str:
    """Return the type of a value in words, for messages."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def type_problem(value: object, *types: type) -> str:
    """Return why a value has none of these types; empty if it has one. The first type is named in the message."""
    # bool is a subclass of int, but true and false are not numbers.
    is_wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    return f"it has to be {_TYPE_NAMES[types[0]]}, not {describe_type(value)}" if is_wrong else ""


Check: TypeAlias = Callable[[Any], str]
"""Returns the problem of a value of a file; empty when there is none."""


def has_type(*types: type) -> Check:
    """Return a check of the type; the first type is named in the message."""
    return lambda value: type_problem(value, *types)


def texts_problem(value: object) -> str:
    """Return why a value is not a list of texts; empty if it is one."""
    problem = type_problem(value, list)
    if problem or not isinstance(value, list):
        return problem
    item_problem = next(filter(None, [type_problem(item, str) for item in value]), "")
    return f"each item {item_problem.removeprefix('it ')}" if item_problem else ""


def json_problem(value: object) -> str:
    """Return why a table is not a JSON object; empty if it is one."""
    problem = type_problem(value, dict)
    if problem:
        return problem
    try:
        # TOML has dates, JSON does not.
        freeze(value)
    except NotJson as error:
        return f"{error}; dates and times are written as text, in quotes"
    return ""


def raise_mistakes(mistakes: Sequence[Mistake]) -> None:
    """Raise all mistakes as one error; do nothing without any.

    Raises:
        InvalidDescriptor: there are mistakes.
    """
    if mistakes:
        raise InvalidDescriptor(mistakes)
