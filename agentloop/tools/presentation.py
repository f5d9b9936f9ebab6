"""Results of tools: checked against the declared return type and converted to JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, get_args

from agentloop.errors import NotJson, ToolDefinitionError, ToolFailed
from agentloop.tools import conversion
from agentloop.tools.schema import json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.bounds import Bounds
from agentloop.values.json import JsonValue, freeze, thaw
from agentloop.values.parts import Media, Text
from agentloop.values.tool_calls import ContentPart, ToolResult

# Results of the program's own functions may be as large as they are.
_UNBOUNDED = Bounds(schema_steps=float("inf"), schema_depth=float("inf"), schema_bytes=float("inf"))
_UNDECLARED = (Any, object)
# Results of the most common types are checked without jsonschema, whose import takes long.
_EXACT_TYPES = {str: str, int: int, bool: bool, float: (float, int), None: type(None), type(None): type(None)}


class Presenter(Protocol):
    """Converts the result of a tool."""

    def __call__(self, result: Any) -> ToolResult:
        """Convert the result to JSON.

        Raises:
            ToolFailed: when it does not match the declared type, or has no JSON form.
        """


def presenter(returns: Any) -> Presenter:
    """Return the presenter for a declared return type. Its schema is compiled with the first result."""
    if returns in _UNDECLARED:
        return present
    exact = _EXACT_TYPES.get(returns) if isinstance(returns, type | None) else None
    if exact is not None:
        return lambda result: _present_exact(result, exact, returns)
    return _DeclaredType(returns)


def present(result: Any) -> ToolResult:
    """Convert a result without a declared type to JSON.

    Raises:
        ToolFailed: when it has no JSON form.
    """
    content = _content_result(result)
    if content is not None:
        return content
    try:
        return ToolResult(conversion.to_json_data(result))
    except Exception as error:
        raise _no_json_form(result, error) from error


class _DeclaredType:
    """The presenter of a declared type that has a schema."""

    def __init__(self, returns: Any) -> None:
        self.returns = returns
        self._validator: SchemaValidator | None = None
        self._has_schema = True

    def __call__(self, result: Any) -> ToolResult:
        content = _content_result(result)
        if content is not None:
            return content
        try:
            value, is_json = _to_json(result, self.returns)
        except Exception as error:
            raise _no_json_form(result, error, self.returns) from error
        self._check(thaw(value), is_json=is_json)
        return ToolResult(value)

    def _check(self, value: Any, *, is_json: bool) -> None:
        if self._validator is None and self._has_schema:
            try:
                self._validator = SchemaValidator(json_schema(self.returns), bounds=_UNBOUNDED)
            except ToolDefinitionError:
                # A class without a schema is still converted to JSON; only the check is left out.
                self._has_schema = False
        if self._validator is None:
            return
        if not self._validator.accepts(value):
            raise self._mismatch(self._validator.problems(value))
        if is_json:
            # JSON may satisfy the schema and still not be a value of the type, as the text of a date that does not exist.
            try:
                conversion.structure(value, self.returns)
            except Exception as error:
                raise self._mismatch(conversion.problems(error)) from error

    def _mismatch(self, problems: Sequence[tuple[str, str]]) -> ToolFailed:
        path, message = problems[0]
        return ToolFailed(f"the tool declares to return {type_name(self.returns)}, but at {path}: {message}", path=path)


def _to_json(result: Any, returns: Any) -> tuple[JsonValue, bool]:
    """Return the JSON form of a result, and whether the result was JSON data already."""
    try:
        return freeze(result), True
    except NotJson:
        return conversion.to_json_data(result, returns), False


def _present_exact(result: Any, exact: Any, returns: Any) -> ToolResult:
    # bool is a subclass of int.
    if isinstance(result, exact) and not (isinstance(result, bool) and exact is not bool):
        try:
            return ToolResult(result)
        except NotJson as error:
            raise _no_json_form(result, error, returns) from error
    content = _content_result(result)
    if content is None:
        raise ToolFailed(
            f"the tool declares to return {type_name(returns)}, but returned a {type(result).__qualname__}"
        )
    return content


def _content_result(result: Any) -> ToolResult | None:
    """Return a result that is a `ToolResult` or consists of parts; None for any other."""
    if isinstance(result, ToolResult):
        return result
    if isinstance(result, Text | Media):
        result = (result,)
    if not isinstance(result, list | tuple) or not all(isinstance(part, str | Text | Media) for part in result):
        return None
    # A list of plain texts, or an empty one, is a value. Next to a picture, a plain text is shown as its caption.
    if all(isinstance(part, str) for part in result):
        return None
    parts = [Text(part) if isinstance(part, str) else part for part in result]
    return ToolResult(_summarize(parts), parts)


def is_content(returns: Any) -> bool:
    """Return whether a declared type is one of content for the model, or has one among its arguments.

    The value of such a result is not of the declared type: it describes the content, or a `ToolResult` has it.
    """
    if isinstance(returns, type) and issubclass(returns, ToolResult | Text | Media):
        return True
    return any(is_content(argument) for argument in get_args(returns))


def _summarize(parts: Sequence[ContentPart]) -> list[dict[str, Any]]:
    """Describe parts for the program; the data itself is in the content."""
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": type(part).__name__.lower(), "media_type": part.media_type, "bytes": len(part.data or b"")}
        for part in parts
    ]


def _no_json_form(result: Any, error: Exception, returns: Any = None) -> ToolFailed:
    declared = f" (declared: {type_name(returns)})" if returns is not None else ""
    return ToolFailed(
        f"the tool returned a {type(result).__qualname__}{declared} that cannot be turned into JSON: {error}; return JSON "
        "data, or annotate the return type with a class that has a schema"
    )


def type_name(hint: Any) -> str:
    """Return a type as error messages name it."""
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")
