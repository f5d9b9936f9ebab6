"""Validation against a JSON Schema: the one file that knows jsonschema, which is loaded with the first validator."""

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

_SHOWN_PROBLEMS = 5
_SHOWN_VALUE = 80
_SHOWN_MESSAGE = 400
_MOST_ERRORS = 1_000  # looked at, however many there are
_TOO_DEEP = ("$", "it is nested too deeply to be checked")


class SchemaValidator:
    """A JSON Schema, checked once and compiled for use any number of times.

    Draft 2020-12 unless the schema's `$schema` says otherwise. `format` is an annotation, as that draft has it.

    Args:
        schema: the schema; references must be within it, as nothing is ever fetched.
        name: what the schema belongs to, for error messages.

    Raises:
        ToolDefinitionError: when it is not a valid schema, or refers to what is not in it; says where.
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: Schema, name: str = "the schema") -> None:
        self._validator = _compiled(schema, name)

    def accepts(self, data: Any) -> bool:
        """Say whether plain JSON data satisfies the schema."""
        try:
            return bool(self._validator.is_valid(data))
        except RecursionError:
            return False

    def problems(self, data: Any) -> list[tuple[str, str]]:
        """Return what is wrong with plain JSON data, as pairs of a JSON path and a message.

        Of the first 1,000 problems they are the nearest to the root, the nearest first.
        """
        try:
            errors = islice(self._validator.iter_errors(data), _MOST_ERRORS)
            found = sorted(errors, key=lambda error: len(error.absolute_path))
        except RecursionError:
            return [_TOO_DEEP]
        return [_problem(error) for error in found[:_SHOWN_PROBLEMS]]

    def validate(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a call.

        Raises:
            InvalidArguments: with the path of the first problem, listing the first few.
        """
        if not self.accepts(arguments):
            raise invalid_arguments(self.problems(arguments) or [_TOO_DEEP])


def validator_of(spec: ToolSpec) -> SchemaValidator:
    """Return the validator of a tool's arguments, compiled once and kept with the spec.

    Raises:
        ToolDefinitionError: when the parameters are not a valid JSON Schema.
    """
    return spec.encoded("validator of the arguments", _compiled_for)


def _compiled_for(spec: ToolSpec) -> SchemaValidator:
    return SchemaValidator(spec.parameters, f"the parameter schema of the tool {spec.name!r}")


def invalid_arguments(problems: list[tuple[str, str]]) -> InvalidArguments:
    """Make the error of these problems."""
    told = "; ".join(f"at {path}: {message}" for path, message in problems)
    return InvalidArguments(f"the arguments do not fit the tool's parameters: {told}", path=problems[0][0])


def _compiled(schema: Schema, name: str) -> Validator:
    """Check and compile a schema; this file is the border to jsonschema."""
    from jsonschema.exceptions import SchemaError

    try:
        plain: Any = schema if isinstance(schema, bool) else thaw(freeze_object(schema))
    except NotJson as error:
        raise ToolDefinitionError(f"{name} cannot be a JSON Schema: {error}") from error
    try:
        return _checked(plain, name)
    except SchemaError as error:
        raise ToolDefinitionError(
            f"{name} is not a valid JSON Schema: at {error.json_path}: {_shortened(error)}"
        ) from error
    except RecursionError:
        raise ToolDefinitionError(
            f"{name} cannot be a JSON Schema: it is nested too deeply, or refers to itself without end"
        ) from None


def _checked(schema: Any, name: str) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # has annotations, no marker

    try:
        kind = validator_for(schema, default=Draft202012Validator)
    except (ValueError, AttributeError) as error:
        raise ToolDefinitionError(f"{name} is not a valid JSON Schema: at $.$schema: it has to be a URL") from error
    kind.check_schema(schema)
    _check_references(schema, kind, REGISTRY, name)
    validator = _bounded(kind)(schema, registry=REGISTRY)
    validator.is_valid({})  # finds references that go in a circle
    return validator


@cache
def _bounded(kind: type[Validator]) -> type[Validator]:
    """Return the kind with those keywords replaced whose work grows faster than the data, or that keep all that is wrong."""
    from jsonschema.validators import extend

    own = {"anyOf": _any_of, "oneOf": _one_of, "uniqueItems": _unique_items}
    known = {keyword: check for keyword, check in own.items() if keyword in kind.VALIDATORS}
    made: type[Validator] = extend(kind, known)  # type: ignore[no-untyped-call]  # the stubs leave it untyped
    return made


def _any_of(validator: Any, branches: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    _, errors = _first_fitting(validator, branches, instance)
    if errors is not None:
        yield errors


def _one_of(validator: Any, branches: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    fitting, errors = _first_fitting(validator, branches, instance)
    if errors is not None:
        yield errors
        return
    more = [branch for branch in branches[fitting + 1 :] if validator.evolve(schema=branch).is_valid(instance)]
    if more:
        from jsonschema import ValidationError

        told = ", ".join(map(repr, [branches[fitting], *more]))
        yield ValidationError(f"{instance!r} is valid under each of {told}")


def _first_fitting(validator: Any, branches: Any, instance: Any) -> tuple[int, ValidationError | None]:
    """Return the place of the first branch that the data fits, or what is wrong with all."""
    from jsonschema import ValidationError

    tried: list[ValidationError] = []
    for place, branch in enumerate(branches):
        errors = list(islice(validator.descend(instance, branch, schema_path=place), _MOST_ERRORS))
        if not errors:
            return place, None
        tried.extend(errors)
    return -1, ValidationError(f"{instance!r} is not valid under any of the given schemas", context=tried)


def _unique_items(validator: Any, wanted: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if wanted and validator.is_type(instance, "array") and len(set(map(_identity, instance))) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _identity(value: Any) -> Hashable:
    """Return what is equal for equal JSON: the order of members does not count, 1 is 1.0, and true is not 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, dict):
        return dict, frozenset([(name, _identity(item)) for name, item in value.items()])
    if isinstance(value, list | tuple):
        return list, tuple(map(_identity, value))
    return cast("Hashable", value)


def _check_references(schema: Any, kind: type[Validator], registry: Any, name: str) -> None:
    """Follow every reference, so that one that leads nowhere is found before a call is."""
    from referencing.jsonschema import DRAFT202012, specification_with

    specification = specification_with(str(kind.META_SCHEMA.get("$schema", "")), default=DRAFT202012)
    root = specification.create_resource(schema)
    left = [(root, registry.resolver_with_root(root))]
    references: list[tuple[str, Any]] = []
    seen: set[int] = set()
    while left or references:
        if left:
            resource, resolver = left.pop()
        else:
            found = _found(*references.pop(), name)
            resource, resolver = specification.create_resource(found.contents), found.resolver
            if id(resource.contents) not in seen:
                kind.check_schema(resource.contents)
        if id(resource.contents) in seen or not isinstance(resource.contents, dict):
            continue
        seen.add(id(resource.contents))
        left.extend((inner, resolver.in_subresource(inner)) for inner in resource.subresources())
        told = [resource.contents.get(keyword) for keyword in ("$ref", "$dynamicRef")]
        references.extend((reference, resolver) for reference in told if isinstance(reference, str))


def _found(reference: str, resolver: Any, name: str) -> Any:
    from referencing.exceptions import Unresolvable

    try:
        return resolver.lookup(reference)
    except Unresolvable as error:
        raise ToolDefinitionError(
            f"{name} refers to {reference!r}, which is not in it; nothing is fetched: put the definition into $defs"
        ) from error


def _problem(error: ValidationError) -> tuple[str, str]:
    deepest = next(_deepest(error), error)
    return deepest.json_path, _shortened(deepest)


def _shortened(error: ValidationError | Any) -> str:
    message: str = error.message
    shown = repr(error.instance)
    if len(shown) > _SHOWN_VALUE:
        message = message.replace(shown, shown[:_SHOWN_VALUE] + "…")
    return message if len(message) <= _SHOWN_MESSAGE else message[:_SHOWN_MESSAGE] + "…"


def _deepest(error: ValidationError) -> Iterator[ValidationError]:
    """Yield the error inside an anyOf or oneOf that tells most: the one that came deepest into the data."""
    if error.context:
        from jsonschema.exceptions import best_match

        best = best_match([error])
        if best is not None:
            yield best
