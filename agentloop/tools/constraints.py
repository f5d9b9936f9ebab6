"""The constraints in `Annotated`: each is a keyword of the schema, a check of the value that reaches the function, or refused."""

from __future__ import annotations

import collections.abc
import enum
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import isfinite, isnan
from numbers import Number
from types import SimpleNamespace
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.errors import InvalidParameter, ToolDefinitionError
from agentloop.tools import pydantic_models
from agentloop.tools.fields import class_name
from agentloop.tools.hints import alias_value, is_type_alias
from agentloop.tools.patterns import compile_pattern
from agentloop.values.value import Value

Check: TypeAlias = Callable[[Any], str]
"""Returns in which way a value breaks a constraint; empty if it keeps it."""

# --- our own --------------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False, kw_only=True)
class Range(Value):
    """The range for `Annotated` of a number, or of the length of a text or a list. None means unbounded.

    Attributes:
        ge: the smallest number.
        le: the largest number.
        min_length: the smallest number of characters or items.
        max_length: the largest number of characters or items.

    Raises:
        InvalidParameter: nothing is limited, a limit is no number, or no value could keep both limits.
    """

    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    def __attrs_post_init__(self) -> None:
        numbers, lengths = (self.ge, self.le), (self.min_length, self.max_length)
        if all(limit is None for limit in (*numbers, *lengths)):
            raise InvalidParameter("a Range without a limit limits nothing: pass ge, le, min_length or max_length")
        for limit in numbers:
            if limit is not None and (not _is_number(limit) or isnan(limit)):
                raise InvalidParameter(f"ge and le of a Range are numbers, not {limit!r:.100}")
        for length in lengths:
            if length is not None and not _is_count(length):
                raise InvalidParameter(f"the lengths of a Range are whole numbers, 0 or more, not {length!r:.100}")
        for least, most in (numbers, lengths):
            if least is not None and most is not None and least > most:
                raise InvalidParameter(f"no value is at least {least} and at most {most}")


# --- what the constraints of a type are -----------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class Constraints(Value):
    """What the annotations of a type demand.

    Attributes:
        keywords: the keywords of the schema that express them, with the description.
        checks: what a value has to pass, as the function gets it.
        adapted: the type with its annotations if pydantic converts it; else None.
    """

    keywords: Mapping[str, Any] = field(factory=dict)
    checks: tuple[Check, ...] = ()
    adapted: Any = None

    def check(self, value: Any) -> Any:
        """Return the value.

        Raises:
            ValueError: it breaks a constraint.
        """
        for check in self.checks:
            problem = check(value)
            if problem:
                raise ValueError(problem)
        return value


def constraints_of(hint: Any, where: str = "the type", schema: Mapping[str, Any] | None = None) -> Constraints:
    """Return the constraints of an `Annotated` type.

    Args:
        hint: the type.
        where: the parameter or field that has it, for error messages.
        schema: the JSON Schema of the type without its annotations; None if only its checks are of interest.

    Raises:
        ToolDefinitionError: a constraint cannot be applied to the type; says what to write instead.
    """
    inner, *annotations = typing.get_args(hint)
    reader = _Reader(where, _kinds(inner), dict(schema or {}))
    for annotation in _flatten(annotations):
        reader.read(annotation)
    keywords = reader.finish()
    if not reader.needs_pydantic:
        return Constraints(keywords, tuple([check for check, _ in reader.checks]))
    # pydantic checks those that it knows in their order among its own.
    unknown = [check for check, library in reader.checks if library not in _LIBRARIES]
    return Constraints(keywords, tuple(unknown), hint)


def check_constraints(hint: Any, where: str) -> None:
    """Check the constraints in a type, at any depth.

    Raises:
        ToolDefinitionError: one cannot be applied.
    """
    if typing.get_origin(hint) is typing.Annotated:
        constraints_of(hint, where)
    for argument in typing.get_args(hint):
        check_constraints(argument, where)


def description_in(hint: Any) -> str:
    """Return the description that a type has in `Annotated`; empty if it has none."""
    if typing.get_origin(hint) is not typing.Annotated:
        return ""
    return next(filter(None, map(_description, _flatten(reversed(typing.get_args(hint)[1:])))), "")


def is_strict(hint: Any) -> bool:
    """Return whether an `Annotated` type says that its value must not be coerced."""
    return any(map(pydantic_models.is_strict, _flatten(typing.get_args(hint)[1:])))


# --- annotations ----------------------------------------------------------------------------------------------------


def _flatten(annotations: Iterable[Any]) -> Iterator[Any]:
    """Yield single annotations in place of those that hold several."""
    for annotation in annotations:
        yield annotation
        # The grouped types of annotated-types can be iterated, and pydantic's FieldInfo has a list.
        is_group = getattr(annotation, "__is_annotated_types_grouped_metadata__", False)
        inner = list(annotation) if is_group else pydantic_models.constraints_in(annotation)
        yield from _flatten([one for one in inner if one is not annotation])


def _description(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    texts = (getattr(annotation, name, None) for name in ("description", "documentation"))
    return next((text for text in texts if isinstance(text, str)), "")


_ORDER: Mapping[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "ge": ("minimum", operator.ge, "at least"),
    "gt": ("exclusiveMinimum", operator.gt, "more than"),
    "le": ("maximum", operator.le, "at most"),
    "lt": ("exclusiveMaximum", operator.lt, "less than"),
}
"""The names of bounds, each with its keyword, the comparison that holds, and its words."""
_DIGITS = ("max_digits", "decimal_places")
_ATTRIBUTES = (*_ORDER, "multiple_of", "min_length", "max_length", "pattern")
_UNITS: Mapping[str, str] = {"string": "Length", "array": "Items", "object": "Properties"}
_LIBRARIES = ("annotated_types", "pydantic", "pydantic_core", "pydantic_extra_types")
_TIGHTER: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", *[f"min{unit}" for unit in _UNITS.values()]), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", *[f"max{unit}" for unit in _UNITS.values()]), min),
}
"""Of two bounds of one kind, which one a schema has: both hold."""


class _Reader:
    """Reads the annotations of one type.

    Args:
        where: the parameter or field, for error messages.
        kinds: the classes that its values can have; None if they are not known.
        schema: the schema of the type without its annotations.
    """

    def __init__(self, where: str, kinds: Sequence[Any] | None, schema: dict[str, Any]) -> None:
        self.where, self.kinds, self.schema = where, kinds, schema
        self.keywords: dict[str, Any] = {}
        self.checks: list[tuple[Check, str]] = []
        self.needs_pydantic = False
        self._unit = ""
        self._library = ""

    def read(self, annotation: Any) -> None:
        """Read one annotation.

        Raises:
            ToolDefinitionError: it cannot be applied.
        """
        if annotation is None:
            return  # types such as `conint` leave it in place of a constraint
        if text := _description(annotation):
            self.keywords["description"] = text
        if isinstance(annotation, str):
            return
        if isinstance(annotation, type):
            self._read_class(annotation)
            return
        self._library = type(annotation).__module__.partition(".")[0]
        problem = pydantic_models.problem_of(annotation)
        if problem:
            raise self._refusal(problem)
        if pydantic_models.needs_adapter(annotation):
            self.needs_pydantic = True
            for name in _DIGITS:
                if getattr(annotation, name, None) is not None:
                    self._require_kinds(name, _is_numeric, "a number")
            return
        self.keywords.update(pydantic_models.keywords_of(annotation))
        if not (self._read_check(annotation) or self._read_bounds(annotation)):
            self._refuse_unknown(annotation)

    def finish(self) -> dict[str, Any]:
        """Return the keywords, of which no value may be excluded by others.

        Raises:
            ToolDefinitionError: no value satisfies all bounds.
        """
        merged = {**self.schema, **self.keywords}
        pairs = [("minimum", "maximum"), *[(f"min{unit}", f"max{unit}") for unit in _UNITS.values()]]
        for least, most in pairs:
            if least in merged and most in merged and merged[least] > merged[most]:
                raise self._refusal(f"no value is at least {merged[least]} and at most {merged[most]}")
        low, high = merged.get("exclusiveMinimum"), merged.get("exclusiveMaximum")
        if (low is not None and low >= merged.get("maximum", high if high is not None else low + 1)) or (
            high is not None and high <= merged.get("minimum", high - 1)
        ):
            raise self._refusal("no value is inside of its bounds")
        if self._unit:
            description = self.keywords.get("description")
            self.keywords["description"] = f"{description} ({self._unit})" if description else f"in {self._unit}"
        return self.keywords

    # --- checks of the value ----------------------------------------------------------------------------------------

    def _read_check(self, annotation: Any) -> bool:
        """Read what checks values by itself; return whether it is one."""
        module, name = type(annotation).__module__, type(annotation).__name__
        if module == "annotated_types" and name == "Predicate":
            self._check(partial(_check_predicate, annotation.func))
        elif module == "annotated_types" and name == "Timezone":
            self._read_timezone(annotation.tz)
        elif module == "annotated_types" and name == "Unit":
            self._unit = str(annotation.unit)
        elif module.startswith(("attr.", "attrs.")) and callable(annotation):
            self._check(partial(_check_validator, annotation))
        else:
            return False
        return True

    def _read_timezone(self, zone: Any) -> None:
        if self.kinds is not None and not all(hasattr(kind, "tzinfo") for kind in self.kinds):
            raise self._refusal("Timezone is for a datetime")
        self._check(partial(_check_timezone, zone))

    # --- bounds -----------------------------------------------------------------------------------------------------

    def _read_bounds(self, annotation: Any) -> bool:
        """Read attributes such as `ge` and `max_length`, whatever library the annotation is of; return whether it has any."""
        if isinstance(annotation, re.Pattern):
            self._read_pattern(annotation)
            return True
        found = {name: getattr(annotation, name, None) for name in _ATTRIBUTES}
        for name, bound in found.items():
            if bound is None:
                continue
            if name in _ORDER:
                self._read_order(name, bound)
            elif name == "multiple_of":
                self._read_divisor(bound)
            elif name == "pattern":
                self._read_pattern(bound)
            else:
                self._read_length(name, bound)
        is_group = hasattr(annotation, "__is_annotated_types_grouped_metadata__")
        return is_group or any(bound is not None for bound in found.values())

    def _read_order(self, name: str, bound: Any) -> None:
        keyword, holds, words = _ORDER[name]
        if isinstance(bound, float) and isnan(bound):
            raise self._refusal(f"no value is {words} NaN")
        compared = bound
        for kind in self.kinds or ():
            if issubclass(kind, timedelta) and _is_number(bound):
                compared = timedelta(seconds=bound)  # as its JSON form
            elif not _is_ordered(kind, bound):
                raise self._refusal(f"{name}={bound!r:.60} cannot be compared with {_name(kind)}{self._hint(kind)}")
        self._check(partial(_check_order, holds, compared, f"{words} {bound}"))
        # JSON has no infinity, which some libraries use for "unbounded".
        if isinstance(bound, int | float) and isfinite(bound):
            self._bound(keyword, bound)

    def _read_divisor(self, divisor: Any) -> None:
        if not _is_number(divisor) or not divisor > 0:
            raise self._refusal(f"multiple_of is a number above 0, not {divisor!r:.60}")
        self._require_kinds("multiple_of", _is_numeric, "a number")
        self._check(partial(_check_divisor, divisor))
        if isinstance(divisor, int | float) and "multipleOf" not in {**self.schema, **self.keywords}:
            self.keywords["multipleOf"] = divisor

    def _read_length(self, name: str, length: Any) -> None:
        if not _is_count(length):
            raise self._refusal(f"{name} is a whole number, 0 or more, not {length!r:.60}")
        self._require_kinds(name, _has_length, "a text, a list, or something else with a length")
        end, holds = ("min", operator.ge) if name == "min_length" else ("max", operator.le)
        words = "at least" if end == "min" else "at most"
        self._check(partial(_check_length, holds, length, f"{words} {length}"))
        for unit in self._length_units():
            self._bound(f"{end}{unit}", length)

    def _length_units(self) -> Iterable[str]:
        """Return what JSON counts of the type; nothing for bytes, whose text in JSON has another length."""
        if any(issubclass(kind, bytes) for kind in self.kinds or ()):
            return ()
        if "type" in self.schema:
            return filter(None, [_UNITS.get(self.schema["type"])])
        members = [member.get("type") for member in self.schema.get("anyOf", ())]
        return [unit for kind, unit in _UNITS.items() if not members or kind in members]

    def _read_pattern(self, pattern: Any) -> None:
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        if isinstance(pattern, re.Pattern) and pattern.flags != re.UNICODE:
            raise self._refusal("a schema has no flags of a pattern: write them into it, as in (?i)")
        if not isinstance(text, str):
            raise self._refusal(f"pattern is a text, not {pattern!r:.60}")
        self._require_kinds("pattern", _is_text, "a text")
        try:
            compile_pattern(text)
        except (ToolDefinitionError, re.error) as error:
            raise self._refusal(f"the pattern {text!r:.60} cannot be used: {error}") from error
        self._check(partial(_check_pattern, text))
        if "pattern" not in {**self.schema, **self.keywords}:
            self.keywords["pattern"] = text

    def _check(self, check: Check) -> None:
        self.checks.append((check, self._library))

    def _bound(self, keyword: str, bound: Any) -> None:
        known = self.keywords.get(keyword, self.schema.get(keyword))
        self.keywords[keyword] = bound if known is None else _TIGHTER[keyword](known, bound)

    # --- refusals ---------------------------------------------------------------------------------------------------

    def _require_kinds(self, name: str, fits: Callable[[Any], bool], expected: str) -> None:
        wrong = next((kind for kind in self.kinds or () if not fits(kind)), None)
        if wrong is not None:
            raise self._refusal(f"{name} is for {expected}, and not for {_name(wrong)}{self._hint(wrong)}")

    def _hint(self, wrong: Any) -> str:
        if self.kinds is not None and len(self.kinds) > 1:
            return "; put it at the member of the union that it limits"
        if issubclass(wrong, str) or (_has_length(wrong) and not _is_numeric(wrong)):
            return "; its length has the bounds min_length and max_length"
        return "; a number has the bounds ge, gt, le and lt" if _is_numeric(wrong) else ""

    def _refusal(self, problem: str) -> ToolDefinitionError:
        return ToolDefinitionError(f"{self.where} has a constraint that cannot be applied: {problem}")

    def _read_class(self, cls: type) -> None:
        if pydantic_models.is_annotation(cls):
            self.needs_pydantic = True
        elif cls is Range or cls.__module__.partition(".")[0] in _LIBRARIES:
            raise self._refusal(f"{cls.__name__} is a class: create an object of it, as in {cls.__name__}(…)")

    def _refuse_unknown(self, annotation: Any) -> None:
        """Refuse what looks like a constraint and is none; anything else in `Annotated` is for other libraries."""
        if isinstance(annotation, types.FunctionType | types.BuiltinFunctionType | types.MethodType | partial):
            name = getattr(annotation, "__name__", "function")
            raise self._refusal(f"a function alone checks nothing: write annotated_types.Predicate({name})")
        is_constraint = any(base.__module__ == "annotated_types" for base in type(annotation).__mro__)
        if is_constraint and not hasattr(annotation, "documentation"):
            raise self._refusal(f"{annotation!r:.100} is not known here")


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_order(holds: Callable[[Any, Any], bool], bound: Any, words: str, value: Any) -> str:
    if value is None:
        return ""
    if type(value).__name__ == "Decimal" and isinstance(bound, float):
        bound = type(value)(str(bound))
    try:
        return "" if holds(value, bound) else f"it has to be {words}, not {value}"
    except TypeError:
        return f"it has to be {words}, and {value!r:.60} cannot be compared with that"


def _check_divisor(divisor: Any, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) or isinstance(divisor, float):
        quotient = float(value) / float(divisor)
        is_multiple = isfinite(quotient) and abs(quotient - round(quotient)) < _ROUNDING
    else:
        is_multiple = value % divisor == 0
    return "" if is_multiple else f"it has to be a multiple of {divisor}, not {value}"


_ROUNDING = 1e-9


def _check_length(holds: Callable[[Any, Any], bool], length: int, words: str, value: Any) -> str:
    if value is None:
        return ""
    found = len(str(value) if _is_path(type(value)) else value)
    return "" if holds(found, length) else f"its length has to be {words}, not {found}"


def _check_pattern(pattern: str, value: Any) -> str:
    if value is None:
        return ""
    text = value.value if isinstance(value, enum.Enum) else value
    return "" if compile_pattern(pattern).search(str(text), _ignore) else f"it has to match {pattern!r}"


def _ignore(_: float) -> None:
    """Count no steps: the length of the text was bounded when the schema was checked."""


def _check_timezone(zone: Any, value: Any) -> str:
    if value is None:
        return ""
    if zone is None:
        return "" if value.tzinfo is None else "it has to be without a time zone"
    if value.tzinfo is None:
        return "it has to have a time zone"
    if zone is ...:
        return ""
    is_same = (
        str(value.tzinfo) == zone if isinstance(zone, str) else value.utcoffset() == value.astimezone(zone).utcoffset()
    )
    return "" if is_same else f"its time zone has to be {zone}"


def _check_predicate(predicate: Callable[[Any], Any], value: Any) -> str:
    name = getattr(predicate, "__qualname__", None) or repr(predicate)
    return "" if predicate(value) else f"{value!r:.60} does not satisfy {name}"


def _check_validator(validator: Callable[[Any, Any, Any], Any], value: Any) -> str:
    try:
        validator(None, _ATTRIBUTE, value)
    except (ValueError, TypeError) as error:
        return str(error.args[0] if error.args else error)
    return ""


_ATTRIBUTE = SimpleNamespace(name="it")  # attrs' validators name the field in their messages


# --- the classes of values ------------------------------------------------------------------------------------------


_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)


def _kinds(hint: Any) -> list[Any] | None:
    """Return the classes that values of a type can have, without None; None if they are not known."""
    origin, inner = typing.get_origin(hint), _inner(hint)
    if inner is not hint:
        return _kinds(inner)
    if hint is None or hint is type(None):
        return []
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(hint) if value is not None]
    if origin in {typing.Union, types.UnionType}:
        members = [_kinds(member) for member in typing.get_args(hint)]
        return None if None in members else [kind for kinds in members for kind in kinds or ()]
    kind = origin or hint
    return [kind] if isinstance(kind, type) and kind not in {object, Any} else None


def _inner(hint: Any) -> Any:
    """Return what another name for a type stands for; any other hint itself."""
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    if isinstance(hint, typing.TypeVar):
        return hint.__bound__ or Any
    if is_type_alias(hint):
        return alias_value(hint)
    return typing.get_args(hint)[0] if typing.get_origin(hint) in _WRAPPERS else hint


def _name(kind: Any) -> str:
    return f"the type {kind.__name__}"


def _is_number(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool | complex)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_numeric(kind: Any) -> bool:
    return issubclass(kind, Number) and not issubclass(kind, bool)


def _is_ordered(kind: Any, bound: Any) -> bool:
    """Return whether values of a class can be compared with a bound."""
    if _is_numeric(kind):
        return _is_number(bound)
    return isinstance(bound, kind) and not isinstance(bound, bool) and _has_own(kind, "__lt__")


def _has_own(kind: Any, method: str) -> bool:
    return any(method in vars(base) for base in kind.__mro__ if base is not object)


def _has_length(kind: Any) -> bool:
    # An `Iterable` is made of a list.
    return hasattr(kind, "__len__") or _is_path(kind) or kind is collections.abc.Iterable


def _is_text(kind: Any) -> bool:
    return issubclass(kind, str) or _is_path(kind)


def _is_path(kind: Any) -> bool:
    # By name, so that a program without paths does not load their module.
    return any(class_name(base) == "pathlib.PurePath" for base in kind.__mro__)
