"""Where ids come from."""

from __future__ import annotations

import re

from agentloop.values.time_and_ids import RandomIds


def test_random_ids_name_their_kind_and_never_repeat() -> None:
    """An id is the kind and 128 random bits."""
    drawn = [RandomIds().new_id("step") for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert all(re.fullmatch("step_[0-9a-f]{32}", one) for one in drawn)
