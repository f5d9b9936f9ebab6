"""A program that asks about calls at its terminal, and writes each decision to a file as soon as it is taken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agentloop import from_json
from agentloop.service.cli.console import create_console
from agentloop.service.cli.execution import TerminalApprover
from agentloop.values import PendingCall


class AsksAtOnce(TerminalApprover):
    """Prints all of a call, however long, and asks."""

    def _page(self, rows: object, size: object) -> bool:
        self._print("\n".join(rows))  # type: ignore[arg-type]  # the rows
        return True


class ShowsHalf(TerminalApprover):
    """Leaves out the second half of a call that is longer than the screen."""

    def _page(self, rows: object, size: object) -> bool:
        return super()._page(rows[: len(rows) // 2], size)  # type: ignore[arg-type, index]  # the rows


class KeepsTypedAhead(TerminalApprover):
    """Takes what was typed before the question as the answer."""

    def _read_line(self, prompt: str) -> str:
        self._console.print(f"{prompt}: ", end="")
        return input()


class ForgetsTheSize(TerminalApprover):
    """Does not look whether the terminal has got another size."""

    def _size(self) -> object:  # type: ignore[override]  # a size
        if not hasattr(self, "_first"):
            self._first = super()._size()
        return self._first


APPROVERS = {each.__name__: each for each in (TerminalApprover, AsksAtOnce, ShowsHalf, KeepsTypedAhead, ForgetsTheSize)}


def main() -> None:
    """Ask about the calls in a file, in order."""
    name, folder = sys.argv[1:]
    approver = APPROVERS[name](create_console(stderr=True))
    decided = Path(folder, "decided")
    for line in Path(folder, "calls").read_bytes().splitlines():
        call = from_json(line, PendingCall)
        decision = approver(call)
        with decided.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([type(decision).__name__, getattr(decision, 'digest', '')])}\n")
        sys.stderr.write("[decided]\n")


if __name__ == "__main__":
    main()
