"""What every event carries."""

from __future__ import annotations

from datetime import UTC, datetime

from agentloop.values.event import Event, EventHead

HEAD = EventHead("agent", "run", "parent", 2, 7, datetime(2024, 1, 1, tzinfo=UTC))


def test_an_event_tells_where_and_when_it_happened() -> None:
    """Every field of the head can be read off the event."""
    event = Event(HEAD)
    assert (event.agent_id, event.execution_id, event.parent_agent_id) == ("agent", "run", "parent")
    assert (event.step_number, event.sequence, event.time) == (2, 7, HEAD.time)
    assert event == Event(HEAD)
