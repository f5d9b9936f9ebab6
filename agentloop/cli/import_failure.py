"""Errors raised while a person's file is imported, told in a line."""

from __future__ import annotations

import traceback
from pathlib import Path


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
