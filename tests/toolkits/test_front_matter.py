"""YAML front matter: what is read, what is refused with its line, and that nothing costs more than its length."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError, InvalidFile
from agentloop.toolkits.front_matter import MAX_FRONT_MATTER, read_front_matter

BOMB = "a: &a [x, x]\n" + "\n".join(
    f"{key}: &{key} [*{last}, *{last}]" for last, key in zip("abcdefg", "bcdefgh", strict=True)
)


def test_values_body_and_lines_are_read() -> None:
    """Values are those of JSON, a date stays a text, and every key and item has its line in the file."""
    text = '---\nname: notes\nsince: 2024-05-01\nlist:\n  - 1\n  - {deep: FALSE}\n"quoted key": |\n  two\n  lines\n---\n\n# Body\n---\n'
    read = read_front_matter(text)
    assert read.values == {
        "name": "notes",
        "since": "2024-05-01",
        "list": [1, {"deep": False}],
        "quoted key": "two\nlines\n",
    }
    assert (read.body, read.body_line) == ("\n# Body\n---\n", 11)
    assert text.split("\n")[read.body_line - 1 :] == read.body.split("\n")
    assert read.lines == {
        ("name",): 2,
        ("since",): 3,
        ("list",): 4,
        ("list", 0): 5,
        ("list", 1): 6,
        ("list", 1, "deep"): 6,
        ("quoted key",): 7,
    }


@pytest.mark.parametrize("text", ["no", "Yes", "on", "OFF", "12:30", "-1:30:00", "1:30.5", "010", "0_1", "02134"])
def test_what_yaml_1_1_takes_for_another_value_is_a_text(text: str) -> None:
    """A country, a time of day or a postal code is what was written, as a value and as a key."""
    assert read_front_matter(f"---\nvalue: {text}\n{text}: [{text}]\n---\n").values == {"value": text, text: [text]}


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_lines_are_those_of_editors(mark: str) -> None:
    """Characters that YAML 1.1 takes for line breaks do not shift the lines of what follows."""
    read = read_front_matter(f'---\na: "x{mark}y"\nb: 1 # {mark}\nc:\n  - 2\n---\nBody\n')
    assert read.lines == {("a",): 2, ("b",): 3, ("c",): 4, ("c", 0): 5}
    assert read.body_line == 7
    with pytest.raises(InvalidFile, match="stands twice") as caught:
        read_front_matter(f'---\na: "x{mark}y"\nb: 1\nb: 2\n---\n')
    assert caught.value.line == 4


@pytest.mark.parametrize(
    ("yaml", "line", "message"),
    [
        (BOMB, 2, "aliases and anchors"),
        ("a: 1\nb: *a", 3, "aliases and anchors"),
        ("a: !!python/object/apply:os.system [id]", 2, "the tag"),
        ("a: !!binary aGk=", 2, "the tag"),
        ("a: {b: 1}\n<<: {c: 2}", 3, "merge keys"),
        ("a: 1\nb: 2\na: 3", 4, "the key 'a' stands twice"),
        ("a:\n  1: x", 3, "a key has to be a text"),
        ("? [a]\n: b", 2, "a key has to be a text"),
        ("a: 1\nb: c: d", 3, "mapping values are not allowed here"),
        ("a: 1\nb: .nan", 3, "is not a number of JSON"),
        ("a: " + "1" * 5000, 2, "is not a number"),
        ('a: "\\ud800"', 2, "half of a character"),
        ('a: "\\UFFFFFFFF"', 2, "not YAML"),
        ("a: 1\nb: \x01", 3, "special characters are not allowed"),
        ("- a", 2, "has to be a table"),
        ("[" * 40_000, 2, "nested more than 32 deep"),
        ("{a: " * 10_000, 2, "nested more than 32 deep"),
        ("- " * 30_000, 2, "nested more than 32 deep"),
        ("a: 1\n" + f"b: {'x' * MAX_FRONT_MATTER}", 3, "more than 65,536 characters"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(yaml: str, line: int, message: str) -> None:
    """Aliases, tags, merge keys, keys that stand twice, numbers that JSON has not, deep and long texts are errors."""
    with pytest.raises(InvalidFile, match=message) as raised:
        read_front_matter(f"---\n{yaml}\n---\n")
    assert raised.value.line == line


@pytest.mark.parametrize(
    ("text", "message"), [("# Title\n", "begins with front matter"), ("---\na: 1\n", "does not end"), ("", "begins")]
)
def test_a_file_without_front_matter_is_refused(text: str, message: str) -> None:
    """The fences are required."""
    with pytest.raises(InvalidFile, match=message):
        read_front_matter(text)


@given(st.text(alphabet=st.sampled_from([*"ab:-? \n\t\"'[]{},&*!|>%@`#~<=0x.1_\\\r\x00\x85\u2028é"]), max_size=60))
def test_any_text_is_read_or_refused(yaml: str) -> None:
    """No text makes anything but values with lines, or the typed error; lines are those of the file."""
    text = f"---\n{yaml}\n---\nbody"
    try:
        read = read_front_matter(text)
    except InvalidFile as error:
        lines = [error.line]
    else:
        lines = list(read.lines.values())
        assert {path[0] for path in read.lines} == set(read.values)
    assert all(1 <= line <= len(text.splitlines()) for line in lines)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML is optional, and loaded with the first file only."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agentloop-kernel\[yaml\]'"):
        read_front_matter("---\na: 1\n---\n")
