"""A small program between this process and an MCP server: it ends the server, and whatever that started, when we are gone.

It is run as a script, with a file descriptor and the server's command as its arguments. The descriptor is the reading end of
a pipe that nobody writes to: its other end is closed by whoever wants the server to end, and by the system when the process
that holds it is killed. The server runs in a process group of its own, so that Ctrl-C in a terminal does not reach it and so
that all of the group can be ended. Nothing but the standard library is imported, and little of that: a start takes 15 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

_GRACE_SECONDS = 0.7  # after the second that it has from the end of its input: less than two in all
_POLL_SECONDS = 0.01
_NOT_FOUND = 127
_BY_SIGNAL = 128  # as shells tell it


def main(arguments: list[str]) -> int:
    """Run the server until it ends or is not wanted any more; return its exit code."""
    lifeline, command = int(arguments[0]), arguments[1:]
    os.set_inheritable(lifeline, False)  # noqa: FBT003  # its only parameter
    awake, wake = os.pipe()
    os.set_blocking(wake, False)  # its only parameter
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        server = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=[signal.SIGPIPE])
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return _NOT_FOUND
    _let_go_of_the_pipes()
    status = _ended(server)
    while status is None:
        readable, _, _ = select.select([lifeline, awake], [], [])
        if awake in readable:
            os.read(awake, 64)
        status = _ended(server)
        if status is None and lifeline in readable:
            status = _terminated(server)
    _signal_group(server, signal.SIGKILL)  # whatever it has started and left behind
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _BY_SIGNAL - code


def _let_go_of_the_pipes() -> None:
    """Leave the server as the only one that holds its ends of the pipes, so that both sides see when it closes them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _ended(server: int) -> int | None:
    done, status = os.waitpid(server, os.WNOHANG)
    return status if done else None


def _terminated(server: int) -> int:
    _signal_group(server, signal.SIGTERM)
    until = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < until:
        status = _ended(server)
        if status is not None:
            return status
        time.sleep(_POLL_SECONDS)
    _signal_group(server, signal.SIGKILL)
    return os.waitpid(server, 0)[1]


def _signal_group(group: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
