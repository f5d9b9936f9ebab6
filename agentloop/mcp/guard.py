"""A small program between this process and an MCP server: it ends the server and all its children when this process is gone.

It is run as a script. Its arguments are a file descriptor, called the lifeline, and the command of the server. The lifeline
is the read end of a pipe that is never written to. Its other end is closed by the parent process to end the server, or by
the operating system when the parent is killed. The server runs in its own process group, so that Ctrl-C in a terminal does
not reach it and the whole group can be ended. Only the standard library is imported, and little of it: a start takes 15 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

# The parent waits a second after it has closed the server's input: less than two seconds in all.
_GRACE_SECONDS = 0.7
_POLL_SECONDS = 0.01
_NOT_FOUND = 127
_SIGNAL_OFFSET = 128  # the exit codes of shells: 127 for a missing command, 128 + number for a signal


def main(arguments: list[str]) -> int:
    """Run the server until it ends or the lifeline is closed; return its exit code."""
    lifeline, command = int(arguments[0]), arguments[1:]
    os.set_inheritable(lifeline, False)  # noqa: FBT003  # its only parameter
    # SIGCHLD writes to a pipe, so that one `select` waits for the end of the server and of the parent.
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)  # its only parameter
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        server = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=[signal.SIGPIPE])
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return _NOT_FOUND
    _release_pipes()
    status = _poll(server)
    while status is None:
        readable, _, _ = select.select([lifeline, wakeup_read], [], [])
        if wakeup_read in readable:
            os.read(wakeup_read, 64)
        status = _poll(server)
        if status is None and lifeline in readable:
            status = _terminate(server)
    _signal_group(server, signal.SIGKILL)  # processes that the server has started and left behind
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _SIGNAL_OFFSET - code


def _release_pipes() -> None:
    """Close our copies of the pipes: each side sees the end of a pipe only when no process has it open."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _poll(server: int) -> int | None:
    pid, status = os.waitpid(server, os.WNOHANG)
    return status if pid else None


def _terminate(server: int) -> int:
    _signal_group(server, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        status = _poll(server)
        if status is not None:
            return status
        time.sleep(_POLL_SECONDS)
    _signal_group(server, signal.SIGKILL)
    return os.waitpid(server, 0)[1]


def _signal_group(group: int, signal_number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal_number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
