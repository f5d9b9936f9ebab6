"""The claims that were made through one journal object, and those of them that it ended by closing."""

from __future__ import annotations

from attrs import define, field

from agentloop.contracts.can_journal import Claim
from agentloop.errors import JournalError


@define(eq=False)
class HeldClaims:
    """Knows who may append: not a writer whose claim was ended while it went on.

    A new claim on the same execution makes appending possible again; then the chain tells an old writer from the new one.
    """

    _held: dict[str, Claim] = field(factory=dict)
    _ended: dict[str, Claim] = field(factory=dict)

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._held

    def add(self, execution_id: str, claim: Claim) -> None:
        """Note a claim that was made.

        Args:
            execution_id: what is claimed.
            claim: the claim.
        """
        self._held[execution_id] = claim
        self._ended.pop(execution_id, None)

    def leave(self, execution_id: str, claim: Claim) -> bool:
        """Note that a claim was given back; say whether it was still held.

        Args:
            execution_id: what was claimed.
            claim: the claim.
        """
        for claims in (self._ended, self._held):
            if claims.get(execution_id) is claim:
                del claims[execution_id]
                return claims is self._held
        return False

    def end(self) -> None:
        """End all that are held."""
        self._ended |= self._held
        self._held.clear()

    def check(self, execution_id: str) -> None:
        """Check that the claim on an execution was not ended while its writer went on.

        Raises:
            JournalError: when it was.
        """
        if execution_id in self._ended:
            raise JournalError(
                f"the journal was closed while execution {execution_id} was driven on, which ended its claim; close a journal "
                "after its runs, and go on with this one by `loop.recover`"
            )
