"""Measures the check of arguments against a schema that is not of simple types alone: a typical call, and large ones.

python benchmarks/arguments.py
"""

from __future__ import annotations

from importlib.util import find_spec
from timeit import repeat
from typing import Any

from measuring import Row, show

from agentloop.tools import SchemaValidator

LINE = {
    "type": "object",
    "properties": {
        "item": {"type": "string"},
        "count": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["piece", "kg"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["item", "count"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}}},
    "required": ["lines"],
    "$defs": {"Line": LINE},
}


def order(lines: int) -> dict[str, Any]:
    """Return the arguments of an order."""
    return {"lines": [{"item": "bolt", "count": number + 1, "unit": "kg", "note": None} for number in range(lines)]}


def check(name: str, data: dict[str, Any]) -> Row:
    """Measure the check of valid or invalid arguments."""
    validator = SchemaValidator(SCHEMA)
    is_valid = not validator.problems(data)
    number = 200 if len(data["lines"]) < 10 else 10
    microseconds = min(repeat(lambda: validator.problems(data), number=number, repeat=5)) / number * 1e6
    return Row(f"{name}, {'valid' if is_valid else 'invalid'}", f"{microseconds:9.1f} µs", "-", within=True)


if __name__ == "__main__":
    rows = [check(f"{count:,} lines" if count > 1 else "1 line", order(count)) for count in (1, 10, 100, 250)]
    rows.append(check("1 line", {"lines": [{"item": "bolt", "count": 0}]}))
    title = "jsonschema-rs, then jsonschema" if find_spec("jsonschema_rs") else "jsonschema"
    show(f"a check of arguments by {title}", rows)
