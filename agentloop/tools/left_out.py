"""Parameters that a call leaves out: their defaults where a schema requires them, and null in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import define

from agentloop.values.json import thaw
from agentloop.values.schema_drafts import find_schema

DEFAULT_FILLED: Final = "default of the schema in place of a required value that was left out"
NULL_LEFT_OUT: Final = "null read as a value that is left out"

_MAX_STEPS: Final = 20_000
"""The schemas that are looked at for one call: a schema may refer to itself."""
_MAX_DEPTH: Final = 32


def complete_required(arguments: dict[str, Any], schema: Mapping[str, Any], *, reads_null: bool) -> list[str]:
    """Give the parameters that a call leaves out the defaults of the schema, where the schema requires them.

    Some generators of schemas require each parameter that a program has in the end, also one with a default. Zod does so, in
    which many servers of MCP are written. Objects inside of the arguments are completed as well, if they have one form.

    Args:
        arguments: the arguments, as plain JSON data; they are changed.
        schema: a valid schema.
        reads_null: whether null is a parameter that is left out, where the schema does not take null.

    Returns:
        The repairs; empty if nothing was changed.
    """
    return list(_Completion(schema, reads_null).complete(arguments))


@define(eq=False)
class _Completion:
    """The completion of the arguments of one call.

    Attributes:
        root: the schema; references lead to places in it.
        reads_null: whether null is a parameter that is left out.
    """

    root: Mapping[str, Any]
    reads_null: bool
    _steps: int = 0

    def complete(self, arguments: dict[str, Any]) -> Iterator[str]:
        pending: list[tuple[Any, Any]] = [(arguments, self.root)]
        while pending:
            value, schema = pending.pop()
            for form in self._forms(schema):
                if isinstance(value, dict):
                    properties = form.get("properties", {})
                    yield from self._complete_object(value, properties, form.get("required", ()))
                    pending += [(item, properties[name]) for name, item in value.items() if name in properties]
                elif isinstance(value, list) and "items" in form:
                    pending += [(item, form["items"]) for item in value]

    def _complete_object(self, value: dict[str, Any], properties: Mapping[str, Any], required: Any) -> Iterator[str]:
        for name, schema in properties.items():
            is_null = self.reads_null and value.get(name, 0) is None and not self._takes_null(schema)
            if is_null and name not in required:
                del value[name]
                yield NULL_LEFT_OUT
            elif name in required and (is_null or name not in value):
                for form in self._forms(schema):
                    if "default" in form:
                        value[name] = thaw(form["default"])
                        yield DEFAULT_FILLED
                        break

    def _forms(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that all hold where a schema holds for a value that is not null, itself first."""
        pending = [schema]
        while pending and self._steps < _MAX_STEPS:
            self._steps += 1
            form = pending.pop(0)
            if isinstance(form, Mapping):
                yield form
                pending += self._also(form)
                for union in ("anyOf", "oneOf"):
                    others = [branch for branch in form.get(union, ()) if branch != {"type": "null"}]
                    pending += others if len(others) == 1 else ()

    def _also(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return the schemas that a schema adds to its own keywords."""
        referred = [find_schema(self.root, str(schema["$ref"]))] if "$ref" in schema else []
        return [*referred, *schema.get("allOf", ())]

    def _takes_null(self, schema: Any, depth: int = 0) -> bool:
        """Return whether a schema may take null; true where it is not plain that it does not."""
        self._steps += 1
        if self._steps >= _MAX_STEPS or depth > _MAX_DEPTH or not isinstance(schema, Mapping):
            return schema is not False
        kinds = schema.get("type", "null")
        if "null" not in ([kinds] if isinstance(kinds, str) else kinds):
            return False
        if None not in schema.get("enum", (None,)) or schema.get("const") is not None:
            return False
        unions = [schema[union] for union in ("anyOf", "oneOf") if union in schema]
        if not all(any(self._takes_null(branch, depth + 1) for branch in union) for union in unions):
            return False
        return all(self._takes_null(each, depth + 1) for each in self._also(schema))
