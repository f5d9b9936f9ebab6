"""Typed final answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from attrs import field, frozen

from agentloop.errors import InvalidOutput
from agentloop.tools.conversion import problems, structure
from agentloop.tools.schema import json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.inference import ResponseFormat
from agentloop.values.json import extract_json, freeze_object
from agentloop.values.value import Value

_TEXT_OR_NONE = str | None


@frozen(eq=False, repr=False)
class OutputType(Value):
    """The type of final answers: its schema, and the conversion of an answer's text.

    Attributes:
        hint: the type, any that a tool's parameter can have; `Annotated` may add descriptions and bounds. Or a JSON Schema, whose
            answers stay JSON. `str | None` is text that may be missing: an answer in which the model says nothing is None.
        response_format: the response format to request; None for text.

    Raises:
        ToolDefinitionError: when the type has no JSON form.
    """

    hint: Any
    response_format: ResponseFormat | None = field(init=False, repr=False)
    _validator: SchemaValidator = field(init=False, repr=False, eq=False)

    @response_format.default
    def _default_format(self) -> ResponseFormat | None:
        if self.hint == _TEXT_OR_NONE:
            return None
        if isinstance(self.hint, Mapping):
            return ResponseFormat(freeze_object(self.hint), name="answer")
        return ResponseFormat(json_schema(self.hint), name=getattr(self.hint, "__name__", None) or "answer")

    @_validator.default
    def _default_validator(self) -> SchemaValidator:
        schema = None if self.response_format is None else self.response_format.schema
        return SchemaValidator(schema or {}, "the schema of the output type")

    def read(self, text: str) -> Any:
        """Convert an answer; a code fence and prose around its JSON are ignored.

        Raises:
            InvalidOutput: when it is not JSON, does not satisfy the schema or cannot be converted; names the place.
        """
        if self.response_format is None:
            return text if text.strip() else None
        try:
            data = extract_json(text)
        except ValueError as error:
            raise InvalidOutput(f"it is not JSON ({error})") from error
        # The validator names every problem of the JSON; the conversion finds only what a schema cannot express.
        invalid = self._validator.problems(data)
        if invalid:
            raise InvalidOutput(_format_problems(invalid))
        if isinstance(self.hint, Mapping):
            return data
        try:
            return structure(data, self.hint)
        except Exception as error:
            raise InvalidOutput(_format_problems(problems(error))) from error


def output_type_of(hint: Any) -> OutputType:
    """Return the output type of a hint. It is compiled once, since every changed copy of a loop asks for it.

    Raises:
        ToolDefinitionError: when the type has no JSON form.
    """
    try:
        hash(hint)
    except TypeError:
        return OutputType(hint)
    return _cached_output_type(hint)


@lru_cache(maxsize=256)
def _cached_output_type(hint: Any) -> OutputType:
    return OutputType(hint)


def _format_problems(pairs: list[tuple[str, str]]) -> str:
    return "; ".join(f"at {path}: {message}" for path, message in pairs)
