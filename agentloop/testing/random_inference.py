"""A model that calls every tool with random arguments, which satisfy its schema; the same ones for the same seed."""

from __future__ import annotations

import string
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from attrs import frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.errors import ConfigurationError
from agentloop.tools.patterns import ops, parser  # type: ignore[attr-defined]  # `re` has no types for them
from agentloop.tools.validation import SchemaValidator
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse, Usage
from agentloop.values.json import JsonObject, format_json, thaw
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Text
from agentloop.values.schema_drafts import find_schema
from agentloop.values.tool_calls import ToolCall, ToolSpec

MakeArguments = Callable[[Random], Mapping[str, Any]]
"""Makes the arguments of a call from a source of random numbers."""

_ATTEMPTS = 50
_USAGE = Usage(10, 5, 0, 0, 0)


class RandomInference(CanInfer):
    """A model that calls every tool that it is offered, with arguments that satisfy the schema, and then answers.

    What it does depends on the seed and on the conversation alone: each execution in which the tools give equal results gets equal
    calls, also one that is resumed.

    Args:
        seed: the seed.
        calls_per_tool: how often each tool is called.
        max_batch: the maximum number of calls in one response.
        invalid: how probable a call is whose arguments do not satisfy the schema, from 0 to 1; such calls come in addition.
        arguments: makes the arguments of calls, by the name of the tool, where a schema does not say enough.
        answer: the text of the answer, where no format is required.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        calls_per_tool: int = 1,
        max_batch: int = 3,
        invalid: float = 0.0,
        arguments: Mapping[str, MakeArguments] | None = None,
        answer: str = "done",
    ) -> None:
        if calls_per_tool < 1 or max_batch < 1:
            raise ConfigurationError("calls_per_tool and max_batch are 1 or more")
        self._seed = seed
        self._calls_per_tool = calls_per_tool
        self._max_batch = max_batch
        self._invalid = invalid
        self._arguments = arguments or {}
        self._answer = answer

    def __repr__(self) -> str:
        return f"RandomInference(seed={self._seed})"

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next calls, or the answer.

        Raises:
            ConfigurationError: no arguments were found that satisfy the schema of a tool; names the tool.
        """
        # What was called for the present question; earlier ones had calls of their own.
        asked = max([place for place, message in enumerate(request.messages) if message.role == "user"], default=-1)
        called = [exchange.call for message in request.messages[asked + 1 :] for exchange in message.exchanges]
        random = Random(f"{self._seed}/{len(called)}/{len(request.messages)}")  # noqa: S311  # not for secrets
        counts = Counter(call.name for call in called if call.id.endswith("-valid"))
        allowed = [tool for tool in request.tools if request.tool_choice.allows(tool.name)]
        due = [tool for tool in allowed for _ in range(self._calls_per_tool - counts[tool.name])]
        if not due:
            return InferenceResponse(
                (Text(self._final_text(request, random)),), FinishReason.STOP, _USAGE, model="random"
            )
        random.shuffle(due)
        parts: list[ResponsePart] = []
        for tool in due[: 1 if request.parallel_tool_calls is False else random.randint(1, self._max_batch)]:
            prefix = f"r{len(called) + len(parts)}"
            if random.random() < self._invalid and request.parallel_tool_calls is not False:
                parts.append(ToolCall(f"{prefix}-invalid", tool.name, random.choice(_INVALID)))
            text = format_json(self._arguments_for(tool, random)).decode()
            parts.append(ToolCall(f"{prefix}-valid", tool.name, text))
        return InferenceResponse(tuple(parts), FinishReason.TOOL_CALLS, _USAGE, model="random")

    def _arguments_for(self, tool: ToolSpec, random: Random) -> Mapping[str, Any]:
        make = self._arguments.get(tool.name)
        if make is not None:
            return make(random)
        try:
            found: Mapping[str, Any] = sample(tool.parameters, random)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"no arguments were found for the tool {tool.name!r}: {error}; pass arguments={{{tool.name!r}: …}}"
            ) from error
        return found

    def _final_text(self, request: InferenceRequest, random: Random) -> str:
        required = request.response_format
        if required is None:
            return self._answer
        return format_json({} if required.schema is None else sample(required.schema, random)).decode()


_INVALID = ("", "{", "[]", "null", '{"no such argument": 1}', '"text"', "NaN")


def sample(schema: JsonObject, random: Random) -> Any:
    """Return random data that satisfies a JSON Schema.

    Args:
        schema: the schema.
        random: the source of random numbers.

    Raises:
        ConfigurationError: none was found, because the schema is contradictory or uses keywords that this function cannot aim at,
            such as `not`.
    """
    plain = thaw(schema)
    sampler, validator = _Sampler(plain, random), SchemaValidator(plain)
    for _ in range(_ATTEMPTS):
        data = sampler.sample(plain)
        if validator.accepts(data):
            return data
    raise ConfigurationError(f"none of {_ATTEMPTS} random values satisfies the schema")


_MAX_DEPTH = 5
_MAX_ITEMS = 3
_LETTERS = string.ascii_letters + string.digits + " äß☃"
_FORMATS: Mapping[str, str] = {
    "date": "2026-02-28",
    "time": "12:30:00Z",
    "date-time": "2026-02-28T12:30:00Z",
    "duration": "PT90S",
    "email": "ada@example.org",
    "hostname": "example.org",
    "ipv4": "192.0.2.7",
    "ipv6": "2001:db8::7",
    "uri": "https://example.org/a",
    "uuid": "2f1e8a52-6a55-4d6f-9d0c-3f3f0d7f9a10",
}


@frozen
class _Sampler:
    """Draws data that probably satisfies a schema.

    Attributes:
        root: the whole schema, for references.
        random: the source of random numbers.
    """

    root: Any
    random: Random

    def sample(self, schema: Any, depth: int = 0) -> Any:
        """Return data for a schema."""
        if not isinstance(schema, dict):
            return None
        schema = self._without_combinations(schema, depth)
        if "const" in schema:
            return schema["const"]
        return self.random.choice(schema["enum"]) if "enum" in schema else self._by_type(schema, depth)

    def _without_combinations(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        schema = self._merged(self._resolved(schema))
        for keyword in ("anyOf", "oneOf"):
            if branches := schema.get(keyword):
                # The last branch is often the one that ends a recursion.
                branch = self.random.choice(branches) if depth < _MAX_DEPTH else branches[-1]
                others = _without(schema, keyword)
                return self._without_combinations({**others, **self._resolved(branch)}, depth + 1)
        return schema

    def _by_type(self, schema: Any, depth: int) -> Any:
        kind = schema.get("type") or _implied_type(schema)
        if isinstance(kind, list):
            kind = self.random.choice(kind)
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number":
                return self._number(schema, is_whole=kind == "integer")
            case "boolean":
                return self.random.random() < 0.5  # noqa: PLR2004  # as often as not
            case "null":
                return None
            case _:
                return self._text(schema)

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        required = set(schema.get("required", ()))
        share = 0.0 if depth >= _MAX_DEPTH else 0.5
        names = [name for name in schema.get("properties", {}) if name in required or self.random.random() < share]
        data = {name: self.sample(schema["properties"][name], depth + 1) for name in names}
        others = schema.get("additionalProperties", True)
        for name in required.difference(data):
            data[name] = self.sample(others if isinstance(others, dict) else {"type": "string"}, depth + 1)
        for number in range(schema.get("minProperties", 0) - len(data)):
            data[f"key{number}"] = self.sample(others if isinstance(others, dict) else {"type": "string"}, depth + 1)
        return data

    def _array(self, schema: Any, depth: int) -> list[Any]:
        first = [self.sample(item, depth + 1) for item in schema.get("prefixItems", ())]
        items = schema.get("items", True)
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", least + (0 if depth >= _MAX_DEPTH else _MAX_ITEMS))
        count = 0 if items is False else max(self.random.randint(least, max(least, most)) - len(first), 0)
        return [*first, *[self.sample(items, depth + 1) for _ in range(count)]]

    def _number(self, schema: Any, *, is_whole: bool) -> float:
        step = schema.get("multipleOf", 1 if is_whole else 0.25)
        low, high = schema.get("minimum"), schema.get("maximum")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        least = low if low is not None else above if above is not None else min(-10, high if high is not None else -10)
        most = high if high is not None else below if below is not None else least + 100 * step
        value = -(-least // step) * step + step * self.random.randint(0, max(int((most - least) // step), 0))
        return int(value) if is_whole else float(value)

    def _text(self, schema: Any) -> str:
        if "pattern" in schema:
            return _matching(schema["pattern"], self.random)
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        if schema.get("contentEncoding") == "base64":
            return b64encode(self.random.randbytes(self.random.randint(0, 8))).decode()
        least = schema.get("minLength", 0)
        most = schema.get("maxLength", least + 8)
        return "".join(self.random.choices(_LETTERS, k=self.random.randint(least, max(least, most))))

    # --- combined schemas -------------------------------------------------------------------------------------------

    def _find(self, reference: str) -> Any:
        found = find_schema(self.root, reference)
        if found is None:
            raise KeyError(reference)
        return found if isinstance(found, dict) else {}

    def _resolved(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return {}
        return (
            self._resolved({**self._find(schema["$ref"]), **_without(schema, "$ref")}) if "$ref" in schema else schema
        )

    def _merged(self, schema: Any) -> Any:
        merged = _without(schema, "allOf")
        for part in map(self._resolved, schema.get("allOf", ())):
            properties = {**merged.get("properties", {}), **part.get("properties", {})}
            required = [*merged.get("required", ()), *part.get("required", ())]
            merged = {**merged, **part, "properties": properties, "required": required}
        return merged


def _without(schema: Any, keyword: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != keyword}


def _implied_type(schema: Any) -> str:
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


# --- regular expressions ---------------------------------------------------------------------------------------------

_CATEGORIES = {
    ops.CATEGORY_DIGIT: string.digits,
    ops.CATEGORY_SPACE: " ",
    ops.CATEGORY_WORD: string.ascii_letters + string.digits + "_",
}


def _matching(pattern: str, random: Random) -> str:
    """Return a text that probably matches a regular expression."""
    try:
        return "".join(_drawn(node, random) for node in parser.parse(pattern))
    except (ops.error, KeyError, IndexError) as error:
        raise ConfigurationError(f"no text was found for the pattern {pattern!r:.100}") from error


def _drawn(node: Any, random: Random) -> str:
    """Return a text for one part of a parsed expression.

    Raises:
        KeyError: the part is of another kind.
    """
    kind, value = node
    if kind in {ops.LITERAL, ops.ANY, ops.IN}:
        return chr(value) if kind is ops.LITERAL else random.choice(_characters(value or [(ops.NEGATE, None)]))
    if kind in {ops.BRANCH, ops.SUBPATTERN, ops.AT}:
        parts = random.choice(value[1]) if kind is ops.BRANCH else value[3] if kind is ops.SUBPATTERN else ()
        return "".join(_drawn(part, random) for part in parts)
    if kind in {ops.MAX_REPEAT, ops.MIN_REPEAT}:
        least, most, inner = value
        count = random.randint(least, min(int(most), least + _MAX_ITEMS))
        return "".join(_drawn(part, random) for _ in range(count) for part in inner)
    raise KeyError(str(kind))


def _characters(items: Sequence[Any]) -> Sequence[str]:
    found: set[str] = set()
    for kind, value in items:
        if kind is ops.LITERAL:
            found.add(chr(value))
        elif kind is ops.RANGE:
            found |= {chr(code) for code in range(value[0], min(value[1], value[0] + 255) + 1)}
        elif kind is ops.CATEGORY:
            found |= set(_CATEGORIES[value])
    if items[0][0] is ops.NEGATE:
        return sorted(set(string.ascii_letters + string.digits + " ") - found)
    return sorted(found)
