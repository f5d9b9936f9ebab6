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


@pytest.mark.parametrize("wish", BAD, ids=repr)
def test_a_wish_that_nothing_can_be_made_of_is_refused_where_it_is_written(wish: dict[str, Any]) -> None:
    """A tool that asks for it cannot be defined, so no run finds out."""
    with pytest.raises((TypeError, ValueError), match=next(iter(wish)) if wish != {"timeout": "3"} else "str"):
        ToolPolicy(**wish)
    with pytest.raises((TypeError, ValueError)):

        @tool(**wish)
        def look(x: int) -> int:
            """Look at a number."""
            return x


def test_what_has_to_stand_there_is_told() -> None:
    """The message shows how it is written."""
    with pytest.raises(TypeError) as raised:
        CallPolicy(retry=3)  # type: ignore[arg-type]
    assert str(raised.value) == "'retry' has to be a RetryPolicy, as in retry=RetryPolicy(…), not 3"


def test_good_wishes_are_kept() -> None:
    """What is asked for is what stands in the policy, and fills only what another leaves open."""
    asked = CallPolicy(retry=RetryPolicy(2), cache=CachePolicy(60))
    other = CallPolicy(retry=RetryPolicy(5), rate_limit=RateLimit(1), circuit=CircuitPolicy(2))
    made = asked.merged_over(other)
    assert (made.retry, made.cache, made.rate_limit, made.circuit) == (
        RetryPolicy(2),
        CachePolicy(60),
        RateLimit(1),
        CircuitPolicy(2),
    )
    assert (ToolPolicy(timeout=0.5, max_result_bytes=0).timeout, ToolPolicy().timeout) == (0.5, None)
