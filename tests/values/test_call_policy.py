"""What tools ask for in calls that fail, repeat or come too often."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import tool
from agentloop.contracts.tool import ToolPolicy
from agentloop.values.policies import CachePolicy, CallPolicy, CircuitPolicy, RateLimit, RetryPolicy

BAD: list[dict[str, Any]] = [
    {"retry": 3},
    {"cache": 60},
    {"rate_limit": "1/s"},
    {"circuit": True},
    {"deadline": 0},
    {"timeout": 0},
    {"timeout": -1.5},
    {"timeout": float("nan")},
    {"timeout": "3"},
    {"max_result_bytes": -1},
]


@pytest.mark.parametrize("arguments", BAD, ids=repr)
def test_an_invalid_policy_is_refused_where_it_is_defined(arguments: dict[str, Any]) -> None:
    """A tool that asks for it cannot be defined, so no run finds out."""
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        ToolPolicy(**arguments)
    with pytest.raises((TypeError, ValueError)):

        @tool(**arguments)
        def look(x: int) -> int:
            """Look at a number."""
            return x


def test_the_error_names_the_expected_type() -> None:
    """The message shows how it is written."""
    with pytest.raises(TypeError) as raised:
        CallPolicy(retry=3)  # type: ignore[arg-type]
    assert str(raised.value) == "'retry' has to be a RetryPolicy, as in retry=RetryPolicy(…), not 3"


def test_a_valid_policy_has_its_values() -> None:
    """Set fields keep their values, and `merged_over` fills only unset fields."""
    policy = CallPolicy(retry=RetryPolicy(2), cache=CachePolicy(60))
    other = CallPolicy(retry=RetryPolicy(5), rate_limit=RateLimit(1), circuit=CircuitPolicy(2))
    merged = policy.merged_over(other)
    assert (merged.retry, merged.cache, merged.rate_limit, merged.circuit) == (
        RetryPolicy(2),
        CachePolicy(60),
        RateLimit(1),
        CircuitPolicy(2),
    )
    assert (ToolPolicy(timeout=0.5, max_result_bytes=1).timeout, ToolPolicy().timeout) == (0.5, None)
