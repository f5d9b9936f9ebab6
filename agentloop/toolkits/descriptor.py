"""The descriptors of ensembles and tools in a TOML file, checked and with their places. Nothing is imported here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.contracts.tool import DEFAULT_POLICY, ToolPolicy
from agentloop.errors import ConfigurationError, InvalidDescriptor, InvalidFile, ToolDefinitionError
from agentloop.toolkits.import_path import SHORT_NAMES, TOOL_SHORT_NAMES, AllowedModules, ImportPath, suggest_name
from agentloop.toolkits.source_files import (
    Check,
    LocatedValue,
    Mistake,
    SourceFile,
    describe_type,
    has_type,
    json_problem,
    read_source_file,
    texts_problem,
)
from agentloop.values.policies import (
    CachePolicy,
    CircuitPolicy,
    DeduplicatePolicy,
    Deduplicator,
    RateLimit,
    RetryPolicy,
    Similarity,
)
from agentloop.values.tool_calls import Effect, as_decides, as_egress, as_identifiers, as_own

# --- descriptors ----------------------------------------------------------------------------------------------------


@frozen
class Descriptor:
    """The description of one tool or ensemble.

    Attributes:
        name: its name.
        place: its table.
        values: its values, by key.
        tools: the descriptors of an ensemble's tools, by name.
        readers: the files that name its own file, each after the one that names it, with that file.
    """

    name: str
    place: LocatedValue
    values: Mapping[str, LocatedValue]
    tools: Mapping[str, Descriptor] = field(factory=dict)
    readers: tuple[Path, ...] = field(default=(), kw_only=True)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        located = self.values.get(key)
        return default if located is None else located.value

    @property
    def enabled(self) -> bool:
        """Whether the tool or ensemble is enabled."""
        return bool(self.value("enabled", default=True))

    @property
    def policy(self) -> dict[str, Any]:
        """The values of `ToolPolicy`, by name."""
        return policy_values({key: located.value for key, located in self.values.items()})

    @property
    def files(self) -> frozenset[Path]:
        """The files that describe it and its tools, and those that name them."""
        own = {place.file.path.resolve() for place in (self.place, *self.values.values())}
        return frozenset(own.union(self.readers, *[tool.files for tool in self.tools.values()]))


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
        tools: the names of the tools of the program, which files name without an import path.
        mistakes: the mistakes found so far.
    """

    allowed: AllowedModules
    allow_outside: bool = False
    deduplicators: Mapping[str, Deduplicator | Similarity] | None = field(factory=dict)
    tools: Collection[str] = ()
    mistakes: list[Mistake] = field(factory=list)
    _open_files: list[Path] = field(factory=list)

    def read_file(self, path: Path) -> SourceFile:
        """Read the outermost file, which no other may name.

        Raises:
            InvalidDescriptor: when it cannot be read.
        """
        try:
            file = read_source_file(path)
        except ConfigurationError as error:
            line = error.line if isinstance(error, InvalidFile) else 0
            raise InvalidDescriptor([(str(path), "", line, str(error))]) from error
        self._open_files.append(path.resolve())
        return file

    def ensembles(self, file: SourceFile) -> list[Descriptor]:
        """Read a file that lists ensembles."""
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

    def ensemble(self, file: SourceFile) -> Descriptor:
        """Read a file that describes one ensemble, by `[tools.NAME]` tables or by `[ensemble]` and `[[invokers]]`."""
        if "ensemble" in file.data or "invokers" in file.data:
            return self._invoker_ensemble(file)
        if "ensembles" in file.data:
            place = LocatedValue(None, file, ("ensembles",))
            self.mistakes.append(place.mistake("this file lists ensembles; read it with load_ensembles"))
        name = file.data.get("name")
        return self._descriptor(
            name if isinstance(name, str) else file.path.stem, LocatedValue(file.data, file, ()), TableKind.FILE
        )

    def referenced(self, place: LocatedValue) -> list[Descriptor]:
        """Read what a text in another file names: an ensemble by its short name or import path, or a TOML file of ensembles."""
        if not str(place.value).endswith(".toml"):
            table = evolve(place, value={"use": place.value})
            return [self._descriptor(str(place.value).rpartition(":")[2], table, TableKind.ENSEMBLE)]
        with self.open_source(place) as file:
            if file is None:
                return []
            return self.ensembles(file) if "ensembles" in file.data else [self.ensemble(file)]

    def described(self, name: str, place: LocatedValue) -> Descriptor:
        """Read the table of an ensemble in another file, with the keys of `[ensembles.NAME]`."""
        return self._descriptor(name, place, TableKind.ENSEMBLE)

    # --- invokers -----------------------------------------------------------------------------------------------

    def _invoker_ensemble(self, file: SourceFile) -> Descriptor:
        """Read a file with the tables `[ensemble]`, `[defaults]` and `[[invokers]]`."""
        place = LocatedValue(file.data, file, ())
        tables = self._values(place, TableKind.INVOKER_FILE)
        header = self._values(tables["ensemble"], TableKind.HEADER) if "ensemble" in tables else {}
        defaults = self._values(tables["defaults"], TableKind.DEFAULTS) if "defaults" in tables else {}
        tools: dict[str, Descriptor] = {}
        entries = (
            [tables["invokers"].at(index) for index in range(len(tables["invokers"].value))]
            if "invokers" in tables
            else []
        )
        for entry in entries:
            tool = self._invoker(entry)
            if tool is not None and tool.name in tools:
                self.mistakes.append(tool.place.mistake(f"there is another invoker {tool.name!r} before it", "name"))
            elif tool is not None:
                tools[tool.name] = tool
        if not entries and isinstance(file.data.get("invokers", []), list):
            self.mistakes.append(
                place.mistake("the ensemble has no tools: add [[invokers]] with name and use", "invokers")
            )
        name = str(header["name"].value) if "name" in header else file.path.stem
        return Descriptor(name, place, {**header, **defaults}, tools, readers=tuple(self._open_files))

    def _invoker(self, place: LocatedValue) -> Descriptor | None:
        """Read an entry on top of the file that its `source` names; None when it has no name."""
        count = len(self.mistakes)
        values = self._values(place, TableKind.INVOKER)
        source = values.pop("source", None)
        if source is not None:
            values = _over(self._invoker_source(source), values)
        # A mistake in the entry or in its file may be the reason for what is missing.
        if len(self.mistakes) == count:
            if "name" not in values:
                self.mistakes.append(place.mistake("the invoker has no name: add name = 'the name that a model calls'"))
            if "use" not in values and ("name" not in values or values["name"].value not in self.tools):
                self._note_origin(place, values["name"].value if "name" in values else "", "source = 'file.toml'")
        if "arguments" in values:
            values["schema"] = _as_parameters(values.pop("arguments"))
        name = values.pop("name", None)
        return None if name is None else Descriptor(str(name.value), place, values)

    def _note_origin(self, place: LocatedValue, name: str, *ways: str) -> None:
        """Note that a tool has no import path, and that the program passes no tool of its name."""
        named = f" {name!r}" if name else ""
        how = ", or ".join(["add use = 'module:name'", *ways, f"let the program pass a tool{named} in tools=[…]"])
        hint = suggest_name(name, self.tools)
        self.mistakes.append(place.mistake(f"it does not say where the tool comes from: {how}{hint}"))

    def _invoker_source(self, source: LocatedValue) -> dict[str, LocatedValue]:
        with self.open_source(source) as file:
            if file is None:
                return {}
            tables = self._values(LocatedValue(file.data, file, ()), TableKind.SOURCE_FILE)
            if "invoker" not in file.data:
                message = "the file of an invoker has a table [invoker]"
                self.mistakes.append(LocatedValue(None, file, ()).mistake(message))
            values = self._values(tables.pop("invoker"), TableKind.SOURCE) if "invoker" in tables else {}
            return _over(values, tables)

    def _values(self, place: LocatedValue, kind: TableKind) -> dict[str, LocatedValue]:
        """Return the valid values of a table, and note the mistakes of the others."""
        values, _ = self._tables(place, kind)
        return values

    # --- tables -------------------------------------------------------------------------------------------------

    def _descriptor(self, name: str, place: LocatedValue, kind: TableKind) -> Descriptor:
        values, tool_tables = self._tables(place, kind)
        tools = {tool: self._tool(tool, tables) for tool, tables in tool_tables.items()}
        if not tool_tables and not _has_origin(place):
            self.mistakes.append(place.mistake("it has no tools: add use = 'module:name', or tables [….tools.NAME]"))
        if "use" not in values:
            for tool in tools.values():
                if tool.name not in self.tools and not any(map(_has_origin, tool_tables[tool.name])):
                    self._note_origin(tool.place, tool.name)
        return Descriptor(name, place, values, tools, readers=tuple(self._open_files))

    def _tool(self, name: str, tables: list[LocatedValue]) -> Descriptor:
        values: dict[str, LocatedValue] = {}
        for table in tables:
            values = _over(values, self._tables(table, TableKind.TOOL)[0])
        return Descriptor(name, tables[-1], values)

    def _tables(self, place: LocatedValue, kind: TableKind) -> Tables:
        """Read a table on top of the table that its `source` names; its own values win, key by key."""
        values: dict[str, LocatedValue] = {}
        own: dict[str, LocatedValue] = {}
        tools: dict[str, list[LocatedValue]] = {}
        if not isinstance(place.value, dict):
            self.mistakes.append(place.mistake(f"it has to be a table, not {describe_type(place.value)}"))
            return values, tools
        # The source is read first, so that the keys of this table replace its keys. An invoker's has another form.
        if kind in _OWN_FORM and isinstance(place.value.get("source"), str):
            source = LocatedValue(place.value["source"], place.file, (*place.path, "source"))
            values, tools = self._source_tables(source, kind)
        for key, value in place.value.items():
            located = LocatedValue(value, place.file, (*place.path, key))
            if not self._is_valid(key, located, kind):
                continue
            if key == "tools":
                for name, table in value.items():
                    tools.setdefault(name, []).append(LocatedValue(table, place.file, (*located.path, name)))
            elif (final := self._final_value(key, located, kind)) is not None:
                own[key] = final
        return _over(values, own), tools

    def _final_value(self, key: str, located: LocatedValue, kind: TableKind) -> LocatedValue | None:
        """Return a valid value as a descriptor has it; None where it has none."""
        if key == "source":
            return located if kind is TableKind.INVOKER else None
        if key == "use":
            return evolve(located, value=str(_import_path(located.value, kind)))
        if key == DEDUPLICATOR:
            # Without a program, as in `agentloop tools check`, the name cannot be resolved and is dropped.
            return None if self.deduplicators is None else evolve(located, value=self.deduplicators[located.value])
        return located

    def _is_valid(self, key: str, located: LocatedValue, kind: TableKind) -> bool:
        if key not in KEYS[kind]:
            # `ensembles` in the file of one ensemble has its own message already.
            if not (kind is TableKind.FILE and key == "ensembles"):
                self.mistakes.append(located.mistake(f"there is no such key{suggest_name(key, KEYS[kind])}"))
            return False
        problem = KEYS[kind][key](located.value)
        if key == "use" and not problem:
            try:
                _import_path(located.value, kind).check(self.allowed)
            except ConfigurationError as error:
                problem = str(error)
        known = self.deduplicators
        if key == DEDUPLICATOR and not problem and known is not None and located.value not in known:
            problem = f"the program has no deduplicator {located.value!r}{suggest_name(located.value, known)}"
        if problem:
            self.mistakes.append(located.mistake(problem))
        return not problem

    def _source_tables(self, source: LocatedValue, kind: TableKind) -> Tables:
        with self.open_source(source) as file:
            if file is None:
                return {}, {}
            inner_kind = TableKind.TOOL if kind is TableKind.TOOL else TableKind.FILE
            return self._tables(LocatedValue(file.data, file, ()), inner_kind)

    # --- files --------------------------------------------------------------------------------------------------

    @contextmanager
    def open_source(self, source: LocatedValue) -> Iterator[SourceFile | None]:
        """Read the file that a value names; None, with a mistake, when it cannot be read or is being read already."""
        try:
            file = read_source_file(self._source_path(source))
        except ConfigurationError as error:
            self.mistakes.append(_mistake_in_source(source, error))
            yield None
            return
        self._open_files.append(file.path.resolve())
        try:
            yield file
        finally:
            self._open_files.pop()

    def _source_path(self, source: LocatedValue) -> Path:
        folder = source.file.path.resolve().parent
        try:
            path = Path(folder, str(source.value)).resolve()
        # A null byte in the path, or links that lead to each other.
        except (ValueError, OSError, RuntimeError) as error:
            raise ConfigurationError(f"{source.value!r} is not the path of a file: {error}") from error
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


def _over(values: Mapping[str, LocatedValue], nearer: Mapping[str, LocatedValue]) -> dict[str, LocatedValue]:
    """Return values with nearer ones in their place, and keep under each nearer one the value that it replaces."""
    return {**values, **{key: _on_top(value, values.get(key)) for key, value in nearer.items()}}


def _on_top(value: LocatedValue, below: LocatedValue | None) -> LocatedValue:
    return (
        value if below is None else evolve(value, under=below if value.under is None else _on_top(value.under, below))
    )


def _import_path(text: str, kind: TableKind) -> ImportPath:
    """Return the import path of a tool or of an ensemble, which can have a short name."""
    return ImportPath.parse(text, SHORT_NAMES if kind in {TableKind.ENSEMBLE, TableKind.FILE} else TOOL_SHORT_NAMES)


def _mistake_in_source(source: LocatedValue, error: ConfigurationError) -> Mistake:
    """Return the mistake of a file that cannot be read: at its own line if there is one, else where it is named."""
    if isinstance(error, InvalidFile) and error.line:
        return str(Path(source.file.path.parent, source.value)), "", error.line, str(error)
    return source.mistake(str(error))


def _as_parameters(arguments: LocatedValue) -> LocatedValue:
    # Arguments come by name, so a schema that has properties does not have to say that it is one of an object.
    return evolve(arguments, value={"type": "object", **arguments.value})


def _has_origin(place: LocatedValue) -> bool:
    """Return whether a table names the origin of its tools; a value that is not a table has its own mistake already."""
    return not isinstance(place.value, dict) or not {"use", "source"}.isdisjoint(place.value)


# --- keys and the checks of their values ----------------------------------------------------------------------------


DEDUPLICATOR = "deduplicator"
"""The key for the name of a deduplicator that the program passes."""
MAX_RETRIES = "max_retries"
"""The key for the number of further attempts of pure and idempotent tools."""


class TableKind(Enum):
    """The kinds of tables: an ensemble in a list, the file of one ensemble, a tool of an ensemble; and those with invokers."""

    ENSEMBLE = "ensemble"
    FILE = "file"
    TOOL = "tool"
    INVOKER_FILE = "a file with [[invokers]]"
    HEADER = "[ensemble]"
    DEFAULTS = "[defaults]"
    INVOKER = "[[invokers]]"
    SOURCE_FILE = "the file of an invoker"
    SOURCE = "[invoker]"


_OWN_FORM = frozenset({TableKind.ENSEMBLE, TableKind.FILE, TableKind.TOOL})


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


def retries_of(ensemble: Descriptor, tool: Descriptor, effect: Effect) -> dict[str, RetryPolicy]:
    """Return the policy that `max_retries` of an invoker, or of the defaults of its ensemble, makes; empty for none.

    It does not apply to tools with an effect: a call that failed may have taken place.
    """
    count = tool.value(MAX_RETRIES, ensemble.value(MAX_RETRIES))
    return {} if count is None or effect is Effect.EFFECT else {"retry": RetryPolicy(max_attempts=count + 1)}


# --- types ------------------------------------------------------------------------------------------------------


_NUMBER, _COUNT, _TEXT, _FLAG = has_type(float, int), has_type(int), has_type(str), has_type(bool)
_TABLE, _LIST = has_type(dict), has_type(list)


def _is_effect(value: Any) -> str:
    known = [effect.value for effect in Effect]
    problem = _TEXT(value)
    return problem or ("" if value in known else f"{value!r} is not an effect{suggest_name(value, known)}")


def is_egress(value: Any) -> str:
    """Return why a value says nothing about egress; empty if it does."""
    problem = has_type(bool, str, list)(value) or (texts_problem(value) if isinstance(value, list) else "")
    if problem:
        return problem
    try:
        as_egress(value)
    except ToolDefinitionError as error:
        return str(error)
    return ""


def _names(read: Callable[[Any], object]) -> Check:
    """Return a check of names in a text or a list."""

    def check_value(value: Any) -> str:
        problem = has_type(str, list)(value)
        if problem:
            return problem
        try:
            read(value)
        except ToolDefinitionError as error:
            return str(error)
        return ""

    return check_value


# --- values of the policy ---------------------------------------------------------------------------------------

_POLICY_TABLES: Mapping[str, tuple[type, Mapping[str, Check]]] = {
    "retry": (
        RetryPolicy,
        {
            "max_attempts": _COUNT,
            "initial_wait": _NUMBER,
            "max_wait": _NUMBER,
            "on": texts_problem,
            "not_on": texts_problem,
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


def _check_policy(key: str, value: Any, policy: ToolPolicy = DEFAULT_POLICY) -> str:
    try:
        changes: dict[str, Any] = {key: _policy_value(key, value)}
        # The policy classes know their own limits; the checks above only give better messages about types.
        evolve(policy, **changes)
    except (TypeError, ValueError, ToolDefinitionError) as error:
        return str(error)
    return ""


def _check_supersedes(value: Any) -> str:
    # Whether there is a resource to supersede shows only beside the keys of the other tables of the tool.
    return _TEXT(value) or _check_policy("supersedes", value, evolve(DEFAULT_POLICY, resource="any"))


def _check_deduplicate(value: Any) -> str:
    if isinstance(value, str):
        return "" if value == "exact" else f"it has to be a table or 'exact', not {value!r}"
    return _check_table("deduplicate", _POLICY_TABLES["deduplicate"][1])(value)


_POLICY: Mapping[str, Check] = {
    "timeout": _check_single("timeout", _NUMBER),
    "deadline": _check_single("deadline", _NUMBER),
    "sequential": _check_single("sequential", _FLAG),
    "strict": _check_single("strict", _FLAG),
    "key": _check_single("key", _TEXT),
    "max_result_bytes": _check_single("max_result_bytes", _COUNT),
    "supersedes": _check_supersedes,
    "resource": _check_single("resource", _TEXT),
    **{key: _check_table(key, checks) for key, (_, checks) in _POLICY_TABLES.items()},
    "deduplicate": _check_deduplicate,
    "eager": _check_single("eager", _FLAG),
    "repeatable": _check_single("repeatable", _FLAG),
    "runs_code": _check_single("runs_code", _FLAG),
}
"""The keys that are values of `ToolPolicy`, with their checks."""


def _is_retry_count(value: Any) -> str:
    return _COUNT(value) or (
        "" if 0 <= value <= _MAX_RETRIES else f"it has to be from 0 to {_MAX_RETRIES:,}, not {value}"
    )


_MAX_RETRIES = 1_000

# --- keys -------------------------------------------------------------------------------------------------------

_COMMON: Mapping[str, Check] = {
    "source": _TEXT,
    "use": _TEXT,
    "enabled": _FLAG,
    "description": _TEXT,
    "defaults": json_problem,
    DEDUPLICATOR: _TEXT,
    **_POLICY,
}
_ENSEMBLE: Mapping[str, Check] = {**_COMMON, "options": json_problem, "tools": _TABLE}
LABELS: Mapping[str, Check] = {
    "own": _names(as_own),
    "identifiers": _names(as_identifiers),
    "decides": _names(as_decides),
}
"""The keys that say whose words are in the results and the arguments of a tool, with their checks."""
_TOOL: Mapping[str, Check] = {
    **_COMMON,
    "schema": json_problem,
    "effect": _is_effect,
    "egress": is_egress,
    **LABELS,
}
_INVOKER: Mapping[str, Check] = {
    "name": _TEXT,
    **{key: check for key, check in _TOOL.items() if key != "schema"},
    "arguments": json_problem,
    MAX_RETRIES: _is_retry_count,
}
KEYS: Mapping[TableKind, Mapping[str, Check]] = {
    TableKind.ENSEMBLE: _ENSEMBLE,
    TableKind.FILE: {**_ENSEMBLE, "name": _TEXT},
    TableKind.TOOL: _TOOL,
    TableKind.INVOKER_FILE: {"ensemble": _TABLE, "defaults": _TABLE, "invokers": _LIST},
    TableKind.HEADER: {"name": _TEXT, "enabled": _FLAG, "description": _TEXT},
    TableKind.DEFAULTS: {**_POLICY, DEDUPLICATOR: _TEXT, MAX_RETRIES: _is_retry_count},
    TableKind.INVOKER: _INVOKER,
    TableKind.SOURCE_FILE: {"invoker": _TABLE, "arguments": json_problem},
    TableKind.SOURCE: {key: check for key, check in _INVOKER.items() if key not in {"source", "arguments"}},
}
"""The keys of each kind of table, with their checks."""
