"""What is asked of the nursery."""

from __future__ import annotations

from typing import TypedDict

ENDED, CRASHED, CONFLICT = 0, 1, 3
"""How a process ends that is not killed: the run has ended, something went wrong, or somebody else drives the execution."""


class Job(TypedDict):
    """What a process is to do.

    Attributes:
        workload: which run.
        folder: the folder of the trial.
        recovers: whether it goes on with the run; else it begins it.
        dies_at: the moment at which it kills itself; empty for never.
    """

    workload: str
    folder: str
    recovers: bool
    dies_at: str
