"""Final answers that have a type."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attrs import field, frozen

from agentloop.errors import InvalidOutput
from agentloop.tools.conversion import problems, structure
from agentloop.tools.schema import json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.inference import ResponseFormat
from agentloop.values.json import json_in_text


@frozen
class OutputType:
    """A type that final answers are to have: its schema, and how an answer's text is read into it.

    Attributes:
        hint: the type, any that can stand at a tool's parameter; descriptions and bounds may stand in `Annotated`.
        response_format: the form to ask of the answer.

    Raises:
        ToolDefinitionError: when the type has no JSON form.
    """

    hint: Any
    response_format: ResponseFormat = field(init=False, repr=False)
    _validator: SchemaValidator = field(init=False, repr=False, eq=False)

    @response_format.default
    def _as_response_format(self) -> ResponseFormat:
        return ResponseFormat(json_schema(self.hint), name=getattr(self.hint, "__name__", None) or "answer")

    @_validator.default
    def _compiled(self) -> SchemaValidator:
        return SchemaValidator(self.response_format.schema or {}, "the schema of the output type")

    def read(self, text: str) -> Any:
        """Read an answer, with or without a fence and words around its JSON.

        Raises:
            InvalidOutput: when it is not JSON, does not satisfy the schema, or the type refuses it; says where.
        """
        try:
            data = json_in_text(text)
        except ValueError as error:
            raise InvalidOutput(f"it is not JSON ({error})") from error
        found = self._validator.problems(data)
        if found:
            raise InvalidOutput(_told(found))
        try:
            return structure(data, self.hint)
        except Exception as error:
            raise InvalidOutput(_told(problems(error))) from error


@lru_cache(maxsize=256)
def _compiled(hint: Any) -> OutputType:
    return OutputType(hint)


def output_type_of(hint: Any) -> OutputType:
    """Return the output type of a hint, compiled once, so that each changed copy of a loop does not do it again.

    Raises:
        ToolDefinitionError: when the type has no JSON form.
    """
    try:
        hash(hint)
    except TypeError:
        return OutputType(hint)
    return _compiled(hint)


def _told(found: list[tuple[str, str]]) -> str:
    return "; ".join(f"at {path}: {message}" for path, message in found)
