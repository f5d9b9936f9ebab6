"""What masks in a journal mean for those who go on from it: what was masked is gone, and is never run."""

from __future__ import annotations

from typing import Any

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_redact_records import CanRedactRecords
from agentloop.interception.secret_fields import MASK
from agentloop.values.recorded import CallIntent, RecordedCall
from agentloop.values.serialisation import to_plain
from agentloop.values.tool_execution import ErrorInfo, ToolStatus
from agentloop.values.value import Value


def masked_text(text: str, journal: CanJournal) -> str:
    """Return a text as the journal would hold it."""
    if not isinstance(journal, CanRedactRecords):
        return text
    masked = journal.redacted({"text": text})
    return str(masked.get("text", MASK))


def same_but_for_masks(given: Value | None, recorded: Value | None, journal: CanJournal) -> bool:
    """Say whether a value is the recorded one, or would be if what is secret in it were masked."""
    if given == recorded:
        return True
    if not isinstance(journal, CanRedactRecords):
        return False
    plain: dict[str, Any] = {"value": to_plain(given)}
    return journal.redacted(plain) == {"value": to_plain(recorded)}


def refusal(intent: CallIntent) -> RecordedCall | None:
    """Return what comes of a call whose arguments were read from a journal that masks: nothing, if something in them is masked.

    Args:
        intent: the call.
    """
    if MASK not in intent.call.arguments_json:
        return None
    error = ErrorInfo(
        "ToolFailed",
        "something secret in the arguments was not written down, so the call cannot be run from what was recorded; make "
        "it again",
    )
    return RecordedCall(intent=intent, execution=intent.ended(ToolStatus.FAILED, error=error), redacted=True)
