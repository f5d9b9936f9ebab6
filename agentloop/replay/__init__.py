"""Replays: today's code against recorded runs, without touching the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.replay.divergence import NOTHING as NOTHING
    from agentloop.replay.divergence import Difference as Difference
    from agentloop.replay.divergence import Divergence as Divergence
    from agentloop.replay.guard import Touch as Touch
    from agentloop.replay.guard import WorldTouched as WorldTouched
    from agentloop.replay.replays import Replay as Replay
    from agentloop.replay.replays import ReplaySummary as ReplaySummary
    from agentloop.replay.replays import replay as replay
    from agentloop.replay.replays import replay_all as replay_all
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.replay.divergence": "Difference Divergence NOTHING",
            "agentloop.replay.guard": "Touch WorldTouched",
            "agentloop.replay.replays": "replay Replay ReplaySummary replay_all",
        },
    )
