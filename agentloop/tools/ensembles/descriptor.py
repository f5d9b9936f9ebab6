"""The descriptors of ensembles and tools in a TOML file, checked and with their places. Nothing is imported here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.contracts.tool import DEFAULT_POLICY, ToolPolicy
from agentloop.errors import ConfigurationError, InvalidDescriptor, NotJson
from agentloop.tools.ensembles.import_path import AllowedModules, ImportPath, suggest_name
from agentloop.tools.ensembles.overrides import ToolOverride
from agentloop.values.json import freeze
from agentloop.values.policies import (
    CachePolicy,
    CircuitPolicy,
    DeduplicatePolicy,
    Deduplicator,
    RateLimit,
    RetryPolicy,
    Similarity,
)
from agentloop.values.tool_calls import Effect

# --- descriptors ----------------------------------------------------------------------------------------------------

Mistake: TypeAlias = tuple[str, str, int, str]
"""A mistake in a file, as `InvalidDescriptor` has it: the file, the key, the number of the line (0 for none), a message."""


@frozen
class TomlFile:
    """A TOML file.

    Attributes:
        path: its path.
        text: its content.
        data: its content, parsed.
    """

    path: Path
    text: str = field(repr=False)
    data: dict[str, Any] = field(repr=False)


@frozen
class LocatedValue:
    """A value in a file.

    Attributes:
        value: the value.
        file: the file.
        path: the key of the value, after the keys of the tables around it.
    """

    value: Any
    file: TomlFile
    path: tuple[str, ...]

    def mistake(self, message: str, *keys: str) -> Mistake:
        """Return a mistake at this value, or at the value under these keys inside of it."""
        path = (*self.path, *keys)
        return str(self.file.path), ".".join(path), find_line(self.file.text, path), message


@frozen
class Descriptor:
    """The description of one tool or ensemble.

    Attributes:
        name: its name.
        place: its table.
        values: its values, by key.
        tools: the descriptors of an ensemble's tools, by name.
    """

    name: str
    place: LocatedValue
    values: Mapping[str, LocatedValue]
    tools: Mapping[str, Descriptor] = field(factory=dict)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        located = self.values.get(key)
        return default if located is None else located.value

    @property
    def enabled(self) -> bool:
        """Whether the tool or ensemble is enabled."""
        return bool(self.value("enabled", default=True))

    @property
    def import_path(self) -> ImportPath | None:
        """The import path of the tool or ensemble, if it has one."""
        use = self.value("use")
        return None if use is None else ImportPath.parse(use)

    @property
    def policy(self) -> dict[str, Any]:
        """The values of `ToolPolicy`, by name."""
        return policy_values({key: located.value for key, located in self.values.items()})

    def override(self) -> ToolOverride:
        """Return the changes to a tool, without its defaults."""
        return ToolOverride(
            enabled=self.enabled,
            description=self.value("description"),
            schema=self.value("schema"),
            effect=self.value("effect"),
            policy=self.policy,
        )


Tables: TypeAlias = tuple[dict[str, LocatedValue], dict[str, list[LocatedValue]]]
"""The values of a table by key, and the tables of its tools by name, outermost last."""


@define
class DescriptorReader:
    """Reads descriptors from TOML files, and collects all mistakes in them.

    Attributes:
        allowed: the modules that import paths may name.
        allow_outside: whether a `source` may be outside of the folder of the file that names it.
        deduplicators: the deduplicators of the program, by the names that files use; None when they are not known, and
            then the names in a file are not checked.
        mistakes: the mistakes found so far.
    """

    allowed: AllowedModules
    allow_outside: bool = False
    deduplicators: Mapping[str, Deduplicator | Similarity] | None = field(factory=dict)
    mistakes: list[Mistake] = field(factory=list)
    _open_files: list[Path] = field(factory=list)

    def read_file(self, path: Path) -> TomlFile:
        """Read the outermost file.

        Raises:
            InvalidDescriptor: when it cannot be read.
        """
        try:
            return _read_toml(path)
        except ConfigurationError as error:
            raise InvalidDescriptor([(str(path), "", _syntax_error_line(error), str(error))]) from error

    def ensembles(self, file: TomlFile) -> list[Descriptor]:
        """Read a file that lists ensembles."""
        self._open_files.append(file.path.resolve())
        tables = file.data.get("ensembles")
        for key in file.data:
            if key != "ensembles":
                message = f"a list of ensembles has only [ensembles.NAME] tables{suggest_name(key, ['ensembles'])}"
                if key in KEYS[TableKind.FILE]:
                    message += "; a file that describes one ensemble is read by Ensemble.from_toml"
                self.mistakes.append(LocatedValue(None, file, (key,)).mistake(message))
        if not isinstance(tables, dict):
            place = LocatedValue(None, file, ("ensembles",))
            self.mistakes.append(place.mistake("there has to be a table for each ensemble"))
            return []
        return [
            self._descriptor(name, LocatedValue(table, file, ("ensembles", name)), TableKind.ENSEMBLE)
            for name, table in tables.items()
        ]

    def ensemble(self, file: TomlFile) -> Descriptor:
        """Read a file that describes one ensemble."""
        self._open_files.append(file.path.resolve())
        if "ensembles" in file.data:
            place = LocatedValue(None, file, ("ensembles",))
            self.mistakes.append(place.mistake("this file lists ensembles; read it with load_ensembles"))
        name = file.data.get("name")
        return self._descriptor(
            name if isinstance(name, str) else file.path.stem, LocatedValue(file.data, file, ()), TableKind.FILE
        )

    # --- tables -------------------------------------------------------------------------------------------------

    def _descriptor(self, name: str, place: LocatedValue, kind: TableKind) -> Descriptor:
        values, tool_tables = self._tables(place, kind)
        tools = {tool: self._tool(tool, tables) for tool, tables in tool_tables.items()}
        if not tool_tables and not _has_origin(place):
            self.mistakes.append(place.mistake("it has no tools: add use = 'module:name', or tables [….tools.NAME]"))
        if "use" not in values:
            for tool in tools.values():
                if not any(map(_has_origin, tool_tables[tool.name])):
                    message = "it does not say where the tool comes from: add use = 'module:name'"
                    self.mistakes.append(tool.place.mistake(message))
        return Descriptor(name, place, values, tools)

    def _tool(self, name: str, tables: list[LocatedValue]) -> Descriptor:
        values: dict[str, LocatedValue] = {}
        for table in tables:
            values.update(self._tables(table, TableKind.TOOL)[0])
        return Descriptor(name, tables[-1], values)

    def _tables(self, place: LocatedValue, kind: TableKind) -> Tables:
        """Read a table on top of the table that its `source` names; its own values win, key by key."""
        values: dict[str, LocatedValue] = {}
        tools: dict[str, list[LocatedValue]] = {}
        if not isinstance(place.value, dict):
            self.mistakes.append(place.mistake(f"it has to be a table, not {describe_type(place.value)}"))
            return values, tools
        # The source is read first, so that the keys of this table replace its keys.
        if isinstance(place.value.get("source"), str):
            source = LocatedValue(place.value["source"], place.file, (*place.path, "source"))
            values, tools = self._source_tables(source, kind)
        for key, value in place.value.items():
            located = LocatedValue(value, place.file, (*place.path, key))
            if not self._is_valid(key, located, kind):
                continue
            if key == "tools":
                for name, table in value.items():
                    tools.setdefault(name, []).append(LocatedValue(table, place.file, (*located.path, name)))
            elif key == DEDUPLICATOR:
                # Without a program, as in `agentloop tools check`, the name cannot be resolved and is dropped.
                if self.deduplicators is not None:
                    values[key] = evolve(located, value=self.deduplicators[value])
            elif key != "source":
                values[key] = located
        return values, tools

    def _is_valid(self, key: str, located: LocatedValue, kind: TableKind) -> bool:
        if key not in KEYS[kind]:
            # `ensembles` in the file of one ensemble has its own message already.
            if not (kind is TableKind.FILE and key == "ensembles"):
                self.mistakes.append(located.mistake(f"there is no such key{suggest_name(key, KEYS[kind])}"))
            return False
        problem = find_problem(key, located.value)
        if key == "use" and not problem:
            try:
                ImportPath.parse(located.value).check(self.allowed)
            except ConfigurationError as error:
                problem = str(error)
        known = self.deduplicators
        if key == DEDUPLICATOR and not problem and known is not None and located.value not in known:
            problem = f"the program has no deduplicator {located.value!r}{suggest_name(located.value, known)}"
        if problem:
            self.mistakes.append(located.mistake(problem))
        return not problem

    def _source_tables(self, source: LocatedValue, kind: TableKind) -> Tables:
        try:
            file = _read_toml(self._source_path(source))
        except ConfigurationError as error:
            self.mistakes.append(source.mistake(str(error)))
            return {}, {}
        self._open_files.append(file.path.resolve())
        try:
            inner_kind = TableKind.TOOL if kind is TableKind.TOOL else TableKind.FILE
            return self._tables(LocatedValue(file.data, file, ()), inner_kind)
        finally:
            self._open_files.pop()

    def _source_path(self, source: LocatedValue) -> Path:
        folder = source.file.path.resolve().parent
        path = Path(folder, str(source.value)).resolve()
        if not self.allow_outside and not path.is_relative_to(folder):
            raise ConfigurationError(
                f"{source.value!r} is outside of the folder {folder}; the program has to allow that"
            )
        # A file that is still being read would be read forever.
        if path in self._open_files:
            cycle = [*self._open_files[self._open_files.index(path) :], path]
            raise ConfigurationError(
                f"the files name each other in a circle: {' → '.join(file.name for file in cycle)}"
            )
        return path


def _has_origin(place: LocatedValue) -> bool:
    """Return whether a table names the origin of its tools; a value that is not a table has its own mistake already."""
    return not isinstance(place.value, dict) or not {"use", "source"}.isdisjoint(place.value)


_SYNTAX = "this is not TOML"


def _read_toml(path: Path) -> TomlFile:
    try:
        text = path.read_text(encoding="utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{_SYNTAX}: {error}") from error


def _syntax_error_line(error: ConfigurationError) -> int:
    # tomllib has the line only in its message, as "(at line 3, column 1)".
    _, _, after = str(error).partition("(at line ")
    digits = after.partition(",")[0]
    return int(digits) if digits.isdigit() else 0


# --- lines of keys ----------------------------------------------------------------------------------------------

# tomllib does not report where a key is, so the lines are searched for headers and assignments.
_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'[^']*'"
_KEY = rf"(?:[A-Za-z0-9_-]+|{_QUOTED})"
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_KEYS})\s*=")
_SINGLE_KEY = re.compile(_KEY)
_TEXT_OR_COMMENT = re.compile(rf"{_QUOTED}|#.*")
_MULTILINE_MARKS = ('"""', "'''")


def find_line(text: str, path: Sequence[str]) -> int:
    """Return the line of a key.

    Args:
        text: a valid TOML document.
        path: the key, after the keys of the tables around it.

    Returns:
        The 1-based number of the line of the key. When the key is inside an inline table, that of the innermost part of the
        path that begins a line; 0 when no part does.
    """
    target = tuple(path)
    best_length, best_line = 0, 0
    for line, keys in _keys_by_line(text):
        common = _common_length(keys, target)
        # The keys of the line lead to the path, or the path leads to them; other lines only share a beginning.
        if common > best_length and common >= min(len(keys), len(target)):
            best_length, best_line = common, line
    return best_line


def _common_length(left: Sequence[str], right: Sequence[str]) -> int:
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _keys_by_line(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number of each line with a table header or an assignment, and the whole path of its key."""
    table: tuple[str, ...] = ()
    open_mark, depth = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        rest = line
        if open_mark:
            _, mark, rest = line.partition(open_mark)
            if not mark:
                continue
            open_mark = ""
        elif not depth:
            # A line inside of a multi-line list or table cannot define a key of the document.
            header, assignment = _HEADER.match(line), _ASSIGNMENT.match(line)
            if header:
                table = _split_keys(header.group(1))
                yield number, table
                continue
            if assignment:
                yield number, (*table, *_split_keys(assignment.group(1)))
                rest = line[assignment.end() :]
        open_mark, rest = _strip_multiline_texts(rest)
        plain = _TEXT_OR_COMMENT.sub("", rest)
        depth = max(0, depth + plain.count("[") + plain.count("{") - plain.count("]") - plain.count("}"))


def _strip_multiline_texts(rest: str) -> tuple[str, str]:
    """Return the mark of a text that continues on the next line, if any does, and the line without multi-line texts."""
    stripped = ""
    while True:
        starts = [(rest.find(mark), mark) for mark in _MULTILINE_MARKS if mark in rest]
        if not starts:
            return "", stripped + rest
        start, mark = min(starts)
        stripped += rest[:start]
        end = rest.find(mark, start + 3)
        if end < 0:
            return mark, stripped
        rest = rest[end + 3 :]


def _split_keys(keys: str) -> tuple[str, ...]:
    return tuple([key[1:-1] if key[0] in "\"'" else key for key in _SINGLE_KEY.findall(keys)])


# --- keys and the checks of their values ----------------------------------------------------------------------------

Check: TypeAlias = Callable[[Any], str]
"""Returns the problem of a value; empty when there is none."""

DEDUPLICATOR = "deduplicator"
"""The key for the name of a deduplicator that the program passes."""


class TableKind(Enum):
    """The kinds of tables: an ensemble in a list, the file of one ensemble, or a tool of an ensemble."""

    ENSEMBLE = "ensemble"
    FILE = "file"
    TOOL = "tool"


def find_problem(key: str, value: Any) -> str:
    """Return the problem of the value of a known key; empty when there is none."""
    check = next(checks[key] for checks in KEYS.values() if key in checks)
    return check(value)


def policy_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `ToolPolicy` among the values of a table, which have been checked.

    A deduplicator decides which calls are the same, within the limits of `deduplicate`.
    """
    policy = {key: _policy_value(key, value) for key, value in values.items() if key in _POLICY}
    if DEDUPLICATOR in values:
        limits = ToolPolicy(deduplicate=policy.get("deduplicate")).deduplicate or DeduplicatePolicy()
        # A deduplicator without `deduplicate` uses its default limits.
        policy["deduplicate"] = evolve(limits, by=values[DEDUPLICATOR])
    return policy


# --- types ------------------------------------------------------------------------------------------------------

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
}


def describe_type(value: object) -> str:
    """Return the type of a value in words, for messages."""
    return _TYPE_NAMES.get(type(value), repr(value))


def _has_type(*types: type) -> Check:
    """Return a check of the type; true and false are not numbers. The first type is named in the message."""

    def check(value: Any) -> str:
        # bool is a subclass of int.
        is_wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        return f"it has to be {_TYPE_NAMES[types[0]]}, not {describe_type(value)}" if is_wrong else ""

    return check


_NUMBER, _COUNT, _TEXT, _FLAG = _has_type(float, int), _has_type(int), _has_type(str), _has_type(bool)
_TABLE, _LIST = _has_type(dict), _has_type(list)


def _is_text_list(value: Any) -> str:
    problem = _LIST(value)
    if problem:
        return problem
    item_problem = next(filter(None, map(_TEXT, value)), "")
    return f"each item {item_problem.removeprefix('it ')}" if item_problem else ""


def _is_json(value: Any) -> str:
    problem = _TABLE(value)
    if problem:
        return problem
    try:
        # TOML has dates, JSON does not.
        freeze(value)
    except NotJson as error:
        return f"{error}; dates and times are written as text, in quotes"
    return ""


def _is_effect(value: Any) -> str:
    known = [effect.value for effect in Effect]
    problem = _TEXT(value)
    return problem or ("" if value in known else f"{value!r} is not an effect{suggest_name(value, known)}")


# --- values of the policy ---------------------------------------------------------------------------------------

_POLICY_TABLES: Mapping[str, tuple[type, Mapping[str, Check]]] = {
    "retry": (
        RetryPolicy,
        {
            "max_attempts": _COUNT,
            "initial_wait": _NUMBER,
            "max_wait": _NUMBER,
            "on": _is_text_list,
            "not_on": _is_text_list,
        },
    ),
    "cache": (CachePolicy, {"seconds": _NUMBER, "max_entries": _COUNT}),
    "rate_limit": (
        RateLimit,
        {"calls": _COUNT, "per": _NUMBER, "burst": _COUNT, "max_wait": _NUMBER, "by": _TEXT},
    ),
    "circuit": (
        CircuitPolicy,
        {"failures": _COUNT, "seconds": _NUMBER, "probes": _COUNT, "dependency": _TEXT},
    ),
    "deduplicate": (
        DeduplicatePolicy,
        {"seconds": _NUMBER, "steps": _COUNT, "across_executions": _FLAG},
    ),
}
"""The values that are tables: their class, and the checks of their keys."""


def _policy_value(key: str, value: Any) -> Any:
    return _POLICY_TABLES[key][0](**value) if key in _POLICY_TABLES and isinstance(value, dict) else value


def _check_single(key: str, check: Check) -> Check:
    """Return a check of the type, of the sign and by `ToolPolicy` itself."""

    def check_value(value: Any) -> str:
        problem = check(value)
        if not problem and isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            problem = f"it has to be more than 0, not {value}"
        return problem or _check_policy(key, value)

    return check_value


def _check_table(key: str, checks: Mapping[str, Check]) -> Check:
    """Return a check of the keys of a table, of their types and by the class of the table."""

    def check_value(value: Any) -> str:
        problem = _TABLE(value)
        if problem:
            return problem
        for name, entry in value.items():
            if name not in checks:
                return f"there is no {name!r} in it{suggest_name(name, checks)}"
            problem = checks[name](entry)
            if problem:
                return f"{name}: {problem}"
        return _check_policy(key, value)

    return check_value


def _check_policy(key: str, value: Any) -> str:
    try:
        changes: dict[str, Any] = {key: _policy_value(key, value)}
        # The policy classes know their own limits; the checks above only give better messages about types.
        evolve(DEFAULT_POLICY, **changes)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _check_deduplicate(value: Any) -> str:
    if isinstance(value, str):
        return "" if value == "exact" else f"it has to be a table or 'exact', not {value!r}"
    return _check_table("deduplicate", _POLICY_TABLES["deduplicate"][1])(value)


_POLICY: Mapping[str, Check] = {
    "timeout": _check_single("timeout", _NUMBER),
    "deadline": _check_single("deadline", _NUMBER),
    "sequential": _check_single("sequential", _FLAG),
    "key": _check_single("key", _TEXT),
    "max_result_bytes": _check_single("max_result_bytes", _COUNT),
    **{key: _check_table(key, checks) for key, (_, checks) in _POLICY_TABLES.items()},
    "deduplicate": _check_deduplicate,
}
"""The keys that are values of `ToolPolicy`, with their checks."""

# --- keys -------------------------------------------------------------------------------------------------------

_COMMON: Mapping[str, Check] = {
    "source": _TEXT,
    "use": _TEXT,
    "enabled": _FLAG,
    "description": _TEXT,
    "defaults": _is_json,
    DEDUPLICATOR: _TEXT,
    **_POLICY,
}
_ENSEMBLE: Mapping[str, Check] = {**_COMMON, "options": _is_json, "tools": _TABLE}
KEYS: Mapping[TableKind, Mapping[str, Check]] = {
    TableKind.ENSEMBLE: _ENSEMBLE,
    TableKind.FILE: {**_ENSEMBLE, "name": _TEXT},
    TableKind.TOOL: {**_COMMON, "schema": _is_json, "effect": _is_effect},
}
"""The keys of each kind of table, with their checks."""
