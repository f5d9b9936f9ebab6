"""The entry point of the command line."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import Literal, NoReturn, TextIO

from agentloop.errors.hints import install_hint

_PACKAGES = ("click", "rich")
COMPLETION = "_AGENTLOOP_COMPLETE"
"""The environment variable by which a shell asks for the completion of a word."""
_USAGE_ERROR = 2
INTERRUPTED = 130
"""The exit code that a shell expects after Ctrl-C: 128 plus the number of SIGINT."""
TERMINATED = 143
"""The exit code after SIGTERM: 128 plus its number."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: the command ends as after Ctrl-C, with another exit code."""

    is_termination = True


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Args:
        arguments: the arguments after the program's name; those of the process by default.

    Raises:
        SystemExit: always; with 2 when click or rich, the extra `cli`, are not installed.
    """
    leave_current_folder()
    # This module imports neither package itself, so that a missing extra, or Ctrl-C meanwhile, is no traceback.
    try:
        with _raising_on_sigterm():
            _start(arguments)
    except KeyboardInterrupt as interruption:
        sys.stderr.write("Interrupted.\n")
        sys.exit(exit_code_after(interruption))


def leave_current_folder() -> None:
    """Import no module from the current folder, and start no program in it by its name alone: its files may be anybody's.

    `python -m` puts the folder on the import path, and relative or empty entries of PATH lead to it. PYTHONPATH stays.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    # `agentloop.__main__` has removed it before it imported this module.
    name = "" if spec is None or spec.name == "agentloop.__main__" else spec.name
    is_run_by_name = name.partition(".")[0] == "agentloop" and not sys.flags.safe_path
    if sys.path[:1] == [""] or (is_run_by_name and sys.path[:1] == [_current_folder()]):
        del sys.path[0]
    path = os.environ.pop("PATH", "")
    # Without PATH, the folders of the system are searched; an empty one leads to the current folder, too.
    if fixed := os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep))):
        os.environ["PATH"] = fixed
    if sys.platform == "win32":
        # Programs are looked up there whatever PATH is.
        os.environ["NoDefaultCurrentDirectoryInExePath"] = "1"  # noqa: SIM112  # as Windows writes it


def _current_folder() -> str | None:
    with suppress(FileNotFoundError):
        return os.getcwd()  # noqa: PTH109  # as Python writes it into the import path
    return None


def exit_code_after(interruption: BaseException) -> int:
    """Return the exit code after Ctrl-C or SIGTERM."""
    return TERMINATED if getattr(interruption, "is_termination", False) else INTERRUPTED


@contextmanager
def _raising_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, unless the program around has a handler of its own."""
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def raise_terminated(_signal: int, _frame: object) -> NoReturn:
    """Handle SIGTERM.

    Raises:
        Terminated: always.
    """
    raise Terminated


def _start(arguments: Sequence[str] | None) -> None:
    try:
        for package in _PACKAGES:
            import_module(package)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        sys.stderr.write(f"the command line needs the extra `cli`: {install_hint('cli')}\n")
        sys.exit(_USAGE_ERROR)
    open_closed_streams()
    replace_unencodable_output()
    if COMPLETION in os.environ:
        import_module("agentloop.service.cli.completion").complete()
    import_module("agentloop.service.cli.commands").run_commands(arguments)


def open_closed_streams() -> None:
    """Open the null device for each standard stream that the program around has closed, as `<&-` in a shell does."""
    # In this order: what is opened gets the lowest free descriptor, which is that of the stream.
    if sys.stdin is None:
        sys.stdin = open_null_device("r")
    if sys.stdout is None:
        sys.stdout = open_null_device("w")
    if sys.stderr is None:
        sys.stderr = open_null_device("w")


def open_null_device(mode: Literal["r", "w"]) -> TextIO:
    """Open the device that has nothing to read and drops what is written."""
    return Path(os.devnull).open(mode, encoding="utf-8")


def replace_unencodable_output() -> None:
    """Write a question mark for each character that the encoding of stdout or stderr lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
