"""Validation against a JSON Schema. This is the only file that imports jsonschema, with the first validator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urljoin

from attrs import evolve, field, fields, frozen

from agentloop.errors import BoundExceeded, InvalidArguments, NotJson, ToolDefinitionError
from agentloop.tools.patterns import LinearPattern, compile_pattern
from agentloop.tools.quick_checks import QuickCheck, quick_check
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.json import format_json, freeze_object, thaw
from agentloop.values.reprs import ShownByField
from agentloop.values.schema_drafts import ModernSchema, each_schema
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.value import Value

if TYPE_CHECKING:
    from jsonschema import SchemaError, ValidationError
    from jsonschema.protocols import Validator


Schema: TypeAlias = Mapping[str, Any] | bool
"""A JSON Schema; true accepts everything and false nothing."""

_MAX_SHOWN_PROBLEMS = 5
_MAX_SHOWN_VALUE = 80
_MAX_SHOWN_MESSAGE = 400
_MAX_ERRORS = 1_000
_TOO_DEEP = ("$", "it is nested too deeply to be checked")
_COMPILING = 20
"""How many times the steps of a check the compilation of a schema may take."""
_ELEMENTS_PER_STEP = 8
_KEYWORD_ELEMENTS_PER_STEP = 16
_CHARACTERS_PER_ELEMENT = 32
_BITS_PER_ELEMENT = 8  # a number is written out in time quadratic in its length
_MAX_CHILDREN = 2_000
_STEPS_PER_SUBSCHEMA = 0.5
_STEPS_PER_NEW_SUBSCHEMA = 5
_STEPS_PER_REFERENCE = 3
_STEPS_PER_ERROR = 6
_STEPS_PER_HANDLED_ERROR = 1
_STEPS_PER_MATCH = 2
_STEPS_PER_RESOURCE = 8
_STEPS_PER_TARGET = 15
_IDENTITIES_PER_STEP = 2
_MEMBERS_PER_STEP = 4
_ELEMENTS_PER_IDENTITY = 2


@frozen(eq=False, repr=False)
class Misfit(Value):
    """A place of data that does not satisfy a schema.

    Attributes:
        path: the keys and indexes that lead to the place.
        keyword: the keyword of the schema that the value does not satisfy.
        types: the JSON types that the keyword requires, `number` with `integer`; None for a keyword about something else.
        branches: for `anyOf` and `oneOf`, why the value satisfies none of the branches, branch by branch.
        is_conditional: whether the keyword is below `then` or `else`: another type elsewhere may change the condition.
    """

    path: tuple[str | int, ...]
    keyword: str
    types: frozenset[str] | None
    branches: tuple[tuple[Misfit, ...], ...]
    is_conditional: bool


@frozen(eq=False, repr=False)
class Misfits(Value):
    """The places of data that do not satisfy a schema.

    Attributes:
        places: the places, in the order in which they were found.
        steps: the steps of all checks so far.
    """

    places: tuple[Misfit, ...]
    steps: float


class SchemaValidator:
    """A JSON Schema, checked once and compiled for repeated use.

    The draft is 2020-12 unless the schema's `$schema` names an earlier one, from draft 4 on. `format` is an annotation, as in 2020-12. A
    check takes at most `Bounds.schema_steps` steps, and the compilation of the schema twenty times as many. Patterns are matched in time proportional to the text, so that a schema whose
    patterns have references to groups or lookbehind is refused.

    Args:
        schema: the schema; its references must stay inside of it, since nothing is fetched.
        name: the owner of the schema, for error messages.
        bounds: the bounds on the schema and on its checks.

    Raises:
        ToolDefinitionError: when it is not a valid schema, has a reference that cannot be resolved or a pattern that is not
            supported, or exceeds a bound; names the place or the bound.
    """

    __slots__ = ("_bounds", "_compiled")

    def __init__(self, schema: Schema, name: str = "the schema", bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self._bounds = bounds
        self._compiled = _compile(schema, name, bounds)

    @property
    def is_flat(self) -> bool:
        """Whether the schema only lists the simple types of an object's properties, so that a check takes next to no time."""
        return self._compiled.flat is not None

    def accepts(self, data: Any, bounds: Bounds | None = None) -> bool:
        """Return whether plain JSON data satisfies the schema; data whose check exceeds a bound does not.

        Args:
            data: the data.
            bounds: the bounds on the check; those of the validator when left out.
        """
        if self._compiled.accepts_at_once(data, bounds or self._bounds):
            return True
        token = _WORK.set(_Work(bounds or self._bounds, self._compiled.children))
        try:
            return bool(self._compiled.validator.is_valid(data))
        except (RecursionError, BoundExceeded):
            return False
        finally:
            _WORK.reset(token)

    def problems(self, data: Any, bounds: Bounds | None = None) -> list[tuple[str, str]]:
        """Return the problems of plain JSON data, as pairs of a JSON path and a message.

        Of the first 1,000 problems, the 5 nearest to the root are returned, the nearest first. When the check exceeds a bound,
        that is the last problem.

        Args:
            data: the data.
            bounds: the bounds on the check; those of the validator when left out.
        """
        if self._compiled.accepts_at_once(data, bounds or self._bounds):
            return []
        errors: list[ValidationError] = []
        token = _WORK.set(_Work(bounds or self._bounds, self._compiled.children))
        exceeded: list[tuple[str, str]] = []
        try:
            # A long list of invalid items has as many errors.
            errors.extend(islice(self._compiled.validator.iter_errors(data), _MAX_ERRORS))
        except RecursionError:
            return [_TOO_DEEP]
        except BoundExceeded as error:
            exceeded.append(("$", str(error)))
        finally:
            _WORK.reset(token)
        nearest = sorted(errors, key=lambda error: len(error.absolute_path))[:_MAX_SHOWN_PROBLEMS]
        return [*map(_problem, nearest), *exceeded]

    def misfits(self, data: Any, bounds: Bounds, steps: float) -> Misfits | None:
        """Return the places of plain JSON data that do not satisfy the schema; None when the check exceeds a bound.

        Args:
            data: the data.
            bounds: the bounds on the check.
            steps: the steps that earlier checks have taken, which count.
        """
        work = _Work(bounds, self._compiled.children, steps, reports_all=True)
        token = _WORK.set(work)
        try:
            places = tuple([_misfit(error, data) for error in self._compiled.validator.iter_errors(data)])
        except (RecursionError, BoundExceeded):
            return None
        finally:
            _WORK.reset(token)
        return Misfits(places, work.steps)

    def validate(self, arguments: Mapping[str, Any], bounds: Bounds | None = None) -> None:
        """Check the arguments of a call.

        Args:
            arguments: the arguments.
            bounds: the bounds on the check; those of the validator when left out.

        Raises:
            InvalidArguments: with the path of the first problem; the message lists the first five, or names the bound that the
                check exceeds.
        """
        problems = self.problems(arguments, bounds)
        if problems:
            raise invalid_arguments(problems)


def validator_of(spec: ToolSpec) -> SchemaValidator:
    """Return the validator of a tool's arguments. It is compiled once and stored with the spec.

    Raises:
        ToolDefinitionError: when the parameters are not a valid JSON Schema, or exceed a bound.
    """
    # Specs are shared by all requests and calls, so each schema is compiled once per program.
    return spec.encoded(_VALIDATOR, _compile_spec)


_VALIDATOR = "validator of the arguments"


def keep_validator(spec: ToolSpec, validator: SchemaValidator) -> None:
    """Store the validator of a tool's arguments that was compiled elsewhere, such as in a thread."""
    spec.encoded(_VALIDATOR, lambda _: validator)


def _compile_spec(spec: ToolSpec) -> SchemaValidator:
    return SchemaValidator(spec.parameters, f"the parameter schema of the tool {spec.name!r}")


def invalid_arguments(problems: list[tuple[str, str]]) -> InvalidArguments:
    """Return the error for these problems of a call's arguments."""
    listing = "; ".join(f"at {path}: {message}" for path, message in problems)
    return InvalidArguments(f"the arguments do not fit the tool's parameters: {listing}", path=problems[0][0])


# --- compiling a schema -----------------------------------------------------------------------------------------


def _nothing() -> None:
    return None


@frozen(eq=False, repr=False)
class _Compiled(ShownByField):
    """A schema's validator.

    Attributes:
        create: creates the validator.
        flat: what the schema accepts at once, if it is simple.
        quick: compiles the schema for a check that takes less time; returns None where there is none.
        children: the validators of its subschemas, and the targets of its references, by the identities of the subschema or the
            reference and of the resolver. The values hold what the identities are of.
    """

    create: Callable[[], Validator]
    children: dict[tuple[Hashable, int], tuple[Any, Any]] = field(factory=dict)
    flat: _FlatObject | None = None
    quick: Callable[[], QuickCheck | None] = _nothing

    @cached_property
    def quick_check(self) -> QuickCheck | None:
        """The check that takes less time, compiled when it is first used."""
        return self.quick()

    @cached_property
    def validator(self) -> Validator:
        """The validator, created when it is first used: data that is accepted at once never needs it."""
        return self.create()

    def accepts_at_once(self, data: Any, bounds: Bounds) -> bool:
        """Return whether the data is known to satisfy the schema without the validator, which takes many times longer."""
        flat = self.flat
        if flat is None:
            return self.quick_check is not None and self.quick_check.accepts(data, bounds)
        if type(data) is not dict or not flat.required <= data.keys():
            return False
        if len(data) * _STEPS_PER_PROPERTY + _STEPS_PER_PROPERTY > bounds.schema_steps:
            return False
        return all(type(value) in flat.types.get(name, ()) for name, value in data.items())


@frozen(eq=False, repr=False)
class _FlatObject(ShownByField):
    """What a schema accepts that only lists the simple types of an object's properties, as those of most tools do.

    Attributes:
        types: the types of each property; those that JSON Schema accepts besides, such as 1.0 for an integer, are left out.
        required: the names of the required properties.
    """

    types: Mapping[str, frozenset[type]]
    required: frozenset[str]

    @classmethod
    def of(cls, schema: Any) -> _FlatObject | None:
        """Return what a schema accepts; None if it has other keywords than these, or is not valid."""
        if not isinstance(schema, dict) or not schema.keys() <= _OBJECT_KEYWORDS or schema.get("type") != "object":
            return None
        properties, required = schema.get("properties", {}), schema.get("required", [])
        is_valid = isinstance(properties, dict) and isinstance(required, list) and _has_texts(schema)
        if not is_valid or not isinstance(schema.get("additionalProperties", True), bool):
            return None
        if len(set(filter(_is_text, required))) != len(required):
            return None
        types: dict[str, frozenset[type]] = {}
        for name, inner in properties.items():
            simple = inner.get("type") if isinstance(inner, dict) and inner.keys() <= _ANNOTATIONS else None
            if not isinstance(simple, str) or simple not in _SCALARS or not _has_texts(inner):
                return None
            types[name] = _SCALARS[simple]
        return cls(types, frozenset(required))


def _has_texts(schema: Mapping[str, Any]) -> bool:
    return all(isinstance(schema.get(keyword, ""), str) for keyword in ("title", "description"))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_ANNOTATIONS = frozenset({"type", "title", "description", "default"})
_OBJECT_KEYWORDS = _ANNOTATIONS | {"properties", "required", "additionalProperties"}
_SCALARS: Mapping[str, frozenset[type]] = {
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "null": frozenset({type(None)}),
}
_STEPS_PER_PROPERTY = 8  # more than a check by the validator takes


# The same schema comes again with each listing of a server's tools.
_MAX_COMPILED = 1_024
_COMPILED: dict[tuple[bytes, float, float, float], _Compiled] = {}


def _compile(schema: Schema, name: str, bounds: Bounds) -> _Compiled:
    try:
        plain: Any = schema if isinstance(schema, bool) else thaw(freeze_object(schema))
    except NotJson as error:
        raise ToolDefinitionError(f"{name} cannot be a JSON Schema: {error}") from error
    # The depth of references counts in checks of data; while the schema itself is checked, its own depth is the bound.
    token = _WORK.set(_Work(evolve(bounds, schema_depth=float("inf")), {}, compiles=True))
    try:
        data = format_json(plain)
        _check_size(plain, len(data), bounds)
        key = (data, bounds.schema_bytes, bounds.schema_depth, bounds.schema_steps)
        if key not in _COMPILED:
            if len(_COMPILED) >= _MAX_COMPILED:
                _COMPILED.clear()
            flat = _FlatObject.of(plain)
            # What is flat is valid, and has no references or patterns. Importing jsonschema takes longer than a whole first call.
            _COMPILED[key] = (
                _validator(plain, name, bounds)
                if flat is None
                else _Compiled(partial(_flat_validator, plain), flat=flat)
            )
        return _COMPILED[key]
    except BoundExceeded as error:
        raise ToolDefinitionError(f"{name} cannot be used: {error}") from error
    except _schema_error() as error:
        raise ToolDefinitionError(
            f"{name} is not a valid JSON Schema: at {error.json_path}: {_shorten(error)}"
        ) from error
    except RecursionError:
        raise ToolDefinitionError(
            f"{name} cannot be a JSON Schema: it is nested too deeply, or refers to itself without end"
        ) from None
    finally:
        _WORK.reset(token)


def _schema_error() -> type[SchemaError]:
    from jsonschema.exceptions import SchemaError

    return SchemaError


def _flat_validator(schema: Any) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # has annotations, no marker

    return _with_bounded_keywords(Draft202012Validator)(schema, registry=REGISTRY)


def _check_size(schema: Any, size: int, bounds: Bounds) -> None:
    """Raise BoundExceeded for a schema that is too long or nested too deeply."""
    if size > bounds.schema_bytes:
        raise BoundExceeded("schema_bytes", bounds.schema_bytes, "it is too long")
    level: list[Any] = [] if isinstance(schema, bool) else [schema]
    depth = 0
    while level:
        depth += 1
        if depth > bounds.schema_depth:
            raise BoundExceeded("schema_depth", bounds.schema_depth, "it is nested too deeply")
        children = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for items in children for child in items if isinstance(child, dict | list)]


def _validator(schema: Any, name: str, bounds: Bounds) -> _Compiled:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    try:
        kind = validator_for(schema, default=Draft202012Validator)
    except (ValueError, AttributeError) as error:
        raise ToolDefinitionError(f"{name} is not a valid JSON Schema: at $.$schema: it has to be a URL") from error
    if isinstance(schema, dict):
        _check_draft(schema, name)
    _check_schema(schema, kind)
    try:
        resolver = _resolver_of(schema, kind, REGISTRY)
    except ValueError as error:
        raise ToolDefinitionError(f"{name} is not a valid JSON Schema: an $id is not a URL: {error}") from error
    _check_references(schema, kind, resolver, name)
    create: Any = _with_bounded_keywords(kind)
    validator: Validator = create(schema, registry=REGISTRY, _resolver=resolver)
    is_newest = kind is Draft202012Validator
    compiled = _Compiled(
        lambda: validator, quick=partial(quick_check, schema, kind.VALIDATORS) if is_newest else _nothing
    )
    token = _WORK.set(_Work(bounds, compiled.children))
    try:
        compiled.validator.is_valid(
            {}
        )  # a reference that only leads back to itself exceeds the depth here, not in a call
    finally:
        _WORK.reset(token)
    return compiled


def _check_schema(schema: Any, kind: type[Validator]) -> None:
    """Check a schema against its metaschema, as `check_schema` of jsonschema does, in bounded steps."""
    from jsonschema.exceptions import SchemaError

    meta = _metaschema(kind)
    work = _WORK.get()
    work.children, children = meta.children, work.children
    try:
        error = next(iter(meta.validator.iter_errors(schema)), None)
    finally:
        work.children = children
    if error is not None:
        raise SchemaError.create_from(error)


@cache
def _metaschema(kind: type[Validator]) -> _Compiled:
    from jsonschema_specifications import REGISTRY

    # Without formats: patterns are compiled below, and `re` takes seconds for some.
    validator = _with_bounded_keywords(kind)(_united_metaschema(kind.META_SCHEMA, REGISTRY), registry=REGISTRY)
    return _Compiled(lambda: validator)


def _united_metaschema(metaschema: Any, registry: Any) -> Any:
    """Return a metaschema with all of its vocabularies in one schema.

    As it is published, each subschema is checked once for each vocabulary, which takes six times as long.
    """
    vocabularies = [urljoin(metaschema["$id"], each["$ref"]) for each in metaschema.get("allOf", ())]
    if not vocabularies:
        return metaschema
    parts = [metaschema, *[registry[address].contents for address in vocabularies]]
    united: dict[str, Any] = {"type": metaschema["type"], "properties": {}, "$defs": {}}
    for part in parts:
        for keyword in ("properties", "$defs"):
            united[keyword] |= _with_local_references(part.get(keyword, {}))
    return united


def _with_local_references(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_local_references(item) for item in part]
    if not isinstance(part, dict):
        return part
    changed = {name: _with_local_references(value) for name, value in part.items()}
    for keyword in _REFERENCES:
        if isinstance(part.get(keyword), str):
            del changed[keyword]
            pointer = part[keyword].partition("#")[2] if keyword == "$ref" else ""
            changed["$ref"] = f"#{pointer}"
    return changed


def _resolver_of(schema: Any, kind: type[Validator], registry: Any) -> Any:
    """Return a resolver that knows all anchors and ids of a schema; otherwise each lookup of one searches for all of them."""
    from referencing.jsonschema import DRAFT202012, specification_with

    specification = specification_with(str(kind.META_SCHEMA.get("$schema", "")), default=DRAFT202012)
    root = specification.create_resource(schema)
    address = root.id() or ""
    return registry.with_resource(address, root).crawl().resolver(address)


def _check_references(schema: Any, kind: type[Validator], resolver: Any, name: str) -> None:
    """Follow every reference, so that one that cannot be resolved fails now and not in a call.

    Patterns are compiled for the same reason.
    """
    from referencing.jsonschema import DRAFT202012, specification_with

    specification = specification_with(str(kind.META_SCHEMA.get("$schema", "")), default=DRAFT202012)
    pending = [(specification.create_resource(schema), resolver)]
    references: list[tuple[str, Any]] = []
    visited: set[int] = set()
    work = _WORK.get()
    while pending or references:
        work.spend(_STEPS_PER_RESOURCE if pending else _STEPS_PER_TARGET)
        if pending:
            resource, resolver = pending.pop()
        else:
            target = _resolve(*references.pop(), name)
            resource, resolver = specification.create_resource(target.contents), target.resolver
            if id(resource.contents) not in visited:
                _check_schema(resource.contents, kind)  # a reference may lead to a place that is no subschema
        if id(resource.contents) in visited or not isinstance(resource.contents, dict):
            continue
        visited.add(id(resource.contents))
        _check_patterns(resource.contents, name)
        _check_draft(resource.contents, name)
        pending.extend((inner, resolver.in_subresource(inner)) for inner in resource.subresources())
        # A draft that does not have the keyword ignores it.
        values = [resource.contents.get(keyword) for keyword in ("$ref", "$dynamicRef") if keyword in kind.VALIDATORS]
        references.extend((reference, resolver) for reference in values if isinstance(reference, str))


def _check_patterns(schema: dict[str, Any], name: str) -> None:
    patterns = [schema.get("pattern"), *(schema.get("patternProperties") or ())]
    for pattern in patterns:
        if isinstance(pattern, str):
            try:
                _compiled_pattern(pattern)
            except ToolDefinitionError as error:
                raise ToolDefinitionError(f"{name} cannot be used: {error}") from error


_MAX_UNREADABLE = 100


def without_unreadable_patterns(schema: Mapping[str, Any]) -> ModernSchema | None:
    """Return a schema without the patterns that cannot be matched here, each of which becomes a part of a description.

    Args:
        schema: the schema, in draft 2020-12.

    Returns:
        The schema and the patterns; None if it has no such pattern, or more than 100.
    """
    problems: dict[str, str] = {}

    def is_readable(pattern: object) -> bool:
        if not isinstance(pattern, str) or len(problems) > _MAX_UNREADABLE:
            return True
        try:
            compile_pattern(pattern)
        except ToolDefinitionError as error:
            problems[pattern] = f"it is not checked: {error}"
            return False
        return True

    def change(node: Mapping[str, Any]) -> Mapping[str, Any]:
        changed = node
        if not is_readable(node.get("pattern")):
            description = f"{node.get('description', '')} (pattern: {node['pattern']})".strip()
            kept = {name: value for name, value in node.items() if name != "pattern"}
            changed = {**kept, "description": description}
        patterns = changed.get("patternProperties")
        if not isinstance(patterns, Mapping):
            return changed
        readable = {key: item for key, item in patterns.items() if is_readable(key)}
        if len(readable) < len(patterns):
            # The properties that the pattern would have matched must not become unknown ones.
            unknown = ("additionalProperties", "unevaluatedProperties")
            kept = {name: value for name, value in changed.items() if name not in unknown}
            changed = {**kept, "patternProperties": readable}
        return changed

    readable = each_schema(schema, change)
    if not problems or len(problems) > _MAX_UNREADABLE:
        return None
    return ModernSchema(freeze_object(readable), tuple(problems.values()))


def _check_draft(schema: dict[str, Any], name: str) -> None:
    # jsonschema meets types and references of draft 3 that it cannot handle in checks of data, and raises errors of other kinds.
    if str(schema.get("$schema", "")).rstrip("#").endswith("/draft-03/schema"):
        raise ToolDefinitionError(
            f"{name} cannot be used: draft 3 of JSON Schema is not supported; use draft 4 or a later one"
        )


def _resolve(reference: str, resolver: Any, name: str) -> Any:
    from referencing.exceptions import Unresolvable

    try:
        return resolver.lookup(reference)
    except Unresolvable as error:
        raise ToolDefinitionError(
            f"{name} refers to {reference!r}, which is not in it; nothing is fetched: put the definition into $defs"
        ) from error


# --- keywords ---------------------------------------------------------------------------------------------------


class _Work:
    """Counts the steps of one check.

    The steps do not depend on what was computed in earlier checks and is stored.

    Args:
        bounds: the bounds on the check.
        children: as in `_Compiled`.
        steps: the steps of earlier checks, which count.
        compiles: whether a schema is compiled, rather than data checked.
        reports_all: whether a reference is followed again to a value that does not satisfy it, for all of its errors. Equal
            values in several places may be one object.

    Attributes:
        steps: the steps so far.
        reports_all: see above.
        seen: whether a value satisfies the target of a reference, by the identities of the subschema and the value. Without it,
            references that lead to a place in several ways would be followed again for each of them.
        values: the values of long enumerations, by the identity of the list.
        types: the types of the values of an enumeration, by the identity of the list.
        patterns: the patterns that were compiled.
        children: as in `_Compiled`.
    """

    __slots__ = (
        "_bounds",
        "_compiles",
        "_depth",
        "_limit",
        "_sizes",
        "_visited",
        "children",
        "patterns",
        "reports_all",
        "seen",
        "steps",
        "types",
        "values",
    )

    def __init__(
        self,
        bounds: Bounds,
        children: dict[tuple[Hashable, int], tuple[Any, Any]],
        steps: float = 0.0,
        *,
        compiles: bool = False,
        reports_all: bool = False,
    ) -> None:
        self.children = children
        self.reports_all = reports_all
        self.steps = steps
        self._bounds = bounds
        self._compiles = compiles
        self._limit = bounds.schema_steps * (_COMPILING if compiles else 1)
        self._visited: set[tuple[Hashable, int]] = set()
        self.patterns: dict[str, LinearPattern] = {}
        self.types: dict[int, frozenset[str]] = {}
        self._depth = 0
        self._sizes: dict[int, int] = {}
        self.seen: dict[tuple[int, int, tuple[str, ...]], bool] = {}
        self.values: dict[int, frozenset[str]] = {}

    def spend(self, steps: float) -> None:
        """Count steps.

        Raises:
            BoundExceeded: when there are too many.
        """
        self.steps += steps
        if self.steps > self._limit:
            what = f"it takes more than {_COMPILING} times the steps of a check to compile it"
            problem = what if self._compiles else "the check takes too many steps"
            raise BoundExceeded("schema_steps", self._bounds.schema_steps, problem)

    def enter(self) -> None:
        """Follow a reference.

        Raises:
            BoundExceeded: when they are nested too deeply.
        """
        self._depth += 1
        if self._depth > self._bounds.schema_depth:
            raise BoundExceeded(
                "schema_depth", self._bounds.schema_depth, "it is nested too deeply, or refers to itself without end"
            )

    def leave(self) -> None:
        """Return from a reference."""
        self._depth -= 1

    def child(self, key: Hashable, resolver: Any) -> Any:
        """Return the stored validator of a subschema, or the target of a reference; None if there is none."""
        place = key, id(resolver)
        if place not in self._visited:
            self._visited.add(place)
            self.spend(_STEPS_PER_NEW_SUBSCHEMA)
        known = self.children.get(place)
        return known and known[0]

    def keep(self, key: Hashable, resolver: Any, child: Any) -> Any:
        """Store the validator of a subschema, or the target of a reference; return it."""
        if len(self.children) >= _MAX_CHILDREN:
            self.children.clear()
        self.children[key, id(resolver)] = child, resolver
        return child

    def size(self, value: Any) -> int:
        """Return the number of elements of data, with 32 characters as one; computed once for each part of the data."""
        if isinstance(value, str):
            return len(value) // _CHARACTERS_PER_ELEMENT
        if isinstance(value, int):
            return 1 + value.bit_length() // _BITS_PER_ELEMENT
        if not isinstance(value, dict | list):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            parts = value.values() if isinstance(value, dict) else value
            known = self._sizes[id(value)] = 1 + sum(map(self.size, parts))
        return known


_WORK: ContextVar[_Work] = ContextVar("agentloop_schema_work")
_BRANCHES = frozenset({"then", "else"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_STORED = frozenset({"enum", "const", "not", "anyOf", "oneOf", "allOf", "pattern", "patternProperties"})
"""Keywords whose values are not written into messages as they are."""


@cache
def _with_bounded_keywords(kind: type[Validator]) -> type[Validator]:
    """Count the work of all keywords, and replace those whose work grows faster than the data."""
    from jsonschema.validators import extend, validator_for

    replacements = {
        "type": _type,
        "not": _not,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "uniqueItems": _unique_items,
        "enum": _enum,
        "const": _const,
        "dependentRequired": _dependent(kind.VALIDATORS.get("dependentRequired")),
        "dependencies": _dependent(kind.VALIDATORS.get("dependencies")),
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated("object"),
        "unevaluatedItems": _unevaluated("array"),
        "items": _items(kind.VALIDATORS.get("items")),
    }
    checks: dict[str, Any] = dict(kind.VALIDATORS)
    checks |= {keyword: check for keyword, check in replacements.items() if keyword in checks}
    counted = {
        keyword: _referring(check)
        if keyword in _REFERENCES
        else _counted(check, is_stored=keyword in _STORED, has_members=keyword == "contains")
        for keyword, check in checks.items()
    }
    extended: type[Validator] = extend(kind, counted)  # type: ignore[no-untyped-call]  # the stubs leave it untyped
    names = [(attribute.name, attribute.alias) for attribute in fields(cast("Any", extended)) if attribute.init]

    def evolve_bounded(self: Any, **changes: Any) -> Any:
        if changes.keys() == {"schema"}:
            # Keywords such as `not` and `contains` do this for each value.
            key, resolver = ("evolved", id(changes["schema"])), self._resolver
            work = _WORK.get()
            return work.child(key, resolver) or work.keep(key, resolver, self.evolve(**changes, _resolver=resolver))
        # A subschema with `$schema` has the keywords of that draft, which count too.
        other = validator_for(changes.setdefault("schema", self.schema), default=extended)
        for name, alias in names:
            if alias not in changes:
                changes[alias] = getattr(self, name)
        return (extended if other in {extended, kind} else _with_bounded_keywords(other))(**changes)

    # jsonschema has no other place for these.
    extended.evolve = evolve_bounded  # type: ignore[method-assign]
    extended.descend = _descend  # type: ignore[attr-defined]
    extended._validate_reference = _validate_reference  # type: ignore[attr-defined]  # noqa: SLF001
    return extended


def _descend(  # noqa: PLR0917  # the parameters of jsonschema
    self: Any, instance: Any, schema: Schema, path: Any = None, schema_path: Any = None, resolver: Any = None
) -> Iterator[ValidationError]:
    """Yield the errors of data that a subschema applies to; jsonschema makes the validator of the subschema anew each time."""
    _WORK.get().spend(_STEPS_PER_SUBSCHEMA)
    if schema is True:
        return
    for error in _subschema(self, schema, resolver).iter_errors(instance):
        if path is not None:
            error.path.appendleft(path)
        if schema_path is not None:
            error.schema_path.appendleft(schema_path)
        yield error


def _validate_reference(self: Any, ref: str, instance: Any) -> Iterator[ValidationError]:
    target = _lookup(self, ref)
    return _descend(self, instance, target.contents, resolver=target.resolver)


def _subschema(validator: Any, schema: Schema, resolver: Any = None) -> Any:
    """Return the validator of a subschema, or of the target of a reference if its resolver is given."""
    parent = resolver or validator._resolver  # noqa: SLF001  # as in `descend` of jsonschema
    work = _WORK.get()
    known = work.child(id(schema), parent)
    return known or work.keep(id(schema), parent, _new_subschema(validator, schema, parent, resolver))


def _new_subschema(validator: Any, schema: Schema, parent: Any, resolver: Any) -> Any:
    from referencing.jsonschema import DRAFT202012, specification_with

    if resolver is None:
        specification = specification_with(str(validator.META_SCHEMA.get("$schema", "")), default=DRAFT202012)
        resolver = parent.in_subresource(specification.create_resource(schema))
    return validator.evolve(schema=schema, _resolver=resolver)


def _lookup(validator: Any, reference: str) -> Any:
    """Return the target of a reference, with its resolver."""
    work, resolver = _WORK.get(), validator._resolver  # noqa: SLF001  # as in `descend`
    return work.child(reference, resolver) or work.keep(reference, resolver, resolver.lookup(reference))


def _counted(check: Any, *, is_stored: bool, has_members: bool) -> Any:
    """Return a keyword that counts its steps.

    They are one step, more for long values, and those of errors and of what their messages hold.

    Args:
        check: the keyword.
        is_stored: whether the value of the keyword is stored in another form, and not written into messages.
        has_members: whether a subschema is applied to each item without counting that.
    """

    def count_errors(errors: Iterable[ValidationError], value: Any, instance: Any) -> Iterator[ValidationError]:
        work = _WORK.get()
        for error in errors:
            # The message of a new error contains the whole values; errors of subschemas were counted there.
            if not isinstance(error.validator, str):
                size = work.size(instance) + (0 if is_stored else work.size(value))
                work.spend(_STEPS_PER_ERROR + size // _ELEMENTS_PER_STEP)
            else:  # each level around a value handles all of its errors
                work.spend(_STEPS_PER_HANDLED_ERROR)
            yield error

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        steps = 1.0
        if isinstance(value, list | dict) and not is_stored:
            steps += len(value) // _KEYWORD_ELEMENTS_PER_STEP
        if isinstance(instance, list | dict):
            steps += len(instance) // _ELEMENTS_PER_STEP + has_members * len(instance) * _STEPS_PER_SUBSCHEMA
        _WORK.get().spend(steps)
        errors = check(validator, value, instance, schema)
        return count_errors(errors, value, instance) if errors else ()

    return keyword


def _type(validator: Any, types: Any, instance: Any, _: Any) -> Iterable[ValidationError]:
    """Check the keyword `type`, by far the most frequent one: without an error it takes no generator."""
    names = [types] if isinstance(types, str) else types
    for name in names:
        if validator.is_type(instance, name):
            return ()
    from jsonschema import ValidationError

    return (ValidationError(f"{instance!r} is not of type {', '.join(map(repr, names))}"),)


def _referring(check: Any) -> Any:
    """Return a keyword for references that follows each reference once for each value."""

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        work = _WORK.get()
        work.spend(_STEPS_PER_REFERENCE)
        place = id(schema), id(instance), _dynamic_scope(validator)
        is_valid = work.seen.get(place)
        if is_valid is None or (work.reports_all and not is_valid):
            return _followed(check(validator, value, instance, schema) or (), place, work)
        if is_valid:
            return ()
        from jsonschema import ValidationError

        work.spend(_STEPS_PER_ERROR)
        return (ValidationError(f"it does not satisfy {value!r:.80}"),)

    return keyword


def _followed(
    errors: Iterable[ValidationError], key: tuple[int, int, tuple[str, ...]], work: _Work
) -> Iterator[ValidationError]:
    work.enter()
    is_valid = True
    try:
        for error in errors:
            is_valid = work.seen[key] = False
            work.spend(_STEPS_PER_HANDLED_ERROR)
            yield error
        work.seen[key] = is_valid
    finally:
        work.leave()


def _dependent(check: Any) -> Any:
    """Return a keyword for names that other names require, with their number as steps."""

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        if isinstance(instance, dict):
            work = _WORK.get()
            work.spend(2 * len(value) / _ELEMENTS_PER_STEP)  # they are looked up here and by the check
            lists = [names for name, names in value.items() if name in instance and isinstance(names, list)]
            work.spend(sum(map(len, lists)) / _ELEMENTS_PER_STEP)
        return check(validator, value, instance, schema) or ()

    return keyword


def _items(check: Any) -> Any:
    """Return the keyword `items` for one schema of all items, which jsonschema would prepare again for each item."""

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if not isinstance(value, dict) or "prefixItems" in schema or not validator.is_type(instance, "array"):
            yield from check(validator, value, instance, schema) or ()
            return
        inner = _subschema(validator, value)
        _WORK.get().spend(_STEPS_PER_SUBSCHEMA * len(instance))
        for index, item in enumerate(instance):
            for error in inner.iter_errors(item):
                error.path.appendleft(index)
                yield error

    return keyword


def _enum(_validator: Any, values: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if _counted_identity(instance) not in _identities(values):
        yield ValidationError(f"{instance!r} is not one of {_shown(values)}")


def _const(_validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if _counted_identity(instance) not in _identities([value], id(schema)):
        yield ValidationError(f"{_shown(value)} was expected")


def _identities(values: Any, key: int = 0) -> frozenset[str]:
    """Return the identities of the values of an enumeration, computed once in a check."""
    work = _WORK.get()
    key = key or id(values)
    if key not in work.values:
        work.values[key] = frozenset(map(_counted_identity, values))
    return work.values[key]


def _counted_identity(value: Any) -> str:
    work = _WORK.get()
    work.spend(1 / _IDENTITIES_PER_STEP + work.size(value) // _ELEMENTS_PER_IDENTITY)
    return _identity(value)


def _pattern(validator: Any, pattern: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {_shown(pattern)}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if instance and validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), list(schema.get("patternProperties", {}))
    unknown = [name for name in instance if name not in properties]
    extra = [name for name in unknown if not any(_matches(pattern, name) for pattern in patterns)]
    if validator.is_type(value, "object"):
        for name in extra:
            yield from validator.descend(instance[name], value, path=name)
    elif not value and extra:
        listing = ", ".join(map(repr, sorted(extra)))
        verb = "was" if len(extra) == 1 else "were"
        if patterns:
            does = "does" if len(extra) == 1 else "do"
            known = ", ".join(map(_shown, sorted(patterns)[:_MAX_SHOWN_VALUE]))
            yield ValidationError(f"{listing} {does} not match any of the regexes: {known}")
        else:
            yield ValidationError(f"Additional properties are not allowed ({listing} {verb} unexpected)")


def _unevaluated(container: str) -> Any:
    """Return the keyword `unevaluatedProperties` or `unevaluatedItems`.

    jsonschema looks for the evaluated members once for each way to a subschema, and matches patterns by `re`.
    """

    def keyword(validator: Any, value: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
        if not validator.is_type(instance, container):
            return
        evaluated = _evaluated(validator, instance)
        rest = [key for key in _keys(instance) if key not in evaluated]
        if rest and value is not False:
            inner = _subschema(validator, value)
            rest = [key for key in rest if not inner.is_valid(instance[key])]
        if rest:
            from jsonschema import ValidationError

            what = "properties" if container == "object" else "items"
            listing = ", ".join(map(repr, rest[:_MAX_SHOWN_PROBLEMS]))
            yield ValidationError(
                f"Unevaluated {what} are not allowed ({listing} {'was' if len(rest) == 1 else 'were'} unexpected)"
            )

    return keyword


def _keys(instance: Any) -> Iterable[str | int]:
    return instance if isinstance(instance, dict) else range(len(instance))


def _evaluated(validator: Any, instance: Any) -> set[str | int]:
    """Return the names or indexes of the members to which subschemas of a schema apply, without its `unevaluated…` keywords."""
    work = _WORK.get()
    is_object = isinstance(instance, dict)
    keyword, members = (
        ("unevaluatedProperties", _evaluated_members) if is_object else ("unevaluatedItems", _evaluated_items)
    )
    found: set[str | int] = set()
    visited: set[tuple[int, tuple[str, ...]]] = set()
    pending = [validator]
    while pending:
        current = pending.pop()
        place = id(current.schema), _dynamic_scope(current)
        if isinstance(current.schema, bool) or place in visited:
            continue
        visited.add(place)
        work.spend(1 + len(instance) / _MEMBERS_PER_STEP)
        has_all = current is not validator and keyword in current.schema
        found.update(_keys(instance) if has_all else members(current, instance))
        pending.extend(_applied_in_place(current, instance))
    return found


def _evaluated_members(validator: Any, instance: Any) -> Iterable[str]:
    schema = validator.schema
    if "additionalProperties" in schema:
        return list(instance)
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return [name for name in instance if name in properties or any(_matches(pattern, name) for pattern in patterns)]


def _evaluated_items(validator: Any, instance: Any) -> Iterable[int]:
    schema, items = validator.schema, validator.schema.get("items")
    has_prefix = "prefixItems" in validator.VALIDATORS
    if isinstance(items, list):  # a prefix in earlier drafts, and not allowed since
        prefix, rest = items, schema.get("additionalItems")
    else:
        prefix, rest = schema.get("prefixItems", []) if has_prefix else [], items
    if rest is not None:
        return range(len(instance))
    contains: list[int] = []
    if "contains" in schema and has_prefix:  # in earlier drafts it evaluates nothing
        inner = _subschema(validator, schema["contains"])
        contains = [index for index, item in enumerate(instance) if inner.is_valid(item)]
    return [*range(len(prefix)), *contains]


def _applied_in_place(validator: Any, instance: Any) -> Iterator[Any]:
    """Yield the validators of the subschemas that apply to the same value, if the value satisfies the schema."""
    schema = validator.schema
    yield from _referenced(validator)
    dependent = schema.get("dependentSchemas", {})
    for branch in [*schema.get("allOf", ()), *(dependent[name] for name in dependent if name in instance)]:
        yield _subschema(validator, branch)
    for branch in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        inner = _subschema(validator, branch)
        if inner.is_valid(instance):
            yield inner
    if "if" in schema:
        condition = _subschema(validator, schema["if"])
        is_met = condition.is_valid(instance)
        branches = [condition] if is_met else []
        keyword = "then" if is_met else "else"
        yield from [*branches, *([_subschema(validator, schema[keyword])] if keyword in schema else [])]


def _referenced(validator: Any) -> Iterator[Any]:
    """Yield the validators of the targets of a schema's references."""
    from referencing.jsonschema import lookup_recursive_ref

    schema, known = validator.schema, validator.VALIDATORS
    present = [keyword for keyword in ("$ref", "$dynamicRef") if keyword in schema and keyword in known]
    targets = [_lookup(validator, schema[keyword]) for keyword in present]
    if "$recursiveRef" in schema and "$recursiveRef" in known:
        targets.append(lookup_recursive_ref(validator._resolver))  # noqa: SLF001  # as in `descend`
    for target in targets:
        yield _subschema(validator, target.contents, target.resolver)


def _dynamic_scope(validator: Any) -> tuple[str, ...]:
    """Return the identifiers on which the target of a dynamic reference depends."""
    return tuple(uri for uri, _ in validator._resolver.dynamic_scope())  # noqa: SLF001  # as in `descend`


def _matches(pattern: str, text: str) -> bool:
    work = _WORK.get()
    work.spend(_STEPS_PER_MATCH)
    return _compiled_pattern(pattern).search(text, work.spend)


def _compiled_pattern(pattern: str) -> LinearPattern:
    """Return a compiled pattern; it counts once in a check, whether or not it was compiled before."""
    work = _WORK.get()
    known = work.patterns.get(pattern)
    if known is None:
        known = work.patterns[pattern] = compile_pattern(pattern)
        work.spend(known.steps)
    return known


def _not(validator: Any, schema: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if validator.evolve(schema=schema).is_valid(instance):
        yield ValidationError(f"{instance!r} should not be valid under {_shown(schema)}")


def _any_of(validator: Any, branches: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    _, error = _first_match(validator, branches, instance)
    if error is not None:
        yield error


def _one_of(validator: Any, branches: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    index, error = _first_match(validator, branches, instance)
    if error is not None:
        yield error
        return
    others = [branch for branch in branches[index + 1 :] if validator.evolve(schema=branch).is_valid(instance)]
    if others:
        from jsonschema import ValidationError

        listing = ", ".join(map(_shown, [branches[index], *others[:_MAX_SHOWN_PROBLEMS]]))
        yield ValidationError(f"{instance!r} is valid under each of {listing}")


def _first_match(validator: Any, branches: Any, instance: Any) -> tuple[int, ValidationError | None]:
    """Return the index of the first branch that accepts the data, or an error with the problems of all branches."""
    from jsonschema import ValidationError

    context: list[ValidationError] = []
    for index, branch in enumerate(branches):
        errors = list(islice(validator.descend(instance, branch, schema_path=index), _MAX_ERRORS))
        if not errors:
            return index, None
        context.extend(errors[: max(0, _MAX_ERRORS - len(context))])
    return -1, ValidationError(f"{instance!r} is not valid under any of the given schemas", context=context)


def _unique_items(validator: Any, required: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if not required or not validator.is_type(instance, "array"):
        return
    if len(set(map(_counted_identity, instance))) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _identity(value: Any) -> str:
    """Return a text that is equal for equal JSON: the order of members does not count, 1 is 1.0, and true is not 1.

    Sets of numbers, or of tuples of them, would be slow: a stranger can choose thousands of numbers with one hash.
    """
    if isinstance(value, str):
        return f"{len(value)}'{value}"
    if isinstance(value, dict):
        return f"{{{','.join(sorted([_identity(name) + _identity(item) for name, item in value.items()]))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_identity, value))}]"
    if isinstance(value, float):
        return f"{int(value):x}" if value.is_integer() else repr(value)
    # In Python, True is an integer. In hexadecimal, a number is written in linear time.
    return f"{value:x}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


# --- types --------------------------------------------------------------------------------------------------------

_TYPE_NAMES: Mapping[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer"}),
    float: frozenset({"number", "integer"}),
    type(None): frozenset({"null"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
}


def _required_types(error: ValidationError) -> frozenset[str] | None:
    """Return the JSON types that a schema requires where an error is; None if the error is about something else."""
    required: Any = error.validator_value
    if error.validator == "type":
        names = {required} if isinstance(required, str) else set(map(str, required))
        return frozenset(names | {"integer"} if "number" in names else names)
    if error.validator == "const":
        return _TYPE_NAMES[type(required)]
    if error.validator == "enum":
        types = _WORK.get().types
        if id(required) not in types:
            types[id(required)] = frozenset().union(*[_TYPE_NAMES[type(value)] for value in required])
        return types[id(required)]
    return None


def _misfit(error: ValidationError, data: Any) -> Misfit:
    path = tuple(error.absolute_path)
    # The errors of `propertyNames` are about a name, and have the path of its object.
    types = _required_types(error) if value_at(data, path) is error.instance else None
    branches: dict[Any, list[Misfit]] = {}
    if error.validator in {"anyOf", "oneOf"}:
        for inner in error.context or ():
            branches.setdefault(inner.relative_schema_path[0], []).append(_misfit(inner, data))
    is_conditional = not _BRANCHES.isdisjoint(error.absolute_schema_path)
    return Misfit(path, str(error.validator), types, tuple(map(tuple, branches.values())), is_conditional)


def value_at(data: Any, path: Sequence[str | int]) -> Any:
    """Return what is at a path of keys and indexes."""
    for step in path:
        data = data[step]
    return data


# --- messages ---------------------------------------------------------------------------------------------------


def _problem(error: ValidationError) -> tuple[str, str]:
    deepest = next(_deepest(error), error)
    return deepest.json_path, _shorten(deepest)


def _deepest(error: ValidationError) -> Iterator[ValidationError]:
    """Yield the most useful error inside an anyOf or oneOf: the one at the deepest place in the data."""
    if error.context:
        from jsonschema.exceptions import best_match

        best = best_match([error])
        if best is not None:
            yield best


def _shown(value: Any) -> str:
    """Return the beginning of the repr of a part of a schema, which may be long and is written for each error."""
    if isinstance(value, str):
        value = value[:_MAX_SHOWN_MESSAGE]
    elif isinstance(value, list | dict) and _WORK.get().size(value) > _MAX_SHOWN_MESSAGE:
        from reprlib import Repr

        shortened = Repr()
        shortened.maxlist = shortened.maxdict = _MAX_SHOWN_VALUE
        shortened.maxlevel, shortened.maxstring = 2, _MAX_SHOWN_VALUE
        return shortened.repr(value)[:_MAX_SHOWN_MESSAGE]
    return repr(value)[:_MAX_SHOWN_MESSAGE]


def _shorten(error: ValidationError | Any) -> str:
    message: str = error.message
    value = repr(error.instance)
    if len(value) > _MAX_SHOWN_VALUE:
        # jsonschema puts the whole value into its messages.
        message = message.replace(value, value[:_MAX_SHOWN_VALUE] + "…")
    return message if len(message) <= _MAX_SHOWN_MESSAGE else message[:_MAX_SHOWN_MESSAGE] + "…"
