"""Claims on executions that end with the process that has them, however it ends.

A claim is a lock on one byte of a file beside the database. The system takes it back when the file is closed, also by
`kill -9`. Which byte is told by the hash of the execution's id, one of 2^61: with a million executions claimed at once, two share a
byte with a probability of one to four million; the second would be refused as if it were claimed.

The beginning of the file says who has a claim, for messages only: a place for each of some thousand executions, by the same
hash.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from agentloop.contracts.can_journal import Claim
from agentloop.errors import JournalError
from agentloop.journal.appending import already_claimed, check_id
from agentloop.journal.held_claims import HeldClaims
from agentloop.journal.sqlite.file_locks import ByteLocks, byte_locks

_FIRST_BYTE = 1 << 62
_PLACES = 4096
_PLACE = struct.Struct("<16sq")


class Claims:
    """The claims of one journal.

    Args:
        path: the file of the locks; it is made when it is not there.
        open_locks: opens it.
    """

    def __init__(self, path: Path, open_locks: Callable[[Path], ByteLocks] = byte_locks) -> None:
        self._path = path
        self._open = open_locks
        self._locks: ByteLocks | None = None
        self._guard = Lock()
        self._held = HeldClaims()

    def claim(self, execution_id: str) -> FileClaim:
        """Claim an execution.

        Raises:
            JournalConflict: when somebody alive has claimed it.
            JournalError: when the file of the locks cannot be used, or the id cannot be written down.
        """
        check_id(execution_id)
        digest = hashlib.sha256(execution_id.encode()).digest()
        byte = _FIRST_BYTE + (int.from_bytes(digest[:8]) >> 3)
        with self._guard:
            try:
                locks = self._locks = self._locks or self._open(self._path)
                if not locks.lock(byte):
                    raise already_claimed(execution_id, _holder(locks, digest))
                locks.write(_offset(digest), _PLACE.pack(digest[:16], os.getpid()))
            except OSError as error:
                raise JournalError(f"the file of the claims {self._path} cannot be used: {error}") from error
            claim = FileClaim(self, locks, byte, execution_id)
            self._held.add(execution_id, claim)
            return claim

    def check(self, execution_id: str) -> None:
        """Check that the claim on an execution was not ended while its writer went on.

        Raises:
            JournalError: when it was.
        """
        with self._guard:
            self._held.check(execution_id)

    def release(self, claim: FileClaim) -> None:
        """Let others claim an execution again, unless all claims were ended since."""
        with self._guard:
            self._held.leave(claim.execution_id, claim)
            if claim.locks is self._locks:
                claim.locks.unlock(claim.byte)

    def end(self) -> None:
        """Refuse what those who have claims append from now on; others cannot claim it yet."""
        with self._guard:
            self._held.end()

    def close(self) -> None:
        """End all claims."""
        with self._guard:
            self._held.end()
            locks, self._locks = self._locks, None
            if locks is not None:
                locks.close()


class FileClaim(Claim):
    """A claim by a lock on a byte."""

    def __init__(self, claims: Claims, locks: ByteLocks, byte: int, execution_id: str) -> None:
        self._claims: Claims | None = claims
        self.locks: ByteLocks = locks
        self.byte: int = byte
        self.execution_id: str = execution_id

    async def release(self) -> None:
        """Let others claim the execution; more than once does nothing."""
        self.release_now()

    def release_now(self) -> None:
        """Do so without an event loop."""
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.release(self)


def _holder(locks: ByteLocks, digest: bytes) -> str:
    """Say who has a claim, if the file tells."""
    told = locks.read(_offset(digest), _PLACE.size)
    if len(told) < _PLACE.size or told[:16] != digest[:16]:
        return ""
    (_, process) = _PLACE.unpack(told)
    return "another writer of this process" if process == os.getpid() else f"process {process}"


def _offset(digest: bytes) -> int:
    return int.from_bytes(digest[8:16]) % _PLACES * _PLACE.size
