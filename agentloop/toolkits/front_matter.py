"""YAML files and the YAML front matter of Markdown files: the border to PyYAML, whose safe loader alone is used."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from math import isfinite
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from attrs import field, frozen

from agentloop.errors import ConfigurationError, InvalidFile
from agentloop.errors.hints import install_hint

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node, ScalarNode

Key: TypeAlias = str | int
"""A key of a table, or the 0-based index of an item of a list."""
KeyPath: TypeAlias = tuple[Key, ...]
"""The keys that lead from the outermost table of a document to a value."""

MAX_FRONT_MATTER = 64 * 1024
"""The maximum length of front matter, in characters. PyYAML reads about 100,000 of them in a second."""
MAX_DEPTH = 32
"""The maximum depth of tables and lists in each other, in YAML and in TOML."""

_FENCE = "---"
_YAML = "tag:yaml.org,2002:"
_VALUES = frozenset(f"{_YAML}{name}" for name in ("str", "int", "float", "bool", "null"))
# A date stays the text that was written: JSON has no dates, and the files that name versions and days mean texts.
_TEXTS = frozenset({f"{_YAML}str", f"{_YAML}timestamp", f"{_YAML}value"})
# YAML 1.1, which PyYAML reads, takes 12:30 for 750 and 010 for 8. YAML 1.2 and people do not.
_NUMBER_TEXT = re.compile(r"[-+]?0[0-7_]+|.*:.*")


@frozen
class FrontMatter:
    """A Markdown file, split into its front matter and the rest.

    Attributes:
        values: the front matter, with values of JSON only. Dates are texts, and so are `no` and `12:30`, as in YAML 1.2.
        body: the text after it.
        body_line: the 1-based number of the line on which the body begins.
        lines: the 1-based number of the line of each key and item, by the keys that lead to it.
    """

    values: dict[str, Any]
    body: str
    body_line: int
    lines: Mapping[KeyPath, int] = field(repr=False)


def read_front_matter(text: str) -> FrontMatter:
    """Split a Markdown file that begins with a line `---`, YAML, and another line `---`.

    Only plain YAML is read: no aliases and anchors, no tags, no merge keys, no key twice. So the values are never larger than
    the text, and nothing in it chooses a Python class.

    Args:
        text: the file.

    Raises:
        InvalidFile: there is no front matter, it is not such YAML, or it exceeds a limit; has the line.
        ConfigurationError: PyYAML, the extra `yaml`, is not installed.
    """
    yaml_text, body, body_line = _split(text.removeprefix("\ufeff"))
    # The front matter begins on the second line.
    values, lines = _read(yaml_text, "the front matter", 2)
    if values is None:
        return FrontMatter({}, body, body_line, {})
    if not isinstance(values, dict):
        raise InvalidFile("the front matter has to be a table of keys and values", 2)
    return FrontMatter(values, body, body_line, lines)


def read_yaml(text: str) -> Any:
    """Read a YAML file, with the values and the limits of front matter; its length has no limit.

    Args:
        text: the file.

    Raises:
        InvalidFile: it is not such YAML; has the line.
        ConfigurationError: PyYAML, the extra `yaml`, is not installed.
    """
    return _read(text.removeprefix("\ufeff"), "the file", 1)[0]


def write_yaml(values: Any) -> str:
    """Write values of JSON as YAML that `read_yaml` and the safe loader of PyYAML read, in the order of keys that they have.

    Raises:
        ConfigurationError: PyYAML, the extra `yaml`, is not installed.
    """
    text: str = _import_yaml().safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    return text


def _read(text: str, what: str, first_line: int) -> tuple[Any, Mapping[KeyPath, int]]:
    """Return the values of a YAML document and the lines of its keys; None without a document.

    Raises:
        InvalidFile: it is not plain YAML.
        ConfigurationError: PyYAML is not installed.
    """
    yaml, lines = _import_yaml(), _Lines(text, first_line)
    try:
        _check_events(yaml, text, lines)
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            return None, {}
        reader = _NodeReader(yaml, lines)
        return reader.value(node, ()), reader.lines
    except yaml.reader.ReaderError as error:
        line = first_line + text.count("\n", 0, error.position)
        raise InvalidFile(f"{what} is not YAML: {error.reason}", line) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InvalidFile(
            f"{what} is not YAML: {getattr(error, 'problem', None) or error}", 0 if mark is None else lines.at(mark)
        ) from error
    # The scanner of PyYAML lets the error of an escape pass that is no character, such as "\UFFFFFFFF".
    except (ValueError, OverflowError) as error:
        raise InvalidFile(f"{what} is not YAML: {error}", first_line) from error


def _split(text: str) -> tuple[str, str, int]:
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        raise InvalidFile("a Markdown file begins with front matter: a line ---, YAML, and another line ---", 1)
    length = 0
    for number, line in enumerate(lines[1:], 2):
        # Whatever is indented or goes on after it is a part of the YAML.
        if line.rstrip() == _FENCE:
            return "\n".join([*lines[1 : number - 1], ""]), "\n".join(lines[number:]), number + 1
        length += len(line) + 1
        if length > MAX_FRONT_MATTER:
            raise InvalidFile(f"the front matter has more than {MAX_FRONT_MATTER:,} characters", number)
    raise InvalidFile("the front matter does not end: add a line ---", 1)


def _import_yaml() -> ModuleType:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(f"YAML needs the extra `yaml`: {install_hint('yaml')}") from None
    return yaml


def _check_events(yaml: ModuleType, text: str, lines: _Lines) -> None:
    """Refuse what costs more than its length before anything is built; events are read one by one, without recursion."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = lines.at(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise InvalidFile("aliases and anchors (* and &) are not allowed; write the value out", line)
        if getattr(event, "tag", None) is not None:
            raise InvalidFile(f"the tag {event.tag!r:.60} is not allowed; write plain values", line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InvalidFile(f"tables and lists are nested more than {MAX_DEPTH} deep", line)


def _is_text(node: Node) -> bool:
    """Whether a value is the text that was written: also yes, no, on and off, which YAML 1.1 takes for booleans."""
    if node.tag == f"{_YAML}bool":
        return node.value.lower() not in {"true", "false"}
    is_number = node.tag in {f"{_YAML}int", f"{_YAML}float"}
    return node.tag in _TEXTS or (is_number and _NUMBER_TEXT.fullmatch(node.value) is not None)


class _NodeReader:
    """Reads values from nodes, and notes their lines."""

    def __init__(self, yaml: ModuleType, lines: _Lines) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._yaml = yaml
        self._line = lines.at
        self._constructor = yaml.SafeLoader("")

    def value(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, self._yaml.MappingNode):
            return self._table(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = self._line(item.start_mark)
                items.append(self.value(item, (*path, index)))
            return items
        return self._scalar(cast("ScalarNode", node))

    def _table(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = self._line(key_node.start_mark)
            if key_node.tag == f"{_YAML}merge":
                raise InvalidFile("merge keys (<<) are not allowed; write the values out", line)
            if not _is_text(key_node):
                raise InvalidFile("a key has to be a text; put it in quotes", line)
            key = self._checked_text(key_node)
            # YAML takes the last of equal keys without a word, which hides the first one.
            if key in table:
                raise InvalidFile(f"the key {key!r:.60} stands twice in one table", line)
            self.lines[(*path, key)] = line
            table[key] = self.value(value_node, (*path, key))
        return table

    def _scalar(self, node: ScalarNode) -> Any:
        if _is_text(node):
            return self._checked_text(node)
        if node.tag not in _VALUES:
            raise InvalidFile(f"{node.value!r:.60} is not a plain value; put it in quotes", self._line(node.start_mark))
        try:
            value = self._constructor.construct_object(node)
        # PyYAML recognizes numbers by patterns that admit some without a value, such as 0x_ and very long ones.
        except (ValueError, OverflowError) as error:
            raise InvalidFile(
                f"{node.value!r:.60} is not a number; put it in quotes", self._line(node.start_mark)
            ) from error
        if isinstance(value, float) and not isfinite(value):
            raise InvalidFile(
                f"{node.value!r:.60} is not a number of JSON; put it in quotes", self._line(node.start_mark)
            )
        return value

    def _checked_text(self, node: ScalarNode) -> str:
        text = str(node.value)
        # An escape such as "\ud800" is half of a character, which no encoding can write.
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidFile("a text contains half of a character", self._line(node.start_mark))
        return text


class _Lines:
    """Finds the lines of a file in which PyYAML is, which also counts characters as line breaks that editors do not."""

    def __init__(self, text: str, first_line: int) -> None:
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._first_line = first_line

    def at(self, mark: Any) -> int:
        return bisect_left(self._breaks, mark.index) + self._first_line
