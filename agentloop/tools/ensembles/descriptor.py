"""What a TOML file says of ensembles and tools, checked and with its places; nothing is imported here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from agentloop.errors import ConfigurationError, InvalidDescriptor
from agentloop.tools.ensembles.descriptor_keys import DEDUPLICATOR, KEYS, Level, in_words, policy_values, problem_of
from agentloop.tools.ensembles.import_path import AllowedModules, ImportPath
from agentloop.tools.ensembles.overrides import ToolOverride, closest
from agentloop.values.policies import Deduplicator, Similarity

_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'[^']*'"
_KEY = rf"(?:[A-Za-z0-9_-]+|{_QUOTED})"
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_KEYS})\s*=")
_ONE_KEY = re.compile(_KEY)
_TEXT_OR_COMMENT = re.compile(rf"{_QUOTED}|#.*")
_LONG_TEXTS = ('"""', "'''")


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line on which a key is given.

    Args:
        text: a TOML document that the parser accepts.
        path: the key and the tables around it.

    Returns:
        The number of the line, from 1: that of the key, else that of the innermost part of the path that has one, as when
        the key stands in a table on one line; 0 when no part has.
    """
    wanted = tuple(path)
    found, line = 0, 0
    for number, keys in _keys(text):
        common = _common(keys, wanted)
        if common > found and common >= min(len(keys), len(wanted)):
            found, line = common, number
    return line


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _keys(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the lines that begin a table or give a key, each with its whole path."""
    table: tuple[str, ...] = ()
    open_text, depth = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        rest = line
        if open_text:
            _, closed, rest = line.partition(open_text)
            if not closed:
                continue
            open_text = ""
        elif not depth:
            header, assignment = _HEADER.match(line), _ASSIGNMENT.match(line)
            if header:
                table = _split(header.group(1))
                yield number, table
                continue
            if assignment:
                yield number, (*table, *_split(assignment.group(1)))
                rest = line[assignment.end() :]
        open_text, rest = _without_long_texts(rest)
        plain = _TEXT_OR_COMMENT.sub("", rest)
        depth = max(0, depth + plain.count("[") + plain.count("{") - plain.count("]") - plain.count("}"))


def _without_long_texts(rest: str) -> tuple[str, str]:
    """Return the delimiter of a text that goes on in the next line, if any does, and the rest without long texts."""
    kept = ""
    while True:
        starts = [(rest.find(mark), mark) for mark in _LONG_TEXTS if mark in rest]
        if not starts:
            return "", kept + rest
        at, mark = min(starts)
        kept += rest[:at]
        end = rest.find(mark, at + 3)
        if end < 0:
            return mark, kept
        rest = rest[end + 3 :]


def _split(keys: str) -> tuple[str, ...]:
    return tuple([key[1:-1] if key[0] in "\"'" else key for key in _ONE_KEY.findall(keys)])


_SYNTAX = "this is not TOML"


@frozen
class TomlFile:
    """A TOML file.

    Attributes:
        path: where it is.
        text: what stands in it.
        data: the same, parsed.
    """

    path: Path
    text: str = field(repr=False)
    data: dict[str, Any] = field(repr=False)


@frozen
class Given:
    """A value and its place.

    Attributes:
        value: the value.
        file: the file.
        path: its key and the tables around it.
    """

    value: Any
    file: TomlFile
    path: tuple[str, ...]

    def mistake(self, message: str, *inside: str) -> tuple[str, str, int, str]:
        """Return what an `InvalidDescriptor` is made of, for this place or one inside of it."""
        path = (*self.path, *inside)
        return str(self.file.path), ".".join(path), line_of(self.file.text, path), message


@frozen
class Descriptor:
    """What is said of one tool or ensemble.

    Attributes:
        name: its name.
        place: where it begins.
        values: what is said, by key.
        tools: what is said of an ensemble's tools, by name.
    """

    name: str
    place: Given
    values: Mapping[str, Given]
    tools: Mapping[str, Descriptor] = field(factory=dict)

    def value(self, key: str, default: Any = None) -> Any:
        """Return what is said under a key, or the default."""
        given = self.values.get(key)
        return default if given is None else given.value

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return bool(self.value("enabled", default=True))

    @property
    def import_path(self) -> ImportPath | None:
        """Where it comes from, if it says so."""
        use = self.value("use")
        return None if use is None else ImportPath.parse(use)

    @property
    def policy(self) -> dict[str, Any]:
        """The values of `ToolPolicy` that it names."""
        return policy_values({key: one.value for key, one in self.values.items()})

    def override(self) -> ToolOverride:
        """Return what it changes about a tool, without its defaults."""
        return ToolOverride(
            enabled=self.enabled,
            description=self.value("description"),
            schema=self.value("schema"),
            effect=self.value("effect"),
            policy=self.policy,
        )


@define
class DescriptorReader:
    """Reads descriptors from TOML files, and collects all mistakes on the way.

    Attributes:
        allowed: what import paths may name.
        allow_outside: whether a `source` may lie outside of the folder of the file that names it.
        deduplicators: those of the program, by the names that files may use; None when they are not known, and then what a
            file says about them is not looked at.
        mistakes: what was wrong, in the form that `InvalidDescriptor` takes.
    """

    allowed: AllowedModules
    allow_outside: bool = False
    deduplicators: Mapping[str, Deduplicator | Similarity] | None = field(factory=dict)
    mistakes: list[tuple[str, str, int, str]] = field(factory=list)
    _open: list[Path] = field(factory=list)

    def file(self, path: Path) -> TomlFile:
        """Read the file that everything begins with.

        Raises:
            InvalidDescriptor: when it cannot be read.
        """
        try:
            return _read(path)
        except ConfigurationError as error:
            raise InvalidDescriptor([(str(path), "", _line_told(error), str(error))]) from error

    def ensembles(self, file: TomlFile) -> list[Descriptor]:
        """Read a file that lists ensembles."""
        self._open.append(file.path.resolve())
        listed = file.data.get("ensembles")
        for key in file.data:
            if key != "ensembles":
                told = f"a list of ensembles has only [ensembles.NAME] tables{closest(key, ['ensembles'])}"
                if key in KEYS[Level.FILE]:
                    told += "; a file that describes one ensemble is read by Ensemble.from_toml"
                self.mistakes.append(Given(None, file, (key,)).mistake(told))
        if not isinstance(listed, dict):
            self.mistakes.append(Given(None, file, ("ensembles",)).mistake("there has to be a table for each ensemble"))
            return []
        return [
            self._descriptor(name, Given(raw, file, ("ensembles", name)), Level.ENSEMBLE)
            for name, raw in listed.items()
        ]

    def ensemble(self, file: TomlFile) -> Descriptor:
        """Read a file that describes one ensemble."""
        self._open.append(file.path.resolve())
        if "ensembles" in file.data:
            told = "this file lists ensembles; read it with load_ensembles"
            self.mistakes.append(Given(None, file, ("ensembles",)).mistake(told))
        name = file.data.get("name")
        return self._descriptor(
            name if isinstance(name, str) else file.path.stem, Given(file.data, file, ()), Level.FILE
        )

    # --- tables -------------------------------------------------------------------------------------------------

    def _descriptor(self, name: str, place: Given, level: Level) -> Descriptor:
        values, tools = self._layers(place, level)
        described = {tool: self._tool(tool, layers) for tool, layers in tools.items()}
        if not tools and not _says_where(place):
            self.mistakes.append(place.mistake("it has no tools: give use = 'module:name', or tables [….tools.NAME]"))
        if "use" not in values:
            for tool in described.values():
                if not any(map(_says_where, tools[tool.name])):
                    told = "it does not say where the tool comes from: give use = 'module:name'"
                    self.mistakes.append(tool.place.mistake(told))
        return Descriptor(name, place, values, described)

    def _tool(self, name: str, layers: list[Given]) -> Descriptor:
        values: dict[str, Given] = {}
        for layer in layers:
            values.update(self._layers(layer, Level.TOOL)[0])
        return Descriptor(name, layers[-1], values)

    def _layers(self, place: Given, level: Level) -> tuple[dict[str, Given], dict[str, list[Given]]]:
        """Read a table on top of its source; return its values by key, and the tables of its tools, outermost last."""
        values: dict[str, Given] = {}
        tools: dict[str, list[Given]] = {}
        if not isinstance(place.value, dict):
            self.mistakes.append(place.mistake(f"it has to be a table, not {in_words(place.value)}"))
            return values, tools
        if isinstance(place.value.get("source"), str):
            values, tools = self._sourced(Given(place.value["source"], place.file, (*place.path, "source")), level)
        for key, value in place.value.items():
            given = Given(value, place.file, (*place.path, key))
            if not self._is_sound(key, given, level):
                continue
            if key == "tools":
                for name, raw in value.items():
                    tools.setdefault(name, []).append(Given(raw, place.file, (*given.path, name)))
            elif key == DEDUPLICATOR:
                if self.deduplicators is not None:
                    values[key] = evolve(given, value=self.deduplicators[value])
            elif key != "source":
                values[key] = given
        return values, tools

    def _is_sound(self, key: str, given: Given, level: Level) -> bool:
        if key not in KEYS[level]:
            if not (level is Level.FILE and key == "ensembles"):
                self.mistakes.append(given.mistake(f"there is no such key{closest(key, KEYS[level])}"))
            return False
        problem = problem_of(key, given.value)
        if key == "use" and not problem:
            try:
                ImportPath.parse(given.value).check(self.allowed)
            except ConfigurationError as error:
                problem = str(error)
        known = self.deduplicators
        if key == DEDUPLICATOR and not problem and known is not None and given.value not in known:
            problem = f"the program gives no deduplicator {given.value!r}{closest(given.value, known)}"
        if problem:
            self.mistakes.append(given.mistake(problem))
        return not problem

    def _sourced(self, source: Given, level: Level) -> tuple[dict[str, Given], dict[str, list[Given]]]:
        try:
            file = _read(self._inside(source))
        except ConfigurationError as error:
            self.mistakes.append(source.mistake(str(error)))
            return {}, {}
        self._open.append(file.path.resolve())
        try:
            return self._layers(Given(file.data, file, ()), Level.TOOL if level is Level.TOOL else Level.FILE)
        finally:
            self._open.pop()

    def _inside(self, source: Given) -> Path:
        folder = source.file.path.resolve().parent
        path = Path(folder, str(source.value)).resolve()
        if not self.allow_outside and not path.is_relative_to(folder):
            raise ConfigurationError(
                f"{source.value!r} is outside of the folder {folder}; the program has to allow that"
            )
        if path in self._open:
            way = " → ".join(one.name for one in [*self._open[self._open.index(path) :], path])
            raise ConfigurationError(f"the files name each other in a circle: {way}")
        return path


def _read(path: Path) -> TomlFile:
    try:
        text = path.read_text(encoding="utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{_SYNTAX}: {error}") from error


def _line_told(error: ConfigurationError) -> int:
    _, _, after = str(error).partition("(at line ")
    digits = after.partition(",")[0]
    return int(digits) if digits.isdigit() else 0


def _says_where(place: Given) -> bool:
    """Say whether a table tries to name what its tools come from; what is no table has been told already."""
    return not isinstance(place.value, dict) or not {"use", "source"}.isdisjoint(place.value)
