"""The arguments of a call, fitted to the schema of its tool: coerced where that loses nothing, completed with defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from itertools import islice
from math import isfinite
from typing import Any, Final, TypeAlias

from attrs import evolve, frozen

from agentloop._shielding import compute_in_thread
from agentloop.contracts.tool import CanDescribeDefaults, CanPrepareArguments, Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import InvalidArguments, MalformedArguments, NotJson, ToolDefinitionError
from agentloop.tools.defaults import as_default
from agentloop.tools.validation import Misfits, SchemaValidator, invalid_arguments, validator_of, value_at
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.json import (
    EMPTY_OBJECT,
    MAX_DEPTH,
    JsonObject,
    duplicate_key,
    format_json,
    freeze,
    freeze_object,
    parse_json,
    thaw,
)
from agentloop.values.reprs import ShownByField
from agentloop.values.tool_calls import JSON_FROM_TEXT, ToolCall, ToolSpec, parse_arguments, repair_arguments

NUMBER_FROM_TEXT: Final = "text read as number"
BOOLEAN_FROM_TEXT: Final = "text read as boolean"
NULL_FROM_TEXT: Final = "text read as null"
LIST_FROM_VALUE: Final = "value put into a list"
DIGITS_KEPT: Final = "number written as text, with all of its digits"
INTEGER_KEPT: Final = "number written as integer, with all of its digits"

Arguments: TypeAlias = dict[str, Any]
_Reading: TypeAlias = tuple[Any, str]
"""A value, and the repair that it takes."""


def fit_call(
    call: ToolCall, spec: ToolSpec, bounds: Bounds = DEFAULT_BOUNDS, *, strict: bool = False
) -> tuple[ToolCall, Arguments]:
    """Parse and validate the arguments of a call, and coerce those that do not satisfy the schema.

    A value that satisfies the schema as it is stays as it is. Another one is coerced if exactly one reading of it satisfies the
    schema and no information is lost: a number, `true`, `false` or `null` in a text, JSON in a text where an object or an array
    is required, and a single value where an array is required. Nothing is coerced below `anyOf` and `oneOf`. The coerced
    arguments are validated as a whole. Arguments that are no JSON are read if they are a JSON object in a JSON text, or if only
    the escapes of line breaks, tabs or other control characters are missing. A number with more digits than a float holds is
    written in full, also for a strict tool: as an integer where the schema takes no other number, and as text where it takes the
    text of a number and no other text, such as that of a `Decimal`.

    Args:
        call: the call.
        spec: the tool; nothing is coerced if it is `strict`.
        bounds: the bounds on the check. All checks of a call together take at most four times the steps of one.
        strict: whether nothing is coerced, whatever the tool.

    Returns:
        The call as it runs, with the coerced arguments and their repairs, or the call itself; and its arguments.

    Raises:
        MalformedArguments: the arguments are not a JSON object.
        InvalidArguments: they do not satisfy the schema; names the problems of the arguments as they were written.
    """
    is_strict = strict or spec.strict
    ahead = _AHEAD.get().get((call.name, call.arguments_json, is_strict))
    if ahead is not None and ahead.spec is spec and ahead.bounds == bounds:
        return ahead.of(call)
    validator = validator_of(spec)
    text, repairs = call.arguments_json, []
    try:
        arguments = parse_arguments(text)
    except MalformedArguments:
        repaired = None if is_strict else repair_arguments(text)
        if repaired is None:
            raise
        text, repairs = repaired[0], [repaired[1]]
        arguments = parse_arguments(text)
    problems = validator.problems(arguments, bounds)
    if problems:
        coerced = None if is_strict else coerce_arguments(validator, parse_arguments(text), bounds)
        if coerced is None:
            raise invalid_arguments(problems)
        arguments = coerced[0]
        repairs += coerced[1]
    repairs += _keep_digits(validator, arguments, text, bounds)
    if not repairs:
        return call, arguments
    # What was read from JSON in a text has its numbers only now.
    repairs += _keep_digits(validator, arguments, _format(arguments), bounds)
    # Parsed from the text of the call that runs: what is shown and recorded is what the tool gets.
    text = _format(arguments)
    known = (*call.repairs, *repairs)
    return evolve(call, arguments_json=text, repairs=tuple(dict.fromkeys(known))), parse_arguments(text)


def _format(arguments: Arguments) -> str:
    return format_json(arguments).decode("utf-8", "surrogatepass")


# --- calls that take long to fit ------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class _Fitted(ShownByField):
    """What `fit_call` found for a call.

    Attributes:
        spec: the tool.
        bounds: the bounds on the check.
        text: the arguments of the call as it runs.
        repairs: the repairs of the call as it runs; None if the call runs as it is.
        error: why it does not run.
    """

    spec: ToolSpec
    bounds: Bounds
    text: str = ""
    repairs: tuple[str, ...] | None = None
    error: MalformedArguments | InvalidArguments | ToolDefinitionError | None = None

    @classmethod
    def find(cls, call: ToolCall, spec: ToolSpec, bounds: Bounds, *, strict: bool) -> _Fitted:
        try:
            fitted, _ = fit_call(call, spec, bounds, strict=strict)
        except (MalformedArguments, InvalidArguments, ToolDefinitionError) as error:
            return cls(spec, bounds, error=error)
        return cls(spec, bounds, fitted.arguments_json, None if fitted is call else fitted.repairs)

    def of(self, call: ToolCall) -> tuple[ToolCall, Arguments]:
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.repairs is not None:
            call = evolve(call, arguments_json=self.text, repairs=self.repairs)
        return call, parse_arguments(self.text)


_Key: TypeAlias = tuple[str, str, bool]
"""The name and the arguments of a call, and whether nothing is coerced."""

_AHEAD: ContextVar[Mapping[_Key, _Fitted]] = ContextVar("agentloop_fitted_calls", default={})  # noqa: B039  # never changed

_LONG: Final = 10_000
"""The steps from which on the calls of an answer are fitted in a thread; in the event loop, they would take about 30 ms."""
_CHARACTERS_PER_STEP: Final = 64
_SCHEMA_BYTES_PER_STEP: Final = 32


async def fit_ahead(calls: Sequence[ToolCall], tools: Tools, bounds: Bounds = DEFAULT_BOUNDS) -> None:
    """Fit the calls of an answer in a thread if that may delay other tasks; `fit_call` then returns what was found.

    Args:
        calls: the calls.
        tools: the tools.
        bounds: the bounds on the check.
    """
    specs = [(call, spec) for call in calls if (spec := tools.spec(call.name)) is not None]
    is_long = sum([_steps_to_fit(call, spec) for call, spec in specs]) > _LONG
    if is_long or _AHEAD.get():  # what was found for an earlier answer is dropped
        _AHEAD.set(await compute_in_thread(_fit_all, specs, bounds) if is_long else {})


def _fit_all(calls: Sequence[tuple[ToolCall, ToolSpec]], bounds: Bounds) -> Mapping[_Key, _Fitted]:
    found: dict[_Key, _Fitted] = {}
    for call, spec in calls:
        fitted = found[call.name, call.arguments_json, spec.strict] = _Fitted.find(call, spec, bounds, strict=False)
        text = call.arguments_json if fitted.error is not None else fitted.text
        # When it runs, nothing is coerced any more.
        if (call.name, text, True) not in found:
            again = call if text == call.arguments_json else call.with_arguments_json(text)
            found[call.name, text, True] = _Fitted.find(again, spec, bounds, strict=True)
    return found


def _steps_to_fit(call: ToolCall, spec: ToolSpec) -> float:
    """Return a number of steps that are enough to fit a call, without a look at its arguments."""
    text = call.arguments_json
    values = 1 + sum(map(text.count, ",[{"))
    per_value, per_check, per_character = spec.encoded("steps to fit a call", _steps_of_schema)
    return per_check + values * per_value + len(text) * (1 + per_character) / _CHARACTERS_PER_STEP


def _steps_of_schema(spec: ToolSpec) -> tuple[float, float, float]:
    """Return the steps for each value, for each check, and for 64 characters."""
    try:
        is_flat = validator_of(spec).is_flat
    except ToolDefinitionError:  # the executor reports it
        is_flat = True
    if is_flat:
        return 0.0, 0.0, 0.0
    schema = format_json(spec.parameters)
    # Each reference may lead to all of the schema.
    subschemas, references = schema.count(b"{"), schema.count(b'"$ref"') + schema.count(b'"$dynamicRef"')
    return subschemas * (1.0 + references), len(schema) / _SCHEMA_BYTES_PER_STEP, 4.0 * schema.count(b"attern")


# --- coercion -------------------------------------------------------------------------------------------------------

_MAX_ROUNDS: Final = 8
"""Each round reads one level of JSON in texts, or one value of a new list."""


def coerce_arguments(
    validator: SchemaValidator, arguments: Arguments, bounds: Bounds
) -> tuple[Arguments, list[str]] | None:
    """Return arguments that satisfy the schema, and the repairs that it took; None if there is not exactly one way.

    Args:
        validator: the schema.
        arguments: arguments that do not satisfy it; they are changed.
        bounds: the bounds on all checks together.
    """
    repairs: list[str] = []
    steps = 0.0
    for _ in range(_MAX_ROUNDS):
        misfits = validator.misfits(arguments, bounds, steps)
        if misfits is None:
            return None
        if misfits.is_valid:
            return arguments, repairs
        known = len(repairs)
        repairs += _coerce_places(arguments, misfits)
        # Problems of other kinds may follow from the types, so only the lack of progress ends the search.
        if len(repairs) == known:
            return None
        steps = misfits.steps
    return None


def _coerce_places(arguments: Arguments, misfits: Misfits) -> Iterator[str]:
    """Coerce the values of wrong types that have one reading, and yield the repairs."""
    changed: set[tuple[str | int, ...]] = set()
    for path in sorted(misfits.places, key=len):
        if any(path[:length] in changed for length in range(len(path))):
            continue  # the value around it has changed
        parent: Any = arguments
        for step in path[:-1]:
            parent = parent[step]
        readings = list(_readings(parent[path[-1]], misfits.places[path], is_item=isinstance(path[-1], int)))
        if len(readings) == 1:
            parent[path[-1]], repair = readings[0]
            changed.add(path)
            yield repair


def _readings(value: Any, types: frozenset[str], *, is_item: bool) -> Iterator[_Reading]:
    """Yield what a value may mean where these types are required.

    Args:
        value: a value of another type.
        types: the JSON types; `number` comes with `integer`.
        is_item: whether the value is an item of an array.
    """
    container = _read_container(value) if isinstance(value, str) else None
    if isinstance(value, str):
        yield from _literals(value, types)
        if isinstance(container, dict) and "object" in types:
            yield container, JSON_FROM_TEXT
        if isinstance(container, list) and "array" in types:
            yield container, JSON_FROM_TEXT
    # A list of values in a list of lists may be one item or many.
    if "array" in types and not is_item:
        if isinstance(container, dict):
            yield [container], LIST_FROM_VALUE
        elif _is_single(value):
            yield [value], LIST_FROM_VALUE


def _literals(text: str, types: frozenset[str]) -> Iterator[_Reading]:
    bare = text.strip(_JSON_SPACE)
    if "integer" in types:
        number = read_number(bare, is_integer="number" not in types)
        if number is not None:
            yield number, NUMBER_FROM_TEXT
    if "boolean" in types and bare.lower() in {"true", "false"}:
        yield bare.lower() == "true", BOOLEAN_FROM_TEXT
    if "null" in types and bare in {"null", "None"}:
        yield None, NULL_FROM_TEXT


_JSON_SPACE: Final = " \t\r\n"
# Decimal raises for exponents of about 19 digits.
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,9})?")
_MAX_NUMBER_LENGTH: Final = 1_000  # a number is read in time quadratic in its length


def read_number(text: str, *, is_integer: bool) -> int | float | None:
    """Return the number that a text is in JSON; None if it is none, or if the number is not exactly that.

    Args:
        text: the text.
        is_integer: whether an integer is required, in whichever notation: `3`, `3.0` or `3e0`.
    """
    if len(text) > _MAX_NUMBER_LENGTH or not _NUMBER.fullmatch(text):
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    number = float(text)
    # The exact value of infinity or of a tiny number would have as many digits as its exponent says.
    if not isfinite(number):
        return None
    exact = Decimal(text)
    if is_integer:
        return int(number) if number.is_integer() and exact == int(number) else None
    return number if exact == Decimal(repr(number)) else None


_BRACKETS: Final = ("{", "[")


def _read_container(text: str) -> Any:
    """Return the object or array that a text is in JSON; None for another text, or if a key occurs twice."""
    if not text.lstrip(_JSON_SPACE).startswith(_BRACKETS):
        return None
    try:
        container = parse_json(text)
        if duplicate_key(text) is not None:
            return None
        if text.count("{") + text.count("[") > MAX_DEPTH:
            freeze(container)
    except (ValueError, RecursionError, NotJson):
        return None
    return container


_SEPARATORS: Final = re.compile(r"[,;|\t\n\v\f\r\x85\u2028\u2029،؛、，；｜]")  # noqa: RUF001  # those of other scripts, too


def _is_single(value: Any) -> bool:
    """Whether a value is one item for certain: null may stand for no list, and a text may enumerate several items."""
    if not isinstance(value, str):
        return value is not None and not isinstance(value, list)
    text = value.strip()
    return bool(text) and not text.startswith(_BRACKETS) and not _SEPARATORS.search(text)


# --- digits ---------------------------------------------------------------------------------------------------------

# A float holds any 15 digits, and more of some numbers.
_LONG_NUMBER: Final = re.compile(r"[0-9][0-9.]{15}|[0-9][eE][-+]?[0-9]")
_MAX_INTEGER_DIGITS: Final = 400  # a float has at most 309


class _Digits(str):
    """A number with a fraction or an exponent, as it is written in JSON."""

    __slots__ = ()


_exact_decoder = json.JSONDecoder(parse_float=_Digits)


def _keep_digits(validator: SchemaValidator, arguments: Arguments, text: str, bounds: Bounds) -> Iterator[str]:
    """Write numbers that a float does not hold in another way where the schema takes that, and yield the repairs.

    Args:
        validator: the schema.
        arguments: arguments that satisfy it; they are changed.
        text: the text of which they were read.
        bounds: the bounds on all checks together.
    """
    if _LONG_NUMBER.search(text) is None:
        return
    numbers = list(islice(_long_numbers(_exact_decoder.decode(text)), _MAX_LONG_NUMBERS + 1))
    if len(numbers) > _MAX_LONG_NUMBERS:  # too few steps would be left for each
        return
    share = evolve(bounds, schema_steps=bounds.schema_steps / max(_CHECKS_PER_NUMBER * len(numbers), 1))
    for path, digits in numbers:
        try:
            parent: Any = value_at(arguments, path[:-1])
            number = parent[path[-1]]
        except (LookupError, TypeError):
            continue  # what is around it has been coerced
        if type(number) is not float:
            continue
        for other, exact, repair in _ways_to_write(digits):
            # A schema that takes others of the kind says nothing about what this one would mean, or can do without its digits.
            parent[path[-1]] = other
            takes_any = validator.accepts(arguments, share)
            parent[path[-1]] = exact
            if not takes_any and validator.accepts(arguments, share):
                yield repair
                break
            parent[path[-1]] = number


_CHECKS_PER_NUMBER: Final = 4
_MAX_LONG_NUMBERS: Final = 1_000


def _ways_to_write(digits: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield what keeps all digits of a number: another value of its kind, the value, and the repair."""
    if len(digits) <= _MAX_INTEGER_DIGITS and _NUMBER.fullmatch(digits):
        exact = Decimal(digits)
        if exact == exact.to_integral_value():
            yield 0.5, int(exact), INTEGER_KEPT
    yield "no number", digits, DIGITS_KEPT


def _long_numbers(data: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the numbers that a float does not hold, each with its path."""
    pending: list[tuple[tuple[str | int, ...], Any]] = [((), data)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            pending += [((*path, key), item) for key, item in pairs]
        elif type(value) is _Digits and _is_long(value):
            yield path, str(value)


def _is_long(digits: str) -> bool:
    # In tens, 1e23 is a float, but the float is another integer.
    number = read_number(digits, is_integer=False)
    return number is None or (float(number).is_integer() and read_number(digits, is_integer=True) is None)


# --- defaults -------------------------------------------------------------------------------------------------------


def prepare_arguments(tool: Tool, spec: ToolSpec, arguments: Arguments) -> Mapping[str, Any]:
    """Return arguments that satisfy the schema as the tool takes them.

    A tool that prepares its arguments, such as a function, has its own defaults, and so has a tool of another program. Other
    tools get the defaults of their schema.

    Args:
        tool: the tool.
        spec: its definition.
        arguments: the arguments.

    Raises:
        InvalidArguments: a value does not fit the type that the tool declares.
    """
    if isinstance(tool, CanPrepareArguments):
        return tool.prepare(arguments)
    return arguments if spec.definition else with_defaults(spec, arguments)


def defaults_of_call(tool: Tool, spec: ToolSpec, call: ToolCall) -> JsonObject:
    """Return the values that a tool gives to what a call leaves out, by path, as in `PendingCall.defaults`.

    Args:
        tool: the tool.
        spec: its definition.
        call: the call. Arguments that are no JSON object never reach the tool, and have no defaults.
    """
    try:
        return describe_defaults(tool, spec, call.arguments)
    except MalformedArguments:
        return EMPTY_OBJECT
    except Exception as error:  # noqa: BLE001  # of the tool's own code; the person who decides sees that they are not known
        return freeze_object({"defaults": {"unknown": f"{type(error).__name__}: {error!s:.200}"}})


def describe_defaults(tool: Tool, spec: ToolSpec, arguments: Mapping[str, Any]) -> JsonObject:
    """Return the values that a tool gives to what arguments leave out, by path.

    Of a tool of another program these are the defaults that its schema declares.

    Args:
        tool: the tool.
        spec: its definition.
        arguments: the arguments, which satisfy the schema.

    Raises:
        Exception: any error of the tool's own code.
    """
    if isinstance(tool, CanDescribeDefaults):
        return tool.describe_defaults(arguments)
    plain: Arguments = thaw(freeze(arguments))
    if spec.definition and not isinstance(tool, CanPrepareArguments):
        completed: Mapping[str, Any] = {**dict(_defaults_of(spec)), **plain}
    else:
        completed = prepare_arguments(tool, spec, dict(plain))
    return freeze_object({name: as_default(value) for name, value in completed.items() if name not in plain})


def with_defaults(spec: ToolSpec, arguments: Arguments) -> Arguments:
    """Return arguments with the defaults of the parameters that they leave out, if they satisfy the schema together."""
    left_out = {name: thaw(value) for name, value in _defaults_of(spec) if name not in arguments}
    if not left_out:
        return arguments
    completed = {**arguments, **left_out}
    return completed if validator_of(spec).accepts(completed) else arguments


def _defaults_of(spec: ToolSpec) -> Sequence[tuple[str, Any]]:
    return spec.encoded("defaults of the parameters", _defaults)


def _defaults(spec: ToolSpec) -> tuple[tuple[str, Any], ...]:
    properties = spec.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return ()
    found = [(name, schema) for name, schema in properties.items() if isinstance(schema, Mapping)]
    return tuple([(name, schema["default"]) for name, schema in found if "default" in schema])
