"""What interceptors may change: the paths of each point, declared paths, and the paths that a change touches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from types import UnionType
from typing import Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from agentloop.errors.hints import suggest
from agentloop.errors.kinds import ConfigurationError, ContractViolation, MalformedArguments
from agentloop.values.inference import InferenceOptions, InferenceRequest, InferenceResponse
from agentloop.values.json import FrozenDict
from agentloop.values.points import POINTS, AroundPoint, Point
from agentloop.values.provenance import PROVENANCE, FieldChange, Provenance, render_change
from agentloop.values.reprs import ShownByField, whole_repr
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import ExecutionState
from agentloop.values.stop import Continuation
from agentloop.values.tool_calls import ToolCall, ToolExecution
from agentloop.values.value import Value
from agentloop.values.visible_text import escape_invisible

WritePath: TypeAlias = tuple[str, ...]
"""A path: names of fields, then the key of a mapping or the index of an item."""

_OPEN = "*"
_COMPOSED = (
    AgentState,
    AgentContext,
    ExecutionState,
    Continuation,
    InferenceRequest,
    InferenceOptions,
    InferenceResponse,
    ToolCall,
    ToolExecution,
)
"""The classes whose fields have paths of their own; values of other classes change as a whole."""
_FIXED: Mapping[type, frozenset[str]] = {
    AgentState: frozenset({"agent_id"}),
    ExecutionState: frozenset({"id"}),
    InferenceResponse: frozenset({"label"}),
    ToolExecution: frozenset(
        {"id", "key", "call", "may_have_run", "started_at", "ended_at", "inner", "label", "endorsed"}
    ),
}
"""The fields that the loop lets no interceptor change, or sets again itself."""
_SHARED: tuple[WritePath, ...] = (("state", "execution", "continuation"), ("verdict",), ("outcome",))
"""Paths that any number of interceptors may write.

Signals have weights, so their order decides nothing; the first verdict skips the other interceptors; and those around an
operation are nested.
"""
_MAX_CHANGES = 64
_MAX_KEY_LENGTH = 100
_ABSENT: Any = object()


# --- the table ------------------------------------------------------------------------------------------------------


@cache
def writable_paths(point: str) -> tuple[str, ...]:
    """Return the paths that may be changed at a point, in the order of the fields; `*` stands for any key.

    Args:
        point: the name of the point, such as `before_inference`.
    """
    return tuple(
        [".".join(path) for name in POINTS[point].writable for path in _expand((name,), _type_of(point, name))]
    )


def _expand(path: WritePath, kind: Any) -> Iterator[WritePath]:
    if kind in _COMPOSED:
        for name, inner in _fields(kind).items():
            if name not in _FIXED.get(kind, ()):
                yield from _expand((*path, name), inner)
    else:
        yield (*path, _OPEN) if _is_mapping(kind) else path


@cache
def _type_of(point: str, name: str) -> Any:
    kind = POINTS[point]
    return kind.outcome_type if issubclass(kind, AroundPoint) else _core_type(get_type_hints(kind)[name])


@cache
def _fields(kind: type) -> Mapping[str, Any]:
    """Return the compared fields of a composed class by the names that they have in paths, with their types."""
    hints = get_type_hints(kind)
    names = [item.name for item in attrs.fields(cast("Any", kind)) if item.eq and item.init]
    if kind is ToolExecution:  # the rest of a content that was cut belongs to it
        names.remove("uncut")
    if kind is ToolCall:  # the text of the arguments is what it says
        return {name.removesuffix("_json"): FrozenDict if name == "arguments_json" else hints[name] for name in names}
    return {name: _core_type(hints[name]) for name in names}


def _core_type(hint: Any) -> Any:
    """Return the type without None."""
    if get_origin(hint) in {Union, UnionType}:
        options = [option for option in get_args(hint) if option is not type(None)]
        return options[0] if len(options) == 1 else object
    return hint


def _is_mapping(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, FrozenDict)


# --- declared paths -------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class DeclaredWrites(Value):
    """The paths that an interceptor declares to change.

    Attributes:
        paths: the paths.
    """

    paths: frozenset[WritePath]

    @classmethod
    def of(cls, interceptor: str, declared: Collection[str] | None) -> DeclaredWrites | None:
        """Parse declared paths; None if there is no declaration.

        Args:
            interceptor: the name of the interceptor, for errors.
            declared: the paths, such as `request.system_prompt` or `state.context.metadata.user`.

        Raises:
            ConfigurationError: a path does not exist; the message has the closest one.
        """
        if declared is None:
            return None
        if isinstance(declared, str) or not all(isinstance(path, str) for path in declared):
            raise ConfigurationError(
                f"the writes of the interceptor {interceptor} are a set of paths, not {declared!r}"
            )
        return cls(frozenset([_parse(interceptor, path) for path in declared]))

    def covers(self, path: WritePath) -> bool:
        """Return whether a changed path is declared, by itself or with what contains it."""
        return any(path[: len(declared)] == declared for declared in self.paths)

    def overlap(self, other: DeclaredWrites) -> list[str]:
        """Return the paths that both declare, sorted."""
        longer = {
            one if len(one) >= len(two) else two for one in self.paths for two in other.paths if _nested(one, two)
        }
        return sorted(".".join(path) for path in longer if not any(_nested(path, shared) for shared in _SHARED))

    def __str__(self) -> str:
        return ", ".join(sorted(".".join(path) for path in self.paths)) or "nothing"


def _nested(one: WritePath, two: WritePath) -> bool:
    length = min(len(one), len(two))
    return one[:length] == two[:length]


def _parse(interceptor: str, text: str) -> WritePath:
    root, *names = text.split(".")
    for point, kind in POINTS.items():
        for name in kind.writable:
            if name == root and (path := _follow(_type_of(point, name), (name,), names)) is not None:
                return path
    raise ConfigurationError(
        f"the interceptor {interceptor} declares to write {text!r}, which is no path that an interceptor can change"
        f"{suggest(text, _all_paths())}"
    )


def _follow(kind: Any, path: WritePath, names: Sequence[str]) -> WritePath | None:
    """Return the path that follows these names from a type; None if there is none."""
    for index, name in enumerate(names):
        if _is_mapping(kind):  # the rest is one key, which may contain dots
            return (*path, ".".join(names[index:]))
        fields = _fields(kind) if kind in _COMPOSED else {}
        if name not in fields or name in _FIXED.get(kind, ()):
            return None
        path, kind = (*path, name), fields[name]
    return path


@cache
def _all_paths() -> tuple[str, ...]:
    leaves = [path.removesuffix(f".{_OPEN}") for point in POINTS for path in writable_paths(point)]
    prefixes = [".".join(leaf.split(".")[:length]) for leaf in leaves for length in range(1, leaf.count(".") + 2)]
    return tuple(dict.fromkeys(prefixes))


# --- changes --------------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class Write(ShownByField):
    """A change of one path.

    Attributes:
        path: the path.
        before: the value before; a marker if there was none.
        after: the value after; a marker if there is none.
    """

    path: WritePath
    before: Any
    after: Any

    def record(self, form: Provenance) -> FieldChange:
        """Return the change as data."""
        values = [None if value is _ABSENT else render_change(value, form) for value in (self.before, self.after)]
        return FieldChange(render_path(self.path), *values)


def render_path(path: WritePath) -> str:
    """Return a path as text; a long key is cut, and one with invisible characters is escaped."""
    return ".".join([escape_invisible(name[:_MAX_KEY_LENGTH]).replace("\n", "\\n") for name in path]).replace(".[", "[")


def writes_between(before: Point, after: Point) -> Iterator[Write]:
    """Yield the changes between the context that an interceptor received and the one that it returned."""
    for item in attrs.fields(cast("Any", type(before))):
        earlier, later = getattr(before, item.name), getattr(after, item.name)
        if item.eq:
            yield from _changes((item.name,), earlier, later)
        elif item.name == "dependencies" and earlier is not later:  # no method changes them, but `attrs.evolve` does
            yield Write((item.name,), earlier, later)


def outcome_writes(point: AroundPoint[Any], before: object, after: object) -> Iterator[Write]:
    """Yield the changes between what `proceed()` returned and what an interceptor returned; `before` is None without the former."""
    name = point.writable[0]
    if before is None:
        yield Write((name,), _ABSENT, after)
        return
    fixed = _FIXED.get(point.outcome_type, frozenset())
    yield from (
        write for write in _changes((name,), before, after) if write.path[1:2] == () or write.path[1] not in fixed
    )


def _changes(path: WritePath, before: Any, after: Any) -> Iterator[Write]:
    if before is after:
        return
    if type(before) is type(after) and type(before) in _COMPOSED:
        for name, earlier, later in _field_values(before, after):
            yield from _changes((*path, name), earlier, later)
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _key_changes(path, before, after)
    elif isinstance(before, tuple) and isinstance(after, tuple) and _extends(before, after):
        for index in range(len(before), len(after)):
            yield Write((*path, f"[{index}]"), _ABSENT, after[index])
    elif not _is_same(before, after):
        yield Write(path, before, after)


def _field_values(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    kind: Any = type(before)
    for name in _fields(kind):
        if name == "arguments":  # of a call
            yield name, *_arguments(before, after)
        elif name == "content" and _is_same(before.content, after.content):
            yield name, before.uncut, after.uncut  # a model can read the rest of a content that was cut
        else:
            yield name, getattr(before, name), getattr(after, name)


def _arguments(before: ToolCall, after: ToolCall) -> tuple[Any, Any]:
    if before.arguments_json == after.arguments_json:
        return None, None
    try:
        earlier, later = before.arguments, after.arguments
    except MalformedArguments:
        return before.arguments_json, after.arguments_json
    # The same arguments in another notation are another text, which the history keeps.
    return (earlier, later) if earlier != later else (before.arguments_json, after.arguments_json)


def _key_changes(path: WritePath, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Write]:
    for key in dict.fromkeys([*before, *after]):
        earlier, later = before.get(key, _ABSENT), after.get(key, _ABSENT)
        # The account of changes is written by the stack itself.
        if key != PROVENANCE and not _is_same(earlier, later):
            yield Write((*path, key), earlier, later)


def _is_same(before: object, after: object) -> bool:
    # In Python, 1, 1.0 and True are equal; the repr tells them apart at any depth.
    return before is after or (
        type(before) is type(after) and before == after and whole_repr(before) == whole_repr(after)
    )


def _extends(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    shared = after[: len(before)]
    return len(shared) < len(after) and all(a is b for a, b in zip(before, shared, strict=True))


def check_writes(interceptor: str, point: str, declared: DeclaredWrites, writes: Iterable[Write]) -> None:
    """Check changes against a declaration.

    Raises:
        ContractViolation: a changed path is not declared.
    """
    for write in writes:
        if not declared.covers(write.path):
            raise ContractViolation(
                f"the interceptor {interceptor} changed {render_path(write.path)} at {point}, which is not among its declared "
                f"writes: {declared}"
            )


def record_writes(writes: Iterable[Write], form: Provenance) -> tuple[FieldChange, ...]:
    """Return changes as data: at most 64, and then one that stands for all others."""
    listed = list(islice(writes, _MAX_CHANGES + 1))
    if len(listed) <= _MAX_CHANGES:
        return tuple([write.record(form) for write in listed])
    return (*[write.record(form) for write in listed[:_MAX_CHANGES]], FieldChange("…"))
