"""Arithmetic, read as an expression and computed here: nothing is ever evaluated as Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from agentloop.errors import ToolFailed
from agentloop.tools.decorator import tool
from agentloop.tools.ensembles.ensemble import Ensemble, makes_ensemble

Number: TypeAlias = int | float

_MOST_CHARACTERS = 1_000
_MOST_NODES = 500
_MOST_BITS = 4_096
_MOST_FACTORIAL = 400


class Expression:
    """An arithmetic expression: numbers, `+ - * / // % **`, parentheses, and the functions and constants named below.

    Args:
        text: the expression; `^` stands for `**`, as people write it.

    Raises:
        ToolFailed: when it is no such expression; says what is not understood.
    """

    __slots__ = ("_root",)

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            raise ToolFailed(f"the expression has {len(text)} characters; the most are {_MOST_CHARACTERS}")
        try:
            tree = ast.parse(text.strip().replace("^", "**"), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            what = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply or holds a null character"
            raise ToolFailed(f"{text[:80]!r} is not an arithmetic expression: {what}") from None
        if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
            raise ToolFailed(f"the expression has too many parts; the most are {_MOST_NODES}")
        self._root = tree.body

    def value(self) -> Number:
        """Compute it.

        Raises:
            ToolFailed: when it has no value, or one that is too large.
        """
        try:
            return _result(_value(self._root))
        except ZeroDivisionError:
            raise ToolFailed("a division by zero has no result") from None
        except (OverflowError, RecursionError):
            raise ToolFailed("the result is too large") from None
        except (ValueError, TypeError) as error:
            raise ToolFailed(f"the expression has no value: {error}") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value) if type(value) in {int, float}:
            return _bounded(value)
        case ast.Name(name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.UnaryOp(ast.UAdd(), operand):
            return _value(operand)
        case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
            return _bounded(FUNCTIONS[name](*[_value(argument) for argument in arguments]))
        case ast.Name(name) | ast.Call(ast.Name(name)):
            known = ", ".join([*FUNCTIONS, *CONSTANTS])
            raise ToolFailed(f"{name!r} is not known here, or not used as it can be; there are {known}")
    raise ToolFailed(f"{ast.unparse(node)[:60]!r} is not arithmetic: use numbers, + - * / // % **, and parentheses")


def _bounded(value: Any) -> Number:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise OverflowError
    if not isinstance(value, int | float):
        raise ToolFailed("the result is not a real number")
    return value


def _result(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
        if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value


def _power(base: Number, exponent: Number) -> Any:
    """Raise to a power, after a look at how large the result will be."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent < 0:
            return float(base) ** exponent
        if abs(base) > 1 and base.bit_length() * exponent > 2 * _MOST_BITS:
            raise OverflowError
    return base**exponent


def _factorial(n: Number) -> int:
    if n > _MOST_FACTORIAL:
        raise OverflowError
    return math.factorial(_whole(n))


def _combinations(n: Number, k: Number) -> int:
    if n > _MOST_BITS:
        raise OverflowError
    return math.comb(_whole(n), _whole(k))


def _permutations(n: Number, k: Number) -> int:
    if n > _MOST_FACTORIAL:
        raise OverflowError
    return math.perm(_whole(n), _whole(k))


def _whole(value: Number) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ToolFailed(f"{value:g} has to be a whole number")
    return int(value)


def _rounded(value: Number, digits: Number = 0) -> Number:
    return round(value, _whole(digits)) if -300 <= digits <= 300 else value  # noqa: PLR2004  # beyond the digits of floats


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "degrees": math.degrees,
    "radians": math.radians,
    "hypot": math.hypot,
    "gcd": lambda *numbers: math.gcd(*map(_whole, numbers)),
    "factorial": _factorial,
    "comb": _combinations,
    "perm": _permutations,
    "min": min,
    "max": max,
}
"""The functions that an expression may call."""
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
"""The names that an expression may use."""


@tool(effect="pure")
def calculate(
    expression: Annotated[str, "such as (12.5 + 3) * 2 ** 10 / sqrt(2); no variables, no assignments"],
) -> int | float:
    """Compute an arithmetic expression exactly as written.

    There are + - * / // % **, parentheses, abs, round, floor, ceil, sqrt, exp, log, log10, log2, sin, cos, tan, asin, acos,
    atan, degrees, radians, hypot, gcd, factorial, comb, perm, min, max, pi, e and tau. Percent signs mean the remainder.
    """
    return Expression(expression).value()


@makes_ensemble
def calculator() -> Ensemble:
    """Make the ensemble of arithmetic."""
    return Ensemble("calculator", [calculate], description="Arithmetic, computed instead of guessed.")
