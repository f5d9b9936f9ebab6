"""Tests of the ids of calls that are sent back to a provider."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.models.wire_formats.fields import unique_call_ids
from agentloop.values import ToolCall, ToolExchange
from tests.models.generated_requests import execution_of, tool_exchanges


def exchanges(*ids: str) -> list[ToolExchange]:
    """Return a turn of calls with these ids."""
    calls = [ToolCall(call_id, "add") for call_id in ids]
    return [ToolExchange(call, execution_of(call)) for call in calls]


@pytest.mark.parametrize(
    ("ids", "sent"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["", ""], ["call_0", "call_1"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["", "call_0"], ["call_0_0", "call_0"]),
        (["a", "a", "a_1"], ["a", "a_1_1", "a_1"]),
        (["a", "a", "a_1", "a_1_1", ""], ["a", "a_1_1_1", "a_1", "a_1_1", "call_4"]),
    ],
)
def test_ids_of_the_model_are_kept_and_others_derived_from_the_position(ids: list[str], sent: list[str]) -> None:
    """Only a missing or repeated id is replaced."""
    assert unique_call_ids(exchanges(*ids)) == sent


@given(st.lists(tool_exchanges(), max_size=8))
def test_ids_of_a_turn_are_unique_and_not_empty(turn: list[ToolExchange]) -> None:
    """The ids of the model remain in use, each for one call."""
    ids = unique_call_ids(turn)
    assert len(set(ids)) == len(turn)
    assert all(ids)
    assert {exchange.call.id for exchange in turn} - {""} <= set(ids)
