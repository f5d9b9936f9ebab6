"""The arguments of a call, fitted to the schema of its tool: coerced where that loses nothing, completed with defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeAlias

from attrs import evolve, frozen

from agentloop._shielding import compute_in_thread
from agentloop.contracts.tool import CanDescribeDefaults, CanPrepareArguments, Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import InvalidArguments, MalformedArguments, ToolDefinitionError
from agentloop.tools.coercion import NUMBER, Arguments, coerce_arguments, read_number
from agentloop.tools.defaults import as_default
from agentloop.tools.left_out import complete_required
from agentloop.tools.validation import SchemaValidator, invalid_arguments, validator_of, value_at
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.json import (
    EMPTY_OBJECT,
    JsonObject,
    format_json,
    freeze,
    freeze_object,
    thaw,
)
from agentloop.values.reprs import ShownByField
from agentloop.values.tool_calls import ToolCall, ToolSpec, parse_arguments, repair_arguments

DIGITS_KEPT: Final = "number written as text, with all of its digits"
INTEGER_KEPT: Final = "number written as integer, with all of its digits"


def fit_call(
    call: ToolCall, spec: ToolSpec, bounds: Bounds = DEFAULT_BOUNDS, *, strict: bool = False
) -> tuple[ToolCall, Arguments]:
    """Parse and validate the arguments of a call, and coerce those that do not satisfy the schema.

    A value that satisfies the schema as it is stays as it is. Another one is coerced if exactly one reading of it satisfies the
    schema and no information is lost: a number, `true`, `false` or `null` in a text, JSON in a text where an object or an array
    is required, and a single value where an array is required. Below `anyOf` and `oneOf`, the readings of all branches count.
    The coerced arguments are validated as a whole. A parameter that the schema requires and that is left out has the default that the
    schema declares for it; null is a parameter that is left out where the schema of another program takes no null. Arguments that are no JSON are read if they are a JSON object in a JSON text, or if only
    the escapes of line breaks, tabs or other control characters are missing. A number with more digits than a float holds is
    written in full, also for a strict tool: as an integer where the schema takes no other number, and as text where it takes the
    text of a number and no other text, such as that of a `Decimal`.

    Args:
        call: the call.
        spec: the tool; nothing is coerced if it is `strict`.
        bounds: the bounds on the check. All checks of a call together take at most five times the steps of one.
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
        fitting = None if is_strict else _fit(arguments, spec, bounds)
        if fitting is None:
            raise invalid_arguments(problems)
        arguments = fitting[0]
        repairs += fitting[1]
    repairs += _keep_digits(validator, arguments, text, bounds)
    if not repairs:
        return call, arguments
    # What was read from JSON in a text has its numbers only now.
    repairs += _keep_digits(validator, arguments, _format(arguments), bounds)
    # Parsed from the text of the call that runs: what is shown and recorded is what the tool gets.
    text = _format(arguments)
    known = (*call.repairs, *repairs)
    return evolve(call, arguments_json=text, repairs=tuple(dict.fromkeys(known))), parse_arguments(text)


def _fit(arguments: Arguments, spec: ToolSpec, bounds: Bounds) -> tuple[Arguments, list[str]] | None:
    """Return arguments that satisfy the schema, and the repairs that it took; None if there is not exactly one way."""
    # A function says itself what null means for it; for another program, its schema does.
    completed = complete_required(arguments, spec.parameters, reads_null=bool(spec.definition))
    if completed and validator_of(spec).accepts(arguments, bounds):
        return arguments, completed
    coerced = coerce_arguments(validator_of(spec), arguments, bounds)
    return None if coerced is None else (coerced[0], [*completed, *coerced[1]])


def comparable_arguments(arguments: Mapping[str, Any], spec: ToolSpec) -> Mapping[str, Any]:
    """Return arguments so that two calls with equal values for the tool are equal, in whatever form the values were written.

    What is left out has its default, and a number without a fraction is an integer.

    Args:
        arguments: the arguments of a call that satisfies the schema.
        spec: the tool.
    """
    filled: Mapping[str, Any] = _with_defaults(arguments, spec.parameters)
    return filled


def _with_defaults(value: Any, schema: object) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    known = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, list | tuple):
        return [_with_defaults(item, known.get("items")) for item in value]
    if not isinstance(value, Mapping):
        return value
    properties = known.get("properties")
    schemas = properties if isinstance(properties, Mapping) else {}
    defaults = {
        name: inner["default"] for name, inner in schemas.items() if isinstance(inner, Mapping) and "default" in inner
    }
    return {name: _with_defaults(inner, schemas.get(name)) for name, inner in {**defaults, **value}.items()}


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
_CHARACTERS_PER_STEP: Final = 8
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
    """Return the steps for each value, for each check, and for 8 characters."""
    try:
        is_flat = validator_of(spec).is_flat
    except ToolDefinitionError:  # the executor reports it
        is_flat = True
    if is_flat:
        return 0.0, 0.0, 0.0
    schema = format_json(spec.parameters)
    # Each reference may lead to all of the schema.
    subschemas, references = schema.count(b"{"), schema.count(b'"$ref"') + schema.count(b'"$dynamicRef"')
    return subschemas * (1.0 + references), len(schema) / _SCHEMA_BYTES_PER_STEP, 0.5 * schema.count(b"attern")


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
    if len(digits) <= _MAX_INTEGER_DIGITS and NUMBER.fullmatch(digits):
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
