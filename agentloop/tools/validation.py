"""Validation against a JSON Schema. This is the only file that imports jsonschema, with the first validator."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from agentloop.errors import InvalidArguments, NotJson, ToolDefinitionError
from agentloop.values.json import freeze_object, thaw
from agentloop.values.tool_calls import ToolSpec

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator


Schema: TypeAlias = Mapping[str, Any] | bool
"""A JSON Schema; true accepts everything and false nothing."""

_MAX_SHOWN_PROBLEMS = 5
_MAX_SHOWN_VALUE = 80
_MAX_SHOWN_MESSAGE = 400
_MAX_ERRORS = 1_000
_TOO_DEEP = ("$", "it is nested too deeply to be checked")


class SchemaValidator:
    """A JSON Schema, checked once and compiled for repeated use.

    The draft is 2020-12 unless the schema's `$schema` says otherwise. `format` is an annotation, as in that draft.

    Args:
        schema: the schema; its references must stay inside of it, since nothing is fetched.
        name: the owner of the schema, for error messages.

    Raises:
        ToolDefinitionError: when it is not a valid schema, or has a reference that cannot be resolved; names the place.
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: Schema, name: str = "the schema") -> None:
        self._validator = _compile(schema, name)

    def accepts(self, data: Any) -> bool:
        """Return whether plain JSON data satisfies the schema."""
        try:
            return bool(self._validator.is_valid(data))
        except RecursionError:
            return False

    def problems(self, data: Any) -> list[tuple[str, str]]:
        """Return the problems of plain JSON data, as pairs of a JSON path and a message.

        Of the first 1,000 problems, the 5 nearest to the root are returned, the nearest first.
        """
        try:
            # A long list of invalid items has as many errors.
            errors = islice(self._validator.iter_errors(data), _MAX_ERRORS)
            nearest = sorted(errors, key=lambda error: len(error.absolute_path))
        except RecursionError:
            return [_TOO_DEEP]
        return [_problem(error) for error in nearest[:_MAX_SHOWN_PROBLEMS]]

    def validate(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a call.

        Raises:
            InvalidArguments: with the path of the first problem; the message lists the first five.
        """
        # `accepts` stops at the first problem; all of them are needed only for the message.
        if not self.accepts(arguments):
            raise invalid_arguments(self.problems(arguments) or [_TOO_DEEP])


def validator_of(spec: ToolSpec) -> SchemaValidator:
    """Return the validator of a tool's arguments. It is compiled once and stored with the spec.

    Raises:
        ToolDefinitionError: when the parameters are not a valid JSON Schema.
    """
    # Specs are shared by all requests and calls, so each schema is compiled once per program.
    return spec.encoded("validator of the arguments", _compile_spec)


def _compile_spec(spec: ToolSpec) -> SchemaValidator:
    return SchemaValidator(spec.parameters, f"the parameter schema of the tool {spec.name!r}")


def invalid_arguments(problems: list[tuple[str, str]]) -> InvalidArguments:
    """Return the error for these problems of a call's arguments."""
    listing = "; ".join(f"at {path}: {message}" for path, message in problems)
    return InvalidArguments(f"the arguments do not fit the tool's parameters: {listing}", path=problems[0][0])


# --- compiling a schema -----------------------------------------------------------------------------------------


def _compile(schema: Schema, name: str) -> Validator:
    from jsonschema.exceptions import SchemaError

    try:
        plain: Any = schema if isinstance(schema, bool) else thaw(freeze_object(schema))
    except NotJson as error:
        raise ToolDefinitionError(f"{name} cannot be a JSON Schema: {error}") from error
    try:
        return _validator(plain, name)
    except SchemaError as error:
        raise ToolDefinitionError(
            f"{name} is not a valid JSON Schema: at {error.json_path}: {_shorten(error)}"
        ) from error
    except RecursionError:
        raise ToolDefinitionError(
            f"{name} cannot be a JSON Schema: it is nested too deeply, or refers to itself without end"
        ) from None


def _validator(schema: Any, name: str) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # has annotations, no marker

    try:
        kind = validator_for(schema, default=Draft202012Validator)
    except (ValueError, AttributeError) as error:
        raise ToolDefinitionError(f"{name} is not a valid JSON Schema: at $.$schema: it has to be a URL") from error
    kind.check_schema(schema)
    _check_references(schema, kind, REGISTRY, name)
    validator = _with_linear_keywords(kind)(schema, registry=REGISTRY)
    validator.is_valid({})  # a reference that only leads back to itself raises RecursionError here, not in a call
    return validator


def _check_references(schema: Any, kind: type[Validator], registry: Any, name: str) -> None:
    """Follow every reference, so that one that cannot be resolved fails now and not in a call."""
    from referencing.jsonschema import DRAFT202012, specification_with

    specification = specification_with(str(kind.META_SCHEMA.get("$schema", "")), default=DRAFT202012)
    root = specification.create_resource(schema)
    pending = [(root, registry.resolver_with_root(root))]
    references: list[tuple[str, Any]] = []
    visited: set[int] = set()
    while pending or references:
        if pending:
            resource, resolver = pending.pop()
        else:
            target = _resolve(*references.pop(), name)
            resource, resolver = specification.create_resource(target.contents), target.resolver
            if id(resource.contents) not in visited:
                kind.check_schema(resource.contents)  # a reference may lead to a place that is no subschema
        if id(resource.contents) in visited or not isinstance(resource.contents, dict):
            continue
        visited.add(id(resource.contents))
        pending.extend((inner, resolver.in_subresource(inner)) for inner in resource.subresources())
        values = [resource.contents.get(keyword) for keyword in ("$ref", "$dynamicRef")]
        references.extend((reference, resolver) for reference in values if isinstance(reference, str))


def _resolve(reference: str, resolver: Any, name: str) -> Any:
    from referencing.exceptions import Unresolvable

    try:
        return resolver.lookup(reference)
    except Unresolvable as error:
        raise ToolDefinitionError(
            f"{name} refers to {reference!r}, which is not in it; nothing is fetched: put the definition into $defs"
        ) from error


# --- keywords ---------------------------------------------------------------------------------------------------


@cache
def _with_linear_keywords(kind: type[Validator]) -> type[Validator]:
    """Replace the keywords of jsonschema whose work grows faster than the data, or that collect unbounded errors."""
    from jsonschema.validators import extend

    replacements = {"anyOf": _any_of, "oneOf": _one_of, "uniqueItems": _unique_items}
    supported = {keyword: check for keyword, check in replacements.items() if keyword in kind.VALIDATORS}
    extended: type[Validator] = extend(kind, supported)  # type: ignore[no-untyped-call]  # the stubs leave it untyped
    return extended


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

        listing = ", ".join(map(repr, [branches[index], *others]))
        yield ValidationError(f"{instance!r} is valid under each of {listing}")


def _first_match(validator: Any, branches: Any, instance: Any) -> tuple[int, ValidationError | None]:
    """Return the index of the first branch that accepts the data, or an error with the problems of all branches."""
    from jsonschema import ValidationError

    context: list[ValidationError] = []
    for index, branch in enumerate(branches):
        errors = list(islice(validator.descend(instance, branch, schema_path=index), _MAX_ERRORS))
        if not errors:
            return index, None
        context.extend(errors)
    return -1, ValidationError(f"{instance!r} is not valid under any of the given schemas", context=context)


def _unique_items(validator: Any, required: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if required and validator.is_type(instance, "array") and len(set(map(_identity, instance))) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _identity(value: Any) -> Hashable:
    """Return a key that is equal for equal JSON: the order of members does not count, 1 is 1.0, and true is not 1."""
    # In Python, True equals 1 and has the same hash.
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, dict):
        return dict, frozenset([(name, _identity(item)) for name, item in value.items()])
    if isinstance(value, list | tuple):
        return list, tuple(map(_identity, value))
    return cast("Hashable", value)


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


def _shorten(error: ValidationError | Any) -> str:
    message: str = error.message
    value = repr(error.instance)
    if len(value) > _MAX_SHOWN_VALUE:
        # jsonschema puts the whole value into its messages.
        message = message.replace(value, value[:_MAX_SHOWN_VALUE] + "…")
    return message if len(message) <= _MAX_SHOWN_MESSAGE else message[:_MAX_SHOWN_MESSAGE] + "…"
