"""What a function's signature and docstring say to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from attrs import field, frozen

from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.tools.schema_builder import Schema, described
from agentloop.tools.signature_reader import Injected, SignatureReader
from agentloop.tools.validation import invalid_arguments
from agentloop.values.json_value import JsonObject, freeze_object

_AS_IT_IS = (Any, object, None, type(None))


@frozen(eq=False)
class Signature:
    """A function, read as a tool.

    Attributes:
        name: the function's name, or the name given for it.
        injected: the parameters that the program gives, with the class of each.
        hints: the types of the parameters that a model gives.
        returns: the type of the result.
    """

    name: str
    injected: Mapping[str, Injected]
    hints: Mapping[str, Any]
    returns: Any
    _documentation: str = field(repr=False)
    _description: str = field(repr=False)
    _schema: Schema = field(repr=False)
    _converted: Mapping[str, Any] = field(init=False, repr=False)

    @_converted.default
    def _types_to_convert(self) -> Mapping[str, Any]:
        return {name: hint for name, hint in self.hints.items() if hint not in _AS_IT_IS}

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, description: str = "", name: str = "", documentation: str | None = None
    ) -> Signature:
        """Read a function.

        Args:
            function: the function; a bound method is read without its `self`.
            description: a description in place of the docstring's, which may then be missing.
            name: a name in place of the function's own.
            documentation: a docstring in place of the function's own.

        Raises:
            ToolDefinitionError: when anything a model needs is missing or cannot be told in JSON; lists all problems.
        """
        reader = SignatureReader(function, described=bool(description), documentation=documentation)
        fields, injected, returns = reader.read()
        if reader.problems:
            raise ToolDefinitionError(f"{reader.label} cannot be a tool: {'; '.join(reader.problems)}")
        hints = {one.name: one.hint for one in fields}
        return cls(name or reader.name, injected, hints, returns, reader.documentation, description, reader.schema)

    @cached_property
    def documented(self) -> tuple[str, JsonObject]:
        """The description and the JSON Schema of the parameters that a model gives; the docstring is parsed when asked."""
        from docstring_parser import parse

        parsed = parse(self._documentation)
        prose = "\n\n".join(text.strip() for text in (parsed.short_description, parsed.long_description) if text)
        texts = {entry.arg_name: entry.description for entry in parsed.params}
        properties = {
            name: described(schema, self.hints[name], texts.get(name))
            for name, schema in self._schema["properties"].items()
        }
        return self._description or prose, freeze_object({**self._schema, "properties": properties})

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Structure arguments that satisfy the schema into the annotated types.

        Raises:
            InvalidArguments: when one is injected by the program, or does not fit its type after all; names the path.
        """
        for name in self.injected:
            if name in arguments:
                raise InvalidArguments(
                    f"{name!r} is given by the program, not by the caller: leave it out", path=f"$.{name}"
                )
        prepared = dict(arguments)
        for name, hint in self._converted.items():
            if name in prepared:
                from agentloop.tools import conversion

                try:
                    prepared[name] = conversion.structure(prepared[name], hint)
                except Exception as error:
                    raise invalid_arguments(conversion.problems(error, f"$.{name}")) from error
        return prepared
