"""Results of tools: checked against the declared return type, and turned into JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agentloop.errors import NotJson, ToolDefinitionError, ToolFailed
from agentloop.tools.schema import json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import JsonValue, freeze, thaw
from agentloop.values.parts import Media, Text
from agentloop.values.tool_calls import ContentPart, ToolResult

_ANYTHING = (Any, object)
_EXACT = {str: str, int: int, bool: bool, float: (float, int), None: type(None), type(None): type(None)}


class Presenter(Protocol):
    """Turns a tool's result into JSON."""

    def __call__(self, result: Any) -> ToolResult:
        """Turn the result into JSON.

        Raises:
            ToolFailed: when it does not fit the declared type, or has no JSON form.
        """


def presenter(returns: Any) -> Presenter:
    """Make the presenter of a declared return type; what it needs is compiled with the first result."""
    if returns in _ANYTHING:
        return present
    exact = _EXACT.get(returns) if isinstance(returns, type | None) else None
    if exact is not None:
        return lambda result: _present_exact(result, exact, returns)
    return _Declared(returns)


def present(result: Any) -> ToolResult:
    """Turn a result of no declared type into JSON.

    Raises:
        ToolFailed: when it has no JSON form.
    """
    shown = _content(result)
    if shown is not None:
        return shown
    from agentloop.tools import conversion

    try:
        return ToolResult(conversion.to_json_data(result))
    except Exception as error:
        raise _no_json(result, error) from error


class _Declared:
    """The presenter of a declared type that has a schema."""

    def __init__(self, returns: Any) -> None:
        self.returns = returns
        self._validator: SchemaValidator | None = None
        self._has_schema = True

    def __call__(self, result: Any) -> ToolResult:
        shown = _content(result)
        if shown is not None:
            return shown
        try:
            value, is_json = _json_of(result, self.returns)
        except Exception as error:
            raise _no_json(result, error, self.returns) from error
        self._check(thaw(value), is_json=is_json)
        return ToolResult(value)

    def _check(self, value: Any, *, is_json: bool) -> None:
        if self._validator is None and self._has_schema:
            try:
                self._validator = SchemaValidator(json_schema(self.returns))
            except ToolDefinitionError:
                self._has_schema = False
        if self._validator is None:
            return
        if not self._validator.accepts(value):
            raise self._unfit(self._validator.problems(value))
        if is_json:  # it may have the form of the type and still be none: the text of a date that does not exist
            from agentloop.tools import conversion

            try:
                conversion.structure(value, self.returns)
            except Exception as error:
                raise self._unfit(conversion.problems(error)) from error

    def _unfit(self, problems: Sequence[tuple[str, str]]) -> ToolFailed:
        path, message = problems[0]
        return ToolFailed(f"the tool declares to return {_name(self.returns)}, but at {path}: {message}", path=path)


def _json_of(result: Any, returns: Any) -> tuple[JsonValue, bool]:
    """Return the JSON form of a result, and whether the result was JSON itself."""
    try:
        return freeze(result), True
    except NotJson:
        from agentloop.tools import conversion

        return conversion.to_json_data(result, returns), False


def _present_exact(result: Any, exact: Any, returns: Any) -> ToolResult:
    if isinstance(result, exact) and not (isinstance(result, bool) and exact is not bool):
        try:
            return ToolResult(result)
        except NotJson as error:
            raise _no_json(result, error, returns) from error
    shown = _content(result)
    if shown is None:
        raise ToolFailed(f"the tool declares to return {_name(returns)}, but returned a {type(result).__qualname__}")
    return shown


def _content(result: Any) -> ToolResult | None:
    """Return a result that is made of parts, or None when it is not."""
    if isinstance(result, ToolResult):
        return result
    if isinstance(result, Text | Media):
        result = (result,)
    if isinstance(result, list | tuple) and result and all(isinstance(part, Text | Media) for part in result):
        return ToolResult(_summary(result), result)
    return None


def _summary(parts: Sequence[ContentPart]) -> list[dict[str, Any]]:
    """Describe parts for the program; what they hold stands in the content."""
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": type(part).__name__.lower(), "media_type": part.media_type, "bytes": len(part.data or b"")}
        for part in parts
    ]


def _no_json(result: Any, error: Exception, returns: Any = None) -> ToolFailed:
    declared = f" (declared: {_name(returns)})" if returns is not None else ""
    return ToolFailed(
        f"the tool returned a {type(result).__qualname__}{declared} that cannot be turned into JSON: {error}; return JSON "
        "data, or annotate the return type with a class that has a schema"
    )


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")
