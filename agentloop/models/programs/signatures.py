"""Tools as typed Python functions: how programs name them, and how a model reads them."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from agentloop.values.json import EMPTY_OBJECT, JsonObject, format_json, thaw
from agentloop.values.schema_drafts import find_schema
from agentloop.values.tool_calls import ToolSpec

_PYTHON_NAMES = frozenset({*dir(builtins), "asyncio"})
"""The names that a program finds without a definition, and those that it is told to use."""
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_DEPTH = 4
_MAX_LITERALS = 30


def function_names(specs: Iterable[ToolSpec]) -> dict[str, str]:
    """Return the name of the function of each tool, by the name of the tool.

    It is the name of the tool, made an identifier that neither another tool nor Python has: a tool `list` is called as `list_`, so that
    a program can still use the function of Python.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    # Tools whose names are identifiers keep them, wherever they stand.
    ordered = sorted(specs, key=lambda spec: not _is_usable(spec.name))
    for spec in ordered:
        name = base = spec.name if _is_usable(spec.name) else _identifier(spec.name)
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        names[spec.name] = name
    return names


def parameter_names(spec: ToolSpec) -> Sequence[str]:
    """Return the parameters of a tool in the order of positional arguments: required ones first."""
    properties, required = _properties(spec.parameters)
    return [*[name for name in properties if name in required], *[name for name in properties if name not in required]]


def render_signatures(specs: Sequence[ToolSpec], results: Mapping[str, JsonObject] = EMPTY_OBJECT) -> str:
    """Return tools as Python functions with types and docstrings, as a model reads them.

    Args:
        specs: the tools.
        results: the JSON Schemas of their results, by their names; the results of other tools are `Any`.
    """
    functions = function_names(specs)
    return "\n\n".join([_render(spec, functions[spec.name], results.get(spec.name)) for spec in specs])


def _is_usable(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not _is_of_python(name)


def _is_of_python(name: str) -> bool:
    return iskeyword(name) or name in _PYTHON_NAMES


def _identifier(name: str) -> str:
    cleaned = re.sub(r"[^0-9A-Za-z_]", "_", name)
    if not cleaned or cleaned[0].isdigit():
        cleaned = f"tool_{cleaned}"
    return f"{cleaned}_" if _is_of_python(cleaned) else cleaned


def _properties(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
    properties, required = schema.get("properties"), schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, Sequence) else []
    return (properties if isinstance(properties, Mapping) else {}), frozenset(names)


def _render(spec: ToolSpec, function: str, result: JsonObject | None) -> str:
    types = _Types(spec.parameters, _identifier(function).title().replace("_", ""))
    properties, required = _properties(spec.parameters)
    parameters, notes = [], []
    for name in parameter_names(spec):
        schema = properties[name]
        if not _is_usable(name):
            shown = _quote(name)
            notes.append(f"    {shown}: pass it as **{{{shown}: …}}; {_one_line(types.of(schema, name))}")
            continue
        default = "" if name in required else f" = {_default(schema)}"
        parameters.append(f"{name}: {types.of(schema, name)}{default}")
        if described := _description(schema):
            notes.append(f"    {name}: {described}")
    returned = types.of_result(result)
    lines = [f"async def {function}({', '.join(parameters)}) -> {returned}:", f'    """{_one_line(spec.description)}']
    lines += ["", *notes, '    """'] if notes else []
    if not notes:
        lines[-1] += '"""'
    return "\n".join([*types.definitions, *lines])


def _default(schema: object) -> str:
    if isinstance(schema, Mapping) and "default" in schema:
        return repr(thaw(schema["default"]))
    return "..."


def _description(schema: object) -> str:
    described = schema.get("description") if isinstance(schema, Mapping) else None
    return _one_line(described) if isinstance(described, str) else ""


def _quote(name: str) -> str:
    """Return a name as a literal that does not end a docstring: in single quotes, without a plain double quote."""
    # A text with a double quote has single ones around it.
    literal = "'" + repr(f'"{name}')[2:]
    return literal.replace('"', '\\"')


def _one_line(text: str) -> str:
    # The text of a server must not end the docstring, nor a quotation mark at its end become a part of the mark behind it.
    line = " ".join(text.split()).replace('"""', "'''").replace("\\", "\\\\")
    return f'{line[:-1]}\\"' if line.endswith('"') else line


class _Types:
    """Renders the schemas of one tool as types; objects with known fields become classes before the function."""

    def __init__(self, schema: Mapping[str, Any], prefix: str) -> None:
        self.definitions: list[str] = []
        self._root = schema
        self._prefix = prefix
        self._taken: set[str] = set()

    def of(self, schema: object, name: str, depth: int = 0) -> str:
        """Return the type of a value.

        Args:
            schema: the schema of the value.
            name: the name of its field.
            depth: how deep it is nested.
        """
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return "Any"
        if isinstance(reference := schema.get("$ref"), str):
            return self.of(find_schema(self._root, reference), name, depth + 1)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, Sequence) and 0 < len(values) <= _MAX_LITERALS:
            return f"Literal[{', '.join(map(_literal, values))}]"
        options, kind = schema.get("anyOf", schema.get("oneOf")), schema.get("type")
        if options is None and isinstance(kind, Sequence) and not isinstance(kind, str):
            options = [{**schema, "type": each} for each in kind]
        if isinstance(options, Sequence):
            return self._union([self.of(option, name, depth + 1) for option in options])
        return self._of_kind(kind, schema, name, depth)

    def of_result(self, schema: JsonObject | None) -> str:
        """Return the type of what the tool returns."""
        if schema is None:
            return "Any"
        self._root = schema
        return self.of(schema, "result")

    def _of_kind(self, kind: object, schema: Mapping[str, Any], name: str, depth: int) -> str:
        if kind == "array":
            return f"list[{self.of(schema.get('items'), name, depth + 1)}]"
        if kind == "object":
            properties, required = _properties(schema)
            if not properties or not all(map(_is_usable, properties)):
                return f"dict[str, {self.of(schema.get('additionalProperties'), name, depth + 1)}]"
            return self._define(properties, required, name, depth)
        return _SCALARS.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _define(self, properties: Mapping[str, Any], required: frozenset[str], name: str, depth: int) -> str:
        base = f"{self._prefix}{_identifier(name).title().replace('_', '')}"
        title, number = base, 2
        while title in self._taken:
            title, number = f"{base}{number}", number + 1
        self._taken.add(title)
        fields = [
            f"    {field}: {rendered if field in required else f'NotRequired[{rendered}]'}"
            for field, schema in properties.items()
            for rendered in [self.of(schema, f"{name}_{field}", depth + 1)]
        ]
        self.definitions.append("\n".join([f"class {title}(TypedDict):", *fields, ""]))
        return title

    @staticmethod
    def _union(types: Sequence[str]) -> str:
        unique = list(dict.fromkeys(types))
        return " | ".join(unique) if unique and "Any" not in unique else "Any"


def _literal(value: object) -> str:
    return repr(thaw(value)) if value is None or isinstance(value, bool | int | str) else format_json(value).decode()
