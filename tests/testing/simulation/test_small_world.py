"""The small world: in every order of events the protocol keeps its promises, and each of its parts is needed for that."""

from __future__ import annotations

import pytest
from attrs import fields

from agentloop.testing.simulation.small_world import SmallBounds, SmallProtocol, explore

WORLDS = {
    "crashes": (SmallBounds(crashes=2, expiries=2, lost_answers=1), 7_255),
    "doubt": (SmallBounds(approvals=1, suspends_doubt=True), 2_434),
    "approval": (SmallBounds(approvals=1, needs_approval=True), 1_694),
    "decisions": (SmallBounds(approvals=2, needs_approval=True, suspends_doubt=True), 3_300),
    "messages": (SmallBounds(commands=1), 9_958),
    "agent": (SmallBounds(has_agent=True, needs_approval=True, approvals=1), 4_985),
    "fork": (SmallBounds(has_fork=True), 1_303),
    "deletion": (SmallBounds(expiries=0, lost_answers=0, has_agent=True, deletions=1), 149),
}
FLAWS = {
    "fences": ("crashes", "starts twice without an interruption"),
    "intent_first": ("crashes", "more often than anybody has permitted"),
    "binds_decisions": ("decisions", "a decision is used that nobody has made"),
    "remembers_commands": ("messages", "a message is taken twice"),
    "takes_all": ("messages", "was not taken"),
    "tells": ("crashes", "an effect of which nobody is told"),
    "asks_outside": ("agent", "a decision is used that nobody has made"),
    "checks_below": ("deletion", "about to happen in a deleted execution"),
    "reuses_once": ("fork", "two calls reuse one outcome"),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_order_of_events_is_right(name: str) -> None:
    """No state of the world breaks a promise, no history breaks a rule of records, and the number of states is known."""
    bounds, states = WORLDS[name]
    found = explore(SmallProtocol(), bounds)
    assert not found.problems
    assert found.ends, "the execution never ends"
    assert found.states == states


@pytest.mark.parametrize("part", FLAWS)
def test_each_part_of_the_protocol_is_needed(part: str) -> None:
    """Without this part, some order of events breaks a promise."""
    world, expected = FLAWS[part]
    found = explore(SmallProtocol(**{part: False}), WORLDS[world][0])
    assert [problem for problem in found.problems if expected in problem], found.problems


def test_every_part_is_tried() -> None:
    """No part of the protocol is left out of the flaws."""
    assert {part.name for part in fields(SmallProtocol)} == FLAWS.keys()


def test_a_world_has_a_limit() -> None:
    """A world that is too large ends with an error."""
    with pytest.raises(RuntimeError, match="more than 100 states"):
        explore(SmallProtocol(), SmallBounds(), limit=100)
