"""Results of tools: checked against the declared return type and converted to JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, get_args

from agentloop.errors import NotJson, ToolDefinitionError, ToolFailed
from agentloop.tools import conversion
from agentloop.tools.schema import json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.bounds import Bounds
from agentloop.values.forms import Form, form_text
from agentloop.values.json import JsonValue, freeze, thaw
from agentloop.values.parts import Audio, Document, Image, Media, Text
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
            ToolFailed: when it does not match the declared type; the message has what the tool returned.
        """


def presenter(returns: Any, *, testifies: bool = True) -> Presenter:
    """Return the presenter for a declared return type. Its schema is compiled with the first result.

    Args:
        returns: the type.
        testifies: whether the error about a result that does not match has the result, too.
    """
    if returns in _UNDECLARED:
        return present
    exact = _EXACT_TYPES.get(returns) if isinstance(returns, type | None) else None
    if exact is not None:
        return lambda result: _present_exact(result, exact, returns, testifies=testifies)
    return _DeclaredType(returns, testifies=testifies)


def present(result: Any) -> ToolResult:
    """Convert a result without a declared type to JSON. Any value has a form."""
    content = _content_result(result)
    if content is not None:
        return content
    try:
        return ToolResult(conversion.to_json_data(result))
    except Exception:  # noqa: BLE001  # whatever the result does while it is read
        return ToolResult(_form(result).value)


def _form(result: Any, returns: Any = None) -> Form:
    """Return the form of a result that is no JSON data, and log which objects in it are only a text."""
    form = conversion.to_form(result, returns)
    if form.unknown:
        names = ", ".join(list(dict.fromkeys(form.unknown))[:_MAX_LOGGED_NAMES])
        _logger.warning("a tool returned objects without a JSON form (%s): the model reads their texts", names)
    return form


_logger = logging.getLogger("agentloop.tools")
_MAX_LOGGED_NAMES = 5


class _DeclaredType:
    """The presenter of a declared type that has a schema."""

    def __init__(self, returns: Any, *, testifies: bool) -> None:
        self.returns = returns
        self._testifies = testifies
        self._validator: SchemaValidator | None = None
        self._has_schema = True

    def __call__(self, result: Any) -> ToolResult:
        content = _content_result(result)
        if content is not None:
            return content
        try:
            value, is_json = _to_json(result, self.returns)
        except Exception:  # noqa: BLE001  # whatever the result does while it is read
            form = _form(result, self.returns)
            value, plain, is_json = form.value, form.plain, False
        else:
            plain = thaw(value)
        if mismatch := self._find_mismatch(plain, is_json=is_json):
            path, message = mismatch[0]
            answer = _testify(value) if self._testifies else f". {RAN}"
            declared = type_name(self.returns)
            raise ToolFailed(f"the tool declares to return {declared}, but at {path}: {message}{answer}", path=path)
        return ToolResult(value)

    def _find_mismatch(self, value: Any, *, is_json: bool) -> Sequence[tuple[str, str]]:
        """Return how a value does not match the declared type, as pairs of a JSON path and a message; empty if it does."""
        if self._validator is None and self._has_schema:
            try:
                self._validator = SchemaValidator(json_schema(self.returns), bounds=_UNBOUNDED)
            except ToolDefinitionError:
                # A class without a schema is still converted to JSON; only the check is left out.
                self._has_schema = False
        if self._validator is None:
            return ()
        if not self._validator.accepts(value):
            return self._validator.problems(value)
        if is_json:
            # JSON may satisfy the schema and still not be a value of the type, as the text of a date that does not exist.
            try:
                conversion.structure(value, self.returns)
            except Exception as error:  # noqa: BLE001  # described
                return conversion.problems(error)
        return ()


RAN = "The tool ran"
"""What an error about a result says in place of the result, if the tool chooses what a model sees."""


def _testify(value: JsonValue) -> str:
    """Return the end of an error about a result: the call is not to be repeated for its form."""
    return f". {RAN}, and this is what it returned: {form_text(value)}"


def _to_json(result: Any, returns: Any) -> tuple[JsonValue, bool]:
    """Return the JSON form of a result, and whether the result was JSON data already."""
    try:
        return freeze(result), True
    except NotJson:
        return conversion.to_json_data(result, returns), False


def _present_exact(result: Any, exact: Any, returns: Any, *, testifies: bool) -> ToolResult:
    # bool is a subclass of int.
    if isinstance(result, exact) and not (isinstance(result, bool) and exact is not bool):
        return ToolResult(result)
    content = _content_result(result)
    if content is None:
        answer = _testify(_form(result).value) if testifies else f". {RAN}"
        declared, kind = type_name(returns), type(result).__qualname__
        raise ToolFailed(f"the tool declares to return {declared}, but returned a {kind}{answer}")
    return content


def _content_result(result: Any) -> ToolResult | None:
    """Return a result that is a `ToolResult` or consists of parts; None for any other."""
    if isinstance(result, ToolResult):
        return result
    if isinstance(result, Text | Media):
        result = (result,)
    # A list of plain values is a value. Next to a picture, a plain text is shown as its caption, and any other value as its text.
    if not isinstance(result, list | tuple) or not any(isinstance(part, Text | Media) for part in result):
        return None
    parts = content_parts(result)
    return ToolResult(_summarize(parts), parts)


def content_parts(content: Iterable[Any]) -> list[ContentPart]:
    """Return items as parts that a model can be shown; one that is no text or medium is shown as the text of its form."""
    return [_content_part(item) for item in content]


def _content_part(item: Any) -> ContentPart:
    if isinstance(item, Text | Image | Audio | Document):
        return item
    return Text(item if isinstance(item, str) else form_text(item, _MAX_SHOWN))


_MAX_SHOWN = 100_000


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


def type_name(hint: Any) -> str:
    """Return a type as error messages name it."""
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")
