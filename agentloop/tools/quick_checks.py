"""Checks of data by jsonschema-rs, which take a hundredth of the time of jsonschema (extra `fast`).

jsonschema decides what is valid, and says why something is not. jsonschema-rs may only say that jsonschema would accept a value, so
it gets nothing about which the two could differ: a schema of the few keywords that are the same in both, with the targets of its
references in their places, and values of plain types with texts and numbers that both read alike. It reads neither files nor
addresses, for no reference reaches it.

A value that jsonschema would not finish within the bounds is not accepted here either: the steps that jsonschema takes at most are
known from the schema and the number of elements of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, NoReturn
from urllib.parse import unquote

from attrs import frozen

from agentloop.values.bounds import Bounds
from agentloop.values.json import read_pointer
from agentloop.values.reprs import ShownByField

_MAX_SUBSCHEMAS: Final = 400
"""The maximum number of subschemas; the target of a reference counts once for each reference. More take long to compile."""
_MAX_ENUM_VALUES: Final = 2_000
"""The maximum number of values in enumerations, if each is a long number."""
_MAX_SCHEMA_LEVELS: Final = 32
_MAX_LEVELS: Final = 100
"""The maximum depth of a value. jsonschema works by recursion, and gives up at a depth that depends on its caller."""
_EXACT: Final = 2**53
"""Numbers below are the same as integers and as floats."""
_SHORT: Final = 256
"""Numbers below count as one element."""
_NUMBER_TYPES: Final = frozenset({int, float})
_ELEMENTS_OF_NUMBER: Final = 6
"""The elements that a longer number adds."""
_CHARACTERS_PER_ELEMENT: Final = 32

_LIMITS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_PLAIN: Final = _LIMITS | _NUMBERS | {"type", "required", "uniqueItems"}
_DECLARATIONS: Final = frozenset({"$defs", "$comment", "format"})
"""Keywords that start with `$`, or that jsonschema knows, and that say nothing about data; `format` is an annotation."""
_ROOT_DECLARATIONS: Final = frozenset({"$schema", "$id"})
_CONDITIONAL: Final = ("if", "then", "else")
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf"})
_SINGLE: Final = frozenset({"items", "additionalProperties", "propertyNames", "not", *_CONDITIONAL})
"""Keywords with one subschema."""
_FALLIBLE: Final = frozenset({"anyOf", "oneOf", "not", "if"})
"""Keywords whose schemas need not accept a value that is valid."""
_MAY_BE_FALSE: Final = frozenset({"items", "additionalProperties"})
"""Keywords that may be false; another subschema that is false has errors of its own kind."""
_FAILING: Final = _PLAIN | _MAY_BE_FALSE | {"enum", "const", "multipleOf", "not", "anyOf", "oneOf", "$ref"}
"""Keywords with an error of their own, besides those of their subschemas; `required` has one for each name."""
_STORED: Final = frozenset({"enum", "const", "not", "anyOf", "oneOf", "allOf"})
"""Keywords whose values are not written into messages, so that their sizes do not count."""


@frozen(eq=False, repr=False)
class QuickCheck(ShownByField):
    """A schema, compiled by jsonschema-rs.

    Attributes:
        levels: the depth of the schema, with its references.
        steps: the most steps that a check by jsonschema takes besides those for the elements of the value.
        steps_per_element: the most steps that it takes for each element.
        is_valid: whether jsonschema-rs accepts a value.
    """

    levels: int
    steps: float
    steps_per_element: float
    is_valid: Callable[[Any], bool]

    def accepts(self, data: object, bounds: Bounds) -> bool:
        """Return whether jsonschema certainly accepts data within the bounds; where this is false, jsonschema has to be asked."""
        if self.levels > bounds.schema_depth:
            return False
        most = (bounds.schema_steps - self.steps) / (self.steps_per_element or 1.0)
        return is_read_alike(data, most) and _result_of(self.is_valid, data) is True


def quick_check(schema: object, keywords: Container[str]) -> QuickCheck | None:
    """Compile a schema; return None if jsonschema-rs is not installed, or if the schema has something that may be different there.

    Args:
        schema: a valid schema of draft 2020-12 whose references can be resolved.
        keywords: the keywords of that draft that jsonschema checks.
    """
    if not isinstance(schema, dict) or not _is_installed():
        return None
    reader = _Reader(schema, keywords)
    try:
        read = reader.schema(schema, 1)
    except _DifferentError:
        return None
    if not is_read_alike(read.schema, float("inf")):
        return None
    is_valid = _result_of(_compile, read.schema)
    if is_valid is None:
        return None
    # An enumeration is read once, and each subschema is prepared in up to three ways.
    steps = 15.0 * reader.subschemas + reader.enum_elements + read.passes.steps
    return QuickCheck(reader.levels, steps, read.passes.inner_steps, is_valid)


def is_read_alike(data: object, most: float) -> bool:
    """Return whether both libraries read a value in the same way, and it has at most so many elements.

    Each name, and every 32 characters, count as an element, too. Only plain values are read alike: lists, dictionaries, texts, true,
    false, None and numbers that a float can hold, but no instances of subclasses.
    """
    elements = 0.0
    level: list[Any] = [data]
    for _ in range(_MAX_LEVELS):
        elements += len(level)
        parts = _parts(level) if elements <= most else None
        if parts is None:
            return False
        texts, level, extra = parts
        try:
            text = "".join(texts)
            if not text.isascii():
                text.encode()
        except (TypeError, UnicodeEncodeError):  # a name that is not a text, or a lone surrogate
            return False
        elements += extra + len(text) / _CHARACTERS_PER_ELEMENT
        if not level:
            return elements <= most
    return False


def _parts(values: list[Any]) -> tuple[list[str], list[Any], int] | None:
    """Return the texts and names in values, what is inside of them, and the elements that names and long numbers add.

    Return None if the two libraries may read a value differently.
    """
    texts: list[str] = []
    inner: list[Any] = []
    extra = 0
    for value in values:
        kind = type(value)
        if kind is str:
            texts.append(value)
        elif kind is dict:
            texts.extend(value)
            extra += len(value)
            inner.extend(value.values())
        elif kind is list:
            inner.extend(value)
        elif kind in _NUMBER_TYPES:
            if not -_SHORT < value < _SHORT:
                extra += _ELEMENTS_OF_NUMBER
                if not -_EXACT < value < _EXACT:  # NaN is not less than anything
                    return None
        elif value is not None and kind is not bool:
            return None
    return texts, inner, extra


# --- reading a schema -----------------------------------------------------------------------------------------------


class _DifferentError(Exception):
    """A schema has something that may be different in the two libraries."""


@frozen
class _Cost:
    """What jsonschema spends on a value at most: an amount for the value, and more for each element inside of it.

    Attributes:
        steps: the steps for the value.
        errors: the number of errors of the value itself.
        inner_steps: the steps for each element inside.
        inner_errors: the number of errors for each.
    """

    steps: float
    errors: float = 0.0
    inner_steps: float = 0.0
    inner_errors: float = 0.0


@frozen
class _Read:
    """A schema as jsonschema-rs gets it.

    Attributes:
        schema: the schema.
        passes: the cost of a value that satisfies it.
        fails: the cost of a value that may not.
    """

    schema: dict[str, Any] | bool
    passes: _Cost
    fails: _Cost


_ANYTHING: Final = _Cost(0.5)


class _Reader:
    """Reads a schema.

    Args:
        root: the schema.
        keywords: the keywords that jsonschema checks.

    Attributes:
        subschemas: the number of subschemas so far.
        enum_elements: the elements of the values of enumerations so far.
        levels: the depth so far.
    """

    def __init__(self, root: dict[str, Any], keywords: Container[str]) -> None:
        self.subschemas = 0
        self.enum_elements = 0.0
        self.levels = 0
        self._root = root
        self._keywords = keywords
        self._followed: list[str] = []

    def schema(self, node: Any, level: int, owner: str = "") -> _Read:
        """Return what jsonschema-rs gets for a subschema.

        Args:
            node: the subschema.
            level: its depth, from 1.
            owner: the keyword that has it as its only subschema; empty for others.

        Raises:
            _DifferentError: if it has something that may be different there.
        """
        self.subschemas += 1
        self.levels = max(self.levels, level)
        is_refused = node is False and owner not in _MAY_BE_FALSE
        if self.subschemas > _MAX_SUBSCHEMAS or level > _MAX_SCHEMA_LEVELS or is_refused:
            raise _DifferentError
        if isinstance(node, bool):
            return _Read(node, _ANYTHING, _ANYTHING)
        written: dict[str, Any] = {}
        parts: list[tuple[str, _Read]] = []
        for keyword, value in node.items():
            if keyword in _CONDITIONAL and "if" not in node:
                continue
            if keyword == "$ref":
                target = self._target(value, level)
                written.setdefault("allOf", []).append(target.schema)
                parts.append((keyword, target))
            elif keyword in _IN_PLACE or keyword == "prefixItems":
                read = [self.schema(item, level + 1) for item in value]
                written.setdefault(keyword, []).extend(item.schema for item in read)
                parts += [(keyword, item) for item in read]
            elif keyword == "properties":
                members = {name: self.schema(item, level + 1) for name, item in value.items()}
                written[keyword] = {name: item.schema for name, item in members.items()}
                parts += [(keyword, item) for item in members.values()]
            elif keyword in _SINGLE:
                inner = self.schema(value, level + 1, keyword)
                written[keyword] = inner.schema
                parts.append((keyword, inner))
            else:
                self._assertion(node, keyword, value, written)
        count = sum(keyword in self._keywords for keyword in node)
        return _Read(written, _cost(node, count, parts, fails=False), _cost(node, count, parts, fails=True))

    def _assertion(self, node: dict[str, Any], keyword: str, value: Any, written: dict[str, Any]) -> None:
        """Write a keyword without subschemas; those that say nothing about data are left out."""
        if keyword in {"enum", "const"}:
            self._count_values(value if keyword == "enum" else [value])
        # The remainder of a float depends on how it is computed.
        is_integer = keyword == "multipleOf" and type(value) is int
        if is_integer or keyword in _PLAIN or keyword in {"enum", "const"}:
            written[keyword] = value
        elif keyword in _DECLARATIONS or (node is self._root and keyword in _ROOT_DECLARATIONS):
            return
        elif keyword in self._keywords or keyword.startswith("$"):
            raise _DifferentError

    def _count_values(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, dict | list):
                raise _DifferentError
            text = len(value) / _CHARACTERS_PER_ELEMENT if isinstance(value, str) else _ELEMENTS_OF_NUMBER
            self.enum_elements += 1 + text
        if self.enum_elements > _MAX_ENUM_VALUES * _ELEMENTS_OF_NUMBER:
            raise _DifferentError

    def _target(self, reference: Any, level: int) -> _Read:
        if not isinstance(reference, str) or not reference.startswith("#/") or reference in self._followed:
            raise _DifferentError
        node: Any = self._root
        for token in read_pointer(unquote(reference[1:])):
            is_inside = node is self._root or (isinstance(node, dict) and not _ROOT_DECLARATIONS & node.keys())
            if not is_inside or token not in node:
                raise _DifferentError
            node = node[token]
        if not isinstance(node, dict):
            raise _DifferentError
        self._followed.append(reference)
        try:
            return self.schema(node, level + 1)
        finally:
            self._followed.pop()


# --- what jsonschema spends -----------------------------------------------------------------------------------------

_STEPS_PER_SUBSCHEMA: Final = 0.5
_STEPS_PER_REFERENCE: Final = 3
_STEPS_PER_ERROR: Final = 6
_ELEMENTS_PER_STEP: Final = 8
_ELEMENTS_OF_MEMBER: Final = 2  # with its name


def _cost(node: Mapping[str, Any], keywords: int, parts: list[tuple[str, _Read]], *, fails: bool) -> _Cost:
    """Return what jsonschema spends on a value, as `_Work` in `validation.py` counts it.

    Args:
        node: the schema.
        keywords: the number of its keywords that jsonschema checks.
        parts: its subschemas with their keywords.
        fails: whether the value may not satisfy the schema.
    """
    steps, errors, inner_steps, inner_errors = _own_cost(node, keywords, fails=fails)
    items = members = _Cost(0.0)
    for keyword, part in parts:
        is_fallible = keyword in _FALLIBLE
        cost = part.fails if fails or is_fallible else part.passes
        if keyword in {"items", "prefixItems"}:
            items = _worst(items, cost, 1)
        elif keyword in {"properties", "additionalProperties"}:
            members = _worst(members, cost, _ELEMENTS_OF_MEMBER)
        else:
            # The subschema is for the value itself, or for each name. A branch that may fail passes no errors on.
            passes_on = not is_fallible
            at_once = _worst(_Cost(0.0), cost, _ELEMENTS_OF_MEMBER) if keyword == "propertyNames" else cost
            steps += at_once.steps + passes_on * at_once.errors
            errors += passes_on * at_once.errors
            inner_steps += at_once.inner_steps + passes_on * at_once.inner_errors
            inner_errors += passes_on * at_once.inner_errors
    for each in (items, members):
        inner_steps += each.inner_steps + each.inner_errors
        inner_errors += each.inner_errors
    return _Cost(steps, errors, inner_steps, inner_errors)


def _own_cost(node: Mapping[str, Any], keywords: int, *, fails: bool) -> tuple[float, float, float, float]:
    sizes = sum(len(value) for key, value in node.items() if key not in _STORED and isinstance(value, list | dict))
    compared = 0.5 * (("enum" in node) + ("const" in node)) + ("uniqueItems" in node)
    steps = _STEPS_PER_SUBSCHEMA + keywords + _STEPS_PER_REFERENCE * ("$ref" in node)
    steps += 3 * compared + sizes / _ELEMENTS_PER_STEP
    inner_steps = keywords / _ELEMENTS_PER_STEP + compared
    if not fails:
        return steps, 0.0, inner_steps, 0.0
    names = node.get("required", ())
    errors = float(len(node.keys() & _FAILING) + len(names))
    shown = _ELEMENTS_OF_NUMBER + 2 + sizes + sum(map(len, names)) / _CHARACTERS_PER_ELEMENT
    steps += errors * (_STEPS_PER_ERROR + shown / _ELEMENTS_PER_STEP)
    return steps, errors, inner_steps + errors / _ELEMENTS_PER_STEP, 0.0


def _worst(known: _Cost, cost: _Cost, elements: int) -> _Cost:
    """Return the larger of two costs for each element, where a value of the second cost has at least so many elements."""
    steps = max(cost.steps / elements, cost.inner_steps)
    errors = max(cost.errors / elements, cost.inner_errors)
    return _Cost(0.0, 0.0, max(known.inner_steps, steps), max(known.inner_errors, errors))


# --- the border to jsonschema-rs ------------------------------------------------------------------------------------


@cache
def _is_installed() -> bool:
    return find_spec("jsonschema_rs") is not None


def _compile(schema: dict[str, Any]) -> Callable[[Any], bool]:
    import jsonschema_rs  # with the first schema that needs it

    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=False, retriever=_fetch_nothing)
    return validator.is_valid


def _fetch_nothing(address: str) -> NoReturn:
    raise LookupError(f"{address} is outside of the schema; nothing is fetched")


def _result_of(function: Callable[[Any], Any], argument: object) -> Any:
    """Return what a function of jsonschema-rs returns; None if it fails, for then jsonschema decides."""
    try:
        return function(argument)
    except Exception:  # noqa: BLE001  # whatever it is, jsonschema is asked, and says what is wrong with a value
        return None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # its panics are not of the class Exception
            raise
        return None
