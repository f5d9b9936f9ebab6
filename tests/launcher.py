"""A small process that stands for a program in a fork of a loaded process (`tests.loaded`): `launcher.py SOCKET ARGUMENT…`.

It hands over its arguments, folder, environment and standard files, passes on what is to end it, and ends as the program ends, which
is killed with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def run() -> int:
    """Start the program, and return its exit code: the number of a signal below zero, if one has ended it."""
    path, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        program = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109  # pathlib takes long to load
        socket.send_fds(connection, [json.dumps(program).encode()], [0, 1, 2])
        for descriptor in range(3):
            os.close(descriptor)  # whoever waits for their end waits for that of the program
        pid = int(connection.recv(100))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        return int(connection.recv(100))


if __name__ == "__main__":
    code = run()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)  # there is nothing to flush
