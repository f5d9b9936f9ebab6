"""Counts the uses of grants in the appends that store the intents of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from agentloop.contracts.can_journal import CanRedactRecords, Claim
from agentloop.contracts.can_keep_grants import CanKeepGrants
from agentloop.values.grants import GrantUse
from agentloop.values.records import ExecutionHead, JournalRecord


@define(eq=False)
class GrantUses(CanRedactRecords):
    """A journal as the writer of one execution sees it whose calls use grants.

    The writer passes each record through `redact` when it is put, and then appends all that were put: so the uses of the intents that
    were put before an append are counted by it.

    Attributes:
        journal: keeps the grants, and stores the records.
    """

    journal: CanKeepGrants
    _expected: dict[str, GrantUse] = field(factory=dict)
    _put: dict[str, GrantUse] = field(factory=dict)
    _counted: set[str] = field(factory=set)

    def expect(self, use: GrantUse) -> None:
        """Count a use together with the intent of its call, which comes later."""
        self._expected[use.key] = use

    def has_counted(self, key: str) -> bool:
        """Return whether the use of a call is counted."""
        return key in self._counted

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record that is put with secrets masked, and note whether it is an intent that uses a grant."""
        # Before it is masked: a secret may occur in the key of a call.
        intent = body.get("intent")
        use = None if intent is None else self._expected.pop(intent["key"], None)
        if use is not None:
            self._put[use.key] = use
        return self.journal.redact(body) if isinstance(self.journal, CanRedactRecords) else body

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append the records that were put, and count the uses of the calls that begin with them."""
        # Taken here: what is put while the journal writes belongs to the next append.
        uses = tuple(self._put.values())
        if not uses:
            await self.journal.append(head, records, claim)
            return
        await self.journal.append_using(head, records, claim, uses)
        for use in uses:
            del self._put[use.key]
            self._counted.add(use.key)
