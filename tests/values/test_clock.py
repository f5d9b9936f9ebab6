"""Where time comes from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agentloop.values.time_and_ids import SystemClock


def test_the_time_is_that_of_the_machine_in_utc() -> None:
    """It is aware, and between the moments before and after asking."""
    before = datetime.now(UTC)
    now = SystemClock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.utcoffset() == timedelta(0)


def test_monotonic_time_never_goes_back() -> None:
    """Later readings are not smaller."""
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)
