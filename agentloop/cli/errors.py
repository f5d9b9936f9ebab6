"""Errors of the one who typed the command."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from agentloop.errors import ConfigurationError, ToolDefinitionError


class BadUsage(click.ClickException):
    """What was asked for cannot be done; the message says what to change. Ends with exit code 2."""

    exit_code = 2


@contextmanager
def told_as_bad_usage() -> Iterator[None]:
    """Tell what cannot work as it is set up: models, keys, tools, and certificates that cannot be read.

    What goes wrong in an execution itself is in its state and does not pass here.

    Raises:
        BadUsage: for what was raised inside.
    """
    try:
        yield
    except (ConfigurationError, ToolDefinitionError) as error:
        raise BadUsage(str(error)) from error
    except OSError as error:
        raise BadUsage(f"the execution cannot begin: {type(error).__name__}: {error}") from error


class Interrupted(Exception):
    """A person stopped the execution; the message is the account of what was done until then."""


def import_failure(path: Path, error: BaseException) -> str:
    """Say what was raised while importing a file, and where: the innermost line of the file or of one beside it.

    Args:
        path: the file.
        error: what was raised.
    """
    where, line, told = failure_place(path, error)
    at = f"{where}, line {line}" if line else str(where)
    return f"the tools file {path} cannot be imported: {told} ({at})"


def failure_place(path: Path, error: BaseException) -> tuple[Path, int, str]:
    """Return the file, the line (0 when it is not known) and what was raised there.

    Args:
        path: the file that was imported.
        error: what was raised.
    """
    where, line = path, 0
    if isinstance(error, SyntaxError) and error.filename is not None:
        where, line, what = Path(error.filename), error.lineno or 0, error.msg
    else:
        what = str(error)
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).parent == path.parent:
                where, line = Path(frame.filename), frame.lineno or 0
    return where, line, f"{type(error).__name__}: {what}" if what else type(error).__name__
