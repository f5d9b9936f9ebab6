"""What an error of SQLite means for a journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from agentloop.errors import AgentLoopError, JournalBusy, JournalCorrupt, JournalError, JournalFull

_PRIMARY = 0xFF
"""The part of an error code that is not about details."""

_MEANINGS: Mapping[int, tuple[Callable[[str], JournalError], str]] = {
    sqlite3.SQLITE_BUSY: (JournalBusy, "somebody else kept it locked for longer than busy_timeout"),
    sqlite3.SQLITE_LOCKED: (JournalBusy, "somebody else kept it locked"),
    sqlite3.SQLITE_FULL: (JournalFull, "there is no room to write; nothing of this was written, make room and go on"),
    sqlite3.SQLITE_IOERR_SHMSIZE: (JournalFull, "there is no room to open it; make room and go on"),
    sqlite3.SQLITE_CORRUPT: (
        JournalCorrupt,
        "the file is damaged; copy it before anything else, then look at `verify`",
    ),
    sqlite3.SQLITE_NOTADB: (JournalCorrupt, "the file is not a SQLite database, or its beginning is damaged"),
    sqlite3.SQLITE_CANTOPEN: (JournalError, "the file cannot be opened; is its folder there, and may it be written?"),
    sqlite3.SQLITE_READONLY: (JournalError, "the file or its folder may not be written"),
    sqlite3.SQLITE_PERM: (JournalError, "the file may not be read or written"),
    sqlite3.SQLITE_IOERR: (JournalError, "the system could not read or write the file"),
}


def translated(error: Exception, path: str) -> Exception:
    """Return the error that the caller of a journal gets; its cause is the one that was raised.

    Args:
        error: what was raised.
        path: the file, for the message.
    """
    if isinstance(error, UnicodeEncodeError):
        unwritable = JournalError(
            f"the journal {path}: {error.object!a} cannot be written down: its lone surrogates are no UTF-8"
        )
        unwritable.__cause__ = error
        return unwritable
    if isinstance(error, AgentLoopError) or not isinstance(error, sqlite3.Error | OSError):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and "decode" in str(error).lower():  # a text that is no longer UTF-8 has no code of its own
        code = sqlite3.SQLITE_CORRUPT
    code = code or 0
    kind, meaning = _MEANINGS.get(code) or _MEANINGS.get(code & _PRIMARY) or (JournalError, "it cannot be used")
    raised = kind(f"the journal {path}: {meaning} ({error})")
    raised.__cause__ = error
    return raised
