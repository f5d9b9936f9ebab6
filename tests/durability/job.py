"""The jobs of the fork server."""

from __future__ import annotations

from typing import TypedDict

ENDED, CRASHED, CONFLICT = 0, 1, 3
"""The exit codes of a process: the execution has ended, an error was raised, or another process drives the execution."""


class Job(TypedDict):
    """The job of one process.

    Attributes:
        workload: the name of the workload.
        folder: the folder of the trial.
        recovers: whether the process recovers the execution; otherwise it starts it.
        kill_point: the point at which the process kills itself; empty for never.
    """

    workload: str
    folder: str
    recovers: bool
    kill_point: str
