"""The calculator toolkit: exact, bounded, and never evaluated as Python."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolkits.calculator import calculate, calculator

from agentloop.errors import ToolFailed
from tests.toolkits.running import run_call


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("-2 ** 2", -4),
        ("2 ^ 10", 1024),
        ("10 / 4", 2.5),
        ("6 / 3", 2),
        ("7 // 2 + 7 % 3", 4),
        ("2 ** -1", 0.5),
        ("+-+1", -1),
        ("sqrt(2) ** 2", pytest.approx(2)),
        ("sin(pi / 2) + log(e)", 2),
        ("round(2.567, 2)", 2.57),
        ("max(1, 2, 3) - min(1, 2)", 2),
        ("comb(52, 5)", 2_598_960),
        ("factorial(20)", 2_432_902_008_176_640_000),
        ("gcd(12, 18)", 6),
        ("2 ** 200", 2**200),
        ("1e3", 1000),
        (" 1 ", 1),
    ],
)
def test_an_expression_is_computed(expression: str, value: float) -> None:
    """Operators bind as in Python; whole results are whole numbers; large ones are exact."""
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("(10**1000)**1000", "too large"),
        ("10 ** 100000", "too large"),
        ("(2**4000) * (2**4000)", "too large"),
        ("2.0 ** 100000", "too large"),
        ("1e308 * 10", "too large"),
        ("exp(1000)", "too large"),
        ("factorial(10**9)", "too large"),
        ("factorial(factorial(300))", "too large"),
        ("comb(10**9, 10**8)", "too large"),
        ("perm(10**9, 10**9)", "too large"),
        ("sqrt(10**1000) * 2.0", "too large"),
        ("9" * 1_001, "1001 characters"),
        ("+".join("1" * 400), "too many parts"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic expression"),
        ("-" * 450 + "1", "too many parts|too large|not an arithmetic"),
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("(-1) ** 0.5", "not a real number"),
        ("sqrt(-1)", "no value"),
        ("log(0)", "no value"),
        ("factorial(2.5)", "whole number"),
        ("factorial(-1)", "no value"),
        ("sin()", "no value"),
        ("sqrt(1, 2)", "no value"),
        ("1j", "not arithmetic"),
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("1; 2", "not an arithmetic expression"),
        ("x = 1", "not an arithmetic expression"),
        ("1\x00", "not an arithmetic expression"),
        ("x", "'x' is not known here"),
        ("open('/etc/passwd')", "'open' is not known here"),
        ("__import__('os').system('id')", "not arithmetic"),
        ("().__class__.__bases__", "not arithmetic"),
        ("sqrt.__globals__", "not arithmetic"),
        ("(lambda: 1)()", "not arithmetic"),
        ("[1 for _ in (1,)]", "not arithmetic"),
        ("1 if 1 else 2", "not arithmetic"),
        ("'a' * 10", "not arithmetic"),
        ("f'{1}'", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("1 < 2", "not arithmetic"),
        ("1 << 1000000", "not arithmetic"),
        ("~1", "not arithmetic"),
        ("max(*(1, 2))", "not arithmetic"),
        ("round(1, ndigits=2)", "is not known here, or is used in the wrong way"),
        ("(x := 1)", "not arithmetic"),
    ],
)
def test_an_expression_that_is_not_arithmetic_or_too_large_is_rejected(expression: str, message: str) -> None:
    """The calculator rejects it with a reason that a model can act on, before computing a large number."""
    tracemalloc.start()
    try:
        with pytest.raises(ToolFailed, match=message):
            calculate(expression)
        assert (peak := tracemalloc.get_traced_memory()[1]) < 1_000_000, peak
    finally:
        tracemalloc.stop()


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
        max_leaves=12,
    )
)
def test_the_calculator_agrees_with_python(expression: str) -> None:
    """On whole numbers the calculator computes what Python does."""
    assert calculate(expression) == eval(expression)  # the oracle, on expressions made here


@given(st.text(alphabet="0123456789+-*/%^(). ,episqrtco", max_size=40))
def test_any_text_gives_a_finite_number_or_an_error(expression: str) -> None:
    """Any text gives a finite number or a `ToolFailed`."""
    try:
        value = calculate(expression)
    except ToolFailed:
        return
    assert isinstance(value, int) or math.isfinite(value)


async def test_a_model_uses_the_calculator() -> None:
    """In a loop the value is the result of the call, and an error reaches the model as its text."""
    assert (await run_call([calculator()], "calculate", expression="17 + 25")).value == 42
    rejected = await run_call([calculator()], "calculate", expression="9**9**9")
    assert rejected.text == "ToolFailed: the result is too large"
