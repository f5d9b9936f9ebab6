"""The entry point of the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module

_PACKAGES = ("click", "rich")
_USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Args:
        arguments: the arguments after the program's name; those of the process by default.

    Raises:
        SystemExit: always; with 2 when click or rich, the extra `cli`, are not installed.
    """
    # This module imports neither package itself, so that a missing extra is one line instead of a traceback.
    try:
        for package in _PACKAGES:
            import_module(package)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        sys.stderr.write("the command line needs the extra `cli`: pip install 'agentloop[cli]'\n")
        sys.exit(_USAGE_ERROR)
    replace_unencodable_output()
    import_module("agentloop.cli.commands").agentloop(arguments, prog_name="agentloop")


def replace_unencodable_output() -> None:
    """Write a question mark for each character that the encoding of stdout or stderr lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
