"""Token counts and their addition."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given

from agentloop.values.inference import Usage
from tests.strategies import usages

COUNTS = [field.name for field in attrs.fields(Usage) if field.name != "requests"]


@given(usages(), usages())
def test_addition_is_commutative(left: Usage, right: Usage) -> None:
    """The order of inferences does not change their sum."""
    assert left + right == right + left


@given(usages(), usages(), usages())
def test_addition_is_associative(first: Usage, second: Usage, third: Usage) -> None:
    """Running sums and sums of sums are the same."""
    assert (first + second) + third == first + (second + third)


@given(usages())
def test_the_usage_of_nothing_is_neutral(usage: Usage) -> None:
    """Adding no inference changes nothing, on either side."""
    assert usage + Usage.none() == usage
    assert Usage.none() + usage == usage
    assert sum([usage, usage], Usage.none()) == usage + usage


@given(usages(), usages())
def test_each_count_is_added_by_itself_and_unknown_stays_unknown(left: Usage, right: Usage) -> None:
    """A sum is known exactly where both sides are, and is then their sum (law 6)."""
    total = left + right
    for name in COUNTS:
        left_count, right_count = getattr(left, name), getattr(right, name)
        assert getattr(total, name) == (None if left_count is None or right_count is None else left_count + right_count)
    assert total.requests == left.requests + right.requests


def test_an_inference_without_reported_usage_is_one_request_with_unknown_tokens() -> None:
    """Unknown is None, never zero."""
    assert Usage() == Usage(None, None, None, None, None, 1)
    assert Usage.none() == Usage(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("usage", "total"), [(Usage(3, 4), 7), (Usage(0, 0), 0), (Usage(3), None), (Usage(output_tokens=4), None)]
)
def test_the_total_is_known_where_both_directions_are(usage: Usage, total: int | None) -> None:
    """Input and output together, or unknown."""
    assert usage.total_tokens == total


def test_only_usage_is_added_to_usage() -> None:
    """A number is not a usage."""
    with pytest.raises(TypeError):
        _ = Usage() + 1  # type: ignore[operator]  # refused
