"""A sign of life while something takes its time."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status


class Waiting:
    """A line that moves below the others on a terminal; nothing where the output is not one.

    Args:
        console: where the line is shown.
    """

    def __init__(self, console: Console) -> None:
        self._status: Status | None = None
        self._console = console

    def show(self, what: str) -> None:
        """Say what is being waited for."""
        if not self._console.is_interactive:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(what)

    def hide(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None
