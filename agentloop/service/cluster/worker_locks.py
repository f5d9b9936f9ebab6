"""Contracts of what tells which workers live, and the note that each writes about itself."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from agentloop.values.json import parse_json
from agentloop.values.value import Value

logger: logging.Logger = logging.getLogger("agentloop.cluster")

WORK_CHANNEL: Final = "agentloop_work"
"""The channel on which PostgreSQL announces a change of the queues."""


@frozen(eq=False, repr=False, kw_only=True)
class WorkerNote(Value):
    """What a worker tells about itself.

    Attributes:
        name: its name, which no other live worker of the database has.
        version: the version of the program that it runs.
        agents: the names of the agents that it runs.
        executions: how many executions it runs at a time.
        tools: how many queued tool calls it runs at a time.
        host: the machine.
        process: the id of its process.
        started: when it started, in seconds since 1970.
        server: which start of the database's server it has seen, as that server names it; empty without a server.
    """

    name: str
    version: str = ""
    agents: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    executions: int = 0
    tools: int = 0
    host: str = ""
    process: int = 0
    started: float = 0.0
    server: str = ""

    def to_text(self) -> str:
        """Return the note as a JSON object."""
        names = ("name", "version", "agents", "executions", "tools", "host", "process", "started", "server")
        return json.dumps({name: getattr(self, name) for name in names})

    @classmethod
    def from_text(cls, text: str) -> WorkerNote | None:
        """Return the note that `to_text` wrote; None for a text that it did not write."""
        try:
            match parse_json(text):
                case {
                    "name": str(name),
                    "version": str(version),
                    "agents": list(agents),
                    "executions": int(executions),
                    "tools": int(tools),
                    "host": str(host),
                    "process": int(process),
                    "started": int() | float() as started,
                    "server": str(server),
                } if all(isinstance(agent, str) for agent in agents):
                    return cls(
                        name=name,
                        version=version,
                        agents=tuple(agents),
                        executions=executions,
                        tools=tools,
                        host=host,
                        process=process,
                        started=started,
                        server=server,
                    )
        except ValueError:  # no JSON
            pass
        logger.debug("the note of a worker cannot be read: %.100r", text)
        return None


class WorkerLocks(ABC):
    """The locks of the workers of one database. A worker uses one object from one thread.

    Methods raise `OSError` or an error of the database while the database cannot be reached; `connect` then connects again.
    """

    @abstractmethod
    def connect(self) -> bool:
        """Connect to the database if needed; return whether the connection, and with it every lock, is new."""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Take the lock of a worker; return whether it was free, so that no live worker of this name exists."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Release the lock of a worker that this object has taken."""

    @abstractmethod
    def write_note(self, note: WorkerNote) -> None:
        """Store what a worker tells about itself."""

    @abstractmethod
    def erase_note(self, name: str) -> None:
        """Remove the note of a worker."""

    @abstractmethod
    def has_missed_restart(self, name: str) -> bool:
        """Return whether the server of the database has restarted since a worker wrote its note: it may have left because of that."""

    @abstractmethod
    def live_notes(self) -> Sequence[WorkerNote]:
        """Return the notes of the workers whose locks are held, by name."""

    @abstractmethod
    def close(self) -> None:
        """Release all locks and connections. Idempotent."""


class WorkSignal(ABC):
    """Wakes a worker when the queues have changed. One thread waits; `wake` may be called from any."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Wait until the queues may have changed or `wake` was called since the last wait, up to a number of seconds."""

    @abstractmethod
    def wake(self) -> None:
        """End the wait, now or when it begins."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; only while no thread waits."""
