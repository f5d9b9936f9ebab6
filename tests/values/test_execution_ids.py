"""The ids of executions: the agents above an execution are found in a time proportional to its id."""

from __future__ import annotations

import pytest

from agentloop.errors import ConfigurationError
from agentloop.values.records import call_of, caller_of, callers_of, check_execution_id, root_of

CASES = {
    "a/1/0/agent": ["a"],
    "a/1/0/agent-2": ["a"],
    "a/1/0/program/3/agent": ["a"],
    "a/1/0/agent/2/1/program/0/agent-3": ["a/1/0/agent", "a"],
    "a/b/1/0/agent": ["a/b"],
    "a/1/0/agents": [],
    "a/1/x/agent": [],
    "/1/0/agent": [],
    "1/0/agent": [],
    "a": [],
}


@pytest.mark.parametrize("execution_id", CASES)
def test_callers_are_found_from_the_inside(execution_id: str) -> None:
    """The callers of an execution come innermost first; the last one is the root."""
    callers = CASES[execution_id]
    assert list(callers_of(execution_id)) == callers
    assert root_of(execution_id) == (callers or [execution_id])[-1]
    assert caller_of(execution_id) == (callers or [""])[0]
    assert (call_of(execution_id) is None) is (not callers)


def test_a_long_id_is_refused_by_its_length() -> None:
    """A chosen id has at most 1,000 characters; the error says how many it has, without all of them."""
    assert check_execution_id("a" * 1_000)
    with pytest.raises(ConfigurationError, match="1,001 characters") as caught:
        check_execution_id("a" * 1_001)
    assert len(str(caught.value)) < 300
