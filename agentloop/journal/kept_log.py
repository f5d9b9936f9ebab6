"""What a log that is kept in a journal does with messages, and with what stands beside calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.contracts.execution_log import RunLog
from agentloop.journal.fold import RecordedExecution
from agentloop.journal.record_writer import RecordWriter
from agentloop.values.journal_record import RecordKind
from agentloop.values.message import Message
from agentloop.values.recorded import RecordedCall
from agentloop.values.serialisation import to_plain


class KeptLog(RunLog):
    """A log whose records a writer takes.

    Attributes:
        recorded: the execution as it was found; None for one that is new.
    """

    recorded: RecordedExecution | None
    _writer: RecordWriter | None
    _beside: dict[str, dict[str, Any]]

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that had begun when the execution was interrupted and that no step has settled."""
        return () if self.recorded is None else tuple(self.recorded.calls.values())

    @property
    def has_begun(self) -> bool:
        """Whether anything is written down."""
        return self._writer is not None

    @property
    def is_in_step(self) -> bool:
        """Whether inferences or calls are recorded of a step that is not complete."""
        return self.recorded is not None and bool(self.recorded.inferences or self.recorded.calls)

    # --- messages -----------------------------------------------------------------------------------------------

    def taken_messages(self) -> Sequence[Message]:
        """Return the messages that the next step had taken when it was interrupted."""
        return () if self.recorded is None else tuple(self.recorded.taken)

    def waiting_messages(self) -> Sequence[Message]:
        """Return the messages that were sent and that no step had taken."""
        return () if self.recorded is None else tuple(self.recorded.waiting)

    def note_sent(self, message: Message) -> None:
        """Write down a message that was sent to the execution."""
        self._written.put(RecordKind.MESSAGES_SENT, {"messages": [to_plain(message)]})
        self._written.flush_soon()

    def note_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Write down the messages that a step takes."""
        body = {"step": step_number, "messages": [to_plain(message) for message in messages]}
        self._written.put(RecordKind.MESSAGES_TAKEN, body)

    # --- calls --------------------------------------------------------------------------------------------------

    def note_beside(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Keep something with the end of a call; it is written down with it."""
        self._beside.setdefault(key, {})[name] = dict(data)

    def beside(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return what was kept with the end of a call that is used again."""
        known = self._known_call(key)
        return None if known is None else known.beside.get(name)

    def _known_call(self, key: str) -> RecordedCall | None:
        return self.recorded.calls.get(key) if self.recorded is not None else None

    def _kept_beside(self, key: str) -> dict[str, Any]:
        beside = self._beside.pop(key, None)
        return {} if beside is None else {"beside": beside}

    @property
    def _written(self) -> RecordWriter:
        assert self._writer is not None  # noqa: S101  # nothing is noted before the execution has begun
        return self._writer
