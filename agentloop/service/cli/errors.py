"""Errors that end a command with a message and an exit code instead of a traceback."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.service.cli.folder_modules import explain_missing
from agentloop.values.secrets import open_private


class InvalidUsage(click.ClickException):
    """The command cannot run as it was called. The message says what to change; the exit code is 2."""

    exit_code = 2


class CommandInterrupted(Exception):
    """Ctrl-C or SIGTERM interrupted an execution. The message is the account of what was done until then.

    Args:
        account: the message.
        cause: the interruption; its `is_termination` says which signal it was.
    """

    def __init__(self, account: str, cause: BaseException | None = None) -> None:
        super().__init__(account)
        self.is_termination: bool = getattr(cause, "is_termination", False)


def require_text(text: str, name: str) -> str:
    """Return a text of the command line or of stdin.

    Raises:
        InvalidUsage: it has bytes that are not UTF-8, which Python keeps as lone surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidUsage(
            f"{name} is not text: it has bytes that are not UTF-8 at character {error.start + 1:,}"
        ) from None
    return text


def describe_file_error(error: OSError | ValueError) -> str:
    """Return why a file cannot be read or written; a name with a null byte is a `ValueError`."""
    return str((error.strerror if isinstance(error, OSError) else "") or error)


def write_new(text: str, path: str | None) -> None:
    """Write the output of a command to a new file that only its owner can read, or to stdout for None.

    Raises:
        InvalidUsage: the file exists, which a person may have edited since, or it cannot be written.
    """
    if path is None:
        sys.stdout.write(text)
        return
    try:
        with open(path, "x", encoding="utf-8", opener=open_private) as file:  # Path.open has no opener
            file.write(text)
    except FileExistsError as error:
        raise InvalidUsage(f"the file {path} exists already; choose another one with -o") from error
    except OSError as error:
        raise InvalidUsage(f"{path} cannot be written: {describe_file_error(error)}") from error


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Convert errors of the setup into usage errors: models, keys, tools, and certificates that cannot be read.

    An error of the execution itself is recorded in its state and does not pass through here.

    Raises:
        InvalidUsage: for an error raised inside.
    """
    try:
        yield
    except (ConfigurationError, ToolDefinitionError) as error:
        raise InvalidUsage(str(error)) from error
    # What reads the output has ended; nothing is wrong with the setup.
    except BrokenPipeError:
        raise
    # httpx reads certificates when the client is created, and reports a missing file as an OSError.
    except OSError as error:
        raise InvalidUsage(f"the execution cannot start: {type(error).__name__}: {error}") from error


def describe_import_failure(path: Path, error: BaseException) -> str:
    """Return a message about a file that cannot be imported, with the innermost line of that file or its neighbors.

    Args:
        path: the file.
        error: the error that the import raised.
    """
    file, line, description = locate_failure(path, error)
    place = f"{file}, line {line}" if line else str(file)
    return f"the file {path} cannot be imported: {description} ({place})"


def locate_failure(path: Path, error: BaseException) -> tuple[Path, int, str]:
    """Return where an import failed and why: the file, the line (0 when unknown) and a description.

    Args:
        path: the file that was imported.
        error: the error that the import raised.
    """
    file, line = path, 0
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, line, message = Path(error.filename), error.lineno or 0, error.msg
    else:
        message = f"{error}{explain_missing(error, path.parent)}"
        # Frames of installed packages say little to the author of the file, so the last frame in its folder wins.
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).parent == path.parent:
                file, line = Path(frame.filename), frame.lineno or 0
    name = type(error).__name__
    return file, line, f"{name}: {message}" if message else name
