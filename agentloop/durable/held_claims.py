"""The claims that were made through one journal object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from attrs import define, field

from agentloop.contracts.can_journal import Claim
from agentloop.durable.chain import claim_lost
from agentloop.errors import ClaimLost

_LOG = logging.getLogger("agentloop.journal")

_RELEASE_SECONDS = 10.0
"""How long the release of a claim may take, in seconds."""


async def release_quietly(claim: Claim) -> None:
    """Release a claim at the end of work whose result must not depend on it; a failure is logged.

    Args:
        claim: the claim; when it cannot be released, it ends with the process.
    """
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await claim.release()
    except Exception as error:  # noqa: BLE001  # also of journals of others
        problem = "the claim on execution %s could not be released, it ends with this process: %s: %s"
        _LOG.warning(problem, claim.execution_id, type(error).__name__, error)


def loss_of(claim: Claim, reason: str = "") -> ClaimLost:
    """Return the error for work under a claim that is lost.

    Args:
        claim: the claim.
        reason: why it is lost; by default as the claim says.
    """
    known = claim.loss if isinstance(claim, HeldClaim) else ""
    return claim_lost(claim.execution_id, claim.token, reason or known or "the journal reports that it is lost")


class HeldClaim(Claim):
    """A claim of this process; the journal that made it calls `lose` when it is lost.

    A subclass implements `release`. All methods can be called from any thread, `lost` in any event loop.

    Args:
        execution_id: the claimed execution.
        token: the fencing token.
    """

    def __init__(self, execution_id: str, token: int) -> None:
        self._execution_id, self._token = execution_id, token
        self._reason = ""
        self._waiting: list[asyncio.Future[str]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._execution_id!r}, token={self._token})"

    @property
    def execution_id(self) -> str:
        """The claimed execution."""
        return self._execution_id

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._token

    @property
    def is_lost(self) -> bool:
        """Whether the claim is lost, as far as this process knows."""
        return bool(self._reason)

    @property
    def loss(self) -> str:
        """Why the claim is lost; empty as long as `lose` was not called."""
        return self._reason

    async def lost(self) -> str:
        """Wait until the claim is lost, and return the reason."""
        future = asyncio.get_running_loop().create_future()
        # Before the look at the reason: one that is set meanwhile, by another thread, finds the future.
        self._waiting.append(future)
        try:
            return self._reason or await future
        finally:
            self._waiting.remove(future)

    def lose(self, reason: str) -> None:
        """Mark the claim as lost, and wake those who wait for that. Idempotent; the first reason remains.

        Args:
            reason: why it is lost, as the end of a sentence.
        """
        self._reason = self._reason or reason
        for future in tuple(self._waiting):
            with suppress(RuntimeError):  # its event loop is closed
                future.get_loop().call_soon_threadsafe(_wake, future, self._reason)


def _wake(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)


@define(eq=False)
class HeldClaims:
    """The claims that were made through one journal object and neither released nor lost.

    It neither locks nor releases anything: the journal does that, and guards its calls against other threads.
    """

    _held: dict[str, HeldClaim] = field(factory=dict)

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._held

    def all(self) -> Sequence[HeldClaim]:
        """Return the claims that are held."""
        return tuple(self._held.values())

    def add(self, claim: HeldClaim) -> None:
        """Add a new claim.

        Args:
            claim: the claim.
        """
        self._held[claim.execution_id] = claim

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim is held: not released, not lost, and made through this journal object.

        Args:
            claim: the claim.
        """
        return self._held.get(claim.execution_id) is claim

    def remove(self, claim: HeldClaim) -> bool:
        """Remove a claim that is released; return whether it was still held.

        Args:
            claim: the claim.
        """
        is_held = self.holds(claim)
        if is_held:
            del self._held[claim.execution_id]
        return is_held

    def end_all(self, reason: str) -> None:
        """End all claims: they are lost.

        Args:
            reason: why, as the end of a sentence.
        """
        held, self._held = self._held, {}
        for claim in held.values():
            claim.lose(reason)

    def check(self, claim: Claim) -> None:
        """Check that a claim permits to append.

        Raises:
            ClaimLost: it does not: it was released or lost, or another journal made it.
        """
        # Not `is_lost`: the journal holds its own lock here, which an overridden one may need.
        reason = claim.loss if isinstance(claim, HeldClaim) else ""
        if reason or not self.holds(claim):
            raise claim_lost(claim.execution_id, claim.token, reason or "it was released")
