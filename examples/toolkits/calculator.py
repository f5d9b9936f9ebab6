"""A toolkit for arithmetic: expressions are parsed and computed here, never evaluated as Python.

Try it from a shell:

    python examples/toolkits/calculator.py "(12.5 + 3) * 2 ** 10 / sqrt(2)"

Use it from a TOML file, with `examples` on the import path:

    [ensembles.calculator]
    use = "toolkits.calculator:calculator"

    ensembles = load_ensembles("tools.toml", allow=["toolkits"])
    loop = AgentLoop.for_model("openai:gpt-5", tools=[*ensembles])
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from agentloop import tool
from agentloop.errors import ToolFailed
from agentloop.toolkits import Ensemble, ensemble_factory

Number: TypeAlias = int | float

MAX_CHARACTERS = 1_000
MAX_NODES = 500
MAX_BITS = 4_096
MAX_FACTORIAL = 400


@tool(effect="pure")
def calculate(
    expression: Annotated[str, "such as (12.5 + 3) * 2 ** 10 / sqrt(2); no variables, no assignments"],
) -> int | float:
    """Compute an arithmetic expression exactly as written.

    There are + - * / // % **, parentheses, abs, round, floor, ceil, sqrt, exp, log, log10, log2, sin, cos, tan, asin, acos,
    atan, degrees, radians, hypot, gcd, factorial, comb, perm, min, max, pi, e and tau. Percent signs mean the remainder.
    """
    return Expression(expression).evaluate()


@ensemble_factory
def calculator() -> Ensemble:
    """Create an ensemble with the tool `calculate`."""
    return Ensemble("calculator", [calculate], description="Arithmetic, computed instead of guessed.")


class Expression:
    """An arithmetic expression: numbers, `+ - * / // % **`, parentheses, and the functions and constants named below.

    Args:
        text: the expression; `^` is read as `**`.

    Raises:
        ToolFailed: when the text is not an arithmetic expression, or is too long.
    """

    __slots__ = ("_root",)

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ToolFailed(f"the expression has {len(text)} characters; the maximum is {MAX_CHARACTERS}")
        try:
            tree = ast.parse(text.strip().replace("^", "**"), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply or has a null character"
            raise ToolFailed(f"{text[:80]!r} is not an arithmetic expression: {reason}") from None
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise ToolFailed(f"the expression has too many parts; the maximum is {MAX_NODES}")
        self._root = tree.body

    def evaluate(self) -> Number:
        """Compute the expression.

        Returns:
            A finite number; a float with an integral value becomes an int.

        Raises:
            ToolFailed: when the expression has no value, or one that is too large.
        """
        try:
            return _simplify(_evaluate(self._root))
        except ZeroDivisionError:
            raise ToolFailed("a division by zero has no result") from None
        except (OverflowError, RecursionError):
            raise ToolFailed("the result is too large") from None
        except (ValueError, TypeError) as error:
            raise ToolFailed(f"the expression has no value: {error}") from None


def _evaluate(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value) if type(value) in {int, float}:  # not bool, which is an int to isinstance
            return _check_size(value)
        case ast.Name(name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _check_size(_OPERATORS[type(op)](_evaluate(left), _evaluate(right)))
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand)
        case ast.UnaryOp(ast.UAdd(), operand):
            return _evaluate(operand)
        case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
            return _check_size(FUNCTIONS[name](*[_evaluate(argument) for argument in arguments]))
        case ast.Name(name) | ast.Call(ast.Name(name)):
            known = ", ".join([*FUNCTIONS, *CONSTANTS])
            raise ToolFailed(f"{name!r} is not known here, or is used in the wrong way; known names: {known}")
    raise ToolFailed(f"{ast.unparse(node)[:60]!r} is not arithmetic: use numbers, + - * / // % **, and parentheses")


def _check_size(value: Any) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError
    if not isinstance(value, int | float):
        raise ToolFailed("the result is not a real number")
    return value


def _simplify(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
        if value.is_integer() and abs(value) < 2**53:  # from 2**53 on, a float stands for several integers
            return int(value)
    return value


def _power(base: Number, exponent: Number) -> Any:
    """Raise to a power, after estimating the size of the result: computing it may take forever."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent < 0:
            return float(base) ** exponent
        if abs(base) > 1 and base.bit_length() * exponent > 2 * MAX_BITS:
            raise OverflowError
    return base**exponent


def _factorial(n: Number) -> int:
    if n > MAX_FACTORIAL:
        raise OverflowError
    return math.factorial(_as_int(n))


def _combinations(n: Number, k: Number) -> int:
    if n > MAX_BITS:
        raise OverflowError
    return math.comb(_as_int(n), _as_int(k))


def _permutations(n: Number, k: Number) -> int:
    if n > MAX_FACTORIAL:
        raise OverflowError
    return math.perm(_as_int(n), _as_int(k))


def _as_int(value: Number) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ToolFailed(f"{value:g} has to be a whole number")
    return int(value)


def _round(value: Number, digits: Number = 0) -> Number:
    return round(value, _as_int(digits)) if -300 <= digits <= 300 else value  # noqa: PLR2004  # beyond the digits of floats


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
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
    "round": _round,
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
    "gcd": lambda *numbers: math.gcd(*map(_as_int, numbers)),
    "factorial": _factorial,
    "comb": _combinations,
    "perm": _permutations,
    "min": min,
    "max": max,
}
"""The functions that an expression may call."""
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
"""The names that an expression may use."""


if __name__ == "__main__":
    try:
        print(Expression(" ".join(sys.argv[1:])).evaluate())
    except ToolFailed as error:
        sys.exit(str(error))
