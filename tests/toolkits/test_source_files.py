"""Files of configuration: the lines of their keys, and that any text is read or refused in time proportional to it."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Bounds
from agentloop.errors import ConfigurationError, InvalidFile
from agentloop.toolkits.source_files import (
    LocatedValue,
    find_toml_lines,
    format_keys,
    keys_of_json_path,
    read_source_file,
)
from agentloop.values.bounds import apply_bounds

TEXT = r"""a = "x # = [t]" # [no]
text = QQQ
[t]
after = 1
\"QQQ
list = [ # [[no]]
  [1], [2,
  3], { x = 1 },
  "t = 1",
]

[t]
inner.k = 1
'a b'.c = '''one line''''
[t."u.v"] # comment
deep = 1979-05-27 07:32:00
inline = { x = 1, y = [1] }
[[many]]
name = "first"
[many.sub]
"\u00e9" = 1
[[many]]
[[many.more]]
'' = { "q\"" = '' }
""".replace("QQQ", '"' * 3)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 1),
        (("text",), 2),
        (("list",), 6),
        (("list", 0), 7),
        (("list", 1, 1), 8),
        (("list", 2, "x"), 8),
        (("list", 3), 9),
        (("t",), 12),
        (("t", "inner", "k"), 13),
        (("t", "a b", "c"), 14),
        (("t", "u.v"), 15),
        (("t", "u.v", "deep"), 16),
        (("t", "u.v", "inline", "y", 0), 17),
        (("many",), 18),
        (("many", 0, "name"), 19),
        (("many", 0, "sub", "é"), 21),
        (("many", 1), 22),
        (("many", 1, "more", 0, "", 'q"'), 24),
        (("after",), 0),
        (("t", "missing"), 12),
        (("list", 7), 6),
    ],
)
def test_lines_of_keys_are_found(tmp_path: Path, path: tuple[str | int, ...], line: int) -> None:
    """Keys in texts and comments are none; items, inline tables and lists of tables have lines; what is missing has its table's."""
    file = tmp_path / "a.toml"
    file.write_text(TEXT, encoding="utf-8")
    assert read_source_file(file).line_of(path) == line


# --- any document -----------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b-c", "d e", "f.g", "#h", "", 'i"j', "é", "1"])
PLAIN = st.sampled_from(
    ["1", "-2.5", "true", "1979-05-27 07:32:00", '"x # [y]"', "'z = 1'", '"""\nk = 1\n[t]"""', "'''\n]}'''", '""']
)


class Writer:
    """Writes random TOML, and notes the line of each key as it writes it."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.text = draw, ""
        self.lines: dict[tuple[str | int, ...], int] = {}

    def note(self, path: tuple[str | int, ...]) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def keys(self, path: tuple[str | int, ...], keys: list[str]) -> tuple[str | int, ...]:
        for number, key in enumerate(keys):
            path = (*path, key)
            self.note(path)
            is_bare = key.replace("-", "").isalnum() and key.isascii() and self.draw(st.booleans())
            self.text += ("" if number == 0 else self.draw(st.sampled_from([".", " . "]))) + (
                key if is_bare else json.dumps(key)
            )
        return path

    def value(self, path: tuple[str | int, ...], depth: int) -> None:
        kind = self.draw(st.sampled_from(["plain", "list", "table"] if depth < 3 else ["plain"]))
        if kind == "plain":
            self.text += self.draw(PLAIN)
        elif kind == "list":
            self.text += "["
            for index in range(self.draw(st.integers(0, 3))):
                self.text += self.draw(st.sampled_from(["", " ", "\n", " # ] c\n"]))
                self.note((*path, index))
                self.value((*path, index), depth + 1)
                self.text += self.draw(st.sampled_from([",", " ,", "\n,"]))
            self.text += "]"
        else:
            self.text += "{"
            for number, key in enumerate(self.draw(st.lists(KEYS, max_size=3, unique=True))):
                self.text += " " if number == 0 else ", "
                self.assign(path, [key], depth)
            self.text += "}"

    def assign(self, path: tuple[str | int, ...], keys: list[str], depth: int) -> None:
        self.text += self.draw(st.sampled_from(["", "  "])) if depth == 0 else ""
        path = self.keys(path, keys)
        self.text += self.draw(st.sampled_from(["=", " = ", "\t= "]))
        self.value(path, depth + 1)

    def statements(self, path: tuple[str | int, ...]) -> None:
        for key in self.draw(st.lists(KEYS, max_size=3, unique=True)):
            rest = self.draw(st.lists(KEYS, max_size=1))
            self.assign(path, [key, *rest], 0)
            self.text += self.draw(st.sampled_from(["\n", " # c\n", "\n\n", "\r\n"]))

    def document(self) -> None:
        self.statements(())
        for number in range(self.draw(st.integers(0, 3))):
            name = [f"t{number}", *self.draw(st.lists(KEYS, max_size=1))]
            if self.draw(st.booleans()):
                self.text += "[ "
                path = self.keys((), name)
                self.text += "]\n"
                self.statements(path)
                continue
            for index in range(self.draw(st.integers(1, 3))):
                self.text += "[["
                path = (*self.keys((), name), index)
                self.note(path)
                self.text += "]] # [x]\n"
                self.statements(path)


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each key and item of a parsed document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


@given(st.data())
def test_every_key_of_any_document_has_the_line_on_which_it_was_written(data: st.DataObject) -> None:
    """The paths found are exactly those that tomllib reads, and each line is the one on which the key first stands."""
    writer = Writer(data.draw)
    writer.document()
    try:
        parsed = tomllib.loads(writer.text)
    except tomllib.TOMLDecodeError:
        return  # two keys of a random document may contradict each other
    found = find_toml_lines(writer.text)
    assert set(found) == set(paths_of(parsed))
    assert found == writer.lines


@given(st.text(alphabet=st.sampled_from([*"ab.= \n\t\"'[]{},#\\-1\r\x00é"]), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes anything but lines; all keys of a valid text are found."""
    lines = find_toml_lines(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(lines) == set(paths_of(parsed))


HOSTILE = {
    "a key of many parts": "a" + ".a" * 400_000 + " = 1",
    "a header of many parts": "[" + "a." * 400_000 + "a]",
    "nested lists": "a = " + "[" * 400_000,
    "nested tables": "a = " + "{a = " * 200_000,
    "quotes": 'a = """' + '"\\' * 400_000,
    "a huge number": "a = " + "1" * 100_000,
    "spaces": " " * 900_000,
    "tables": "[[a]]\n" * 100_000,
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HOSTILE.items()])
def test_hostile_documents_are_read_or_refused(tmp_path: Path, text: str) -> None:
    """Keys of thousands of parts, which tomllib reads in quadratic time, and thousands of brackets end in the typed error."""
    file = tmp_path / "a.toml"
    file.write_text(text)
    if text.isspace() or text.startswith("[[a]]"):
        assert read_source_file(file).data in ({}, {"a": [{}] * 100_000})
        return
    with pytest.raises(InvalidFile) as raised:
        read_source_file(file)
    assert raised.value.line in {0, 1}


# --- files ------------------------------------------------------------------------------------------------------


def test_a_file_has_at_most_as_many_bytes_as_the_bound(tmp_path: Path) -> None:
    """`Bounds.document_bytes` is the limit, whatever the file claims to be."""
    file = tmp_path / "a.toml"
    file.write_text("a = 1\n" * 100)
    with apply_bounds(Bounds(document_bytes=50)), pytest.raises(InvalidFile, match=r"50 bytes.*Bounds\.document_bytes"):
        read_source_file(file)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to and an endless device are refused at once."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigurationError, match="it is not a file"):
            read_source_file(path)
    for path in (tmp_path / "none.toml", Path("a\0b")):
        with pytest.raises(ConfigurationError, match="there is no file"):
            read_source_file(path)


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    """Editors on Windows write both."""
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
    read = read_source_file(file)
    assert (read.data, read.line_of(("b",))) == ({"a": 1, "b": 2}, 2)


def test_keys_are_written_as_people_do(tmp_path: Path) -> None:
    """An item has its index in brackets; a JSON path of a schema's problem leads to the same key."""
    file = tmp_path / "a.toml"
    file.write_text("a = [\n{ b = 1 },\n{ b = 2 }]")
    value = LocatedValue(None, read_source_file(file), ())
    assert format_keys(("a", 1, "b")) == "a[1].b"
    assert keys_of_json_path("$.a[1].b") == ("a", 1, "b")
    assert value.mistake("wrong", *keys_of_json_path("$.a[1].b"))[1:] == ("a[1].b", 3, "wrong")
