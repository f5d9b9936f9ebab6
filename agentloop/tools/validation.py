"""Validation against a JSON Schema: the one file that knows jsonschema, which is loaded with the first validator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.values.json_value import freeze_object, thaw

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

Schema: TypeAlias = Mapping[str, Any] | bool
"""A JSON Schema; true accepts everything and false nothing."""

_SHOWN_PROBLEMS = 5
_SHOWN_VALUE = 80


class SchemaValidator:
    """A JSON Schema, checked once and compiled for use any number of times.

    Draft 2020-12 unless the schema's `$schema` says otherwise. `format` is an annotation, as that draft has it.

    Args:
        schema: the schema; references must be within it, as nothing is ever fetched.
        name: what the schema belongs to, for error messages.

    Raises:
        ToolDefinitionError: when it is not a valid schema; says where.
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: Schema, name: str = "the schema") -> None:
        self._validator = _compiled(schema, name)

    def accepts(self, data: Any) -> bool:
        """Say whether plain JSON data satisfies the schema."""
        return bool(self._validator.is_valid(data))

    def problems(self, data: Any) -> list[tuple[str, str]]:
        """Return what is wrong with plain JSON data, as pairs of a JSON path and a message; the nearest to the root first."""
        found = sorted(self._validator.iter_errors(data), key=lambda error: len(error.absolute_path))
        return [_problem(error) for error in found[:_SHOWN_PROBLEMS]]

    def validate(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a call.

        Raises:
            InvalidArguments: with the path of the first problem, listing the first few.
        """
        if not self._validator.is_valid(arguments):
            raise invalid_arguments(self.problems(arguments))


def invalid_arguments(problems: list[tuple[str, str]]) -> InvalidArguments:
    """Make the error of these problems."""
    told = "; ".join(f"at {path}: {message}" for path, message in problems)
    return InvalidArguments(f"the arguments do not fit the tool's parameters: {told}", path=problems[0][0])


def _compiled(schema: Schema, name: str) -> Validator:
    """Check and compile a schema; this file is the border to jsonschema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    plain: Any = schema if isinstance(schema, bool) else thaw(freeze_object(schema))
    kind = validator_for(plain, default=Draft202012Validator)
    try:
        kind.check_schema(plain)
    except SchemaError as error:
        raise ToolDefinitionError(
            f"{name} is not a valid JSON Schema: at {error.json_path}: {error.message}"
        ) from error
    except RecursionError:
        raise ToolDefinitionError(f"{name} is nested too deeply to be a JSON Schema") from None
    return kind(plain, registry=Registry())


def _problem(error: ValidationError) -> tuple[str, str]:
    deepest = next(_deepest(error), error)
    message = deepest.message
    shown = repr(deepest.instance)
    if len(shown) > _SHOWN_VALUE:
        message = message.replace(shown, shown[:_SHOWN_VALUE] + "…")
    return deepest.json_path, message


def _deepest(error: ValidationError) -> Iterator[ValidationError]:
    """Yield the error inside an anyOf or oneOf that tells most: the one that came deepest into the data."""
    if error.context:
        from jsonschema.exceptions import best_match

        best = best_match([error])
        if best is not None:
            yield best
