"""The jobs of the fork server."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

ENDED, CRASHED, CONFLICT, TERMINATED = 0, 1, 3, 4
"""The exit codes of a process: the execution has ended, an error was raised, another process drives the execution, or the
process got SIGTERM and cancelled its task."""

Manner: TypeAlias = Literal["kill", "terminate", "symlink"]
"""How processes die and recover: by SIGKILL; by SIGTERM, with a handler that cancels the task; or by SIGKILL, where the other
processes open the journal through a symbolic link."""


class Job(TypedDict):
    """The job of one process.

    Attributes:
        workload: the name of the workload.
        folder: the folder of the trial.
        recovers: whether the process recovers the execution; otherwise it starts it.
        kill_point: the point at which the process kills itself; empty for never.
        manner: how it does so.
    """

    workload: str
    folder: str
    recovers: bool
    kill_point: str
    manner: Manner
